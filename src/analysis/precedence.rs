//! Precedence: whether everything in one set of vertices comes before everything in another.
//!
//! The full relation would need space for every pair. Here the longest chains of the graph are *hubs*, and a precedes b when a
//! path from a to b touches a hub. That never claims an order which does not hold, misses few that do, and misses none
//! where the graph has no more chains than hubs. It serves memory reuse, where a missed order costs bytes and a wrong one
//! costs results.

use super::chains::Chains;
use super::dag::Dag;

/// The most hubs: two cache lines per vertex and direction.
const HUBS: usize = 32;

/// Pairs that are compared one by one where the summaries of two sets do not tell.
const PAIRS: usize = 64;

/// The order of a graph, as far as its hubs tell it.
#[derive(Debug)]
pub struct Precedence {
    hubs: usize,
    /// Per vertex and hub: the last place on the hub that is, or comes before, the vertex; 0 for none.
    before: Vec<u32>,
    /// Per vertex and hub: the first place on the hub that is, or comes after, the vertex; `u32::MAX` for none.
    behind: Vec<u32>,
}

/// A set of vertices, summarised for [`Precedence::precedes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    vertices: Vec<u32>,
    before: Vec<u32>,
    behind: Vec<u32>,
}

impl Span {
    /// The lowest vertex.
    pub fn first(&self) -> u32 {
        self.vertices.first().copied().unwrap_or(0)
    }

    /// The highest vertex.
    pub fn last(&self) -> u32 {
        self.vertices.last().copied().unwrap_or(0)
    }
}

impl Precedence {
    /// The order of a graph.
    pub fn new(dag: &Dag) -> Self {
        let chains = Chains::new(dag);
        let lanes = hubs(&chains);
        let hubs = lanes.iter().flatten().count();
        let mut order = Self { hubs, before: vec![0; dag.len() * hubs], behind: vec![u32::MAX; dag.len() * hubs] };
        for vertex in 0..dag.len() as u32 {
            for &from in dag.sources(vertex) {
                order.merge_before(vertex, from);
            }
            if let Some(lane) = lanes[chains.chain[vertex as usize] as usize] {
                order.before[vertex as usize * hubs + lane] = chains.place[vertex as usize];
            }
        }
        for vertex in (0..dag.len() as u32).rev() {
            if let Some(lane) = lanes[chains.chain[vertex as usize] as usize] {
                order.behind[vertex as usize * hubs + lane] = chains.place[vertex as usize];
            }
            for &from in dag.sources(vertex) {
                order.merge_behind(from, vertex);
            }
        }
        order
    }

    /// The summary of a set of vertices; order and duplicates do not matter.
    pub fn span(&self, mut vertices: Vec<u32>) -> Span {
        vertices.sort_unstable();
        vertices.dedup();
        let row = |table: &[u32], vertex: u32, hub: usize| table[vertex as usize * self.hubs + hub];
        let before = (0..self.hubs).map(|hub| vertices.iter().map(|&at| row(&self.before, at, hub)).min().unwrap_or(0));
        let behind =
            (0..self.hubs).map(|hub| vertices.iter().map(|&at| row(&self.behind, at, hub)).max().unwrap_or(u32::MAX));
        Span { before: before.collect(), behind: behind.collect(), vertices }
    }

    /// Whether every vertex of `a` certainly comes before every vertex of `b`. Vertices in common count as not ordered.
    pub fn precedes(&self, a: &Span, b: &Span) -> bool {
        if a.last() >= b.first() {
            return false;
        }
        if joined(&a.behind, &b.before) {
            return true;
        }
        if a.vertices.len().saturating_mul(b.vertices.len()) > PAIRS {
            return false;
        }
        a.vertices.iter().all(|&from| b.vertices.iter().all(|&to| self.pair(from, to)))
    }

