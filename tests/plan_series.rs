//! Series: which inputs a plan of several steps may read, and that each step reads its own part of them.

use stepgraph::Builder;
use stepgraph::builder::{Body, Bound, Ix, Val, axis};
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::{Init, ScatterRule};
use stepgraph::plan::{FusionPlan, PlanError, Repeat, StepPlan, Target, Tuning, check};
use stepgraph::runtime::{Device, RuntimeError, Session};
use stepgraph::valid::ValidProgram;

fn planned(program: &ValidProgram, fusion: &FusionPlan) -> Result<StepPlan, PlanError> {
    program.plan("run", fusion, &Target::default(), &Tuning::default())
}

/// A series of four rows, what the host sets, cells to count in, a buffer to count in, and where results go.
struct Parts {
    x: Tensor<f32>,
    host: Scalar<u32>,
    t: Scalar<u32>,
    other: Scalar<u32>,
    rows: Tensor<u32>,
    y: Tensor<f32>,
}

/// Whether a step is refused as one that reads the same part of an input again and again, by both ways of repeating it.
#[track_caller]
fn reads_the_same(fill: impl FnOnce(&mut Body<'_>, &Parts)) -> bool {
    let mut p = Builder::new("series");
    let parts = Parts {
        x: p.input::<f32>("x", [4, 2]),
        host: p.host_scalar("host", 0u32),
        t: p.device_scalar("t", 0u32),
        other: p.device_scalar("other", 0u32),
        rows: p.state::<u32>("rows", [2], Init::Zeros),
        y: p.state::<f32>("y", [2], Init::Zeros),
    };
    p.step("run", |s| s.phase("only", |f| fill(f, &parts)));
    let program = p.build().expect("valid");
    let [unrolled, looped] = [Repeat::Unroll(4), Repeat::Loop(4)].map(|repeat| {
        match planned(&program, &FusionPlan::mega().repeated(repeat)) {
            Ok(plan) => check(&plan).map(|()| false).expect("the check agrees"),
            Err(PlanError::RepeatedInput { input, .. }) => input == "x",
            Err(error) => panic!("{error}"),
        }
    });
    assert_eq!(unrolled, looped);
    unrolled
}

fn tick(f: &mut Body<'_>, p: &Parts) {
    f.set("tick", p.t, p.t + 1u32);
}

/// Reads the row at `place`.
fn pick(f: &mut Body<'_>, p: &Parts, place: impl Into<Ix>) {
    f.map_to("pick", p.y, p.x.at([place.into(), axis(0)]));
}

/// Protects: an input can be a series: a place in it that one step hands to the next moves, through scalars, buffers and branches,
/// wherever in the step it is advanced.
#[test]
fn series_are_read_part_by_part() {
    assert!(!reads_the_same(|f, p| {
        tick(f, p);
        pick(f, p, p.t % 4u32);
    }));
    assert!(!reads_the_same(|f, p| {
        pick(f, p, p.t % 4u32);
        tick(f, p);
    }));
    assert!(!reads_the_same(|f, p| {
        tick(f, p);
        f.set("from", p.other, p.t * 3u32);
        pick(f, p, p.other.val());
    }));
    assert!(!reads_the_same(|f, p| {
        f.map_to("count", p.rows, p.rows + 1u32);
        let rows = p.rows.at([axis(0)]);
        f.map_to("pick", p.y, p.x.at([Ix::from(&rows), axis(0)]));
        f.sum("sum", &[0], p.x.at([Ix::from(&rows), axis(0)]) + p.y).done();
    }));
    assert!(!reads_the_same(|f, p| {
        tick(f, p);
        f.set("odd", p.other, p.t % 2u32);
        f.fill("clear", p.rows, 0);
        f.when("sometimes", p.other, |b| b.fill("one", p.rows, 1));
        pick(f, p, p.rows.at([0u32.into()]));
    }));
}

/// Protects: the steps of a launch read the parts of a series in turn, whatever the host wrote for that launch, as single launches on
/// the same contents do.
#[test]
fn each_step_has_its_own_part_of_a_series() -> Result<(), RuntimeError> {
    let mut p = Builder::new("fed");
    let x = p.input::<f32>("x", [4, 2]);
    let t = p.device_scalar("t", 0u32);
    let seen = p.state::<f32>("seen", [8, 2], Init::Zeros);
    p.step("run", |s| {
        s.phase("only", |f| {
            let now = f.map_over::<f32>("now", [2], x.at([Ix::from(t % 4u32), axis(0)]));
            let place = [(t % 8u32).into(), axis(0)];
            f.map_node("note").over([2]).scatter(seen, place, ScatterRule::Unique, now.val()).done();
            f.set("tick", t, t + 1u32);
        });
    });
    let program = p.build().expect("valid");
    let series = [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0]];
    for (repeat, launches) in [(Repeat::Once, 4), (Repeat::Unroll(2), 2), (Repeat::Unroll(4), 1), (Repeat::Loop(4), 1)]
    {
        for fusion in [FusionPlan::phases(), FusionPlan::mega()] {
            if matches!(repeat, Repeat::Loop(_)) && fusion == FusionPlan::phases() {
                continue;
            }
            let plan = planned(&program, &fusion.repeated(repeat)).expect("plannable");
            let mut session = Session::open(Device::Host, [plan])?;
            for contents in &series {
                session.write_input(x, contents)?;
                for _ in 0..launches {
                    session.launch("run")?;
                }
            }
            assert_eq!(session.read(seen)?, series.concat(), "{repeat}");
        }
    }
    Ok(())
}

