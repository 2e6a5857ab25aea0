//! The rules of planning, one broken plan each, and what the passes do.

use std::collections::BTreeMap;

use stepgraph::Builder;
use stepgraph::entity::{BufferId, EntityRef, KernelId};
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::{
    Arg, Buffer, ConstValue, DType, Dim, Init, KernelCall, KernelDecl, KernelParam, KernelSource, LaunchConfig,
    LaunchRule, Node, NodeOp, Origin, Origins, ParamClass, Phase, Program, Role, Shape, SharedRule, Step, View, Writer,
};
use stepgraph::kernel::HostFns;
use stepgraph::pass::PassError;
use stepgraph::plan::{
    Cause, CheckError, Counts, Fuse, FusionPlan, GemmImpl, GemmKey, Placement, PlanError, Region, Repeat, StepPlan,
    Target, Tuning, Work, plan,
};
use stepgraph::spec::{self, SpecOptions};
use stepgraph::valid::{ValidProgram, validate};

fn planned(program: &ValidProgram, fusion: &FusionPlan) -> Result<StepPlan, PlanError> {
    program.plan("run", fusion, &Target::default(), &Tuning::default())
}

fn mega(program: &ValidProgram) -> StepPlan {
    planned(program, &FusionPlan::mega()).expect("plannable")
}

fn fused(program: &ValidProgram) -> StepPlan {
    planned(program, &FusionPlan { fuse: Fuse::All, ..FusionPlan::mega() }).expect("plannable")
}

fn names(plan: &StepPlan) -> Vec<&str> {
    plan.units().values().map(|unit| unit.name.as_str()).collect()
}

/// A program whose one node is a kernel that writes `y`, with these dimensions.
fn one_kernel(dims: &[u32], edit: impl FnOnce(&mut KernelDecl)) -> ValidProgram {
    let shape = Shape::new(dims).expect("few axes");
    let pattern = (0..dims.len()).map(|axis| Dim::Symbol(format!("d{axis}"))).collect();
    let mut decl = KernelDecl {
        name: "fill_up".into(),
        source: KernelSource {
            file: "fill_up.cu".into(),
            text: "extern \"C\" __global__ void fill_up(float* __restrict__ y) {}\n".into(),
        },
        params: vec![KernelParam { name: "y".into(), class: ParamClass::Out, dtype: DType::F32, shape: Some(pattern) }],
        launch: LaunchRule::Fixed { grid: [1, 1, 1], block: [32, 1, 1] },
        shared: SharedRule::default(),
        cluster: None,
        cooperative: false,
        pdl: None,
    };
    edit(&mut decl);
    let mut program = Program { name: "limits".into(), ..Program::default() };
    let kernel = program.kernels.push(decl);
    let y = program.buffers.push(Buffer {
        name: "y".into(),
        dtype: DType::F32,
        shape,
        role: Role::Output,
        init: Init::Zeros,
        tap: false,
    });
    let mut step = Step { name: "run".into(), ..Step::default() };
    let op = NodeOp::Kernel(KernelCall { kernel, args: vec![Arg::View(View::full(y, &shape))] });
    let node = step.nodes.push(Node { name: "k".into(), op, after: Vec::new() });
    step.phases.push(Phase { name: "only".into(), nodes: vec![node], ..Phase::default() });
    program.steps.push(step);
    validate(program, Origins::default(), HostFns::new()).expect("valid")
}

fn launch_of(program: &ValidProgram) -> LaunchConfig {
    match mega(program).units().values().next().map(|unit| unit.work.clone()) {
        Some(Work::Kernel(config)) => config,
        other => panic!("not a kernel: {other:?}"),
    }
}

fn refusal(program: &ValidProgram) -> PlanError {
    planned(program, &FusionPlan::mega()).expect_err("must be refused")
}

/// Protects: grids follow from the arguments as the rules say, odd extents rounded up.
#[test]
fn launch_rules_give_their_grids() {
    let grid = |dims: &[u32], launch: LaunchRule| launch_of(&one_kernel(dims, |decl| decl.launch = launch)).grid;
    let of = || "y".to_owned();
    assert_eq!(grid(&[7, 100], LaunchRule::Elements { of: of(), block: 64, per_thread: 4 }), [3, 1, 1]);
    assert_eq!(grid(&[3, 5, 9], LaunchRule::Rows { of: of(), block: 128 }), [15, 1, 1]);
    assert_eq!(grid(&[3, 65, 33], LaunchRule::Tiles { of: of(), tile: [32, 16], block: 128 }), [3, 3, 3]);
    assert_eq!(grid(&[33], LaunchRule::Tiles { of: of(), tile: [32, 16], block: 128 }), [3, 1, 1]);
    let shared = SharedRule { base: 100, per_unit: Some((4, "d1".into())) };
    assert_eq!(launch_of(&one_kernel(&[7, 100], |decl| decl.shared = shared)).shared, 500);
}

