//! The reference system: a branching dueling DQN that trades, trained walk-forward, on the GPU or on the CPU.
//!
//! `cargo run --release --example dqn`

#![expect(clippy::print_stderr, reason = "an example talks to the terminal")]

mod act;
mod backward;
mod clock;
mod environment;
mod evaluate;
mod folds;
mod golden;
mod hyper;
mod keeper;
mod losses;
mod market;
mod measure;
mod network;
mod overhead;
mod places;
mod replay;
mod report;
mod schedule;
mod setup;
mod synthetic;
mod train;
mod trainer;
mod validation;
mod verify;
mod verify_command;

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser, Subcommand, ValueEnum, error::ErrorKind};
use indicatif::{ProgressBar, ProgressStyle};
use stepgraph::cuda::CudaError;
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::{CheckpointError, Device, RuntimeError};

use folds::{Fold, walk_forward};
use keeper::Keeper;
use losses::Progress;
use market::Prices;
use report::{FoldResult, Report};
use setup::{SYNTHETIC_DAYS, SYNTHETIC_STOCKS, Setup, Size, World};
use trainer::{Ending, Trainer};

/// The prices that come with the example, so that it runs from anywhere.
const PRICES: &[u8] = include_bytes!("../data/sp500_20_stocks_daily.csv.gz");

