//! Plans of several steps: what they list, what they refuse, and that the check sees through them. That they leave the bits of
//! single steps is for `host_orders.rs` to show.

use stepgraph::Builder;
use stepgraph::builder::{Body, Bound};
use stepgraph::entity::{EntityRef, UnitId};
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::Init;
use stepgraph::plan::{
    Cause, CheckError, Counts, FusionPlan, PlanError, Repeat, Schedule, StepPlan, Target, Tuning, Work, plan,
};
use stepgraph::runtime::{Device, RuntimeError, Session};
use stepgraph::valid::ValidProgram;

fn planned(program: &ValidProgram, fusion: &FusionPlan) -> Result<StepPlan, PlanError> {
    program.plan("run", fusion, &Target::default(), &Tuning::default())
}

fn names(plan: &StepPlan) -> Vec<&str> {
    plan.units().values().map(|unit| unit.name.as_str()).collect()
}

/// A step in two variants: a counter, a product of it, and in one variant a branch.
fn counting() -> ValidProgram {
    let mut p = Builder::new("counting");
    let (t, odd) = (p.device_scalar("t", 0u32), p.device_scalar("odd", 0u32));
    let sum = p.state::<f32>("sum", [4], Init::Zeros);
    p.step_with_variants("run", &["plain", "branch"], |s| {
        s.phase("begin", |f| f.set("tick", t, t + 1u32));
        s.phase_in("middle", &["branch"], |f| {
            f.set("parity", odd, t % 2u32);
            f.when("if_odd", odd, |f| f.fill("clear", sum, 0.0));
        });
        s.phase("end", |f| {
            f.map_to("add", sum, sum + t.val().to_f32());
        });
    });
    p.build().expect("valid")
}

fn repeated(program: &ValidProgram, fusion: FusionPlan, repeat: Repeat) -> Result<StepPlan, PlanError> {
    let fusion = fusion.repeated(repeat);
    plan(program, "run", Some("branch"), &fusion, &Target::default(), &Tuning::default())
}

/// Protects: an unrolled plan has each unit once per step, named and numbered, ordered by hazards across steps, and is cut as the
/// plan says; unrolling once changes nothing.
#[test]
fn unrolled_units_are_numbered() {
    let program = counting();
    let of = |fusion: FusionPlan, steps| repeated(&program, fusion, Repeat::Unroll(steps)).expect("plannable");
    let two = of(FusionPlan::mega(), 2);
    let expected = ["begin.tick", "middle.parity", "middle.clear", "middle.if_odd", "end.add"];
    let expected: Vec<_> = [1, 2].iter().flat_map(|step| expected.map(|name| format!("{name}#{step}"))).collect();
    assert_eq!(names(&two), expected);
    let fusion = two.fusion().clone();
    assert_eq!(fusion.name, "mega unroll 2");
    assert_eq!(fusion.clone().repeated(Repeat::Loop(3)).name, "mega loop 3");
    assert_eq!(fusion.repeated(Repeat::Once), FusionPlan::mega());
    let name = |unit| two.units()[unit].name.as_str();
    let body = &two.graphs()[0].body;
    let crossing = body.edges.iter().filter(|edge| two.units()[edge.from].iteration < two.units()[edge.to].iteration);
    let crossing: Vec<_> = crossing.map(|edge| (name(edge.from), name(edge.to))).collect();
    assert_eq!(crossing, [("end.add#1", "begin.tick#2")], "the rest follows from it");
    let counts = Counts::of(&two);
    assert_eq!((counts.graphs, counts.launches, counts.steps), (1, 1, 2));

    let graphs: Vec<_> = of(FusionPlan::phases(), 2).graphs().iter().map(|graph| graph.name.clone()).collect();
    assert_eq!(graphs, ["begin#1", "middle#1", "end#1", "begin#2", "middle#2", "end#2"]);
    let debug = Counts::of(&of(FusionPlan::debug(), 3));
    assert_eq!((debug.graphs, debug.launches, debug.steps), (0, 12, 3));
    let once = of(FusionPlan::mega(), 1);
    assert_eq!(names(&once)[0], "begin.tick");
    assert_eq!(once.graphs(), of(FusionPlan::mega(), 1).graphs());
}