/// Protects: a launch that no device takes is refused before there is a device.
#[test]
fn launches_beyond_the_limits_are_refused() {
    let fixed = |grid, block| one_kernel(&[4], |decl| decl.launch = LaunchRule::Fixed { grid, block });
    let what = |error: PlanError| match error {
        PlanError::LaunchLimit { what, .. } => what,
        other => panic!("{other}"),
    };
    assert_eq!(what(refusal(&fixed([1, 65_536, 1], [1, 1, 1]))), "grid y");
    assert_eq!(what(refusal(&fixed([1, 1, 65_536], [1, 1, 1]))), "grid z");
    assert_eq!(what(refusal(&fixed([1 << 31, 1, 1], [1, 1, 1]))), "grid x");
    assert_eq!(what(refusal(&fixed([1, 1, 1], [1, 1, 65]))), "block z");
    assert_eq!(what(refusal(&fixed([1, 1, 1], [1025, 1, 1]))), "block x");
    assert_eq!(what(refusal(&fixed([1, 1, 1], [32, 33, 1]))), "the number of threads of a block");
    assert!(planned(&fixed([(1 << 31) - 1, 65_535, 65_535], [1024, 1, 1]), &FusionPlan::mega()).is_ok());
}

/// Protects: shared memory above the 48 KiB default is fine up to what the target can opt into, and not beyond.
#[test]
fn shared_memory_is_limited_by_the_target() {
    let with = |base| one_kernel(&[4], |decl| decl.shared = SharedRule { base, per_unit: None });
    assert!(planned(&with(232_448), &FusionPlan::mega()).is_ok());
    let error = refusal(&with(232_449));
    let PlanError::SharedMemory { node, found: 232_449, limit: 232_448 } = &error else { panic!("{error}") };
    assert_eq!(node.name, "only.k");
}

/// Protects: clusters that the hardware refuses are refused here, with the reason.
#[test]
fn clusters_are_checked() {
    let with = |grid, cluster| {
        one_kernel(&[4], |decl| {
            decl.launch = LaunchRule::Fixed { grid, block: [32, 1, 1] };
            decl.cluster = Some(cluster);
        })
    };
    assert!(planned(&with([6, 4, 1], [2, 4, 1]), &FusionPlan::mega()).is_ok());
    let error = refusal(&with([6, 4, 1], [4, 1, 1]));
    assert!(matches!(&error, PlanError::Cluster { node, .. } if node.name == "only.k"), "{error}");
    assert!(error.to_string().contains("does not divide the grid"), "{error}");
    assert!(refusal(&with([16, 4, 1], [16, 1, 1])).to_string().contains("16 blocks"));
    let old = Target { sm: 80, ..Target::default() };
    let error = with([2, 1, 1], [2, 1, 1]).plan("run", &FusionPlan::mega(), &old, &Tuning::default());
    assert!(error.expect_err("too old").to_string().contains("sm_90"));
}

/// Protects: a cooperative grid that cannot be resident at once, which would hang, is refused.
#[test]
fn cooperative_grids_fit_the_device() {
    let with = |blocks| {
        one_kernel(&[4], |decl| {
            decl.launch = LaunchRule::Fixed { grid: [blocks, 1, 1], block: [1024, 1, 1] };
            decl.cooperative = true;
        })
    };
    assert!(planned(&with(264), &FusionPlan::mega()).is_ok());
    let error = refusal(&with(265));
    let limits = matches!(error, PlanError::CooperativeGrid { found: 265, limit: 264, multiprocessors: 132, .. });
    assert!(limits, "{error}");
}

