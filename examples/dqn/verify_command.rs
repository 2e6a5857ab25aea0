//! `dqn verify FILE…`: golden files on a device, as a table of errors and a verdict.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use stepgraph::ir::Compute;
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::Device;

use super::golden::Golden;
use super::verify::{Options, verify};

/// Runs golden files, and compares with what must come out.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Golden files (safetensors).
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where to run: auto, host, cuda or cuda:N.
    #[arg(long, default_value = "auto")]
    device: String,
    /// How the step becomes launches: debug, phases, mega or fast.
    #[arg(long, default_value = "mega", value_parser = FusionPlan::NAMES)]
    plan: String,
    /// The arithmetic of matrix products, which also chooses the tolerances.
    #[arg(long, default_value = "f32", value_parser = ["f32", "tf32"])]
    compute: String,
}

/// Verifies every file; the last line written is the verdict, which is also returned.
///
/// # Errors
/// A file that is no golden file, or a device that failed.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<bool> {
    let device: Device = args.device.parse()?;
    let plan = FusionPlan::named(&args.plan).context("no such plan")?;
    let compute = if args.compute == "tf32" { Compute::Tf32 } else { Compute::F32 };
    let options = Options { device, plan, compute };
    // Every file is read before anything runs: a bad one is said at once.
    let load = |path: &PathBuf| Golden::load(path).with_context(|| path.display().to_string());
    let files = args.files.iter().map(load).collect::<Result<Vec<_>>>()?;
    let mut passed = true;
    for (golden, path) in files.iter().zip(&args.files) {
        let report = verify(golden, &options).with_context(|| path.display().to_string())?;
        let Golden { case, variant, steps, .. } = golden;
        let (plan, compute) = (&args.plan, &args.compute);
        writeln!(out, "{case}: {variant}, {steps} steps on {device} under {plan}, {compute}")?;
        write!(out, "{report}")?;
        passed &= report.passed();
    }
    writeln!(out, "verified: {}", if passed { "PASS" } else { "FAIL" })?;
    Ok(passed)
}
