//! Turns a guarded phase into a conditional node around the phase's nodes.

use rustc_hash::FxHashSet;

use super::edit::{Rewrite, unmoved};
use crate::entity::StepId;
use crate::ir::{Item, Node, NodeOp, Program};

/// Gives each guarded phase of the step one node, `guard_PHASE`, whose body is the phase.
pub(super) fn guard(program: &Program, step: StepId) -> Option<Rewrite> {
    if program.steps[step].phases.values().all(|phase| phase.guard.is_none()) {
        return None;
    }
    let mut program = program.clone();
    let edited = &mut program.steps[step];
    let names: FxHashSet<&str> = edited.nodes.values().map(|node| node.name.as_str()).collect();
    let mut guards = Vec::new();
    for (id, phase) in edited.phases.iter() {
        let Some(condition) = phase.guard else { continue };
        let mut name = format!("guard_{}", phase.name.replace('.', "_"));
        while names.contains(name.as_str()) {
            name.push('_');
        }
        guards.push((id, condition, name));
    }
    let mut made = Vec::with_capacity(guards.len());
    for (id, condition, name) in guards {
        let then_body = std::mem::take(&mut edited.phases[id].nodes);
        let op = NodeOp::If { condition, then_body, else_body: Vec::new() };
        let node = edited.nodes.push(Node { name, op, after: Vec::new() });
        edited.phases[id].nodes.push(node);
        edited.phases[id].guard = None;
        made.push((node, Item::Phase(step, id)));
    }
    Some(Rewrite { made, ..unmoved(program, step) })
}
