//! Several steps per launch: unrolled and looped plans leave the bits of single launches, in one launch, and loops can be stopped.

use std::time::{Duration, Instant};

use stepgraph::Builder;
use stepgraph::builder::{Bound, Ix, axis, normal};
use stepgraph::cuda::calls;
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::{Init, Origins, Role, ScatterRule};
use stepgraph::plan::{FusionPlan, Graphs, Repeat};
use stepgraph::runtime::{Device, Session};
use stepgraph::valid::{ValidProgram, validate};

use crate::flagship::{after_steps, system};
use crate::random::{leaves, programs};
use crate::support::{Memory, device, fill, plan, real_device};

/// Steps of one launch.
const STEPS: u32 = 4;

fn mega(repeat: Repeat) -> FusionPlan {
    FusionPlan::mega().repeated(repeat)
}

/// Every way of making so many steps in one launch.
fn repeats(steps: u32) -> [FusionPlan; 4] {
    let unroll = Repeat::Unroll(steps);
    [
        FusionPlan::debug().repeated(unroll),
        FusionPlan::phases().repeated(unroll),
        mega(unroll),
        mega(Repeat::Loop(steps)),
    ]
}

/// What a step of these tests can hold beside kernels that make its data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Products, and a reduction in two parts.
    Products,
    /// Memcpy and memset nodes, whole and strided, some on an output in the host's memory.
    Memory,
    /// One of two bodies, by the parity of the step.
    Branches,
    /// One of two bodies, or neither in every third step.
    Switch,
    /// A loop that ends on its flag, before its bound.
    Loop,
}

/// All of them: what users put together, nobody wrote down.
const EVERY_PART: [Part; 5] = [Part::Products, Part::Memory, Part::Branches, Part::Switch, Part::Loop];

/// A step that makes its own data and holds these parts, and the cell that counts its runs.
fn step_of(parts: &[Part]) -> (ValidProgram, Scalar<u32>) {
    let has = |part| parts.contains(&part);
    let mut p = Builder::new("repeated");
    let scale = p.host_scalar("scale", 0.5f32);
    let seed = p.host_scalar("seed", 3u32);
    let t = p.device_scalar("t", 0u32);
    let [odd, third, index, until, rounds] =
        ["odd", "third", "index", "until", "rounds"].map(|name| p.device_scalar(name, 0u32));
    let energy = p.device_scalar("energy", 0f32);
    let w = p.param::<f32>("w", [48, 32], Init::Uniform { bound: 0.2 });
    let long = p.state::<f32>("long", [100_000], Init::Constant(0.25));
    let kept = p.state::<f32>("kept", [64, 32], Init::Zeros);
    let trace = p.state::<u32>("trace", [64], Init::Zeros);
    let product = has(Part::Products).then(|| p.output::<f32>("product", [64, 48]));
    let columns = has(Part::Memory).then(|| p.output::<f32>("columns", [64, 8]));
    p.step("run", |s| {
        let x = s.phase("draw", |f| {
            f.set("tick", t, t + 1u32);
            f.map_over::<f32>("x", [64, 32], normal(seed, t, 0) * scale)
        });
        s.phase("compute", |f| {
            f.map_to("keep", kept, kept + x);
            if let Some(product) = product {
                f.gemm("product", x.nt(w)).to(product);
                let back = f.gemm("back", product.tn(x)).done();
                f.map_to("learn", w, w - back * 1e-3f32);
                f.map_to("grow", long, long * 1.0625f32 + t.val().to_f32());
                f.sum("energy", &[0], long * 1e-6f32).to_scalar(energy);
            }
        });
        if let Some(columns) = columns {
            s.phase("move", |f| {
                f.copy("whole", x, kept);
                f.fill("words", columns, 1.0);
                f.copy("some", x.cols(0..4), columns.cols(2..6));
                f.fill("stripe", kept.cols(8..12), 2.0);
            });
        }
        s.phase("control", |f| {
            f.set("parity", odd, t % 2u32);
            f.set("turn", third, t % 3u32);
            if has(Part::Branches) {
                f.when_else(
                    "either",
                    odd,
                    |b| b.fill("clear", kept.rows(0..8), 0.0),
                    |b| {
                        b.map_to("double", kept, kept * 2.0f32);
                    },
                );
            }
            if has(Part::Switch) {
                f.switch(
                    "which",
                    third,
                    &mut [&mut |b| b.fill("zero", kept.rows(8..9), 5.0), &mut |b| {
                        b.copy("one", kept.rows(16..24), kept.rows(24..32))
                    }],
                );
            }
            if has(Part::Loop) {
                f.repeat("loop", Bound::Const(5), Some(index), Some(until), |b| {
                    b.set("count", rounds, rounds + 1u32);
                    b.map_node("note")
                        .over([1])
                        .scatter(trace, [((t * 5u32 + index) % 64u32).into()], ScatterRule::Unique, t + index)
                        .done();
                    b.set("end", until, index.val().equal(odd + 1u32).to_u32());
                });
            }
        });
    });
    (p.build().expect("valid"), t)
}

