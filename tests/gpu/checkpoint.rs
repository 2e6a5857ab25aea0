//! Checkpoints of a device's memory: the same bits go on, training does not wait, and memory is taken once.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use stepgraph::Builder;
use stepgraph::cuda::{Context, calls};
use stepgraph::ir::{Compute, Init};
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::{CheckpointError, Device, Session};
use stepgraph::valid::ValidProgram;

use crate::network::{Network, network};
use crate::support::{Memory, Numbers, device, plan, real_device};

fn open(device: Device, net: &Network, seed: u64) -> Session {
    let plan = plan(&net.program, "train", &FusionPlan::mega());
    Session::builder().seed(seed).open(device, [plan]).expect("it opens")
}

/// Some steps, each with inputs and a rate of its own.
fn train(session: &mut Session, net: &Network, batch: u32, steps: std::ops::Range<u64>) {
    for step in steps {
        let mut numbers = Numbers(step);
        session.write_input(net.x, &numbers.floats((batch * 24) as usize)).expect("an input");
        let labels: Vec<i32> = (0..batch).map(|_| (numbers.next() % 10).cast_signed()).collect();
        session.write_input(net.labels, &labels).expect("an input");
        session.set(net.lr, 1e-2 / (step + 1) as f32).expect("a host scalar");
        session.launch("train").expect("it launches");
    }
}

/// Protects: a session that was resumed on the device goes on with the same bits as the one that was saved, although that one
/// trained on while the file was written; and the host takes a device's file, and a device the host's.
#[test]
fn a_resumed_session_goes_on_bit_for_bit() {
    let Some(device) = device() else { return };
    let batch = 33;
    let net = network(batch, 40, Compute::F32);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.safetensors");
    let mut straight = open(device, &net, 7);
    train(&mut straight, &net, batch, 0..5);
    let ticket = straight.checkpoint(&path, &BTreeMap::new()).expect("it starts");
    train(&mut straight, &net, batch, 5..12);
    ticket.wait().expect("it is written");
    let mut resumed = open(device, &net, 8);
    train(&mut resumed, &net, batch, 20..22);
    let info = resumed.resume(&path).expect("it is its own");
    assert_eq!((info.launches, info.seed), (5, 7));
    let from_file = Memory::of(&mut resumed, net.program.program());
    train(&mut resumed, &net, batch, 5..12);
    let ended = [&mut straight, &mut resumed].map(|session| Memory::of(session, net.program.program()));
    ended[0].assert_same(&ended[1], "straight on and resumed");

    let mut host = open(Device::Host, &net, 0);
    host.resume(&path).expect("it is its own");
    for name in ["w1", "b1", "w2", "b2", "m.w1", "v.w2", "grad.w1", "x", "lr"] {
        let host = Memory::of(&mut host, net.program.program());
        assert_eq!(host.floats(name), from_file.floats(name), "{name}");
    }
    let back = folder.path().join("host.safetensors");
    host.checkpoint(&back, &BTreeMap::new()).expect("it starts").wait().expect("it is written");
    resumed.resume(&back).expect("it is its own");
    train(&mut resumed, &net, batch, 5..12);
    Memory::of(&mut resumed, net.program.program()).assert_same(&ended[0], "by way of the host");
}

/// Adds 1 to a large state by copies alone, so that the stand-in driver computes it too.
fn shifting(elements: u32) -> ValidProgram {
    let mut p = Builder::new("shifting");
    let (a, b) = (p.state::<f32>("a", [elements], Init::Zeros), p.state::<f32>("b", [elements], Init::Constant(2.0)));
    let x = p.input::<f32>("x", [elements]);
    p.step("run", |s| {
        s.phase("main", |f| {
            f.copy("down", a, b);
            f.copy("in", x, a);
        });
    });
    p.build().expect("valid")
}

