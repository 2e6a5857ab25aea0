//! Conditional nodes: branches, switches and loops, nested, over repeated replays, and stopped by the host.

use std::time::{Duration, Instant};

use stepgraph::Builder;
use stepgraph::builder::Bound;
use stepgraph::ir::Init;
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::{Device, Session};
use stepgraph::valid::ValidProgram;

use crate::support::{Memory, device, plan, real_device};

/// Launches with each choice in turn, three rounds; the host must have the same bits after each.
fn assert_follows_host(device: Device, program: &ValidProgram, cell: &str, choices: &[u32]) {
    for fusion in [FusionPlan::debug(), FusionPlan::phases(), FusionPlan::mega()] {
        let mut sessions = [Device::Host, device].map(|device| {
            Session::open(device, [plan(program, "run", &fusion)]).unwrap_or_else(|error| panic!("it opens: {error:?}"))
        });
        for round in 0..3 {
            for &choice in choices {
                let [host, found] = sessions.each_mut().map(|session| {
                    session.set_by_name(cell, stepgraph::ir::ConstValue::U32(choice)).expect("a host scalar");
                    session.launch("run").expect("it launches");
                    session.wait().expect("it runs");
                    Memory::of(session, program.program())
                });
                host.assert_same(&found, &format!("{}, round {round}, {cell} = {choice}", fusion.name));
            }
        }
    }
}

/// Protects: each branch runs where its condition says so, and only there, over repeated replays.
#[test]
fn branches_and_switches_follow_their_cells() {
    let Some(device) = device() else { return };
    let mut p = Builder::new("branches");
    let choice = p.host_scalar("choice", 0u32);
    let x = p.state::<f32>("x", [100], Init::Constant(1.0));
    let seen = p.device_scalar("seen", 0u32);
    p.step("run", |s| {
        s.phase("main", |f| {
            f.when_else(
                "either",
                choice,
                |b| {
                    b.map_to("up", x, x + 1.0f32);
                },
                |b| {
                    b.map_to("down", x, x * 0.5f32);
                },
            );
            f.when("only", choice, |b| b.set("note", seen, seen + 1u32));
            f.switch(
                "which",
                choice,
                &mut [
                    &mut |b| b.fill("zero", x.slice(0, 0..10), 7.0),
                    &mut |b| {
                        b.map_to("one", x, x * 3.0f32);
                    },
                    &mut |b| b.copy("two", x.slice(0, 0..10), x.slice(0, 50..60)),
                ],
            );
        });
    });
    assert_follows_host(device, &p.build().expect("valid"), "choice", &[0, 1, 2, 3, 0, 7]);
}

/// Protects: a guarded phase is skipped where its cell is 0.
#[test]
fn guarded_phases_are_skipped() {
    let Some(device) = device() else { return };
    let mut p = Builder::new("guards");
    let on = p.host_scalar("on", 0u32);
    let x = p.state::<f32>("x", [33], Init::Constant(1.0));
    p.step("run", |s| {
        s.phase("always", |f| f.map_to("grow", x, x + 1.0f32));
        s.phase_if("sometimes", on, |f| f.map_to("halve", x, x * 0.5f32));
    });
    assert_follows_host(device, &p.build().expect("valid"), "on", &[0, 1, 1, 0]);
}

