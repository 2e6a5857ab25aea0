//! The planner: from a valid program to a plan.

use super::arena::arena;
use super::check::check;
use super::error::PlanError;
use super::options::{Fuse, FusionPlan, GemmKey, Graphs, Repeat, Schedule, Target, Tuning};
use super::repeat::check_repeat;
use super::types::{GraphPlan, StepPlan, Work};
use super::units::{Listed, Lowering, numbered};
use crate::entity::{NodeId, PhaseId, PrimaryMap, StepId};
use crate::ir::{NodeOp, Program};
use crate::pass;
use crate::valid::ValidProgram;

/// Plans a step of a program, in one of its variants if it has any.
///
/// The result depends on the arguments alone. In debug builds it is checked with [`check`] before it is returned.
///
/// # Errors
/// The first rule of [`PlanError`] that the step, the target or the options break.
pub fn plan(
    program: &ValidProgram,
    step: &str,
    variant: Option<&str>,
    fusion: &FusionPlan,
    target: &Target,
    tuning: &Tuning,
) -> Result<StepPlan, PlanError> {
    let _span = tracing::debug_span!("plan", step, variant, plan = fusion.name).entered();
    let id = find(program.program(), step, variant)?;
    let mut program = pass::run(program, id, &wanted(&fusion.fuse))?;
    check_repeat(&program, id, variant, fusion)?;
    if let Repeat::Loop(steps) = fusion.repeat {
        program = pass::looped(program, id, variant, steps)?;
    }
    let plan = lower(program, id, variant, fusion, target, tuning)?;
    if cfg!(debug_assertions) {
        check(&plan).map_err(PlanError::Unsound)?;
    }
    Ok(plan)
}

impl StepPlan {
    /// The same step with one graph per phase in place of one for all of it, and all other choices alike.
    ///
    /// # Errors
    /// A step that cannot be cut so: [`PlanError`] says why.
    pub fn by_phase(&self) -> Result<Self, PlanError> {
        let mut fusion = FusionPlan { graphs: Graphs::PerPhase, ..self.fusion.clone() };
        let is_named = FusionPlan { name: FusionPlan::phases().name, ..fusion.clone() } == FusionPlan::phases();
        fusion.name = if is_named { FusionPlan::phases().name } else { format!("{} by phase", fusion.name) };
        let declared = self.program.declared();
        plan(declared, self.step_name(), self.variant(), &fusion, &self.target, &self.tuning())
    }

    /// How the plan's products are computed, to plan others alike.
    fn tuning(&self) -> Tuning {
        let step = &self.program.program().steps[self.step];
        let gemms = self.units.values().filter_map(|unit| match (&step.nodes[unit.node].op, &unit.work) {
            (NodeOp::Gemm(gemm), Work::Gemm(found)) => Some((GemmKey::of(gemm), *found)),
            _ => None,
        });
        Tuning { gemms: gemms.collect() }
    }
}

fn find(program: &Program, step: &str, variant: Option<&str>) -> Result<StepId, PlanError> {
    let Some(id) = program.step(step) else {
        let known = program.steps.values().map(|step| step.name.clone()).collect();
        return Err(PlanError::UnknownStep { program: program.name.clone(), step: step.into(), known });
    };
    let found = &program.steps[id];
    let known = || found.variants.clone();
    match variant {
        None if !found.variants.is_empty() => Err(PlanError::VariantNeeded { step: step.into(), known: known() }),
        Some(variant) if !found.variants.iter().any(|own| own == variant) => {
            Err(PlanError::UnknownVariant { step: step.into(), variant: variant.into(), known: known() })
        }
        _ => Ok(id),
    }
}

fn wanted(fuse: &Fuse) -> Vec<&str> {
    match fuse {
        Fuse::None => Vec::new(),
        Fuse::All => pass::NAMES.to_vec(),
        Fuse::Named(names) => names.iter().map(String::as_str).collect(),
    }
}

fn lower(
    program: ValidProgram,
    id: StepId,
    variant: Option<&str>,
    fusion: &FusionPlan,
    target: &Target,
    tuning: &Tuning,
) -> Result<StepPlan, PlanError> {
    let step = &program.program().steps[id];
    let chain = fusion.schedule == Schedule::Chain || fusion.graphs == Graphs::PerNode;
    let (copies, units) = (fusion.repeat.copies(), PrimaryMap::new());
    let mut lowering = Lowering {
        program: program.program(),
        origins: program.origins(),
        step_id: id,
        step,
        target,
        tuning,
        chain,
        in_loop: false,
        copies,
        units,
    };
    let phases: Vec<(PhaseId, &[NodeId])> =
        step.phases_in(variant).map(|(phase, content)| (phase, content.nodes.as_slice())).collect();
    let graphs = {
        let _span = tracing::debug_span!("order").entered();
        cut(&mut lowering, &phases, fusion.graphs)?
    };
    let units = lowering.units;
    let arena = {
        let _span = tracing::debug_span!("place").entered();
        arena(program.program(), step, &units, &graphs, fusion.graphs == Graphs::PerNode)?
    };
    let (variant, fusion, target) = (variant.map(str::to_owned), fusion.clone(), target.clone());
    Ok(StepPlan { step: id, variant, fusion, target, units, graphs, arena, program })
}

/// One graph per phase, or one for all of them; an unrolled step is cut as if it were written so often.
fn cut(
    lowering: &mut Lowering<'_>,
    phases: &[(PhaseId, &[NodeId])],
    graphs: Graphs,
) -> Result<Vec<GraphPlan>, PlanError> {
    let (step, copies) = (lowering.step, lowering.copies);
    let listed = |iteration: u32, &(phase, nodes): &(PhaseId, &[NodeId])| {
        nodes.iter().map(move |&node| Listed { phase, node, iteration }).collect::<Vec<_>>()
    };
    let all = (0..copies).flat_map(|iteration| phases.iter().map(move |phase| (iteration, phase)));
    if graphs == Graphs::PerPhase {
        let graph = |(iteration, phase): (u32, &(PhaseId, &[NodeId]))| {
            let name = numbered(&step.phases[phase.0].name, iteration, copies);
            Ok(GraphPlan { name, body: lowering.body(&listed(iteration, phase))? })
        };
        return all.map(graph).collect();
    }
    let all: Vec<_> = all.flat_map(|(iteration, phase)| listed(iteration, phase)).collect();
    Ok(vec![GraphPlan { name: step.name.clone(), body: lowering.body(&all)? }])
}
