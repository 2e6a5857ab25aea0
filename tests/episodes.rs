//! The flagship's steps around training, as programs on the host: episodes, the replay ring, evaluation, fold reset.

#[allow(dead_code, reason = "the example uses what these tests do not")]
#[path = "common/dqn.rs"]
mod dqn;

use stepgraph::Builder;
use stepgraph::handle::Scalar;
use stepgraph::ir::{Compute, Role};
use stepgraph::kernel::library::trading::LOOKBACK;
use stepgraph::plan::{FusionPlan, StepPlan, Target, Tuning};
use stepgraph::runtime::{Device, Session};

use dqn::act::{Actor, Learned};
use dqn::environment::{BRANCHES, CLASSES, Costs, EXPOSURE_COLUMN, Market, PERCENT};
use dqn::evaluate::{Evaluation, POLICIES, Record};
use dqn::hyper::{Hyper, Mask, Source};
use dqn::market::Prices;
use dqn::network::Weights;
use dqn::replay::{Replay, fact};
use dqn::report::Metrics;
use dqn::{act, synthetic};

const EPISODES: u32 = 5;
const STOCKS: u32 = 3;
const DAYS: u32 = 300;
const BARS: u32 = 60;

/// Everything but the training step.
struct World {
    session: Session,
    actor: Actor,
    replay: Replay,
    evaluation: Evaluation,
    market: Market,
    weights: Weights,
    target: Weights,
    moment: Weights,
    count: Scalar<u32>,
    fold: Scalar<u32>,
}

fn hyper() -> Hyper {
    Hyper {
        batch: 4,
        observation: 20,
        trunk: 12,
        head: 6,
        blocks: 1,
        branches: BRANCHES.to_vec(),
        classes: CLASSES,
        atoms: 1,
        support: [0.0, 0.0],
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        compute: Compute::F32,
        source: Source::Replay { capacity: 32, exposure: EXPOSURE_COLUMN },
        mask: Mask::Drawn,
    }
}

fn world(prices: &Prices, fusion: &FusionPlan) -> World {
    let hyper = hyper();
    let mut p = Builder::new("world");
    let seed = p.host_scalar("seed", 17u32);
    let weights = Weights::params(&mut p, &hyper);
    let target = weights.like(&mut p, "target", Role::State);
    let moment = weights.like(&mut p, "m", Role::State);
    let second = weights.like(&mut p, "v", Role::State);
    let count = p.device_scalar("t", 0u32);
    let replay = Replay::declare(&mut p, &hyper, 32);
    let market = Market::declare(&mut p, DAYS, STOCKS, Costs::default());
    let actor = Actor::declare(&mut p, &hyper, EPISODES, seed);
    let evaluation = Evaluation::declare(&mut p, &market, BARS);
    actor.add_act(&mut p, &hyper, &market, &weights);
    actor.add_insert(&mut p, &replay);
    evaluation.add(&mut p, &hyper, &market, &weights);
    let learned = Learned { weights: &weights, target: &target, moments: [&moment, &second], counters: vec![count] };
    let fold = act::add_reset(&mut p, &actor, &replay, &learned);
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));

    let (target_device, tuning) = (Target::default(), Tuning::default());
    let step = |step: &str| program.plan(step, fusion, &target_device, &tuning).expect("plannable");
    let variant = |step: &str, variant: &str| -> StepPlan {
        program.plan_variant(step, variant, fusion, &target_device, &tuning).expect("plannable")
    };
    let mut plans =
        vec![step("act"), step("insert"), variant("reset_for_fold", "fresh"), variant("reset_for_fold", "kept")];
    plans.extend(POLICIES.map(|policy| variant("evaluate", policy)));
    let mut session = Session::builder().seed(3).open(Device::Host, plans).expect("the host is there");
    session.load(market.prices, &prices.closes).expect("as many prices as declared");
    session.set(actor.first_day, LOOKBACK).expect("a host scalar");
    session.set(actor.last_day, LOOKBACK + BARS).expect("a host scalar");
    World { session, actor, replay, evaluation, market, weights, target, moment, count, fold }
}

