//! The prioritised replay buffer (Schaul et al. 2016): its memory, and the nodes that insert transitions, draw, gather and
//! re-rank them.
//!
//! Everything stays on the device. Priorities lie as [chunks, chunk] so that drawing is a two-level search: the chunks' sums are
//! summed afresh at every step (4 MB for a million transitions), so that nothing drifts and an insertion has nothing to maintain.

use stepgraph::Builder;
use stepgraph::builder::{Body, Ix, Val, axis, philox, uniform};
use stepgraph::handle::{Const, Scalar, Tensor};
use stepgraph::ir::{Init, ScatterRule};
use stepgraph::kernel::library::replay::{gather_relabel, prioritised_draw, priority_update};

use super::hyper::Hyper;

/// Added to an error before it becomes a priority, so that a transition that was learned can be drawn again.
const LEAST_ERROR: f32 = 1e-3;

/// Philox streams of the training step; those of other steps are 100 and above.
pub(crate) mod stream {
    /// Places of the draws inside their shares.
    pub(crate) const DRAW: u32 = 0;
    /// Donors of relabelled transitions, and which are relabelled.
    pub(crate) const RELABEL: u32 = 1;
    /// The stochastic-depth mask.
    pub(crate) const DEPTH: u32 = 2;
}

/// Columns of [`Replay::facts`].
///
/// Relabelling relies on them: from the exposure `before`, which the observation holds, an action leads to
/// `after = before + pace · (target - before)` and earns `after · drift - rate · |after - before|`: what the position makes of the
/// move of the price, less what it costs to get there.
#[allow(dead_code, reason = "the kernels know the layout; Rust code needs little of it")]
pub(crate) mod fact {
    /// The reward.
    pub(crate) const REWARD: u32 = 0;
    /// 1 where the episode ended with this transition, else 0.
    pub(crate) const DONE: u32 = 1;
    /// The log return of the price over the transition, whatever the action was.
    pub(crate) const DRIFT: u32 = 2;
    /// The exposure that the action aims at.
    pub(crate) const TARGET: u32 = 3;
    /// The share of the way to it that the action goes.
    pub(crate) const PACE: u32 = 4;
    /// Costs and slippage per unit of exposure traded for certain, as the action's order type and urgency have it.
    pub(crate) const RATE: u32 = 5;
    /// How many there are.
    pub(crate) const COUNT: u32 = 6;
}

/// The buffer's memory; R is its capacity, `chunks · chunk`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replay {
    /// Observations [R, S].
    pub(crate) observation: Tensor<f32>,
    /// Observations after the action [R, S].
    pub(crate) next: Tensor<f32>,
    /// Actions taken, one per branch [R, K].
    pub(crate) action: Tensor<i32>,
    /// What else is known [R, 6]; see [`fact`].
    pub(crate) facts: Tensor<f32>,
    /// Class of the auxiliary head [R].
    pub(crate) class: Tensor<i32>,
    /// Priorities [chunks, chunk]: transition i has `[i / chunk, i mod chunk]`; 0 is never drawn.
    pub(crate) priority: Tensor<f32>,
    /// The place of the next insertion.
    pub(crate) cursor: Scalar<u32>,
    /// Transitions held: places `0 .. size`.
    pub(crate) size: Scalar<u32>,
    /// The largest priority so far, 1 at first: what a new transition gets.
    pub(crate) max_priority: Scalar<f32>,
    /// Host: a priority is the error (plus a little) to this power; 0 draws evenly.
    pub(crate) exponent: Scalar<f32>,
    /// Host: how far importance weights undo the uneven draw; 1 does in full.
    pub(crate) correction: Scalar<f32>,
    /// Host: the share of a batch that is relabelled in hindsight.
    pub(crate) relabel: Scalar<f32>,
    /// R.
    pub(crate) capacity: u32,
    /// Transitions of a chunk.
    pub(crate) chunk: u32,
}

