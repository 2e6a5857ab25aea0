//! The ordered pipeline: from a declared program to a plan.
//!
//! Stages know only what is below them; the methods that join stages are here.

use crate::builder::Builder;
use crate::ir::Diagnostics;
use crate::plan::{FusionPlan, PlanError, StepPlan, Target, Tuning, plan};
use crate::spec::{ParsedSpec, SpecErrors};
use crate::valid::{ValidProgram, validate};

impl Builder {
    /// Checks the program.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with the line that made it. Handles of other programs and tensors that do not
    /// broadcast are reported alone, since the nodes that have them are missing from the program.
    pub fn build(self) -> Result<ValidProgram, Diagnostics> {
        let (program, origins, host_fns, errors) = self.into_parts();
        match errors {
            Some(errors) => Err(errors),
            None => validate(program, origins, host_fns),
        }
    }
}

impl ValidProgram {
    /// Plans a step that has no variants.
    ///
    /// # Errors
    /// The first rule of [`PlanError`] that is broken.
    pub fn plan(
        &self,
        step: &str,
        fusion: &FusionPlan,
        target: &Target,
        tuning: &Tuning,
    ) -> Result<StepPlan, PlanError> {
        plan(self, step, None, fusion, target, tuning)
    }

    /// Plans one variant of a step.
    ///
    /// # Errors
    /// The first rule of [`PlanError`] that is broken.
    pub fn plan_variant(
        &self,
        step: &str,
        variant: &str,
        fusion: &FusionPlan,
        target: &Target,
        tuning: &Tuning,
    ) -> Result<StepPlan, PlanError> {
        plan(self, step, Some(variant), fusion, target, tuning)
    }
}

impl ParsedSpec {
    /// Checks the program.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with the bytes of the spec that it is about.
    pub fn validate(self) -> Result<ValidProgram, SpecErrors> {
        let Self { name, source_text, program, origins, host_fns } = self;
        validate(program, origins, host_fns)
            .map_err(|diagnostics| SpecErrors::of_program(&name, source_text, diagnostics))
    }
}
