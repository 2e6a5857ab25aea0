//! Trains a small network on handwritten digits, on the GPU or on the CPU, and tests it on digits that it has not seen.
//!
//! `cargo run --release --example digits`

#![expect(clippy::print_stderr, reason = "an example talks to the terminal")]

mod data;
mod program;
mod train;

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use stepgraph::plan::{FusionPlan, PlanError, Repeat, Target};
use stepgraph::runtime::{Device, RuntimeError, Session};

/// The data set, so that the example runs from anywhere.
const DIGITS: &[u8] = include_bytes!("../data/digits.csv.gz");

/// Trains a 64-256-128-10 network on 1,437 handwritten digits and tests it on 360 others.
#[derive(Debug, Parser)]
#[command(
    after_help = "Examples:\n  digits\n  digits --device host --epochs 5\n  digits --plan phases --seed 7 -v\n  digits --loop 22"
)]
struct Args {
    /// Where to run: auto, host, cuda or cuda:N.
    #[arg(long, default_value = "auto")]
    device: String,
    /// How each step becomes launches: debug, phases, mega or fast.
    #[arg(long, default_value = "mega", value_parser = FusionPlan::NAMES)]
    plan: String,
    /// Mini-batches of one launch, unrolled; they share a learning rate.
    #[arg(long, value_name = "K", conflicts_with = "looped", value_parser = divisor)]
    unroll: Option<u32>,
    /// Mini-batches of one launch, in a loop on the device; they share a learning rate.
    #[arg(long = "loop", value_name = "K", value_parser = divisor)]
    looped: Option<u32>,
    /// The seed of initial weights and of mini-batches.
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Epochs of 22 mini-batches.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    epochs: u32,
    /// Prints the loss of each of the first N mini-batches, for comparing devices and plans.
    #[arg(long, value_name = "N", default_value_t = 0)]
    trace: u32,
    /// Another data file than the one that comes with the example.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Shows what was built, and how long it took.
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(exit_code(&error))
        }
    }
}

/// 1: the data or the program is wrong; 2: the command line is; 3: the device failed.
fn exit_code(error: &anyhow::Error) -> u8 {
    if matches!(error.downcast_ref::<PlanError>(), Some(PlanError::LoopOfParts { .. })) {
        return 2;
    }
    match error.downcast_ref::<RuntimeError>() {
        Some(RuntimeError::UnknownDevice { .. }) => 2,
        Some(error) if error.is_device_failure() => 3,
        _ => 1,
    }
}

fn run(args: &Args) -> Result<()> {
    let device: Device = args.device.parse()?;
    let (train_set, test_set) = read_data(args)?;

    let start = Instant::now();
    let digits = program::digits()?;
    let fusion = FusionPlan::named(&args.plan).context("no such plan")?.repeated(repeat(args));
    let plans = train::plans(&digits, &fusion, &Target::default())?;
    let planned = start.elapsed();
    let mut session = Session::builder().seed(u64::from(args.seed)).open(device, plans)?;
    train::load(&mut session, &digits, args.seed, &train_set, &test_set)?;
    let ready = start.elapsed();

    let report = session.report();
    say(format_args!("device {}, plan {}, seed {}", report.device, fusion.name, args.seed))?;
    if args.verbose {
        say(format_args!("{report}"))?;
        say(format_args!("built and planned in {}, ready to launch after {}", millis(planned), millis(ready)))?;
    }

    let start = Instant::now();
    train_all(&mut session, &digits, args)?;
    let accuracy = train::accuracy(&mut session, &digits)?;
    if args.verbose {
        let steps = args.epochs * train::STEPS;
        say(format_args!("{steps} steps and the test in {}", millis(start.elapsed())))?;
    }
    say(format_args!("test accuracy: {accuracy:.4}"))?;
    Ok(())
}

/// Prints a line. A reader that has gone away, such as `head`, ends nothing.
fn say(line: fmt::Arguments<'_>) -> io::Result<()> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

fn repeat(args: &Args) -> Repeat {
    match (args.unroll, args.looped) {
        (Some(steps), _) => Repeat::Unroll(steps),
        (None, Some(steps)) => Repeat::Loop(steps),
        (None, None) => Repeat::Once,
    }
}

/// An epoch is a whole number of launches.
fn divisor(text: &str) -> Result<u32, String> {
    let whole = text.parse().ok().filter(|&steps: &u32| steps > 0 && train::STEPS.is_multiple_of(steps));
    whole.ok_or_else(|| format!("an epoch has {} mini-batches: give a number that divides them", train::STEPS))
}

fn read_data(args: &Args) -> Result<(data::Set, data::Set)> {
    match &args.data {
        None => data::read(DIGITS).context("the data that comes with the example"),
        Some(path) => {
            let bytes = stepgraph::file::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            data::read(&bytes).with_context(|| format!("{}", path.display()))
        }
    }
}

/// A bar on a terminal; a line per epoch everywhere.
fn train_all(session: &mut Session, digits: &program::Digits, args: &Args) -> Result<()> {
    let epochs = args.epochs;
    let mut watch = Terminal { bar: progress(u64::from(epochs * train::STEPS)), trace: args.trace };
    let width = epochs.to_string().len();
    for epoch in 0..epochs {
        let loss = train::epoch(session, digits, (epoch, epochs), &mut watch)?;
        watch.bar.suspend(|| say(format_args!("epoch {:width$}/{epochs}  loss {loss:.6}", epoch + 1)))?;
    }
    watch.bar.finish_and_clear();
    Ok(())
}

struct Terminal {
    bar: ProgressBar,
    trace: u32,
}

impl train::Watch for Terminal {
    fn wants_loss(&self, step: u32) -> bool {
        step < self.trace
    }

    fn after_launch(&mut self, steps: Range<u32>, loss: Option<f32>) {
        if let Some(loss) = loss {
            // What cannot be printed here cannot be printed at the end of the epoch either, and ends the run there.
            drop(self.bar.suspend(|| say(format_args!("step {:4}  loss {loss:.9}", steps.end))));
        }
        self.bar.inc(u64::from(steps.end - steps.start));
    }
}

fn progress(steps: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} steps  {per_sec}  {eta} left");
    let bar = ProgressBar::new(steps);
    style.map(|style| bar.clone().with_style(style)).unwrap_or(bar)
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
