//! Reductions, combined in exactly the order of [`ReduceSchedule`].

use super::error::HostError;
use super::expr::{Code, Registers};
use super::memory::HostMemory;
use super::ops::max_f32;
use super::resolve::Resolver;
use super::store::{Sink, accesses, finish, sinks, store_chunk};
use super::walk::{CHUNK, Walk};
use crate::codegen::ReduceSchedule;
use crate::ir::{Combiner, Reduce, ValueType};

/// A reduction, ready to run.
#[derive(Clone, Debug)]
pub(super) struct ReduceRun {
    expr: Code,
    /// Results outermost, the values of each one innermost.
    walk: Walk,
    finish: Code,
    finish_walk: Walk,
    sinks: Vec<Sink>,
    combiner: Combiner,
    of: ValueType,
    order: Order,
}

/// How many values there are, and how they are cut.
#[derive(Clone, Copy, Debug)]
struct Order {
    count: usize,
    chunk: usize,
    lanes: usize,
    chunk_lanes: usize,
}

impl ReduceRun {
    pub(super) fn new(resolver: &Resolver<'_>, reduce: &Reduce, schedule: &ReduceSchedule) -> Result<Self, HostError> {
        let mut expr = Code::new(resolver, &reduce.expr, ValueType::F32)?;
        let of = expr.roots().first().map_or(ValueType::F32, |&root| expr.type_of(root));
        let is_reduced = |axis: &usize| reduce.axes.iter().any(|&reduced| usize::from(reduced) == *axis);
        let (reduced, kept): (Vec<_>, Vec<_>) = (0..reduce.space.rank()).partition(is_reduced);
        let walk = expr.onto(reduce.space.dims(), &[kept, reduced].concat(), Vec::new());

        let combined = if reduce.combiner == Combiner::Argmax { ValueType::U32 } else { of };
        let mut finish = Code::new(resolver, &reduce.finish, combined)?;
        let mut sinks = sinks(resolver, &finish, &reduce.stores)?;
        let kept = reduce.kept();
        let kept_order: Vec<usize> = (0..kept.rank()).collect();
        let finish_walk = finish.onto(kept.dims(), &kept_order, accesses(&mut sinks));
        let order = Order {
            count: reduce.count() as usize,
            chunk: schedule.chunk as usize,
            lanes: schedule.lanes as usize,
            chunk_lanes: schedule.chunk_lanes as usize,
        };
        Ok(Self { expr, walk, finish, finish_walk, sinks, combiner: reduce.combiner, of, order })
    }

    pub(super) fn run(
        &mut self,
        memory: &mut HostMemory,
        registers: &mut Registers,
        finish_registers: &mut Registers,
        node: &str,
    ) -> Result<(), HostError> {
        let mut regs = (registers, finish_registers);
        match (self.combiner, self.of) {
            (Combiner::Sum, ValueType::F32) => self.stream::<SumF32>(memory, &mut regs),
            (Combiner::Sum, _) => self.stream::<SumInt>(memory, &mut regs),
            (Combiner::Max, ValueType::F32) => self.stream::<MaxF32>(memory, &mut regs),
            (Combiner::Max, ValueType::I32) => self.stream::<MaxI32>(memory, &mut regs),
            (Combiner::Max, _) => self.stream::<MaxU32>(memory, &mut regs),
            (Combiner::Argmax, ValueType::F32) => self.stream::<ArgF32>(memory, &mut regs),
            (Combiner::Argmax, ValueType::I32) => self.stream::<ArgI32>(memory, &mut regs),
            (Combiner::Argmax, _) => self.stream::<ArgU32>(memory, &mut regs),
            (Combiner::LogSumExp, _) => self.stream::<LogSumExp>(memory, &mut regs),
        }
        finish(&mut self.sinks, memory, node)
    }

    /// Evaluates the values in order, feeds them to lanes, and finishes results a chunk at a time.
    fn stream<S: State>(
        &mut self,
        memory: &mut HostMemory,
        (registers, finish_registers): &mut (&mut Registers, &mut Registers),
    ) {
        let Some(&root) = self.expr.roots().first() else { return };
        let mut combining = Combining::<S>::new(self.order);
        let (mut results, mut finished) = (Vec::with_capacity(CHUNK), 0);
        self.expr.begin(&self.walk, memory, registers);
        self.finish.begin(&self.finish_walk, memory, finish_registers);
        for chunk in self.walk.chunks() {
            self.expr.chunk(&self.walk, memory, chunk, &[], registers);
            let mut values = registers.values(root, chunk.1);
            while !values.is_empty() {
                let (taken, result) = combining.feed(values);
                values = &values[taken..];
                results.extend(result);
                if results.len() == CHUNK || finished + results.len() == self.finish_walk.elements() {
                    self.finish_chunk(memory, finished, &results, finish_registers);
                    finished += results.len();
                    results.clear();
                }
            }
        }
    }