fn prices() -> Prices {
    synthetic::prices(DAYS as usize, STOCKS as usize, synthetic::Reversion::default(), 11)
}

impl World {
    fn run(&mut self, step: &str) {
        self.session.launch(step).and_then(|ticket| ticket.wait(&mut self.session).map(drop)).expect("runs");
    }

    fn evaluate(&mut self, policy: &str, first: u32) -> Record {
        let ticket = self.evaluation.launch(&mut self.session, policy, first, BARS).expect("runs");
        self.evaluation.take(&mut self.session, &ticket, BARS).expect("outputs")
    }
}

/// Protects: no look-ahead, through observation, network, choice and execution. What a policy does up to a day is the same
/// whatever prices come after it, and differs later.
#[test]
fn later_prices_change_no_earlier_action() {
    let (known, first) = (30, LOOKBACK);
    let before = prices();
    let mut after = before.clone();
    for close in &mut after.closes[(first as usize + known + 1) * STOCKS as usize..] {
        *close *= 1.5;
    }
    let run = |prices| {
        let mut world = world(prices, &FusionPlan::mega());
        POLICIES.map(|policy| world.evaluate(policy, first))
    };
    for (one, other) in run(&before).into_iter().zip(run(&after)) {
        let kept = known * STOCKS as usize;
        assert_eq!(one.exposures[..kept], other.exposures[..kept]);
        assert_eq!(one.rewards[..kept], other.rewards[..kept]);
        assert_ne!(one.rewards[kept..], other.rewards[kept..]);
    }
}

/// Protects: the plan decides nothing about results.
#[test]
fn plans_agree_to_the_bit() {
    let run = |fusion| {
        let mut world = world(&prices(), &fusion);
        for _ in 0..20 {
            world.run("act");
            world.run("insert");
        }
        let record = world.evaluate("greedy", LOOKBACK);
        (record, world.session.read(world.replay.facts).expect("state"))
    };
    let debug = run(FusionPlan::debug());
    assert_eq!(debug, run(FusionPlan::phases()));
    assert_eq!(debug, run(FusionPlan::mega()));
}

/// Protects: buy-and-hold in the evaluation is buy-and-hold: the log return of each stock over the window less one purchase.
///
/// A stock's sum has 60 rewards of a few per cent each, off by at most two roundings of a logarithm near 1: 60 · 2 · 2⁻²⁴.
#[test]
fn holding_earns_the_return_of_the_window() {
    let prices = prices();
    let mut world = world(&prices, &FusionPlan::mega());
    let record = world.evaluate("hold", 150);
    for stock in 0..STOCKS as usize {
        let found: f64 = record.rewards.iter().skip(stock).step_by(STOCKS as usize).copied().map(f64::from).sum();
        let (bought, sold) = (prices.close(150, stock), prices.close(150 + BARS as usize, stock));
        let exact = (f64::from(sold) / f64::from(bought)).ln() - 3e-4;
        assert!((found - exact).abs() < 120.0 / f64::from(1 << 24), "{found} against {exact}");
    }
    assert!(record.exposures.iter().all(|&exposure| exposure == 1.0));
    assert!((Metrics::of(&record).turnover - 1.0 / f64::from(BARS)).abs() < 1e-12);
}

/// Protects: random evaluations follow their seed, and use every level of exposure.
#[test]
fn the_random_policy_follows_its_seed() {
    let mut world = world(&prices(), &FusionPlan::mega());
    let mut run = |seed| {
        world.session.set(world.evaluation.seed, seed).expect("a host scalar");
        world.evaluate("random", LOOKBACK)
    };
    let (first, second) = (run(1), run(2));
    assert_eq!(first, run(1));
    assert_ne!(first, second);
    let largest = first.exposures.iter().copied().fold(0.0f32, |a, b| a.max(b.abs()));
    assert!(largest > 0.9, "{largest}");
}

