//! The command line's grammar.

use std::path::PathBuf;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::{Device, OnFailure, RuntimeError};

/// Checks, lowers and runs training steps that are declared as typed graphs.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  stepgraph check graph_specs/digits.toml
  stepgraph lower graph_specs/digits.toml --step train --plan mega
  stepgraph run step.toml --steps 100 --inputs data.safetensors --dump result.safetensors
  stepgraph bench graph_specs/digits.toml --step train --plans debug,phases,mega
  stepgraph doctor

Exit codes: 0 fine, 1 the program or its data is wrong, 2 the command line is, 3 the device failed."
)]
pub(super) struct Args {
    /// Says more on standard error: -v what takes time, -vv everything. RUST_LOG overrides it.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(super) verbose: u8,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Check(CheckArgs),
    Lower(LowerArgs),
    Run(RunArgs),
    Bench(BenchArgs),
    /// Says what CUDA is here, what is missing, and what to install.
    Doctor,
}

/// Validates a spec and plans its steps; errors point at the guilty text.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  stepgraph check step.toml
  stepgraph check step.toml --set B=512 --set H=64
  stepgraph check step.toml --canonical > canonical.toml")]
pub(super) struct CheckArgs {
    #[command(flatten)]
    pub(super) spec: SpecArgs,
    /// Prints the program as a canonical spec in place of the summary.
    #[arg(long)]
    pub(super) canonical: bool,
}

/// Prints the plan of a step: launches, order, memory. Needs no CUDA, and prints the same bytes every time.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  stepgraph lower step.toml
  stepgraph lower step.toml --step train --variant c51 --plan phases
  stepgraph lower step.toml --step train --unroll 4
  stepgraph lower step.toml --step train --format dot | dot -Tsvg > train.svg
  stepgraph lower step.toml --format json | jq '.[].counts'")]
pub(super) struct LowerArgs {
    #[command(flatten)]
    pub(super) spec: SpecArgs,
    #[command(flatten)]
    pub(super) plan: PlanArgs,
    /// How to print: text for reading, dot for Graphviz, json (an array of plans) for programs.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(super) format: Format,
}

/// Runs a step, on the CPU or on a GPU.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  stepgraph run step.toml
  stepgraph run step.toml --step train --steps 1000 --seed 7 --device cuda
  stepgraph run step.toml --step train --steps 1000 --loop 100
  stepgraph run step.toml --inputs data.safetensors --dump result.safetensors
  stepgraph run step.toml --steps 1000 --plan debug --find-non-finite

--inputs holds tensors by the names of inputs, parameters, states and host scalars (one element each). --dump writes parameters,
states, outputs, tapped temps and scalars; the file is replaced only when everything went well. A dump can be given to --inputs: what only
steps write in it (outputs, temps, device scalars) is left out, with a note. --find-non-finite shows the most with
--plan debug, which gives every temp memory of its own.")]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) spec: SpecArgs,
    #[command(flatten)]
    pub(super) plan: PlanArgs,
    /// Where to run: auto (the GPU where a usable driver is found, the host otherwise), host, cuda or cuda:N.
    #[arg(long, default_value = "auto", value_parser = device)]
    pub(super) device: DeviceChoice,
    /// How many steps are made, one by default; with --unroll K or --loop K a multiple of K, and K by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: Option<u64>,
    /// The seed of random initial values.
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// Values to load before the first launch.
    #[arg(long, value_name = "FILE.safetensors")]
    pub(super) inputs: Option<PathBuf>,
    /// Where to write the memory after the last launch.
    #[arg(long, value_name = "FILE.safetensors")]
    pub(super) dump: Option<PathBuf>,
    /// After each launch looks for NaN and infinity; the first one ends the run, with the node that wrote it.
    #[arg(long)]
    pub(super) find_non_finite: bool,
    /// What to do where the device refuses the graph of the whole step: report (an error) or phases (a graph per phase, with a note).
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = Policy::Report)]
    pub(super) on_failure: Policy,
}

