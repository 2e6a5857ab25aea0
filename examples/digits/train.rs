//! The training loop: the host sets the rate, everything else happens on the device.

use std::ops::Range;

use anyhow::Result;
use stepgraph::plan::{FusionPlan, Repeat, StepPlan, Target, Tuning};
use stepgraph::runtime::{RuntimeError, Session};

use crate::data::Set;
use crate::program::{BATCH, Digits, TEST, TRAIN};

/// Mini-batches of an epoch.
pub(crate) const STEPS: u32 = TRAIN / BATCH;
/// The learning rate of the first step.
const PEAK_RATE: f32 = 2e-3;

/// Plans of all steps. A launch of `train` makes as many steps as the plan repeats, which must divide [`STEPS`]; the others make
/// one.
///
/// # Errors
/// A target that cannot run the program, or a plan that cannot be repeated so.
pub(crate) fn plans(digits: &Digits, fusion: &FusionPlan, target: &Target) -> Result<Vec<StepPlan>> {
    let once = fusion.clone().repeated(Repeat::Once);
    let plan = |(step, fusion)| Ok(digits.program.plan(step, fusion, target, &Tuning::default())?);
    [("train", fusion), ("report", &once), ("test", &once)].into_iter().map(plan).collect()
}

/// Hands the data and the seed to the device.
///
/// # Errors
/// A device that failed.
pub(crate) fn load(
    session: &mut Session,
    digits: &Digits,
    seed: u32,
    train: &Set,
    test: &Set,
) -> Result<(), RuntimeError> {
    session.set(digits.seed, seed)?;
    session.load(digits.train_images, &train.images)?;
    session.load(digits.train_labels, &train.labels)?;
    session.load(digits.test_images, &test.images)?;
    session.load(digits.test_labels, &test.labels)
}

/// What the loop tells its caller.
pub(crate) trait Watch {
    /// Whether to read the loss of a mini-batch, which waits for the step. It is asked about the last step of a launch.
    fn wants_loss(&self, step: u32) -> bool;
    /// These steps, counted from 0 over all epochs, have been launched; the loss of the last one where it was wanted.
    fn after_launch(&mut self, steps: Range<u32>, loss: Option<f32>);
}

/// Trains one epoch of `epochs`. Returns the mean loss. The steps of one launch share the rate of the first of them.
///
/// # Errors
/// A device that failed.
pub(crate) fn epoch(
    session: &mut Session,
    digits: &Digits,
    (epoch, epochs): (u32, u32),
    watch: &mut impl Watch,
) -> Result<f32, RuntimeError> {
    let train = session.plans().iter().find(|plan| plan.step_name() == "train");
    let each = train.map_or(1, |plan| plan.fusion().repeat.steps());
    for launch in 0..STEPS / each {
        let first = epoch * STEPS + launch * each;
        session.set(digits.rate, rate(first, epochs * STEPS))?;
        let ticket = session.launch("train")?;
        let loss = match watch.wants_loss(first + each - 1) {
            true => Some(ticket.wait(session)?.read(digits.batch_loss)?[0]),
            false => None,
        };
        watch.after_launch(first..first + each, loss);
    }
    let report = session.launch("report")?;
    let loss = report.wait(session)?.read(digits.epoch_loss)?;
    Ok(loss[0])
}

/// The part of the test images that is recognised.
///
/// # Errors
/// A device that failed.
pub(crate) fn accuracy(session: &mut Session, digits: &Digits) -> Result<f32, RuntimeError> {
    let test = session.launch("test")?;
    let correct = test.wait(session)?.read(digits.correct)?;
    Ok(correct[0] as f32 / TEST as f32)
}

/// Half a cosine from the peak to almost nothing (Loshchilov and Hutter, 2017, without restarts).
fn rate(step: u32, steps: u32) -> f32 {
    let turn = f64::from(step) / f64::from(steps) * std::f64::consts::PI;
    PEAK_RATE * (0.5 * (1.0 + turn.cos())) as f32
}