/// Protects: a looped plan is one loop of so many steps around the variant's phases, with the names of both.
#[test]
fn a_looped_step_is_one_node() {
    let plan = repeated(&counting(), FusionPlan::mega(), Repeat::Loop(u32::MAX)).expect("plannable");
    let mut found = names(&plan);
    found.sort_unstable();
    let inside =
        ["begin.tick", "end.add", "middle.clear", "middle.if_odd", "middle.parity"].map(|name| format!("loop.{name}"));
    assert_eq!(found, inside.iter().map(String::as_str).chain(["loop.steps"]).collect::<Vec<_>>());
    assert_eq!(plan.variant(), Some("branch"));
    let [graph] = plan.graphs() else { panic!("one graph: {:?}", plan.graphs()) };
    assert_eq!(graph.body.units.len(), 1);
    let counts = Counts::of(&plan);
    assert_eq!((counts.graphs, counts.launches, counts.steps), (1, 1, u32::MAX));
    assert!(plan.text().contains("while up to 4294967295 times"), "{}", plan.text());
}

/// Protects: names that meet when phases are put before them stay apart.
#[test]
fn looped_names_stay_unique() {
    let mut p = Builder::new("dots");
    let [a, b] = ["a", "b"].map(|name| p.state::<f32>(name, [4], Init::Zeros));
    p.step("run", |s| {
        s.phase("x.y", |f| f.fill("z", a, 1.0));
        s.phase("x", |f| f.fill("y.z", b, 1.0));
    });
    let fusion = FusionPlan::mega().repeated(Repeat::Loop(2));
    let plan = planned(&p.build().expect("valid"), &fusion).expect("plannable");
    assert_eq!(names(&plan), ["loop.x.y.z", "loop.x.y.z_", "loop.steps"]);
}

/// Protects: what cannot be repeated is refused with the guilty name, and no number of steps makes planning endless.
#[test]
fn steps_that_cannot_be_repeated_are_refused() {
    let program = counting();
    for repeat in [Repeat::Unroll(0), Repeat::Loop(0)] {
        assert!(matches!(repeated(&program, FusionPlan::mega(), repeat), Err(PlanError::NoSteps { .. })));
    }
    let (found, limit) = (5u64 << 31, 1 << 17);
    let too_many = PlanError::TooManyUnits { plan: "debug unroll 2147483648".into(), found, limit };
    assert_eq!(repeated(&program, FusionPlan::debug(), Repeat::Unroll(1 << 31)).expect_err("too many"), too_many);
    for (fusion, cut) in [(FusionPlan::debug(), "launches per node"), (FusionPlan::phases(), "graphs per phase")] {
        let plan = format!("{} loop 2", fusion.name);
        let refused = PlanError::LoopOfParts { plan, cut };
        assert_eq!(repeated(&program, fusion, Repeat::Loop(2)).expect_err("not one graph"), refused);
    }

    let mut p = Builder::new("fed");
    let x = p.input::<f32>("x", [4]);
    let on = p.device_scalar("on", 1u32);
    let y = p.state::<f32>("y", [4], Init::Zeros);
    p.step("run", |s| s.phase("only", |f| f.when("perhaps", on, |f| f.copy("take", x, y))));
    let fed = p.build().expect("valid");
    for repeat in [Repeat::Unroll(2), Repeat::Loop(2)] {
        let fusion = FusionPlan::mega().repeated(repeat);
        let refused = planned(&fed, &fusion).expect_err("it reads an input");
        let PlanError::RepeatedInput { plan, input, node } = &refused else { panic!("{refused}") };
        assert_eq!((plan, input.as_str(), node.name.as_str()), (&fusion.name, "x", "only.take"));
        assert!(refused.to_string().contains("node `only.take` (tests/plan_repeat.rs:"), "{refused}");
    }
    for repeat in [Repeat::Unroll(1), Repeat::Loop(1)] {
        planned(&fed, &FusionPlan::mega().repeated(repeat)).expect("one step reads its input once");
    }
}

/// Protects: a looped variant is planned although it writes none of the outputs that are another variant's.
#[test]
fn a_looped_variant_leaves_the_outputs_of_others() {
    let mut p = Builder::new("apart");
    let outputs = ["a", "b"].map(|name| p.output::<f32>(name, [4]));
    p.step_with_variants("run", &["a", "b"], |s| {
        for (variant, output) in ["a", "b"].into_iter().zip(outputs) {
            s.phase_in(variant, &[variant], |f| f.fill(&format!("fill_{variant}"), output, 1.0));
        }
    });
    let program = p.build().expect("valid");
    let looped = FusionPlan::mega().repeated(Repeat::Loop(2));
    plan(&program, "run", Some("a"), &looped, &Target::default(), &Tuning::default()).expect("plannable");
}

