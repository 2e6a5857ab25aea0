//! Directed acyclic graphs over numbered vertices.

/// A graph whose vertices are numbered in a topological order: each edge goes from a lower to a higher number.
#[derive(Clone, Debug, Default)]
pub struct Dag {
    starts: Vec<u32>,
    sources: Vec<u32>,
}

impl Dag {
    /// The graph with these edges (from, to), which must be sorted by `to`, then `from`, without duplicates.
    ///
    /// # Panics
    /// If an edge does not go from a lower to a higher number below `vertices`, or edges are out of order.
    pub fn new(vertices: usize, edges: &[(u32, u32)]) -> Self {
        assert!(edges.is_sorted_by_key(|&(from, to)| (to, from)), "edges are not sorted by target, then source");
        let mut starts = vec![0u32; vertices + 1];
        for &(from, to) in edges {
            assert!(from < to, "the edge {from} → {to} does not go forward");
            starts[to as usize + 1] += 1;
        }
        for at in 0..vertices {
            starts[at + 1] += starts[at];
        }
        Self { starts, sources: edges.iter().map(|&(from, _)| from).collect() }
    }

    /// How many vertices there are.
    pub fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Whether there are no vertices.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sources of edges into `vertex`, ascending.
    pub fn sources(&self, vertex: u32) -> &[u32] {
        &self.sources[self.edges_into(vertex)]
    }

    /// The positions, in the list that made the graph, of the edges into `vertex`.
    pub fn edges_into(&self, vertex: u32) -> std::ops::Range<usize> {
        self.starts[vertex as usize] as usize..self.starts[vertex as usize + 1] as usize
    }

    /// How many edges leave each vertex.
    pub fn out_degrees(&self) -> Vec<u32> {
        let mut degrees = vec![0; self.len()];
        self.sources.iter().for_each(|&from| degrees[from as usize] += 1);
        degrees
    }

    /// For each vertex, how many vertices the longest path before it has. The largest, plus one, is the length of the
    /// critical path: how many launches must follow one another.
    pub fn levels(&self) -> Vec<u32> {
        let mut levels = vec![0; self.len()];
        for vertex in 0..self.len() {
            let before = self.sources(vertex as u32).iter().map(|&from| levels[from as usize] + 1);
            levels[vertex] = before.max().unwrap_or(0);
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: levels count the longest path, not the shortest.
    #[test]
    fn levels_follow_the_longest_path() {
        let dag = Dag::new(4, &[(0, 1), (0, 2), (1, 2)]);
        assert_eq!(dag.levels(), [0, 1, 2, 0]);
        assert_eq!(dag.sources(2), [0, 1]);
        assert_eq!(dag.out_degrees(), [2, 1, 0, 0]);
    }
}
