//! The whole loop learns: act, insert and train on a market with a known rule, then trade days that were never seen.

#[allow(dead_code, reason = "the example uses what these tests do not")]
#[path = "common/dqn.rs"]
mod dqn;

use stepgraph::plan::FusionPlan;
use stepgraph::runtime::Device;

use dqn::folds::{Fold, walk_forward};
use dqn::losses::{Losses, Progress};
use dqn::market::Prices;
use dqn::setup::{SYNTHETIC_DAYS, SYNTHETIC_STOCKS, Setup, Size, World};
use dqn::synthetic;
use dqn::trainer::{Judgement, Trainer, rule_costs};

const SEED: u32 = 5;

fn market() -> Prices {
    synthetic::prices(SYNTHETIC_DAYS, SYNTHETIC_STOCKS, synthetic::Reversion::default(), 42)
}

/// Trains one fold, and judges it; also what training reported.
fn run(setup: Setup, prices: &Prices, fold: &Fold, fusion: &FusionPlan) -> (Judgement, Vec<Progress>) {
    let interval = setup.updates.div_ceil(5);
    let mut trainer = Trainer::open(setup, prices, Device::Host, fusion, SEED).expect("a valid program");
    let mut seen = Vec::new();
    trainer.train(0, fold, interval, |progress, _| seen.push(progress)).expect("the host does not fail");
    assert_eq!(trainer.skipped().expect("a counter"), 0);
    (trainer.judge(fold).expect("the host does not fail"), seen)
}

/// Protects: the whole loop learns. Out of sample and after costs, the greedy policy of a small run stands clearly above random
/// policies.
///
/// Two bounds, and the higher one counts: half of the way from the random policies' mean to the known rule (a policy that only
/// stopped paying for trades stands at 0, which is a tenth of that way), and five standard deviations of the random policies
/// above their mean (one random policy in a million gets there by luck).
#[test]
fn the_loop_learns_a_market_with_a_rule() {
    let (prices, setup) = (market(), Setup::new(Size::Ci, World::Synthetic, "ddqn"));
    let folds = walk_forward(prices.days(), &setup.folds).expect("long enough");
    let fold = &folds[0];
    let rule = synthetic::rule_reward(&prices, fold.validation.start, fold.validation.end, rule_costs());
    let (found, _) = run(setup, &prices, fold, &FusionPlan::mega());

    let random = found.random;
    assert!(random.mean < 0.0, "random trading pays for nothing: {random:?}");
    let bar = (random.mean + 0.5 * (rule - random.mean)).max(random.mean + 5.0 * random.deviation);
    let reward = found.policy.reward;
    assert!(reward > bar, "the policy earns {reward}, the bar is {bar}; the rule earns {rule}, random {random:?}");
    assert!(found.policy.sharpe > found.hold.sharpe);
}

/// Protects: a report is of the step that was launched last, and later steps leave it alone.
#[test]
fn a_report_is_of_the_last_step() {
    let prices = market();
    let setup = Setup { updates: 40, ..Setup::new(Size::Ci, World::Synthetic, "ddqn") };
    let folds = walk_forward(prices.days(), &setup.folds).expect("long enough");
    let mut trainer = Trainer::open(setup, &prices, Device::Host, &FusionPlan::mega(), SEED).expect("a valid program");
    trainer.begin(0, &folds[0]).expect("the host does not fail");
    let mut losses = Losses::default();
    let mut seen = Vec::new();
    for step in 1..4 {
        let ticket = trainer.update().expect("the host does not fail");
        let (session, dqn) = (&mut trainer.session, &trainer.system.dqn);
        let row = ticket.wait(session).and_then(|mut row| row.read(dqn.outputs.metrics)).expect("the last launch");
        losses.ask(session, step, 0.5).expect("the host does not fail");
        trainer.update().expect("the host does not fail");
        let report = losses.wait(&mut trainer.session, trainer.system.reported).expect("the host does not fail");
        assert_eq!(report, Some(Progress { done: step, loss: row[0], epsilon: 0.5 }));
        seen.push(row[0]);
    }
    assert!(seen[0] != seen[1] && seen[1] != seen[2], "{seen:?}");
}

/// Protects: a run is a function of its seed: two runs agree in every number, under different plans too.
#[test]
fn runs_repeat() {
    let prices = market();
    let setup = Setup { updates: 40, random_runs: 2, ..Setup::new(Size::Ci, World::Synthetic, "c51") };
    let folds = walk_forward(prices.days(), &setup.folds).expect("long enough");
    let first = run(setup.clone(), &prices, &folds[0], &FusionPlan::mega());
    assert_eq!(first.1.len(), 5);
    assert_eq!(first, run(setup.clone(), &prices, &folds[0], &FusionPlan::mega()));
    assert_eq!(first, run(setup, &prices, &folds[0], &FusionPlan::debug()));
}
