//! The steps around training: `act` plays one bar of every episode, `insert` remembers it, `reset_for_fold` starts anew.
//!
//! Together with `train` they are a closed loop on the device: act writes transitions into memory that insert appends to the
//! replay buffer that train draws from. The host launches, and sets ε.

use stepgraph::Builder;
use stepgraph::builder::{Body, Val, philox, uniform};
use stepgraph::handle::{Const, Scalar, Tensor};
use stepgraph::ir::Init;
use stepgraph::kernel::library::trading::branch_select;

use super::environment::{Accounts, BRANCHES, Bar, Market, PERCENT};
use super::hyper::Hyper;
use super::network::{Layer, Pass, Weights, forward};
use super::replay::{Replay, Transitions, fact};

/// Philox streams of this family of steps; the training step's are below 100.
pub(crate) mod stream {
    /// Stock and first day of a new episode.
    pub(crate) const EPISODE: u32 = 100;
    /// Whether and how to explore.
    pub(crate) const EXPLORE: u32 = 101;
    /// The random policy of an evaluation.
    pub(crate) const RANDOM: u32 = 102;
    /// Exploration in an evaluation.
    pub(crate) const EVALUATE: u32 = 103;
    /// Weights at the start of a fold: one stream per layer from here on.
    pub(crate) const WEIGHTS: u32 = 200;
}

/// Parallel episodes, and the transitions of their last bar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Actor {
    /// How many episodes run at once.
    pub(crate) episodes: u32,
    /// Their accounts.
    pub(crate) accounts: Accounts,
    /// What the last bar did to them.
    pub(crate) bar: Bar,
    /// The transitions of the last bar.
    pub(crate) last: Transitions,
    /// Bars played: the counter of random draws.
    pub(crate) tick: Scalar<u32>,
    /// The seed of random draws.
    pub(crate) seed: Scalar<u32>,
    /// The probability of a random action, per branch.
    pub(crate) epsilon: Scalar<f32>,
    /// The first day on which an episode may start.
    pub(crate) first_day: Scalar<u32>,
    /// The last close that an episode may reach.
    pub(crate) last_day: Scalar<u32>,
}

impl Actor {
    /// Declares `episodes` parallel episodes, all of which start with the first bar.
    pub(crate) fn declare(p: &mut Builder, hyper: &Hyper, episodes: u32, seed: Scalar<u32>) -> Self {
        let n = episodes;
        let accounts = Accounts {
            stock: p.state("episode.stock", [n], Init::Zeros),
            day: p.state("episode.day", [n], Init::Zeros),
            exposure: p.state("episode.exposure", [n], Init::Zeros),
            equity: p.state("episode.equity", [n], Init::Zeros),
        };
        let facts = p.state("episode.facts", [n, fact::COUNT], Init::Zeros);
        let class = p.state("episode.class", [n], Init::Zeros);
        let last = Transitions {
            observation: p.state("episode.observation", [n, hyper.observation], Init::Zeros),
            next: p.state("episode.next", [n, hyper.observation], Init::Zeros),
            action: p.state("episode.action", [n, hyper.branch_count()], Init::Zeros),
            facts,
            class,
        };
        Self {
            episodes,
            accounts,
            bar: Bar { facts, ended: p.state("episode.ended", [n], Init::Constant(1.0)), class },
            last,
            tick: p.device_scalar("episode.tick", 0),
            seed,
            epsilon: p.host_scalar("epsilon", 1.0),
            first_day: p.host_scalar("train.first_day", 0),
            last_day: p.host_scalar("train.last_day", 1),
        }
    }

    /// Adds `act`: episodes that ended begin anew, every account observes, chooses and trades one bar.
    pub(crate) fn add_act(&self, p: &mut Builder, hyper: &Hyper, market: &Market, weights: &Weights) {
        let last = &self.last;
        p.step("act", |s| {
            s.phase("restart", |f| self.restart(f, market));
            s.phase("observe", |f| market.observe(f, "observe", &self.accounts, last.observation));
            let pass = Pass { name: "act", rows: self.episodes, mask: None };
            let heads = s.phase("forward", |f| forward(f, hyper, weights, pass, last.observation).out);
            s.phase("select", |f| {
                let dice = uniform(self.seed, self.tick, stream::EXPLORE);
                select(f, hyper, "act", heads, dice, self.epsilon, last.action);
            });
            s.phase("trade", |f| {
                market.trade(f, &self.accounts, last.action, self.last_day, PERCENT, &self.bar);
                market.observe(f, "observe_next", &self.accounts, last.next);
                f.set("tick", self.tick, self.tick + 1u32);
            });
        });
    }

