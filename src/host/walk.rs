//! How the elements of an index space are visited, and where each one lies in memory.
//!
//! A walk numbers the elements along its axes, the last one running fastest. Axes of extent 1 are left out, and neighbouring
//! axes that every access steps through alike are merged, so that most walks are one long run.

use super::memory::HostMemory;
use crate::ir::{DType, MAX_RANK};
use crate::plan::Region;

/// How many elements are evaluated at a time: few enough for the first cache, many enough to forget the interpreter.
pub(super) const CHUNK: usize = 256;

/// The order in which an index space is visited.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    extents: Vec<usize>,
    elements: usize,
}

/// Elements that lie along the last axis of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    coordinates: [usize; MAX_RANK],
    len: usize,
}

/// Where a view's elements lie for a walk: `first + Σ coordinate · step`, plus what is computed per element.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) region: Region,
    pub(super) dtype: DType,
    /// In elements from the region's start.
    pub(super) first: usize,
    /// Per axis of the index space; once the walk is made, per axis of the walk.
    pub(super) steps: [usize; MAX_RANK],
    pub(super) computed: Vec<Computed>,
}

/// A computed place along one axis of a view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Computed {
    /// The register that holds it.
    pub(super) value: usize,
    /// Whether it is an `i32`.
    pub(super) signed: bool,
    /// The view's extent along the axis.
    pub(super) extent: u32,
    /// Elements between neighbours.
    pub(super) stride: usize,
}

impl Walk {
    /// The walk over `extents` in the given order of axes; turns the steps of `accesses`, and the axis numbers in `indices`,
    /// into the walk's. An index along an axis of extent 1 becomes `None`: it is always 0.
    pub(super) fn new(
        extents: &[u32],
        order: &[usize],
        accesses: &mut [&mut Access],
        indices: &mut [&mut Option<usize>],
    ) -> Self {
        let axes: Vec<usize> = order.iter().copied().filter(|&axis| extents[axis] > 1).collect();
        let extent = |axis: usize| extents[axis] as usize;
        let mut runs: Vec<Vec<usize>> = Vec::with_capacity(axes.len());
        for &axis in &axes {
            let joins = runs.last().and_then(|run| run.last()).is_some_and(|&outer| {
                !indices.iter().any(|index| **index == Some(axis) || **index == Some(outer))
                    && accesses.iter().all(|access| access.steps[outer] == access.steps[axis] * extent(axis))
            });
            match runs.last_mut() {
                Some(run) if joins => run.push(axis),
                _ => runs.push(vec![axis]),
            }
        }
        for access in accesses {
            let old = access.steps;
            access.steps = [0; MAX_RANK];
            for (step, run) in access.steps.iter_mut().zip(&runs) {
                *step = run.last().map_or(0, |&axis| old[axis]);
            }
        }
        for index in indices {
            **index = index.and_then(|axis| runs.iter().position(|run| run.contains(&axis)));
        }
        let mut extents: Vec<usize> = runs.iter().map(|run| run.iter().map(|&axis| extent(axis)).product()).collect();
        if extents.is_empty() {
            extents.push(1);
        }
        Self { elements: extents.iter().product(), extents }
    }

    pub(super) fn elements(&self) -> usize {
        self.elements
    }

