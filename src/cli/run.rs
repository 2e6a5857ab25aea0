//! `stepgraph run`: runs a step.

use std::collections::HashSet;
use std::io::Write;
use std::time::Instant;

use stepgraph::cuda::probe;
use stepgraph::entity::{NodeId, StepId};
use stepgraph::ir::{ConstValue, DType, Program, Resource, Role, Step, node_accesses};
use stepgraph::plan::{StepPlan, Target};
use stepgraph::runtime::{Device, Session, TensorData};

use super::args::{DeviceChoice, RunArgs};
use super::failure::Failure;
use super::progress::Progress;
use super::spec::Spec;
use super::{counted, lower, tensors};

/// Of buffers with more elements, only type and shape are shown.
const SHOWN_ELEMENTS: usize = 8;

/// Runs the step, prints its outputs, and writes the dump last, when nothing can fail any more.
pub(super) fn run(args: &RunArgs, out: &mut impl Write) -> Result<(), Failure> {
    let spec = Spec::read(&args.spec)?;
    let (device, why) = choose(args.device);
    let plan = plan_of(args, &spec, device)?;
    let launches = launches(args, &plan)?;
    if let Some(path) = &args.dump {
        tensors::place(path)?;
    }
    let mut session = Session::builder().seed(args.seed).on_failure(args.on_failure.into()).open(device, [plan])?;
    if let Some(path) = &args.inputs {
        let left_out = tensors::load(&mut session, spec.program(), path)?;
        tensors::note_left_out(&left_out, path, out)?;
    }
    let report = session.report();
    writeln!(out, "device {}{why}", report.device)?;
    for fallback in &report.fallbacks {
        writeln!(out, "{fallback}")?;
    }
    let start = Instant::now();
    launch(&mut session, args, launches)?;
    let seconds = start.elapsed().as_secs_f64();
    let plan = &session.plans()[0];
    let variant = plan.variant().map(|variant| format!(", variant `{variant}`")).unwrap_or_default();
    let of = match plan.fusion().repeat.steps() {
        1 => String::new(),
        steps => format!(" of {steps} steps"),
    };
    writeln!(
        out,
        "step `{}`{variant}, plan {}: {}{of} in {seconds:.3} s",
        plan.step_name(),
        plan.fusion().name,
        counted(launches, "launch", "launches")
    )?;
    let results = tensors::collect(&mut session, spec.program())?;
    let step = session.plans()[0].step();
    show(spec.program(), step, &results, out)?;
    if let Some(path) = &args.dump {
        tensors::save(path, &results)?;
        writeln!(out, "wrote {} tensors to {}", results.len(), path.display())?;
    }
    Ok(())
}

/// The device, and why it was chosen where the user left it open.
pub(super) fn choose(choice: DeviceChoice) -> (Device, String) {
    let host = |why: String| (Device::Host, format!(" (auto: {why})"));
    match choice {
        DeviceChoice::Named(device) => (device, String::new()),
        DeviceChoice::Auto => match probe::devices() {
            Ok(devices) if devices.is_empty() => host("the driver reports no device".into()),
            Ok(_) => (Device::Cuda { ordinal: 0 }, " (auto)".into()),
            Err(error) => host(error.to_string()),
        },
    }
}

/// The plan of the step that is asked for, or of the only one, for the device that is there.
fn plan_of(args: &RunArgs, spec: &Spec, device: Device) -> Result<StepPlan, Failure> {
    let step = step_of(spec.program(), args.plan.step.as_deref())?;
    let fusion = lower::repeated(&args.plan)?;
    spec.plan(step, args.plan.variant.as_deref(), &fusion, &target(device))
}

/// The step that is asked for, or the only one.
pub(super) fn step_of<'a>(program: &'a Program, asked: Option<&'a str>) -> Result<&'a str, Failure> {
    let names: Vec<_> = program.steps.values().map(|step| step.name.as_str()).collect();
    match (asked, &names[..]) {
        (Some(step), _) => Ok(step),
        (None, [only]) => Ok(only),
        (None, []) => Err(Failure::no_steps()),
        (None, _) => {
            Err(Failure::usage(format_args!("the program has the steps {}: name one with --step", names.join(", "))))
        }
    }
}

