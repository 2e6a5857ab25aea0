//! What happens where the device refuses a plan's graph: an error, or, where the user asked for it, a graph per phase instead.
//!
//! Nothing falls back unasked, and what fell back is warned about and reported.

use super::error::RuntimeError;
use super::report::Fallback;
use crate::plan::{Graphs, StepPlan};

/// What a session does where the graph of a whole step cannot be built or instantiated on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// Opening fails.
    #[default]
    Report,
    /// The step gets one graph per phase ([`StepPlan::by_phase`]), which is the same bit for bit; a warning and
    /// [`SessionReport::fallbacks`](super::SessionReport::fallbacks) say so. Where that fails too, opening fails.
    Phases,
}

/// Why a device could not be opened.
#[derive(Debug)]
pub(super) struct OpenError {
    pub(super) error: RuntimeError,
    /// The plan whose graphs the driver refused, where the device itself is well.
    pub(super) refused: Option<usize>,
}

impl From<RuntimeError> for OpenError {
    fn from(error: RuntimeError) -> Self {
        Self { error, refused: None }
    }
}

/// Puts a plan by phase in place of the one that was refused.
///
/// # Errors
/// The error itself, where there is nothing to fall back to.
pub(super) fn fall_back(
    failure: OpenError,
    policy: OnFailure,
    plans: &mut [StepPlan],
) -> Result<Fallback, RuntimeError> {
    let OpenError { error, refused } = failure;
    let Some(plan) = refused.filter(|_| policy == OnFailure::Phases).and_then(|at| plans.get_mut(at)) else {
        return Err(error);
    };
    if plan.fusion().graphs != Graphs::Mega {
        return Err(error);
    }
    // A step that cannot be cut, such as a loop, has nothing to fall back to.
    let Ok(by_phase) = plan.by_phase() else { return Err(error) };
    let fallback = Fallback {
        step: plan.step_name().to_owned(),
        variant: plan.variant().map(str::to_owned),
        wanted: plan.fusion().name.clone(),
        plan: by_phase.fusion().name.clone(),
        reason: chain(&error),
    };
    *plan = by_phase;
    tracing::warn!("{fallback}");
    Ok(fallback)
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
