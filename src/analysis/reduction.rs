//! Transitive reduction: which edges of a graph follow from the others.
//!
//! An edge u → v is implied exactly when another source of v is reached from u. Reachability from many vertices at once is
//! kept as *clocks*: for each chain of a chain decomposition, the last place on it from which a vertex is reached. Clocks
//! are computed for a block of chains at a time, over the stretch of the graph in which that block's edges lie, and only
//! for chains that have an edge which could be implied at all. So memory stays bounded, the answer is exact, and the time
//! grows with the width of the part of the graph that is in question, not with the graph.

use super::chains::Chains;
use super::dag::Dag;

/// What becomes of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing else implies it.
    Yes,
    /// A path implies it; the path's last edge, which is kept, comes from this vertex.
    ImpliedBy(u32),
}

/// Chains of one block: one cache line and a few vector operations per vertex.
const LANES: usize = 32;

type Clock = [u32; LANES];

/// For each edge, in the order of the graph's list, whether it must be kept.
pub fn transitive_reduction(dag: &Dag, edges: &[(u32, u32)]) -> Vec<Kept> {
    let chains = Chains::new(dag);
    let mut reduction = Reduction {
        dag,
        chains: &chains,
        out_degrees: dag.out_degrees(),
        lanes: vec![NO_LANE; chains.lengths.len()],
        clocks: Vec::new(),
        reached: Vec::new(),
        kept: vec![Kept::Yes; edges.len()],
    };
    for block in blocks(&reduction, edges) {
        reduction.run(&block);
    }
    reduction.kept
}

const NO_LANE: u8 = u8::MAX;

/// Some chains, and the vertices between the first source and the last target of their edges in question.
struct Block {
    chains: Vec<u32>,
    first: u32,
    last: u32,
}

struct Reduction<'a> {
    dag: &'a Dag,
    chains: &'a Chains,
    out_degrees: Vec<u32>,
    lanes: Vec<u8>,
    clocks: Vec<Clock>,
    reached: Vec<bool>,
    kept: Vec<Kept>,
}

/// Chains that have an edge in question, in the order in which the first such edge starts.
fn blocks(reduction: &Reduction<'_>, edges: &[(u32, u32)]) -> Vec<Block> {
    let mut extents: Vec<Option<(u32, u32)>> = vec![None; reduction.chains.lengths.len()];
    for &(from, to) in edges.iter().filter(|&&(from, to)| reduction.may_be_implied(from, to)) {
        let extent = extents[reduction.chains.chain[from as usize] as usize].get_or_insert((from, to));
        *extent = (extent.0.min(from), extent.1.max(to));
    }
    let mut wanted: Vec<(u32, u32, u32)> =
        (0u32..).zip(extents).filter_map(|(chain, extent)| extent.map(|(first, last)| (first, last, chain))).collect();
    wanted.sort_unstable();
    let block = |chains: &[(u32, u32, u32)]| Block {
        chains: chains.iter().map(|&(_, _, chain)| chain).collect(),
        first: chains.iter().map(|&(first, ..)| first).min().unwrap_or(0),
        last: chains.iter().map(|&(_, last, _)| last).max().unwrap_or(0),
    };
    wanted.chunks(LANES).map(block).collect()
}