/// Transitions to insert: n of them, one per row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transitions {
    /// Observations [n, S].
    pub(crate) observation: Tensor<f32>,
    /// Observations after the action [n, S].
    pub(crate) next: Tensor<f32>,
    /// Actions [n, K].
    pub(crate) action: Tensor<i32>,
    /// See [`fact`] [n, 6].
    pub(crate) facts: Tensor<f32>,
    /// Class of the auxiliary head [n].
    pub(crate) class: Tensor<i32>,
}

/// A batch as the training step takes it; B samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// Observations, then next observations [2 B, S].
    pub(crate) x: Tensor<f32>,
    /// Actions taken [B, K].
    pub(crate) action: Tensor<i32>,
    /// Rewards [B].
    pub(crate) reward: Tensor<f32>,
    /// 1 where the episode ended, else 0 [B].
    pub(crate) done: Tensor<f32>,
    /// Importance weights [B].
    pub(crate) weight: Tensor<f32>,
    /// Classes of the auxiliary head [B].
    pub(crate) class: Tensor<i32>,
}

/// Where random numbers come from: a key and a counter that differs at every step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice {
    /// The run's seed.
    pub(crate) seed: Scalar<u32>,
    /// Training steps so far.
    pub(crate) steps: Scalar<u32>,
}

/// Chunks, and transitions of a chunk, of a buffer for `capacity` transitions: about as many of one as of the other. The
/// capacity is rounded up to whole chunks.
pub(crate) fn extents(capacity: u32) -> [u32; 2] {
    let chunk = capacity.isqrt().next_power_of_two().max(32);
    [capacity.div_ceil(chunk), chunk]
}

impl Replay {
    /// Declares an empty buffer.
    pub(crate) fn declare(p: &mut Builder, hyper: &Hyper, capacity: u32) -> Self {
        let [chunks, chunk] = extents(capacity);
        let all = chunks * chunk;
        Self {
            observation: p.state("replay.observation", [all, hyper.observation], Init::Zeros),
            next: p.state("replay.next", [all, hyper.observation], Init::Zeros),
            action: p.state("replay.action", [all, hyper.branch_count()], Init::Zeros),
            facts: p.state("replay.facts", [all, fact::COUNT], Init::Zeros),
            class: p.state("replay.class", [all], Init::Zeros),
            priority: p.state("replay.priority", [chunks, chunk], Init::Zeros),
            cursor: p.device_scalar("replay.cursor", 0),
            size: p.device_scalar("replay.size", 0),
            max_priority: p.device_scalar("replay.max_priority", 1.0),
            exponent: p.host_scalar("replay.exponent", 0.6),
            correction: p.host_scalar("replay.correction", 0.4),
            relabel: p.host_scalar("replay.relabel", 0.25),
            capacity: all,
            chunk,
        }
    }

    /// Inserts `count` transitions, at most R, over the oldest ones, with the largest priority so far.
    pub(crate) fn insert(&self, f: &mut Body<'_>, rows: &Transitions, count: u32) {
        let place = (self.cursor + Val::index(0)) % self.capacity;
        let row = [Ix::from(&place), axis(1)];
        let unique = ScatterRule::Unique;
        f.map_node("insert.observation")
            .over(dims(rows.observation))
            .scatter(self.observation, row.clone(), unique, rows.observation)
            .scatter(self.next, row.clone(), unique, rows.next)
            .done();
        f.map_node("insert.action")
            .over([count, rows.action.shape().map_or(0, |shape| shape.dims()[1])])
            .scatter(self.action, row.clone(), unique, rows.action)
            .done();
        f.map_node("insert.facts").over(dims(rows.facts)).scatter(self.facts, row, unique, rows.facts).done();
        f.map_node("insert.rank")
            .over([count])
            .scatter(self.class, [Ix::from(&place)], unique, rows.class)
            .scatter(
                self.priority,
                [Ix::from(place.clone() / self.chunk), Ix::from(place.clone() % self.chunk)],
                unique,
                self.max_priority,
            )
            .done();
        f.map_node("insert.advance")
            .store_scalar(self.cursor, (self.cursor + count) % self.capacity)
            .store_scalar(self.size, (self.size + count).min(self.capacity))
            .done();
    }

