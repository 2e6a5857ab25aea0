//! `dqn overhead`: what validation and checkpoints cost the training step, measured side by side in one sitting.
//!
//! Each way of training has a session of its own. All train to the same weights, which is checked before anything is timed; then
//! they take turns, epoch by epoch, in an order that is drawn anew each round.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::{CheckpointError, CheckpointFolder, Device, Ticket};

use super::clock::Clock;
use super::folds::{Fold, walk_forward};
use super::market::Prices;
use super::setup::{Setup, Size, World};
use super::synthetic;
use super::trainer::{Trainer, window};
use super::validation::Validation;

/// Days and stocks of the prices that are traded; the step's time does not depend on them.
const DAYS: usize = 1200;
const STOCKS: usize = 20;
/// Steps before the weights are compared.
const CHECKED: usize = 100;
/// Launches that the host is ahead of the one that it waits for, so that the device never waits for the host.
const AHEAD: usize = 3;

/// Measures what validation and checkpoints cost the training step.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to run: auto, host, cuda or cuda:N.
    #[arg(long, default_value = "auto")]
    device: String,
    /// How each step becomes launches: debug, phases, mega or fast.
    #[arg(long, default_value = "mega", value_parser = FusionPlan::NAMES)]
    plan: String,
    /// How large the network is; by default `device` on a GPU, `host` otherwise.
    #[arg(long, value_enum)]
    size: Option<Size>,
    /// Training steps of an epoch.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    steps: u32,
    /// Epochs of each way of training.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
}

/// A way of training an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Training alone.
    Alone,
    /// The same again: the difference is noise.
    AloneAgain,
    /// One evaluation on its lane, begun once the first steps of the epoch are queued.
    Beside,
    /// Evaluations on their lane all the time: the next begins as soon as one has ended.
    BesideAlways,
    /// The same evaluation, begun as `Beside` and waited for before training goes on.
    Blocking,
    /// A checkpoint, begun as `Beside`.
    Checkpoint,
}

impl Way {
    const ALL: [Self; 6] =
        [Self::Alone, Self::AloneAgain, Self::Beside, Self::BesideAlways, Self::Blocking, Self::Checkpoint];

    const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::AloneAgain => "alone, again",
            Self::Beside => "validation beside",
            Self::BesideAlways => "validation always beside",
            Self::Blocking => "validation, waited for",
            Self::Checkpoint => "checkpoint",
        }
    }
}

/// A session that trains in one way, and what it took.
struct Contender {
    way: Way,
    trainer: Trainer,
    clock: Clock,
    validation: Validation,
    folder: CheckpointFolder,
    saved: u64,
    evaluated: usize,
    /// Seconds per step of each epoch.
    epochs: Vec<f64>,
    /// The longest time between the ends of two steps, of each epoch.
    gaps: Vec<f64>,
}

/// Measures, and prints a table.
///
/// # Errors
/// A device that failed, or ways of training that do not lead to the same weights.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let device: Device = args.device.parse()?;
    let fusion = FusionPlan::named(&args.plan).context("no such plan")?;
    let size = args.size.unwrap_or(if device == Device::Host { Size::Host } else { Size::Device });
    let mut setup = Setup::new(size, World::Real, "ddqn");
    setup.folds = super::folds::FoldSpec { train: 756, most: Some(1), ..setup.folds };
    let prices = synthetic::prices(DAYS, STOCKS, synthetic::Reversion::default(), 1);
    let folds = walk_forward(prices.days(), &setup.folds)?;
    let files = tempfile::tempdir().context("no folder for checkpoints")?;
    let open = |way: Way| Contender::open(way, &setup, &prices, &folds[0], (device, &fusion), files.path());
    let mut contenders = Way::ALL.into_iter().map(open).collect::<Result<Vec<_>>>()?;

    let mut weights: Option<Vec<u32>> = None;
    for contender in &mut contenders {
        contender.epoch(CHECKED, &folds[0])?;
        let found = contender.weights()?;
        ensure!(*weights.get_or_insert_with(|| found.clone()) == found, "{}: other weights", contender.way.name());
    }
    let mut order = Order(1);
    for _ in 0..args.rounds {
        for at in order.next(contenders.len()) {
            let (epoch, longest) = contenders[at].epoch(args.steps as usize, &folds[0])?;
            contenders[at].epochs.push(epoch.as_secs_f64() / f64::from(args.steps));
            contenders[at].gaps.push(longest.as_secs_f64());
        }
    }
    let on = contenders[0].trainer.session.report().device;
    writeln!(out, "{on}, plan {}, epochs of {} steps, {} of each\n", args.plan, args.steps, args.rounds)?;
    table(&contenders, out)
}