/// Protects: what is the same in every step is refused, however it is written: a read at no place, at one that the host sets, by a
/// counter that starts anew in each step, by a loop's own index, and a fixed read beside a moving one.
#[test]
fn inputs_that_all_steps_see_alike_are_refused() {
    assert!(reads_the_same(|f, p| {
        f.sum("all", &[0], p.x).to(p.y);
    }));
    assert!(reads_the_same(|f, p| f.copy("row", p.x.pick(0, 1), p.y)));
    assert!(reads_the_same(|f, p| pick(f, p, p.host.val())));
    assert!(reads_the_same(|f, p| pick(f, p, p.other.val())));
    assert!(reads_the_same(|f, p| {
        f.set("anew", p.t, p.host + 1u32);
        f.set("from", p.other, p.t + 1u32);
        pick(f, p, p.other.val());
    }));
    assert!(reads_the_same(|f, p| {
        f.repeat("loop", Bound::Const(4), Some(p.t), None, |b| pick(b, p, p.t.val()));
    }));
    assert!(reads_the_same(|f, p| {
        tick(f, p);
        f.map_to("both", p.y, p.x.at([p.t.val().into(), axis(0)]) + p.x.at([0u32.into(), axis(0)]));
    }));
}

/// The place that the first of the counted rows gives.
fn first_row(p: &Parts) -> Ix {
    p.rows.at([0u32.into()]).into()
}

fn count(f: &mut Body<'_>, p: &Parts) {
    f.map_to("count", p.rows, p.rows + 1u32);
}

/// Protects: a place that no step hands to the next is refused, although memory is read before it is written: what is set from the host,
/// or from what was, behind the read; a count that each step clears, before or behind; one that a branch or a loop sets before it reads.
#[test]
fn places_that_come_back_are_refused() {
    assert!(reads_the_same(|f, p| {
        pick(f, p, p.t.val());
        f.set("take", p.t, p.host.val());
    }));
    assert!(reads_the_same(|f, p| {
        pick(f, p, p.t.val());
        f.set("pass", p.t, p.other.val());
        f.set("take", p.other, p.host.val());
    }));
    assert!(reads_the_same(|f, p| {
        f.fill("clear", p.rows, 0);
        count(f, p);
        pick(f, p, first_row(p));
    }));
    assert!(reads_the_same(|f, p| {
        pick(f, p, first_row(p));
        count(f, p);
        f.fill("clear", p.rows, 0);
    }));
    assert!(reads_the_same(|f, p| {
        pick(f, p, first_row(p));
        f.fill("part", p.rows.rows(0..1), 1);
    }));
    assert!(reads_the_same(|f, p| {
        tick(f, p);
        f.set("odd", p.other, p.t % 2u32);
        f.when("sometimes", p.other, |b| {
            b.fill("one", p.rows, 1);
            pick(b, p, first_row(p));
        });
    }));
    assert!(reads_the_same(|f, p| {
        tick(f, p);
        f.repeat("loop", Bound::Const(2), None, None, |b| {
            b.fill("clear", p.rows, 0);
            pick(b, p, first_row(p));
            b.map_to("move", p.rows, p.rows + p.t);
        });
    }));
    assert!(reads_the_same(|f, p| {
        f.map_node("both").store_scalar(p.t, p.t + 1u32).store_scalar(p.other, p.host.val()).done();
        pick(f, p, p.other.val());
    }));
}

