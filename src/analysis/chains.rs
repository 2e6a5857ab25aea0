//! Chain decomposition: a graph's vertices as few paths, so that order can be told by places on them.

use super::dag::Dag;

/// Each vertex is on one chain; consecutive vertices of a chain are joined by an edge.
#[derive(Debug)]
pub(super) struct Chains {
    /// The chain of each vertex.
    pub(super) chain: Vec<u32>,
    /// Its place on the chain, from 1.
    pub(super) place: Vec<u32>,
    /// How many vertices each chain has.
    pub(super) lengths: Vec<u32>,
}

impl Chains {
    /// A greedy decomposition into long chains: each vertex is continued by the target from which the longest path starts, or,
    /// where that one continues another chain, by a later target that would else start a chain of its own.
    pub(super) fn new(dag: &Dag) -> Self {
        let count = dag.len();
        let heir = heirs(dag);
        let mut chains = Self { chain: vec![0; count], place: vec![0; count], lengths: Vec::new() };
        let mut is_end = vec![false; count];
        for vertex in 0..count {
            let open = |from: &&u32| is_end[**from as usize] && heir[**from as usize] <= vertex as u32;
            let before = dag.sources(vertex as u32).iter().rev().find(open);
            let chain = match before {
                Some(&from) => {
                    is_end[from as usize] = false;
                    chains.chain[from as usize]
                }
                None => {
                    chains.lengths.push(0);
                    chains.lengths.len() as u32 - 1
                }
            };
            is_end[vertex] = true;
            chains.lengths[chain as usize] += 1;
            chains.chain[vertex] = chain;
            chains.place[vertex] = chains.lengths[chain as usize];
        }
        chains
    }
}

/// For each vertex, the target from which the longest path starts, the lowest of several; 0 without targets.
fn heirs(dag: &Dag) -> Vec<u32> {
    let mut heir = vec![0; dag.len()];
    let mut longest = vec![0u32; dag.len()];
    for vertex in (0..dag.len() as u32).rev() {
        let path = longest[vertex as usize] + 1;
        for &from in dag.sources(vertex) {
            if path >= longest[from as usize] {
                longest[from as usize] = path;
                heir[from as usize] = vertex;
            }
        }
    }
    heir
}
