//! `stepgraph check`: is the program right?

use std::io::Write;

use stepgraph::ir::{Program, Role};
use stepgraph::plan::{FusionPlan, Target};

use super::args::CheckArgs;
use super::failure::Failure;
use super::lower::plans_of;
use super::spec::Spec;

/// Reads, validates and plans; prints a summary, or the canonical spec.
pub(super) fn run(args: &CheckArgs, out: &mut impl Write) -> Result<(), Failure> {
    let spec = Spec::read(&args.spec)?;
    plans_of(&spec, None, None, &FusionPlan::mega(), &Target::default())?;
    if args.canonical {
        write!(out, "{}", stepgraph::spec::write(spec.program()))?;
        return Ok(());
    }
    summary(spec.program(), out)
}

fn summary(program: &Program, out: &mut impl Write) -> Result<(), Failure> {
    writeln!(out, "program `{}` is valid", program.name)?;
    for role in Role::ALL {
        let buffers: Vec<_> = program.buffers_of(role).map(|(_, buffer)| buffer.bytes()).collect();
        if !buffers.is_empty() {
            writeln!(out, "  {:7} {:4} buffers, {} bytes", role.name(), buffers.len(), buffers.iter().sum::<u64>())?;
        }
    }
    writeln!(out, "  {:4} scalars, {} kernels", program.scalars.len(), program.kernels.len())?;
    for step in program.steps.values() {
        let (phases, nodes) = (step.phases.len(), step.nodes.len());
        let variants = match &step.variants[..] {
            [] => String::new(),
            variants => format!(", variants {}", variants.join(", ")),
        };
        writeln!(out, "  step `{}`: {phases} phases, {nodes} nodes{variants}", step.name)?;
    }
    Ok(())
}
