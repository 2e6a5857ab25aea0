//! The whole system as one program in one session: training a fold, and judging the policy on the days after it.
//!
//! The host sets scalars and launches steps. It picks up losses, and the records of evaluations, which run on a lane of their
//! own, when they have arrived.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use stepgraph::Builder;
use stepgraph::handle::Scalar;
use stepgraph::ir::Role;
use stepgraph::plan::{FusionPlan, StepPlan, Target, Tuning};
use stepgraph::runtime::{Device, Link, RuntimeError, Session, SessionBuilder, Ticket};
use stepgraph::valid::ValidProgram;

use super::act::{self, Actor, Learned};
use super::environment::{Costs, Market};
use super::evaluate::{Evaluation, POLICIES};
use super::folds::Fold;
use super::keeper::{self, Keeper, Position};
use super::losses::{Losses, Progress, Reported};
use super::market::Prices;
use super::network::Weights;
use super::report::{FoldResult, Metrics, Spread};
use super::setup::Setup;
use super::synthetic::RuleCosts;
use super::train::Dqn;
use super::validation::{self, Validated, Validation};

/// The program, and the handles by which the host uses it.
#[derive(Debug)]
pub(crate) struct System {
    /// The steps `train`, `report`, `act`, `insert`, `reset_for_fold` and `evaluate`.
    pub(crate) program: ValidProgram,
    /// The training step.
    pub(crate) dqn: Dqn,
    /// Its losses.
    pub(crate) reported: Reported,
    /// The episodes.
    pub(crate) actor: Actor,
    /// Prices and costs.
    pub(crate) market: Market,
    /// The evaluation.
    pub(crate) evaluation: Evaluation,
    /// The copy of the weights that it judges.
    pub(crate) judged: Weights,
    fold: Scalar<u32>,
}

impl System {
    /// The system of a setup over a history of this shape.
    ///
    /// # Errors
    /// Dimensions that give no network, or a program that breaks a rule.
    pub(crate) fn build(setup: &Setup, prices: &Prices) -> Result<Self> {
        let hyper = &setup.hyper;
        hyper.check()?;
        let mut p = Builder::new("dqn");
        let dqn = Dqn::declare(&mut p, hyper);
        let replay = dqn.replay.context("the training step must draw from a replay buffer")?;
        let market = Market::declare(&mut p, extent(prices.days())?, extent(prices.stock_count())?, Costs::default());
        let actor = Actor::declare(&mut p, hyper, setup.episodes, dqn.scalars.seed);
        let evaluation = Evaluation::declare(&mut p, &market, extent(setup.folds.validation)?);
        dqn.add_train(&mut p);
        let reported = Reported::add(&mut p, &dqn);
        actor.add_act(&mut p, hyper, &market, &dqn.theta);
        actor.add_insert(&mut p, &replay);
        let judged = dqn.theta.like(&mut p, "judged", Role::State);
        evaluation.add(&mut p, hyper, &market, &judged);
        let learned = Learned {
            weights: &dqn.theta,
            target: &dqn.target,
            moments: [&dqn.m, &dqn.v],
            counters: vec![dqn.counters.t, dqn.counters.skipped, dqn.counters.steps],
        };
        let fold = act::add_reset(&mut p, &actor, &replay, &learned);
        Ok(Self { program: p.build()?, dqn, reported, actor, market, evaluation, judged, fold })
    }

    /// Opens a session: the steps of training on the main lane, evaluations on their own.
    ///
    /// # Errors
    /// A target that cannot run the program, or a device that does not work.
    fn open(&self, session: SessionBuilder, setup: &Setup, fusion: &FusionPlan, device: Device) -> Result<Session> {
        let (target, tuning) = (Target::default(), Tuning::default());
        let variant = |step: &str, variant: &str| -> Result<StepPlan> {
            Ok(self.program.plan_variant(step, variant, fusion, &target, &tuning)?)
        };
        let mut training = vec![variant("train", setup.variant)?, variant("reset_for_fold", "fresh")?];
        for step in ["report", "act", "insert"] {
            training.push(self.program.plan(step, fusion, &target, &tuning)?);
        }
        let evaluations = POLICIES.map(|policy| variant("evaluate", policy));
        let session = session
            .lane(validation::LANE, evaluations.into_iter().collect::<Result<Vec<_>>>()?)
            .link(Link::new(validation::LINK).copy(self.dqn.theta.flat, self.judged.flat))
            .open(device, training)?;
        Ok(session)
    }
}

