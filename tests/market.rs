//! The flagship's world: price files that must be refused, kernels against independent formulas, folds, the known rule.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use stepgraph::kernel::library::trading::{
    self, FIXED_FEATURES, LOOKBACK, branch_select, market_observe, market_trade,
};
use stepgraph::kernel::{HostArg, HostArgs, KernelArgs};

#[allow(dead_code, reason = "the example uses what this test does not")]
#[path = "../examples/dqn/folds.rs"]
mod folds;
#[allow(dead_code, reason = "the example uses what this test does not")]
#[path = "../examples/dqn/market.rs"]
mod market;
#[allow(dead_code, reason = "the example uses what this test does not")]
#[path = "../examples/dqn/schedule.rs"]
mod schedule;
#[allow(dead_code, reason = "the example uses what this test does not")]
#[path = "../examples/dqn/synthetic.rs"]
mod synthetic;

use folds::{FoldError, FoldSpec, walk_forward};
use market::{MarketError, Prices};

const REAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/sp500_20_stocks_daily.csv.gz");

fn read(text: &str) -> Result<Prices, MarketError> {
    Prices::read(text.as_bytes())
}

/// The message that a text is refused with.
fn refusal(text: &str) -> String {
    read(text).expect_err("the text must be refused").to_string()
}

// ---- price files --------------------------------------------------------------------------------------------------------

/// Protects: the price file in the repository is accepted, with all its rows.
#[test]
fn the_real_prices_load() {
    let prices = Prices::load(REAL.as_ref()).expect("the file is good");
    assert_eq!((prices.days(), prices.stock_count()), (8313, 20));
    assert_eq!((prices.dates[0].as_str(), prices.stocks[0].as_str()), ("1990-01-02", "AAPL"));
    assert_eq!((prices.close(0, 0), prices.close(8312, 19)), (0.264, 106.627));
}

/// Protects: each kind of bad price data is refused with its line and column, not repaired.
#[test]
fn bad_price_files_are_refused_where_they_are_bad() {
    let cases = [
        ("", "line 1: expected a header"),
        ("Day,A\n2020-01-02,1\n", "line 1: expected a header"),
        ("Date\n2020-01-02\n", "line 1: expected a header"),
        ("Date,A,\n2020-01-02,1,2\n", "line 1: expected a header"),
        ("Date,A,B,A\n2020-01-02,1,2,3\n", "line 1, column 4: the stock `A` is named twice"),
        ("Date,A\n", "a header but no rows"),
        ("Date,A,B\n2020-01-02,1,2\n2020-01-03,1\n", "line 3: 2 columns, the header has 3"),
        ("Date,A\n2020-01-02,1,7\n", "line 2: 3 columns, the header has 2"),
        ("Date,A,B\n2020-01-02,1,2\n2020-01-03,1,\n", "line 3, column B: the price is missing"),
        ("Date,A,B\n2020-01-02,0,2\n", "line 2, column A: `0` is not a price"),
        ("Date,A,B\n2020-01-02,1,-2.5\n", "line 2, column B: `-2.5` is not a price"),
        ("Date,A\n2020-01-02,NaN\n", "line 2, column A: `NaN` is not a price"),
        ("Date,A\n2020-01-02,inf\n", "line 2, column A: `inf` is not a price"),
        ("Date,A\n2020-01-02,1e39\n", "line 2, column A: `1e39` is not a price"),
        ("Date,A\n2020-01-02,1e-60\n", "line 2, column A: `1e-60` is not a price"),
        ("Date,A\n2020-01-02,cheap\n", "line 2, column A: `cheap` is not a price"),
        ("Date,A\n2020-02-30,1\n", "line 2, column Date: `2020-02-30` is not a date"),
        ("Date,A\n02.01.2020,1\n", "line 2, column Date: `02.01.2020` is not a date"),
        ("Date,A\n2020-01-0é,1\n", "line 2, column Date: `2020-01-0é` is not a date"),
        ("Date,A\n2020-01-03,1\n2020-01-02,1\n", "line 3, column Date: 2020-01-02 does not come after 2020-01-03"),
        ("Date,A\n2020-01-02,1\n2020-01-02,1\n", "line 3, column Date: 2020-01-02 does not come after 2020-01-02"),
        ("Date,A\n2019-12-24,1\n2020-01-06,1\n", "line 3, column Date: 13 days lie between 2019-12-24 and 2020-01-06"),
    ];
    for (text, expected) in cases {
        for text in [text.to_owned(), text.replace('\n', "\r\n")] {
            let found = refusal(&text);
            assert!(found.contains(expected), "{text:?}: expected `{expected}`, found `{found}`");
        }
    }
    assert!(refusal("Date,A\n\n\n2020-01-02,0\n").contains("line 4, column A"));
}

