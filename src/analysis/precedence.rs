//! Precedence: whether everything in one set of vertices comes before everything in another.
//!
//! The full relation would need space for every pair. Here the longest chains of the graph are *hubs*, and a precedes b when a
//! path from a to b touches a hub. That never claims an order which does not hold, misses few that do, and misses none
//! where the graph has no more chains than hubs. It serves memory reuse, where a missed order costs bytes and a wrong one
//! costs results.

use super::chains::Chains;
use super::dag::Dag;

/// The most hubs: one cache line per vertex and direction.
const HUBS: usize = 16;

/// Pairs that are compared one by one where the summaries of two sets do not tell.
const PAIRS: usize = 16;

/// A place on each hub.
type Places = [u32; HUBS];

/// Before the first place of a hub, where places count from 1.
const NOT_BEFORE: Places = [0; HUBS];
/// Behind the last place of any hub.
const NOT_BEHIND: Places = [u32::MAX; HUBS];

/// The order of a graph, as far as its hubs tell it.
#[derive(Debug)]
pub struct Precedence {
    /// Per vertex: the last place on each hub that is, or comes before, the vertex.
    before: Vec<Places>,
    /// Per vertex: the first place on each hub that is, or comes after, the vertex.
    behind: Vec<Places>,
}

/// A set of vertices, summarised for [`Precedence::precedes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    vertices: Vec<u32>,
    before: Places,
    behind: Places,
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
        let lane = |vertex: usize| lanes[chains.chain[vertex] as usize];
        let mut order = Self { before: vec![NOT_BEFORE; dag.len()], behind: vec![NOT_BEHIND; dag.len()] };
        for vertex in 0..dag.len() {
            let sources = dag.sources(vertex as u32).iter().map(|&from| &order.before[from as usize]);
            let mut places = sources.fold(NOT_BEFORE, |places, other| merged(&places, other, u32::max));
            lane(vertex).into_iter().for_each(|lane| places[lane] = chains.place[vertex]);
            order.before[vertex] = places;
        }
        for vertex in (0..dag.len()).rev() {
            lane(vertex).into_iter().for_each(|lane| order.behind[vertex][lane] = chains.place[vertex]);
            let places = order.behind[vertex];
            for &from in dag.sources(vertex as u32) {
                order.behind[from as usize] = merged(&order.behind[from as usize], &places, u32::min);
            }
        }
        order
    }

    /// The summary of a set of vertices; order and duplicates do not matter.
    pub fn span(&self, mut vertices: Vec<u32>) -> Span {
        vertices.sort_unstable();
        vertices.dedup();
        let rows = || vertices.iter().map(|&vertex| vertex as usize);
        let before = rows().fold(NOT_BEHIND, |places, at| merged(&places, &self.before[at], u32::min));
        let behind = rows().fold(NOT_BEFORE, |places, at| merged(&places, &self.behind[at], u32::max));
        Span { before, behind, vertices }
    }

    /// Whether every vertex of `a` certainly comes before every vertex of `b`. Vertices in common count as not ordered.
    pub fn precedes(&self, a: &Span, b: &Span) -> bool {
        if a.last() >= b.first() {
            return false;
        }
        if joined(&a.behind, &b.before) {
            return true;
        }
        let pairs = a.vertices.len().saturating_mul(b.vertices.len());
        let pair = |from: u32, to: u32| joined(&self.behind[from as usize], &self.before[to as usize]);
        (2..=PAIRS).contains(&pairs) && a.vertices.iter().all(|&from| b.vertices.iter().all(|&to| pair(from, to)))
    }
}

fn merged(a: &Places, b: &Places, choose: impl Fn(u32, u32) -> u32) -> Places {
    std::array::from_fn(|hub| choose(a[hub], b[hub]))
}

/// Whether a hub has a place that is behind all of one set and before all of another. Looks at every hub, without branches.
fn joined(behind: &Places, before: &Places) -> bool {
    (0..HUBS).fold(false, |found, hub| found | (behind[hub] <= before[hub]))
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
