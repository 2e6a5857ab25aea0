//! Faults: device code that fails is named, and what cannot go on says so. Each fault has a process of its own, because a
//! context is lost with it.

use std::process::Command;

use stepgraph::Builder;
use stepgraph::cuda::probe;
use stepgraph::ir::{Compute, Init};
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::{Device, RuntimeError, Session};

use crate::network::network;
use crate::support::{plan, real_device};

stepgraph::kernel! {
    /// Writes far outside of its buffer.
    pub stray in "tests/kernels/stray.cu" (x: InOut<f32>[n], n: Size)
    launch elements(x, block = 32, per_thread = 1)
}

/// The variable that turns a test into the process that fails.
const CHILD: &str = "STEPGRAPH_GPU_CHILD";

/// Runs one test of this binary in a process of its own; gives what it printed.
fn child(test: &str) -> String {
    let output = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .expect("it starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} failed:\n{text}");
    text
}

fn stray_session(device: Device, fusion: &FusionPlan, checked: bool) -> Session {
    let mut p = Builder::new("stray");
    let x = p.state::<f32>("x", [64], Init::Zeros);
    p.step("run", |s| {
        s.phase("before", |f| f.map_to("fine", x, x + 1.0f32));
        s.phase("middle", |f| f.kernel("culprit", stray::Args { x }));
        s.phase("behind", |f| f.map_to("also_fine", x, x + 1.0f32));
    });
    let program = p.build().expect("valid");
    let builder = if checked { Session::builder().check_each_launch() } else { Session::builder() };
    builder.open(device, [plan(&program, "run", fusion)]).expect("it opens")
}

/// An error with its causes.
fn text(error: &RuntimeError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Protects: a fault inside a graph names the launch and the step, the session is clearly dead afterwards, and nothing hangs or
/// panics on the way out.
#[test]
fn a_fault_in_a_graph_names_launch_and_step() {
    if real_device().is_some() {
        child("faults::fault_in_a_graph");
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn fault_in_a_graph() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let mut session = stray_session(Device::Cuda { ordinal: 0 }, &FusionPlan::mega(), false);
    let ticket = session.launch("run").expect("the launch itself is queued");
    let error = ticket.wait(&mut session).map(drop).expect_err("the device failed");
    let found = text(&error);
    assert!(found.contains("launch 1") && found.contains("`run`"), "{found}");
    assert!(found.contains("CUDA_ERROR_"), "{found}");
    let again = session.launch("run").map(drop).expect_err("the device is lost");
    assert!(text(&again).contains("failed earlier"), "{}", text(&again));
}

/// Protects: the debug plan names the node at fault.
#[test]
fn the_debug_plan_names_the_node() {
    if real_device().is_some() {
        child("faults::fault_in_a_debug_plan");
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn fault_in_a_debug_plan() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let mut session = stray_session(Device::Cuda { ordinal: 0 }, &FusionPlan::debug(), true);
    let error = session.launch("run").map(drop).expect_err("the device failed");
    assert!(text(&error).contains("middle.culprit"), "{}", text(&error));
}

/// Protects: without a driver, or for a device that is not there, opening is a typed error that says what to do.
#[test]
fn a_missing_device_is_an_error_with_a_remedy() {
    let net = network(4, 8, Compute::F32);
    let ordinal = probe::devices().map_or(0, |devices| u32::try_from(devices.len()).expect("few"));
    let opened = Session::open(Device::Cuda { ordinal }, [plan(&net.program, "train", &FusionPlan::mega())]);
    let error = opened.map(drop).expect_err("there is no such device");
    assert!(matches!(error, RuntimeError::DeviceUnavailable { .. }), "{error:?}");
    if probe::devices().is_err() {
        assert!(error.to_string().contains("--device host"), "{error}");
    }
}
