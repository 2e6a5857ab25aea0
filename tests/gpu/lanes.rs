//! Lanes: steps that run beside each other, publications that are never torn, and calls that never wait.

use std::time::{Duration, Instant};

use stepgraph::Builder;
use stepgraph::builder::Bound;
use stepgraph::cuda::calls;
use stepgraph::handle::Scalar;
use stepgraph::ir::Init;
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::{Publish, Session};
use stepgraph::valid::ValidProgram;

use crate::support::{Memory, device, plan, real_device};
use crate::twins::{LINK, twins};

/// Protects: a publication is all there or not at all, whatever the lanes do meanwhile, and a look sees the one before it.
#[test]
fn publications_are_whole_and_in_order() {
    let Some(device) = device() else { return };
    let twins = twins();
    let mut session = twins.open(device, &FusionPlan::mega()).expect("it opens");
    session.set(twins.turns, 3).expect("a host scalar");
    let mut looks = Vec::new();
    for round in 1u16..=200 {
        for _ in 0..3 {
            session.launch("train").expect("it launches");
        }
        session.publish(LINK).expect("it publishes");
        let ticket = session.launch("look").expect("it launches");
        if round % 7 == 0 {
            looks.push((f32::from(3 * round), twins.publication(&mut session, &ticket)));
        }
    }
    for (expected, found) in looks {
        assert_eq!(found.to_bits(), expected.to_bits(), "the look saw {found}, not {expected}");
    }
    session.wait().expect("it runs");
    assert_eq!(session.read_scalar(twins.steps).expect("a scalar"), 600);
}

/// Protects: training goes on, and its tickets come back, while another lane is busy; a third publication is refused rather than
/// waited for; and ending the other lane's loop ends nothing else.
#[test]
fn a_busy_lane_holds_nobody_up() {
    let Some(device) = real_device() else { return };
    let twins = twins();
    let mut session = twins.open(device, &FusionPlan::mega()).expect("it opens");
    session.launch("train").expect("it launches");
    session.wait().expect("it runs");
    let stop = session.stop_handle_of("look").expect("a lane");
    session.set(twins.turns, u32::MAX).expect("a host scalar");
    let look = session.launch("look").expect("it launches");
    let mut answers = Vec::new();
    for _ in 0..3 {
        let ticket = session.launch("train").expect("it launches");
        ticket.wait(&mut session).expect("training does not wait for the other lane");
        answers.push(session.try_publish(LINK).expect("it answers"));
    }
    assert_eq!(answers, [Publish::Done, Publish::Done, Publish::Busy]);
    assert!(look.try_take(&mut session).expect("it runs").is_none(), "the other lane is still busy");
    let asked = Instant::now();
    stop.stop();
    look.wait(&mut session).expect("it ends");
    assert!(asked.elapsed() < Duration::from_millis(10), "stopping took {:?}", asked.elapsed());
    stop.clear();
    session.set(twins.turns, 1).expect("a host scalar");
    let look = session.launch("look").expect("it launches");
    assert_eq!(twins.publication(&mut session, &look).to_bits(), 3f32.to_bits(), "the second of the two publications");
    assert_eq!(session.try_publish(LINK).expect("it answers"), Publish::Done);
    session.wait().expect("it runs");
}

/// Protects: neither lane's results depend on what the other does at the same time.
#[test]
fn lanes_do_not_change_each_others_results() {
    let Some(device) = device() else { return };
    let twins = twins();
    let run = |session: &mut Session, together: bool| {
        session.set(twins.turns, 40).expect("a host scalar");
        let (mut losses, mut products) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let mut tickets = Vec::new();
            for _ in 0..10 {
                let ticket = session.launch("train").expect("it launches");
                tickets.push(ticket);
            }
            session.publish(LINK).expect("it publishes");
            if !together {
                session.wait().expect("it runs");
            }
            let look = session.launch("look").expect("it launches");
            if !together {
                session.wait().expect("it runs");
            }
            let last = tickets.pop().expect("ten of them");
            losses.push(last.wait(session).expect("it runs").read_scalar(twins.loss).expect("current").to_bits());
            let product = look.wait(session).expect("it runs").read(twins.product).expect("current");
            products.push(product.into_iter().map(f32::to_bits).collect::<Vec<_>>());
        }
        (losses, products)
    };
    let mut apart = twins.open(device, &FusionPlan::mega()).expect("it opens");
    let mut beside = twins.open(device, &FusionPlan::mega()).expect("it opens");
    assert_eq!(run(&mut apart, false), run(&mut beside, true));
}

