//! Runs the training step of a golden file and measures how far it is from what must come out, category by category, as
//! `check.errors` of the reference defines them (reference README §4).

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use stepgraph::Builder;
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::{Compute, Diagnostics};
use stepgraph::kernel::library::dqn::METRICS;
use stepgraph::plan::{FusionPlan, PlanError, Target, Tuning};
use stepgraph::runtime::{Device, RuntimeError, Session};

use super::golden::{Golden, PARTS, SCALARS};
use super::hyper::{Hyper, Linear};
use super::network::{Layer, Weights};
use super::train::Dqn;

/// Pass at or below, per arithmetic, snapshot and category.
const TOLERANCES: &str = include_str!("../../tests/golden/tolerances.json");

/// Entries whose gradient history is smaller than this part of their tensor's largest are left out of `p` and `target`: Adam divides by
/// it, so rounding decides where they go.
const STURDY: f64 = 1e-5;

/// How to run a file.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The device.
    pub(crate) device: Device,
    /// How the step becomes launches.
    pub(crate) plan: FusionPlan,
    /// The arithmetic of matrix products, and so the tolerances: `F32` or `Tf32`.
    pub(crate) compute: Compute,
}

/// What prevents a verdict.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VerifyError {
    /// There are tolerances for the arithmetic.
    #[error("there are no tolerances for {0}: use f32 or tf32")]
    NoTolerances(&'static str),
    /// The tolerances can be read.
    #[error("tests/golden/tolerances.json")]
    Tolerances(#[from] serde_json::Error),
    /// The program is valid.
    #[error(transparent)]
    Program(#[from] Diagnostics),
    /// The step can be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device runs it.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// How far a run was off.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    /// Worst errors, snapshot by snapshot.
    pub(crate) rows: Vec<Row>,
    /// What must be equal and is not.
    pub(crate) unequal: Vec<String>,
}

/// The worst error of a category up to a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// The snapshot: steps done.
    pub(crate) after: usize,
    /// The category.
    pub(crate) category: &'static str,
    /// The worst error; infinite where one side is finite and the other is not.
    pub(crate) error: f64,
    /// Pass at or below.
    pub(crate) tolerance: f64,
}

impl Row {
    fn passed(&self) -> bool {
        self.error <= self.tolerance
    }
}

impl Report {
    /// Whether everything is within its tolerance, and equal where it must be.
    pub(crate) fn passed(&self) -> bool {
        self.unequal.is_empty() && self.rows.iter().all(Row::passed)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let Row { after, category, error, tolerance } = row;
            let verdict = if row.passed() { "ok" } else { "FAIL" };
            writeln!(f, "  after {after:<3} {category:<10} {error:9.1e}  (at most {tolerance:.0e})  {verdict}")?;
        }
        self.unequal.iter().try_for_each(|what| writeln!(f, "  {what}  FAIL"))
    }
}

/// Runs the file's steps and compares.
///
/// # Errors
/// If no verdict can be reached. A run that is off is a report that did not pass.
pub(crate) fn verify(golden: &Golden, options: &Options) -> Result<Report, VerifyError> {
    let tolerances = tolerances(options.compute)?;
    let run = Run::of(golden, options)?;
    let mut report = Report { rows: Vec::new(), unequal: run.unequal(golden) };
    for &after in &golden.snapshots {
        // The file's tolerances after 10 steps also hold for the snapshots before.
        let limits = &tolerances[if after == 1 { "after1" } else { "after10" }];
        for (category, error) in run.errors(golden, after) {
            let tolerance = limits.get(category).copied().unwrap_or(0.0);
            report.rows.push(Row { after, category, error, tolerance });
        }
    }
    Ok(report)
}

type Limits = BTreeMap<String, BTreeMap<String, f64>>;

fn tolerances(compute: Compute) -> Result<Limits, VerifyError> {
    #[derive(Deserialize)]
    struct File {
        tolerances: BTreeMap<String, Limits>,
    }
    let mut file: File = serde_json::from_str(TOLERANCES)?;
    let name = match compute {
        Compute::F32 => "float32",
        other => other.name(),
    };
    file.tolerances.remove(name).ok_or(VerifyError::NoTolerances(compute.name()))
}

// ---- running ------------------------------------------------------------------------------------------------------------

/// What came out, under the file's names.
struct Run {
    tensors: BTreeMap<String, Vec<f64>>,
}

/// The program of a golden file.
struct Trainer {
    session: Session,
    dqn: Dqn,
    resume: [Scalar<u32>; 2],
}