/// Protects: episodes stay in the window and in the market, follow on from bar to bar, begin anew when they end, and what they
/// remember is consistent with the prices.
#[test]
fn episodes_follow_the_market() {
    let prices = prices();
    let mut world = world(&prices, &FusionPlan::mega());
    let actor = world.actor;
    let mut before: Option<(Vec<u32>, Vec<f32>, Vec<u32>)> = None;
    let mut restarts = 0;
    for _ in 0..100 {
        world.run("act");
        let s = &mut world.session;
        let day = s.read(actor.accounts.day).expect("state");
        let stock = s.read(actor.accounts.stock).expect("state");
        let ended = s.read(actor.bar.ended).expect("state");
        let (observation, next) =
            (s.read(actor.last.observation).expect("state"), s.read(actor.last.next).expect("state"));
        let facts = s.read(actor.last.facts).expect("state");
        let exposure = s.read(actor.accounts.exposure).expect("state");
        for row in 0..EPISODES as usize {
            assert!(day[row] > LOOKBACK && day[row] <= LOOKBACK + BARS && stock[row] < STOCKS);
            assert_eq!(ended[row] != 0, day[row] == LOOKBACK + BARS, "nobody is ruined here");
            let (today, of) = (day[row] as usize, stock[row] as usize);
            let fact = |column: u32| facts[row * fact::COUNT as usize + column as usize];
            let drift = f64::from(prices.close(today, of) / prices.close(today - 1, of)).ln() * f64::from(PERCENT);
            // A division and a logarithm near 0, each rounded once in float32.
            assert!((f64::from(fact(fact::DRIFT)) - drift).abs() < f64::from(PERCENT * f32::EPSILON));
            assert_eq!(next[row * 20], exposure[row]);
            if let Some((days, nexts, ends)) = &before {
                if ends[row] == 0 {
                    assert_eq!(day[row], days[row] + 1);
                    assert_eq!(observation[row * 20..][..20], nexts[row * 20..][..20]);
                } else {
                    restarts += 1;
                    assert_eq!(observation[row * 20], 0.0);
                }
            }
        }
        before = Some((day, next, ended));
    }
    assert!(restarts > EPISODES, "{restarts}");
}

/// Protects: the replay buffer is a ring: transitions go in order over the oldest, with the largest priority, and the counters
/// say what it holds.
#[test]
fn the_replay_buffer_is_a_ring() {
    let mut world = world(&prices(), &FusionPlan::mega());
    let (replay, actor) = (world.replay, world.actor);
    let capacity = replay.capacity as usize;
    let mut expected = vec![[0.0f32; fact::COUNT as usize]; capacity];
    let mut inserted = 0;
    for round in 1..=12 {
        world.run("act");
        world.run("insert");
        let s = &mut world.session;
        for row in s.read(actor.last.facts).expect("state").chunks_exact(fact::COUNT as usize) {
            expected[inserted % capacity].copy_from_slice(row);
            inserted += 1;
        }
        assert_eq!(inserted, round * EPISODES as usize);
        assert_eq!(bytemuck::cast_slice::<_, f32>(&expected), s.read(replay.facts).expect("state"));
        assert_eq!(s.read_scalar(replay.cursor).expect("scalar") as usize, inserted % capacity);
        assert_eq!(s.read_scalar(replay.size).expect("scalar") as usize, inserted.min(capacity));
        let priority = s.read(replay.priority).expect("state");
        let filled = inserted.min(capacity);
        assert!(priority[..filled].iter().all(|&p| p == 1.0) && priority[filled..].iter().all(|&p| p == 0.0));
    }
    assert!(inserted > capacity, "the test must wrap around");
}