/// What is left after so many launches.
fn launched(device: Device, program: &ValidProgram, fusion: &FusionPlan, launches: u32) -> Memory {
    let mut session = Session::open(device, [plan(program, "run", fusion)])
        .unwrap_or_else(|error| panic!("{} opens: {error:?}", fusion.name));
    fill(&mut session, program.program(), 6);
    for _ in 0..launches {
        session.launch("run").unwrap_or_else(|error| panic!("{} launches: {error:?}", fusion.name));
    }
    session.wait().unwrap_or_else(|error| panic!("{} runs: {error:?}", fusion.name));
    Memory::of(&mut session, program.program())
}

/// A step of these parts, several times per launch and over three replays, leaves the bits of single launches.
#[expect(clippy::print_stdout, reason = "a run that does not end must say where")]
fn repeats_like_single_launches(parts: &[Part]) {
    let Some(device) = device() else { return };
    let (program, _) = step_of(parts);
    let single = launched(device, &program, &FusionPlan::mega(), 3 * STEPS);
    assert_eq!(single.words("t"), [3 * STEPS]);
    for fusion in repeats(STEPS) {
        // Should a driver not come back from one of them, the last line says from which.
        println!("{}", fusion.name);
        single.assert_same(&launched(device, &program, &fusion, 3), &fusion.name);
    }
    for repeat in [Repeat::Unroll(1), Repeat::Loop(1)] {
        println!("{repeat}");
        single.assert_same(&launched(device, &program, &mega(repeat), 3 * STEPS), &repeat.to_string());
    }
}

/// Protects: library calls in repeated steps.
#[test]
fn products_repeat() {
    repeats_like_single_launches(&[Part::Products]);
}

/// Protects: copies and fills in repeated steps.
#[test]
fn memory_nodes_repeat() {
    repeats_like_single_launches(&[Part::Memory]);
}

/// Protects: an If with two bodies in repeated steps, inside of a While where they are looped.
#[test]
fn branches_repeat() {
    repeats_like_single_launches(&[Part::Branches]);
}

/// Protects: a Switch in repeated steps, taken and not taken, inside of a While where they are looped.
#[test]
fn switches_repeat() {
    repeats_like_single_launches(&[Part::Switch]);
}

/// Protects: a While in repeated steps, inside of another where they are looped.
#[test]
fn loops_repeat() {
    repeats_like_single_launches(&[Part::Loop]);
}

/// Protects: every kind of node in one repeated step.
#[test]
fn every_kind_of_node_repeats() {
    repeats_like_single_launches(&EVERY_PART);
}

