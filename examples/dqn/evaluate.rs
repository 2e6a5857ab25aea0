//! The `evaluate` step: a policy trades a window of days in every stock, bar by bar, in one launch.
//!
//! A `While` node runs the bars; nothing returns to the host before the last. The step's variants are the policy that was
//! learned and the two that it must beat, under the same costs: `random` draws every action, `hold` buys once and holds.

use stepgraph::Builder;
use stepgraph::builder::{Body, Bound, Ix, Val, axis, philox, uniform};
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::{Init, ScatterRule};
use stepgraph::runtime::{RuntimeError, Session, Ticket};

use super::act::{select, stream};
use super::environment::{Accounts, BRANCHES, Bar, LEVELS, Market};
use super::hyper::Hyper;
use super::network::{Pass, Weights, forward};
use super::replay::fact;

/// The policies, as the step's variants are called.
pub(crate) const POLICIES: [&str; 3] = ["greedy", "random", "hold"];

/// The evaluation's memory and scalars.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evaluation {
    /// Log return of each bar and stock, costs paid [bars, stocks]; rows past [`Evaluation::bars`] hold older values.
    pub(crate) rewards: Tensor<f32>,
    /// Exposure after each bar's trade [bars, stocks].
    pub(crate) exposures: Tensor<f32>,
    /// Bars to play: at most the extent of the outputs.
    pub(crate) bars: Scalar<u32>,
    /// The day of the first close.
    pub(crate) first_day: Scalar<u32>,
    /// The probability of a random action in the variant `greedy`; 0 unless set.
    pub(crate) epsilon: Scalar<f32>,
    /// The seed of the variant `random`.
    pub(crate) seed: Scalar<u32>,
    accounts: Accounts,
    bar: Scalar<u32>,
    last_day: Scalar<u32>,
    stocks: u32,
}

impl Evaluation {
    /// Declares the memory for windows of up to `bars` bars.
    pub(crate) fn declare(p: &mut Builder, market: &Market, bars: u32) -> Self {
        let n = market.stocks;
        Self {
            rewards: p.output("evaluate.rewards", [bars, n]),
            exposures: p.output("evaluate.exposures", [bars, n]),
            bars: p.host_scalar("evaluate.bars", 1),
            first_day: p.host_scalar("evaluate.first_day", 0),
            epsilon: p.host_scalar("evaluate.epsilon", 0.0),
            seed: p.host_scalar("evaluate.seed", 0),
            accounts: Accounts {
                stock: p.state("evaluate.stock", [n], Init::Zeros),
                day: p.state("evaluate.day", [n], Init::Zeros),
                exposure: p.state("evaluate.exposure", [n], Init::Zeros),
                equity: p.state("evaluate.equity", [n], Init::Zeros),
            },
            bar: p.device_scalar("evaluate.bar", 0),
            last_day: p.device_scalar("evaluate.last_day", 0),
            stocks: n,
        }
    }

    /// Adds `evaluate` with a variant for each of [`POLICIES`].
    pub(crate) fn add(&self, p: &mut Builder, hyper: &Hyper, market: &Market, weights: &Weights) {
        p.step_with_variants("evaluate", &POLICIES, |s| {
            s.phase("open", |f| self.open(f));
            for policy in POLICIES {
                s.phase_in("bars", &[policy], |f| {
                    f.repeat("bars", Bound::Scalar(self.bars), Some(self.bar), None, |f| {
                        let action = f.temp("evaluate.action", [self.stocks, 3]);
                        match policy {
                            "greedy" => self.greedy(f, hyper, market, weights, action),
                            "random" => self.random(f, action),
                            _ => hold(f, action),
                        }
                        self.play(f, market, action);
                    });
                });
            }
        });
    }

