//! Puts a whole step into a loop node, for plans that run it several times per launch.

use std::collections::HashSet;

use super::edit::{Fate, Rewrite, fates, without};
use crate::entity::{NodeId, PrimaryMap, StepId};
use crate::ir::{Item, LoopBound, Node, NodeOp, Phase, Program, Step};

/// The phase that a looped step has, and its one node.
const PHASE: &str = "loop";
const NODE: &str = "steps";

/// Leaves the step one variant, one phase and one node: a loop that runs `count` times, whose body is all phases in order. Nodes
/// of the body are called as dumps call them, `phase.node`. The step has no guards.
pub(super) fn repeat(program: &Program, step: StepId, variant: Option<&str>, count: u32) -> Rewrite {
    let mut rewrite = only(program, step, variant);
    let edited = &mut rewrite.program.steps[step];
    prefix_names(edited);
    let body: Vec<NodeId> = edited.phases.values().flat_map(|phase| phase.nodes.iter().copied()).collect();
    let op = NodeOp::While { max: LoopBound::Const(count), index: None, until: None, body };
    let node = edited.nodes.push(Node { name: NODE.into(), op, after: Vec::new() });
    edited.phases = PrimaryMap::new();
    rewrite.phases.clear();
    rewrite.made.push((node, Item::Step(step)));
    edited.phases.push(Phase { name: PHASE.into(), nodes: vec![node], ..Phase::default() });
    rewrite
}

/// The program with one variant of the step.
fn only(program: &Program, step: StepId, variant: Option<&str>) -> Rewrite {
    let old = &program.steps[step];
    let mut gone = fates(old);
    for phase in old.phases.values().filter(|phase| !phase.is_in(variant)) {
        old.walk(&phase.nodes).into_iter().for_each(|node| gone[node] = Fate::Goes);
    }
    let mut rewrite = without(program, step, &gone);
    let edited = &mut rewrite.program.steps[step];
    edited.variants = variant.iter().map(|&variant| variant.to_owned()).collect();
    rewrite
}

/// Names stay unique: those with a dot could meet otherwise.
fn prefix_names(step: &mut Step) {
    let phases = step.phase_of_nodes();
    let mut taken: HashSet<String> = HashSet::new();
    for (node, phase) in step.nodes.values_mut().zip(phases) {
        let Some(phase) = phase else { continue };
        let mut name = format!("{}.{}", step.phases[phase].name, node.name);
        while !taken.insert(name.clone()) {
            name.push('_');
        }
        node.name = name;
    }
}