    /// Draws a batch's transitions, one from each of B equal shares of all priorities: their places [B], and importance weights
    /// (share · size)^-β, divided by the batch's largest, into `weight`.
    pub(crate) fn sample(&self, f: &mut Body<'_>, dice: Dice, batch: u32, weight: Tensor<f32>) -> Tensor<u32> {
        let sums = f.sum("priority.sums", &[1], self.priority).done();
        let u = f.map_over("draw.u", [batch, 1], uniform(dice.seed, dice.steps, stream::DRAW));
        let (index, share) = (f.temp("draw.index", [batch]), f.temp("draw.share", [batch]));
        let priority = self.priority;
        f.kernel("draw", prioritised_draw::Args { priority, sums, u, size: self.size, index, share });
        let held = self.size.val().to_f32();
        let raw = f.map("weight.raw", (share * held).pow(-self.correction.val()));
        let largest = f.largest("weight.max", &[0], raw).done();
        f.map_to("weight", weight, raw / largest);
        index
    }

    /// Gathers a batch, and relabels the set share of it with the actions of donors, drawn evenly.
    pub(crate) fn gather(&self, f: &mut Body<'_>, dice: Dice, index: Tensor<u32>, batch: &Batch, exposure: u32) {
        let rows = [count(index)];
        let word = |word| philox(dice.seed, dice.steps, Val::index(0), stream::RELABEL, word);
        let (donor, relabel) = (f.temp::<u32>("donor", rows), f.temp::<u32>("relabel", rows));
        let unit = (word(1) >> 8u32).to_f32() * (1.0f32 / 16_777_216.0);
        f.map_node("donors").store(donor, word(0) % self.size).store(relabel, unit.below(self.relabel).to_u32()).done();
        let (s1, s2) = (batch.x.rows(0..rows[0]), batch.x.rows(rows[0]..2 * rows[0]));
        let args = gather_relabel::Args {
            observation: self.observation,
            next: self.next,
            action: self.action,
            facts: self.facts,
            label: self.class,
            index,
            donor,
            relabel,
            exposure: Const(exposure),
            s1,
            s2,
            a: batch.action,
            r: batch.reward,
            d: batch.done,
            y: batch.class,
        };
        f.kernel("gather", args);
    }

    /// Gives the drawn transitions new priorities, (error + 0.001)^α. One whose error is not finite is never drawn again: it
    /// would spoil every batch that it is in.
    pub(crate) fn rank(&self, f: &mut Body<'_>, index: Tensor<u32>, errors: Tensor<f32>) {
        let error = errors.at([axis(0)]);
        let ranked = error.is_finite().select((&error + LEAST_ERROR).pow(self.exponent), 0.0f32);
        let value = f.map_over("rank.value", [count(index), 1], ranked);
        f.kernel("rank", priority_update::Args { index, value, priority: self.priority });
        f.largest("rank.max", &[0, 1], value).finish(|most| most.max(self.max_priority)).to_scalar(self.max_priority);
    }

    /// Empties the buffer in place: nothing is drawn any more until something is inserted.
    pub(crate) fn clear(&self, f: &mut Body<'_>) {
        f.fill("replay.clear", self.priority, 0.0);
        f.map_node("replay.restart")
            .store_scalar(self.cursor, 0u32)
            .store_scalar(self.size, 0u32)
            .store_scalar(self.max_priority, 1.0f32)
            .done();
    }
}

/// The first extent of a tensor.
fn count<T: stepgraph::ir::Element>(tensor: Tensor<T>) -> u32 {
    tensor.shape().map_or(0, |shape| shape.dims()[0])
}

fn dims(tensor: Tensor<f32>) -> Vec<u32> {
    tensor.shape().map(|shape| shape.dims().to_vec()).unwrap_or_default()
}
