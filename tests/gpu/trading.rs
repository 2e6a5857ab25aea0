//! The flagship's market on a device: its kernels against their host functions, and the closed loop of acting, inserting,
//! training and evaluating, bit for bit under every plan.

use stepgraph::Builder;
use stepgraph::handle::Const;
use stepgraph::ir::Init;
use stepgraph::kernel::library::trading::{LOOKBACK, branch_select, market_observe, market_trade};
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::Session;

use crate::dqn::folds::walk_forward;
use crate::dqn::setup::{SYNTHETIC_DAYS, SYNTHETIC_STOCKS, Setup, Size, World};
use crate::dqn::synthetic;
use crate::dqn::trainer::Trainer;
use crate::flagship::{compare, step};
use crate::support::{Numbers, device, named_plans};

/// Accounts, stocks, and columns of an observation: none a multiple of a warp.
const SHAPES: [(u32, u32, u32); 4] = [(1, 1, 13), (33, 3, 20), (130, 20, 64), (257, 7, 132)];

const DAYS: u32 = 200;

/// Prices of stocks that move by 2 % a day.
fn prices(stocks: u32) -> Vec<f32> {
    synthetic::prices(DAYS as usize, stocks as usize, synthetic::Reversion::default(), 9).closes
}

/// Days that have a past, and closes after them.
fn days(accounts: u32) -> Vec<u32> {
    let mut numbers = Numbers(5);
    (0..accounts).map(|_| LOOKBACK + numbers.next() % (DAYS - LOOKBACK - 10)).collect()
}

/// Protects: observations of any width.
///
/// Logarithms of ratios below e differ by at most 2 · 2⁻²⁴, single returns by twice that, and all are divided by volatilities of
/// 1 % at least: 3e-5. The order of sums is one; with the volatility's own error, 1e-4.
#[test]
fn observations_agree() {
    for (accounts, stocks, width) in SHAPES {
        let mut p = Builder::new("observe");
        let prices_of = p.state::<f32>("prices", [DAYS, stocks], Init::Zeros);
        let [stock, day] = ["stock", "day"].map(|name| p.state::<u32>(name, [accounts], Init::Zeros));
        let [exposure, equity] = ["exposure", "equity"].map(|name| p.state::<f32>(name, [accounts], Init::Zeros));
        let obs = p.output::<f32>("obs", [accounts, width]);
        let args = market_observe::Args { prices: prices_of, stock, day, exposure, equity, obs };
        step(&mut p, |f| f.kernel("observe", args));
        let prepare = |session: &mut Session| {
            session.load(prices_of, &prices(stocks)).expect("state");
            session.load(day, &days(accounts)).expect("state");
        };
        compare(&format!("{accounts} accounts, {stocks} stocks, {width} columns"), p, prepare, 1e-4);
    }
}

/// Protects: three bars of every kind of order.
///
/// A bar's return is the logarithm of one quotient near 1, off by an ulp of a number below 0.25, in hundreds: 1.5e-6 a bar, and
/// three bars add up: 1e-5.
#[test]
fn trades_agree() {
    for (accounts, stocks, _) in SHAPES {
        let mut p = Builder::new("trade");
        let prices_of = p.state::<f32>("prices", [DAYS, stocks], Init::Zeros);
        let action = p.state::<i32>("action", [accounts, 3], Init::Zeros);
        let [stock, day] = ["stock", "day"].map(|name| p.state::<u32>(name, [accounts], Init::Zeros));
        let [exposure, equity] = ["exposure", "equity"].map(|name| p.state::<f32>(name, [accounts], Init::Zeros));
        let [commission, slippage, limit_offset, ruin, label_band] =
            [("commission", 1e-3), ("slippage", 2e-3), ("limit_offset", 5e-3), ("ruin", -0.7), ("label_band", 6e-3)]
                .map(|(name, value)| p.host_scalar(name, value));
        let last_day = p.host_scalar("last_day", LOOKBACK + 50);
        let facts = p.output::<f32>("facts", [accounts, 6]);
        let ended = p.output::<u32>("ended", [accounts]);
        let label = p.output::<i32>("label", [accounts]);
        let args = market_trade::Args {
            prices: prices_of,
            action,
            stock,
            day,
            exposure,
            equity,
            commission,
            slippage,
            limit_offset,
            ruin,
            label_band,
            last_day,
            levels: Const(9),
            unit: Const(100.0),
            facts,
            ended,
            label,
        };
        step(&mut p, |f| f.kernel("trade", args));
        let prepare = |session: &mut Session| {
            session.load(prices_of, &prices(stocks)).expect("state");
            session.load(day, &days(accounts)).expect("state");
            let mut numbers = Numbers(6);
            let actions = (0..accounts).flat_map(|_| [9, 3, 3].map(|count| (numbers.next() % count).cast_signed()));
            let actions: Vec<i32> = actions.collect();
            session.load(action, &actions).expect("state");
        };
        compare(&format!("{accounts} accounts, {stocks} stocks"), p, prepare, 1e-5);
    }
}

