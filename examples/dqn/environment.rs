//! The trading environment as nodes of a program: prices, costs, accounts, and what happens to accounts in one bar.
//!
//! Many accounts, one per row, trade at once; each holds a share of its wealth, from -1 to 1, in one stock. Windows and costs
//! are host scalars, so that another fold or another cost changes no plan. `docs/dqn_market.md` explains every choice.

use stepgraph::Builder;
use stepgraph::builder::Body;
use stepgraph::handle::{Const, Scalar, Tensor};
use stepgraph::ir::Init;
use stepgraph::kernel::library::trading::{market_observe, market_trade};

/// Exposure levels: -1 to 1 in steps of a quarter. Fine enough to scale a position, few enough to learn from one bar's noise.
pub(crate) const LEVELS: u32 = 9;

/// Actions of each branch: exposure level, order type, urgency.
pub(crate) const BRANCHES: [u32; 3] = [LEVELS, 3, 3];

/// The exposure is the first column of an observation.
pub(crate) const EXPOSURE_COLUMN: u32 = 0;

/// Classes of the next move: down, flat, up.
pub(crate) const CLASSES: u32 = 3;

/// What a log return of 1 counts as in training: rewards are in percent, so that values are of the order of 1, where a freshly
/// drawn network is.
pub(crate) const PERCENT: f32 = 100.0;

/// What trading costs, and where it ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Costs {
    /// Paid per unit of exposure traded.
    pub(crate) commission: f32,
    /// Paid per unit of exposure traded at full pace; in proportion to the pace.
    pub(crate) slippage: f32,
    /// How far from the close, in log price, limit orders stand.
    pub(crate) limit_offset: f32,
    /// The sum of log returns at or below which an account is closed.
    pub(crate) ruin: f32,
    /// Moves of at most this log return count as flat.
    pub(crate) label_band: f32,
}

/// A retail account in large stocks: a commission of 1 basis point, half a spread and impact of 2; limits half a percent away;
/// ruin at half of the wealth. A third of the daily moves in the price file are within ±0.56 %, so the classes are balanced.
impl Default for Costs {
    fn default() -> Self {
        Self { commission: 1e-4, slippage: 2e-4, limit_offset: 5e-3, ruin: -std::f32::consts::LN_2, label_band: 5.6e-3 }
    }
}

/// Prices and the rules of trading, shared by training and evaluation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Market {
    /// Closing prices [days, stocks].
    pub(crate) prices: Tensor<f32>,
    /// How many stocks there are.
    pub(crate) stocks: u32,
    /// See [`Costs::commission`].
    pub(crate) commission: Scalar<f32>,
    /// See [`Costs::slippage`].
    pub(crate) slippage: Scalar<f32>,
    /// See [`Costs::limit_offset`].
    pub(crate) limit_offset: Scalar<f32>,
    /// See [`Costs::ruin`].
    pub(crate) ruin: Scalar<f32>,
    /// See [`Costs::label_band`].
    pub(crate) label_band: Scalar<f32>,
}

/// Accounts, one per row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accounts {
    /// The stock that each trades [n].
    pub(crate) stock: Tensor<u32>,
    /// The day whose close it stands at [n].
    pub(crate) day: Tensor<u32>,
    /// The share of its wealth in the stock, from -1 to 1 [n].
    pub(crate) exposure: Tensor<f32>,
    /// The sum of its log returns since it was opened [n].
    pub(crate) equity: Tensor<f32>,
}

/// What one bar did to each account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bar {
    /// See [`super::replay::fact`] [n, 6].
    pub(crate) facts: Tensor<f32>,
    /// Not 0 where no further bar follows [n].
    pub(crate) ended: Tensor<u32>,
    /// Class of the price's move [n].
    pub(crate) class: Tensor<i32>,
}

impl Market {
    /// Declares room for `days` × `stocks` prices, to be loaded, and the costs.
    pub(crate) fn declare(p: &mut Builder, days: u32, stocks: u32, costs: Costs) -> Self {
        Self {
            // 1 and not 0: a logarithm is taken of what was not loaded, too.
            prices: p.state("market.prices", [days, stocks], Init::Constant(1.0)),
            stocks,
            commission: p.host_scalar("market.commission", costs.commission),
            slippage: p.host_scalar("market.slippage", costs.slippage),
            limit_offset: p.host_scalar("market.limit_offset", costs.limit_offset),
            ruin: p.host_scalar("market.ruin", costs.ruin),
            label_band: p.host_scalar("market.label_band", costs.label_band),
        }
    }

    /// Writes what each account sees into `obs` [n, S].
    pub(crate) fn observe(&self, f: &mut Body<'_>, name: &str, accounts: &Accounts, obs: Tensor<f32>) {
        let &Accounts { stock, day, exposure, equity } = accounts;
        f.kernel(name, market_observe::Args { prices: self.prices, stock, day, exposure, equity, obs });
    }

    /// Executes each account's action [n, 3] and moves it to the next close. `last_day` is the last close that it may reach;
    /// a log return of 1 counts as `unit`.
    pub(crate) fn trade(
        &self,
        f: &mut Body<'_>,
        accounts: &Accounts,
        action: Tensor<i32>,
        last_day: Scalar<u32>,
        unit: f32,
        bar: &Bar,
    ) {
        let &Accounts { stock, day, exposure, equity } = accounts;
        let &Self { prices, commission, slippage, limit_offset, ruin, label_band, .. } = self;
        let &Bar { facts, ended, class } = bar;
        let args = market_trade::Args {
            prices,
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
            levels: Const(LEVELS),
            unit: Const(unit),
            facts,
            ended,
            label: class,
        };
        f.kernel("trade", args);
    }
}