/// Protects: leap days, century rules and closures across a year's end are counted as the calendar does.
#[test]
fn dates_follow_the_calendar() {
    for pair in ["2000-02-28,1\n2000-02-29,1", "1999-12-31,1\n2000-01-10,1", "2024-02-29,1\n2024-03-10,1"] {
        assert!(read(&format!("Date,A\n{pair}\n")).is_ok(), "{pair}");
    }
    assert!(refusal("Date,A\n1900-02-29,1\n").contains("not a date"));
    assert!(refusal("Date,A\n2023-02-28,1\n2023-03-11,1\n").contains("11 days"));
}

/// Protects: a price file that breaks off, is no gzip or is not there is an error that says so.
#[test]
fn damaged_and_absent_files_are_errors() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("prices.csv.gz");
    let error = |path: &std::path::Path| Prices::load(path).expect_err("must be refused");
    assert!(matches!(error(&path), MarketError::Open { .. }));

    let mut text = String::from("Date,A\n");
    for day in 1..=28 {
        text += &format!("2020-01-{day:02},{}.5\n", day * 7919 % 1000);
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes()).expect("memory");
    let packed = encoder.finish().expect("memory");

    std::fs::write(&path, &packed).expect("writable");
    assert_eq!(Prices::load(&path).expect("whole").days(), 28);
    for kept in [5, packed.len() / 2, packed.len() - 1] {
        std::fs::write(&path, &packed[..kept]).expect("writable");
        assert!(matches!(error(&path), MarketError::Damaged { .. }), "{kept} of {} bytes", packed.len());
    }
    // Two files packed one by one and put together are one file for gzip: the second half is no less part of it.
    let (first, second) = text.split_at(text.find("2020-01-15").expect("a day"));
    let pack = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text.as_bytes()).expect("memory");
        encoder.finish().expect("memory")
    };
    std::fs::write(&path, [pack(first), pack(second)].concat()).expect("writable");
    assert_eq!(Prices::load(&path).expect("whole").days(), 28);
    std::fs::write(&path, [&packed[..], b"more"].concat()).expect("writable");
    assert!(matches!(error(&path), MarketError::Damaged { .. }));
    std::fs::write(&path, text).expect("writable");
    assert!(matches!(error(&path), MarketError::Damaged { .. }));
    let plain = folder.path().join("prices.csv");
    std::fs::write(&plain, b"Date,A\n2020-01-02,\xff\xfe\n").expect("writable");
    assert!(matches!(error(&plain), MarketError::Damaged { .. }));
}

// ---- folds and schedules ------------------------------------------------------------------------------------------------

const SPEC: FoldSpec = FoldSpec { lookback: 120, train: 500, validation: 100, step: 100, most: None };

/// Protects: validation follows training at once, folds move by a step, the last one ends with the data, none looks back
/// before the first day.
#[test]
fn folds_walk_forward_to_the_end_of_the_data() {
    let folds = walk_forward(1050, &SPEC).expect("long enough");
    assert_eq!(folds.len(), 4);
    assert_eq!(folds[3].validation, 950..1050);
    for (at, fold) in folds.iter().enumerate() {
        assert_eq!(fold.train.end, fold.validation.start);
        assert_eq!((fold.train.len(), fold.validation.len()), (500, 100));
        assert_eq!(fold.train.start, folds[0].train.start + at * 100);
        assert!(fold.train.start >= 120);
    }
    let latest = walk_forward(1050, &FoldSpec { most: Some(2), ..SPEC }).expect("long enough");
    assert_eq!(latest, folds[2..]);
    assert_eq!(walk_forward(720, &SPEC).expect("just enough").len(), 1);
}