/// Protects: publishing, launching on two lanes and asking for results costs copies on the device, events and graph launches: no
/// wait for the device or a stream, no blocking copy, no allocation.
#[test]
fn an_epoch_with_publications_waits_for_nothing() {
    const HARMLESS: [&str; 5] =
        ["cuCtxGetCurrent", "cuEventRecord", "cuEventQuery", "cuEventCreate", "cuEventSynchronize"];
    let Some(device) = real_device() else { return };
    let twins = twins();
    let mut session = twins.open(device, &FusionPlan::mega()).expect("it opens");
    for _ in 0..20 {
        session.launch("train").expect("it launches");
        session.launch("look").expect("it launches");
        session.wait().expect("it runs");
    }
    let before = calls::snapshot();
    let mut published = 0;
    for epoch in 0u16..10 {
        for _ in 0..10 {
            session.launch("train").expect("it launches");
        }
        published += u64::from(session.try_publish(LINK).expect("it answers") == Publish::Done);
        session.set(twins.scale, f32::from(epoch)).expect("a host scalar");
        let look = session.launch("look").expect("it launches");
        look.try_take(&mut session).expect("it runs");
    }
    let mut found = calls::since(&before);
    session.wait().expect("it runs");
    assert_eq!(found.remove("cuGraphLaunch"), Some(110));
    assert!(published > 0);
    // Source to slot and slot to target.
    assert_eq!(found.remove("cuMemcpyDtoDAsync_v2"), Some(2 * published));
    let waits = found.remove("cuStreamWaitEvent").unwrap_or(0);
    assert!(waits >= published, "the reading lane waits on the device: {waits} waits, {published} publications");
    // Each lane's inbox once for each changed scalar.
    assert_eq!(found.remove("cuMemcpyHtoDAsync_v2"), Some(19));
    // A slot of the inbox ring is waited for only where its launch is four changes ago.
    found.retain(|name, _| !HARMLESS.contains(name));
    assert_eq!(found, [].into());
}

/// Protects: a lane's results are read while other launches go on: the read waits for its own launch, and reads nothing of others.
#[test]
fn reading_a_ticket_waits_for_its_launch_alone() {
    let Some(device) = real_device() else { return };
    let twins = twins();
    let mut session = twins.open(device, &FusionPlan::mega()).expect("it opens");
    session.set(twins.turns, u32::MAX).expect("a host scalar");
    let stop = session.stop_handle_of("look").expect("a lane");
    let look = session.launch("look").expect("it launches");
    let train = session.launch("train").expect("it launches");
    let loss = train.wait(&mut session).expect("it runs").read_scalar(twins.loss).expect("current");
    assert_eq!(loss.to_bits(), 0f32.to_bits(), "the weights were zero");
    assert_eq!(session.read_scalar(twins.steps).expect("a scalar of the main lane"), 1);
    assert!(look.try_take(&mut session).expect("it runs").is_none(), "the other lane is still busy");
    stop.stop();
    session.wait().expect("it ends");
    stop.clear();
}

/// A step of its own cells for each name: a loop with branches, a switch, an inner loop and kernels beside them.
fn loops(names: [&str; 2]) -> (ValidProgram, [Scalar<u32>; 2]) {
    let mut p = Builder::new("loops");
    let rounds = p.host_scalar("rounds", 2_000u32);
    let counts = names.map(|name| {
        let cell = |p: &mut Builder, what: &str| p.device_scalar(&format!("{name}.{what}"), 0u32);
        let [odd, third, count, turns] = ["odd", "third", "count", "turns"].map(|what| cell(&mut p, what));
        let data = p.state::<f32>(&format!("{name}.data"), [64, 256], Init::Constant(1.0));
        let apart = p.state::<f32>(&format!("{name}.apart"), [4096], Init::Constant(1.0));
        p.step(name, |s| {
            s.phase("only", |f| {
                f.repeat("rounds", Bound::Scalar(rounds), None, None, |b| {
                    b.set("tick", count, count + 1u32);
                    b.map_to("apart", apart, apart * 0.999f32 + 0.5f32);
                    b.set("parity", odd, count % 2u32);
                    b.set("turn", third, count % 3u32);
                    b.when("branch", odd, |b| {
                        b.map_to("grow", data.rows(0..16), data.rows(0..16) * 1.01f32);
                    });
                    b.switch(
                        "which",
                        third,
                        &mut [&mut |b| b.fill("clear", data.rows(16..17), 0.0), &mut |b| {
                            b.copy("down", data.rows(16..32), data.rows(32..48))
                        }],
                    );
                    b.repeat("inner", Bound::Const(3), None, None, |b| b.set("turns", turns, turns + 1u32));
                });
            });
        });
        count
    });
    (p.build().expect("valid"), counts)
}

/// Protects: loops with conditionals on two lanes at the same time end, and leave what they leave one after the other.
#[test]
fn loops_on_two_lanes_end() {
    let Some(device) = device() else { return };
    let names = ["left", "right"];
    let (program, counts) = loops(names);
    let planned = |name: &str| plan(&program, name, &FusionPlan::mega());
    let mut apart = Session::open(device, names.map(planned)).expect("it opens");
    let lanes = Session::builder().lane("second", [planned(names[1])]);
    let mut beside = lanes.open(device, [planned(names[0])]).expect("it opens");
    for _ in 0..10 {
        for session in [&mut apart, &mut beside] {
            for name in names {
                session.launch(name).expect("it launches");
            }
        }
        apart.wait().expect("it runs");
        beside.wait().expect("it runs");
    }
    for count in counts {
        assert_eq!(beside.read_scalar(count).expect("a scalar"), 20_000);
    }
    Memory::of(&mut apart, program.program()).assert_same(&Memory::of(&mut beside, program.program()), "side by side");
}