/// Trains a branching dueling DQN to trade stocks, fold by fold, and judges each policy on the days after its training.
#[derive(Debug, Parser)]
#[command(
    name = "dqn",
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  dqn\n  dqn --market synthetic\n  dqn train --variant c51 --folds 3 --json results.json\n  dqn --checkpoint-dir runs/a\n  dqn --checkpoint-dir runs/a --resume runs/a\n  dqn verify tests/golden/*.safetensors"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains and judges; the default.
    Train(TrainArgs),
    /// Runs golden files of the training step, and compares with what must come out.
    Verify(verify_command::Args),
    /// Measures the training step, plan against plan.
    Measure(measure::Args),
    /// Measures what validation and checkpoints cost the training step.
    Overhead(overhead::Args),
}

#[derive(Debug, clap::Args)]
struct TrainArgs {
    /// Where to run: auto, host, cuda or cuda:N.
    #[arg(long, default_value = "auto")]
    device: String,
    /// How each step becomes launches: debug, phases, mega or fast.
    #[arg(long, default_value = "mega", value_parser = FusionPlan::NAMES)]
    plan: String,
    /// The seed of weights, episodes and draws.
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Which targets are learned.
    #[arg(long, value_enum, default_value_t = Variant::Ddqn)]
    variant: Variant,
    /// Which prices are traded.
    #[arg(long, value_enum, default_value_t = MarketKind::Real)]
    market: MarketKind,
    /// How large the network and the run are; by default `device` for real prices on a GPU, `host` otherwise.
    #[arg(long, value_enum)]
    size: Option<Size>,
    /// The most folds, the latest ones; by default 2 at size `host`, all at size `device`.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    folds: Option<u32>,
    /// Training steps of a fold.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    budget: Option<u32>,
    /// Another price file than the one that comes with the example: CSV or CSV.GZ, a header `Date,NAME,…`, a row per day.
    #[arg(long)]
    prices: Option<PathBuf>,
    /// Also writes the results as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Writes a checkpoint into this folder at the end of each epoch, and when the run is interrupted with Ctrl-C. A folder that
    /// holds checkpoints already is for --resume alone.
    #[arg(long, value_name = "FOLDER")]
    checkpoint_dir: Option<PathBuf>,
    /// Goes on from a checkpoint, or from the newest that is whole below a checkpoint folder. The other options must be those of
    /// the run that wrote it; device and plan may differ.
    #[arg(long, value_name = "PATH")]
    resume: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Variant {
    /// Double DQN.
    Ddqn,
    /// Plain DQN: the target network chooses and values.
    Mse,
    /// Categorical DQN with 51 atoms.
    C51,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MarketKind {
    /// Daily closes of 20 S&P 500 stocks, 1990 to 2022.
    Real,
    /// Mean-reverting prices with a known good rule.
    Synthetic,
}

impl TrainArgs {
    /// Ends the program with a message about usage where the options contradict each other.
    fn consistent(self) -> Self {
        if self.prices.is_some() && matches!(self.market, MarketKind::Synthetic) {
            let message = "--market synthetic makes its own prices: leave out --prices, or the market";
            Cli::command().error(ErrorKind::ArgumentConflict, message).exit();
        }
        self
    }
}

impl Variant {
    const fn name(self) -> &'static str {
        match self {
            Self::Ddqn => "ddqn",
            Self::Mse => "mse",
            Self::C51 => "c51",
        }
    }
}

/// What shells expect of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        None => train_and_judge(&cli.train.consistent()),
        Some(Command::Train(args)) => train_and_judge(&args.consistent()),
        Some(Command::Verify(args)) => verify_files(&args),
        Some(Command::Measure(args)) => measure::run(&args, &mut std::io::stdout()).map(|()| ExitCode::SUCCESS),
        Some(Command::Overhead(args)) => overhead::run(&args, &mut std::io::stdout()).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(exit_code(&error))
    })
}

/// 1: the data or the program is wrong; 2: the command line is; 3: the device failed.
fn exit_code(error: &anyhow::Error) -> u8 {
    let saving = error.downcast_ref::<CheckpointError>().is_some_and(CheckpointError::is_device_failure);
    match error.downcast_ref::<RuntimeError>() {
        Some(RuntimeError::UnknownDevice { .. }) => 2,
        Some(error) if error.is_device_failure() => 3,
        _ if saving || error.is::<CudaError>() => 3,
        _ => 1,
    }
}

fn verify_files(args: &verify_command::Args) -> Result<ExitCode> {
    let passed = verify_command::run(args, &mut std::io::stdout())?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn train_and_judge(args: &TrainArgs) -> Result<ExitCode> {
    let device: Device = args.device.parse()?;
    if let Some(path) = &args.json {
        places::check_results(path)?;
    }
    if let Some(folder) = &args.checkpoint_dir {
        places::check_checkpoints(folder, args.resume.as_deref())?;
    }
    let (setup, prices) = (setup_of(args, device), prices_of(args)?);
    let folds = walk_forward(prices.days(), &setup.folds)?;
    let fusion = FusionPlan::named(&args.plan).context("no such plan")?;
    let start = Instant::now();
    let mut trainer = Trainer::open(setup.clone(), &prices, device, &fusion, args.seed)?;
    let on = trainer.session.report().device;
    say(format_args!(
        "device {on}, plan {}, seed {}, {} prices of {} stocks, {} folds of {} steps ({})",
        args.plan,
        args.seed,
        prices.days(),
        prices.stock_count(),
        folds.len(),
        setup.updates,
        setup.variant,
    ))?;

    let run = description(args, &setup, folds.len(), &prices);
    if let Some(from) = &args.resume {
        trainer.resume(from, &run, &folds)?;
        say(format_args!("resumed from {}: fold {} of {}", from.display(), trainer.next_fold() + 1, folds.len()))?;
    }
    if let Some(folder) = &args.checkpoint_dir {
        trainer.keep(Keeper::new(folder, run));
    }
    let stop = trainer.stop();
    ctrlc::set_handler(move || stop.store(true, Ordering::Relaxed)).context("cannot take over Ctrl-C")?;

    for (index, fold) in folds.iter().enumerate().skip(trainer.next_fold()) {
        if train_fold(&mut trainer, &setup, (index, folds.len()), fold)? == Ending::Interrupted {
            match trainer.save()? {
                Some(file) => say(format_args!("interrupted; go on with --resume {}", file.display()))?,
                None => say(format_args!("interrupted; with --checkpoint-dir the run could go on later"))?,
            }
            return Ok(ExitCode::from(INTERRUPTED));
        }
        let result = judge_fold(&mut trainer, &setup, args.market, index, fold, &prices)?;
        trainer.fold_is_done(result);
    }
    let results = trainer.folds().to_vec();
    let report = Report {
        market: match args.market {
            MarketKind::Real => "real".into(),
            MarketKind::Synthetic => "synthetic".into(),
        },
        variant: setup.variant.into(),
        device: on,
        plan: args.plan.clone(),
        seed: args.seed,
        seconds: start.elapsed().as_secs_f64(),
        folds: results,
    };
    show(&report, args)?;
    Ok(ExitCode::SUCCESS)
}

/// What a run was asked to do, as its checkpoints remember it. Sizes are part of the program, which they check by itself.
fn description(args: &TrainArgs, setup: &Setup, folds: usize, prices: &Prices) -> String {
    let prices = blake3::hash(&prices.closes.iter().flat_map(|close| close.to_le_bytes()).collect::<Vec<_>>()).to_hex();
    format!(
        "variant {}, seed {}, {folds} folds of {} steps in {} epochs, prices {}",
        setup.variant,
        args.seed,
        setup.updates,
        setup.epochs,
        &prices[..16]
    )
}

/// Unless told otherwise the size follows the device: what a GPU does in a minute takes a CPU an hour. The synthetic market has one
/// regime and a rule of one feature, which the large network soon buries under the noise that it learns by heart.
fn setup_of(args: &TrainArgs, device: Device) -> Setup {
    let size = args.size.unwrap_or(match (device, args.market) {
        (Device::Cuda { .. }, MarketKind::Real) => Size::Device,
        (Device::Host, _) | (_, MarketKind::Synthetic) => Size::Host,
    });
    let world = match args.market {
        MarketKind::Real => World::Real,
        MarketKind::Synthetic => World::Synthetic,
    };
    let mut setup = Setup::new(size, world, args.variant.name());
    if let Some(folds) = args.folds {
        setup.folds.most = Some(folds as usize);
    }
    if let Some(budget) = args.budget {
        setup.updates = budget as usize;
    }
    setup
}

fn prices_of(args: &TrainArgs) -> Result<Prices> {
    match (&args.prices, args.market) {
        (Some(path), _) => Ok(Prices::load(path)?),
        (None, MarketKind::Real) => Prices::unpack(PRICES).context("the prices that come with the example"),
        (None, MarketKind::Synthetic) => Ok(synthetic::prices(
            SYNTHETIC_DAYS,
            SYNTHETIC_STOCKS,
            synthetic::Reversion::default(),
            u64::from(args.seed),
        )),
    }
}

/// A bar on a terminal, ten lines elsewhere.
fn train_fold(trainer: &mut Trainer, setup: &Setup, (index, count): (usize, usize), fold: &Fold) -> Result<Ending> {
    let (updates, terminal) = (setup.updates, std::io::stderr().is_terminal());
    let bar = progress(updates, terminal);
    let interval = updates.div_ceil(if terminal { 100 } else { 10 });
    let ending = trainer.train(index, fold, interval, |Progress { done, loss, epsilon }, validated| {
        let mut state = format!("fold {}/{count}  loss {loss:.4}  random {:.0}%", index + 1, 100.0 * epsilon);
        if let Some(last) = validated.last() {
            state.push_str(&format!("  epoch {}: {:+.1}%", last.epoch, 100.0 * last.policy.reward));
        }
        if terminal {
            bar.set_position(done as u64);
            bar.set_message(state);
        } else {
            // Training goes on where its progress cannot be printed; its results are told, or the failure is.
            drop(say(format_args!("{state}  {done}/{updates} steps")));
        }
    })?;
    bar.finish_and_clear();
    Ok(ending)
}

fn progress(steps: usize, terminal: bool) -> ProgressBar {
    if !terminal {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps as u64);
    let style = ProgressStyle::with_template("{msg}  {bar:30} {pos}/{len} steps  {per_sec}  {eta} left");
    style.map(|style| bar.clone().with_style(style)).unwrap_or(bar)
}

fn judge_fold(
    trainer: &mut Trainer,
    setup: &Setup,
    market: MarketKind,
    index: usize,
    fold: &Fold,
    prices: &Prices,
) -> Result<FoldResult> {
    let verdict = trainer.judge(fold)?;
    let ends = |days: &std::ops::Range<usize>| [prices.dates[days.start].clone(), prices.dates[days.end - 1].clone()];
    let (from, to) = (fold.validation.start, fold.validation.end);
    Ok(FoldResult {
        fold: index + 1,
        train: ends(&fold.train),
        validation: ends(&fold.validation),
        steps: setup.updates,
        skipped: trainer.skipped()?,
        epochs: trainer.validated().to_vec(),
        policy: verdict.policy,
        hold: verdict.hold,
        random: verdict.random,
        rule: matches!(market, MarketKind::Synthetic)
            .then(|| synthetic::rule_reward(prices, from, to, trainer::rule_costs())),
    })
}

/// Writes and prints the results; where one of both fails, the other is done nevertheless.
fn show(report: &Report, args: &TrainArgs) -> Result<()> {
    let saved = args.json.as_ref().map_or(Ok(()), |path| {
        let text = serde_json::to_string_pretty(report)?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    });
    say(format_args!("\n{}", report.table()))?;
    if let Some(share) = report.share_of_rule() {
        say(format_args!("share of the known rule's reward: {:.1}%", 100.0 * share))?;
    }
    say(format_args!("{:.1} s", report.seconds))?;
    saved
}

/// Prints a line. A reader that has gone away, such as `head`, ends nothing.
fn say(line: fmt::Arguments<'_>) -> io::Result<()> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}