/// Protects: loops run as often as their bound says, end on their flag, count from zero at every replay, and hold products,
/// copies, fills, branches and loops.
#[test]
fn loops_end_where_they_should() {
    let Some(device) = device() else { return };
    let mut p = Builder::new("loops");
    let bound = p.host_scalar("bound", 0u32);
    let (index, inner_index, until) =
        (p.device_scalar("index", 9u32), p.device_scalar("inner", 9u32), p.device_scalar("until", 9u32));
    let (runs, odd) = (p.device_scalar("runs", 0u32), p.device_scalar("odd", 0u32));
    let w = p.param::<f32>("w", [16, 16], Init::Uniform { bound: 0.3 });
    let x = p.state::<f32>("x", [5, 16], Init::Constant(1.0));
    let trace = p.state::<u32>("trace", [64], Init::Zeros);
    p.step("run", |s| {
        s.phase("main", |f| {
            f.fill("clear", trace, 0);
            f.repeat("outer", Bound::Scalar(bound), Some(index), Some(until), |b| {
                let y = b.gemm("product", x.nt(w)).done();
                b.copy("back", y, x.slice(0, 0..5));
                b.map_node("note")
                    .over([1])
                    .scatter(trace, [index.val().into()], stepgraph::ir::ScatterRule::Unique, index + 100u32)
                    .done();
                b.set("parity", odd, index % 2u32);
                b.when("if_odd", odd, |c| {
                    c.map_to("shift", x, x + 0.125f32);
                });
                b.repeat("nested", Bound::Const(3), Some(inner_index), None, |c| {
                    c.set("count", runs, runs + inner_index)
                });
                b.set("enough", until, index.val().equal(6u32).to_u32());
            });
        });
    });
    // Products round as the host's do only within their bound, so compare what does not depend on them.
    let program = p.build().expect("valid");
    for fusion in [FusionPlan::debug(), FusionPlan::mega()] {
        let mut session = Session::open(device, [plan(&program, "run", &fusion)]).expect("it opens");
        let mut expected_runs = 0;
        for (choice, iterations) in [(0, 0), (1, 1), (5, 5), (40, 7), (3, 3), (0, 0), (7, 7)] {
            session.set(bound, choice).expect("a host scalar");
            session.launch("run").expect("it launches");
            session.wait().expect("it runs");
            let memory = Memory::of(&mut session, program.program());
            expected_runs += 3 * iterations;
            let context = format!("{} with bound {choice}", fusion.name);
            assert_eq!(memory.words("runs"), [expected_runs], "{context}");
            assert_eq!(memory.words("index"), [iterations], "{context}");
            let trace: Vec<u32> = (0..64).map(|i| if i < iterations { i + 100 } else { 0 }).collect();
            assert_eq!(memory.words("trace"), trace, "{context}");
            assert!(memory.floats("x").iter().all(|x| x.is_finite()), "{context}");
        }
    }
}

/// Protects: a product inside a loop body, with the iteration's own operands, is the host's within rounding.
///
/// Each of 4 iterations multiplies by a matrix of row sums below 16 · 0.3 and adds 16 roundings of 2⁻²³ per element.
#[test]
fn products_run_inside_loops() {
    let Some(device) = device() else { return };
    let mut p = Builder::new("power");
    let w = p.param::<f32>("w", [16, 16], Init::Uniform { bound: 0.3 });
    let x = p.state::<f32>("x", [5, 16], Init::Constant(1.0));
    p.step("run", |s| {
        s.phase("main", |f| {
            f.repeat("loop", Bound::Const(4), None, None, |b| {
                let y = b.gemm("product", x.nt(w)).done();
                b.copy("back", y, x.slice(0, 0..5));
            });
        });
    });
    let program = p.build().expect("valid");
    let run = |device| {
        let mut session = Session::open(device, [plan(&program, "run", &FusionPlan::mega())]).expect("it opens");
        session.launch("run").expect("it launches");
        session.wait().expect("it runs");
        Memory::of(&mut session, program.program())
    };
    let (host, found) = (run(Device::Host), run(device));
    let largest = host.floats("x").iter().fold(1.0f32, |a, b| a.max(b.abs()));
    let allowed = largest * 4.0 * 18.0 * 2f32.powi(-23) * 4.8f32.powi(3);
    host.assert_agrees(&found, "power", |a, b| (a - b).abs() <= allowed);
}

/// Protects: the host can end a loop that would run for a very long time, within a moment, and the session stays usable.
#[test]
fn stop_ends_a_long_loop() {
    let Some(device) = real_device() else { return };
    let mut p = Builder::new("endless");
    let count = p.device_scalar("count", 0u32);
    p.step("run", |s| {
        s.phase("main", |f| {
            f.repeat("forever", Bound::Const(u32::MAX), None, None, |b| b.set("tick", count, count + 1u32));
        });
    });
    let program = p.build().expect("valid");
    let mut session = Session::open(device, [plan(&program, "run", &FusionPlan::mega())]).expect("it opens");
    let stop = session.stop_handle();
    let ticket = session.launch("run").expect("it launches");
    std::thread::sleep(Duration::from_millis(50));
    assert!(ticket.try_take(&mut session).expect("it runs").is_none(), "it is still running");
    let asked = Instant::now();
    stop.stop();
    session.wait().expect("it ends");
    assert!(asked.elapsed() < Duration::from_millis(10), "stopping took {:?}", asked.elapsed());
    let ran = session.read_scalar(count).expect("a scalar");
    assert!(ran > 100, "it ran {ran} times");
    session.launch("run").expect("it launches");
    session.wait().expect("it ends at once");
    assert_eq!(session.read_scalar(count).expect("a scalar"), ran, "no iteration starts while stop is set");
    stop.clear();
}
