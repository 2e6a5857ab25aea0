//! The whole system as one program in one session: training a fold, and judging the policy on the days after it.
//!
//! The host sets scalars and launches steps. It reads metrics now and then, which also keeps it from running ahead of the
//! device, and the record of an evaluation.

use anyhow::{Context, Result};
use stepgraph::Builder;
use stepgraph::handle::Scalar;
use stepgraph::plan::{FusionPlan, StepPlan, Target, Tuning};
use stepgraph::runtime::{Device, RuntimeError, Session, Ticket};
use stepgraph::valid::ValidProgram;

use super::act::{self, Actor, Learned};
use super::environment::{Costs, Market};
use super::evaluate::{Evaluation, POLICIES};
use super::folds::Fold;
use super::market::Prices;
use super::report::{Metrics, Spread};
use super::setup::Setup;
use super::synthetic::RuleCosts;
use super::train::Dqn;

/// The program, and the handles by which the host uses it.
#[derive(Debug)]
pub(crate) struct System {
    /// The steps `train`, `act`, `insert`, `reset_for_fold` and `evaluate`.
    pub(crate) program: ValidProgram,
    /// The training step.
    pub(crate) dqn: Dqn,
    /// The episodes.
    pub(crate) actor: Actor,
    /// Prices and costs.
    pub(crate) market: Market,
    /// The evaluation.
    pub(crate) evaluation: Evaluation,
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
        actor.add_act(&mut p, hyper, &market, &dqn.theta);
        actor.add_insert(&mut p, &replay);
        evaluation.add(&mut p, hyper, &market, &dqn.theta);
        let learned = Learned {
            weights: &dqn.theta,
            target: &dqn.target,
            moments: [&dqn.m, &dqn.v],
            counters: vec![dqn.counters.t, dqn.counters.skipped, dqn.counters.steps],
        };
        let fold = act::add_reset(&mut p, &actor, &replay, &learned);
        Ok(Self { program: p.build()?, dqn, actor, market, evaluation, fold })
    }

    /// Plans of all steps that a run launches.
    ///
    /// # Errors
    /// A target that cannot run the program.
    pub(crate) fn plans(&self, setup: &Setup, fusion: &FusionPlan) -> Result<Vec<StepPlan>> {
        let (target, tuning) = (Target::default(), Tuning::default());
        let mut plans = Vec::new();
        for step in ["act", "insert"] {
            plans.push(self.program.plan(step, fusion, &target, &tuning)?);
        }
        let variants = [("train", setup.variant), ("reset_for_fold", "fresh")];
        let policies = POLICIES.map(|policy| ("evaluate", policy));
        for (step, variant) in variants.into_iter().chain(policies) {
            plans.push(self.program.plan_variant(step, variant, fusion, &target, &tuning)?);
        }
        Ok(plans)
    }
}

fn extent(n: usize) -> Result<u32> {
    u32::try_from(n).context("a history of more than 2³² days or stocks")
}

/// What a training step reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Progress {
    /// Training steps of the fold so far.
    pub(crate) done: usize,
    /// The mean temporal-difference loss of the last batch.
    pub(crate) loss: f32,
    /// The probability of a random action.
    pub(crate) epsilon: f32,
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

/// A system in a session.
#[derive(Debug)]
pub(crate) struct Trainer {
    /// Where it runs.
    pub(crate) session: Session,
    /// The program.
    pub(crate) system: System,
    setup: Setup,
    seed: u32,
}

impl Trainer {
    /// Opens a session, and hands it the prices.
    ///
    /// # Errors
    /// A program or a device that does not work.
    pub(crate) fn open(setup: Setup, prices: &Prices, device: Device, fusion: &FusionPlan, seed: u32) -> Result<Self> {
        let system = System::build(&setup, prices)?;
        let plans = system.plans(&setup, fusion)?;
        let mut session = Session::builder().seed(u64::from(seed)).open(device, plans)?;
        session.load(system.market.prices, &prices.closes)?;
        let (scalars, fixed) = (&system.dqn.scalars, setup.fixed);
        for (scalar, value) in [(scalars.gamma, fixed.gamma), (scalars.tau, fixed.tau), (scalars.aux_w, fixed.aux_w)] {
            session.set(scalar, value)?;
        }
        if let Some(replay) = &system.dqn.replay {
            session.set(replay.relabel, fixed.relabel)?;
        }
        session.set(scalars.seed, seed)?;
        Ok(Self { session, system, setup, seed })
    }

    /// Forgets the last fold and trains on this one. `watch` is called every `interval` steps with what the step reported.
    ///
    /// # Errors
    /// A device that failed.
    pub(crate) fn train(
        &mut self,
        index: usize,
        fold: &Fold,
        interval: usize,
        mut watch: impl FnMut(Progress),
    ) -> Result<()> {
        self.start(index, fold)?;
        let updates = self.setup.updates;
        for done in 0..updates {
            let epsilon = self.setup.epsilon.at(done, updates);
            self.session.set(self.system.dqn.scalars.lr, self.setup.rate.at(done, updates))?;
            self.session.set(self.system.actor.epsilon, epsilon)?;
            if done % self.setup.updates_per_bar == 0 {
                self.play()?;
            }
            let ticket = self.session.launch_variant("train", self.setup.variant)?;
            if (done + 1) % interval == 0 || done + 1 == updates {
                let loss = self.loss(&ticket)?;
                watch(Progress { done: done + 1, loss, epsilon });
            }
        }
        Ok(())
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
    /// A device that failed.
    pub(crate) fn judge(&mut self, fold: &Fold) -> Result<Judgement> {
        let window = (extent(fold.validation.start)?, extent(fold.validation.len())? - 1);
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

    /// Fresh weights, an empty replay buffer, and some bars of random play.
    fn start(&mut self, index: usize, fold: &Fold) -> Result<()> {
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

    fn play(&mut self) -> Result<(), RuntimeError> {
        self.session.launch("act")?;
        self.session.launch("insert")?;
        Ok(())
    }

    fn loss(&mut self, ticket: &Ticket) -> Result<f32, RuntimeError> {
        let metrics = self.system.dqn.outputs.metrics;
        Ok(ticket.wait(&mut self.session)?.read(metrics)?[0])
    }
}

/// What the known rule of a synthetic market pays: what the environment charges.
pub(crate) fn rule_costs() -> RuleCosts {
    let Costs { commission, slippage, .. } = Costs::default();
    RuleCosts { commission: f64::from(commission), slippage: f64::from(slippage) }
}
