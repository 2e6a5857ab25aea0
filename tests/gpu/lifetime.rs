//! Lifetimes: what keeps what alive, dropping in any order, memory that stays flat, and the user's own context and stream.

use std::sync::Arc;

use cudarc::driver::CudaContext;
use stepgraph::Builder;
use stepgraph::builder::Bound;
use stepgraph::cuda::Context;
use stepgraph::cuda::nvrtc::Nvrtc;
use stepgraph::emit::cache::Cache;
use stepgraph::emit::modules::PlanModules;
use stepgraph::emit::{Executable, Lane, LaneMemory, Loader, SessionMemory, emit};
use stepgraph::ir::{Compute, Init};
use stepgraph::plan::{FusionPlan, StepPlan};
use stepgraph::runtime::{Session, SessionBuilder};

use crate::network::network;
use crate::support::{plan, real_device};

/// A thing that can be dropped whenever.
type Thing = Box<dyn std::any::Any>;

fn emitted(plan: &StepPlan) -> (Context, Arc<Lane>, Arc<LaneMemory>, Loader, Executable) {
    let context = Context::primary(0).expect("a device");
    let lane = Arc::new(Lane::new(&context).expect("a lane"));
    let size = |region| plan.arena().size(region);
    let shared = SessionMemory::new(&context, size, Vec::new()).expect("memory");
    let memory = LaneMemory::new(&context, &shared, size).expect("memory");
    let compiler = Nvrtc::load().expect("NVRTC");
    let sm = context.properties().sm;
    let compiled = PlanModules::compile(plan, sm, &compiler, &Cache::of_user()).expect("it compiles");
    let mut loader = Loader::new(&context);
    let kernels = loader.load(compiled).expect("it loads");
    let executable = emit(plan, &memory, kernels, &lane).expect("it is emitted");
    (context, lane, memory, loader, executable)
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(count - 1);
    shorter
        .iter()
        .flat_map(|order| {
            (0..count).map(move |at| {
                let mut order = order.clone();
                order.insert(at, count - 1);
                order
            })
        })
        .collect()
}

/// Protects: an executable owns, or keeps alive, all that it names. Context, lane, memory, modules and executable are dropped in
/// all 120 orders while launches are still queued, and the next order's device is as good as new.
#[test]
fn everything_can_be_dropped_in_any_order() {
    if real_device().is_none() {
        return;
    }
    let net = network(16, 32, Compute::F32);
    let plan = plan(&net.program, "train", &FusionPlan::mega());
    for order in permutations(5) {
        let (context, lane, memory, loader, mut executable) = emitted(&plan);
        for _ in 0..3 {
            executable.launch().expect("it launches");
        }
        let mut things: Vec<Option<Thing>> = vec![
            Some(Box::new(context)),
            Some(Box::new(lane)),
            Some(Box::new(memory)),
            Some(Box::new(loader)),
            Some(Box::new(executable)),
        ];
        order.iter().for_each(|&at| drop(things[at].take()));
        let healthy = Context::primary(0).expect("a device");
        let lane = Lane::new(&healthy).expect("a lane");
        lane.stream().synchronize().unwrap_or_else(|error| panic!("after dropping in order {order:?}: {error}"));
    }
}

/// Protects: a session, its ticket and its stop handle are dropped in any order, with work in flight.
#[test]
fn sessions_tickets_and_handles_are_dropped_in_any_order() {
    let Some(device) = real_device() else { return };
    let net = network(16, 32, Compute::F32);
    for order in permutations(3) {
        let mut session = Session::open(device, [plan(&net.program, "train", &FusionPlan::mega())]).expect("it opens");
        let stop = session.stop_handle();
        let ticket = (0..5).map(|_| session.launch("train").expect("it launches")).next_back().expect("five");
        let mut things: Vec<Option<Thing>> =
            vec![Some(Box::new(session)), Some(Box::new(ticket)), Some(Box::new(stop))];
        order.iter().for_each(|&at| drop(things[at].take()));
    }
    let mut session = Session::open(device, [plan(&net.program, "train", &FusionPlan::mega())]).expect("it opens");
    session.launch("train").expect("it launches");
    session.wait().expect("the device is as good as new");
}

