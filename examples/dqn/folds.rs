//! Walk-forward folds: which days a policy is trained on, and which later days it is judged on.
//!
//! A fold is two windows of days, the second right after the first, so that nothing of the validation window is known in
//! training. Windows are host scalars of the program: another fold needs no other program.

use std::ops::Range;

/// The lengths that cut a history into folds, in trading days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoldSpec {
    /// Days before the first window that features look back on.
    pub(crate) lookback: usize,
    /// Days of a training window.
    pub(crate) train: usize,
    /// Days of a validation window.
    pub(crate) validation: usize,
    /// Days from the start of one fold to the start of the next.
    pub(crate) step: usize,
    /// The most folds to make, the latest ones where there are more; `None` for all.
    pub(crate) most: Option<usize>,
}

/// One fold: half-open ranges of days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fold {
    /// Days to train on.
    pub(crate) train: Range<usize>,
    /// Days to judge on.
    pub(crate) validation: Range<usize>,
}

/// Why a history gives no folds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FoldError {
    /// A window must hold one trade at least: a close to decide on and a close to earn by.
    #[error("a {window} window of {found} days is too short: at least 2 are needed")]
    Window {
        /// Which window.
        window: &'static str,
        /// Its length.
        found: usize,
    },
    /// Folds move forward.
    #[error("folds that start 0 days apart are all the same: give a step of at least 1 day")]
    Step,
    /// The history holds one fold at least.
    #[error(
        "the price history has {found} days, one fold needs {needed} ({lookback} to look back on, {train} to train, \
         {validation} to validate): give a longer history or shorter windows"
    )]
    TooShort {
        /// Days of the history.
        found: usize,
        /// Days that one fold needs.
        needed: usize,
        /// See [`FoldSpec::lookback`].
        lookback: usize,
        /// See [`FoldSpec::train`].
        train: usize,
        /// See [`FoldSpec::validation`].
        validation: usize,
    },
}

/// The folds of a history of `days` days, earliest first. The last window ends on the last day; what fills no step is left out
/// at the beginning, where data is oldest.
///
/// # Errors
/// If the lengths make no sense, or the history is too short for one fold.
pub(crate) fn walk_forward(days: usize, spec: &FoldSpec) -> Result<Vec<Fold>, FoldError> {
    let &FoldSpec { lookback, train, validation, step, most } = spec;
    for (window, found) in [("training", train), ("validation", validation)] {
        if found < 2 {
            return Err(FoldError::Window { window, found });
        }
    }
    if step == 0 {
        return Err(FoldError::Step);
    }
    let needed = lookback.saturating_add(train).saturating_add(validation);
    let Some(spare) = days.checked_sub(needed) else {
        return Err(FoldError::TooShort { found: days, needed, lookback, train, validation });
    };
    let count = (spare / step + 1).min(most.unwrap_or(usize::MAX));
    let fold = |from_last: usize| {
        let split = days - validation - from_last * step;
        Fold { train: split - train..split, validation: split..split + validation }
    };
    Ok((0..count).rev().map(fold).collect())
}