    fn pair(&self, from: u32, to: u32) -> bool {
        let row = |vertex: u32| vertex as usize * self.hubs..(vertex as usize + 1) * self.hubs;
        joined(&self.behind[row(from)], &self.before[row(to)])
    }

    fn merge_before(&mut self, vertex: u32, from: u32) {
        let (to, from) = (vertex as usize * self.hubs, from as usize * self.hubs);
        for hub in 0..self.hubs {
            self.before[to + hub] = self.before[to + hub].max(self.before[from + hub]);
        }
    }

    fn merge_behind(&mut self, vertex: u32, target: u32) {
        let (to, from) = (vertex as usize * self.hubs, target as usize * self.hubs);
        for hub in 0..self.hubs {
            self.behind[to + hub] = self.behind[to + hub].min(self.behind[from + hub]);
        }
    }
}

fn joined(behind: &[u32], before: &[u32]) -> bool {
    behind.iter().zip(before).any(|(behind, before)| behind <= before)
}

/// The lane of each chain that is a hub: the longest ones.
fn hubs(chains: &Chains) -> Vec<Option<usize>> {
    let mut longest: Vec<usize> = (0..chains.lengths.len()).collect();
    longest.sort_by_key(|&chain| (std::cmp::Reverse(chains.lengths[chain]), chain));
    let mut lanes = vec![None; longest.len()];
    longest.iter().take(HUBS).enumerate().for_each(|(lane, &chain)| lanes[chain] = Some(lane));
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reachable(count: usize, edges: &[(u32, u32)]) -> Vec<Vec<bool>> {
        let mut reach = vec![vec![false; count]; count];
        for &(from, to) in edges {
            reach[from as usize][to as usize] = true;
            for row in &mut reach {
                row[to as usize] |= row[from as usize];
            }
        }
        reach
    }

    fn check(count: u32, picks: &[(u32, u32)], sets: &[Vec<u32>]) -> (usize, usize) {
        let mut edges: Vec<_> = picks
            .iter()
            .map(|&(a, b)| (a % count, b % count))
            .filter(|(a, b)| a != b)
            .map(|(a, b)| (a.min(b), a.max(b)))
            .collect();
        edges.sort_by_key(|&(from, to)| (to, from));
        edges.dedup();
        let reach = reachable(count as usize, &edges);
        let order = Precedence::new(&Dag::new(count as usize, &edges));
        let spans: Vec<_> = sets.iter().map(|set| order.span(set.iter().map(|at| at % count).collect())).collect();
        let (mut claimed, mut true_ones) = (0, 0);
        for (a, b) in spans.iter().flat_map(|a| spans.iter().map(move |b| (a, b))) {
            let ordered = a.vertices.iter().all(|&x| b.vertices.iter().all(|&y| reach[x as usize][y as usize]));
            assert!(ordered || !order.precedes(a, b), "{a:?} does not precede {b:?}");
            claimed += usize::from(order.precedes(a, b));
            true_ones += usize::from(ordered);
        }
        (claimed, true_ones)
    }

    proptest! {
        /// Protects: no order is claimed that does not hold; and with fewer chains than hubs, none is missed.
        #[test]
        fn never_claims_a_false_order(
            count in 2u32..30,
            picks in prop::collection::vec((any::<u32>(), any::<u32>()), 0..80),
            sets in prop::collection::vec(prop::collection::vec(any::<u32>(), 1..4), 1..12),
        ) {
            let (claimed, true_ones) = check(count, &picks, &sets);
            prop_assert_eq!(claimed, true_ones);
        }

        /// Protects: the same for graphs with more chains than hubs, where some orders may be missed.
        #[test]
        fn never_claims_a_false_order_when_wide(
            picks in prop::collection::vec((any::<u32>(), any::<u32>()), 0..150),
            sets in prop::collection::vec(prop::collection::vec(any::<u32>(), 1..4), 1..12),
        ) {
            let (claimed, true_ones) = check(120, &picks, &sets);
            prop_assert!(claimed <= true_ones);
        }
    }
}
