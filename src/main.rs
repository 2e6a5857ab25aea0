//! The command line: arguments, exit codes, printing; no logic.
//!
//! Exit codes: 0 fine, 1 the program or its data is wrong, 2 the command line is, 3 the device failed.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
