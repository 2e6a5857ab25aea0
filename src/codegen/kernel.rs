//! Generated kernels, and the generator that makes them for the nodes of a step.

use std::collections::HashSet;

use super::names::kernel_names;
use super::params::Params;
use super::{boxes, conditional, map, reduce};
use crate::entity::{BufferId, EntityRef, NodeId, ScalarId, StepId};
use crate::ir::{LaunchConfig, NodeOp, Program, Step};
use crate::valid::ValidProgram;

/// Where a parameter of a generated kernel comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamSource {
    /// The address of the first element of a whole buffer; offsets of views are in the code.
    Buffer(BufferId),
    /// The address of a scalar cell.
    Scalar(ScalarId),
    /// The address of the unit's workspace.
    Workspace,
    /// The conditional's handle, a 64-bit value.
    Condition,
    /// The address of the mapped `u32` by which the host ends loops: not 0 means stop.
    Stop,
}

/// One generated kernel: CUDA C that needs [`PRELUDE`](super::PRELUDE), and how it is launched.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedKernel {
    /// Its `extern "C"` name, unique in the step.
    pub name: String,
    /// Its definition.
    pub source: String,
    /// Where its parameters come from, in the order of the C signature. Each is eight bytes.
    pub params: Vec<ParamSource>,
    /// How it is launched.
    pub launch: LaunchConfig,
}

/// Makes the kernels of a step's nodes.
#[derive(Debug)]
pub struct Generator<'a> {
    program: &'a Program,
    step: &'a Step,
    names: Vec<String>,
    /// Nodes inside of conditionals.
    inside: HashSet<NodeId>,
}

impl<'a> Generator<'a> {
    /// A generator for a step; it names the kernels of all nodes, so that names are unique.
    pub fn new(program: &'a ValidProgram, step: StepId) -> Self {
        let program = program.program();
        let step = &program.steps[step];
        let inside = step.nodes.values().flat_map(|node| node.op.bodies()).flatten().copied().collect();
        Self { program, step, names: kernel_names(step), inside }
    }

    /// The kernels of a node, in launch order; none where it needs none.
    ///
    /// A map has one; a reduction one, or two where it is chunked. A copy or fill has one unless a memcpy or memset node can
    /// do it ([`copy_boxes`](super::copy_boxes), [`fill_box`](super::fill_box)); inside of conditionals it always has one,
    /// so that bodies hold kernels and conditionals alone. A conditional has the setter that runs before it; a
    /// loop has a second one, which ends its body.
    pub fn kernels(&self, node: NodeId) -> Vec<GeneratedKernel> {
        let name = self.names[node.index()].as_str();
        let title = self.step.nodes[node].name.as_str();
        let target = Draft { program: self.program, name, title };
        match &self.step.nodes[node].op {
            NodeOp::Map(node) => vec![map::kernel(&target, node)],
            NodeOp::Reduce(node) => reduce::kernels(&target, node),
            NodeOp::Copy { from, to } if self.inside.contains(&node) || !boxes::is_memcpy(self.program, from, to) => {
                vec![boxes::copy_kernel(&target, from, to)]
            }
            NodeOp::Fill { to, value } if self.inside.contains(&node) || !boxes::is_memset(self.program, to) => {
                vec![boxes::fill_kernel(&target, to, *value)]
            }
            NodeOp::Copy { .. } | NodeOp::Fill { .. } => Vec::new(),
            NodeOp::If { condition, .. } => vec![conditional::if_setter(&target, *condition)],
            NodeOp::Switch { selector, .. } => vec![conditional::switch_setter(&target, *selector)],
            NodeOp::While { max, index, until, .. } => conditional::while_setters(&target, *max, *index, *until),
            NodeOp::Kernel(_) | NodeOp::Gemm(_) => Vec::new(),
        }
    }
}

/// What a kernel is made for.
pub(super) struct Draft<'a> {
    pub(super) program: &'a Program,
    /// The kernel's name.
    pub(super) name: &'a str,
    /// The node's name, as comments show it.
    pub(super) title: &'a str,
}

impl Draft<'_> {
    /// The kernel with this signature and body.
    pub(super) fn finish(
        &self,
        suffix: &str,
        what: &str,
        params: Params<'_>,
        launch: LaunchConfig,
        body: &str,
    ) -> GeneratedKernel {
        let name = format!("{}{suffix}", self.name);
        let threads: u32 = launch.block.iter().product();
        let source = format!(
            "// {}: {what}\nextern \"C\" __global__ void __launch_bounds__({threads}) {name}(\n    {})\n{{\n{body}}}\n",
            one_line(self.title),
            params.signature()
        );
        GeneratedKernel { name, source, params: params.sources(), launch }
    }
}

/// A user's name, safe inside a `//` comment: no line break, and no backslash that would continue the comment.
pub(super) fn one_line(name: &str) -> String {
    name.chars().map(|c| if c.is_control() || c == '\\' { '_' } else { c }).collect()
}