impl Trainer {
    fn open(golden: &Golden, options: &Options) -> Result<Self, VerifyError> {
        let hyper = Hyper { compute: options.compute, ..golden.hyper.clone() };
        let mut p = Builder::new("dqn_golden");
        let dqn = Dqn::declare(&mut p, &hyper);
        dqn.add_train(&mut p);
        let resume = ["resume.t", "resume.skipped"].map(|name| p.host_scalar(name, 0u32));
        // Only nodes write device scalars: a file that starts in the middle of a run needs a step for it.
        p.step("resume", |s| {
            s.phase("counters", |f| {
                let [t, skipped] = resume;
                f.map_node("counters")
                    .store_scalar(dqn.counters.t, t)
                    .store_scalar(dqn.counters.skipped, skipped)
                    .done();
            });
        });
        let program = p.build()?;
        let (target, tuning) = (Target::default(), Tuning::default());
        let train = program.plan_variant("train", &golden.variant, &options.plan, &target, &tuning)?;
        let resume_plan = program.plan("resume", &options.plan, &target, &tuning)?;
        Ok(Self { session: Session::open(options.device, [train, resume_plan])?, dqn, resume })
    }

    fn load(&mut self, golden: &Golden) -> Result<(), RuntimeError> {
        for Linear { name, stack, rows, .. } in golden.hyper.linears() {
            for part in PARTS {
                let Layer { w, b } = stack_of(self.part(part), stack).rows(rows.clone());
                self.session.load(w, &narrow(golden.values(&format!("init/{part}/{name}.w"))))?;
                self.session.load(b, &narrow(golden.values(&format!("init/{part}/{name}.b"))))?;
            }
            if let Some(spectral) = self.dqn.spectral.iter().find(|spectral| spectral.name == stack) {
                let u = spectral.u.slice(0, rows);
                self.session.load(u, &narrow(golden.values(&format!("init/u/{name}"))))?;
            }
        }
        for (cell, name) in self.resume.into_iter().zip(["init/t", "init/skipped"]) {
            self.session.set(cell, golden.values(name)[0] as u32)?;
        }
        self.session.launch("resume")?;
        Ok(())
    }

    fn part(&self, part: &str) -> Weights {
        match part {
            "p" => self.dqn.theta,
            "target" => self.dqn.target,
            "m" => self.dqn.m,
            _ => self.dqn.v,
        }
    }

    /// Runs one step, from 0, and keeps what it reports.
    fn step(&mut self, golden: &Golden, step: usize, found: &mut Run) -> Result<(), RuntimeError> {
        let Self { session, dqn, .. } = self;
        for name in SCALARS {
            let value = golden.at_step(&format!("scalar/{name}"), step)[0] as f32;
            session.set_by_name(name, stepgraph::ir::ConstValue::F32(value))?;
        }
        let floats = |name: &str| narrow(golden.at_step(name, step));
        let integers = |name: &str| golden.at_step(name, step).iter().map(|&x| x as i32).collect::<Vec<_>>();
        if let Some(mask) = dqn.mask {
            session.write_input(mask, &floats("scalar/mask"))?;
        }
        session.write_input(dqn.batch.x, &[floats("batch/s"), floats("batch/s2")].concat())?;
        session.write_input(dqn.batch.action, &integers("batch/a"))?;
        session.write_input(dqn.batch.reward, &floats("batch/r"))?;
        session.write_input(dqn.batch.done, &floats("batch/d"))?;
        session.write_input(dqn.batch.weight, &floats("batch/w"))?;
        session.write_input(dqn.batch.class, &integers("batch/y"))?;

        let ticket = session.launch_variant("train", &golden.variant)?;
        let mut outputs = ticket.wait(session)?;
        let metrics = outputs.read(dqn.outputs.metrics)?;
        let column = |name: &str| METRICS.iter().position(|&known| known == name).map_or(f32::NAN, |at| metrics[at]);
        for name in ["loss", "grad_norm", "skipped"] {
            found.push(&format!("out/{name}"), [f64::from(column(name))]);
        }
        found.push("out/priorities", outputs.read(dqn.outputs.priorities)?.into_iter().map(f64::from));
        found.push("out/next_action", outputs.read(dqn.outputs.next_action)?.into_iter().map(f64::from));
        Ok(())
    }

