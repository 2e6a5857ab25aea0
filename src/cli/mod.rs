//! The `stepgraph` command: what each subcommand prints. All work is the library's.

mod args;
mod bench;
mod check;
mod doctor;
mod excerpt;
mod failure;
mod lower;
mod progress;
mod run;
mod spec;
mod tensors;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use args::{Args, Command};
use failure::Failure;

/// Runs the command line and reports what went wrong on standard error.
pub(crate) fn main() -> ExitCode {
    let args = Args::parse();
    start_tracing(args.verbose);
    let mut out = io::stdout().lock();
    let done = match &args.command {
        Command::Check(args) => check::run(args, &mut out),
        Command::Lower(args) => lower::run(args, &mut out),
        Command::Run(args) => run::run(args, &mut out),
        Command::Bench(args) => bench::run(args, &mut out),
        Command::Doctor => doctor::run(&mut out),
    };
    match done.and_then(|()| out.flush().map_err(Failure::from)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// `1 launch`, `2 launches`.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Events go to standard error: nothing by default, what takes time with `-v`, everything with `-vv`.
fn start_tracing(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "stepgraph=info",
        _ => "stepgraph=trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_target(false).init();
}