/// Protects: a place that moves is not refused: handed round, advanced inside of a loop or a branch at any depth, left by a loop whose
/// length moves, changed in part, or changed by a loop behind the read.
#[test]
fn places_that_move_in_bodies_are_taken() {
    assert!(!reads_the_same(|f, p| {
        let other = 1u32 - Val::<u32>::index(0);
        let second = p.rows.at([other.into()]);
        let turned = f.map_over::<u32>("turned", [2], second);
        pick(f, p, first_row(p));
        f.copy("turn", turned, p.rows);
    }));
    assert!(!reads_the_same(|f, p| {
        f.when("perhaps", p.host, |b| {
            b.repeat("loop", Bound::Const(2), None, None, |b| {
                b.when("again", p.host, |b| tick(b, p));
                pick(b, p, p.t % 4u32);
            });
        });
    }));
    assert!(!reads_the_same(|f, p| {
        tick(f, p);
        f.repeat("loop", Bound::Scalar(p.t), Some(p.other), None, |b| b.fill("clear", p.rows, 0));
        pick(f, p, p.other % 4u32);
    }));
    assert!(!reads_the_same(|f, p| {
        f.fill("clear", p.rows.rows(1..2), 0);
        pick(f, p, first_row(p));
        f.repeat("loop", Bound::Const(2), None, None, |b| count(b, p));
    }));
    assert!(!reads_the_same(|f, p| {
        f.repeat("loop", Bound::Const(2), None, None, |b| {
            pick(b, p, first_row(p));
            b.map_to("move", p.rows, p.rows + p.t);
        });
        tick(f, p);
    }));
}

/// Protects: what moves is followed through each kind of node: reductions, scattered stores to places that move, copies.
#[test]
fn places_are_followed_through_nodes() {
    assert!(!reads_the_same(|f, p| {
        count(f, p);
        f.sum("total", &[0], p.rows.val()).to_scalar(p.other);
        pick(f, p, p.other % 4u32);
    }));
    assert!(!reads_the_same(|f, p| {
        tick(f, p);
        f.fill("clear", p.rows, 0);
        let place = [(p.t % 2u32).into()];
        f.map_node("mark").over([1]).scatter(p.rows, place, ScatterRule::Unique, 1u32).done();
        pick(f, p, first_row(p));
    }));
    let copied = |f: &mut Body<'_>, p: &Parts| {
        let seen = f.temp("seen", [2]);
        f.copy("see", p.rows, seen);
        pick(f, p, seen.at([0u32.into()]));
    };
    assert!(reads_the_same(copied));
    assert!(!reads_the_same(|f, p| {
        count(f, p);
        copied(f, p);
    }));
}

/// Protects: loops as deep as they may lie are looked at in time that grows with the program, not with every level doubled.
#[test]
fn deep_loops_are_looked_at_in_time() {
    fn fill(f: &mut Body<'_>, p: &Parts, depth: usize) {
        if depth == 0 {
            pick(f, p, p.t % 4u32);
            return tick(f, p);
        }
        f.repeat(&format!("level{depth}"), Bound::Const(1), None, None, |b| fill(b, p, depth - 1));
    }
    assert!(!reads_the_same(|f, p| fill(f, p, 31)));
}