/// Protects: a history that is too short, and lengths that make no sense, are errors with the numbers in them.
#[test]
fn impossible_folds_are_errors() {
    let error = |days, spec: FoldSpec| walk_forward(days, &spec).expect_err("impossible");
    let short = error(719, SPEC);
    assert!(matches!(short, FoldError::TooShort { found: 719, needed: 720, .. }));
    assert!(short.to_string().contains("719 days, one fold needs 720"));
    assert_eq!(error(2000, FoldSpec { step: 0, ..SPEC }), FoldError::Step);
    assert_eq!(error(2000, FoldSpec { validation: 1, ..SPEC }), FoldError::Window { window: "validation", found: 1 });
    assert!(matches!(error(2000, FoldSpec { train: usize::MAX, ..SPEC }), FoldError::TooShort { .. }));
}

/// Protects: schedules start, peak and end where they say.
#[test]
fn schedules_reach_their_ends() {
    let rate = schedule::Cosine { peak: 1e-3, last: 1e-4, warmup: 0.1 };
    assert!(rate.at(0, 1000) > 0.0 && rate.at(50, 1000) < rate.at(100, 1000));
    assert_eq!(rate.at(100, 1000), 1e-3);
    assert!((rate.at(1000, 1000) - 1e-4).abs() < 1e-9 && (rate.at(550, 1000) - 5.5e-4).abs() < 1e-8);
    let epsilon = schedule::Ramp { first: 1.0, last: 0.05, over: 0.5 };
    assert_eq!((epsilon.at(0, 100), epsilon.at(50, 100), epsilon.at(100, 100)), (1.0, 0.05, 0.05));
    assert!((epsilon.at(25, 100) - 0.525).abs() < 1e-6);
}

// ---- the synthetic market -----------------------------------------------------------------------------------------------

/// Protects: the synthetic market is the process it claims to be, and its rule earns what theory says.
///
/// With deviation spread s = σ / √(1 - (1 - κ)²), a bar earns κ E|x| = κ s √(2/π); a sign change, with probability
/// arccos(1 - κ) / π, costs twice the rate. The mean of n stock-days differs from that by some standard errors of (noise σ plus
/// spread of |x|, correlated over about 2/κ days): 5 σ √(2/κ) / √n is generous, and a tenth of the reward itself.
#[test]
fn the_rule_earns_what_theory_says() {
    let reversion = synthetic::Reversion::default();
    let (days, stocks) = (2000, 20);
    let prices = synthetic::prices(days, stocks, reversion, 7);
    assert_eq!(prices, synthetic::prices(days, stocks, reversion, 7));
    assert_ne!(prices, synthetic::prices(days, stocks, reversion, 8));
    let costs = synthetic::RuleCosts { commission: 2e-4, slippage: 3e-4 };
    let found = synthetic::rule_reward(&prices, 0, days, costs) / (days - 1) as f64;

    let synthetic::Reversion { kappa, sigma } = reversion;
    let spread = sigma / (1.0 - (1.0 - kappa).powi(2)).sqrt();
    let earns = kappa * spread * (2.0 / std::f64::consts::PI).sqrt();
    let pays = 2.0 * (costs.commission + costs.slippage) * (1.0 - kappa).acos() / std::f64::consts::PI;
    let error = 5.0 * sigma * (2.0 / kappa).sqrt() / ((days * stocks) as f64).sqrt();
    assert!((found - (earns - pays)).abs() < error, "{found} against {} ± {error}", earns - pays);
    assert!(error < 0.3 * earns);
}

// ---- kernels on the host ------------------------------------------------------------------------------------------------

fn bytes<T: bytemuck::Pod>(values: &[T]) -> HostArg<'_> {
    HostArg::In(bytemuck::cast_slice(values))
}

