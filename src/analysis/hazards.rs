//! Hazards: which accesses of the same memory must keep their order.

use std::borrow::Cow;

use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use super::boxes::BoxIndex;
use crate::entity::{BufferId, ScalarId};
use crate::ir::{Access, AccessMode, Resource};

/// The kinds of conflict between two accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hazard {
    /// Read after write.
    Raw,
    /// Write after read.
    War,
    /// Write after write.
    Waw,
}

impl Hazard {
    /// The kind's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "RAW",
            Self::War => "WAR",
            Self::Waw => "WAW",
        }
    }
}

/// Why one node follows another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// Both touch the same memory, and one of them writes it.
    Hazard {
        /// Which kind. Of several on one resource, RAW hides the others and WAW hides WAR.
        hazard: Hazard,
        /// The memory, as the later node names it.
        resource: Resource,
    },
    /// The user asked for it.
    After,
    /// Both are conditional nodes inside of a loop, where they run one at a time.
    OneAtATime,
}

/// One node of a body must follow another; both are positions in the list that [`dependencies`] was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Dependency {
    /// Runs first.
    pub from: u32,
    /// Runs after.
    pub to: u32,
    /// Why.
    pub reason: Reason,
}

/// The dependencies of a body, sorted by `to`, then `from`: hazards between nodes in program order, then those of `others`.
///
/// Together with the order that they imply they contain every hazard: an access is compared with the last writers of each
/// part of its box and the readers since then. What lies behind a later writer follows from that writer.
///
/// `accesses` holds what each node touches, in program order; `others` holds what must be ordered for other reasons.
pub fn dependencies(accesses: &[Vec<Access>], others: &[Dependency]) -> Vec<Dependency> {
    let mut memory = Memory::new(accesses);
    let mut found = Vec::new();
    for (to, touched) in (0u32..).zip(accesses) {
        let touched = merged(touched);
        memory.conflicts(to, &touched, &mut found);
        memory.record(to, &touched);
    }
    if !others.is_empty() {
        found.extend_from_slice(others);
        found.sort_by_key(|dependency| (dependency.to, dependency.from));
    }
    found
}

/// Who touched what last.
struct Memory {
    buffers: FxHashMap<BufferId, Touched>,
    scalars: FxHashMap<ScalarId, TouchedCell>,
}

/// The last writer of each part of a buffer, and who read it since. Write boxes are disjoint.
#[derive(Default)]
struct Touched {
    writes: BoxIndex,
    reads: BoxIndex,
}

#[derive(Default)]
struct TouchedCell {
    writer: Option<u32>,
    readers: Vec<u32>,
}

impl Memory {
    /// Knows only memory that something writes: the rest has no hazards.
    fn new(accesses: &[Vec<Access>]) -> Self {
        let mut memory = Self { buffers: FxHashMap::default(), scalars: FxHashMap::default() };
        for access in accesses.iter().flatten().filter(|access| access.mode.writes()) {
            match access.resource {
                Resource::View(view) => drop(memory.buffers.entry(view.buffer).or_default()),
                Resource::Scalar(scalar) => drop(memory.scalars.entry(scalar).or_default()),
            }
        }
        for (buffer, axis) in sorting_axes(accesses) {
            if let Some(touched) = memory.buffers.get_mut(&buffer) {
                *touched = Touched { writes: BoxIndex::along(axis), reads: BoxIndex::along(axis) };
            }
        }
        memory
    }

    fn conflicts(&self, to: u32, touched: &[Access], found: &mut Vec<Dependency>) {
        let mut pairs = Vec::new();
        for (at, access) in touched.iter().enumerate() {
            let on_writer = if access.mode.reads() { Hazard::Raw } else { Hazard::Waw };
            self.writers(access, |from| pairs.push((from, at, on_writer)));
            if access.mode.writes() {
                self.readers(access, |from| pairs.push((from, at, Hazard::War)));
            }
        }
        let strength = |hazard| [Hazard::Raw, Hazard::Waw, Hazard::War].iter().position(|&own| own == hazard);
        pairs.sort_by_key(|&(from, at, hazard)| (from, at, strength(hazard)));
        pairs.dedup_by_key(|&mut (from, at, _)| (from, at));
        found.extend(pairs.into_iter().map(|(from, at, hazard)| {
            let resource = touched[at].resource;
            Dependency { from, to, reason: Reason::Hazard { hazard, resource } }
        }));
    }

    /// The last writers of an access's memory.
    fn writers(&self, access: &Access, visit: impl FnMut(u32)) {
        match &access.resource {
            Resource::View(view) => {
                let Some(touched) = self.buffers.get(&view.buffer) else { return };
                touched.writes.overlapping(view, visit);
            }
            Resource::Scalar(scalar) => {
                self.scalars.get(scalar).and_then(|cell| cell.writer).into_iter().for_each(visit);
            }
        }
    }

    /// Who read an access's memory since its last writers.
    fn readers(&self, access: &Access, visit: impl FnMut(u32)) {
        match &access.resource {
            Resource::View(view) => {
                let Some(touched) = self.buffers.get(&view.buffer) else { return };
                touched.reads.overlapping(view, visit);
            }
            Resource::Scalar(scalar) => {
                let Some(cell) = self.scalars.get(scalar) else { return };
                cell.readers.iter().copied().for_each(visit);
            }
        }
    }