    /// Opens one account per stock on the first day, and clears what the last launch recorded.
    fn open(&self, f: &mut Body<'_>) {
        f.fill("no_rewards", self.rewards, 0.0);
        f.fill("no_exposures", self.exposures, 0.0);
        let Accounts { stock, day, exposure, equity } = self.accounts;
        f.map_node("open")
            .over([self.stocks])
            .store(stock, Val::index(0))
            .store(day, self.first_day)
            .store(exposure, 0.0f32)
            .store(equity, 0.0f32)
            .done();
        f.set("last_day", self.last_day, self.first_day + self.bars);
    }

    fn greedy(&self, f: &mut Body<'_>, hyper: &Hyper, market: &Market, weights: &Weights, action: Tensor<i32>) {
        let obs = f.temp("evaluate.observation", [self.stocks, hyper.observation]);
        market.observe(f, "observe", &self.accounts, obs);
        let pass = Pass { name: "evaluate", rows: self.stocks, mask: None };
        let heads = forward(f, hyper, weights, pass, obs).out;
        let dice = uniform(self.seed, self.bar, stream::EVALUATE);
        select(f, hyper, "evaluate", heads, dice, self.epsilon, action);
    }

    fn random(&self, f: &mut Body<'_>, action: Tensor<i32>) {
        let draw = |word| philox(self.seed, self.bar, Val::index(0), stream::RANDOM, word);
        for (branch, actions) in (0u8..).zip(BRANCHES) {
            let drawn = (draw(branch) % actions).to_i32();
            f.map_to(&format!("random{branch}"), action.pick(1, u32::from(branch)), drawn);
        }
    }

    fn play(&self, f: &mut Body<'_>, market: &Market, action: Tensor<i32>) {
        let n = self.stocks;
        let bar = Bar {
            facts: f.temp("evaluate.facts", [n, fact::COUNT]),
            ended: f.temp("evaluate.ended", [n]),
            class: f.temp("evaluate.class", [n]),
        };
        market.trade(f, &self.accounts, action, self.last_day, 1.0, &bar);
        let place = || [Ix::from(self.bar.val()), axis(0)];
        f.map_node("record")
            .over([n])
            .scatter(self.rewards, place(), ScatterRule::Unique, bar.facts.pick(1, fact::REWARD))
            .scatter(self.exposures, place(), ScatterRule::Unique, self.accounts.exposure)
            .done();
    }

    /// Launches a policy over the days `first .. first + bars` (closes to decide on). The session's windows are set for it.
    ///
    /// # Errors
    /// No plan for the variant, or a device that failed.
    pub(crate) fn launch(
        &self,
        session: &mut Session,
        policy: &str,
        first: u32,
        bars: u32,
    ) -> Result<Ticket, RuntimeError> {
        session.set(self.first_day, first)?;
        session.set(self.bars, bars)?;
        session.launch_variant("evaluate", policy)
    }

    /// What the launch recorded: rewards and exposures of `bars` bars, each [bars, stocks].
    ///
    /// # Errors
    /// As [`Ticket::wait`] and [`stepgraph::runtime::Outputs::read`].
    pub(crate) fn take(&self, session: &mut Session, ticket: &Ticket, bars: u32) -> Result<Record, RuntimeError> {
        let mut outputs = ticket.wait(session)?;
        let stocks = self.stocks as usize;
        let kept = bars as usize * stocks;
        let mut read = |tensor| {
            let mut values: Vec<f32> = outputs.read(tensor)?;
            values.truncate(kept);
            Ok::<_, RuntimeError>(values)
        };
        Ok(Record { rewards: read(self.rewards)?, exposures: read(self.exposures)?, stocks })
    }
}

/// Buys as much as possible at once, and keeps it.
fn hold(f: &mut Body<'_>, action: Tensor<i32>) {
    let column = Val::index(1);
    let full = column.equal(0u32).select(LEVELS.cast_signed() - 1, column.equal(2u32).select(2i32, 0i32));
    f.map_to("hold", action, full);
}

/// What a policy did, bar by bar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// Log returns, costs paid [bars, stocks].
    pub(crate) rewards: Vec<f32>,
    /// Exposures after each bar's trade [bars, stocks].
    pub(crate) exposures: Vec<f32>,
    /// How many stocks there are.
    pub(crate) stocks: usize,
}
