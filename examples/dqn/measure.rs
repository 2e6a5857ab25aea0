//! `dqn measure`: microseconds of a training step at sizes that are published for other frameworks, plan against plan.
//!
//! The step is the whole one from spectral normalisation to the metrics, on batches that the host wrote once into state:
//! neither drawing nor gathering is in the time. Three branches of 9, 3 and 3 actions, three classes, two residual blocks.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;
use stepgraph::Builder;
use stepgraph::bench::{BenchOptions, Contender, bench};
use stepgraph::ir::{Compute, Role};
use stepgraph::plan::{FusionPlan, Repeat, Target, Tuning};
use stepgraph::runtime::{Device, RuntimeError, Session};
use stepgraph::valid::{ValidProgram, validate};

use super::hyper::{Hyper, Mask, Source};
use super::train::Dqn;

/// Measures a training step at given sizes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Sizes to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "s,m,l,xl")]
    sizes: Vec<Scale>,
    /// Where to run: auto, host, cuda or cuda:N.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Plans to compare; the first one is the reference.
    #[arg(long, value_delimiter = ',', default_value = "debug,phases,mega", value_parser = FusionPlan::NAMES)]
    plans: Vec<String>,
    /// Also measures the mega plan with K steps per launch, unrolled; several K may be given.
    #[arg(long, value_name = "K", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    unroll: Vec<u32>,
    /// Also measures the mega plan with K steps per launch, in a loop on the device; several K may be given.
    #[arg(long = "loop", value_name = "K", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    looped: Vec<u32>,
    /// The arithmetic of matrix products.
    #[arg(long, default_value = "tf32", value_parser = ["f32", "tf32"])]
    compute: String,
    /// Samples of each plan.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Launches of a sample.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
}

/// Batch, observation, trunk and head widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scale {
    /// 64, 64, 256, 128.
    S,
    /// 256, 64, 256, 128.
    M,
    /// 1024, 64, 512, 256.
    L,
    /// 8192, 128, 2048, 1024.
    Xl,
}

impl Scale {
    fn hyper(self, compute: Compute) -> Hyper {
        let [batch, observation, trunk, head] = match self {
            Self::S => [64, 64, 256, 128],
            Self::M => [256, 64, 256, 128],
            Self::L => [1024, 64, 512, 256],
            Self::Xl => [8192, 128, 2048, 1024],
        };
        Hyper {
            batch,
            observation,
            trunk,
            head,
            blocks: 2,
            branches: vec![9, 3, 3],
            classes: 3,
            atoms: 1,
            support: [0.0, 0.0],
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            compute,
            source: Source::Inputs,
            mask: Mask::Forced,
        }
    }
}

/// Measures every size, one table each.
///
/// # Errors
/// A device that failed.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let device: Device = args.device.parse()?;
    let compute = if args.compute == "tf32" { Compute::Tf32 } else { Compute::F32 };
    let options = BenchOptions { rounds: args.rounds, launches: args.steps, ..BenchOptions::default() };
    for &scale in &args.sizes {
        let hyper = scale.hyper(compute);
        hyper.check()?;
        let mut p = Builder::new("dqn");
        let dqn = Dqn::declare(&mut p, &hyper);
        dqn.add_train(&mut p);
        let program = resident(&p.build()?)?;
        let plan = |fusion: FusionPlan| {
            let start = Instant::now();
            let plan = program.plan_variant("train", "ddqn", &fusion, &Target::default(), &Tuning::default())?;
            Ok(Contender { name: fusion.name, plan, planned_in: start.elapsed() })
        };
        let contenders = fusions(args)?.into_iter().map(plan).collect::<Result<Vec<_>>>()?;
        let report = bench(device, &contenders, &options, |session| anyhow::Ok(load(session, &dqn)?), |_| ())?;
        let Hyper { batch, observation, trunk, head, .. } = hyper;
        writeln!(out, "size {scale:?}: B {batch}, S {observation}, H {trunk}, V {head}; ddqn, {}", args.compute)?;
        writeln!(out, "{report}")?;
    }
    Ok(())
}