    /// Notes reads first, so that a node's own writes hide its own reads.
    fn record(&mut self, node: u32, touched: &[Access]) {
        for access in touched.iter().filter(|access| !access.mode.writes()) {
            match &access.resource {
                Resource::View(view) => {
                    if let Some(touched) = self.buffers.get_mut(&view.buffer) {
                        touched.reads.insert(*view, node);
                    }
                }
                Resource::Scalar(scalar) => {
                    if let Some(cell) = self.scalars.get_mut(scalar) {
                        cell.readers.push(node);
                    }
                }
            }
        }
        for access in touched.iter().filter(|access| access.mode.writes()) {
            match &access.resource {
                Resource::View(view) => {
                    let touched = self.buffers.entry(view.buffer).or_default();
                    touched.reads.subtract(view);
                    touched.writes.subtract(view);
                    touched.writes.insert(*view, node);
                }
                Resource::Scalar(scalar) => {
                    self.scalars.insert(*scalar, TouchedCell { writer: Some(node), readers: Vec::new() });
                }
            }
        }
    }
}

/// So few accesses are compared one by one.
const FEW: usize = 8;

/// One access per resource: what is read and written separately counts as updated.
fn merged(touched: &[Access]) -> Cow<'_, [Access]> {
    let few = touched.len() <= FEW;
    if few && touched.iter().enumerate().all(|(at, a)| touched[..at].iter().all(|b| a.resource != b.resource)) {
        return Cow::Borrowed(touched);
    }
    let mut modes: IndexMap<Resource, AccessMode, FxBuildHasher> = IndexMap::default();
    for access in touched {
        let mode = modes.entry(access.resource).or_insert(access.mode);
        if *mode != access.mode {
            *mode = AccessMode::Update;
        }
    }
    modes.into_iter().map(|(resource, mode)| Access { resource, mode }).collect::<Vec<_>>().into()
}

/// For buffers that are touched in boxes with different starts: the axis with the most of them.
fn sorting_axes(accesses: &[Vec<Access>]) -> FxHashMap<BufferId, usize> {
    let mut seen = FxHashSet::default();
    let mut starts: FxHashMap<(BufferId, usize), u32> = FxHashMap::default();
    for access in accesses.iter().flatten() {
        let Resource::View(view) = &access.resource else { continue };
        let buffer = view.buffer;
        for (axis, range) in view.ranges().iter().enumerate().filter(|(_, range)| range.start > 0) {
            if seen.insert((buffer, axis, range.start)) {
                *starts.entry((buffer, axis)).or_default() += 1;
            }
        }
    }
    let mut best: FxHashMap<BufferId, (u32, usize)> = FxHashMap::default();
    for ((buffer, axis), count) in starts {
        let known = best.entry(buffer).or_insert((count, axis));
        *known = (*known).max((count, axis));
    }
    best.into_iter().map(|(buffer, (_, axis))| (buffer, axis)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entity::EntityRef;
    use crate::ir::{AxisRange, View};
    use proptest::prelude::*;

    fn access((kind, x, w, y, h): (u8, u32, u32, u32, u32)) -> Access {
        let mode = [AccessMode::Read, AccessMode::Write, AccessMode::Update][usize::from(kind % 3)];
        if kind >= 9 {
            return Access { resource: Resource::Scalar(ScalarId::new(usize::from(kind / 9))), mode };
        }
        let ranges =
            [(x, w.min(6 - x)), (y, h.min(6 - y))].map(|(start, len)| AxisRange { start, len, dropped: false });
        let view = View::from_ranges(BufferId::new(usize::from(kind / 3)), &ranges).expect("two axes");
        Access { resource: Resource::View(view), mode }
    }

    fn bodies() -> impl Strategy<Value = Vec<Vec<Access>>> {
        let touched = (0u8..15, 0u32..6, 1u32..7, 0u32..6, 1u32..7).prop_map(access);
        prop::collection::vec(prop::collection::vec(touched, 1..4), 2..24)
    }

    fn conflict(earlier: &[Access], later: &[Access]) -> bool {
        let clash = |a: &Access, b: &Access| (a.mode.writes() || b.mode.writes()) && a.resource.overlaps(&b.resource);
        earlier.iter().any(|a| later.iter().any(|b| clash(a, b)))
    }

    fn reachable(count: usize, edges: &[Dependency]) -> Vec<Vec<bool>> {
        let mut reach = vec![vec![false; count]; count];
        edges.iter().for_each(|edge| reach[edge.from as usize][edge.to as usize] = true);
        for middle in 0..count {
            for from in 0..count {
                for to in 0..count {
                    reach[from][to] |= reach[from][middle] && reach[middle][to];
                }
            }
        }
        reach
    }

    proptest! {
        /// Protects: the dependencies order exactly the pairs that conflict, or that a chain of conflicts orders: nothing is
        /// missing, and nothing is ordered for no reason.
        #[test]
        fn order_equals_that_of_all_conflicting_pairs(accesses in bodies()) {
            let count = accesses.len();
            let mut brute = Vec::new();
            for to in 0..count {
                for from in (0..to).filter(|&from| conflict(&accesses[from], &accesses[to])) {
                    brute.push(Dependency { from: from as u32, to: to as u32, reason: Reason::After });
                }
            }
            let found = dependencies(&accesses, &[]);
            prop_assert!(found.iter().all(|edge| conflict(&accesses[edge.from as usize], &accesses[edge.to as usize])));
            prop_assert_eq!(reachable(count, &found), reachable(count, &brute));
        }
    }
}
