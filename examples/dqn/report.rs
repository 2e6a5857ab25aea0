//! What a policy's record is worth: reward, Sharpe ratio, drawdown; per fold, as a table and as JSON.
//!
//! Every number is of an equal-weighted portfolio of all stocks: a bar's return is the mean over stocks of their log returns
//! after costs.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::evaluate::Record;
use super::validation::Validated;

/// Trading days of a year, for annual figures.
pub(crate) const YEAR: f64 = 252.0;

/// The worth of one policy over one window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Metrics {
    /// The sum of the portfolio's log returns.
    pub(crate) reward: f64,
    /// Mean over standard deviation of daily returns, times √252; 0 where returns do not vary.
    pub(crate) sharpe: f64,
    /// The largest fall of the portfolio's value from an earlier peak, as a share of the peak.
    pub(crate) drawdown: f64,
    /// Exposure traded per day and stock: 2 is a full reversal.
    pub(crate) turnover: f64,
}

impl Metrics {
    /// The worth of a record.
    pub(crate) fn of(record: &Record) -> Self {
        let returns = record.portfolio();
        let bars = returns.len().max(1) as f64;
        let reward: f64 = returns.iter().sum();
        let mean = reward / bars;
        let variance = returns.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (bars - 1.0).max(1.0);
        let sharpe = if variance > 0.0 { mean / variance.sqrt() * YEAR.sqrt() } else { 0.0 };
        Self { reward, sharpe, drawdown: drawdown(&returns), turnover: record.turnover() }
    }
}

impl Record {
    /// The portfolio's log return of each bar.
    pub(crate) fn portfolio(&self) -> Vec<f64> {
        let mean = |bar: &[f32]| bar.iter().copied().map(f64::from).sum::<f64>() / self.stocks as f64;
        self.rewards.chunks_exact(self.stocks).map(mean).collect()
    }

    /// Exposure traded per bar and stock; every account starts without a position.
    fn turnover(&self) -> f64 {
        let opened = self.exposures.iter().take(self.stocks).map(|now| f64::from(now.abs()));
        let pairs = self.exposures.iter().zip(self.exposures.iter().skip(self.stocks));
        let traded: f64 = opened.sum::<f64>() + pairs.map(|(before, now)| f64::from((now - before).abs())).sum::<f64>();
        traded / self.exposures.len().max(1) as f64
    }
}

/// The largest fall of e^(sum of returns) from an earlier peak, the start included.
fn drawdown(returns: &[f64]) -> f64 {
    let (mut value, mut peak, mut worst) = (0.0f64, 0.0f64, 0.0f64);
    for r in returns {
        value += r;
        peak = peak.max(value);
        worst = worst.max(peak - value);
    }
    -(-worst).exp_m1()
}

/// The random policy under several seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// The mean of the rewards.
    pub(crate) mean: f64,
    /// Their standard deviation.
    pub(crate) deviation: f64,
    /// How many seeds.
    pub(crate) runs: usize,
}

impl Spread {
    /// Mean and standard deviation of these rewards.
    pub(crate) fn of(rewards: &[f64]) -> Self {
        let n = rewards.len().max(1) as f64;
        let mean = rewards.iter().sum::<f64>() / n;
        let variance = rewards.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        Self { mean, deviation: variance.sqrt(), runs: rewards.len() }
    }
}

/// One fold's results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FoldResult {
    /// From 1.
    pub(crate) fold: usize,
    /// First and last day of training.
    pub(crate) train: [String; 2],
    /// First and last day of validation.
    pub(crate) validation: [String; 2],
    /// Training steps done.
    pub(crate) steps: usize,
    /// Steps skipped for a gradient that was not finite.
    pub(crate) skipped: u32,
    /// The policies along the way, as far as they were validated while training went on.
    pub(crate) epochs: Vec<Validated>,
    /// The learned policy at the end of training, always taking the best action.
    pub(crate) policy: Metrics,
    /// Buying once and holding.
    pub(crate) hold: Metrics,
    /// Rewards of random actions.
    pub(crate) random: Spread,
    /// What the known rule of a synthetic market earns, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rule: Option<f64>,
}

/// All folds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    /// The market: `real` or `synthetic`.
    pub(crate) market: String,
    /// The training variant.
    pub(crate) variant: String,
    /// The device that it ran on.
    pub(crate) device: String,
    /// The plan.
    pub(crate) plan: String,
    /// The seed.
    pub(crate) seed: u32,
    /// Seconds from the first step to the last evaluation.
    pub(crate) seconds: f64,
    /// The folds, earliest first.
    pub(crate) folds: Vec<FoldResult>,
}

impl Report {
    /// Rows of fixed width, then a sentence that says plainly how the policy compares.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from(
            "fold  validation                policy: reward  sharpe  drawdown  turnover   hold: reward  sharpe  drawdown   random: reward\n",
        );
        for fold in &self.folds {
            let (policy, hold) = (&fold.policy, &fold.hold);
            let _ = writeln!(
                text,
                "{:>4}  {} … {}  {:>14}  {:>6.2}  {:>8}  {:>8.3}  {:>13}  {:>6.2}  {:>8}  {:>8} ± {}",
                fold.fold,
                fold.validation[0],
                fold.validation[1],
                percent(policy.reward),
                policy.sharpe,
                percent(policy.drawdown),
                policy.turnover,
                percent(hold.reward),
                hold.sharpe,
                percent(hold.drawdown),
                percent(fold.random.mean),
                percent(fold.random.deviation),
            );
        }
        text.push_str(&self.verdict());
        text
    }

    fn verdict(&self) -> String {
        let count = |better: fn(&FoldResult) -> bool| self.folds.iter().filter(|fold| better(fold)).count();
        let over_hold = count(|fold| fold.policy.reward > fold.hold.reward);
        let over_random = count(|fold| fold.policy.reward > fold.random.mean + 2.0 * fold.random.deviation);
        let folds = self.folds.len();
        format!(
            "out of sample, after costs: better than buy-and-hold in {over_hold} of {folds} folds, better than random by two \
             standard deviations in {over_random} of {folds}\n"
        )
    }

    /// The policy's reward as a share of the known rule's, over all folds; `None` for a market without a rule.
    pub(crate) fn share_of_rule(&self) -> Option<f64> {
        let rule: Option<f64> = self.folds.iter().map(|fold| fold.rule).sum();
        let policy: f64 = self.folds.iter().map(|fold| fold.policy.reward).sum();
        rule.filter(|rule| *rule > 0.0).map(|rule| policy / rule)
    }
}

fn percent(x: f64) -> String {
    format!("{:+.2}%", 100.0 * x)
}
