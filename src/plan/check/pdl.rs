//! Programmatic edges join kernels that promise to wait, and what a kernel reads before it waits is finished by then.

use rustc_hash::FxHashSet;

use super::CheckError;
use super::structure::Bodies;
use crate::entity::UnitId;
use crate::ir::{Arg, KernelDecl, NodeOp, Resource, View, subtree_accesses};
use crate::plan::types::{Body, Edge, EdgeKind, StepPlan};

pub(super) fn check(plan: &StepPlan, bodies: &Bodies<'_>, errors: &mut Vec<CheckError>) {
    for view in &bodies.list {
        for edge in view.body.edges.iter().filter(|edge| edge.kind == EdgeKind::Programmatic) {
            if let Some(reason) = fault(plan, view.body, edge) {
                let name = |unit: UnitId| plan.units[unit].name.clone();
                errors.push(CheckError::IllegalProgrammatic { from: name(edge.from), to: name(edge.to), reason });
            }
        }
    }
}

fn fault(plan: &StepPlan, body: &Body, edge: &Edge) -> Option<String> {
    for unit in [edge.from, edge.to] {
        if decl(plan, unit).is_none_or(|decl| decl.pdl.is_none()) {
            return Some(format!("`{}` is no hand-written kernel with a contract", plan.units[unit].name));
        }
    }
    let finished = finished_before(body, edge.to);
    let program = plan.program.program();
    let step = &program.steps[plan.step];
    for early in early_views(plan, edge.to) {
        let writes = |unit: &UnitId| {
            let accesses = subtree_accesses(program, step, plan.units[*unit].node);
            accesses.iter().any(|access| access.mode.writes() && access.resource.overlaps(&Resource::View(early)))
        };
        let earlier = body.units.iter().take_while(|&&unit| unit != edge.to);
        if let Some(&writer) = earlier.filter(|unit| !finished.contains(unit)).find(|unit| writes(unit)) {
            let (buffer, writer) = (&program.buffers[early.buffer].name, &plan.units[writer].name);
            return Some(format!("`{buffer}` is read early, but `{writer}` may still be writing it"));
        }
    }
    None
}

/// Units that have finished before `unit` can start: the sources of its full edges and all before them, and what strictly
/// precedes the sources of its programmatic edges.
fn finished_before(body: &Body, unit: UnitId) -> FxHashSet<UnitId> {
    let sources = |to: UnitId| body.edges.iter().filter(move |edge| edge.to == to);
    let mut finished = FxHashSet::default();
    let mut stack: Vec<UnitId> = Vec::new();
    for edge in sources(unit) {
        match edge.kind {
            EdgeKind::Full => stack.push(edge.from),
            EdgeKind::Programmatic => stack.extend(sources(edge.from).map(|before| before.from)),
        }
    }
    while let Some(at) = stack.pop() {
        if finished.insert(at) {
            stack.extend(sources(at).map(|edge| edge.from));
        }
    }
    finished
}

fn decl(plan: &StepPlan, unit: UnitId) -> Option<&KernelDecl> {
    let program = plan.program.program();
    match &program.steps[plan.step].nodes[plan.units[unit].node].op {
        NodeOp::Kernel(call) => Some(&program.kernels[call.kernel]),
        _ => None,
    }
}

/// The boxes that a kernel reads before it waits.
fn early_views(plan: &StepPlan, unit: UnitId) -> Vec<View> {
    let program = plan.program.program();
    let NodeOp::Kernel(call) = &program.steps[plan.step].nodes[plan.units[unit].node].op else { return Vec::new() };
    let decl = &program.kernels[call.kernel];
    let is_early = |name: &str| decl.pdl.as_ref().is_some_and(|pdl| pdl.early.iter().any(|early| early == name));
    let given = decl.params.iter().filter(|param| param.class.needs_argument()).zip(&call.args);
    let mut views = Vec::new();
    for (_, arg) in given.filter(|(param, _)| is_early(&param.name)) {
        match *arg {
            Arg::View(view) => views.push(view),
            Arg::Group(group) => views.extend(
                program.groups[group].members.iter().map(|&member| View::full(member, &program.buffers[member].shape)),
            ),
            Arg::Scalar(_) | Arg::Const(_) => {}
        }
    }
    views
}
