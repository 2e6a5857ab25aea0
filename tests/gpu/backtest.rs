//! A long backtest in one launch: half a million kernels inside one `While` node.

use std::time::{Duration, Instant};

use stepgraph::Builder;
use stepgraph::cuda::Context;
use stepgraph::ir::{Compute, Role};
use stepgraph::plan::{FusionPlan, StepPlan, Work};
use stepgraph::runtime::{Device, Session};
use stepgraph::valid::ValidProgram;

use crate::dqn::environment::{BRANCHES, CLASSES, Costs, EXPOSURE_COLUMN, Market};
use crate::dqn::evaluate::{Evaluation, Record};
use crate::dqn::hyper::{Hyper, Mask, Source};
use crate::dqn::network::Weights;
use crate::dqn::synthetic;
use crate::support::{device, real_device, target};

const BARS: u32 = 24_000;
const STOCKS: u32 = 20;
/// The first day with features.
const FIRST: u32 = 120;
/// What one backtest is to consist of.
const LAUNCHES: usize = 500_000;

struct Backtest {
    program: ValidProgram,
    market: Market,
    evaluation: Evaluation,
    prices: Vec<f32>,
}

fn backtest() -> Backtest {
    let hyper = Hyper {
        batch: 4,
        observation: 32,
        trunk: 64,
        head: 32,
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
    };
    let days = FIRST + BARS + 1;
    let mut p = Builder::new("backtest");
    let trained = Weights::params(&mut p, &hyper);
    let judged = trained.like(&mut p, "judged", Role::State);
    let market = Market::declare(&mut p, days, STOCKS, Costs { ruin: -1e9, ..Costs::default() });
    let evaluation = Evaluation::declare(&mut p, &market, BARS);
    evaluation.add(&mut p, &hyper, &market, &judged);
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let prices = synthetic::prices(days as usize, STOCKS as usize, synthetic::Reversion::default(), 3).closes;
    Backtest { program, market, evaluation, prices }
}

impl Backtest {
    fn plan(&self, fusion: &FusionPlan) -> StepPlan {
        let tuning = stepgraph::plan::Tuning::default();
        self.program.plan_variant("evaluate", "greedy", fusion, &target(), &tuning).expect("it plans")
    }

    /// A session with prices, and weights drawn from the seed.
    fn open(&self, device: Device, fusion: &FusionPlan) -> Session {
        let mut session = Session::builder().seed(11).open(device, [self.plan(fusion)]).expect("it opens");
        session.load(self.market.prices, &self.prices).expect("as many as declared");
        let trained = session.read_by_name("theta").expect("a group");
        session.write_by_name("judged", trained.dtype, &trained.bytes).expect("of the same layout");
        session
    }

    /// One backtest, and how long it took.
    fn run(&self, session: &mut Session, epsilon: f32) -> (Record, Duration) {
        session.set(self.evaluation.epsilon, epsilon).expect("a host scalar");
        session.wait().expect("it runs");
        let start = Instant::now();
        let ticket = self.evaluation.launch(session, "greedy", FIRST, BARS).expect("it launches");
        ticket.wait(session).expect("it runs");
        let took = start.elapsed();
        (self.evaluation.take(session, &ticket, BARS).expect("outputs"), took)
    }
}

/// The share of rewards and exposures that differ by more than rounding.
fn apart(expected: &Record, found: &Record) -> f64 {
    assert_eq!(expected.rewards.len(), found.rewards.len());
    let values = |record: &Record| -> Vec<f32> { record.rewards.iter().chain(&record.exposures).copied().collect() };
    let (expected, found) = (values(expected), values(found));
    let apart = expected.iter().zip(&found).filter(|(a, b)| (*a - *b).abs() > 1e-6 || a.is_nan() != b.is_nan()).count();
    apart as f64 / expected.len() as f64
}

/// Kernels of one iteration: units of the loop's body, each one kernel at least.
fn launches_per_bar(plan: &StepPlan) -> usize {
    let body = plan.units().values().find_map(|unit| match &unit.work {
        Work::While { body } => Some(body.units.len()),
        _ => None,
    });
    body.expect("the step has a loop")
}

/// Protects: a backtest of 500,000 launches runs as one launch of one graph, does what the host executor does, and takes no memory
/// as it goes.
///
/// Random actions are integers drawn by Philox, so that with ε = 1 the accounts go the same way: rewards and exposures, sums of
/// a few products below 1 in size, differ by a few roundings, below 1e-6. Only where a close meets a limit price to within
/// rounding, about one bar in 10⁶, may an order be filled on one side alone, and its trace fades within some dozen bars:
/// at most one value in a thousand. With ε = 0 an action can also differ where two of the network's values are nearer to each other
/// than their rounding, about 1e-6 of their range: one value in a hundred is far more than that, and far less than another
/// network would give.
#[test]
#[expect(clippy::print_stdout, reason = "the times are evidence")]
fn half_a_million_launches_are_one() {
    let Some(device) = device() else { return };
    let test = backtest();
    let plan = test.plan(&FusionPlan::mega());
    let per_bar = launches_per_bar(&plan);
    let launches = per_bar * BARS as usize;
    assert!(launches >= LAUNCHES, "{per_bar} launches a bar make {launches}");
    let mut host = test.open(Device::Host, &FusionPlan::mega());
    let mut mega = test.open(device, &FusionPlan::mega());

    let (expected, _) = test.run(&mut host, 1.0);
    let (found, _) = test.run(&mut mega, 1.0);
    let apart = apart(&expected, &found);
    assert!(apart <= 1e-3, "random actions: {apart} of all values differ");

    let (expected, _) = test.run(&mut host, 0.0);
    let free = || real_device().map(|_| Context::primary(0).and_then(|context| context.memory()).expect("a device").0);
    let before = free();
    let mut times = Vec::new();
    for _ in 0..3 {
        let (found, took) = test.run(&mut mega, 0.0);
        let apart = self::apart(&expected, &found);
        assert!(apart <= 1e-2, "best actions: {apart} of all values differ");
        times.push(took);
    }
    assert_eq!(before, free(), "free memory of the device");
    let mut single = test.open(device, &FusionPlan::debug());
    let (_, by_node) = test.run(&mut single, 0.0);
    println!("backtest: {launches} launches as one graph in {times:?}; launched one by one in {by_node:?}");
}

/// Protects: a backtest that is under way ends within 10 ms of being asked to.
#[test]
#[expect(clippy::print_stdout, reason = "the time is evidence")]
fn a_backtest_is_cancelled_within_a_moment() {
    let Some(device) = real_device() else { return };
    let test = backtest();
    let mut session = test.open(device, &FusionPlan::mega());
    test.run(&mut session, 0.0);
    let stop = session.stop_handle();
    let ticket = test.evaluation.launch(&mut session, "greedy", FIRST, BARS).expect("it launches");
    std::thread::sleep(Duration::from_millis(20));
    assert!(ticket.try_take(&mut session).expect("it runs").is_none(), "it is still running");
    let asked = Instant::now();
    stop.stop();
    ticket.wait(&mut session).expect("it ends");
    let took = asked.elapsed();
    stop.clear();
    println!("backtest: cancelled in {took:?}");
    assert!(took < Duration::from_millis(10), "stopping took {took:?}");
}
