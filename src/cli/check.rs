//! `stepgraph check`: is the program right?

use std::io::Write;

use stepgraph::ir::{Program, Role};
use stepgraph::plan::{FusionPlan, Target};

use super::args::CheckArgs;
use super::counted;
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
            let (count, bytes) = (buffers.len() as u64, buffers.iter().sum::<u64>());
            writeln!(out, "  {:7} {}, {bytes} bytes", role.name(), counted(count, "buffer", "buffers"))?;
        }
    }
    let (scalars, kernels) = (program.scalars.len() as u64, program.kernels.len() as u64);
    writeln!(out, "  {}, {}", counted(scalars, "scalar", "scalars"), counted(kernels, "kernel", "kernels"))?;
    for step in program.steps.values() {
        let phases = counted(step.phases.len() as u64, "phase", "phases");
        let nodes = counted(step.nodes.len() as u64, "node", "nodes");
        let variants = match &step.variants[..] {
            [] => String::new(),
            variants => format!(", variants {}", variants.join(", ")),
        };
        writeln!(out, "  step `{}`: {phases}, {nodes}{variants}", step.name)?;
    }
    Ok(())
}