/// Protects: a fold starts from nothing but what it is told to keep, in the memory that the plans know.
#[test]
fn a_fold_reset_forgets_in_place() {
    let mut world = world(&prices(), &FusionPlan::mega());
    for _ in 0..3 {
        world.run("act");
        world.run("insert");
    }
    let s = &mut world.session;
    let (weights, target, moment, fold) = (world.weights, world.target, world.moment, world.fold);
    let initial = s.read(weights.flat).expect("a group");
    s.load(moment.trunk.w, &[1.0; 12 * 20]).expect("state");

    s.launch_variant("reset_for_fold", "kept").expect("runs");
    assert_eq!(s.read(weights.flat).expect("a group"), initial);
    assert_eq!(s.read(target.flat).expect("a group"), initial);
    assert!(s.read(moment.flat).expect("a group").iter().all(|&m| m == 0.0));
    assert_eq!(s.read_scalar(world.count).expect("scalar"), 0);
    assert_eq!(s.read_scalar(world.replay.size).expect("scalar"), 0);
    assert!(s.read(world.replay.priority).expect("state").iter().all(|&p| p == 0.0));
    assert!(s.read(world.actor.bar.ended).expect("state").iter().all(|&ended| ended == 1));

    let mut fresh = |index: u32| {
        s.set(fold, index).expect("a host scalar");
        s.launch_variant("reset_for_fold", "fresh").expect("runs");
        (
            s.read(weights.flat).expect("a group"),
            s.read(target.flat).expect("a group"),
            s.read(weights.trunk.w).expect("a param"),
        )
    };
    let ((first, slow, trunk), (second, ..)) = (fresh(1), fresh(2));
    assert_eq!(first, slow);
    assert_ne!(first, initial);
    assert_ne!(first, second);
    assert_eq!(first, fresh(1).0);
    // Uniform in ±1/√20: 240 draws have a mean square of 1/60 within 5 standard errors, √(4/45) / (20 √240) each.
    let square = trunk.iter().map(|w| f64::from(w * w)).sum::<f64>() / trunk.len() as f64;
    assert!((square - 1.0 / 60.0).abs() < 5.0 * (4.0f64 / 45.0).sqrt() / 20.0 / 240.0f64.sqrt(), "{square}");
    assert!(trunk.iter().all(|w| w.abs() <= 1.0 / 20.0f32.sqrt()));
    assert_eq!(s.read(world.market.prices).expect("state"), prices().closes);
}

/// Protects: Sharpe ratio, drawdown and turnover are what their names say, on a record worked out by hand.
#[test]
fn metrics_are_what_they_say() {
    // Two stocks, four bars; the portfolio returns 1 %, -2 %, -1 %, 4 %.
    let record = Record {
        rewards: vec![0.02, 0.0, -0.02, -0.02, 0.0, -0.02, 0.08, 0.0],
        exposures: vec![1.0, 0.0, 1.0, -0.5, 0.0, -0.5, 0.0, 0.5],
        stocks: 2,
    };
    let metrics = Metrics::of(&record);
    let near = |found: f64, exact: f64| assert!((found - exact).abs() < 1e-6, "{found} against {exact}");
    near(metrics.reward, 0.02);
    // Mean 0.5 %; squared deviations 0.25, 6.25, 2.25, 12.25 (in 10⁻⁴) over 3 degrees of freedom give a variance of 7·10⁻⁴.
    near(metrics.sharpe, 0.005 / 7e-4f64.sqrt() * 252f64.sqrt());
    near(metrics.drawdown, 1.0 - (-0.03f64).exp());
    near(metrics.turnover, (1.0 + 0.0 + 0.0 + 0.5 + 1.0 + 0.0 + 0.0 + 1.0) / 8.0);
    let flat = Record { rewards: vec![0.0; 8], exposures: vec![0.0; 8], stocks: 2 };
    assert_eq!(Metrics::of(&flat), Metrics { reward: 0.0, sharpe: 0.0, drawdown: 0.0, turnover: 0.0 });
}
