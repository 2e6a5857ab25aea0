//! `stepgraph lower`: what would run?

use std::io::Write;

use stepgraph::plan::{FusionPlan, Repeat, StepPlan, Target};

use super::args::{Format, LowerArgs, PlanArgs};
use super::failure::Failure;
use super::spec::Spec;

/// Prints plans.
pub(super) fn run(args: &LowerArgs, out: &mut impl Write) -> Result<(), Failure> {
    let spec = Spec::read(&args.spec)?;
    if spec.program().steps.is_empty() {
        return Err(Failure::no_steps());
    }
    let fusion = repeated(&args.plan)?;
    let (step, variant) = (args.plan.step.as_deref(), args.plan.variant.as_deref());
    let plans = plans_of(&spec, step, variant, &fusion, &Target::default())?;
    match args.format {
        Format::Text => {
            for (at, plan) in plans.iter().enumerate() {
                write!(out, "{}{}", if at == 0 { "" } else { "\n" }, plan.text())?;
            }
        }
        Format::Dot => plans.iter().try_for_each(|plan| write!(out, "{}", plan.dot()))?,
        Format::Json => {
            let plans: Vec<_> = plans.iter().map(StepPlan::json).collect();
            writeln!(out, "{:#}", serde_json::Value::Array(plans))?;
        }
    }
    Ok(())
}

/// The plan of this name; the grammar has refused all others.
pub(super) fn fusion(name: &str) -> Result<FusionPlan, Failure> {
    FusionPlan::named(name).ok_or_else(|| Failure::usage(format_args!("there is no plan `{name}`")))
}

/// The plan that is asked for, with the steps of one launch.
pub(super) fn repeated(args: &PlanArgs) -> Result<FusionPlan, Failure> {
    let repeat = match (args.unroll, args.looped) {
        (Some(steps), _) => Repeat::Unroll(steps),
        (None, Some(steps)) => Repeat::Loop(steps),
        (None, None) => Repeat::Once,
    };
    Ok(fusion(&args.plan)?.repeated(repeat))
}

/// The plans of one step or all, in one variant or all.
pub(super) fn plans_of(
    spec: &Spec,
    step: Option<&str>,
    variant: Option<&str>,
    fusion: &FusionPlan,
    target: &Target,
) -> Result<Vec<StepPlan>, Failure> {
    let steps = spec.program().steps.values();
    let known: Vec<_> = steps.filter(|known| step.is_none_or(|name| name == known.name)).collect();
    if let ([], Some(name)) = (&known[..], step) {
        return spec.plan(name, variant, fusion, target).map(|plan| vec![plan]);
    }
    let mut plans = Vec::new();
    for step in known {
        let forms = if variant.is_some() { vec![variant] } else { step.forms() };
        for form in forms {
            plans.push(spec.plan(&step.name, form, fusion, target)?);
        }
    }
    Ok(plans)
}
