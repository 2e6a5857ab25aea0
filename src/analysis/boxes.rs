//! Boxes of one buffer, found by overlap.

use std::collections::BTreeMap;

use crate::ir::View;

/// So many boxes are searched one by one.
const FEW: usize = 16;

/// Boxes with a label each, searchable by overlap.
#[derive(Debug, Default)]
pub(super) struct BoxIndex {
    axis: usize,
    few: Vec<(View, u32)>,
    many: Option<Box<Sorted>>,
}

impl BoxIndex {
    /// An empty index that sorts along `axis`: best the axis along which the boxes differ most.
    pub(super) fn along(axis: usize) -> Self {
        Self { axis, ..Self::default() }
    }

    /// Adds a box.
    pub(super) fn insert(&mut self, view: View, label: u32) {
        if let Some(many) = &mut self.many {
            return many.insert(view, label);
        }
        self.few.push((view, label));
        if self.few.len() > FEW {
            let mut many = Sorted { axis: self.axis, ..Sorted::default() };
            self.few.drain(..).for_each(|(view, label)| many.insert(view, label));
            self.many = Some(Box::new(many));
        }
    }

    /// Calls `visit` with the label of each box that shares an element with `view`.
    pub(super) fn overlapping(&self, view: &View, mut visit: impl FnMut(u32)) {
        self.few.iter().filter(|(found, _)| found.overlaps(view)).for_each(|(_, label)| visit(*label));
        if let Some(many) = &self.many {
            many.search(view, |_, label| visit(label));
        }
    }

    /// Takes `view` away from every box; what is left of a box keeps its label.
    pub(super) fn subtract(&mut self, view: &View) {
        let hit: Vec<(View, u32)> = match &mut self.many {
            Some(many) => many.remove_overlapping(view),
            None => self.few.extract_if(.., |(found, _)| found.overlaps(view)).collect(),
        };
        for (old, label) in hit {
            difference(&old, view).into_iter().for_each(|piece| self.insert(piece, label));
        }
    }
}

/// Boxes sorted by where they start along one axis, separately per power of two of their length, so that one long box does
/// not make every search long.
#[derive(Debug, Default)]
struct Sorted {
    axis: usize,
    /// Which powers of two occur.
    classes: u32,
    next: u32,
    entries: BTreeMap<Key, (View, u32)>,
}

/// The power of two, the start, and a number that tells equal ones apart.
type Key = (u32, u32, u32);

impl Sorted {
    fn insert(&mut self, view: View, label: u32) {
        let (start, len) = self.extent(&view);
        let class = len.max(1).ilog2();
        self.classes |= 1 << class;
        self.entries.insert((class, start, self.next), (view, label));
        self.next += 1;
    }

    fn remove_overlapping(&mut self, view: &View) -> Vec<(View, u32)> {
        let mut hit = Vec::new();
        self.search(view, |key, _| hit.push(key));
        hit.into_iter().filter_map(|key| self.entries.remove(&key)).collect()
    }

    fn search(&self, view: &View, mut visit: impl FnMut(Key, u32)) {
        let (start, len) = self.extent(view);
        for class in (0..u32::BITS).filter(|class| self.classes & (1 << class) != 0) {
            let longest = u32::MAX >> (u32::BITS - 1 - class);
            let low = (class, start.saturating_sub(longest), 0);
            let high = (class, start.saturating_add(len), 0);
            for (&key, (found, label)) in self.entries.range(low..high) {
                if found.overlaps(view) {
                    visit(key, *label);
                }
            }
        }
    }

    fn extent(&self, view: &View) -> (u32, u32) {
        view.ranges().get(self.axis).map_or((0, 1), |range| (range.start, range.len))
    }
}

/// `from` without `taken`, as disjoint boxes: at most two per axis. Both are boxes of one buffer and overlap.
fn difference(from: &View, taken: &View) -> Vec<View> {
    let mut rest = *from;
    let mut pieces = Vec::new();
    for (axis, cut) in taken.ranges().iter().enumerate() {
        let whole = rest.ranges()[axis];
        if whole.start < cut.start {
            let mut before = rest;
            before.ranges_mut()[axis].len = cut.start - whole.start;
            pieces.push(before);
        }
        if cut.end() < whole.end() {
            let mut behind = rest;
            behind.ranges_mut()[axis].start = cut.start + cut.len;
            behind.ranges_mut()[axis].len = (whole.end() - cut.end()) as u32;
            pieces.push(behind);
        }
        let start = whole.start.max(cut.start);
        rest.ranges_mut()[axis].start = start;
        rest.ranges_mut()[axis].len = (whole.end().min(cut.end()) - u64::from(start)) as u32;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entity::{BufferId, EntityRef};
    use crate::ir::AxisRange;
    use proptest::prelude::*;

    fn view(ranges: &[(u32, u32)]) -> View {
        let ranges: Vec<_> = ranges.iter().map(|&(start, len)| AxisRange { start, len, dropped: false }).collect();
        View::from_ranges(BufferId::new(0), &ranges).expect("few axes")
    }

    fn cell(x: u32, y: u32) -> View {
        view(&[(x, 1), (y, 1)])
    }

    fn a_box() -> impl Strategy<Value = View> {
        (0u32..8, 1u32..9, 0u32..8, 1u32..9).prop_map(|(x, w, y, h)| view(&[(x, w.min(8 - x)), (y, h.min(8 - y))]))
    }

    proptest! {
        /// Protects: after boxes were added and taken away, each cell is found under exactly the labels that a plain
        /// table of cells gives it, whichever axis the index sorts by.
        #[test]
        fn index_agrees_with_a_table_of_cells(steps in prop::collection::vec((a_box(), prop::bool::weighted(0.3)), 1..60), axis in 0usize..3) {
            let mut index = BoxIndex::along(axis);
            let mut table = vec![Vec::new(); 64];
            for (label, (view, take)) in (0u32..).zip(&steps) {
                for at in 0..64u32 {
                    if !view.overlaps(&cell(at / 8, at % 8)) {
                        continue;
                    }
                    if *take { table[at as usize].clear() } else { table[at as usize].push(label) }
                }
                if *take { index.subtract(view) } else { index.insert(*view, label) }
            }
            for at in 0..64u32 {
                let mut found = Vec::new();
                index.overlapping(&cell(at / 8, at % 8), |label| found.push(label));
                found.sort_unstable();
                prop_assert_eq!(&found, &table[at as usize]);
            }
        }
    }
}