fn bytes_mut<T: bytemuck::Pod>(values: &mut [T]) -> HostArg<'_> {
    HostArg::Out(bytemuck::cast_slice_mut(values))
}

const fn real(value: f32) -> HostArg<'static> {
    HostArg::Scalar(value.to_bits())
}

fn call<K: KernelArgs>(args: Vec<HostArg<'_>>) {
    let host = K::def().host.expect("every hand-written kernel has a host function");
    (host.0)(&mut HostArgs::new(args));
}

/// The accounts of a test market.
struct Accounts {
    stock: Vec<u32>,
    day: Vec<u32>,
    exposure: Vec<f32>,
    equity: Vec<f32>,
}

fn observe(prices: &Prices, accounts: &Accounts, width: u32) -> Vec<f32> {
    let mut obs = vec![f32::NAN; accounts.day.len() * width as usize];
    call::<market_observe::Args>(vec![
        bytes(&prices.closes),
        bytes(&accounts.stock),
        bytes(&accounts.day),
        bytes(&accounts.exposure),
        bytes(&accounts.equity),
        bytes_mut(&mut obs),
        HostArg::Size(prices.days() as u32),
        HostArg::Size(prices.stock_count() as u32),
        HostArg::Size(width),
    ]);
    obs
}

fn accounts() -> Accounts {
    Accounts {
        stock: vec![0, 2, 1, 2, 0],
        day: vec![LOOKBACK, LOOKBACK + 1, 250, 399, 300],
        exposure: vec![0.0, 1.0, -1.0, 0.25, -0.5],
        equity: vec![0.0, 0.1, -0.2, 0.01, 2.0],
    }
}

/// The unclipped feature, its formula written anew in double precision, and the spread that it was divided by with the number
/// of terms summed on the way.
fn feature(prices: &Prices, accounts: &Accounts, account: usize, column: usize) -> (f64, f64, f64) {
    let (day, stock) = (accounts.day[account] as usize, accounts.stock[account] as usize);
    let log = |lag: usize| f64::from(prices.close(day - lag, stock)).ln();
    let vol = |n: usize| ((0..n).map(|j| (log(j) - log(j + 1)).powi(2)).sum::<f64>() / n as f64).sqrt();
    let score = |n: usize| {
        let mean = (0..n).map(log).sum::<f64>() / n as f64;
        let spread = ((0..n).map(|j| (log(j) - mean).powi(2)).sum::<f64>() / n as f64).sqrt();
        ((log(0) - mean) / spread, spread, 2.0 * n as f64)
    };
    let momentum = |n: usize| ((log(0) - log(n)) / (vol(20) * (n as f64).sqrt()), vol(20), 40.0);
    match column {
        0 => (f64::from(accounts.exposure[account]), 1.0, 1.0),
        1 => (5.0 * f64::from(accounts.equity[account]), 1.0, 1.0),
        2 => ((vol(20) / 0.01).ln(), vol(20), 40.0),
        3 => ((vol(20) / vol(120)).ln(), vol(20).min(vol(120)), 240.0),
        4 => score(20),
        5 => score(60),
        6 => score(120),
        7 => momentum(5),
        8 => momentum(10),
        9 => momentum(20),
        10 => momentum(60),
        11 => momentum(120),
        _ => ((log(column - 12) - log(column - 11)) / vol(20), vol(20), 40.0),
    }
}

/// Protects: observations are the documented features.
///
/// A log price ratio of float32 prices is off by at most u = 2⁻²⁴ (division) plus u |x| (logarithm); with n additions on the
/// way and a division by `spread`, a feature is off by (n + 8) u (1 + max|x|) / spread, and by (n + 8) u of itself.
#[test]
fn observations_are_the_documented_features() {
    let prices = synthetic::prices(400, 3, synthetic::Reversion::default(), 3);
    let accounts = accounts();
    for width in [FIXED_FEATURES + 1, 31, 64, *trading::WIDTHS.end()] {
        let obs = observe(&prices, &accounts, width);
        for (at, &found) in obs.iter().enumerate() {
            let (account, column) = (at / width as usize, at % width as usize);
            let (exact, spread, terms) = feature(&prices, &accounts, account, column);
            let tolerance = (terms + 8.0) * f64::from(f32::EPSILON / 2.0) * ((1.0 + 0.3) / spread + exact.abs());
            let exact = exact.clamp(-5.0, 5.0);
            assert!(
                (f64::from(found) - exact).abs() <= tolerance,
                "account {account}, column {column} of {width}: {found} against {exact} ± {tolerance}"
            );
        }
    }
}

