//! The whole loop learns: act, insert and train on a market with a known rule, then trade days that were never seen.

#[allow(dead_code, reason = "the example uses what these tests do not")]
#[path = "common/dqn.rs"]
mod dqn;

use stepgraph::plan::FusionPlan;
use stepgraph::runtime::Device;

use dqn::folds::{Fold, walk_forward};
use dqn::market::Prices;
use dqn::setup::{SYNTHETIC_DAYS, SYNTHETIC_STOCKS, Setup, Size, World};
use dqn::synthetic;
use dqn::trainer::{Judgement, Progress, Trainer, rule_costs};

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
