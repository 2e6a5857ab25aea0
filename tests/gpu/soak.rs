//! Very many replays: memory stays flat, on the device and on the host.

use std::time::Instant;

use stepgraph::cuda::Context;
use stepgraph::plan::{FusionPlan, Tuning};
use stepgraph::runtime::Session;

use crate::digits;
use crate::support::{real_device, target};

/// Replays by default; `STEPGRAPH_SOAK` names another number.
const REPLAYS: u32 = 20_000;

/// Bytes of this process that are in memory (Linux; elsewhere none are counted).
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Protects: a run of any length takes no more memory than a short one. The learning rate changes at every step, so that the inbox
/// ring and its events are in use, and every thousandth ticket is read.
#[test]
#[expect(clippy::print_stdout, reason = "the numbers are evidence")]
fn replays_take_no_memory() {
    let Some(device) = real_device() else { return };
    let replays = std::env::var("STEPGRAPH_SOAK").ok().and_then(|number| number.parse().ok()).unwrap_or(REPLAYS);
    let digits = digits::digits().expect("valid");
    let plan = digits.program.plan("train", &FusionPlan::mega(), &target(), &Tuning::default()).expect("it plans");
    let mut session = Session::open(device, [plan]).expect("it opens");
    let context = Context::primary(0).expect("a device");
    let mut run = |count: u32| {
        for step in 0..count {
            session.set(digits.rate, 1e-4 + 1e-9 * (step % 1000) as f32).expect("a host scalar");
            let ticket = session.launch("train").expect("it launches");
            if step % 1000 == 999 {
                let loss = ticket.wait(&mut session).expect("it runs").read(digits.batch_loss).expect("an output");
                assert!(loss.iter().all(|loss| loss.is_finite()), "step {step}: {loss:?}");
            }
        }
        session.wait().expect("it runs");
    };
    run(5000);
    let before = (context.memory().expect("a device").0, resident());
    let start = Instant::now();
    run(replays);
    let took = start.elapsed();
    let after = (context.memory().expect("a device").0, resident());
    println!(
        "soak: {replays} replays in {took:?}; free device memory {} then {}, resident {} then {} bytes",
        before.0, after.0, before.1, after.1
    );
    assert_eq!(before.0, after.0, "free memory of the device");
    assert!(after.1 <= before.1 + (4 << 20), "the process grew from {} to {} bytes", before.1, after.1);
}