/// Protects: no look-ahead. Observations up to a day do not change with any later price.
#[test]
fn later_prices_change_no_earlier_observation() {
    let prices = synthetic::prices(400, 3, synthetic::Reversion::default(), 3);
    let today = 250;
    let mut other = prices.clone();
    for close in &mut other.closes[(today + 1) * 3..] {
        *close *= 3.0;
    }
    let days: Vec<u32> = (LOOKBACK..=today as u32).collect();
    let accounts = Accounts {
        stock: days.iter().map(|day| day % 3).collect(),
        exposure: vec![0.5; days.len()],
        equity: vec![0.1; days.len()],
        day: days,
    };
    let (before, after) = (observe(&prices, &accounts, 132), observe(&other, &accounts, 132));
    assert_eq!(bytemuck::cast_slice::<f32, u32>(&before), bytemuck::cast_slice::<f32, u32>(&after));

    let tomorrow = Accounts { stock: vec![0], day: vec![today as u32 + 1], exposure: vec![0.0], equity: vec![0.0] };
    assert_ne!(
        observe(&prices, &tomorrow, 132),
        observe(&other, &tomorrow, 132),
        "the test must be able to see a change"
    );
}

/// What one call of `market_trade` gives.
struct Traded {
    accounts: Accounts,
    facts: Vec<[f32; 6]>,
    ended: Vec<u32>,
    label: Vec<i32>,
}

const COMMISSION: f32 = 1e-3;
const SLIPPAGE: f32 = 2e-3;
const LIMIT: f32 = 0.01;
const RUIN: f32 = -0.5;
const BAND: f32 = 0.005;
const LEVELS: u32 = 5;
const UNIT: f32 = 4.0;

fn trade(prices: &Prices, accounts: Accounts, action: &[i32], last_day: u32) -> Traded {
    let n = accounts.day.len();
    let mut out = Traded { accounts, facts: vec![[f32::NAN; 6]; n], ended: vec![9; n], label: vec![9; n] };
    call::<market_trade::Args>(vec![
        bytes(&prices.closes),
        bytes(action),
        bytes(&out.accounts.stock),
        bytes_mut(&mut out.accounts.day),
        bytes_mut(&mut out.accounts.exposure),
        bytes_mut(&mut out.accounts.equity),
        real(COMMISSION),
        real(SLIPPAGE),
        real(LIMIT),
        real(RUIN),
        real(BAND),
        HostArg::Scalar(last_day),
        HostArg::Const(stepgraph::ir::ConstValue::U32(LEVELS)),
        HostArg::Const(stepgraph::ir::ConstValue::F32(UNIT)),
        bytes_mut(&mut out.facts),
        bytes_mut(&mut out.ended),
        bytes_mut(&mut out.label),
        HostArg::Size(prices.days() as u32),
        HostArg::Size(prices.stock_count() as u32),
        HostArg::Size(n as u32),
    ]);
    out
}

fn history(closes: &[f32]) -> Prices {
    Prices {
        dates: (0..closes.len()).map(|day| format!("day {day}")).collect(),
        stocks: vec!["A".into()],
        closes: closes.to_vec(),
    }
}

fn one(day: u32, exposure: f32, equity: f32) -> Accounts {
    Accounts { stock: vec![0], day: vec![day], exposure: vec![exposure], equity: vec![equity] }
}

/// A case of the table below: action, exposure held, exposure after, reward.
type Case = ([i32; 3], f64, f64, f64);

