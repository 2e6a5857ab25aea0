//! How large a run is: the network, the memory, the number of steps, and why.
//!
//! Three sizes. `ci` shows in a test that the loop learns, `host` is what two cores can do while one waits, `device` is the full
//! budget. All numbers that decide how long a run takes, and how well it learns, are here.

use stepgraph::ir::Compute;
use stepgraph::kernel::library::trading::LOOKBACK;

use super::environment::{BRANCHES, CLASSES, EXPOSURE_COLUMN};
use super::folds::FoldSpec;
use super::hyper::{Hyper, Mask, Source};
use super::schedule::{Cosine, Ramp};

/// A training system, and how long it is trained.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setup {
    /// The network and the batch.
    pub(crate) hyper: Hyper,
    /// The variant of the training step.
    pub(crate) variant: &'static str,
    /// Episodes that are played at once.
    pub(crate) episodes: u32,
    /// Bars that are played at random before the first training step.
    pub(crate) warmup_bars: u32,
    /// Training steps of a fold.
    pub(crate) updates: usize,
    /// Parts of a fold's training: at the end of each the policy is validated, and a checkpoint is written.
    pub(crate) epochs: usize,
    /// Training steps between two bars of all episodes.
    pub(crate) updates_per_bar: usize,
    /// How days are cut into folds.
    pub(crate) folds: FoldSpec,
    /// The learning rate.
    pub(crate) rate: Cosine,
    /// The probability of a random action.
    pub(crate) epsilon: Ramp,
    /// What stays as it is during a fold.
    pub(crate) fixed: Fixed,
    /// Seeds of the random policy that a fold is compared with.
    pub(crate) random_runs: u32,
}

/// Host scalars that are set once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fixed {
    /// Discount of a bar.
    pub(crate) gamma: f32,
    /// How far the target network follows in a step.
    pub(crate) tau: f32,
    /// Weight of the auxiliary loss.
    pub(crate) aux_w: f32,
    /// The share of a batch that is relabelled in hindsight.
    pub(crate) relabel: f32,
}

/// Ten bars ahead is as far as a position taken today should answer for: what moves prices later is not in today's features, and
/// a longer horizon only adds its noise to every target. The price path does not depend on the action, so that a relabelled
/// transition is as true as a lived one; half of each batch shows actions that the policy would not have tried.
const FIXED: Fixed = Fixed { gamma: 0.9, tau: 0.01, aux_w: 0.1, relabel: 0.5 };

/// Atoms of the categorical variant, as Bellemare et al. (2017) found enough.
const ATOMS: u32 = 51;

/// Discounted returns that atoms stand for, in percent: about three standard deviations at a daily volatility of 2 %.
const SUPPORT: [f32; 2] = [-15.0, 15.0];

/// The size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Size {
    /// Seconds, unoptimised.
    Ci,
    /// About a minute on two cores.
    Host,
    /// The full budget of a GPU.
    Device,
}

/// Which prices are traded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum World {
    /// The file of 20 stocks.
    Real,
    /// Mean-reverting prices with a known rule.
    Synthetic,
}

/// Days of the synthetic history: 68,000 stock-days to train on, so that even the large network cannot learn the noise by heart.
pub(crate) const SYNTHETIC_DAYS: usize = 4000;

/// Stocks of the synthetic market.
pub(crate) const SYNTHETIC_STOCKS: usize = 20;

impl Setup {
    /// The setup of this size. `variant` is `ddqn`, `mse` or `c51`.
    pub(crate) fn new(size: Size, world: World, variant: &'static str) -> Self {
        let atoms = if variant == "c51" { ATOMS } else { 1 };
        // Batch, observation, trunk, head, blocks; episodes; steps; replay capacity.
        let ([batch, observation, trunk, head, blocks], episodes, updates, capacity) = match size {
            // Two seconds in the test profile, and well on the way to the rule.
            Size::Ci => ([32, 24, 32, 16, 1], 32, 2_500, 1 << 14),
            // About 0.7 ms a step on one core: 9 s a fold, so that two folds stay far below 90 s on a busy machine.
            Size::Host => ([64, 32, 64, 32, 1], 32, 12_000, 1 << 16),
            // The reference size M; a million transitions are about three passes over the training window's stock-days and actions.
            Size::Device => ([256, 64, 256, 128, 2], 256, 20_000, 1_000_000),
        };
        Self {
            hyper: Hyper {
                batch,
                observation,
                trunk,
                head,
                blocks,
                branches: BRANCHES.to_vec(),
                classes: CLASSES,
                atoms,
                support: SUPPORT,
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
                compute: Compute::F32,
                source: Source::Replay { capacity, exposure: EXPOSURE_COLUMN },
                mask: Mask::Drawn,
            },
            variant,
            episodes,
            // Enough for the first batches to be of different days.
            warmup_bars: 64,
            updates,
            epochs: 10,
            // Each transition is drawn about twice: little data is the rule here, and prioritised draws profit from more.
            updates_per_bar: (2 * episodes / batch).max(1) as usize,
            folds: folds(size, world),
            rate: Cosine { peak: 1e-3, last: 5e-5, warmup: 0.02 },
            epsilon: Ramp { first: 1.0, last: 0.05, over: 0.5 },
            fixed: FIXED,
            random_runs: 16,
        }
    }
}

/// Six years to train and one to validate, a year apart: long enough to hold more than one regime, short enough to forget the
/// one before. The host takes the latest two of these folds. A synthetic market has one regime: one fold of it.
fn folds(size: Size, world: World) -> FoldSpec {
    let lookback = LOOKBACK as usize;
    match (world, size) {
        (World::Synthetic, _) => FoldSpec { lookback, train: 3380, validation: 500, step: 500, most: Some(1) },
        (World::Real, Size::Device) => FoldSpec { lookback, train: 1512, validation: 252, step: 252, most: None },
        (World::Real, _) => FoldSpec { lookback, train: 1512, validation: 252, step: 252, most: Some(2) },
    }
}