/// Protects: a refusal about a node says where the node was written, also if a pass made it.
#[test]
fn a_refusal_names_the_place() {
    let text = r#"
program = "places"
scalar = { on = { type = "u32", writer = "host" } }
state = { x = [4, 4], y = [4, 4], z = [4, 4] }
unused = { gone = { t = { map = "x" } }, guarded = { guard = "on", copied = { copy = "x", out = "y" } } }
[run.main]
many = { while = 3, body = { add = { map = "z + 1", out = "z" } } }
"#;
    let program = spec::parse(text, &SpecOptions::default()).expect("a spec").validate().expect("valid");
    let place = |step: &str, fuse: Fuse, repeat: Repeat| {
        let fusion = FusionPlan { fuse, ..FusionPlan::mega() }.repeated(repeat);
        let old = Target { driver: 12_030, ..Target::default() };
        let error = program.plan(step, &fusion, &old, &Tuning::default()).expect_err("the driver is too old");
        let Origin::Spec { start, end } = error.origin() else { panic!("{error}: {:?}", error.origin()) };
        &text[start..end]
    };
    assert_eq!(place("run", Fuse::None, Repeat::Once), "many");
    // What passes make stands for what was written: a guard for its phase, whichever phases were pruned, a loop for its step.
    assert_eq!(place("unused", Fuse::None, Repeat::Once), "guarded");
    assert_eq!(place("unused", Fuse::All, Repeat::Once), "guarded");
    assert_eq!(place("unused", Fuse::All, Repeat::Loop(2)), "unused");
}

fn with_scalars(fill: impl FnOnce(&mut Builder, Scalar<u32>)) -> ValidProgram {
    let mut p = Builder::new("control");
    let flag = p.device_scalar("flag", 1u32);
    fill(&mut p, flag);
    p.build().expect("valid")
}

/// Protects: a hand-made plan with a conditional in its own body is refused, and does not keep the check busy for ever.
#[test]
fn a_unit_in_its_own_body_is_refused() {
    let program = with_scalars(|p, flag| {
        let out = p.output::<f32>("out", [4]);
        p.step("run", |s| s.phase("only", |f| f.when("branch", flag, |f| f.fill("zero", out, 0.0))));
    });
    let mut parts = mega(&program).into_parts();
    let branch = parts.graphs[0].body.units[0];
    let Work::If { then_body, .. } = &mut parts.units[branch].work else { panic!("a branch") };
    then_body.units = vec![branch];
    let errors = StepPlan::from_parts(parts).expect_err("it is in itself");
    let is_told = |error: &CheckError| matches!(error, CheckError::MisplacedUnit { reason: "is listed twice", .. });
    assert!(errors.iter().any(is_told), "{errors:?}");
}

/// Protects: conditional nodes are planned only for drivers that know them.
#[test]
fn conditionals_need_their_driver() {
    let guarded = with_scalars(|p, flag| {
        let out = p.output::<f32>("out", [4]);
        p.step("run", |s| s.phase_if("only", flag, |f| f.fill("zero", out, 0.0)));
    });
    let with_else = with_scalars(|p, flag| {
        let out = p.output::<f32>("out", [4]);
        p.step("run", |s| {
            s.phase("only", |f| f.when_else("pick", flag, |f| f.fill("one", out, 1.0), |f| f.fill("zero", out, 0.0)));
        });
    });
    let on = |program: &ValidProgram, driver| {
        program.plan("run", &FusionPlan::mega(), &Target { driver, ..Target::default() }, &Tuning::default())
    };
    assert!(on(&guarded, 12_040).is_ok());
    assert!(matches!(on(&guarded, 12_030), Err(PlanError::DriverTooOld { needed: 12_040, .. })));
    assert!(on(&with_else, 12_080).is_ok());
    let error = on(&with_else, 12_060).expect_err("too old").to_string();
    assert!(error.contains("needs a driver for CUDA 12.8, the target has 12.6"), "{error}");
}