    fn finish_chunk(&mut self, memory: &mut HostMemory, start: usize, results: &[u32], registers: &mut Registers) {
        self.finish.chunk(&self.finish_walk, memory, (start, results.len()), results, registers);
        store_chunk(&mut self.sinks, &self.finish, &self.finish_walk, memory, results.len(), registers);
    }
}

/// The lanes of the chunk that is being combined, and the results of the chunks before it.
struct Combining<S> {
    order: Order,
    lanes: Vec<S>,
    chunks: Vec<S>,
    /// The number of the next value.
    next: usize,
}

impl<S: State> Combining<S> {
    fn new(order: Order) -> Self {
        Self { order, lanes: Vec::with_capacity(order.lanes), chunks: Vec::new(), next: 0 }
    }

    /// Takes values up to the end of the present chunk at most; returns how many, and the result where it is complete.
    fn feed(&mut self, values: &[u32]) -> (usize, Option<u32>) {
        let Order { count, chunk, lanes, chunk_lanes } = self.order;
        let begun = self.chunks.len() * chunk;
        let end = (begun + chunk).min(count);
        let taken = values.len().min(end - self.next);
        for &bits in &values[..taken] {
            let state = S::of(bits, self.next as u32);
            put_into_lane(&mut self.lanes, self.next - begun, lanes, state);
            self.next += 1;
        }
        if self.next < end {
            return (taken, None);
        }
        self.chunks.push(join_lanes(&mut self.lanes));
        if self.next < count {
            return (taken, None);
        }
        let result = match self.chunks.as_slice() {
            [only] => *only,
            _ => {
                let chunks = std::mem::take(&mut self.chunks);
                let fed = chunks.into_iter().enumerate();
                fed.for_each(|(number, state)| put_into_lane(&mut self.lanes, number, chunk_lanes, state));
                join_lanes(&mut self.lanes)
            }
        };
        self.chunks.clear();
        self.next = 0;
        (taken, Some(result.result()))
    }
}

/// Lane `number mod lanes` starts with the state, or combines it; `lanes` is a power of two.
fn put_into_lane<S: State>(states: &mut Vec<S>, number: usize, lanes: usize, state: S) {
    if number < lanes {
        states.push(state);
    } else {
        let lane = &mut states[number & (lanes - 1)];
        *lane = lane.combine(state);
    }
}

/// Combines lanes pairwise down to lane 0, and empties them; lanes that no value reached are absent.
fn join_lanes<S: State>(states: &mut Vec<S>) -> S {
    let mut half = states.len().next_power_of_two() / 2;
    while half > 0 {
        for lane in 0..half.min(states.len().saturating_sub(half)) {
            states[lane] = states[lane].combine(states[lane + half]);
        }
        states.truncate(half);
        half /= 2;
    }
    let result = states[0];
    states.clear();
    result
}

/// What a lane holds.
trait State: Copy {
    /// The state of one value.
    fn of(bits: u32, number: u32) -> Self;
    /// Both states as one; `self` is of lower-numbered values.
    fn combine(self, later: Self) -> Self;
    /// The bits of the result.
    fn result(self) -> u32;
}

macro_rules! plain_states {
    ($($name:ident($of:ty): $combine:expr;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name($of);

        impl State for $name {
            fn of(bits: u32, _number: u32) -> Self {
                Self(bytemuck::cast(bits))
            }

            fn combine(self, later: Self) -> Self {
                let combine: fn($of, $of) -> $of = $combine;
                Self(combine(self.0, later.0))
            }

            fn result(self) -> u32 {
                bytemuck::cast(self.0)
            }
        }
    )*};
}

plain_states! {
    SumF32(f32): |a, b| a + b;
    SumInt(u32): u32::wrapping_add;
    MaxF32(f32): max_f32;
    MaxI32(i32): |a, b| a.max(b);
    MaxU32(u32): |a, b| a.max(b);
}

macro_rules! argmax_states {
    ($($name:ident($of:ty), $is_nan:expr;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name($of, u32);

        impl State for $name {
            fn of(bits: u32, number: u32) -> Self {
                Self(bytemuck::cast(bits), number)
            }

            fn combine(self, later: Self) -> Self {
                let is_nan: fn($of) -> bool = $is_nan;
                let wins = later.0 > self.0
                    || (later.0 == self.0 && later.1 < self.1)
                    || (is_nan(self.0) && (!is_nan(later.0) || later.1 < self.1));
                if wins { later } else { self }
            }

            fn result(self) -> u32 {
                self.1
            }
        }
    )*};
}

argmax_states! {
    ArgF32(f32), f32::is_nan;
    ArgI32(i32), |_| false;
    ArgU32(u32), |_| false;
}

/// The maximum m, and Σ e^(x - m).
#[derive(Clone, Copy)]
struct LogSumExp {
    max: f32,
    sum: f32,
}

