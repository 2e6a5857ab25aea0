//! The flagship on a device: golden files under every plan and arithmetic, each hand-written kernel against its host function, and
//! bits that repeat.

use stepgraph::Builder;
use stepgraph::builder::Body;
use stepgraph::handle::Const;
use stepgraph::ir::{Compute, Init};
use stepgraph::kernel::library::dqn::{td_categorical, td_scalar, train_metrics};
use stepgraph::kernel::library::guarded::{adam_guarded, clip_factor, ema_guarded, square_sums};
use stepgraph::kernel::library::replay::{gather_relabel, prioritised_draw, priority_update};
use stepgraph::kernel::library::spectral::{spectral_apply, spectral_project, spectral_shrink};
use stepgraph::plan::{FusionPlan, Tuning};
use stepgraph::runtime::{Device, Session};
use stepgraph::valid::ValidProgram;

use crate::dqn::golden::Golden;
use crate::dqn::hyper::{Hyper, Mask, Source};
use crate::dqn::train::Dqn;
use crate::dqn::verify::{Options, verify};
use crate::support::{Memory, Numbers, device, fill, named_plans, plan, target};

macro_rules! golden {
    ($($case:literal),*) => {
        [$(($case, include_bytes!(concat!("../golden/", $case, ".safetensors")).as_slice())),*]
    };
}

/// The files travel in the binary: the machine that runs it may have no source tree.
const GOLDEN: [(&str, &[u8]); 7] =
    golden!("ddqn_tiny", "mse_tiny", "c51_tiny", "ddqn_odd", "ddqn_scalars", "ddqn_nonfinite", "ddqn_ties");

/// Protects: the step computes on the device what the reference computes, however it is launched, with full and TF32 products.
#[test]
fn golden_files_pass() {
    let Some(device) = device() else { return };
    for (case, bytes) in GOLDEN {
        let golden = Golden::parse(bytes).unwrap_or_else(|error| panic!("{case}: {error}"));
        for (plan, compute) in
            named_plans().into_iter().flat_map(|plan| [Compute::F32, Compute::Tf32].map(|c| (plan.clone(), c)))
        {
            let context = format!("{case} under {}, {}", plan.name, compute.name());
            let report = verify(&golden, &Options { device, plan, compute });
            let report = report.unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(report.passed(), "{context}:\n{report}");
        }
    }
}

// ---- kernels against their host functions -------------------------------------------------------------------------------

/// A program with one step `run`, launched three times after `prepare`, on the host and on the device. Integers must agree, floats up
/// to `tolerance`, relative to the larger of 1 and the value.
pub(crate) fn compare(context: &str, p: Builder, prepare: impl Fn(&mut Session), tolerance: f32) {
    let Some(device) = device() else { return };
    let program = p.build().unwrap_or_else(|errors| panic!("{context}: {errors}"));
    let run = |device: Device| {
        let mut session = Session::open(device, [plan(&program, "run", &FusionPlan::mega())]).expect("it opens");
        fill(&mut session, program.program(), 3);
        prepare(&mut session);
        for _ in 0..3 {
            session.launch("run").expect("it launches");
        }
        session.wait().expect("it runs");
        Memory::of(&mut session, program.program())
    };
    let close = |a: f32, b: f32| (a - b).abs() <= tolerance * a.abs().max(b.abs()).max(1.0);
    run(Device::Host).assert_agrees(&run(device), context, close);
}