    /// Keeps the state under `prefix`.
    fn snapshot(&mut self, golden: &Golden, prefix: &str, found: &mut Run) -> Result<(), RuntimeError> {
        for Linear { name, stack, rows, .. } in golden.hyper.linears() {
            for part in PARTS {
                let layer = stack_of(self.part(part), stack).rows(rows.clone());
                self.keep_layer(&format!("{prefix}/{part}/{name}"), layer, found)?;
            }
            if let Some(&spectral) = self.dqn.spectral.iter().find(|spectral| spectral.name == stack) {
                self.keep(&format!("{prefix}/u/{name}"), spectral.u.slice(0, rows), found)?;
            }
        }
        for (name, cell) in [("t", self.dqn.counters.t), ("skipped", self.dqn.counters.skipped)] {
            let value = self.session.read_scalar(cell)?;
            found.push(&format!("{prefix}/{name}"), [f64::from(value)]);
        }
        Ok(())
    }

    fn gradients(&mut self, golden: &Golden, found: &mut Run) -> Result<(), RuntimeError> {
        for Linear { name, stack, rows, .. } in golden.hyper.linears() {
            self.keep_layer(&format!("grad1/{name}"), stack_of(self.dqn.grad, stack).rows(rows), found)?;
        }
        Ok(())
    }

    fn keep_layer(&mut self, name: &str, layer: Layer, found: &mut Run) -> Result<(), RuntimeError> {
        self.keep(&format!("{name}.w"), layer.w, found)?;
        self.keep(&format!("{name}.b"), layer.b, found)
    }

    fn keep(&mut self, name: &str, tensor: Tensor<f32>, found: &mut Run) -> Result<(), RuntimeError> {
        found.push(name, self.session.read(tensor)?.into_iter().map(f64::from));
        Ok(())
    }
}

impl Run {
    fn of(golden: &Golden, options: &Options) -> Result<Self, VerifyError> {
        let mut found = Self { tensors: BTreeMap::new() };
        let mut trainer = Trainer::open(golden, options)?;
        trainer.load(golden)?;
        for step in 0..golden.steps {
            trainer.step(golden, step, &mut found)?;
            if step == 0 {
                trainer.gradients(golden, &mut found)?;
            }
            if golden.snapshots.contains(&(step + 1)) {
                trainer.snapshot(golden, &format!("after{}", step + 1), &mut found)?;
            }
        }
        Ok(found)
    }

    fn push(&mut self, name: &str, values: impl IntoIterator<Item = f64>) {
        self.tensors.entry(name.to_owned()).or_default().extend(values);
    }

    fn values(&self, name: &str) -> &[f64] {
        self.tensors.get(name).map_or(&[], Vec::as_slice)
    }
}

