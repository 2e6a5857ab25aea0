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
    /// A greedy decomposition: each vertex continues the chain of its latest source that is still the end of one.
    pub(super) fn new(dag: &Dag) -> Self {
        let count = dag.len();
        let mut chains = Self { chain: vec![0; count], place: vec![0; count], lengths: Vec::new() };
        let mut is_end = vec![false; count];
        for vertex in 0..count {
            let before = dag.sources(vertex as u32).iter().rev().find(|&&from| is_end[from as usize]);
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