impl Reduction<'_> {
    /// A vertex's only way out, and a vertex's only way in, are implied by nothing.
    fn may_be_implied(&self, from: u32, to: u32) -> bool {
        self.out_degrees[from as usize] > 1 && self.dag.edges_into(to).len() > 1
    }

    fn run(&mut self, block: &Block) {
        for (lane, &chain) in (0u8..).zip(&block.chains) {
            self.lanes[chain as usize] = lane;
        }
        let window = (block.last - block.first) as usize + 1;
        self.clocks.resize(window.max(self.clocks.len()), [0; LANES]);
        self.reached.clear();
        self.reached.resize(window, false);
        for vertex in block.first..=block.last {
            self.visit(vertex, block.first);
        }
        block.chains.iter().for_each(|&chain| self.lanes[chain as usize] = NO_LANE);
    }

    /// Merges the clocks of a vertex's sources, latest first: a source that the later ones already know is implied, and adds
    /// nothing. The edge that first brought the highest place of a lane is kept, since whatever implied it would be later
    /// still and know at least that place.
    fn visit(&mut self, vertex: u32, first: u32) {
        let (mut clock, mut bringer) = ([0; LANES], [0; LANES]);
        let mut reached = false;
        for edge in self.dag.edges_into(vertex).rev() {
            let from = self.dag.sources(vertex)[edge - self.dag.edges_into(vertex).start];
            if from < first {
                break;
            }
            if !self.reached[(from - first) as usize] {
                continue;
            }
            let lane = usize::from(self.lanes[self.chains.chain[from as usize] as usize]);
            if lane < LANES && clock[lane] >= self.chains.place[from as usize] {
                self.kept[edge] = Kept::ImpliedBy(bringer[lane]);
                continue;
            }
            reached = true;
            merge(&mut clock, &mut bringer, &self.clocks[(from - first) as usize], from);
        }
        let lane = usize::from(self.lanes[self.chains.chain[vertex as usize] as usize]);
        if lane < LANES {
            clock[lane] = self.chains.place[vertex as usize];
            reached = true;
        }
        let at = (vertex - first) as usize;
        self.reached[at] = reached;
        if reached {
            self.clocks[at] = clock;
        }
    }
}

fn merge(clock: &mut Clock, bringer: &mut Clock, other: &Clock, from: u32) {
    for lane in 0..LANES {
        let newer = other[lane] > clock[lane];
        clock[lane] = if newer { other[lane] } else { clock[lane] };
        bringer[lane] = if newer { from } else { bringer[lane] };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use petgraph::adj::List;
    use petgraph::algo::tred::{dag_to_toposorted_adjacency_list, dag_transitive_reduction_closure};
    use proptest::prelude::*;

    fn edges() -> impl Strategy<Value = (usize, Vec<(u32, u32)>)> {
        (2usize..120, 0usize..4).prop_flat_map(|(count, density)| {
            let edge =
                (0..count as u32, 1..count as u32).prop_filter_map("an edge goes forward", move |(from, step)| {
                    let to = from + 1 + step % (count as u32 / 3).max(1);
                    (to < count as u32).then_some((from, to))
                });
            prop::collection::vec(edge, 0..=count * (density + 1)).prop_map(move |mut edges| {
                edges.sort_by_key(|&(from, to)| (to, from));
                edges.dedup();
                (count, edges)
            })
        })
    }

    fn reference(count: usize, edges: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let mut graph: petgraph::graph::DiGraph<(), ()> = petgraph::graph::DiGraph::new();
        for _ in 0..count {
            graph.add_node(());
        }
        for &(from, to) in edges {
            graph.add_edge(from.into(), to.into(), ());
        }
        let order: Vec<_> = graph.node_indices().collect();
        let (list, _): (List<(), u32>, _) = dag_to_toposorted_adjacency_list(&graph, &order);
        let (reduced, _) = dag_transitive_reduction_closure(&list);
        let mut kept: Vec<_> = reduced.edge_indices().filter_map(|edge| reduced.edge_endpoints(edge)).collect();
        kept.sort_by_key(|&(from, to)| (to, from));
        kept
    }

    proptest! {
        /// Protects: exactly the edges of the transitive reduction are kept (petgraph is the reference), and a dropped edge
        /// names a kept edge of a path that implies it.
        #[test]
        fn keeps_what_the_reference_keeps((count, edges) in edges()) {
            let dag = Dag::new(count, &edges);
            let result = transitive_reduction(&dag, &edges);
            let kept: Vec<_> =
                edges.iter().zip(&result).filter(|(_, kept)| **kept == Kept::Yes).map(|(&edge, _)| edge).collect();
            prop_assert_eq!(&kept, &reference(count, &edges));
            for (&(from, to), kept_as) in edges.iter().zip(&result) {
                let Kept::ImpliedBy(last) = *kept_as else { continue };
                prop_assert!(kept.contains(&(last, to)));
                prop_assert!(reaches(&kept, from, last));
            }
        }
    }

    fn reaches(edges: &[(u32, u32)], from: u32, to: u32) -> bool {
        from == to || edges.iter().filter(|edge| edge.0 == from && edge.1 <= to).any(|edge| reaches(edges, edge.1, to))
    }
}
