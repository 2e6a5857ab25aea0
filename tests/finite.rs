//! The first value that is not finite: found in the order of the plan, blamed on the node that wrote it.

use half::bf16;
use stepgraph::Builder;
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::{Init, Role};
use stepgraph::plan::{FusionPlan, Region, StepPlan, Target, Tuning};
use stepgraph::runtime::{Device, NonFinite, Session};
use stepgraph::valid::ValidProgram;

/// x → root (temp) → shifted (temp) → w (parameter, its columns by two nodes) → total (scalar) and y.
struct Chain {
    program: ValidProgram,
    rate: Scalar<f32>,
    x: Tensor<f32>,
    w: Tensor<f32>,
    half: Tensor<bf16>,
    table: Tensor<f32>,
}

fn chain() -> Chain {
    let mut p = Builder::new("chain");
    let rate = p.host_scalar("rate", 1.0f32);
    let total = p.device_scalar("total", 0.0f32);
    let x = p.input::<f32>("x", [2, 4]);
    let w = p.param::<f32>("w", [2, 4], Init::Zeros);
    let half = p.state::<bf16>("half", [8], Init::Zeros);
    let table = p.param::<f32>("table", [2, 4], Init::Zeros);
    let y = p.output::<f32>("y", [2, 4]);
    p.step("step", |s| {
        s.phase("main", |f| {
            let root = f.map::<f32>("root", x.val().sqrt() * rate);
            let shifted = f.map::<f32>("shifted", root + table);
            let third = f.map::<f32>("third", shifted * 2.0f32);
            f.map_to("left", w.cols(0..2), third.cols(0..2).val());
            f.map_to("right", w.cols(2..4), third.cols(2..4) + 1.0f32);
            f.sum("sum", &[0, 1], w.val()).to_scalar(total);
            f.map_to("out", y, w * 0.5f32);
            f.map_to("half", half, half + half);
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    Chain { program, rate, x, w, half, table }
}

impl Chain {
    fn plan(&self, fusion: &FusionPlan) -> StepPlan {
        self.program.plan("step", fusion, &Target::default(), &Tuning::default()).expect("it plans")
    }

    fn open(&self, fusion: &FusionPlan) -> Session {
        Session::open(Device::Host, [self.plan(fusion)]).expect("the host is there")
    }

    fn look(&self, fusion: &FusionPlan, prepare: impl FnOnce(&mut Session)) -> Option<NonFinite> {
        let mut session = self.open(fusion);
        prepare(&mut session);
        session.launch("step").expect("the host runs");
        session.first_non_finite().expect("the host reads")
    }
}

fn found(node: Option<&str>, buffer: &str, index: u64) -> Option<(Option<String>, String, u64)> {
    Some((node.map(str::to_owned), buffer.to_owned(), index))
}

fn facts(found: Option<NonFinite>) -> Option<(Option<String>, String, u64)> {
    found.map(|found| (found.node, found.buffer, found.index))
}

/// Protects: the node whose own inputs were finite is named, with the element; and nothing is found where all is well.
#[test]
fn the_first_node_is_named() {
    let chain = chain();
    let debug = FusionPlan::debug();
    assert_eq!(chain.look(&debug, |_| {}), None);
    let mut values = [1.0f32; 8];
    values[5] = -1.0;
    let negative = |session: &mut Session| session.write_input(chain.x, &values).expect("an input");
    let root = chain.look(&debug, negative).expect("the root of -1");
    assert_eq!((root.step.as_str(), root.value.is_nan()), ("step", true));
    assert_eq!(facts(Some(root.clone())), found(Some("main.root"), "root", 5));
    assert_eq!(root.to_string(), "`root`[5] is NaN: node `main.root` of step `step` wrote it");
}

/// Protects: what the step only reads comes first, and no node is blamed for it; integers and finite values never are.
#[test]
fn what_came_from_outside_is_told_apart() {
    let chain = chain();
    let debug = FusionPlan::debug();
    let mut values = [1.0f32; 8];
    values[3] = f32::INFINITY;
    let input = chain.look(&debug, |session| session.write_input(chain.x, &values).expect("an input"));
    assert_eq!(facts(input.clone()), found(None, "x", 3));
    assert!(input.expect("found").to_string().contains("`x`[3] is inf: step `step` reads it"));
    let table = chain.look(&debug, |session| session.load(chain.table, &values).expect("a parameter"));
    assert_eq!(facts(table), found(None, "table", 3));
    let scalar = chain.look(&debug, |session| session.set(chain.rate, f32::NAN).expect("a scalar"));
    assert_eq!(facts(scalar), found(None, "rate", 0));
    // What the step writes is the step's, whatever was loaded into it: here it doubles an infinite bfloat16.
    let half = chain.look(&debug, |session| session.load(chain.half, &[bf16::INFINITY; 8]).expect("a state"));
    assert_eq!(facts(half), found(Some("main.half"), "half", 0));
}

/// Protects: of two nodes that write parts of one buffer, the one that wrote the element is blamed; a value that was overwritten
/// since is nobody's.
#[test]
fn the_last_writer_of_an_element_is_blamed() {
    let mut p = Builder::new("twice");
    let x = p.input::<f32>("x", [4]);
    let y = p.state::<f32>("y", [4], Init::Zeros);
    p.step("step", |s| {
        s.phase("main", |f| {
            f.map_to("first", y, x.val().log());
            f.map_to("second", y.rows(1..3), y.rows(1..3) * 2.0f32);
            f.fill("third", y.rows(0..1), 0.0);
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let plan = program.plan("step", &FusionPlan::debug(), &Target::default(), &Tuning::default()).expect("it plans");
    let mut session = Session::open(Device::Host, [plan]).expect("the host is there");
    let mut look = |x_values: [f32; 4]| {
        session.write_input(x, &x_values).expect("an input");
        session.launch("step").expect("the host runs");
        facts(session.first_non_finite().expect("the host reads"))
    };
    assert_eq!(look([0.0, 1.0, 1.0, 1.0]), None, "the third node put 0 over it");
    assert_eq!(look([0.0, 1.0, 0.0, 1.0]), found(Some("main.second"), "y", 2));
    assert_eq!(look([0.0, 1.0, 0.0, 0.0]), found(Some("main.first"), "y", 3));
}

/// Protects: under a plan that reuses memory, what is left is searched, and memory that something else has taken is not.
#[test]
fn reused_memory_is_passed_over() {
    let chain = chain();
    let mut values = [1.0f32; 8];
    values[6] = -1.0;
    for name in FusionPlan::NAMES {
        let fusion = FusionPlan::named(name).expect("a named plan");
        let looked = chain.look(&fusion, |session| session.write_input(chain.x, &values).expect("an input"));
        let (node, buffer, index) = facts(looked).expect("something is left");
        assert_eq!(index, 6, "{name}");
        let order = ["root", "shifted", "third", "w"];
        assert!(order.contains(&buffer.as_str()), "{name}: {node:?} {buffer}");
        let arena = chain.plan(&fusion);
        let root = arena.program().program().buffer("root").and_then(|root| arena.arena().buffers[root]);
        let later =
            ["third"].map(|name| arena.program().program().buffer(name).and_then(|id| arena.arena().buffers[id]));
        let is_reused = root.is_some_and(|root| later.iter().flatten().any(|later| later.overlaps(&root)));
        assert_eq!(buffer == "root", !is_reused, "{name}");
    }
}

/// Protects: a plan without graphs gives each temp memory of its own, so that all of them can be looked at.
#[test]
fn the_debug_plan_keeps_temps_apart() {
    let plan = chain().plan(&FusionPlan::debug());
    let buffers = &plan.program().program().buffers;
    let temps: Vec<_> = buffers
        .iter()
        .filter(|(_, buffer)| buffer.role == Role::Temp)
        .filter_map(|(id, _)| plan.arena().buffers[id].filter(|at| at.region == Region::Scratch))
        .collect();
    assert_eq!(temps.len(), 3);
    for (at, temp) in temps.iter().enumerate() {
        assert!(temps[at + 1..].iter().all(|other| !other.overlaps(temp)), "{temps:?}");
    }
}

/// Protects: nothing is reported of a launch whose memory is gone: after a reset, and before the first launch.
#[test]
fn without_a_launch_there_is_nothing_to_find() {
    let chain = chain();
    let mut session = chain.open(&FusionPlan::debug());
    session.load(chain.w, &[f32::NAN; 8]).expect("a parameter");
    assert_eq!(session.first_non_finite().expect("the host reads"), None);
    session.write_input(chain.x, &[-1.0; 8]).expect("an input");
    session.launch("step").expect("the host runs");
    assert!(session.first_non_finite().expect("the host reads").is_some());
    session.reset().expect("the host resets");
    assert_eq!(session.first_non_finite().expect("the host reads"), None);
}

/// Protects: what came from outside is told apart element by element: a node that writes a part of a buffer is not blamed for the
/// rest, and nor is the node that reads the rest.
#[test]
fn what_is_written_in_part_came_from_outside_in_part() {
    let mut p = Builder::new("part");
    let w = p.state::<f32>("w", [4], Init::Zeros);
    let y = p.output::<f32>("y", [4]);
    p.step("step", |s| {
        s.phase("main", |f| {
            let low = w.slice(0, 0..2);
            f.map_to("low", low, low * 2.0f32);
            f.map_to("out", y, w + 1.0f32);
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    for name in FusionPlan::NAMES {
        let fusion = FusionPlan::named(name).expect("a name");
        let plan = program.plan("step", &fusion, &Target::default(), &Tuning::default()).expect("it plans");
        let mut session = Session::open(Device::Host, [plan]).expect("the host is there");
        for (place, node) in [(3, None), (1, Some("main.low"))] {
            let mut values = [0.0; 4];
            values[place] = f32::NAN;
            session.load(w, &values).expect("a state");
            session.launch("step").expect("the host runs");
            let first = session.first_non_finite().expect("the host reads");
            assert_eq!(facts(first), found(node, "w", place as u64), "{name}");
        }
    }
}

/// Protects: a node whose body may not have run is named as one that may be innocent.
#[test]
fn a_node_that_may_not_have_run_is_not_blamed_alone() {
    let mut p = Builder::new("guarded");
    let runs = p.host_scalar("runs", 0u32);
    let w = p.state::<f32>("w", [4], Init::Zeros);
    let y = p.output::<f32>("y", [4]);
    p.step("step", |s| {
        s.phase_if("guarded", runs, |f| {
            f.map_to("w", w, w + 1.0f32);
        });
        s.phase("main", |f| {
            f.map_to("y", y, w * 2.0f32);
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let plan = program.plan("step", &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("it plans");
    let mut session = Session::open(Device::Host, [plan]).expect("the host is there");
    for (outside, in_body) in [([f32::NAN; 4], true), ([f32::MAX; 4], false)] {
        session.load(w, &outside).expect("a state");
        session.launch("step").expect("the host runs");
        let first = session.first_non_finite().expect("the host reads").expect("there is one");
        assert_eq!(first.in_body, in_body, "{first}");
        assert_eq!(first.to_string().contains("or it was there before"), in_body, "{first}");
        assert_eq!(first.node.as_deref(), Some(if in_body { "guarded.w" } else { "main.y" }));
    }
}