    /// The chunks of the walk, as first element and length.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let elements = self.elements;
        (0..elements).step_by(CHUNK).map(move |start| (start, CHUNK.min(elements - start)))
    }

    /// Cuts `len` elements from `start` on into runs.
    pub(super) fn runs(&self, start: usize, len: usize, runs: &mut Vec<Run>) {
        runs.clear();
        let mut coordinates = [0; MAX_RANK];
        let mut rest = start;
        for (slot, &extent) in coordinates.iter_mut().zip(&self.extents).rev() {
            (*slot, rest) = (rest % extent, rest / extent);
        }
        let last = self.extents.len() - 1;
        let mut left = len;
        while left > 0 {
            let len = left.min(self.extents[last] - coordinates[last]);
            runs.push(Run { coordinates, len });
            left -= len;
            coordinates[last] = 0;
            self.carry(&mut coordinates[..last]);
        }
    }

    fn carry(&self, outer: &mut [usize]) {
        for (coordinate, &extent) in outer.iter_mut().zip(&self.extents).rev() {
            *coordinate += 1;
            if *coordinate < extent {
                return;
            }
            *coordinate = 0;
        }
    }

    /// Each element's coordinate along an axis of the walk.
    pub(super) fn coordinates(&self, axis: usize, runs: &[Run], out: &mut [u32]) {
        let last = axis + 1 == self.extents.len();
        for_runs(runs, out, |run, out| {
            let first = run.coordinates[axis] as u32;
            if last {
                out.iter_mut().zip(first..).for_each(|(slot, coordinate)| *slot = coordinate);
            } else {
                out.fill(first);
            }
        });
    }

    fn inner_step(&self, access: &Access) -> usize {
        access.steps[self.extents.len() - 1]
    }

    /// The values of an access that has no computed places. A `bf16` becomes the `f32` of the same value.
    pub(super) fn load(&self, memory: &HostMemory, access: &Access, runs: &[Run], out: &mut [u32]) {
        let step = self.inner_step(access);
        match access.dtype {
            DType::Bf16 => {
                let from = memory.halves(access.region);
                for_runs(runs, out, |run, out| load_run(from, access.at(run), step, out, widen));
            }
            _ => {
                let from = memory.words(access.region);
                for_runs(runs, out, |run, out| match step {
                    1 => out.copy_from_slice(&from[access.at(run)..][..out.len()]),
                    _ => load_run(from, access.at(run), step, out, |word| word),
                });
            }
        }
    }

    /// Stores values to an access that has no computed places. A `bf16` is rounded to nearest even.
    pub(super) fn store(&self, memory: &mut HostMemory, access: &Access, runs: &[Run], values: &[u32]) {
        let step = self.inner_step(access);
        let mut values = values;
        for run in runs {
            let (now, later) = values.split_at(run.len);
            values = later;
            let at = access.at(run);
            match access.dtype {
                DType::Bf16 => store_run(memory.halves_mut(access.region), at, step, now, narrow),
                _ if step == 1 => memory.words_mut(access.region)[at..][..now.len()].copy_from_slice(now),
                _ => store_run(memory.words_mut(access.region), at, step, now, |word| word),
            }
        }
    }

    /// The places of an access in elements from the region's start, without what is computed.
    pub(super) fn places(&self, access: &Access, runs: &[Run], out: &mut [usize]) {
        let step = self.inner_step(access);
        let mut out = out;
        for run in runs {
            let (now, later) = std::mem::take(&mut out).split_at_mut(run.len);
            out = later;
            let at = access.at(run);
            now.iter_mut().enumerate().for_each(|(number, slot)| *slot = at + number * step);
        }
    }
}

impl Access {
    fn at(&self, run: &Run) -> usize {
        self.first + run.coordinates.iter().zip(self.steps).map(|(coordinate, step)| coordinate * step).sum::<usize>()
    }

    /// Reads one element.
    pub(super) fn get(&self, memory: &HostMemory, place: usize) -> u32 {
        match self.dtype {
            DType::Bf16 => widen(memory.halves(self.region)[place]),
            _ => memory.words(self.region)[place],
        }
    }

    /// Writes one element; `bits` are the element's own.
    pub(super) fn put(&self, memory: &mut HostMemory, place: usize, bits: u32) {
        match self.dtype {
            DType::Bf16 => memory.halves_mut(self.region)[place] = bits as u16,
            _ => memory.words_mut(self.region)[place] = bits,
        }
    }

    /// The element's own bits for the bits of a value.
    pub(super) fn element_bits(&self, value: u32) -> u32 {
        match self.dtype {
            DType::Bf16 => u32::from(narrow(value)),
            _ => value,
        }
    }
}

impl Computed {
    /// The place along the axis, clamped to the view.
    pub(super) fn clamped(&self, bits: u32) -> usize {
        let index = if self.signed { bits.cast_signed().max(0).cast_unsigned() } else { bits };
        index.min(self.extent - 1) as usize * self.stride
    }

