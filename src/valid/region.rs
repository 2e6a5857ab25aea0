//! Sets of elements of one buffer, as nested lists of intervals: exact for boxes, and canonical, so that neighbours merge.

use crate::ir::AxisRange;

/// Past so many intervals a region takes in no more. It then knows less than it could, never more: with full rows or columns
/// that meet again a region is one interval.
const MAX_BANDS: usize = 4096;

/// A set of elements. The empty index tuple (a buffer without axes) counts as one axis of extent 1.
#[derive(Clone, Debug, PartialEq, Default)]
pub(super) struct Region {
    /// Ascending and disjoint; neighbours that touch differ in what is inside.
    bands: Vec<Band>,
    /// How many intervals there are, inner ones included.
    size: usize,
}

/// An interval of one axis, and which elements along the further axes belong to each index of it.
#[derive(Clone, Debug, PartialEq)]
struct Band {
    start: u64,
    end: u64,
    inner: Region,
}

impl Region {
    /// Adds a box.
    pub(super) fn add(&mut self, ranges: &[AxisRange]) {
        if self.size < MAX_BANDS {
            self.insert(ranges);
        }
    }

    /// Whether the region has every element of a box.
    pub(super) fn covers(&self, ranges: &[AxisRange]) -> bool {
        let (range, further) = split(ranges);
        let mut reached = u64::from(range.start);
        for band in self.meeting(&range) {
            if band.start > reached || !further.is_empty() && !band.inner.covers(further) {
                return false;
            }
            reached = band.end;
        }
        reached >= range.end()
    }

    /// One box.
    fn of(ranges: &[AxisRange]) -> Self {
        let (range, further) = split(ranges);
        if range.len == 0 {
            return Self::default();
        }
        let inner = if further.is_empty() { Self::default() } else { Self::of(further) };
        Self { size: 1 + inner.size, bands: vec![Band { start: u64::from(range.start), end: range.end(), inner }] }
    }

    fn meeting(&self, range: &AxisRange) -> &[Band] {
        let from = self.bands.partition_point(|band| band.end <= u64::from(range.start));
        let to = self.bands.partition_point(|band| band.start < range.end());
        &self.bands[from..to.max(from)]
    }

    fn insert(&mut self, ranges: &[AxisRange]) {
        if self.bands.is_empty() {
            *self = Self::of(ranges);
            return;
        }
        let (range, further) = split(ranges);
        let (start, end) = (u64::from(range.start), range.end());
        let boxed = |start, end| {
            let inner = if further.is_empty() { Self::default() } else { Self::of(further) };
            Band { start, end, inner }
        };
        let from = self.bands.partition_point(|band| band.end <= start);
        let to = self.bands.partition_point(|band| band.start < end).max(from);
        let mut fresh: Vec<Band> = Vec::new();
        let mut reached = start;
        for band in &self.bands[from..to] {
            if band.start < start {
                fresh.push(Band { end: start, ..band.clone() });
            }
            if reached < band.start {
                fresh.push(boxed(reached, band.start));
            }
            let mut both = Band { start: band.start.max(start), end: band.end.min(end), inner: band.inner.clone() };
            if !further.is_empty() {
                both.inner.insert(further);
            }
            reached = both.end;
            fresh.push(both);
            if band.end > end {
                fresh.push(Band { start: end, ..band.clone() });
            }
        }
        if reached < end {
            fresh.push(boxed(reached, end));
        }
        // One neighbour on each side takes part, so that bands that now touch and agree become one.
        let (left, right) = (from.saturating_sub(1), (to + 1).min(self.bands.len()));
        let mut merged: Vec<Band> = Vec::new();
        let before = self.bands[left..from].to_vec();
        let after = self.bands[to..right].to_vec();
        for band in before.into_iter().chain(fresh).chain(after) {
            match merged.last_mut() {
                Some(last) if last.end == band.start && last.inner == band.inner => last.end = band.end,
                _ => merged.push(band),
            }
        }
        let size = |bands: &[Band]| bands.iter().map(|band| 1 + band.inner.size).sum::<usize>();
        self.size = self.size - size(&self.bands[left..right]) + size(&merged);
        self.bands.splice(left..right, merged);
    }
}

fn split(ranges: &[AxisRange]) -> (AxisRange, &[AxisRange]) {
    match ranges {
        [] => (AxisRange { start: 0, len: 1, dropped: false }, &[]),
        [first, further @ ..] => (*first, further),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn boxed(ranges: &[(u32, u32)]) -> Vec<AxisRange> {
        ranges.iter().map(|&(start, len)| AxisRange { start, len, dropped: false }).collect()
    }

    /// Protects: column siblings and rows, written in any order, count as the whole buffer, in one interval.
    #[test]
    fn siblings_that_meet_are_one_interval() {
        let mut region = Region::default();
        for column in [2, 0, 3, 1] {
            region.add(&boxed(&[(0, 8), (column, 1)]));
        }
        assert!(region.covers(&boxed(&[(0, 8), (0, 4)])));
        assert_eq!(region.size, 2);
        let mut rows = Region::default();
        (0..1000).rev().for_each(|row| rows.add(&boxed(&[(row, 1), (0, 5)])));
        assert_eq!(rows.size, 2);
    }

    /// Protects: a buffer without axes is one element.
    #[test]
    fn no_axes_is_one_element() {
        let mut region = Region::default();
        assert!(!region.covers(&[]));
        region.add(&[]);
        assert!(region.covers(&[]));
    }

    proptest! {
        /// Protects: regions agree with sets of index tuples, whatever boxes are added.
        #[test]
        fn regions_agree_with_sets_of_elements(
            boxes in proptest::collection::vec([(0..4u32, 1..3u32), (0..4u32, 1..3u32), (0..3u32, 1..3u32)], 1..12),
            asked in [(0..4u32, 1..3u32), (0..4u32, 1..3u32), (0..3u32, 1..3u32)],
        ) {
            let elements = |ranges: &[(u32, u32); 3]| {
                let [a, b, c] = ranges.map(|(start, len)| start..start + len);
                a.flat_map(move |i| {
                    let c = c.clone();
                    b.clone().flat_map(move |j| c.clone().map(move |k| (i, j, k)))
                })
            };
            let mut region = Region::default();
            boxes.iter().for_each(|ranges| region.add(&boxed(ranges)));
            let set: std::collections::HashSet<_> = boxes.iter().flat_map(elements).collect();
            prop_assert_eq!(region.covers(&boxed(&asked)), elements(&asked).all(|element| set.contains(&element)));
        }
    }
}