/// Protects: building and dropping leaves nothing on the device: free memory is the same after 10 and after 100 times.
#[test]
fn a_hundred_builds_leave_nothing_behind() {
    let Some(device) = real_device() else { return };
    let net = network(32, 64, Compute::Tf32);
    // Keeps the primary context, and the libraries' own memory in it, from going away in between.
    let context = Context::primary(0).expect("a device");
    let build = || {
        for fusion in [FusionPlan::debug(), FusionPlan::phases(), FusionPlan::mega()] {
            let mut session = Session::open(device, [plan(&net.program, "train", &fusion)]).expect("it opens");
            session.launch("train").expect("it launches");
            session.wait().expect("it runs");
        }
    };
    (0..10).for_each(|_| build());
    let (early, _) = context.memory().expect("a device");
    (10..100).for_each(|_| build());
    let (late, _) = context.memory().expect("a device");
    assert!(late + (1 << 20) >= early, "free memory fell from {early} to {late} bytes");
}

/// Protects: a session on the user's own context and stream runs there, in order with the user's work, and leaves both usable.
#[test]
fn the_users_context_and_stream_are_used() {
    let Some(device) = real_device() else { return };
    let net = network(16, 32, Compute::F32);
    let context = CudaContext::new(0).expect("a device");
    let stream = context.new_stream().expect("a stream");
    let mut session = Session::builder()
        .cuda_stream(Arc::clone(&stream))
        .open(device, [plan(&net.program, "train", &FusionPlan::mega())])
        .expect("it opens");
    let raw = session.raw("train", None).expect("planned").expect("a device");
    assert_eq!(raw.stream, stream.cu_stream() as usize);
    assert_eq!(raw.context, context.cu_ctx() as usize);
    let ticket = session.launch("train").expect("it launches");
    stream.synchronize().expect("the user's own wait covers the launch");
    let mut outputs = ticket.try_take(&mut session).expect("it runs").expect("it has finished");
    assert!(outputs.read(net.loss).expect("an output").iter().all(|loss| loss.is_finite()));
    drop(session);
    let ones = stream.clone_htod(&[1.0f32; 16]).expect("the stream is still usable");
    assert_eq!(stream.clone_dtoh(&ones).expect("the context is still usable"), [1.0; 16]);

    let mut session = Session::builder()
        .cuda_context(Arc::clone(&context))
        .open(device, [plan(&net.program, "train", &FusionPlan::phases())])
        .expect("it opens");
    drop(context);
    session.launch("train").expect("the session keeps the context alive");
    session.wait().expect("it runs");
}

/// Protects: memory that the user lends keeps its contents when the session opens, is what launches read and write, and is still
/// the user's afterwards; memory that does not fit is refused.
#[test]
fn the_users_memory_is_used_in_place() {
    let Some(device) = real_device() else { return };
    let context = CudaContext::new(0).expect("a device");
    let stream = context.new_stream().expect("a stream");
    let mut p = Builder::new("lent");
    let w = p.param::<f32>("w", [6, 5], Init::Constant(9.0));
    let (a, b) = (p.state::<f32>("a", [4], Init::Zeros), p.state::<f32>("b", [4], Init::Zeros));
    p.group("pair", &[a, b]);
    let rate = p.host_scalar("rate", 2.0f32);
    p.step("run", |s| s.phase("main", |f| f.map_to("scale", w, w * rate)));
    let program = p.build().expect("valid");
    let plan = || plan(&program, "run", &FusionPlan::mega());
    let start: Vec<f32> = (0..30u16).map(f32::from).collect();
    let own = Arc::new(stream.clone_htod(&start).expect("memory"));
    let builder = Session::builder().cuda_stream(Arc::clone(&stream));
    let mut session = builder.clone().cuda_buffer("w", Arc::clone(&own)).open(device, [plan()]).expect("it opens");
    assert_eq!(session.read(w).expect("a parameter"), start);
    session.launch("run").expect("it launches");
    session.launch("run").expect("it launches");
    let expected: Vec<f32> = start.iter().map(|x| 4.0 * x).collect();
    assert_eq!(session.read(w).expect("a parameter"), expected);
    drop(session);
    assert_eq!(stream.clone_dtoh(&*own).expect("still the user's"), expected);

    let refused = |name: &str, builder: SessionBuilder| {
        let error = builder.open(device, [plan()]).map(drop).expect_err(name);
        assert!(error.to_string().contains(name), "{error}");
    };
    let small = Arc::new(stream.clone_htod(&[0.0f32; 4]).expect("memory"));
    let words = Arc::new(stream.clone_htod(&[0u32; 30]).expect("memory"));
    refused("`w` takes 30 elements", builder.clone().cuda_buffer("w", Arc::clone(&small)));
    refused("`w` holds f32", builder.clone().cuda_buffer("w", words));
    refused("`a` is a member of a group", builder.clone().cuda_buffer("a", Arc::clone(&small)));
    refused("no buffer `nobody`", builder.cuda_buffer("nobody", small));
}