/// The first day of a fold's validation window, and its bars: closes to decide on.
pub(crate) fn window(fold: &Fold) -> Result<(u32, u32)> {
    Ok((extent(fold.validation.start)?, extent(fold.validation.len())? - 1))
}

fn extent(n: usize) -> Result<u32> {
    u32::try_from(n).context("a history of more than 2³² days or stocks")
}

/// How a fold's policy compares, out of sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Judgement {
    /// The learned policy.
    pub(crate) policy: Metrics,
    /// Buying once and holding.
    pub(crate) hold: Metrics,
    /// Random actions.
    pub(crate) random: Spread,
}

/// How training a fold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All its steps are done.
    Complete,
    /// It was asked to stop.
    Interrupted,
}

/// A system in a session.
#[derive(Debug)]
pub(crate) struct Trainer {
    /// Where it runs.
    pub(crate) session: Session,
    /// The program.
    pub(crate) system: System,
    setup: Setup,
    seed: u32,
    /// Results of the present fold.
    validation: Validation,
    /// Results of the folds before.
    folds: Vec<FoldResult>,
    /// Where the present fold stands: its index and its steps so far.
    at: Option<(usize, usize)>,
    /// Whether that came from a checkpoint, and is still to be gone on from.
    resumed: bool,
    keeper: Option<Keeper>,
    stop: Arc<AtomicBool>,
}

impl Trainer {
    /// Opens a session, and hands it the prices.
    ///
    /// # Errors
    /// A program or a device that does not work.
    pub(crate) fn open(setup: Setup, prices: &Prices, device: Device, fusion: &FusionPlan, seed: u32) -> Result<Self> {
        Self::open_in(Session::builder(), setup, prices, (device, fusion), seed)
    }

    /// The same in a session with options of its own.
    ///
    /// # Errors
    /// As [`Trainer::open`].
    pub(crate) fn open_in(
        session: SessionBuilder,
        setup: Setup,
        prices: &Prices,
        (device, fusion): (Device, &FusionPlan),
        seed: u32,
    ) -> Result<Self> {
        ensure!(setup.epochs > 0, "a fold has at least one epoch");
        let system = System::build(&setup, prices)?;
        let mut session = system.open(session.seed(u64::from(seed)), &setup, fusion, device)?;
        session.load(system.market.prices, &prices.closes)?;
        let (scalars, fixed) = (&system.dqn.scalars, setup.fixed);
        for (scalar, value) in [(scalars.gamma, fixed.gamma), (scalars.tau, fixed.tau), (scalars.aux_w, fixed.aux_w)] {
            session.set(scalar, value)?;
        }
        if let Some(replay) = &system.dqn.replay {
            session.set(replay.relabel, fixed.relabel)?;
        }
        session.set(scalars.seed, seed)?;
        Ok(Self {
            session,
            system,
            setup,
            seed,
            validation: Validation::default(),
            folds: Vec::new(),
            at: None,
            resumed: false,
            keeper: None,
            stop: Arc::default(),
        })
    }

    /// Ends training after the step that is being launched, from any thread.
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Writes a checkpoint at the end of each epoch from now on.
    pub(crate) fn keep(&mut self, keeper: Keeper) {
        self.keeper = Some(keeper);
    }

    /// Goes on from a checkpoint, or from the newest in a folder: training continues with the same bits as without the break.
    ///
    /// # Errors
    /// See [`keeper::resume`].
    pub(crate) fn resume(&mut self, from: &Path, run: &str, folds: &[Fold]) -> Result<()> {
        let position = keeper::resume(&mut self.session, from, run)?;
        let fold = folds.get(position.fold).context("the checkpoint is of a fold that this run does not have")?;
        self.validation = Validation::from(position.validated);
        self.folds = position.folds;
        self.at = Some((position.fold, position.done));
        self.resumed = true;
        if let Some(epoch) = position.validating {
            self.validation.start(&mut self.session, &self.system.evaluation, epoch, window(fold)?)?;
        }
        Ok(())
    }

    /// The fold to train next, from 0.
    pub(crate) fn next_fold(&self) -> usize {
        self.at.map_or(self.folds.len(), |(fold, _)| fold)
    }

    /// Results of the folds that are complete.
    pub(crate) fn folds(&self) -> &[FoldResult] {
        &self.folds
    }