/// Protects: greedy and random choices, ties included, for plain values and distributions. Actions are integers: they are equal.
#[test]
fn choices_agree() {
    for (rows, [a0, a1, a2], atoms) in
        [(1, [1, 1, 1], 1), (45, [9, 3, 3], 1), (130, [9, 3, 3], 51), (77, [2, 40, 5], 11)]
    {
        let width = atoms * (1 + a0 + a1 + a2);
        let mut p = Builder::new("select");
        let heads = p.state::<f32>("heads", [rows, width], Init::Zeros);
        let dice = p.state::<f32>("dice", [rows, 6], Init::Zeros);
        let epsilon = p.host_scalar("epsilon", 0.3f32);
        let action = p.output::<i32>("action", [rows, 3]);
        let args = branch_select::Args {
            heads,
            dice,
            epsilon,
            a0: Const(a0),
            a1: Const(a1),
            a2: Const(a2),
            atoms: Const(atoms),
            vmin: Const(-3.0),
            vmax: Const(2.0),
            action,
        };
        step(&mut p, |f| f.kernel("select", args));
        let prepare = |session: &mut Session| {
            let dice_of: Vec<f32> = Numbers(8).floats(rows as usize * 6).iter().map(|x| 0.5 * (x + 1.0)).collect();
            session.load(dice, &dice_of).expect("state");
            // The first row ties everywhere.
            session.load(heads.rows(0..1), &vec![0.5; width as usize]).expect("state");
        };
        compare(&format!("{rows} rows, {a0}, {a1}, {a2} actions, {atoms} atoms"), p, prepare, 0.0);
    }
}

/// Protects: the closed loop on a device is a function of its seed, whatever the plan: every number that training reports, and
/// the policy's results.
#[test]
fn the_closed_loop_repeats_under_every_plan() {
    let Some(device) = device() else { return };
    let prices = synthetic::prices(SYNTHETIC_DAYS, SYNTHETIC_STOCKS, synthetic::Reversion::default(), 42);
    for variant in ["ddqn", "mse", "c51"] {
        let setup = Setup { updates: 200, random_runs: 2, ..Setup::new(Size::Ci, World::Synthetic, variant) };
        let folds = walk_forward(prices.days(), &setup.folds).expect("long enough");
        let run = |fusion: &FusionPlan| {
            let mut trainer = Trainer::open(setup.clone(), &prices, device, fusion, 5).expect("it opens");
            let mut seen = Vec::new();
            trainer.train(0, &folds[0], 20, |progress, _| seen.push(progress)).expect("it trains");
            let judged = trainer.judge(&folds[0]).expect("it evaluates");
            (seen, judged, trainer.session.read(trainer.system.dqn.theta.flat).expect("weights"))
        };
        let mut plans = named_plans().into_iter();
        let first = plans.next().map(|plan| run(&plan));
        for plan in plans {
            if plan.name == "fast" {
                continue;
            }
            assert_eq!(first, Some(run(&plan)), "{variant} under {}", plan.name);
            assert_eq!(first, Some(run(&plan)), "{variant} under {}, again", plan.name);
        }
    }
}