impl Contender {
    fn open(
        way: Way,
        setup: &Setup,
        prices: &Prices,
        fold: &Fold,
        (device, fusion): (Device, &FusionPlan),
        files: &std::path::Path,
    ) -> Result<Self> {
        let clock = Clock::of(device)?;
        let mut trainer = Trainer::open_in(clock.session(), setup.clone(), prices, (device, fusion), 1)?;
        trainer.begin(0, fold)?;
        trainer.session.set(trainer.system.dqn.scalars.lr, 1e-4)?;
        Ok(Self {
            way,
            trainer,
            clock,
            validation: Validation::default(),
            folder: CheckpointFolder::open(files.join(way.name()), 1)?,
            saved: 0,
            evaluated: 0,
            epochs: Vec::new(),
            gaps: Vec::new(),
        })
    }

    fn weights(&mut self) -> Result<Vec<u32>> {
        let flat = self.trainer.session.read(self.trainer.system.dqn.theta.flat)?;
        Ok(flat.into_iter().map(f32::to_bits).collect())
    }

    /// Trains an epoch; its time, and the longest time between the ends of two of its steps.
    fn epoch(&mut self, steps: usize, fold: &Fold) -> Result<(Duration, Duration)> {
        self.trainer.session.wait()?;
        self.trainer.session.finish_checkpoints()?;
        let start = Instant::now();
        let mut flying: VecDeque<Ticket> = VecDeque::with_capacity(AHEAD + 1);
        self.clock.begin();
        for step in 0..steps {
            if step == AHEAD {
                self.begin(fold)?;
            }
            flying.push_back(self.trainer.update()?);
            self.clock.note()?;
            if flying.len() > AHEAD
                && let Some(first) = flying.pop_front()
            {
                first.wait(&mut self.trainer.session)?;
            }
            if self.way == Way::BesideAlways && self.collect()? {
                self.validate(fold)?;
            }
        }
        for ticket in flying {
            ticket.wait(&mut self.trainer.session)?;
        }
        let took = start.elapsed();
        self.finish()?;
        self.trainer.session.wait()?;
        Ok((took, self.clock.longest()?))
    }

    /// Begins what is done beside training: between steps, as at the end of an epoch, so that a wait for it is a gap.
    fn begin(&mut self, fold: &Fold) -> Result<()> {
        match self.way {
            Way::Alone | Way::AloneAgain => Ok(()),
            Way::Beside | Way::BesideAlways => self.validate(fold),
            Way::Blocking => {
                self.validate(fold)?;
                self.finish()
            }
            Way::Checkpoint => self.save(),
        }
    }

    fn validate(&mut self, fold: &Fold) -> Result<()> {
        let Trainer { session, system, .. } = &mut self.trainer;
        self.validation.start(session, &system.evaluation, self.evaluated + 1, window(fold)?)?;
        Ok(())
    }

    fn collect(&mut self) -> Result<bool> {
        let Trainer { session, system, .. } = &mut self.trainer;
        let ended = self.validation.collect(session, &system.evaluation)?.is_some();
        self.evaluated += usize::from(ended);
        Ok(ended)
    }

    fn finish(&mut self) -> Result<()> {
        let Trainer { session, system, .. } = &mut self.trainer;
        self.evaluated += usize::from(self.validation.finish(session, &system.evaluation)?.is_some());
        Ok(())
    }

    fn save(&mut self) -> Result<()> {
        self.saved += 1;
        match self.folder.try_save(&mut self.trainer.session, self.saved, &BTreeMap::new()) {
            Ok(_) | Err(CheckpointError::Busy { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn table(contenders: &[Contender], out: &mut impl Write) -> Result<()> {
    let median = |values: &[f64]| quantile(values, 0.5);
    let alone = median(&contenders[0].epochs);
    let head = ["", "µs per step", "5 to 95 %", "of alone", "gap, median", "gap, worst", "evaluations"];
    let [name, step, spread, ratio, gap, worst, evaluations] = head;
    writeln!(out, "{name:<26}{step:>12}{spread:>22}{ratio:>10}{gap:>14}{worst:>14}{evaluations:>13}")?;
    for Contender { way, epochs, gaps, evaluated, .. } in contenders {
        let spread = format!("{:.1} to {:.1}", 1e6 * quantile(epochs, 0.05), 1e6 * quantile(epochs, 0.95));
        let (step, ratio) = (1e6 * median(epochs), median(epochs) / alone);
        let [gap, worst] = [0.5, 1.0].map(|share| format!("{:.0} µs", 1e6 * quantile(gaps, share)));
        let name = way.name();
        writeln!(out, "{name:<26}{step:>12.1}{spread:>22}{ratio:>10.4}{gap:>14}{worst:>14}{evaluated:>13}")?;
    }
    writeln!(
        out,
        "\nA gap is the longest time between the ends of two steps of an epoch, on the clock of what runs them: of the median epoch, and of the worst."
    )?;
    Ok(())
}

/// The value below which this share of the values lies, interpolated.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = share * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// Orders in which contenders take turns (Fisher and Yates, with Knuth's 64-bit linear congruential generator).
struct Order(u64);

impl Order {
    fn next(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(last, (self.0 >> 33) as usize % (last + 1));
        }
        order
    }
}