    /// Notes a fold's result, for later checkpoints.
    pub(crate) fn fold_is_done(&mut self, result: FoldResult) {
        self.folds.push(result);
        self.at = None;
    }

    /// What the policies of the present fold's epochs were worth, as far as results are there.
    pub(crate) fn validated(&self) -> &[Validated] {
        self.validation.results()
    }

    /// Forgets the last fold: fresh weights, an empty replay buffer, and some bars of random play on this one.
    ///
    /// # Errors
    /// A device that failed.
    pub(crate) fn begin(&mut self, index: usize, fold: &Fold) -> Result<()> {
        self.validation = Validation::default();
        let (session, actor) = (&mut self.session, &self.system.actor);
        session.set(self.system.fold, extent(index)?)?;
        session.set(actor.first_day, extent(fold.train.start)?)?;
        session.set(actor.last_day, extent(fold.train.end)? - 1)?;
        session.set(actor.epsilon, 1.0)?;
        session.launch_variant("reset_for_fold", "fresh")?;
        for _ in 0..self.setup.warmup_bars {
            self.play()?;
        }
        Ok(())
    }

    /// Launches one training step, with the learning rate as it is.
    ///
    /// # Errors
    /// A device that failed.
    pub(crate) fn update(&mut self) -> Result<Ticket, RuntimeError> {
        self.session.launch_variant("train", self.setup.variant)
    }

    /// Forgets the last fold and trains on this one, or goes on with it after [`Trainer::resume`]. `watch` is called for every
    /// `interval`-th step, when its report has arrived, with that and the results of the epochs so far.
    ///
    /// # Errors
    /// A device that failed, or a checkpoint that could not be written.
    pub(crate) fn train(
        &mut self,
        index: usize,
        fold: &Fold,
        interval: usize,
        mut watch: impl FnMut(Progress, &[Validated]),
    ) -> Result<Ending> {
        let updates = self.setup.updates;
        let first = self.first_step(index, fold)?;
        let mut losses = Losses::default();
        let mut ending = Ending::Complete;
        for done in first..updates {
            self.at = Some((index, done));
            if self.stop.load(Ordering::Relaxed) {
                ending = Ending::Interrupted;
                break;
            }
            let epsilon = self.step(done)?;
            self.at = Some((index, done + 1));
            let (session, reported) = (&mut self.session, self.system.reported);
            let mut tell = |report: Option<Progress>| {
                report.into_iter().for_each(|report| watch(report, self.validation.results()));
            };
            if (done + 1) % interval == 0 || done + 1 == updates {
                // It takes the place of the last one, which has arrived long since, unless intervals are very short.
                tell(losses.wait(session, reported)?);
                losses.ask(session, done + 1, epsilon)?;
            }
            tell(losses.arrived(session, reported)?);
            if let Some(epoch) = self.ended_epoch(done + 1) {
                self.end_epoch(epoch, fold)?;
            }
        }
        let report = losses.wait(&mut self.session, self.system.reported)?;
        report.into_iter().for_each(|report| watch(report, self.validation.results()));
        Ok(ending)
    }

    /// Where training of a fold starts: behind the steps of the checkpoint that was resumed, or at the fold's beginning.
    fn first_step(&mut self, index: usize, fold: &Fold) -> Result<usize> {
        let resumed = std::mem::take(&mut self.resumed);
        match self.at {
            Some((at, done)) if resumed && at == index => Ok(done),
            _ => self.begin(index, fold).map(|()| 0),
        }
    }

    /// Launches a fold's step, and before it the play that is due; gives the probability of a random action.
    fn step(&mut self, done: usize) -> Result<f32, RuntimeError> {
        let (setup, updates) = (&self.setup, self.setup.updates);
        let epsilon = setup.epsilon.at(done, updates);
        self.session.set(self.system.dqn.scalars.lr, setup.rate.at(done, updates))?;
        self.session.set(self.system.actor.epsilon, epsilon)?;
        if done.is_multiple_of(setup.updates_per_bar) {
            self.play()?;
        }
        self.update()?;
        Ok(epsilon)
    }

    /// The epoch, from 1, that ends with this many steps, if one does. Epochs are as equal as whole steps allow.
    fn ended_epoch(&self, done: usize) -> Option<usize> {
        let Setup { updates, epochs, .. } = self.setup;
        let epoch = |done: usize| done * epochs / updates;
        (epoch(done) > epoch(done - 1)).then(|| epoch(done))
    }

