//! What a step costs: driver calls in the steady state, and time over the bare graph launch.
#![expect(unsafe_code, reason = "the bare launch that a session is compared with goes to the driver directly")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use stepgraph::cuda::calls;
use stepgraph::ir::Compute;
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::Session;

use crate::network::network;
use crate::support::{plan, real_device};

/// Calls of 100 launches, each with a changed scalar or none.
fn calls_of_launches(fusion: &FusionPlan, changed: bool) -> Option<BTreeMap<&'static str, u64>> {
    let device = real_device()?;
    let net = network(64, 64, Compute::F32);
    let mut session = Session::open(device, [plan(&net.program, "train", fusion)]).expect("it opens");
    for _ in 0..20 {
        session.launch("train").expect("it launches");
        session.wait().expect("it runs");
    }
    let before = calls::snapshot();
    for i in 0..100u16 {
        if changed {
            session.set(net.lr, 1e-4 * f32::from(i)).expect("a host scalar");
        }
        session.launch("train").expect("it launches");
    }
    let found = calls::since(&before);
    session.wait().expect("it runs");
    Some(found)
}

/// Protects: the steady state of a mega plan is one graph launch per step, with one small copy where a value changed: no node
/// update, no allocation, no wait for the device.
#[test]
fn a_steady_step_is_one_copy_and_one_launch() {
    const HARMLESS: [&str; 4] = ["cuCtxGetCurrent", "cuEventRecord", "cuEventQuery", "cuEventCreate"];
    for changed in [false, true] {
        let Some(mut found) = calls_of_launches(&FusionPlan::mega(), changed) else { return };
        assert_eq!(found.remove("cuGraphLaunch"), Some(100));
        assert_eq!(found.remove("cuMemcpyHtoDAsync_v2"), changed.then_some(100));
        // Waiting for a ring slot that the device has not read yet is allowed; it waits for that launch alone.
        found.remove("cuEventSynchronize");
        found.retain(|name, _| !HARMLESS.contains(name));
        assert_eq!(found, BTreeMap::new(), "changed: {changed}");
    }
}

/// Protects: a phases plan is one graph launch per phase, and nothing else.
#[test]
fn a_phases_step_is_one_launch_per_phase() {
    let Some(found) = calls_of_launches(&FusionPlan::phases(), false) else { return };
    assert_eq!(found.get("cuGraphLaunch"), Some(&300), "three phases");
    assert_eq!(found.get("cuLaunchKernelEx"), None);
}

/// Protects: the counts in the report are the driver's own.
#[test]
fn the_report_counts_what_was_built() {
    let Some(device) = real_device() else { return };
    let net = network(64, 64, Compute::F32);
    let before = calls::snapshot();
    let session = Session::open(device, [plan(&net.program, "train", &FusionPlan::mega())]).expect("it opens");
    let made = calls::since(&before);
    let emitted = session.report().plans[0].emitted;
    let added: u64 = ["cuGraphAddKernelNode_v2", "cuGraphAddMemcpyNode", "cuGraphAddMemsetNode", "cuGraphAddNode_v2"]
        .iter()
        .filter_map(|name| made.get(name))
        .sum();
    assert_eq!((emitted.graphs, emitted.launches), (1, 1));
    assert_eq!(emitted.nodes as u64, added);
    assert!(emitted.edges >= emitted.nodes - 1, "{emitted:?}");
}

/// Protects: a replay through a session costs at most 5 % over the bare launch of the same executable.
///
/// Both queue 500 launches and wait, in turn, nine times; the medians are compared.
#[test]
#[expect(clippy::print_stderr, reason = "the measurement is evidence")]
fn a_session_costs_next_to_nothing() {
    const LAUNCHES: u32 = 500;
    let Some(device) = real_device() else { return };
    let net = network(64, 256, Compute::Tf32);
    let mut session = Session::open(device, [plan(&net.program, "train", &FusionPlan::mega())]).expect("it opens");
    let raw = session.raw("train", None).expect("planned").expect("a device");
    let (exec, stream) = (raw.graph_execs[0] as sys::CUgraphExec, raw.stream as sys::CUstream);
    let bare = || {
        let start = Instant::now();
        for _ in 0..LAUNCHES {
            // SAFETY: the session is alive, and so are its executable and stream.
            let launched = unsafe { sys::cuGraphLaunch(exec, stream) };
            assert_eq!(launched, sys::CUresult::CUDA_SUCCESS);
        }
        // SAFETY: as above.
        assert_eq!(unsafe { sys::cuStreamSynchronize(stream) }, sys::CUresult::CUDA_SUCCESS);
        start.elapsed() / LAUNCHES
    };
    let mut through_session = || {
        let start = Instant::now();
        for _ in 0..LAUNCHES {
            session.launch("train").expect("it launches");
        }
        session.wait().expect("it runs");
        start.elapsed() / LAUNCHES
    };
    let (mut bare_times, mut session_times) = (Vec::new(), Vec::new());
    for round in 0..10 {
        let (bare, session) = (bare(), through_session());
        if round > 0 {
            bare_times.push(bare);
            session_times.push(session);
        }
    }
    let (bare, session) = (median(bare_times), median(session_times));
    eprintln!("replay: bare {bare:?}, session {session:?}, ratio {:.4}", session.as_secs_f64() / bare.as_secs_f64());
    assert!(session.as_secs_f64() <= 1.05 * bare.as_secs_f64(), "bare {bare:?}, session {session:?}");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
