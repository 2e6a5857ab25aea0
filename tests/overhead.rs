//! `dqn overhead` sees what holds training up.

#[allow(dead_code, reason = "the example uses what this test does not")]
#[path = "common/dqn.rs"]
mod dqn;

use clap::Parser;

use dqn::overhead;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: overhead::Args,
}

/// Microseconds per step, and of the median epoch's gap, of the way of training with this name.
fn row(table: &str, way: &str) -> [f64; 2] {
    let line = table.lines().find(|line| line.starts_with(&format!("{way}  "))).expect("a row");
    let words: Vec<&str> = line[way.len()..].split_whitespace().collect();
    let [step, _, _, _, _, gap, ..] = words[..] else { panic!("{line}") };
    [step, gap].map(|number| number.parse().expect("a number"))
}

/// Protects: a wait between two steps is a gap of that length. All that waiting for a validation adds to an epoch comes at one place;
/// half of it is asked for, since the other steps take a little more or less. The size is the one that the host is given, not a GPU's.
#[test]
fn a_wait_is_a_gap() {
    let steps = 10.0;
    let line = ["overhead", "--device", "host", "--steps", "10", "--rounds", "3"];
    let Cli { args } = Cli::parse_from(line);
    let mut table = Vec::new();
    overhead::run(&args, &mut table).expect("the host does not fail");
    let table = String::from_utf8(table).expect("text");
    let [alone, _] = row(&table, "alone");
    let [waiting, gap] = row(&table, "validation, waited for");
    let added = steps * (waiting - alone);
    assert!(added > 0.0 && gap > 0.5 * added, "{table}");
}
