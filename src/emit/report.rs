//! What a plan became on the device, for reports and dumps.

use std::fmt;

/// How much a plan became.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Executable graphs.
    pub graphs: usize,
    /// Nodes of all graphs, those of bodies and those taken over from libraries included.
    pub nodes: usize,
    /// Edges of all graphs.
    pub edges: usize,
    /// Calls that start work on the device per run, without the inbox copy; what conditionals decide is not counted.
    pub launches: usize,
}

/// One node of an emitted graph, or one stream launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLine {
    /// The plan's unit.
    pub unit: String,
    /// How many conditional nodes it is inside of.
    pub depth: usize,
    /// What it runs: kernels with their names, those of libraries included.
    pub what: String,
}

/// `unit: what`, indented by depth.
impl fmt::Display for NodeLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:indent$}{}: {}", "", self.unit, self.what, indent = 2 * (self.depth + 1))
    }
}