/// Protects: a device that two conditionals side by side inside of a loop would hang, sooner or later: there they run one at a time.
#[test]
fn long_loops_of_conditionals_end() {
    let Some(device) = device() else { return };
    let (program, _) = step_of(&EVERY_PART);
    let steps = 10_000;
    let single = launched(device, &program, &FusionPlan::mega(), steps);
    single.assert_same(&launched(device, &program, &mega(Repeat::Loop(steps)), 1), "one launch");
    single.assert_same(&launched(device, &program, &mega(Repeat::Loop(steps / 100)), 100), "a hundred launches");
}

/// Protects: combinations that nobody wrote down: random programs without inputs leave the same bits however often a launch runs
/// their steps.
#[test]
fn random_programs_repeat() {
    let Some(device) = device() else { return };
    let mut compared = 0;
    for (case, program) in programs().into_iter().take(20).enumerate() {
        let (mut device_made, host_fns) = (program.program().clone(), program.host_fns().clone());
        for buffer in device_made.buffers.values_mut().filter(|buffer| buffer.role == Role::Input) {
            buffer.role = Role::State;
        }
        let program = validate(device_made, Origins::default(), host_fns).expect("state can be read like an input");
        // A host run finds broken scatter promises, whose results mean nothing.
        if leaves(Device::Host, &program, &FusionPlan::debug(), 3).is_none() {
            continue;
        }
        let single = leaves(device, &program, &FusionPlan::mega(), 3).expect("the host ran it");
        for fusion in [mega(Repeat::Unroll(3)), mega(Repeat::Loop(3))] {
            let found = leaves(device, &program, &fusion, 1).expect("the host ran it");
            single.assert_same(&found, &format!("case {case}: {}", fusion.name));
        }
        compared += 1;
    }
    assert!(compared >= 10, "only {compared} programs ran");
}

/// Protects: the flagship's training step, drawing from its replay buffer, leaves the same bits after 100 steps in 5 or 100 launches.
#[test]
fn the_flagship_repeats() {
    let Some(device) = device() else { return };
    for atoms in [1, 11] {
        let system = system(atoms);
        for variant in system.1.hyper.variants() {
            let single = after_steps(100, device, &system, variant, &FusionPlan::mega());
            for repeat in [Repeat::Unroll(4), Repeat::Loop(20), Repeat::Loop(100)] {
                let found = after_steps(100, device, &system, variant, &mega(repeat));
                single.assert_same(&found, &format!("{variant} under {repeat}"));
            }
        }
    }
}

/// Protects: one launch of several steps is one graph launch, with one copy where a host value changed, and its ticket reads the last
/// step.
#[test]
fn several_steps_are_one_launch() {
    let Some(device) = real_device() else { return };
    let (program, t) = step_of(&EVERY_PART);
    for repeat in [Repeat::Unroll(STEPS), Repeat::Loop(STEPS)] {
        let mut session = Session::open(device, [plan(&program, "run", &mega(repeat))]).expect("it opens");
        session.launch("run").expect("it launches");
        session.wait().expect("it runs");
        let before = calls::snapshot();
        for launch in 0..10u16 {
            session
                .set_by_name("scale", stepgraph::ir::ConstValue::F32(f32::from(launch) * 0.125))
                .expect("a host scalar");
            session.launch("run").expect("it launches");
        }
        let made = calls::since(&before);
        assert_eq!(made.get("cuGraphLaunch"), Some(&10), "{repeat}");
        assert_eq!(made.get("cuMemcpyHtoDAsync_v2"), Some(&10), "{repeat}");
        assert_eq!(made.get("cuLaunchKernelEx"), None, "{repeat}");
        let last = session.launch("run").expect("it launches");
        let read = last.wait(&mut session).and_then(|mut outputs| outputs.read_scalar(t)).expect("the last step's");
        assert_eq!(read, 12 * STEPS, "{repeat}");
    }
}