    /// The place along the axis, or `None` outside the view.
    pub(super) fn checked(&self, bits: u32) -> Option<usize> {
        let outside = bits >= self.extent || (self.signed && bits.cast_signed() < 0);
        (!outside).then(|| bits as usize * self.stride)
    }
}

/// The bits of the `f32` that equals the `bf16` with these bits.
pub(super) fn widen(half: u16) -> u32 {
    u32::from(half) << 16
}

/// The bits of the nearest `bf16`, ties to even, to the `f32` with these bits.
pub(super) fn narrow(word: u32) -> u16 {
    half::bf16::from_f32(f32::from_bits(word)).to_bits()
}

fn for_runs(runs: &[Run], out: &mut [u32], mut each: impl FnMut(&Run, &mut [u32])) {
    let mut out = out;
    for run in runs {
        let (now, later) = std::mem::take(&mut out).split_at_mut(run.len);
        out = later;
        each(run, now);
    }
}

fn load_run<T: Copy>(from: &[T], at: usize, step: usize, out: &mut [u32], widen: impl Fn(T) -> u32) {
    match step {
        0 => out.fill(widen(from[at])),
        _ => out.iter_mut().zip(from[at..].iter().step_by(step)).for_each(|(slot, &word)| *slot = widen(word)),
    }
}

fn store_run<T: Copy>(to: &mut [T], at: usize, step: usize, values: &[u32], narrow: impl Fn(u32) -> T) {
    match step {
        0 => values.iter().for_each(|&value| to[at] = narrow(value)),
        _ => to[at..].iter_mut().step_by(step).zip(values).for_each(|(slot, &value)| *slot = narrow(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(steps: [usize; MAX_RANK]) -> Access {
        Access { region: Region::Scratch, dtype: DType::F32, first: 5, steps, computed: Vec::new() }
    }

    fn places(extents: &[u32], order: &[usize], mut access: Access) -> (Vec<usize>, usize) {
        let walk = Walk::new(extents, order, &mut [&mut access], &mut []);
        let (mut runs, mut found) = (Vec::new(), Vec::new());
        for start in (0..walk.elements()).step_by(5) {
            let len = 5.min(walk.elements() - start);
            walk.runs(start, len, &mut runs);
            let mut chunk = vec![0; len];
            walk.places(&access, &runs, &mut chunk);
            found.extend(chunk);
        }
        (found, walk.extents.len())
    }

    /// Protects: merged axes, dropped axes and chunk borders leave every element at the place that its coordinates give.
    #[test]
    fn places_equal_the_sum_over_coordinates() {
        let extents = [3, 1, 4, 7];
        for (steps, order, axes) in [
            ([28, 0, 7, 1], [0, 1, 2, 3], 1),
            ([60, 9, 12, 1], [0, 1, 2, 3], 3),
            ([48, 0, 12, 1], [0, 1, 2, 3], 2),
            ([28, 0, 7, 1], [3, 0, 1, 2], 2),
            ([0, 0, 0, 1], [0, 1, 2, 3], 2),
        ] {
            let mut expected = Vec::new();
            let e = |axis: usize| 0..extents[order[axis]] as usize;
            let s = |axis: usize| steps[order[axis]];
            for (a, b) in e(0).flat_map(|a| e(1).map(move |b| (a, b))) {
                for (c, d) in e(2).flat_map(|c| e(3).map(move |d| (c, d))) {
                    expected.push(5 + a * s(0) + b * s(1) + c * s(2) + d * s(3));
                }
            }
            assert_eq!(places(&extents, &order, access(steps)), (expected, axes), "steps {steps:?} order {order:?}");
        }
    }

    /// Protects: bf16 stores round to nearest, ties to even, and NaN stays NaN.
    #[test]
    fn bf16_rounds_to_nearest_even() {
        assert_eq!(narrow(0x3F80_8000), 0x3F80);
        assert_eq!(narrow(0x3F81_8000), 0x3F82);
        assert_eq!(narrow(0x3F80_8001), 0x3F81);
        assert!(f32::from_bits(widen(narrow(0x7F80_0001))).is_nan());
    }
}
