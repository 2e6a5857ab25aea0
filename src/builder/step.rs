//! Steps and phases.

use super::body::Body;
use super::core::Core;
use crate::entity::{EntityRef, ScalarId, StepId};
use crate::handle::Scalar;
use crate::ir::{Item, Origin, Phase, Step};

/// A step under construction.
#[derive(Debug)]
pub struct StepBuilder<'b> {
    core: &'b mut Core,
    step: StepId,
}

pub(super) fn add<R>(
    core: &mut Core,
    name: &str,
    variants: &[&str],
    origin: Origin,
    fill: impl FnOnce(&mut StepBuilder<'_>) -> R,
) -> R {
    let variants = variants.iter().map(|&variant| variant.into()).collect();
    let step = core.program.steps.push(Step { name: name.into(), variants, ..Step::default() });
    core.origins.set(Item::Step(step), origin);
    fill(&mut StepBuilder { core, step })
}

impl StepBuilder<'_> {
    /// Adds a phase that every variant runs.
    #[track_caller]
    pub fn phase<R>(&mut self, name: &str, fill: impl FnOnce(&mut Body<'_>) -> R) -> R {
        self.add(name, &[], None, super::here(), fill)
    }

    /// Adds a phase that only these variants run.
    #[track_caller]
    pub fn phase_in<R>(&mut self, name: &str, variants: &[&str], fill: impl FnOnce(&mut Body<'_>) -> R) -> R {
        self.add(name, variants, None, super::here(), fill)
    }

    /// Adds a phase that is skipped where a cell is 0.
    #[track_caller]
    pub fn phase_if<R>(&mut self, name: &str, guard: Scalar<u32>, fill: impl FnOnce(&mut Body<'_>) -> R) -> R {
        let origin = super::here();
        let own = self.core.own(name, "the guard", guard.tag, origin);
        self.add(name, &[], own.then_some(guard.id), origin, fill)
    }

    fn add<R>(
        &mut self,
        name: &str,
        variants: &[&str],
        guard: Option<ScalarId>,
        origin: Origin,
        fill: impl FnOnce(&mut Body<'_>) -> R,
    ) -> R {
        let variants = variants.iter().map(|&variant| variant.into()).collect();
        let phase = Phase { name: name.into(), variants, guard, nodes: Vec::new() };
        let phase = self.core.program.steps[self.step].phases.push(phase);
        self.core.origins.set(Item::Phase(self.step, phase), origin);
        let mut body = Body::new(self.core, self.step);
        let result = fill(&mut body);
        let nodes = body.into_nodes();
        debug_assert!(nodes.iter().all(|node| node.index() < self.core.program.steps[self.step].nodes.len()));
        self.core.program.steps[self.step].phases[phase].nodes = nodes;
        result
    }
}