fn fusions(args: &Args) -> Result<Vec<FusionPlan>> {
    let mut fusions: Vec<_> =
        args.plans.iter().map(|name| FusionPlan::named(name).context("no such plan")).collect::<Result<_>>()?;
    fusions.extend(args.unroll.iter().map(|&steps| FusionPlan::mega().repeated(Repeat::Unroll(steps))));
    fusions.extend(args.looped.iter().map(|&steps| FusionPlan::mega().repeated(Repeat::Loop(steps))));
    Ok(fusions)
}

/// The program with its batch in state: it is written once, and so a launch can make several steps on it.
fn resident(program: &ValidProgram) -> Result<ValidProgram> {
    let mut changed = program.program().clone();
    for buffer in changed.buffers.values_mut().filter(|buffer| buffer.role == Role::Input) {
        buffer.role = Role::State;
    }
    Ok(validate(changed, program.origins().clone(), program.host_fns().clone())?)
}

/// A batch, a target network and scalars with the distributions that the published measurements use.
fn load(session: &mut Session, dqn: &Dqn) -> Result<(), RuntimeError> {
    let mut draw = Draw(1);
    let batch = dqn.hyper.batch as usize;
    session.load(dqn.batch.x, &draw.floats(2 * batch * dqn.hyper.observation as usize, -1.7, 1.7))?;
    let actions = (0..batch).flat_map(|_| dqn.hyper.branches.clone());
    let actions: Vec<_> = actions.map(|choices| (draw.next() % choices).cast_signed()).collect();
    session.load(dqn.batch.action, &actions)?;
    session.load(dqn.batch.reward, &draw.floats(batch, -1.7, 1.7))?;
    session
        .load(dqn.batch.done, &draw.floats(batch, -0.95, 0.05).iter().map(|x| x.max(0.0).ceil()).collect::<Vec<_>>())?;
    session.load(dqn.batch.weight, &draw.floats(batch, 0.2, 1.0))?;
    let classes: Vec<_> = (0..batch).map(|_| (draw.next() % dqn.hyper.classes).cast_signed()).collect();
    session.load(dqn.batch.class, &classes)?;
    if let Some(mask) = dqn.mask {
        session.load(mask, &[1.0, 1.25])?;
    }
    for (target, theta) in dqn.target.layers().zip(dqn.theta.layers()) {
        for (target, theta) in [(target.w, theta.w), (target.b, theta.b)] {
            let near: Vec<_> = session.read(theta)?.iter().map(|x| x + draw.float(-0.02, 0.02)).collect();
            session.load(target, &near)?;
        }
    }
    let scalars = &dqn.scalars;
    let values = [
        (scalars.aux_w, 0.1),
        (scalars.lr, 3e-4),
        (scalars.tau, 0.005),
        (scalars.sigma_max, 1.5),
        (scalars.max_norm, 10.0),
        (scalars.gamma, 0.99),
    ];
    values.into_iter().try_for_each(|(scalar, value)| session.set(scalar, value))
}

/// PCG-XSH-RR 32 (O'Neill, 2014): the same data in every session.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u32 {
        let state = self.0;
        self.0 = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = ((state >> 18) ^ state) >> 27;
        #[expect(clippy::cast_possible_truncation, reason = "the generator takes the low word")]
        (mixed as u32).rotate_right((state >> 59) as u32)
    }

    fn float(&mut self, low: f32, high: f32) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "24 bits fit")]
        let unit = (self.next() >> 8) as f32 / 16_777_216.0;
        low + (high - low) * unit
    }

    fn floats(&mut self, count: usize, low: f32, high: f32) -> Vec<f32> {
        (0..count).map(|_| self.float(low, high)).collect()
    }
}
