//! What a comparison found, as a table for people and as JSON for programs.

use std::fmt;

use serde::Serialize;

use super::agreement::Agreement;
use super::harness::BenchOptions;
use super::statistics::{Spread, noise_between};

/// A finished comparison.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// The device.
    pub device: String,
    /// Steps after which results were compared.
    pub checked: u32,
    /// Launches before samples counted.
    pub warm_up: u32,
    /// Samples of each contender.
    pub rounds: u32,
    /// Launches of a sample.
    pub launches: u32,
    /// The relative difference that two entries of the first contender show; below it there is no difference.
    pub noise: Option<f64>,
    /// The contenders, in the order in which they were given; the others are compared with the first.
    pub contenders: Vec<ContenderReport>,
}

/// One contender.
#[derive(Clone, Debug, Serialize)]
pub struct ContenderReport {
    /// Its name.
    pub name: String,
    /// Whether it computed what the first one did.
    pub agreement: Agreement,
    /// What it consists of, and what it costs to build.
    pub cost: Cost,
    /// How fast it is; `None` where its results differ.
    pub timing: Option<Timing>,
}

/// What a contender consists of, and what it costs before the first replay.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Milliseconds to plan.
    pub plan_ms: f64,
    /// Milliseconds to open a session: memory, code, graphs, instantiation.
    pub open_ms: f64,
    /// Milliseconds of the first launch, to its end.
    pub first_launch_ms: f64,
    /// CUDA graphs.
    pub graphs: usize,
    /// Nodes of all graphs.
    pub nodes: usize,
    /// Edges of all graphs.
    pub edges: usize,
    /// Calls that start work, for one launch of the plan.
    pub launches: usize,
    /// Steps that one launch of the plan makes.
    pub steps: u32,
    /// Units that must follow one another.
    pub levels: u32,
    /// Bytes of all regions.
    pub arena_bytes: u64,
}

/// How fast a contender is, in microseconds per step: of a plan that makes several steps per launch, a launch divided by them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Timing {
    /// From the start of one launch alone to its end, on the device.
    pub device_us: Spread,
    /// The host's time to launch.
    pub submit_us: Spread,
    /// One launch of many back to back: what a training loop sees.
    pub step_us: Spread,
}

/// Samples below which no difference is claimed: of two plans that are equally fast, all five samples of one are slower than all
/// five of the other in 1 of C(10, 5) = 252 comparisons, with four each in 1 of 70.
const FEWEST_ROUNDS: u32 = 5;

impl BenchReport {
    /// The report of these contenders; `again` is the timing of the first one's second entry.
    pub(super) fn new(
        device: String,
        options: BenchOptions,
        contenders: Vec<ContenderReport>,
        again: Option<Timing>,
    ) -> Self {
        let first = contenders.first().and_then(|first| first.timing);
        let noise = first.zip(again).map(|(a, b)| noise_between(&a.step_us, &b.step_us));
        let BenchOptions { checked, warm_up, rounds, launches, .. } = options;
        Self { device, checked, warm_up, rounds, launches, noise, contenders }
    }

    /// The report as JSON.
    ///
    /// # Errors
    /// None that a report can cause.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }

    /// How one contender compares with the first, in words.
    fn verdict(&self, contender: &ContenderReport) -> String {
        if let Agreement::Differs(mismatch) = &contender.agreement {
            return format!("not timed: `{}` differs by {:.1e}", mismatch.name, mismatch.relative);
        }
        let first = self.contenders.first().and_then(|first| first.timing);
        let (Some(first), Some(own), Some(noise)) = (first, contender.timing, self.noise) else { return String::new() };
        if self.rounds < FEWEST_ROUNDS {
            return format!("too few samples to tell: take {FEWEST_ROUNDS} or more");
        }
        let ratio = own.step_us.median / first.step_us.median;
        if (ratio - 1.0).abs() <= noise {
            return "no difference within noise".to_owned();
        }
        let word = if ratio < 1.0 { "faster" } else { "slower" };
        format!("{:.2} × {word}", ratio.max(1.0 / ratio))
    }
}

/// A table: one row per contender.
impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, checked, warm_up, rounds, launches, .. } = self;
        writeln!(
            f,
            "device {device}; results of {checked} steps compared; {rounds} samples of {launches} launches in random"
        )?;
        writeln!(f, "order after {warm_up}; microseconds per step: median (5th to 95th percentile)")?;
        match self.noise {
            Some(noise) => writeln!(f, "noise floor, from two entries of the first plan: {:.1} %\n", noise * 100.0)?,
            None => writeln!(f)?,
        }
        let head = ["plan", "back to back", "alone, on the device", "host submit", "against the first"];
        let rows = self.contenders.iter().map(|contender| {
            let cell =
                |pick: fn(&Timing) -> Spread| contender.timing.as_ref().map(|t| spread(pick(t))).unwrap_or_default();
            [
                contender.name.clone(),
                cell(|timing| timing.step_us),
                cell(|timing| timing.device_us),
                cell(|timing| timing.submit_us),
                self.verdict(contender),
            ]
        });
        table(f, &head, &rows.collect::<Vec<_>>())?;
        writeln!(f)?;
        let head = [
            "plan", "results", "graphs", "nodes", "edges", "levels", "launches", "MiB", "plan ms", "open ms",
            "first ms",
        ];
        let rows = self.contenders.iter().map(|contender| {
            let cost = contender.cost;
            #[expect(clippy::cast_precision_loss, reason = "bytes as mebibytes, with one decimal")]
            let mebibytes = cost.arena_bytes as f64 / 1_048_576.0;
            [
                contender.name.clone(),
                agreement(&contender.agreement),
                cost.graphs.to_string(),
                cost.nodes.to_string(),
                cost.edges.to_string(),
                cost.levels.to_string(),
                per_steps(cost),
                format!("{mebibytes:.1}"),
                format!("{:.2}", cost.plan_ms),
                format!("{:.1}", cost.open_ms),
                format!("{:.2}", cost.first_launch_ms),
            ]
        });
        table(f, &head, &rows.collect::<Vec<_>>())
    }
}

fn agreement(agreement: &Agreement) -> String {
    match agreement {
        Agreement::BitEqual => "bit-equal".to_owned(),
        Agreement::Within(relative) => format!("within {relative:.1e}"),
        Agreement::Differs(_) => "differ".to_owned(),
    }
}

/// `1`, or `1 / 4` where one launch makes four steps.
fn per_steps(Cost { launches, steps, .. }: Cost) -> String {
    if steps == 1 { launches.to_string() } else { format!("{launches} / {steps}") }
}

fn spread(Spread { median, low, high }: Spread) -> String {
    format!("{median:.1} ({low:.1} to {high:.1})")
}

/// Columns as wide as their widest cell, two blanks between.
fn table<const N: usize>(f: &mut fmt::Formatter<'_>, head: &[&str; N], rows: &[[String; N]]) -> fmt::Result {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..N).map(width).collect();
    let mut line = |cells: &[&str]| {
        let padded = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        writeln!(f, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    line(head)?;
    rows.iter().try_for_each(|row| line(&row.each_ref().map(String::as_str)))
}