/// Protects: unknown names are errors that list the known ones, and a variant must be chosen.
#[test]
fn names_are_looked_up() {
    let mut p = Builder::new("names");
    let out = p.output::<f32>("out", [4]);
    p.step_with_variants("run", &["a", "b"], |s| {
        s.phase_in("first", &["a"], |f| f.fill("zero", out, 0.0));
        s.phase_in("second", &["b"], |f| f.fill("one", out, 1.0));
    });
    let program = p.build().expect("valid");
    let of = |step: &str, variant: Option<&str>, fuse: Fuse| {
        let fusion = FusionPlan { fuse, ..FusionPlan::mega() };
        plan(&program, step, variant, &fusion, &Target::default(), &Tuning::default())
    };
    assert!(matches!(of("walk", None, Fuse::None), Err(PlanError::UnknownStep { known, .. }) if known == ["run"]));
    assert!(matches!(of("run", None, Fuse::None), Err(PlanError::VariantNeeded { .. })));
    assert!(matches!(of("run", Some("x"), Fuse::None), Err(PlanError::UnknownVariant { .. })));
    let unknown = of("run", Some("a"), Fuse::Named(vec!["magic".into()]));
    assert!(matches!(unknown, Err(PlanError::Pass(PassError::UnknownPass { name })) if name == "magic"));
    assert_eq!(names(&of("run", Some("b"), Fuse::None).expect("plannable")), ["second.one"]);
}

/// Protects: memory beyond any device's address space is an error, not a wrapped offset.
#[test]
fn too_much_memory_is_refused() {
    let shape = Shape::new(&[(1 << 31) - 1]).expect("one axis");
    let mut program = one_kernel(&[4], |_| {}).program().clone();
    for number in 0..20_000 {
        let name = format!("big{number}");
        let (dtype, role, init) = (DType::F32, Role::State, Init::Zeros);
        program.buffers.push(Buffer { name, dtype, shape, role, init, tap: false });
    }
    let program = validate(program, Origins::default(), HostFns::new()).expect("valid");
    assert!(matches!(refusal(&program), PlanError::ArenaTooLarge { region: Region::Persistent, .. }));
}

/// Protects: what was measured decides the implementation, and everything else gets the documented default.
#[test]
fn tuning_chooses_gemms() {
    let mut p = Builder::new("tuned");
    let x = p.input::<f32>("x", [8, 4]);
    let w = p.param::<f32>("w", [6, 4], Init::Zeros);
    let y = p.output::<f32>("y", [8, 6]);
    p.step("run", |s| {
        s.phase("only", |f| f.gemm("y", x.nt(w)).to(y));
    });
    let program = p.build().expect("valid");
    let key = GemmKey::new([8, 6, 4], false, true, stepgraph::ir::Compute::F32);
    let chosen = GemmImpl::Library { algo: 3, workspace: 1024 };
    let tuning = Tuning { gemms: BTreeMap::from([(key, chosen)]) };
    let of = |tuning: &Tuning| {
        let plan = program.plan("run", &FusionPlan::mega(), &Target::default(), tuning).expect("plannable");
        (plan.units().values().next().map(|unit| unit.work.clone()), plan.arena().size(Region::Scratch))
    };
    assert_eq!(of(&tuning), (Some(Work::Gemm(chosen)), 1024));
    assert_eq!(of(&Tuning::default()), (Some(Work::Gemm(Tuning::default_gemm(&key))), 32 * 8 * 6 * 4));
}

/// Protects: the default workspace follows the result's size, in whole placements, and is 4 MiB for every large one.
#[test]
fn the_default_workspace_follows_the_problem() {
    let of = |m, n| match Tuning::default_gemm(&GemmKey::new([m, n, 64], false, false, stepgraph::ir::Compute::Tf32)) {
        GemmImpl::Library { algo, workspace } => (algo, workspace),
    };
    assert_eq!(of(16, 16), (0, 32 * 16 * 16 * 4));
    assert_eq!(of(1, 3), (0, 512));
    assert_eq!([of(256, 128), of(128, 256), of(8192, 2048), of(u32::MAX, u32::MAX)], [(0, 4 << 20); 4]);
    assert_eq!(of(256, 127), (0, 32 * 256 * 127 * 4));
}

