//! The prioritised replay buffer: its memory, and the nodes that insert transitions, draw, gather and re-rank them.
//!
//! Everything stays on the device. Priorities lie as [chunks, chunk] so that drawing is a two-level search: the chunks' sums are
//! summed afresh at every step (4 MB for a million transitions), so that nothing drifts and an insertion has nothing to maintain.

use stepgraph::Builder;
use stepgraph::builder::{Body, Ix, Val, axis};
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::{Init, ScatterRule};

use super::hyper::Hyper;

/// Columns of [`Replay::facts`].
///
/// A reward is `after · drift - rate · |after - before|`: what the position earned on the move of the price, less what it cost to
/// get there. Relabelling relies on it.
pub(crate) mod fact {
    /// The reward.
    pub(crate) const REWARD: u32 = 0;
    /// 1 where the episode ended with this transition, else 0.
    pub(crate) const DONE: u32 = 1;
    /// The log return of the price over the transition, whatever the action was.
    pub(crate) const DRIFT: u32 = 2;
    /// The exposure before the action.
    pub(crate) const BEFORE: u32 = 3;
    /// The exposure that the action led to.
    pub(crate) const AFTER: u32 = 4;
    /// Costs and slippage per unit of exposure traded, as the action's order type and urgency had it.
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

fn dims(tensor: Tensor<f32>) -> Vec<u32> {
    tensor.shape().map(|shape| shape.dims().to_vec()).unwrap_or_default()
}