/// Protects: every order type pays and earns what the document says, worked out by hand for a bar of +2 % and one of -2 %.
#[test]
fn orders_cost_and_earn_as_documented() {
    let (c, s, l) = (f64::from(COMMISSION), f64::from(SLIPPAGE), f64::from(LIMIT));
    for (next, sign) in [(102.0f32, 1.0f64), (98.0, -1.0)] {
        let g = (f64::from(next) / 100.0).ln();
        let falls = sign < 0.0;
        let cases: [Case; 7] = [
            // Market, all at once, from flat to fully long: earns the whole bar.
            ([4, 0, 2], 0.0, 1.0, g - (c + s)),
            // Market, patient, from long towards short: a quarter of 2, a quarter of the slippage rate.
            ([0, 0, 0], 1.0, 0.5, 0.5 * g - 0.5 * (c + 0.25 * s)),
            // Nothing to trade costs nothing.
            ([3, 0, 2], 0.5, 0.5, 0.5 * g),
            // A limit buy fills only where the price falls through the limit, and then at the limit.
            ([4, 1, 2], 0.0, if falls { 1.0 } else { 0.0 }, if falls { g + l - c } else { 0.0 }),
            // A limit sale fills only where it rises; the position held earns either way.
            ([0, 1, 1], 1.0, if falls { 1.0 } else { 0.0 }, if falls { g } else { g - g + l - c }),
            // Over the day: half of the bar, half of the slippage.
            ([0, 2, 2], 0.0, -1.0, -0.5 * g - (c + 0.5 * s)),
            ([4, 2, 1], 0.5, 0.75, 0.5 * g + 0.125 * g - 0.25 * (c + 0.25 * s)),
        ];
        for (action, held, after, reward) in cases {
            let out = trade(&history(&[100.0, next, 50.0]), one(0, held as f32, 0.1), &action, 2);
            // Ten operations on numbers of at most 2, each rounded once.
            let tolerance = 10.0 * f64::from(f32::EPSILON);
            let [found, ruined, growth, target, pace, rate] = out.facts[0].map(f64::from);
            let now = f64::from(out.accounts.exposure[0]);
            let unit = f64::from(UNIT);
            assert!((found / unit - reward).abs() <= tolerance, "{action:?}, {next}: {found} against {reward}");
            assert!((now - after).abs() <= tolerance, "{action:?}, {next}: {now} against {after}");
            assert!((f64::from(out.accounts.equity[0]) - reward - 0.1).abs() <= tolerance);
            assert!((growth / unit - g).abs() <= tolerance);
            assert_eq!((out.accounts.day[0], out.ended[0], ruined), (1, 0, 0.0));
            if action[1] == 0 {
                // What relabelling relies on: where a market order leads, and what it earns, follow from these facts.
                let after = held + pace * (target - held);
                assert!((now - after).abs() <= tolerance);
                assert!((after * growth - rate * (after - held).abs() - found).abs() <= 4.0 * unit * tolerance);
            }
            assert_eq!(out.label[0], if falls { 0 } else { 2 });
        }
    }
}

/// Protects: windows end without being terminal, ruin is terminal, a ruined account is closed and earns no more.
#[test]
fn episodes_end_by_window_or_ruin() {
    let prices = history(&[100.0, 100.1, 10.0, 20.0]);
    let buy = [4, 0, 2];
    let out = trade(&prices, one(0, 0.0, 0.0), &buy, 1);
    assert_eq!((out.ended[0], out.facts[0][1], out.label[0]), (1, 0.0, 1));
    let out = trade(&prices, one(1, 0.0, 0.0), &buy, 3);
    assert_eq!((out.ended[0], out.facts[0][1], out.accounts.exposure[0]), (1, 1.0, 0.0));
    let out = trade(&prices, out.accounts, &buy, 3);
    let [reward, ruined, ..] = out.facts[0];
    assert_eq!((reward, ruined, out.accounts.exposure[0], out.accounts.day[0]), (0.0, 1.0, 0.0, 3));
}