/// A product with bias and activation, and whatever else a test wants.
fn layer(more: impl FnOnce(&mut stepgraph::builder::Body<'_>, Layer)) -> ValidProgram {
    let mut p = Builder::new("layer");
    let parts = Layer {
        x: p.input::<f32>("x", [8, 4]),
        w: p.param::<f32>("w", [6, 4], Init::Zeros),
        b: p.param::<f32>("b", [6], Init::Zeros),
        out: p.output::<f32>("out", [8, 6]),
        other: p.state::<f32>("other", [8, 6], Init::Zeros),
    };
    p.step("run", |s| s.phase("only", |f| more(f, parts)));
    p.build().expect("valid")
}

#[derive(Clone, Copy)]
struct Layer {
    x: Tensor<f32>,
    w: Tensor<f32>,
    b: Tensor<f32>,
    out: Tensor<f32>,
    other: Tensor<f32>,
}

/// Protects: the three supported epilogues fuse, under the map's name, and nothing is left of the product's own buffer.
#[test]
fn bias_and_relu_become_an_epilogue() {
    let programs = [
        layer(|f, l| _ = f.gemm("h", l.x.nt(l.w)).then_to(l.out, |acc| (acc + l.b).relu())),
        layer(|f, l| _ = f.gemm("h", l.x.nt(l.w)).then_to(l.out, |acc| acc + l.b)),
        layer(|f, l| _ = f.gemm("h", l.x.nt(l.w)).then_to(l.out, |acc| acc.relu())),
    ];
    for program in programs {
        assert_eq!(names(&mega(&program)), ["only.h.mm", "only.h"]);
        let plan = fused(&program);
        assert_eq!(names(&plan), ["only.h"]);
        assert!(matches!(plan.units().values().next().map(|unit| &unit.work), Some(Work::Gemm(_))));
        assert!(plan.arena().buffers.values().flatten().all(|placement| placement.region != Region::Scratch));
    }
}

/// Protects: nothing fuses where another node needs the product, where the map computes something else, where what the
/// product reads changes in between, or where the bias runs along rows.
#[test]
fn epilogues_that_would_change_results_stay_apart() {
    let programs = [
        layer(|f, l| {
            let h = f.gemm("p", l.x.nt(l.w)).done();
            f.map_to("h", l.out, (h + l.b).relu());
            f.copy("again", h, l.other);
        }),
        layer(|f, l| _ = f.gemm("p", l.x.nt(l.w)).then_to(l.out, |acc| acc.tanh())),
        layer(|f, l| {
            let h = f.gemm("p", l.x.nt(l.w)).done();
            f.fill("clear", l.w, 0.0);
            f.map_to("h", l.out, (h + l.b).relu());
        }),
        layer(|f, l| {
            let rows = f.temp::<f32>("rows", [8, 1]);
            f.fill("ones", rows, 1.0);
            let h = f.gemm("p", l.x.nt(l.w)).done();
            f.map_to("h", l.out, h + rows);
        }),
    ];
    for program in programs {
        assert_eq!(names(&fused(&program)), names(&mega(&program)));
    }
}

/// Protects: an epilogue that the matrix library lacks becomes a map behind the product, in every plan and inside bodies; what
/// came before and after the node still does; one that the library has stays.
#[test]
fn epilogues_beyond_the_library_become_maps() {
    let text = r#"
        program = "beyond"
        [scalar]
        on = { type = "u32", writer = "host" }
        [input]
        x = [8, 4]
        [param]
        w = [6, 4]
        b = [6]
        [output]
        y = [8, 6]
        [state]
        bent = [8, 6]
        plain = [8, 6]
        other = [8, 6]
        [run.only]
        first = { fill = 0.0, out = "other" }
        bent = { gemm = "x @ w'", epilogue = "tanh(acc + b)", after = "first" }
        plain = { gemm = "x @ w'", epilogue = "relu(acc + b)" }
        last = { fill = 1.0, out = "other", after = "bent" }
        branch = { if = "on", then = { y = { gemm = "x @ w'", epilogue = "acc * 2.0" } }, else = { zero = { fill = 0.0, out = "y" } } }
    "#;
    let parsed = stepgraph::spec::parse(text, &stepgraph::spec::SpecOptions::default()).expect("a spec");
    let program = parsed.validate().expect("valid");
    for fusion in [FusionPlan::debug(), FusionPlan::phases(), FusionPlan::mega()] {
        let plan = planned(&program, &fusion).expect("plannable");
        let expected = ["first", "bent.mm", "bent", "plain", "last", "y.mm", "y", "zero", "branch"];
        let mut found: Vec<_> = names(&plan).iter().map(|name| name.trim_start_matches("only.")).collect();
        found.sort_by_key(|name| expected.iter().position(|known| known == name));
        assert_eq!(found, expected, "{}", fusion.name);
        let work =
            |name: &str| &plan.units().values().find(|unit| unit.name == format!("only.{name}")).expect(name).work;
        assert!(["bent.mm", "plain", "y.mm"].iter().all(|name| matches!(work(name), Work::Gemm(_))));
        assert!(["bent", "y"].iter().all(|name| matches!(work(name), Work::Map(_))));
    }
    let plan = mega(&program);
    let edges =
        plan.graphs()[0].body.edges.iter().map(|edge| (&*plan.units()[edge.from].name, &*plan.units()[edge.to].name));
    let edges: Vec<_> = edges.collect();
    for edge in [("only.first", "only.bent.mm"), ("only.bent.mm", "only.bent"), ("only.bent", "only.last")] {
        assert!(edges.contains(&edge), "{edge:?} is not among {edges:?}");
    }
}

/// Protects: a node whose result nothing uses goes, with what only it needed; a node that other nodes, the host or the next
/// launch can see stays; `after` is inherited through what goes.
#[test]
fn dead_nodes_are_pruned() {
    let program = layer(|f, l| {
        let unused = f.map("unused", l.x * 2.0f32);
        f.fill("used", l.out, 1.0);
        f.map("unused_too", unused + 1.0f32);
        f.fill("last", l.other, 2.0);
        f.after("unused_too", &["used"]);
        f.after("last", &["unused_too"]);
    });
    let plan = fused(&program);
    assert_eq!(names(&plan), ["only.used", "only.last"]);
    assert_eq!(plan.graphs()[0].body.edges[0].causes, [Cause::After { via: None }]);
    assert_eq!(names(&mega(&program)).len(), 4);
}

/// Protects: a guarded phase becomes one conditional node around its nodes, whatever passes are chosen.
#[test]
fn guards_become_conditionals() {
    let program = with_scalars(|p, flag| {
        let out = p.output::<f32>("out", [4]);
        let w = p.state::<f32>("w", [4], Init::Zeros);
        p.step("run", |s| {
            s.phase_if("sometimes", flag, |f| {
                f.fill("one", w, 1.0);
                f.map_to("two", w, w * 2.0f32);
            });
            s.phase("always", |f| f.copy("show", w, out));
        });
    });
    for fusion in FusionPlan::NAMES.map(|name| FusionPlan::named(name).expect("named")) {
        let plan = planned(&program, &fusion).expect("plannable");
        let guard = plan.units().values().find(|unit| unit.name == "sometimes.guard_sometimes").expect("a guard");
        let Work::If { then_body, else_body } = &guard.work else { panic!("{:?}", guard.work) };
        assert_eq!((then_body.units.len(), then_body.edges.len(), else_body.units.len()), (2, 1, 0));
    }
}

/// Protects: counts say what is launched: nothing is hidden in a graph that is not one.
#[test]
fn counts_tell_launches() {
    let program = layer(|f, l| _ = f.gemm("h", l.x.nt(l.w)).then_to(l.out, |acc| acc.relu()));
    let counts = |fusion: &FusionPlan| {
        let counts = Counts::of(&planned(&program, fusion).expect("plannable"));
        (counts.graphs, counts.launches, counts.edges, counts.levels)
    };
    assert_eq!(counts(&FusionPlan::debug()), (0, 2, 1, 2));
    assert_eq!(counts(&FusionPlan::phases()), (1, 1, 1, 2));
    assert_eq!(counts(&FusionPlan::mega()), (1, 1, 1, 2));
}

/// Protects: memory of one step is reused: a chain of maps needs the bytes of two buffers, whatever its length; but for plans without
/// graphs, which keep every temp for looking at.
#[test]
fn a_chain_of_temps_takes_two_buffers() {
    let mut p = Builder::new("reuse");
    let x = p.input::<f32>("x", [1024]);
    let out = p.output::<f32>("out", [1024]);
    p.step("run", |s| {
        s.phase("only", |f| {
            let mut value = x;
            for number in 0..50 {
                value = f.map(&format!("t{number}"), value + 1.0f32);
            }
            f.copy("show", value, out);
        });
    });
    let program = p.build().expect("valid");
    for name in FusionPlan::NAMES {
        let plan = planned(&program, &FusionPlan::named(name).expect("named")).expect("plannable");
        let buffers = if name == "debug" { 50 } else { 2 };
        assert_eq!(plan.arena().size(Region::Scratch), buffers * 4096, "{name}");
    }
}

/// Protects: what is used before and in a loop keeps its bytes for the whole loop, and so does the loop's own counter; what only
/// the body uses is reused in the body, and by what comes after the loop; a tapped temp keeps its bytes for ever.
#[test]
fn loops_and_taps_keep_their_bytes() {
    let mut p = Builder::new("keep");
    let x = p.input::<f32>("x", [64]);
    let total = p.state::<f32>("total", [64], Init::Zeros);
    let tapped = p.temp::<f32>("tapped", [64]);
    p.tap(tapped);
    p.step("run", |s| {
        s.phase("only", |f| {
            f.map_to("keep", tapped, x + 1.0f32);
            let before = f.map("before", tapped + 1.0f32);
            f.repeat("loop", stepgraph::builder::Bound::Const(3), None, None, |f| {
                let a = f.map("a", before * 2.0f32);
                let b = f.map("b", a * 2.0f32);
                let c = f.map("c", b * 2.0f32);
                f.map_to("sum", total, total + c);
            });
            let after = f.map("after", total * 2.0f32);
            f.map_to("end", total, after + 1.0f32);
        });
    });
    let plan = mega(&p.build().expect("valid"));
    let program = plan.program().program();
    let mut pieces: Vec<_> = ["tapped", "before", "a", "b", "c", "after"]
        .map(|name| plan.arena().buffers[program.buffer(name).expect("declared")].expect("used"))
        .to_vec();
    pieces.extend(plan.arena().workspaces.values().flatten());
    let [tapped, before, a, b, c, after, counter] = pieces[..] else { panic!("{pieces:?}") };
    let apart = |one: Placement, others: &[Placement]| others.iter().all(|other| !one.overlaps(other));
    assert!(apart(tapped, &[before, a, b, c, after, counter]));
    assert!(apart(before, &[a, b, c, counter]) && apart(counter, &[a, b, c]) && apart(b, &[a, c]));
    assert_eq!(a, c, "a has been read when c is written");
    assert!(!apart(after, &[before, a, b]), "the loop's bytes are free after it");
}

/// Protects: two programs that differ in anything that runs have different identities; the same one has the same.
#[test]
fn identity_moves_with_every_change() {
    let base = |edit: &dyn Fn(&mut Program)| {
        let mut program = one_kernel(&[4], |_| {}).program().clone();
        edit(&mut program);
        validate(program, Origins::default(), HostFns::new()).expect("valid")
    };
    let same = mega(&base(&|_| {})).identity();
    assert_eq!(same, mega(&base(&|_| {})).identity());
    assert_eq!(same.to_string().len(), 64);
    let edits: [&dyn Fn(&mut Program); 5] = [
        &|program| program.name.push('2'),
        &|program| {
            let id = KernelId::new(0);
            let text = format!("// changed\n{}", program.kernels[id].source.text);
            program.kernels[id].source.text = text.into();
        },
        &|program| program.kernels[KernelId::new(0)].shared.base = 16,
        &|program| program.buffers[BufferId::new(0)].name.push('2'),
        &|program| {
            let (name, writer, init) = ("s".into(), Writer::Host, ConstValue::F32(f32::NAN));
            program.scalars.push(stepgraph::ir::Scalar { name, writer, init });
        },
    ];
    let mut seen = vec![same];
    for edit in edits {
        seen.push(mega(&base(edit)).identity());
    }
    let program = base(&|_| {});
    let options: [(FusionPlan, Target); 9] = [
        (FusionPlan::mega().repeated(Repeat::Unroll(2)), Target::default()),
        (FusionPlan::mega().repeated(Repeat::Unroll(3)), Target::default()),
        (FusionPlan::mega().repeated(Repeat::Loop(2)), Target::default()),
        (FusionPlan::mega().repeated(Repeat::Loop(3)), Target::default()),
        (FusionPlan::debug(), Target::default()),
        (FusionPlan::phases(), Target::default()),
        (FusionPlan { pdl: true, ..FusionPlan::mega() }, Target::default()),
        (FusionPlan { fuse: Fuse::All, ..FusionPlan::mega() }, Target::default()),
        (FusionPlan::mega(), Target { driver: 12_080, ..Target::default() }),
    ];
    for (fusion, target) in options {
        seen.push(program.plan("run", &fusion, &target, &Tuning::default()).expect("plannable").identity());
    }
    let parts = mega(&program).into_parts();
    let mut padded = parts.clone();
    padded.arena.sizes.insert(Region::Scratch, 256);
    seen.push(StepPlan::from_parts(padded).expect("a larger arena is fine").identity());
    let distinct: std::collections::HashSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len());
}