    /// Adds `insert`: the transitions of the last bar go into the replay buffer.
    pub(crate) fn add_insert(&self, p: &mut Builder, replay: &Replay) {
        p.step("insert", |s| s.phase("insert", |f| replay.insert(f, &self.last, self.episodes)));
    }

    /// Where an episode has ended, opens a new account: any stock, any day of the window but the last.
    fn restart(&self, f: &mut Body<'_>, market: &Market) {
        let draw = |word| philox(self.seed, self.tick, Val::index(0), stream::EPISODE, word);
        let over = self.bar.ended.val().not_equal(0u32);
        let day = self.first_day + draw(1) % (self.last_day - self.first_day);
        let Accounts { stock, day: days, exposure, equity } = self.accounts;
        f.map_node("restart")
            .over([self.episodes])
            .store(stock, over.select(draw(0) % market.stocks, stock))
            .store(days, over.select(day, days))
            .store(exposure, over.select(0.0f32, exposure))
            .store(equity, over.select(0.0f32, equity))
            .done();
    }
}

/// Chooses an action per row and branch from the heads' outputs into `action` [rows, 3].
pub(crate) fn select(
    f: &mut Body<'_>,
    hyper: &Hyper,
    prefix: &str,
    heads: Tensor<f32>,
    dice: Val<f32>,
    epsilon: Scalar<f32>,
    action: Tensor<i32>,
) {
    let rows = heads.shape().map_or(0, |shape| shape.dims()[0]);
    let dice = f.map_over(&format!("{prefix}.dice"), [rows, 6], dice);
    let [a0, a1, a2] = BRANCHES.map(Const);
    let [vmin, vmax] = hyper.support.map(Const);
    let args = branch_select::Args { heads, dice, epsilon, a0, a1, a2, atoms: Const(hyper.atoms), vmin, vmax, action };
    f.kernel("select", args);
}

/// What a fold must not inherit from the one before.
#[derive(Clone, Debug)]
pub(crate) struct Learned<'a> {
    /// The trained weights.
    pub(crate) weights: &'a Weights,
    /// Their slow copy.
    pub(crate) target: &'a Weights,
    /// Adam's moments.
    pub(crate) moments: [&'a Weights; 2],
    /// Counters that start at 0: optimiser steps, skipped steps, metrics written.
    pub(crate) counters: Vec<Scalar<u32>>,
}

/// Adds `reset_for_fold`, everything in place: `fresh` draws new weights (keyed by the seed and the host scalar `fold`), `kept`
/// goes on with the present ones. Both clear the optimiser, empty the replay buffer, and end all episodes. The vectors of
/// spectral normalisation stay: any unit vector is a start.
pub(crate) fn add_reset(p: &mut Builder, actor: &Actor, replay: &Replay, learned: &Learned<'_>) -> Scalar<u32> {
    let fold = p.host_scalar("fold", 0u32);
    p.step_with_variants("reset_for_fold", &["fresh", "kept"], |s| {
        s.phase_in("weights", &["fresh"], |f| draw_weights(f, actor.seed, fold, learned.weights));
        s.phase("target", |f| {
            let pairs = learned.weights.layers().zip(learned.target.layers());
            for (index, (from, to)) in pairs.enumerate() {
                f.copy(&format!("target.w{index}"), from.w, to.w);
                f.copy(&format!("target.b{index}"), from.b, to.b);
            }
        });
        s.phase("optimiser", |f| {
            for (moment, weights) in ["m", "v"].into_iter().zip(learned.moments) {
                for (index, Layer { w, b }) in weights.layers().enumerate() {
                    f.fill(&format!("{moment}.w{index}"), w, 0.0);
                    f.fill(&format!("{moment}.b{index}"), b, 0.0);
                }
            }
            let counters = f.map_node("counters");
            learned.counters.iter().fold(counters, |node, &counter| node.store_scalar(counter, 0u32)).done();
        });
        s.phase("replay", |f| replay.clear(f));
        s.phase("episodes", |f| f.fill("episodes.end", actor.bar.ended, 1u32));
    });
    fold
}

/// Weights uniform in ±1/√inputs, biases zero, as the program declares them.
fn draw_weights(f: &mut Body<'_>, seed: Scalar<u32>, fold: Scalar<u32>, weights: &Weights) {
    for (index, Layer { w, b }) in (0u32..).zip(weights.layers()) {
        let inputs = w.shape().map_or(1, |shape| shape.dims()[1]);
        #[expect(clippy::cast_precision_loss, reason = "a width is far below 2^24")]
        let bound = 1.0 / (inputs as f32).sqrt();
        let unit = uniform(seed, fold, stream::WEIGHTS + index);
        f.map_to(&format!("fresh.w{index}"), w, (unit * 2.0f32 - 1.0f32) * bound);
        f.fill(&format!("fresh.b{index}"), b, 0.0);
    }
}
