//! Packing: memory that several things use one after another.
//!
//! Requests are placed in the order of their first use. Freed bytes remember their last owners; they go to a request only if
//! everything that those owners do precedes everything that the request does. Earlier owners then precede it too.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::analysis::{Precedence, Span};

/// Bytes that every placement is a multiple of.
pub(super) const ALIGN: u64 = 256;

/// How many free pieces of sufficient size are tried, smallest first.
const TRIES: usize = 16;
/// How many free pieces are looked at to find neighbours that suffice together.
const SCAN: usize = 64;

/// Something that needs bytes.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) bytes: u64,
    /// The points at which it is in use; not empty.
    pub(super) points: Vec<u32>,
    /// Whether nothing else may ever use its bytes.
    pub(super) exclusive: bool,
}

/// The offset of each request, and the end of the last one. Sizes saturate: an end beyond any device is the caller's to refuse.
pub(super) fn pack(requests: &[Request], order: &Precedence) -> (Vec<u64>, u64) {
    let spans: Vec<Span> = requests.iter().map(|request| order.span(request.points.clone())).collect();
    let mut offsets = vec![0; requests.len()];
    let mut pool = Pool { order, spans: &spans, free: BTreeMap::new(), sizes: BTreeSet::new(), end: 0 };
    for (at, request) in requests.iter().enumerate().filter(|(_, request)| request.exclusive) {
        offsets[at] = pool.grow(padded(request.bytes));
    }
    let mut shared: Vec<usize> = (0..requests.len()).filter(|&at| !requests[at].exclusive).collect();
    shared.sort_by_key(|&at| (spans[at].first(), Reverse(requests[at].bytes), at));
    let mut in_use = BinaryHeap::new();
    for at in shared {
        while let Some(&Reverse((last, owner))) = in_use.peek()
            && last < spans[at].first()
        {
            in_use.pop();
            pool.release(owner, offsets[owner], padded(requests[owner].bytes));
        }
        offsets[at] = pool.take(at, padded(requests[at].bytes));
        in_use.push(Reverse((spans[at].last(), at)));
    }
    (offsets, pool.end)
}

fn padded(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX)
}

struct Pool<'a> {
    order: &'a Precedence,
    spans: &'a [Span],
    /// Free pieces by offset.
    free: BTreeMap<u64, Piece>,
    /// The same pieces as (bytes, offset).
    sizes: BTreeSet<(u64, u64)>,
    end: u64,
}

#[derive(Clone, Debug)]
struct Piece {
    bytes: u64,
    /// The last owners; those that precede another one are left out.
    owners: Vec<usize>,
}