fn select(heads: &[f32], dice: &[f32], epsilon: f32, actions: [u32; 3], atoms: u32) -> Vec<i32> {
    let width = atoms * (1 + actions.iter().sum::<u32>());
    let rows = heads.len() as u32 / width;
    let mut action = vec![-1; rows as usize * 3];
    let baked = |value| HostArg::Const(stepgraph::ir::ConstValue::U32(value));
    let bound = |value| HostArg::Const(stepgraph::ir::ConstValue::F32(value));
    call::<branch_select::Args>(vec![
        bytes(heads),
        bytes(dice),
        real(epsilon),
        baked(actions[0]),
        baked(actions[1]),
        baked(actions[2]),
        baked(atoms),
        bound(-2.0),
        bound(2.0),
        bytes_mut(&mut action),
        HostArg::Size(rows),
        HostArg::Size(width),
    ]);
    action
}

/// Uniform numbers in [0, 1) by a linear congruence: enough to fill matrices with.
fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0
    };
    (0..n).map(|_| next()).collect()
}

/// Protects: the greedy action is the best of the dueling values, for one atom and for distributions, by an independent
/// double-precision computation; rows whose best two actions are closer than float32 can tell apart are left out, and few.
#[test]
fn the_greedy_action_is_the_best() {
    let actions = [9u32, 3, 4];
    for atoms in [1u32, 11] {
        let width = (atoms * 17) as usize;
        let heads: Vec<f32> = noise(57 * width, 5).into_iter().map(|x| 4.0 * x - 2.0).collect();
        let found = select(&heads, &[0.5; 57 * 6], 0.0, actions, atoms);
        let mut clear = 0;
        for (row, heads) in heads.chunks_exact(width).enumerate() {
            let mut before = 1;
            for (branch, count) in actions.into_iter().enumerate() {
                let (first, gap) = best_in_double(heads, before, count as usize, atoms as usize);
                before += count as usize;
                // Values of at most 4 in size, sums of 11 terms: 11 · 4 · 2⁻²⁴ each, for numerator and weight of both actions.
                if gap > 4.0 * 11.0 * 4.0 * f64::from(f32::EPSILON / 2.0) {
                    clear += 1;
                    assert_eq!(found[row * 3 + branch], first, "row {row}, branch {branch}, {atoms} atoms");
                }
            }
        }
        assert!(clear > 57 * 3 - 4, "{clear}");
    }
}

fn best_in_double(heads: &[f32], before: usize, count: usize, atoms: usize) -> (i32, f64) {
    let advantage = |action: usize, atom: usize| f64::from(heads[(before + action) * atoms + atom]);
    let q = |action: usize| {
        let logit = |atom: usize| {
            let mean = (0..count).map(|other| advantage(other, atom)).sum::<f64>() / count as f64;
            f64::from(heads[atom]) + advantage(action, atom) - mean
        };
        if atoms == 1 {
            return logit(0);
        }
        let weights: Vec<f64> = (0..atoms).map(|atom| logit(atom).exp()).collect();
        let support = |atom: usize| -2.0 + 4.0 * atom as f64 / (atoms - 1) as f64;
        weights.iter().enumerate().map(|(atom, w)| w * support(atom)).sum::<f64>() / weights.iter().sum::<f64>()
    };
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| q(b).total_cmp(&q(a)));
    (order[0] as i32, q(order[0]) - q(order[1]))
}

/// Protects: a tie takes the first action; ε = 1 takes the drawn action of each branch, whatever the values say.
#[test]
fn ties_take_the_first_and_dice_decide() {
    let heads = [1.0, 0.0, 3.0, 3.0, 7.0, 7.0, 7.0, -1.0, -2.0, -1.0];
    assert_eq!(select(&heads, &[0.0; 6], 0.0, [3, 3, 3], 1), [1, 0, 0]);
    let dice = [0.0, 0.999_999, 0.5, 0.0, 0.999_999, 0.34];
    assert_eq!(select(&heads, &dice, 1.0, [3, 3, 3], 1), [2, 0, 1]);
    assert_eq!(select(&heads, &dice, 0.5, [3, 3, 3], 1), [2, 0, 0]);
}