fn stack_of(weights: Weights, name: &str) -> Layer {
    match name {
        "trunk.in" => weights.trunk,
        "res" => weights.res.unwrap_or(weights.trunk),
        "heads.fc1" => weights.hidden,
        "heads.out" => weights.out,
        _ => weights.aux,
    }
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

// ---- comparing ----------------------------------------------------------------------------------------------------------

impl Run {
    /// What is not equal although it must be: counters, and the actions that targets chose. Those of `mse` are informative only: its
    /// batches are not conditioned on the target network.
    fn unequal(&self, golden: &Golden) -> Vec<String> {
        let mut names = vec!["out/skipped".to_owned()];
        for snapshot in &golden.snapshots {
            names.extend(["t", "skipped"].map(|name| format!("after{snapshot}/{name}")));
        }
        if golden.variant != "mse" {
            names.push("out/next_action".to_owned());
        }
        names.retain(|name| self.values(name) != golden.values(name));
        let tell = |name: String| {
            let pairs = self.values(&name).iter().zip(golden.values(&name));
            let (at, (found, expected)) =
                pairs.enumerate().find(|(_, (a, b))| a != b).unwrap_or((0, (&f64::NAN, &f64::NAN)));
            format!("{name}, element {at}, is {found}, expected {expected}")
        };
        names.into_iter().map(tell).collect()
    }

    /// The worst error of each category up to a snapshot.
    fn errors(&self, golden: &Golden, after: usize) -> Vec<(&'static str, f64)> {
        let linears = golden.hyper.linears();
        let mut errors = Vec::new();
        for (category, name) in [("loss", "out/loss"), ("grad_norm", "out/grad_norm"), ("priorities", "out/priorities")]
        {
            let row = golden.values(name).len() / golden.steps;
            let steps = self.values(name).chunks(row).zip(golden.values(name).chunks(row)).take(after);
            errors.push((category, worst(steps.map(|(found, expected)| max_rel(found, expected)))));
        }
        if after == 1 {
            errors.extend(self.gradient_errors(golden, &linears));
        }
        let state = |part: &str, name: &str| format!("after{after}/{part}/{name}");
        let spectral = linears.iter().filter(|linear| linear.spectral).map(|linear| state("u", &linear.name));
        errors.push(("u", worst(spectral.map(|name| max_rel(self.values(&name), golden.values(&name))))));
        let all = tensor_names(&linears);
        for part in ["m", "v"] {
            let each = all.iter().map(|(name, _)| state(part, name));
            errors.push((part, worst(each.map(|name| max_rel(self.values(&name), golden.values(&name))))));
        }
        for (part, moved) in [("p", "dp"), ("target", "dtarget")] {
            let (mut absolute, mut change) = (Vec::new(), Vec::new());
            for (name, plain) in &all {
                let sturdy = sturdy(golden, name, after);
                let cut = |values: &[f64]| -> Vec<f64> {
                    values.iter().zip(&sturdy).filter(|(_, keep)| **keep).map(|(value, _)| *value).collect()
                };
                let (found, expected) = (cut(self.values(&state(part, name))), cut(golden.values(&state(part, name))));
                absolute.push(max_rel(&found, &expected));
                if part == "target" || *plain {
                    change.push(l2_rel(&found, &expected, &cut(golden.values(&format!("init/{part}/{name}")))));
                }
            }
            errors.extend([(part, worst(absolute)), (moved, worst(change))]);
        }
        errors
    }

    fn gradient_errors(&self, golden: &Golden, linears: &[Linear]) -> [(&'static str, f64); 2] {
        let names: Vec<_> = tensor_names(linears).into_iter().map(|(name, _)| format!("grad1/{name}")).collect();
        // A tensor whose gradient cancels is measured by this.
        let floor = 0.1 * worst(names.iter().map(|name| largest(golden.values(name))));
        let entries = names.iter().map(|name| {
            let (found, expected) = (self.values(name), golden.values(name));
            let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
            worst(off) / largest(expected).max(floor)
        });
        let gather = |values: &dyn Fn(&str) -> Vec<f64>| names.iter().flat_map(|name| values(name)).collect::<Vec<_>>();
        let (found, expected) =
            (gather(&|name| self.values(name).to_vec()), gather(&|name| golden.values(name).to_vec()));
        let zeros = vec![0.0; expected.len()];
        [("grad", worst(entries)), ("grad_l2", l2_rel(&found, &expected, &zeros))]
    }
}

/// Names of all weight tensors, each with whether spectral normalisation leaves it alone.
fn tensor_names(linears: &[Linear]) -> Vec<(String, bool)> {
    let both =
        |linear: &Linear| [(format!("{}.w", linear.name), !linear.spectral), (format!("{}.b", linear.name), true)];
    linears.iter().flat_map(both).collect()
}

/// Entries of a weight whose gradient history is not tiny at any snapshot so far.
fn sturdy(golden: &Golden, name: &str, after: usize) -> Vec<bool> {
    let mut keep = vec![true; golden.values(&format!("init/p/{name}")).len()];
    for snapshot in golden.snapshots.iter().filter(|&&snapshot| snapshot <= after) {
        let rms: Vec<f64> = golden.values(&format!("after{snapshot}/v/{name}")).iter().map(|v| v.sqrt()).collect();
        let least = STURDY * largest(&rms);
        keep.iter_mut().zip(&rms).for_each(|(keep, &rms)| *keep &= rms == 0.0 || rms >= least);
    }
    keep
}

/// The largest difference over the largest value, where the expected value is finite; the others must be other than finite on both
/// sides.
fn max_rel(found: &[f64], expected: &[f64]) -> f64 {
    let same = found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| found.is_finite() == expected.is_finite());
    if !same {
        return f64::INFINITY;
    }
    let finite = || found.iter().zip(expected).filter(|(_, expected)| expected.is_finite());
    let difference = worst(finite().map(|(found, expected)| (found - expected).abs()));
    relative(difference, worst(finite().map(|(_, expected)| expected.abs())))
}

/// The length of the difference over that of the expected change.
fn l2_rel(found: &[f64], expected: &[f64], base: &[f64]) -> f64 {
    let length = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    relative(length(found, expected), length(expected, base))
}

fn relative(difference: f64, scale: f64) -> f64 {
    if difference == 0.0 { 0.0 } else { difference / scale.max(1e-300) }
}

fn largest(values: &[f64]) -> f64 {
    worst(values.iter().map(|value| value.abs()))
}

/// The largest of errors; a NaN counts as infinite.
fn worst(errors: impl IntoIterator<Item = f64>) -> f64 {
    errors.into_iter().fold(0.0, |worst, error| if error.is_nan() { f64::INFINITY } else { worst.max(error) })
}