pub(crate) fn step(p: &mut Builder, fill: impl FnOnce(&mut Body<'_>)) {
    p.step("run", |s| s.phase("main", fill));
}

/// Protects: spectral normalisation of stacks of any shape.
///
/// Entries are below 1. Sums of n products in two orders differ, all but surely, by at most 4 √n · 6e-8 of the sum of their magnitudes
/// (Higham and Mary 2019, λ = 4): with n = 300, 6e-6 of |x| for x, and 2e-5 of norms above 1 for z and σ; 4e-5 for both.
#[test]
fn spectral_kernels_agree() {
    for (matrices, rows, columns) in [(1, 1, 1), (1, 3, 7), (4, 33, 65), (3, 257, 40), (2, 300, 130)] {
        let mut p = Builder::new("spectral");
        let w = p.state::<f32>("w", [matrices * rows, columns], Init::Zeros);
        let u = p.state::<f32>("u", [matrices * rows], Init::Zeros);
        let sigma = p.output::<f32>("sigma", [matrices]);
        let sigma_max = p.host_scalar("sigma_max", 1.5f32);
        step(&mut p, |f| {
            let (x, z) = (f.temp("x", [matrices, columns]), f.temp("z", [matrices * rows]));
            f.kernel("project", spectral_project::Args { w, u, x });
            f.kernel("apply", spectral_apply::Args { w, x, z });
            f.kernel("shrink", spectral_shrink::Args { z, sigma_max, w, u, sigma });
        });
        compare(&format!("{matrices} of {rows}×{columns}"), p, |_| {}, 4e-5);
    }
}

/// Protects: clipping, Adam and averaging for lengths that fill no block, on good and on bad gradients.
///
/// Sums have one order on both sides; the corrections of Adam come from functions of doubles. What differs are last digits: 1e-6.
#[test]
fn guarded_kernels_agree() {
    for (n, chunks, bad) in
        [(1, 1, None), (1023, 2, None), (5000, 3, None), (5000, 2, Some(f32::NAN)), (77, 1, Some(f32::INFINITY))]
    {
        let mut p = Builder::new("guarded");
        let [param, grad, m, target] = ["param", "grad", "m", "target"].map(|name| p.state(name, [n], Init::Zeros));
        let v = p.state::<f32>("v", [n], Init::Zeros);
        let [max_norm, lr, tau] =
            [("max_norm", 3.0), ("lr", 1e-2), ("tau", 0.25)].map(|(name, value)| p.host_scalar(name, value));
        let [norm, clip, correction1, correction2] =
            ["norm", "clip", "correction1", "correction2"].map(|name| p.device_scalar(name, 0.0));
        let [ok, nonfinite, t, skipped] = ["ok", "nonfinite", "t", "skipped"].map(|name| p.device_scalar(name, 0u32));
        let (beta1, beta2, eps) = (Const(0.9), Const(0.999), Const(1e-8));
        step(&mut p, |f| {
            let partial = f.temp("partial", [chunks, 2]);
            f.kernel("squares", square_sums::Args { grad, partial });
            f.kernel(
                "clip",
                clip_factor::Args {
                    partial,
                    max_norm,
                    norm,
                    clip,
                    ok,
                    nonfinite,
                    t,
                    skipped,
                    correction1,
                    correction2,
                    beta1,
                    beta2,
                },
            );
            f.kernel(
                "adam",
                adam_guarded::Args { param, grad, m, v, clip, ok, lr, correction1, correction2, beta1, beta2, eps },
            );
            f.kernel("ema", ema_guarded::Args { target, param, tau, ok });
        });
        let prepare = |session: &mut Session| {
            session.load(v, &vec![0.25; n as usize]).expect("state");
            if let Some(bad) = bad {
                session.load(grad.slice(0, n / 2..n / 2 + 1), &[bad]).expect("state");
            }
        };
        compare(&format!("{n} entries, {bad:?} among them"), p, prepare, 1e-6);
    }
}

/// Protects: targets, losses and gradients for any branches and atoms, more branches than a warp has lanes among them; and the metrics.
///
/// Outputs are below 1, heads below 4. Sums of up to 100 terms and exponentials good to 2 ulp: 100 · 6e-8, and twice that again
/// for the square: 2e-5.
#[test]
fn td_kernels_agree() {
    let shapes: [(u32, &[u32]); 5] = [(1, &[1]), (5, &[4, 3, 2]), (33, &[7, 1, 40]), (3, &[2; 35]), (9, &[9, 3, 3])];
    for (atoms, (batch, branches)) in [1, 2, 11, 51, 130].into_iter().flat_map(|n| shapes.map(|shape| (n, shape))) {
        let k = u32::try_from(branches.len()).expect("few");
        let width = atoms * (1 + branches.iter().sum::<u32>());
        let firsts: Vec<u32> = (0..=branches.len()).map(|end| branches[..end].iter().sum()).collect();
        let mut p = Builder::new("td");
        let [taken, chooser, evaluator] = ["taken", "chooser", "evaluator"].map(|n| p.input(n, [batch, width]));
        let (first, action) = (p.input("first", [k + 1]), p.input("action", [batch, k]));
        let [reward, done, weight, aux_loss] = ["reward", "done", "weight", "aux_loss"].map(|n| p.input(n, [batch]));
        let (gamma, aux_w) = (p.host_scalar("gamma", 0.97), p.host_scalar("aux_w", 0.5));
        let [loss, priority] = ["loss", "priority"].map(|n| p.output(n, [batch]));
        let (dout, next_action) = (p.output("dout", [batch, width]), p.output("next_action", [batch, k]));
        let [norm, clip] = ["norm", "clip"].map(|n| p.host_scalar(n, 0.5f32));
        let [ok, t, skipped, nonfinite] = ["ok", "t", "skipped", "nonfinite"].map(|n| p.host_scalar(n, 3u32));
        let steps = p.device_scalar("steps", 0);
        let (row, ring) = (p.output("row", [12]), p.state("ring", [2, 12], Init::Zeros));
        step(&mut p, |f| {
            if atoms == 1 {
                let goal = f.temp("goal", [batch]);
                f.kernel(
                    "td",
                    td_scalar::Args {
                        taken,
                        chooser,
                        evaluator,
                        first,
                        action,
                        reward,
                        done,
                        weight,
                        gamma,
                        dout,
                        loss,
                        priority,
                        next_action,
                        goal,
                    },
                );
            } else {
                let goal = f.temp("goal", [batch, k * atoms]);
                let (vmin, vmax) = (Const(-2.0), Const(3.0));
                f.kernel(
                    "td",
                    td_categorical::Args {
                        taken,
                        chooser,
                        evaluator,
                        first,
                        action,
                        reward,
                        done,
                        weight,
                        gamma,
                        dout,
                        loss,
                        priority,
                        next_action,
                        goal,
                        vmin,
                        vmax,
                    },
                );
            }
            f.kernel(
                "metrics",
                train_metrics::Args {
                    td_loss: loss,
                    aux_loss,
                    priority,
                    aux_w,
                    norm,
                    clip,
                    ok,
                    t,
                    skipped,
                    nonfinite,
                    steps,
                    row,
                    ring,
                },
            );
        });
        let prepare = |session: &mut Session| {
            let mut numbers = Numbers(7);
            let actions: Vec<i32> = (0..batch)
                .flat_map(|_| branches.iter().map(|&n| (numbers.next() % n).cast_signed()).collect::<Vec<_>>())
                .collect();
            let done_flags: Vec<f32> = (0..batch).map(|row| if row % 4 == 1 { 1.0 } else { 0.0 }).collect();
            session.write_input(first, &firsts).expect("an input");
            session.write_input(action, &actions).expect("an input");
            session.write_input(done, &done_flags).expect("an input");
        };
        compare(&format!("{batch} samples, branches {branches:?}, {atoms} atoms"), p, prepare, 2e-5);
    }
}

/// Protects: the same transitions are drawn, copied, relabelled and ranked, bit for bit: host and device follow one order.
#[test]
fn replay_kernels_agree() {
    for (chunks, chunk, batch, width) in [(1, 32, 1, 1), (3, 32, 5, 9), (35, 64, 41, 70), (70, 96, 257, 3)] {
        let (all, k) = (chunks * chunk, 3);
        let mut p = Builder::new("replay");
        let priority = p.state::<f32>("priority", [chunks, chunk], Init::Zeros);
        let [observation, next] = ["observation", "next"].map(|name| p.state(name, [all, width], Init::Zeros));
        let (action, label) = (p.state("action", [all, k], Init::Zeros), p.state("label", [all], Init::Zeros));
        let facts = p.state("facts", [all, 6], Init::Zeros);
        let u = p.input::<f32>("u", [batch, 1]);
        let (donor, relabel) = (p.input("donor", [batch]), p.input("relabel", [batch]));
        let size = p.host_scalar("size", all);
        let (index, share) = (p.output("index", [batch]), p.output("share", [batch]));
        let [s1, s2] = ["s1", "s2"].map(|name| p.output(name, [batch, width]));
        let (a, y) = (p.output("a", [batch, k]), p.output("y", [batch]));
        let [r, d] = ["r", "d"].map(|name| p.output(name, [batch]));
        step(&mut p, |f| {
            let sums = f.sum("sums", &[1], priority).done();
            f.kernel("draw", prioritised_draw::Args { priority, sums, u, size, index, share });
            f.kernel(
                "gather",
                gather_relabel::Args {
                    observation,
                    next,
                    action,
                    facts,
                    label,
                    index,
                    donor,
                    relabel,
                    exposure: Const(0),
                    s1,
                    s2,
                    a,
                    r,
                    d,
                    y,
                },
            );
            let value = f.map_over("value", [batch, 1], u * 0.5f32 + 0.25f32);
            f.kernel("rank", priority_update::Args { index, value, priority });
        });
        let prepare = |session: &mut Session| {
            let mut numbers = Numbers(9);
            let priorities: Vec<f32> = (0..all).map(|_| numbers.unit().max(0.0)).collect();
            let quantiles: Vec<f32> = (0..batch).map(|_| numbers.unit() * 0.5 + 0.5).collect();
            let flags: Vec<u32> = (0..batch).map(|_| numbers.next() % 2).collect();
            session.load(priority, &priorities).expect("state");
            session.write_input(u, &quantiles).expect("an input");
            session.write_input(relabel, &flags).expect("an input");
        };
        compare(&format!("{batch} of {chunks}×{chunk}"), p, prepare, 0.0);
    }
}

// ---- the step as a whole ------------------------------------------------------------------------------------------------

pub(crate) fn system(atoms: u32) -> (ValidProgram, Dqn) {
    let hyper = Hyper {
        batch: 33,
        observation: 17,
        trunk: 40,
        head: 24,
        blocks: 2,
        branches: vec![9, 3, 3],
        classes: 3,
        atoms,
        support: [-10.0, 10.0],
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        compute: Compute::Tf32,
        source: Source::Replay { capacity: 1000, exposure: 0 },
        mask: Mask::Drawn,
    };
    let mut p = Builder::new("system");
    let dqn = Dqn::declare(&mut p, &hyper);
    dqn.add_train(&mut p);
    // What insertion would have left behind, had it filled the buffer.
    let replay = dqn.replay.expect("a replay buffer");
    p.step("filled", |s| s.phase("size", |f| f.set("size", replay.size, replay.capacity)));
    (p.build().unwrap_or_else(|errors| panic!("{errors}")), dqn)
}

/// So many steps, a whole number of launches, on a full buffer of random transitions; everything that is left.
pub(crate) fn after_steps(
    steps: u32,
    device: Device,
    (program, dqn): &(ValidProgram, Dqn),
    variant: &str,
    fusion: &FusionPlan,
) -> Memory {
    let made = program.plan_variant("train", variant, fusion, &target(), &Tuning::default()).expect("it plans");
    let filled = plan(program, "filled", &FusionPlan::mega());
    let mut session = Session::builder().seed(4).open(device, [made, filled]).expect("it opens");
    session.launch("filled").expect("it launches");
    let replay = dqn.replay.expect("a replay buffer");
    let (all, width) = (replay.capacity as usize, dqn.hyper.observation as usize);
    let mut numbers = Numbers(5);
    session.load(replay.observation, &numbers.floats(all * width)).expect("state");
    session.load(replay.next, &numbers.floats(all * width)).expect("state");
    session.load(replay.facts, &numbers.floats(all * 6)).expect("state");
    session.load(replay.priority, &vec![1.0; all]).expect("state");
    let bounds = [9, 3, 3];
    let actions: Vec<i32> = (0..all * 3).map(|at| (numbers.next() % bounds[at % 3]).cast_signed()).collect();
    session.load(replay.action, &actions).expect("state");
    for layer in dqn.target.layers().zip(dqn.theta.layers()) {
        let (w, b) = (session.read(layer.1.w).expect("a weight"), session.read(layer.1.b).expect("a weight"));
        session.load(layer.0.w, &w).expect("state");
        session.load(layer.0.b, &b).expect("state");
    }
    for _ in 0..steps / fusion.repeat.steps() {
        session.launch_variant("train", variant).expect("it launches");
    }
    session.wait().expect("it runs");
    let left = Memory::of(&mut session, program.program());
    assert_eq!(
        (left.words("t"), left.words("skipped")),
        ([steps].as_slice(), [0].as_slice()),
        "{variant}: all steps were applied"
    );
    left
}

/// Protects: plans that differ only in grouping, and runs that repeat, leave the same bits after 100 steps of every variant.
#[test]
fn grouping_and_repetition_change_no_bit() {
    let Some(device) = device() else { return };
    for atoms in [1, 11] {
        let system = system(atoms);
        for variant in system.1.hyper.variants() {
            let first = after_steps(100, device, &system, variant, &FusionPlan::mega());
            for fusion in [FusionPlan::debug(), FusionPlan::phases(), FusionPlan::mega(), FusionPlan::mega()] {
                let again = after_steps(100, device, &system, variant, &fusion);
                first.assert_same(&again, &format!("{variant} under {}", fusion.name));
            }
        }
    }
}

/// Protects: nothing drifts in a long run: 10,000 steps of every variant leave the same bits under `phases` and `mega`, and 20
/// repeats of 100 steps agree. On a device only: the host would need minutes, and runs in one order anyway.
#[test]
fn long_runs_are_reproducible() {
    let Some(device @ Device::Cuda { .. }) = device() else { return };
    for atoms in [1, 11] {
        let system = system(atoms);
        for variant in system.1.hyper.variants() {
            let mega = after_steps(10_000, device, &system, variant, &FusionPlan::mega());
            let phases = after_steps(10_000, device, &system, variant, &FusionPlan::phases());
            mega.assert_same(&phases, &format!("{variant}, 10,000 steps"));
            let first = after_steps(100, device, &system, variant, &FusionPlan::mega());
            for repeat in 1..20 {
                let again = after_steps(100, device, &system, variant, &FusionPlan::mega());
                first.assert_same(&again, &format!("{variant}, repeat {repeat}"));
            }
        }
    }
}