/// What to do where the device refuses a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Policy {
    Report,
    Phases,
}

impl From<Policy> for OnFailure {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Report => Self::Report,
            Policy::Phases => Self::Phases,
        }
    }
}

/// Compares plans of a step: results first, then times, interleaved, with a noise floor.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  stepgraph bench step.toml
  stepgraph bench step.toml --step train --plans debug,mega --device cuda --report out
  stepgraph bench step.toml --step train --plans mega --unroll 4,16 --loop 16,100
  stepgraph bench step.toml --inputs data.safetensors

Without --inputs, float inputs are random and integer inputs are 0; parameters and states have their initial values. --report writes
table.txt and report.json. All times are per step.")]
pub(super) struct BenchArgs {
    #[command(flatten)]
    pub(super) spec: SpecArgs,
    /// The step; without it the only one.
    #[arg(long)]
    pub(super) step: Option<String>,
    /// The variant of the step.
    #[arg(long, requires = "step")]
    pub(super) variant: Option<String>,
    /// Plans to compare; the first one is the reference.
    #[arg(long, value_delimiter = ',', default_value = "debug,phases,mega", value_parser = FusionPlan::NAMES)]
    pub(super) plans: Vec<String>,
    /// Also compares the plans that are one graph with K of its steps per launch, unrolled; several K may be given.
    #[arg(long, value_name = "K", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) unroll: Vec<u32>,
    /// Also compares the plans that are one graph with K of its steps per launch, in a loop; several K may be given.
    #[arg(long = "loop", value_name = "K", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) looped: Vec<u32>,
    /// Where to run: auto (the GPU where a usable driver is found, the host otherwise), host, cuda or cuda:N.
    #[arg(long, default_value = "auto", value_parser = device)]
    pub(super) device: DeviceChoice,
    /// Samples of each plan; with fewer than 5 no plan is called faster.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Launches of one sample.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) launches: u32,
    /// The seed of random values, and of the order of samples.
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// Values to load before the first launch.
    #[arg(long, value_name = "FILE.safetensors")]
    pub(super) inputs: Option<PathBuf>,
    /// A folder for the report; it is made where it is missing.
    #[arg(long, value_name = "DIR")]
    pub(super) report: Option<PathBuf>,
}

/// Which program.
#[derive(Debug, clap::Args)]
pub(super) struct SpecArgs {
    /// The spec: a TOML file.
    pub(super) spec: PathBuf,
    /// Replaces a dimension of the spec; may be given several times.
    #[arg(long, value_name = "DIM=N", value_parser = dimension)]
    pub(super) set: Vec<(String, i64)>,
}

/// Which plan of which step.
#[derive(Debug, clap::Args)]
pub(super) struct PlanArgs {
    /// The step; without it every step (lower), or the only one (run).
    #[arg(long)]
    pub(super) step: Option<String>,
    /// The variant of the step; without it every variant (lower), or none (run).
    #[arg(long, requires = "step")]
    pub(super) variant: Option<String>,
    /// How steps become launches.
    #[arg(long, default_value = "mega", value_parser = FusionPlan::NAMES)]
    pub(super) plan: String,
    /// Steps of one launch, as so many copies of the step's nodes.
    #[arg(long, value_name = "K", conflicts_with = "looped", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) unroll: Option<u32>,
    /// Steps of one launch, as a loop on the device around the step; for plans with one graph.
    #[arg(long = "loop", value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) looped: Option<u32>,
}

/// How a plan is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Text,
    Dot,
    Json,
}

/// A device as the user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceChoice {
    Auto,
    Named(Device),
}

fn device(text: &str) -> Result<DeviceChoice, RuntimeError> {
    if text == "auto" { Ok(DeviceChoice::Auto) } else { text.parse().map(DeviceChoice::Named) }
}

fn dimension(text: &str) -> Result<(String, i64), String> {
    let wrong = || format!("`{text}` is not DIM=N, as in B=512");
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    Ok((name.trim().to_owned(), value.trim().parse().map_err(|_| wrong())?))
}
