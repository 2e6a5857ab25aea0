//! Editing a step: taking nodes out and renumbering the rest.

use rustc_hash::FxHashSet;

use crate::entity::{NodeId, PhaseId, SecondaryMap, StepId};
use crate::ir::{Item, Node, NodeOp, Program, Step};

/// A rewritten program, and where each part of the old step went.
pub(super) struct Rewrite {
    pub(super) program: Program,
    pub(super) nodes: SecondaryMap<NodeId, Option<NodeId>>,
    pub(super) phases: SecondaryMap<PhaseId, Option<PhaseId>>,
    /// Each node that the pass made, and the part of the new program that it stands for: it was written there.
    pub(super) made: Vec<(NodeId, Item)>,
}

/// What becomes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fate {
    /// It stays.
    #[default]
    Stays,
    /// It goes; who was `after` it is now after whatever it was after itself.
    Goes,
    /// It goes; this node does its work, and who was `after` it is now after that one.
    Becomes(NodeId),
}

/// The program without the nodes of a step that do not stay. A conditional node goes with its bodies; phases that lose all
/// their nodes go too.
pub(super) fn without(program: &Program, step: StepId, fates: &SecondaryMap<NodeId, Fate>) -> Rewrite {
    let old = &program.steps[step];
    let mut kept = Step { name: old.name.clone(), variants: old.variants.clone(), ..Step::default() };
    let mut nodes: SecondaryMap<NodeId, Option<NodeId>> = SecondaryMap::with_capacity(old.nodes.len());
    let mut phases = SecondaryMap::new();
    for (id, node) in old.nodes.iter().filter(|&(id, _)| fates[id] == Fate::Stays) {
        let after = followed(old, fates, id, &node.after);
        nodes[id] = Some(kept.nodes.push(Node { name: node.name.clone(), op: node.op.clone(), after }));
    }
    let renumber = |list: &mut Vec<NodeId>| *list = list.iter().filter_map(|&node| nodes[node]).collect();
    for node in kept.nodes.values_mut() {
        renumber(&mut node.after);
        bodies_mut(&mut node.op).into_iter().for_each(renumber);
    }
    for (id, phase) in old.phases.iter() {
        let mut phase = phase.clone();
        renumber(&mut phase.nodes);
        if !phase.nodes.is_empty() {
            phases[id] = Some(kept.phases.push(phase));
        }
    }
    let mut program = program.clone();
    program.steps[step] = kept;
    Rewrite { program, nodes, phases, made: Vec::new() }
}

/// A rewrite that keeps every number.
pub(super) fn unmoved(program: Program, step: StepId) -> Rewrite {
    let (mut nodes, mut phases) = (SecondaryMap::new(), SecondaryMap::new());
    program.steps[step].nodes.keys().for_each(|node| nodes[node] = Some(node));
    program.steps[step].phases.keys().for_each(|phase| phases[phase] = Some(phase));
    Rewrite { program, nodes, phases, made: Vec::new() }
}

/// The bodies of a conditional, to be edited.
pub(super) fn bodies_mut(op: &mut NodeOp) -> Vec<&mut Vec<NodeId>> {
    match op {
        NodeOp::If { then_body, else_body, .. } => vec![then_body, else_body],
        NodeOp::Switch { bodies, .. } => bodies.iter_mut().collect(),
        NodeOp::While { body, .. } => vec![body],
        _ => Vec::new(),
    }
}

/// The `after` list of `node` with each node that goes replaced, in old numbers and without duplicates.
fn followed(step: &Step, fates: &SecondaryMap<NodeId, Fate>, node: NodeId, after: &[NodeId]) -> Vec<NodeId> {
    let mut found: Vec<NodeId> = Vec::new();
    let mut stack: Vec<NodeId> = after.iter().rev().copied().collect();
    let mut seen = FxHashSet::default();
    while let Some(earlier) = stack.pop() {
        if !seen.insert(earlier) || earlier == node {
            continue;
        }
        match fates[earlier] {
            Fate::Stays => found.push(earlier),
            Fate::Goes => stack.extend(step.nodes[earlier].after.iter().rev()),
            Fate::Becomes(other) => stack.push(other),
        }
    }
    found
}

/// All nodes stay.
pub(super) fn fates(step: &Step) -> SecondaryMap<NodeId, Fate> {
    SecondaryMap::with_capacity(step.nodes.len())
}
