//! `stepgraph bench`: which plan is faster, and is that more than noise?

use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use stepgraph::bench::{BenchOptions, BenchReport, Contender, Progress as Stage, bench};
use stepgraph::ir::{DType, Program, Role};
use stepgraph::plan::{FusionPlan, Graphs, Repeat};
use stepgraph::runtime::Session;

use super::args::BenchArgs;
use super::failure::Failure;
use super::progress::Progress;
use super::spec::Spec;
use super::{lower, run, tensors};

/// Compares the plans, prints the table, and writes the report where one is asked for.
pub(super) fn run(args: &BenchArgs, out: &mut impl Write) -> Result<(), Failure> {
    let spec = Spec::read(&args.spec)?;
    if let Some(folder) = &args.report {
        std::fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
    }
    let (device, _) = run::choose(args.device);
    let (step, variant, target) =
        (run::step_of(spec.program(), args.step.as_deref())?, args.variant.as_deref(), run::target(device));
    let mut contenders = Vec::with_capacity(args.plans.len());
    for fusion in fusions(args)? {
        let start = Instant::now();
        let plan = spec.plan(step, variant, &fusion, &target)?;
        contenders.push(Contender { name: fusion.name, plan, planned_in: start.elapsed() });
    }
    let BenchArgs { rounds, launches, seed, .. } = *args;
    let options = BenchOptions { rounds, launches, seed, ..BenchOptions::default() };
    let mut progress = Progress::new(u64::from(rounds));
    let report = bench(
        device,
        &contenders,
        &options,
        |session| match &args.inputs {
            Some(path) => tensors::load(session, spec.program(), path).map(drop),
            None => randomise(session, spec.program(), seed),
        },
        |stage| {
            if let Stage::Sampled(..) = stage {
                progress.step();
            }
        },
    )?;
    progress.finish();
    write!(out, "{report}")?;
    if let Some(folder) = &args.report {
        save(&report, folder)?;
        writeln!(out, "\nwrote table.txt and report.json to {}", folder.display())?;
    }
    Ok(())
}

/// The plans by name, then those that make several steps per launch.
fn fusions(args: &BenchArgs) -> Result<Vec<FusionPlan>, Failure> {
    let mut fusions: Vec<_> = args.plans.iter().map(|name| lower::fusion(name)).collect::<Result<_, _>>()?;
    let single: Vec<_> = fusions.iter().filter(|fusion| fusion.graphs == Graphs::Mega).cloned().collect();
    let unrolled = args.unroll.iter().map(|&steps| Repeat::Unroll(steps));
    let repeats: Vec<_> = unrolled.chain(args.looped.iter().map(|&steps| Repeat::Loop(steps))).collect();
    if single.is_empty() && !repeats.is_empty() {
        return Err(Failure::usage(
            "--unroll and --loop repeat plans with one graph: name one, such as mega, in --plans",
        ));
    }
    for fusion in single {
        fusions.extend(repeats.iter().map(|&repeat| fusion.clone().repeated(repeat)));
    }
    Ok(fusions)
}

/// Writes random floats into float inputs: a step on zeros can be faster than on any data.
fn randomise(session: &mut Session, program: &Program, seed: u64) -> Result<(), Failure> {
    for (index, (_, buffer)) in program.buffers_of(Role::Input).enumerate() {
        let mut random = stepgraph::bench::Random::new(seed ^ (index as u64).wrapping_mul(0x9E37_79B9));
        let mut floats = (0..buffer.shape.elements()).map(|_| random.float());
        let bytes: Vec<u8> = match buffer.dtype {
            DType::F32 => floats.flat_map(f32::to_le_bytes).collect(),
            DType::Bf16 => floats.by_ref().flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
            DType::I32 | DType::U32 => continue,
        };
        session.write_by_name(&buffer.name, buffer.dtype, &bytes)?;
    }
    Ok(())
}

fn unwritable(folder: &Path, error: &dyn Display) -> Failure {
    Failure::program(format_args!("cannot write to {}: {error}", folder.display()))
}

fn save(report: &BenchReport, folder: &Path) -> Result<(), Failure> {
    let failed = |error: &dyn Display| unwritable(folder, error);
    let json = report.json().map_err(|error| failed(&error))?;
    std::fs::write(folder.join("table.txt"), report.to_string()).map_err(|error| failed(&error))?;
    std::fs::write(folder.join("report.json"), json).map_err(|error| failed(&error))
}
