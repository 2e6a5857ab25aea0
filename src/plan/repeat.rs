//! What a plan of several steps asks of its step.

use super::error::PlanError;
use super::options::{FusionPlan, Graphs, Repeat};
use crate::analysis::Varying;
use crate::entity::NodeId;
use crate::ir::{MAX_NESTING, Program, Step};

/// The most units of an unrolled plan: building more graph nodes than that costs more than any launch saves.
pub(super) const UNIT_LIMIT: u64 = 1 << 17;

/// Whether the step can be repeated as the plan wants; `step` has no guards left.
///
/// # Errors
/// The first of the rules about repeated steps that it breaks.
pub(super) fn check_repeat(
    program: &Program,
    step: &Step,
    variant: Option<&str>,
    fusion: &FusionPlan,
) -> Result<(), PlanError> {
    let plan = || fusion.name.clone();
    if fusion.repeat.steps() == 0 {
        return Err(PlanError::NoSteps { plan: plan() });
    }
    if let Repeat::Loop(_) = fusion.repeat {
        check_loop(step, variant, fusion)?;
    }
    if fusion.repeat.steps() == 1 {
        return Ok(());
    }
    let nodes: Vec<NodeId> = step.phases_in(variant).flat_map(|(_, phase)| phase.nodes.iter().copied()).collect();
    let varying = Varying::of(program, step, &nodes);
    let mut units = 0u64;
    for (phase, node) in step.phases_in(variant).flat_map(|(_, phase)| {
        let nodes = step.walk(&phase.nodes);
        nodes.into_iter().map(move |node| (&phase.name, node))
    }) {
        units += 1;
        if let Some(input) = varying.fixed_input(node) {
            let (input, node) = (program.buffers[input].name.clone(), format!("{phase}.{}", step.nodes[node].name));
            return Err(PlanError::RepeatedInput { plan: plan(), input, node });
        }
    }
    let found = units.saturating_mul(u64::from(fusion.repeat.copies()));
    if fusion.repeat.copies() > 1 && found > UNIT_LIMIT {
        return Err(PlanError::TooManyUnits { plan: plan(), found, limit: UNIT_LIMIT });
    }
    Ok(())
}

fn check_loop(step: &Step, variant: Option<&str>, fusion: &FusionPlan) -> Result<(), PlanError> {
    let cut = match fusion.graphs {
        Graphs::PerNode => "launches per node",
        Graphs::PerPhase => "graphs per phase",
        Graphs::Mega => return check_depth(step, variant),
    };
    Err(PlanError::LoopOfParts { plan: fusion.name.clone(), cut })
}

/// Looks for the deepest conditional, level by level.
fn check_depth(step: &Step, variant: Option<&str>) -> Result<(), PlanError> {
    let mut level: Vec<NodeId> = step.phases_in(variant).flat_map(|(_, phase)| phase.nodes.iter().copied()).collect();
    let mut depth = 0;
    loop {
        level.retain(|&node| !step.nodes[node].op.bodies().is_empty());
        let Some(&first) = level.first() else { return Ok(()) };
        depth += 1;
        if depth == MAX_NESTING {
            let node = step.nodes[first].name.clone();
            return Err(PlanError::LoopTooDeep { node, found: depth, limit: MAX_NESTING });
        }
        level = level.iter().flat_map(|&node| step.nodes[node].op.bodies().concat()).collect();
    }
}
