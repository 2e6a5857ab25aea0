//! What a plan of several steps asks of its step.

use super::error::{PlanError, PlanNode};
use super::options::{FusionPlan, Graphs, Repeat};
use crate::analysis::Varying;
use crate::entity::{NodeId, PhaseId, StepId};
use crate::ir::{Item, MAX_NESTING, Phase};
use crate::valid::ValidProgram;

/// The most units of an unrolled plan: building more graph nodes than that costs more than any launch saves.
const UNIT_LIMIT: u64 = 1 << 17;

/// Whether the step can be repeated as the plan wants; the step has no guards left.
///
/// # Errors
/// The first of the rules about repeated steps that it breaks.
pub(super) fn check_repeat(
    program: &ValidProgram,
    step: StepId,
    variant: Option<&str>,
    fusion: &FusionPlan,
) -> Result<(), PlanError> {
    let repeated = Repeated { program, step, variant };
    if fusion.repeat.steps() == 0 {
        return Err(PlanError::NoSteps { plan: fusion.name.clone() });
    }
    if let Repeat::Loop(_) = fusion.repeat {
        check_graphs(fusion)?;
        repeated.check_depth()?;
    }
    if fusion.repeat.steps() > 1 {
        repeated.check_inputs(fusion)?;
    }
    if fusion.repeat.copies() > 1 {
        repeated.check_units(fusion)?;
    }
    Ok(())
}

/// A loop of steps is one graph.
fn check_graphs(fusion: &FusionPlan) -> Result<(), PlanError> {
    let cut = match fusion.graphs {
        Graphs::PerNode => "launches per node",
        Graphs::PerPhase => "graphs per phase",
        Graphs::Mega => return Ok(()),
    };
    Err(PlanError::LoopOfParts { plan: fusion.name.clone(), cut })
}

/// One variant of a step that is to be repeated.
struct Repeated<'a> {
    program: &'a ValidProgram,
    step: StepId,
    variant: Option<&'a str>,
}

impl Repeated<'_> {
    /// Looks for the deepest conditional, level by level.
    fn check_depth(&self) -> Result<(), PlanError> {
        let step = &self.program.program().steps[self.step];
        let mut level = self.outer_nodes();
        let mut depth = 0;
        loop {
            level.retain(|&(_, node)| !step.nodes[node].op.bodies().is_empty());
            let Some(&first) = level.first() else { return Ok(()) };
            depth += 1;
            if depth == MAX_NESTING {
                return Err(PlanError::LoopTooDeep { node: self.named(first), found: depth, limit: MAX_NESTING });
            }
            let inner = |&(phase, node): &(PhaseId, NodeId)| {
                step.nodes[node].op.bodies().concat().into_iter().map(move |node| (phase, node))
            };
            level = level.iter().flat_map(inner).collect();
        }
    }

    /// No node reads the same part of an input in all steps.
    fn check_inputs(&self, fusion: &FusionPlan) -> Result<(), PlanError> {
        let program = self.program.program();
        let outer: Vec<NodeId> = self.outer_nodes().into_iter().map(|(_, node)| node).collect();
        let varying = Varying::of(program, &program.steps[self.step], &outer);
        let reads_the_same = |place: (PhaseId, NodeId)| varying.fixed_input(place.1).map(|input| (place, input));
        let Some((place, input)) = self.all_nodes().find_map(reads_the_same) else { return Ok(()) };
        let (plan, input) = (fusion.name.clone(), program.buffers[input].name.clone());
        Err(PlanError::RepeatedInput { plan, input, node: self.named(place) })
    }

    fn check_units(&self, fusion: &FusionPlan) -> Result<(), PlanError> {
        let units = self.all_nodes().count() as u64;
        let found = units.saturating_mul(u64::from(fusion.repeat.copies()));
        if found <= UNIT_LIMIT {
            return Ok(());
        }
        Err(PlanError::TooManyUnits { plan: fusion.name.clone(), found, limit: UNIT_LIMIT })
    }

    /// The nodes that phases list, in order.
    fn outer_nodes(&self) -> Vec<(PhaseId, NodeId)> {
        let phases = self.program.program().steps[self.step].phases_in(self.variant);
        phases.flat_map(|(id, phase)| phase.nodes.iter().map(move |&node| (id, node))).collect()
    }

    /// These, and those of their bodies.
    fn all_nodes(&self) -> impl Iterator<Item = (PhaseId, NodeId)> {
        let step = &self.program.program().steps[self.step];
        let of_phase = |(id, phase): (PhaseId, &Phase)| step.walk(&phase.nodes).into_iter().map(move |node| (id, node));
        step.phases_in(self.variant).flat_map(of_phase)
    }

    fn named(&self, (phase, node): (PhaseId, NodeId)) -> PlanNode {
        let step = &self.program.program().steps[self.step];
        let name = format!("{}.{}", step.phases[phase].name, step.nodes[node].name);
        PlanNode { name, origin: self.program.origins().get(&Item::Node(self.step, node)) }
    }
}