/// So many conditionals, each in the one before.
fn nested(depth: usize) -> ValidProgram {
    fn fill(f: &mut Body<'_>, flag: Scalar<u32>, y: Tensor<f32>, depth: usize) {
        match depth {
            0 => f.fill("clear", y, 0.0),
            _ => f.when(&format!("level{depth}"), flag, |f| fill(f, flag, y, depth - 1)),
        }
    }
    let mut p = Builder::new("nested");
    let flag = p.host_scalar("flag", 1u32);
    let y = p.state::<f32>("y", [4], Init::Zeros);
    p.step("run", |s| s.phase("only", |f| fill(f, flag, y, depth)));
    p.build().expect("valid")
}

/// Protects: a loop that would lie too deep is refused by name, one level less is planned; the driver's limits hold for the loop.
#[test]
fn a_loop_is_one_more_conditional() {
    let looped = |depth| planned(&nested(depth), &FusionPlan::mega().repeated(Repeat::Loop(2)));
    assert!(looped(31).is_ok());
    let refused = looped(32).expect_err("33 levels");
    let PlanError::LoopTooDeep { node, found: 32, limit: 32 } = &refused else { panic!("{refused}") };
    assert_eq!(node.name, "only.level1");

    let old = Target { driver: 12_030, ..Target::default() };
    let fusion = FusionPlan::mega().repeated(Repeat::Loop(2));
    let refused = plan(&counting(), "run", Some("plain"), &fusion, &old, &Tuning::default());
    let Err(PlanError::DriverTooOld { node, needed: 12_040, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(node.name, "loop.steps");
}

/// Three conditionals that touch nothing in common, and one of them holds two more.
fn independent(f: &mut Body<'_>, on: Scalar<u32>, [a, b, c, d]: [Tensor<f32>; 4]) {
    f.when("first", on, |f| f.fill("clear_a", a, 0.0));
    f.fill("between", d, 1.0);
    f.when("second", on, |f| {
        f.when("inner_b", on, |f| f.fill("clear_b", b.rows(0..2), 0.0));
        f.when("inner_c", on, |f| f.fill("clear_c", b.rows(2..4), 0.0));
    });
    f.repeat("third", Bound::Const(2), None, None, |f| f.fill("clear_d", c, 0.0));
}

/// Protects: a device that two conditionals side by side inside of a loop would hang: there they follow one another, at whatever
/// depth, and the check misses each of these edges; outside of loops nothing orders them.
#[test]
fn conditionals_inside_of_a_loop_run_one_at_a_time() {
    let mut p = Builder::new("independent");
    let on = p.host_scalar("on", 1u32);
    let buffers = ["a", "b", "c", "d"].map(|name| p.state::<f32>(name, [4], Init::Zeros));
    p.step("run", |s| s.phase("only", |f| independent(f, on, buffers)));
    let program = p.build().expect("valid");
    let ordered = |plan: &StepPlan| -> Vec<String> {
        let units = plan.units();
        let bodies = plan.graphs().iter().map(|graph| &graph.body);
        let edges = bodies.chain(units.values().flat_map(|unit| unit.work.bodies())).flat_map(|body| &body.edges);
        let named = edges.map(|edge| {
            assert_eq!(edge.causes, [Cause::OneAtATime { via: None }]);
            format!("{} → {}", units[edge.from].name, units[edge.to].name)
        });
        named.collect()
    };
    let once = planned(&program, &FusionPlan::mega()).expect("plannable");
    assert!(ordered(&once).is_empty(), "{}", once.text());
    let unrolled = planned(&program, &FusionPlan::mega().repeated(Repeat::Unroll(2))).expect("plannable");
    assert!(!unrolled.text().contains("one at a time"));
    let looped = planned(&program, &FusionPlan::mega().repeated(Repeat::Loop(2))).expect("plannable");
    let expected = [
        "loop.only.inner_b → loop.only.inner_c",
        "loop.only.first → loop.only.second",
        "loop.only.second → loop.only.third",
    ];
    assert_eq!(ordered(&looped), expected);
    assert!(looped.text().contains("after loop.only.first: one at a time"), "{}", looped.text());
    let chain = FusionPlan { schedule: Schedule::Chain, ..FusionPlan::mega() }.repeated(Repeat::Loop(2));
    assert!(!planned(&program, &chain).expect("plannable").text().contains("one at a time"));

    for expected in &expected {
        let mut parts = looped.clone().into_parts();
        let names: Vec<String> = parts.units.values().map(|unit| unit.name.clone()).collect();
        let name = |unit: UnitId| &names[unit.index()];
        let bodies = parts.units.values_mut().flat_map(|unit| match &mut unit.work {
            Work::If { then_body, .. } => Some(&mut then_body.edges),
            Work::While { body } => Some(&mut body.edges),
            _ => None,
        });
        for edges in bodies {
            edges.retain(|edge| format!("{} → {}", name(edge.from), name(edge.to)) != *expected);
        }
        let errors = StepPlan::from_parts(parts).expect_err("they could run side by side");
        let (earlier, later) = expected.split_once(" → ").expect("two names");
        let why = "conditionals inside of a loop run one at a time".to_owned();
        assert_eq!(errors, [CheckError::MissingOrder { earlier: earlier.into(), later: later.into(), why }]);
    }
}

/// Protects: the check sees a plan that makes other steps than it says.
#[test]
fn the_check_counts_steps() {
    let program = counting();
    let parts = |repeat| repeated(&program, FusionPlan::mega(), repeat).expect("plannable").into_parts();
    let with = |from: Repeat, says: Repeat| {
        let mut parts = parts(from);
        parts.fusion.repeat = says;
        StepPlan::from_parts(parts).err().unwrap_or_default()
    };
    let is_wrong = |errors: Vec<CheckError>| errors.iter().any(|e| matches!(e, CheckError::WrongRepeat { .. }));
    assert!(with(Repeat::Loop(3), Repeat::Loop(3)).is_empty());
    for (from, says) in [
        (Repeat::Loop(3), Repeat::Loop(2)),
        (Repeat::Once, Repeat::Loop(2)),
        (Repeat::Once, Repeat::Unroll(0)),
        (Repeat::Unroll(2), Repeat::Loop(2)),
    ] {
        assert!(is_wrong(with(from, says)), "{from} that says {says}");
    }
    for (from, says) in [
        (Repeat::Unroll(2), Repeat::Once),
        (Repeat::Unroll(2), Repeat::Unroll(3)),
        (Repeat::Once, Repeat::Unroll(u32::MAX)),
    ] {
        assert!(!with(from, says).is_empty(), "{from} that says {says}");
    }
    let mut swapped = parts(Repeat::Unroll(2));
    let first = swapped.graphs[0].body.units[0];
    swapped.units[first].iteration = 1;
    assert!(StepPlan::from_parts(swapped).is_err());

    let mut p = Builder::new("fed");
    let x = p.input::<f32>("x", [4]);
    let y = p.state::<f32>("y", [4], Init::Zeros);
    p.step("run", |s| s.phase("only", |f| f.copy("take", x, y)));
    let fed = planned(&p.build().expect("valid"), &FusionPlan::mega().repeated(Repeat::Loop(1))).expect("plannable");
    let mut parts = fed.into_parts();
    parts.fusion.repeat = Repeat::Unroll(2);
    let errors = StepPlan::from_parts(parts).expect_err("it reads an input");
    assert!(errors.iter().any(|e| matches!(e, CheckError::RepeatedInput { input, .. } if input == "x")), "{errors:?}");
}

/// Protects: a run of several steps is one launch: its ticket reads what the last step wrote, the report counts launches, and a stop
/// that is set keeps a looped plan, but not an unrolled one, from making steps.
#[test]
fn a_run_is_one_launch() -> Result<(), RuntimeError> {
    for repeat in [Repeat::Unroll(3), Repeat::Loop(3)] {
        let mut p = Builder::new("seen");
        let t = p.device_scalar("t", 0u32);
        let seen = p.output::<u32>("seen", []);
        p.step("run", |s| {
            s.phase("only", |f| {
                f.set("tick", t, t + 1u32);
                f.map_to("show", seen, t.val());
            });
        });
        let plan = planned(&p.build().expect("valid"), &FusionPlan::mega().repeated(repeat)).expect("plannable");
        let mut session = Session::open(Device::Host, [plan])?;
        for launch in 1..3 {
            let ticket = session.launch("run")?;
            let mut outputs = ticket.wait(&mut session)?;
            assert_eq!((outputs.read(seen)?, outputs.read_scalar(t)?), (vec![3 * launch], 3 * launch), "{repeat}");
        }
        session.stop_handle().stop();
        session.launch("run")?;
        let ran = if repeat == Repeat::Loop(3) { 6 } else { 9 };
        assert_eq!((session.read_scalar(t)?, session.report().launches), (ran, 3), "{repeat}");
    }
    Ok(())
}