impl State for LogSumExp {
    fn of(bits: u32, _number: u32) -> Self {
        Self { max: f32::from_bits(bits), sum: 1.0 }
    }

    fn combine(self, later: Self) -> Self {
        if self.max == later.max {
            Self { max: self.max, sum: self.sum + later.sum }
        } else if self.max > later.max {
            Self { max: self.max, sum: self.sum + later.sum * (later.max - self.max).exp() }
        } else {
            Self { max: later.max, sum: later.sum + self.sum * (self.max - later.max).exp() }
        }
    }

    fn result(self) -> u32 {
        (self.max + self.sum.ln()).to_bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documented order, written down directly: the whole chunk's lanes as lists.
    fn by_definition<S: State>(values: &[u32], Order { chunk, lanes, chunk_lanes, .. }: Order) -> u32 {
        let states: Vec<S> = values.iter().enumerate().map(|(number, &bits)| S::of(bits, number as u32)).collect();
        let chunks: Vec<S> = states.chunks(chunk).map(|chunk| combine_chunk(chunk, lanes)).collect();
        combine_chunk(&chunks, if chunks.len() == 1 { 1 } else { chunk_lanes }).result()
    }

    fn combine_chunk<S: State>(values: &[S], lanes: usize) -> S {
        let mut states: Vec<Option<S>> = vec![None; lanes];
        for (number, &value) in values.iter().enumerate() {
            let lane = &mut states[number % lanes];
            *lane = Some(lane.map_or(value, |state| state.combine(value)));
        }
        let mut half = lanes / 2;
        while half > 0 {
            for lane in 0..half {
                if let (Some(a), Some(b)) = (states[lane], states[lane + half]) {
                    states[lane] = Some(a.combine(b));
                }
            }
            half /= 2;
        }
        states[0].expect("a chunk has a value")
    }

    fn fed<S: State>(values: &[u32], order: Order, piece: usize) -> Vec<u32> {
        let mut combining = Combining::<S>::new(order);
        let mut results = Vec::new();
        for mut piece in values.chunks(piece) {
            while !piece.is_empty() {
                let (taken, result) = combining.feed(piece);
                piece = &piece[taken..];
                results.extend(result);
            }
        }
        results
    }

    /// Protects: values are combined in the documented order, to the bit, wherever evaluation cuts them into pieces, and
    /// where counts are no multiple of lanes or chunks.
    #[test]
    fn values_are_combined_in_the_documented_order() {
        for count in [1usize, 2, 3, 5, 31, 33, 100, 257, 1000] {
            for (chunk, lanes, chunk_lanes) in [(count, 1, 1), (count, 8, 1), (count, 32, 1), (64, 16, 4), (7, 4, 2)] {
                let order = Order { count, chunk, lanes, chunk_lanes };
                let values: Vec<u32> =
                    (0..2 * count as u32).map(|i| (1.0 / (1.0 + (i * 37 % 101) as f32) - 0.1).to_bits()).collect();
                let halves = values.chunks(count);
                let sums: Vec<u32> = halves.clone().map(|half| by_definition::<SumF32>(half, order)).collect();
                let logs: Vec<u32> = halves.map(|half| by_definition::<LogSumExp>(half, order)).collect();
                for piece in [1, 10, CHUNK] {
                    assert_eq!(fed::<SumF32>(&values, order, piece), sums, "{order:?}");
                    assert_eq!(fed::<LogSumExp>(&values, order, piece), logs, "{order:?}");
                }
            }
        }
    }

    /// Protects: the first of equal maxima wins whatever the lanes, and NaN never does.
    #[test]
    fn argmax_takes_the_first_and_never_nan() {
        let values = [f32::NAN, 2.0, 7.0, f32::NAN, 7.0, 1.0].map(f32::to_bits);
        for lanes in [1, 2, 4] {
            let order = Order { count: values.len(), chunk: values.len(), lanes, chunk_lanes: 1 };
            assert_eq!(fed::<ArgF32>(&values, order, 4), [2]);
        }
    }

    /// Protects: one value alone, a maximum of infinity, and NaN come out of log-sum-exp as mathematics says.
    #[test]
    fn log_sum_exp_of_extremes() {
        let of = |values: &[f32]| {
            let bits: Vec<u32> = values.iter().map(|x| x.to_bits()).collect();
            let order = Order { count: bits.len(), chunk: bits.len(), lanes: 2, chunk_lanes: 1 };
            f32::from_bits(fed::<LogSumExp>(&bits, order, 64)[0])
        };
        assert_eq!(of(&[3.5]), 3.5);
        assert_eq!(of(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), f32::NEG_INFINITY);
        assert_eq!(of(&[1.0, f32::INFINITY]), f32::INFINITY);
        assert_eq!(of(&[1000.0, 1000.0]), 1000.0 + 2f32.ln());
        assert!(of(&[1.0, f32::NAN, 2.0]).is_nan());
    }
}