/// The limits of the device; a device that cannot be asked fails when the session is opened.
pub(super) fn target(device: Device) -> Target {
    let Device::Cuda { ordinal } = device else { return Target::default() };
    let known = probe::devices().unwrap_or_default().into_iter().find(|device| device.ordinal == ordinal);
    known.map_or_else(Target::default, |device| Target {
        sm: device.sm,
        multiprocessors: device.multiprocessors,
        shared_per_block: device.shared_per_block,
        driver: device.driver,
    })
}

/// How many launches make the steps that are asked for.
fn launches(args: &RunArgs, plan: &StepPlan) -> Result<u64, Failure> {
    let each = u64::from(plan.fusion().repeat.steps());
    let steps = args.steps.unwrap_or(each);
    if !steps.is_multiple_of(each) {
        let message = format_args!("{steps} steps are no whole number of launches of {each} steps: change --steps");
        return Err(Failure::usage(message));
    }
    Ok(steps / each)
}

fn launch(session: &mut Session, args: &RunArgs, launches: u64) -> Result<(), Failure> {
    let (step, variant) = (session.plans()[0].step_name().to_owned(), args.plan.variant.as_deref());
    let mut progress = Progress::new(launches);
    for number in 1..=launches {
        match variant {
            Some(variant) => session.launch_variant(&step, variant)?,
            None => session.launch(&step)?,
        };
        if args.find_non_finite {
            refuse_non_finite(session, number)?;
        }
        progress.step();
    }
    session.wait()?;
    progress.finish();
    Ok(())
}

/// Ends the run at the first value that is NaN or infinite.
fn refuse_non_finite(session: &mut Session, launch: u64) -> Result<(), Failure> {
    match session.first_non_finite()? {
        Some(found) => Err(Failure::program(format_args!("launch {launch}: {found}"))),
        None => Ok(()),
    }
}

/// Prints what the step wrote to outputs and device scalars: small ones in full, of larger ones type and shape.
fn show(
    program: &Program,
    step: StepId,
    results: &[(String, TensorData)],
    out: &mut impl Write,
) -> Result<(), Failure> {
    let step = &program.steps[step];
    let written: HashSet<_> = step.nodes.keys().flat_map(|node| written_names(program, step, node)).collect();
    for (name, data) in results.iter().filter(|(name, _)| written.contains(name.as_str())) {
        writeln!(out, "{name} = {}", values(data))?;
    }
    Ok(())
}

/// The outputs and scalars that a node writes.
fn written_names<'p>(program: &'p Program, step: &Step, node: NodeId) -> Vec<&'p str> {
    let accesses = node_accesses(program, step, node).into_iter().filter(|access| access.mode.writes());
    let names = accesses.filter_map(|access| match access.resource {
        Resource::Scalar(scalar) => Some(program.scalars[scalar].name.as_str()),
        Resource::View(view) => {
            let buffer = &program.buffers[view.buffer];
            (buffer.role == Role::Output).then_some(buffer.name.as_str())
        }
    });
    names.collect()
}

fn values(data: &TensorData) -> String {
    let bits: Vec<u32> = match data.dtype {
        DType::Bf16 => {
            data.bytes.chunks_exact(2).map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16).collect()
        }
        _ => data.bytes.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect(),
    };
    if bits.len() > SHOWN_ELEMENTS {
        return format!("{} {}", data.dtype, data.shape);
    }
    let dtype = if data.dtype == DType::Bf16 { DType::F32 } else { data.dtype };
    let texts: Vec<_> =
        bits.iter().filter_map(|&bits| ConstValue::from_bits(dtype, bits)).map(|value| value.to_string()).collect();
    if data.shape.rank() == 0 { texts.concat() } else { format!("[{}]", texts.join(", ")) }
}