/// A step that learns from its own part of a series that the host writes.
fn fed() -> (ValidProgram, Tensor<f32>) {
    let mut p = Builder::new("fed");
    let x = p.input::<f32>("x", [STEPS, 64, 32]);
    let t = p.device_scalar("t", 0u32);
    let w = p.param::<f32>("w", [48, 32], Init::Uniform { bound: 0.2 });
    p.step("run", |s| {
        s.phase("only", |f| {
            let now = f.map_over::<f32>("now", [64, 32], x.at([Ix::from(t % STEPS), axis(0), axis(1)]));
            let y = f.gemm("forward", now.nt(w)).then(|y| y.tanh());
            let gradient = f.gemm("gradient", y.tn(now)).done();
            f.map_to("learn", w, w - gradient * 1e-2f32);
            f.set("tick", t, t + 1u32);
        });
    });
    (p.build().expect("valid"), x)
}

/// Protects: each step of a launch reads its own part of what the host wrote for that launch, as single launches on the same
/// contents do, with one copy and one launch for all of them.
#[test]
fn a_series_feeds_the_steps_of_a_launch() {
    let Some(device) = device() else { return };
    let (program, x) = fed();
    let runs = 20u32;
    let leaves = |fusion: &FusionPlan, launches: u32| {
        let mut session = Session::open(device, [plan(&program, "run", fusion)]).expect("it opens");
        fill(&mut session, program.program(), 6);
        let before = calls::snapshot();
        for run in 0..runs {
            let series: Vec<f32> = (0..STEPS * 64 * 32).map(|i| ((i + 31 * run) % 101) as f32 * 0.01).collect();
            session.write_input(x, &series).expect("an input");
            for _ in 0..launches {
                session.launch("run").expect("it launches");
            }
        }
        let made = calls::since(&before);
        session.wait().expect("it runs");
        (Memory::of(&mut session, program.program()), made)
    };
    let (single, _) = leaves(&FusionPlan::mega(), STEPS);
    assert_eq!(single.words("t"), [runs * STEPS]);
    for fusion in
        [mega(Repeat::Unroll(STEPS)), mega(Repeat::Loop(STEPS)), FusionPlan::phases().repeated(Repeat::Unroll(STEPS))]
    {
        let (found, made) = leaves(&fusion, 1);
        single.assert_same(&found, &fusion.name);
        let is_mega = fusion.graphs == Graphs::Mega;
        if matches!(device, Device::Cuda { .. }) && is_mega {
            assert_eq!(made.get("cuGraphLaunch"), Some(&u64::from(runs)), "{}", fusion.name);
            assert_eq!(made.get("cuMemcpyHtoDAsync_v2"), Some(&u64::from(runs)), "{}", fusion.name);
        }
    }
}

/// Protects: the host can end a looped plan after the step that it is in, within a moment, with a whole number of steps made.
#[test]
fn stop_ends_a_looped_plan() {
    let Some(device) = real_device() else { return };
    let mut p = Builder::new("endless");
    let (first, second) = (p.device_scalar("first", 0u32), p.device_scalar("second", 0u32));
    p.step("run", |s| {
        s.phase("one", |f| f.set("tick", first, first + 1u32));
        s.phase("two", |f| f.set("follow", second, first.val()));
    });
    let program = p.build().expect("valid");
    let mut session = Session::open(device, [plan(&program, "run", &mega(Repeat::Loop(u32::MAX)))]).expect("it opens");
    let stop = session.stop_handle();
    let ticket = session.launch("run").expect("it launches");
    std::thread::sleep(Duration::from_millis(50));
    assert!(ticket.try_take(&mut session).expect("it runs").is_none(), "it is still running");
    let asked = Instant::now();
    stop.stop();
    session.wait().expect("it ends");
    assert!(asked.elapsed() < Duration::from_millis(10), "stopping took {:?}", asked.elapsed());
    let ran = session.read_scalar(first).expect("a scalar");
    assert!(ran > 100, "it ran {ran} times");
    assert_eq!(session.read_scalar(second).expect("a scalar"), ran, "no step is cut in two");
    stop.clear();
}
