//! A spec that is valid: its program, and its text to point at when a step of it cannot be planned.

use stepgraph::ir::Program;
use stepgraph::plan::{FusionPlan, StepPlan, Target, Tuning, plan};
use stepgraph::spec::{self, SpecOptions};
use stepgraph::valid::ValidProgram;

use super::args::SpecArgs;
use super::excerpt::Source;
use super::failure::Failure;

/// A valid spec.
pub(super) struct Spec {
    program: ValidProgram,
    source: Source,
}

impl Spec {
    /// Reads and validates a spec.
    pub(super) fn read(args: &SpecArgs) -> Result<Self, Failure> {
        let options = SpecOptions { dims: args.set.iter().cloned().collect(), ..SpecOptions::default() };
        let parsed = spec::read(&args.spec, &options)?;
        let source = Source { name: parsed.name.clone(), text: parsed.source_text.clone() };
        Ok(Self { program: parsed.validate()?, source })
    }

    pub(super) fn program(&self) -> &Program {
        self.program.program()
    }

    /// Plans a step; what cannot be planned is underlined.
    pub(super) fn plan(
        &self,
        step: &str,
        variant: Option<&str>,
        fusion: &FusionPlan,
        target: &Target,
    ) -> Result<StepPlan, Failure> {
        plan(&self.program, step, variant, fusion, target, &Tuning::default())
            .map_err(|error| Failure::of_plan(&error, &self.source))
    }
}
