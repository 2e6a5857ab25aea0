//! The program: memory, kernels, and the steps over them.

use indexmap::IndexMap;

use super::buffer::{Buffer, GROUP_ALIGN, Group, Role};
use super::kernel::KernelDecl;
use super::node::Node;
use super::scalar::Scalar;
use crate::entity::{BufferId, EntityRef, GroupId, KernelId, NodeId, PhaseId, PrimaryMap, ScalarId, StepId};

/// The most variants of one step.
pub const MAX_VARIANTS: usize = 64;

/// How deep conditionals can lie in each other, so that later stages may recurse.
pub const MAX_NESTING: usize = 32;

/// Steps over shared buffers and scalars. Plain data: nothing here has been checked.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Program {
    /// The program's name.
    pub name: String,
    /// Buffers, in declared order, which is their order in memory within a role.
    pub buffers: PrimaryMap<BufferId, Buffer>,
    /// Groups of buffers that lie side by side.
    pub groups: PrimaryMap<GroupId, Group>,
    /// Scalar cells.
    pub scalars: PrimaryMap<ScalarId, Scalar>,
    /// The kernels that nodes call.
    pub kernels: PrimaryMap<KernelId, KernelDecl>,
    /// Steps, in declared order.
    pub steps: PrimaryMap<StepId, Step>,
}

/// A named sequence of phases that lowers to its own executables.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Step {
    /// The step's name, unique in the program.
    pub name: String,
    /// The variants that the host chooses between at launch; empty for a step that has only one form.
    pub variants: Vec<String>,
    /// Phases, in the order in which they run.
    pub phases: PrimaryMap<PhaseId, Phase>,
    /// Every node of every phase and body. Order of execution is the order in the phase or body, not the order here.
    pub nodes: PrimaryMap<NodeId, Node>,
}

/// A named part of a step; the unit of the `phases` plan.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Phase {
    /// The phase's name. Phases of disjoint variants may share one.
    pub name: String,
    /// The variants that the phase belongs to; empty for all of them.
    pub variants: Vec<String>,
    /// A `u32` cell; where it is 0 the phase is skipped.
    pub guard: Option<ScalarId>,
    /// The phase's nodes, in program order; nodes of bodies are not listed.
    pub nodes: Vec<NodeId>,
}

impl Phase {
    /// Whether the phase runs in this variant of its step.
    pub fn is_in(&self, variant: Option<&str>) -> bool {
        self.variants.is_empty() || variant.is_some_and(|variant| self.variants.iter().any(|own| own == variant))
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// A buffer.
    Buffer(BufferId),
    /// A group.
    Group(GroupId),
    /// A scalar.
    Scalar(ScalarId),
}

impl Program {
    /// What each name of a buffer, group or scalar stands for; the first declaration wins.
    pub fn symbols(&self) -> IndexMap<&str, Symbol> {
        let mut symbols = IndexMap::new();
        for (id, buffer) in self.buffers.iter() {
            symbols.entry(buffer.name.as_str()).or_insert(Symbol::Buffer(id));
        }
        for (id, group) in self.groups.iter() {
            symbols.entry(group.name.as_str()).or_insert(Symbol::Group(id));
        }
        for (id, scalar) in self.scalars.iter() {
            symbols.entry(scalar.name.as_str()).or_insert(Symbol::Scalar(id));
        }
        symbols
    }

    /// The step of this name.
    pub fn step(&self, name: &str) -> Option<StepId> {
        self.steps.iter().find(|(_, step)| step.name == name).map(|(id, _)| id)
    }

    /// The buffer of this name.
    pub fn buffer(&self, name: &str) -> Option<BufferId> {
        self.buffers.iter().find(|(_, buffer)| buffer.name == name).map(|(id, _)| id)
    }

    /// The scalar of this name.
    pub fn scalar(&self, name: &str) -> Option<ScalarId> {
        self.scalars.iter().find(|(_, scalar)| scalar.name == name).map(|(id, _)| id)
    }

    /// Buffers of one role, in declared order.
    pub fn buffers_of(&self, role: Role) -> impl Iterator<Item = (BufferId, &Buffer)> {
        self.buffers.iter().filter(move |(_, buffer)| buffer.role == role)
    }

    /// Byte offset of each member from the group's start, and the group's size, padding included.
    pub fn group_layout(&self, group: GroupId) -> (Vec<u64>, u64) {
        let mut end = 0u64;
        let offsets = self.groups[group].members.iter().map(|&member| {
            let start = end;
            end = start.saturating_add(self.buffers[member].bytes().next_multiple_of(GROUP_ALIGN));
            start
        });
        (offsets.collect(), end)
    }

    /// Whether a group has bytes between or behind its members. They are zero, and kernels that get the flat array rely on it.
    pub fn has_padding(&self, group: GroupId) -> bool {
        let used: u64 = self.groups[group].members.iter().map(|&member| self.buffers[member].bytes()).sum();
        used != self.group_layout(group).1
    }
}

impl Step {
    /// The variants to plan for: each declared one, or the one unnamed form.
    pub fn forms(&self) -> Vec<Option<&str>> {
        if self.variants.is_empty() {
            vec![None]
        } else {
            self.variants.iter().map(|variant| Some(variant.as_str())).collect()
        }
    }

    /// The phases that run in a variant, in order.
    pub fn phases_in(&self, variant: Option<&str>) -> impl Iterator<Item = (PhaseId, &Phase)> {
        self.phases.iter().filter(move |(_, phase)| phase.is_in(variant))
    }

    /// Every node of a body, nested ones included, in program order.
    pub fn walk(&self, body: &[NodeId]) -> Vec<NodeId> {
        let mut found = Vec::with_capacity(body.len());
        let mut stack: Vec<NodeId> = body.iter().rev().copied().collect();
        while let Some(node) = stack.pop() {
            found.push(node);
            let bodies = self.nodes[node].op.bodies();
            bodies.iter().rev().for_each(|body| stack.extend(body.iter().rev()));
        }
        found
    }

    /// The phase that each node belongs to, directly or through a body.
    pub fn phase_of_nodes(&self) -> Vec<Option<PhaseId>> {
        let mut phases = vec![None; self.nodes.len()];
        for (id, phase) in self.phases.iter() {
            self.walk(&phase.nodes).into_iter().for_each(|node| phases[node.index()] = Some(id));
        }
        phases
    }
}