    /// The steps after which an epoch ends.
    fn end_of(&self, epoch: usize) -> usize {
        (epoch * self.setup.updates).div_ceil(self.setup.epochs)
    }

    /// Picks up the result of the epoch before, starts to validate this one, and starts a checkpoint. Waits for none of them.
    fn end_epoch(&mut self, epoch: usize, fold: &Fold) -> Result<()> {
        let (index, done) = self.at.context("a fold is being trained")?;
        let evaluation = &self.system.evaluation;
        let result = self.validation.collect(&mut self.session, evaluation)?;
        let started = self.validation.start(&mut self.session, evaluation, epoch, window(fold)?)?;
        if !started {
            tracing::warn!(epoch, "not validated: the evaluation of an earlier epoch is still running");
        }
        // While an earlier evaluation runs, the one that a resumed run cannot repeat is left to the end of the fold.
        self.name_best(result)?;
        let position = self.position(index, done, started.then_some(epoch));
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        keeper.save(&mut self.session, &position)
    }

    /// Makes the checkpoint of the epoch with this result the best one, where no epoch so far has a higher reward.
    fn name_best(&mut self, result: Option<Validated>) -> Result<()> {
        let Some(best) = self.validation.best().filter(|&best| result == Some(best)) else { return Ok(()) };
        let end = self.end_of(best.epoch);
        match (&mut self.keeper, self.at) {
            (Some(keeper), Some((fold, _))) => keeper.is_best(fold, end),
            _ => Ok(()),
        }
    }

    fn position(&self, fold: usize, done: usize, validating: Option<usize>) -> Position {
        let (validated, folds) = (self.validation.results().to_vec(), self.folds.clone());
        Position { fold, done, validated, validating, folds }
    }

    /// Writes a checkpoint of the present moment, once the evaluation that is under way has ended; gives its file, `None` where no
    /// checkpoints are kept.
    ///
    /// # Errors
    /// A device that failed, or a checkpoint that could not be written.
    pub(crate) fn save(&mut self) -> Result<Option<std::path::PathBuf>> {
        self.finish_validation()?;
        let Some((fold, done)) = self.at else { return Ok(None) };
        let position = self.position(fold, done, None);
        let Some(keeper) = &mut self.keeper else { return Ok(None) };
        keeper.save_now(&mut self.session, &position).map(Some)
    }

    /// Waits for the evaluation that is under way and for its epoch's checkpoint.
    fn finish_validation(&mut self) -> Result<()> {
        let last = self.validation.finish(&mut self.session, &self.system.evaluation)?;
        self.session.finish_checkpoints()?;
        self.name_best(last)
    }

    /// Training steps of the present fold that were skipped since their gradient was not finite.
    ///
    /// # Errors
    /// A device that failed.
    pub(crate) fn skipped(&mut self) -> Result<u32, RuntimeError> {
        self.session.read_scalar(self.system.dqn.counters.skipped)
    }

    /// Trades the fold's validation window with the present policy, with random ones, and by holding.
    ///
    /// # Errors
    /// A device that failed, or a checkpoint that could not be written.
    pub(crate) fn judge(&mut self, fold: &Fold) -> Result<Judgement> {
        self.finish_validation()?;
        let window = window(fold)?;
        self.session.publish(validation::LINK)?;
        let policy = self.evaluate("greedy", window)?;
        let hold = self.evaluate("hold", window)?;
        let mut random = Vec::new();
        for run in 0..self.setup.random_runs {
            self.session.set(self.system.evaluation.seed, self.seed.wrapping_add(run))?;
            random.push(self.evaluate("random", window)?.reward);
        }
        Ok(Judgement { policy, hold, random: Spread::of(&random) })
    }

    fn evaluate(&mut self, policy: &str, (first, bars): (u32, u32)) -> Result<Metrics, RuntimeError> {
        let evaluation = &self.system.evaluation;
        let ticket = evaluation.launch(&mut self.session, policy, first, bars)?;
        Ok(Metrics::of(&evaluation.take(&mut self.session, &ticket, bars)?))
    }

    fn play(&mut self) -> Result<(), RuntimeError> {
        self.session.launch("act")?;
        self.session.launch("insert")?;
        Ok(())
    }
}

/// What the known rule of a synthetic market pays: what the environment charges.
pub(crate) fn rule_costs() -> RuleCosts {
    let Costs { commission, slippage, .. } = Costs::default();
    RuleCosts { commission: f64::from(commission), slippage: f64::from(slippage) }
}
