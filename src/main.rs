//! The command line: arguments, exit codes, printing; no logic.

fn main() {}