impl Pool<'_> {
    fn take(&mut self, request: usize, bytes: u64) -> u64 {
        let fitting = self.sizes.range((bytes, 0)..).take(TRIES).map(|&(_, offset)| offset);
        let found = fitting.into_iter().find(|offset| self.usable(&self.free[offset], request));
        if let Some(offset) = found.or_else(|| self.neighbours(request, bytes)) {
            self.cut(offset, bytes);
            return offset;
        }
        let offset = self.tail(request);
        let free = (self.end - offset).min(bytes);
        self.cut(offset, free);
        self.grow(bytes - free);
        offset
    }

    /// The start of adjacent free pieces that are large enough together.
    fn neighbours(&self, request: usize, bytes: u64) -> Option<u64> {
        let pieces: Vec<(u64, &Piece)> = self.free.iter().take(SCAN).map(|(&offset, piece)| (offset, piece)).collect();
        let mut stretches = pieces.chunk_by(|(left, before), (right, _)| left + before.bytes == *right);
        stretches.find_map(|stretch| self.run(stretch, request, bytes))
    }

    /// The start of the first usable pieces side by side that are large enough together. Sizes are compared first: whether a
    /// piece is usable takes longer to tell.
    fn run(&self, stretch: &[(u64, &Piece)], request: usize, bytes: u64) -> Option<u64> {
        let &(mut start, _) = stretch.first()?;
        let end = stretch.last().map_or(start, |(offset, piece)| offset + piece.bytes);
        for &(offset, piece) in stretch {
            if end - start < bytes {
                return None;
            }
            let behind = offset + piece.bytes;
            if !self.usable(piece, request) {
                start = behind;
            } else if behind - start >= bytes {
                return Some(start);
            }
        }
        None
    }

    /// The start of the usable free pieces at the very end.
    fn tail(&self, request: usize) -> u64 {
        let mut start = self.end;
        for (&offset, piece) in self.free.iter().rev().take(SCAN) {
            if offset + piece.bytes != start || !self.usable(piece, request) {
                break;
            }
            start = offset;
        }
        start
    }

    fn usable(&self, piece: &Piece, request: usize) -> bool {
        piece.owners.iter().all(|&owner| self.order.precedes(&self.spans[owner], &self.spans[request]))
    }

    /// Takes bytes out of free pieces that lie side by side from `offset` on.
    fn cut(&mut self, offset: u64, bytes: u64) {
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let Some(piece) = self.remove(at) else { return };
            let piece_end = at + piece.bytes;
            if piece_end > end {
                self.insert(end, Piece { bytes: piece_end - end, ..piece });
            }
            at = piece_end;
        }
    }

    fn release(&mut self, owner: usize, offset: u64, bytes: u64) {
        let (mut start, mut piece) = (offset, Piece { bytes, owners: vec![owner] });
        if let Some((&left, before)) = self.free.range(..offset).next_back()
            && left + before.bytes == offset
            && let Some(owners) = self.common_owners(&before.owners, &piece.owners)
        {
            let bytes = before.bytes + piece.bytes;
            self.remove(left);
            (start, piece) = (left, Piece { bytes, owners });
        }
        let right = offset + bytes;
        if let Some(behind) = self.free.get(&right)
            && let Some(owners) = self.common_owners(&behind.owners, &piece.owners)
        {
            let bytes = behind.bytes + piece.bytes;
            self.remove(right);
            piece = Piece { bytes, owners };
        }
        self.insert(start, piece);
    }

    /// The owners of two neighbours as one piece, if the owners of one of them already stand for both.
    fn common_owners(&self, a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
        let covered = |few: &[usize], by: &[usize]| {
            few.iter().all(|&x| by.iter().any(|&y| x == y || self.order.precedes(&self.spans[x], &self.spans[y])))
        };
        if covered(a, b) {
            return Some(b.to_vec());
        }
        covered(b, a).then(|| a.to_vec())
    }

    fn insert(&mut self, offset: u64, piece: Piece) {
        self.sizes.insert((piece.bytes, offset));
        self.free.insert(offset, piece);
    }

    fn remove(&mut self, offset: u64) -> Option<Piece> {
        let piece = self.free.remove(&offset)?;
        self.sizes.remove(&(piece.bytes, offset));
        Some(piece)
    }

    fn grow(&mut self, bytes: u64) -> u64 {
        let start = self.end;
        self.end = self.end.saturating_add(bytes);
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Dag;
    use proptest::prelude::*;

    fn chain(points: u32) -> Precedence {
        let edges: Vec<(u32, u32)> = (1..points).map(|to| (to - 1, to)).collect();
        Precedence::new(&Dag::new(points as usize, &edges))
    }

    fn request(bytes: u64, points: &[u32]) -> Request {
        Request { bytes, points: points.to_vec(), exclusive: false }
    }

    /// Protects: the free bytes at the end may be more than what is asked for, when the searches stop before they reach them.
    #[test]
    fn a_free_tail_can_be_longer_than_needed() {
        // 204 points side by side, then one after all of them, then another.
        let edges: Vec<(u32, u32)> = (0..204).map(|from| (from, 204)).chain([(204, 205)]).collect();
        let order = Precedence::new(&Dag::new(206, &edges));
        let held = |point: u32| if point < 200 && point.is_multiple_of(2) { vec![point, 205] } else { vec![point] };
        let mut requests: Vec<Request> = (0..204).map(|point| request(256, &held(point))).collect();
        requests.push(request(512, &[204]));
        let (offsets, end) = pack(&requests, &order);
        assert_eq!((offsets[204], end), (199 * 256, 204 * 256));
    }

    proptest! {
        /// Protects: whatever is in use at one time has bytes of its own, all inside the end, aligned.
        #[test]
        fn live_requests_never_overlap(
            wishes in prop::collection::vec((1u64..3000, 0u32..40, 0u32..12, prop::bool::weighted(0.1)), 1..120),
        ) {
            let order = chain(52);
            let requests: Vec<Request> = wishes
                .iter()
                .map(|&(bytes, from, more, exclusive)| Request { bytes, points: vec![from, from + more], exclusive })
                .collect();
            let (offsets, end) = pack(&requests, &order);
            for (at, a) in requests.iter().enumerate() {
                prop_assert!(offsets[at] % ALIGN == 0 && offsets[at] + a.bytes <= end);
                for (other, b) in requests.iter().enumerate().take(at) {
                    let apart = a.points[1] < b.points[0] || b.points[1] < a.points[0];
                    let shared = offsets[at] < offsets[other] + b.bytes && offsets[other] < offsets[at] + a.bytes;
                    prop_assert!(!shared || apart && !a.exclusive && !b.exclusive);
                }
            }
        }

        /// Protects: reuse is good: a chain of requests takes little more than what is live at its busiest point.
        #[test]
        fn packing_is_tight(wishes in prop::collection::vec((1u64..8, 0u32..40, 0u32..12), 1..120)) {
            let requests: Vec<Request> =
                wishes.iter().map(|&(units, from, more)| request(units * ALIGN, &[from, from + more])).collect();
            let live = |point: u32| {
                requests.iter().filter(|own| own.points[0] <= point && point <= own.points[1]).map(|own| own.bytes).sum()
            };
            let busiest: u64 = (0..52).map(live).max().unwrap_or(0);
            // Best fit wastes holes that nothing fits into; with sizes below 8 units a hole is below 8 units, and so is each
            // request beside it: at most as much again.
            prop_assert!(pack(&requests, &chain(52)).1 <= 2 * busiest);
        }
    }
}