/// Protects: taking a checkpoint waits for nothing, whatever is queued, launches that follow do not change what is saved, a second
/// one is refused rather than waited for, and resuming brings the moment back: 10 MiB, so that pieces are reused.
#[test]
fn launches_go_on_while_a_checkpoint_is_written() {
    let Some(device) = real_device() else { return };
    let elements = 5 << 18;
    let program = shifting(elements);
    let mut session = Session::open(device, [plan(&program, "run", &FusionPlan::mega())]).expect("it opens");
    let run = |session: &mut Session, value: f32| {
        let bytes = value.to_ne_bytes().repeat(elements as usize);
        session.write_by_name("x", stepgraph::ir::DType::F32, &bytes).expect("an input");
        session.launch("run").expect("it launches");
    };
    run(&mut session, 1.0);
    run(&mut session, 3.0);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("moment");
    for round in 0..2 {
        let before = calls::waits_of_this_thread();
        let ticket = session.try_checkpoint(&path, &BTreeMap::new()).expect("it starts");
        assert_eq!(calls::waits_of_this_thread(), before, "round {round}");
        match session.try_checkpoint(folder.path().join("other"), &BTreeMap::new()) {
            Ok(_) | Err(CheckpointError::Busy { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        for step in 0..3 {
            run(&mut session, 10.0 + step as f32);
        }
        let written = ticket.wait().expect("it is written");
        assert!(written.bytes > u64::from(elements) * 12, "{}", written.bytes);
        session.finish_checkpoints().expect("both went well");
        session.resume(&path).expect("it is its own");
        for (name, expected) in [("a", 3.0f32), ("b", 1.0), ("x", 3.0)] {
            let found = session.read_by_name(name).expect("it can be read").bytes;
            assert!(found == expected.to_ne_bytes().repeat(elements as usize), "round {round}: `{name}`");
        }
    }
}

/// Protects: device memory for snapshots is taken at the first checkpoint and used again; nothing grows.
#[test]
fn checkpoints_take_memory_once() {
    let Some(device) = real_device() else { return };
    let context = Context::primary(0).expect("a device");
    let program = shifting(1 << 20);
    let mut session = Session::open(device, [plan(&program, "run", &FusionPlan::mega())]).expect("it opens");
    let folder = tempfile::tempdir().expect("a folder");
    let mut save = || {
        session.launch("run").expect("it launches");
        let ticket = session.checkpoint(folder.path().join("file"), &BTreeMap::new()).expect("it starts");
        ticket.wait().expect("it is written");
        // The thread gives the memory back a moment before it is over.
        session.finish_checkpoints().expect("it went well");
    };
    (0..3).for_each(|_| save());
    let (early, _) = context.memory().expect("a device");
    (0..20).for_each(|_| save());
    let (late, _) = context.memory().expect("a device");
    assert!(late + (1 << 20) >= early, "free memory fell from {early} to {late} bytes");
}

/// Protects: memory that the user lent is state like any other: it is saved, and restored in place.
#[test]
fn lent_memory_is_saved_and_restored() {
    let Some(device) = real_device() else { return };
    let context = CudaContext::new(0).expect("a device");
    let stream = context.new_stream().expect("a stream");
    let program = shifting(1000);
    let own = Arc::new(stream.clone_htod(&[5.0f32; 1000]).expect("memory"));
    let mut session = Session::builder()
        .cuda_stream(Arc::clone(&stream))
        .cuda_buffer("a", Arc::clone(&own))
        .open(device, [plan(&program, "run", &FusionPlan::mega())])
        .expect("it opens");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lent");
    session.checkpoint(&path, &BTreeMap::new()).expect("it starts").wait().expect("it is written");
    session.launch("run").expect("it launches");
    session.wait().expect("it runs");
    assert_eq!(stream.clone_dtoh(&*own).expect("the user's"), [0.0; 1000]);
    session.resume(&path).expect("it is its own");
    assert_eq!(stream.clone_dtoh(&*own).expect("the user's"), [5.0; 1000]);
    assert_eq!(session.read_by_name("b").expect("state").bytes, 2.0f32.to_ne_bytes().repeat(1000));
}

/// Protects: loads, resets and resumes write in place: no address and no executable changes under a graph that names it.
#[test]
fn nothing_moves_an_address() {
    let Some(device) = real_device() else { return };
    let program = shifting(1000);
    let mut session = Session::open(device, [plan(&program, "run", &FusionPlan::mega())]).expect("it opens");
    let handles = |session: &Session| session.raw("run", None).expect("planned").expect("a device");
    let before = handles(&session);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    session.checkpoint(&path, &BTreeMap::new()).expect("it starts").wait().expect("it is written");
    session.launch("run").expect("it launches");
    session.write_by_name("a", stepgraph::ir::DType::F32, &[0; 4000]).expect("a state");
    session.reset().expect("it resets");
    session.reset_to(3).expect("it resets");
    session.resume(&path).expect("it is its own");
    session.launch("run").expect("it launches");
    session.wait().expect("it runs");
    assert_eq!(handles(&session), before);
}