/// Protects: the dump of an emitted graph names every node, the library's kernels included, and no address.
#[test]
fn the_dump_names_every_node() {
    let Some(device) = real_device() else { return };
    let net = network(16, 32, Compute::F32);
    let session = Session::open(device, [plan(&net.program, "train", &FusionPlan::mega())]).expect("it opens");
    let dump = session.dump("train", None).expect("planned").expect("a device");
    let nodes = session.report().plans[0].emitted.nodes;
    assert_eq!(dump.lines().count(), nodes + 1, "{dump}");
    for unit in session.plans()[0].units().values() {
        assert!(dump.contains(&format!("  {}: ", unit.name)), "{} is missing:\n{dump}", unit.name);
    }
    assert!(dump.contains("optimiser.adam: kernel adam grid"), "{dump}");
    assert!(!dump.contains(" 0x"), "{dump}");
}

/// Protects: bodies of conditionals hold kernels alone, whatever a memcpy or memset node could do; outside of them such nodes are
/// used.
#[test]
fn bodies_hold_no_memory_nodes() {
    let Some(device) = real_device() else { return };
    let mut p = Builder::new("bodies");
    let on = p.host_scalar("on", 1u32);
    let x = p.state::<f32>("x", [6, 8], Init::Zeros);
    let y = p.output::<f32>("y", [6, 8]);
    p.step("run", |s| {
        s.phase("main", |f| {
            f.copy("outside", x, y);
            f.fill("clear", x, 1.0);
            f.when("if", on, |b| {
                b.copy("inside", x.cols(0..3), y.cols(2..5));
                b.repeat("loop", Bound::Const(2), None, None, |c| c.fill("some", x.rows(1..3), 2.0));
            });
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let session = Session::open(device, [plan(&program, "run", &FusionPlan::mega())]).expect("it opens");
    let dump = session.dump("run", None).expect("planned").expect("a device");
    let is_memory = |line: &&str| line.contains(": memcpy") || line.contains(": memset");
    let (inside, outside): (Vec<&str>, Vec<&str>) =
        dump.lines().filter(is_memory).partition(|line| line.starts_with("    "));
    assert!(inside.is_empty() && outside.len() == 2, "{dump}");
    for name in ["main.inside: kernel", "main.some: kernel"] {
        assert!(dump.contains(name), "{dump}");
    }
}

/// Protects: two sessions on one device do not disturb each other: one trains to the same bits while others come and go.
#[test]
fn sessions_on_one_device_are_apart() {
    let Some(device) = real_device() else { return };
    let net = network(64, 64, Compute::F32);
    let open = || Session::open(device, [plan(&net.program, "train", &FusionPlan::mega())]).expect("it opens");
    let train = |disturb: bool| {
        let mut session = open();
        for step in 0..60 {
            session.launch("train").expect("it launches");
            if disturb && step % 20 == 10 {
                let mut other = open();
                other.launch("train").expect("it launches");
            }
        }
        session.wait().expect("it runs");
        crate::support::Memory::of(&mut session, net.program.program())
    };
    train(false).assert_same(&train(true), "alone and disturbed");
}
