//! Replays: nothing is frozen into a graph, and grouping changes no bit.

use stepgraph::ir::Compute;
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::{Device, Session};

use crate::network::{Network, network};
use crate::support::{Memory, Numbers, device, plan};

/// Fixed inputs, and three launches after `change`.
fn three_launches(device: Device, net: &Network, fusion: &FusionPlan, change: impl FnOnce(&mut Session)) -> Memory {
    let mut session = Session::builder().seed(7).open(device, [plan(&net.program, "train", fusion)]).expect("it opens");
    let mut numbers = Numbers(5);
    let batch = session.plans()[0].program().program().buffers.values().find(|b| b.name == "labels").expect("there");
    let batch = batch.shape.dims()[0];
    session.write_input(net.x, &numbers.floats((batch * 24) as usize)).expect("an input");
    let labels: Vec<i32> = (0..batch).map(|_| (numbers.next() % 10).cast_signed()).collect();
    session.write_input(net.labels, &labels).expect("an input");
    session.launch("train").expect("it launches");
    change(&mut session);
    for _ in 0..3 {
        session.launch("train").expect("it launches");
    }
    session.wait().expect("it runs");
    Memory::of(&mut session, net.program.program())
}

/// Protects: one step counter per launch, advanced on the device; and every host scalar and input is read anew by each replay:
/// changing any one of them between replays changes the result.
#[test]
fn every_host_value_is_read_at_every_replay() {
    let Some(device) = device() else { return };
    let net = network(33, 40, Compute::F32);
    for fusion in [FusionPlan::debug(), FusionPlan::phases(), FusionPlan::mega()] {
        let plain = three_launches(device, &net, &fusion, |_| {});
        assert_eq!(plain.words("step"), [4], "{}", fusion.name);
        type Change<'a> = (&'a str, Box<dyn FnOnce(&mut Session) + 'a>);
        let changes: [Change<'_>; 6] = [
            ("lr", Box::new(|s| s.set(net.lr, 3e-2).expect("a host scalar"))),
            ("scale", Box::new(|s| s.set(net.scale, 0.5).expect("a host scalar"))),
            ("noise", Box::new(|s| s.set(net.noise, 0.5).expect("a host scalar"))),
            ("seed", Box::new(|s| s.set(net.seed, 2).expect("a host scalar"))),
            ("labels", Box::new(|s| s.write_input(net.labels, &[3; 33]).expect("an input"))),
            ("x", Box::new(|s| s.write_input(net.x, &[0.25; 33 * 24]).expect("an input"))),
        ];
        for (name, change) in changes {
            let changed = three_launches(device, &net, &fusion, change);
            // Adam hides the gradient's scale from the weights, not from the first moment.
            let result = if name == "scale" { "m.w1" } else { "w1" };
            assert_ne!(plain.floats(result), changed.floats(result), "{}: `{name}` is frozen", fusion.name);
        }
    }
}

/// Protects: plans that differ in grouping alone are bit-equal, and so are repeats of one.
#[test]
fn grouping_changes_no_bit() {
    let Some(device) = device() else { return };
    for compute in Compute::ALL {
        let net = network(64, 96, compute);
        let mega = three_launches(device, &net, &FusionPlan::mega(), |_| {});
        for fusion in [FusionPlan::debug(), FusionPlan::phases(), FusionPlan::mega()] {
            let other = three_launches(device, &net, &fusion, |_| {});
            mega.assert_same(&other, &format!("mega and {} in {}", fusion.name, compute.name()));
        }
    }
}

/// Protects: the device trains as the host does: the losses of 50 steps agree.
///
/// One step's gradient differs by rounding: about k·2⁻²³ = 1e-5 of its size for the sums of up to 96 products here. Adam divides by
/// the gradient's own size, so each weight moves within lr · 1e-5 of the host's per step, unless the gradient is near 0; over 50
/// steps of lr = 1e-2 the weights differ by less than 5e-6 · few, and a loss of 96 + 24 such weights by 1e-3.
#[test]
fn the_device_trains_as_the_host_does() {
    let Some(device) = device() else { return };
    let net = network(64, 96, Compute::F32);
    let losses = |device| {
        let mut session =
            Session::builder().seed(7).open(device, [plan(&net.program, "train", &FusionPlan::mega())]).expect("opens");
        let mut numbers = Numbers(11);
        let mut losses = Vec::new();
        for _ in 0..50 {
            let x = numbers.floats(64 * 24);
            // A label that the inputs decide, so that there is something to learn.
            let labels: Vec<i32> =
                x.chunks(24).map(|row| i32::from(row[0] > 0.0) + 2 * i32::from(row[1] > 0.0)).collect();
            session.write_input(net.x, &x).expect("an input");
            session.write_input(net.labels, &labels).expect("an input");
            let ticket = session.launch("train").expect("launches");
            let rows = ticket.wait(&mut session).expect("runs").read(net.loss).expect("an output");
            losses.push(rows.iter().sum::<f32>() / 64.0);
        }
        losses
    };
    let (host, found) = (losses(Device::Host), losses(device));
    for (step, (host, found)) in host.iter().zip(&found).enumerate() {
        assert!((host - found).abs() <= 1e-3, "step {step}: host {host}, device {found}");
    }
    assert!(host[49] < 0.6 * host[0], "it learns: {} to {}", host[0], host[49]);
}

/// Protects: a device counter counts launches, also under `reset`, and a ticket reads its own launch.
#[test]
fn tickets_and_resets_keep_their_order() {
    let Some(device) = device() else { return };
    let net = network(8, 16, Compute::F32);
    let mut session = Session::open(device, [plan(&net.program, "train", &FusionPlan::mega())]).expect("it opens");
    let first = session.launch("train").expect("it launches");
    let second = session.launch("train").expect("it launches");
    assert!(first.wait(&mut session).expect("runs").read(net.loss).is_err(), "the second launch has overwritten it");
    let mut outputs = second.wait(&mut session).expect("it runs");
    assert_eq!(outputs.read_scalar(net.step).expect("its own"), 2);
    assert_eq!(outputs.read(net.loss).expect("its own").len(), 8);
    session.reset().expect("it resets");
    for expected in 1..=40 {
        let ticket = session.launch("train").expect("it launches");
        if expected % 8 == 0 {
            let mut outputs = ticket.wait(&mut session).expect("it runs");
            assert_eq!(outputs.read_scalar(net.step).expect("its own"), expected);
        }
    }
}
