//! Generated kernels against the host executor, without a GPU: the CUDA C is compiled as C++, run thread by thread, and must
//! leave the same bits. Both use one mathematics library, so that even `exp` must agree.
//!
//! Skipped, with a line that says so, where there is no g++ (or no Linux, whose fibers the emulated device uses).

#[path = "../common/mod.rs"]
mod common;
mod emulator;

use std::process::Command;

use emulator::{Case, compare};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use stepgraph::Builder;
use stepgraph::builder::{Body, Bound};
use stepgraph::entity::{EntityRef, NodeId, PrimaryMap};
use stepgraph::handle::Tensor;
use stepgraph::ir::{
    BinaryOp, Buffer, Combiner, CompareOp, DType, Expr, ExprBuilder, ExprOp, IndexTerm, Init, Map, Node, NodeOp,
    Origins, Phase, Program, Reduce, Role, ScatterRule, Shape, Step, Store, Target, UnaryOp, ValueType, View,
};
use stepgraph::kernel::HostFns;
use stepgraph::plan::{FusionPlan, Repeat, Target as PlanTarget, Tuning};
use stepgraph::valid::{ValidProgram, validate};

/// Whether the emulated device can be built here.
#[expect(clippy::print_stderr, reason = "a skipped test must say so")]
fn is_possible() -> bool {
    let found = cfg!(target_os = "linux") && Command::new("g++").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: the emulated device needs g++ and Linux");
    }
    found
}

/// Values at which operations differ: zeros of both signs, units, halves, limits of integers, infinities, NaN.
fn special(dtype: DType) -> Vec<u32> {
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -2.5,
        3.0,
        1e-40,
        1e30,
        -1e30,
        2_147_483_600.0,
        4.3e9,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        0.1,
    ];
    match dtype {
        DType::F32 | DType::Bf16 => floats.map(f32::to_bits).to_vec(),
        DType::I32 | DType::U32 => {
            vec![
                0,
                1,
                2,
                3,
                7,
                31,
                32,
                33,
                100,
                0x7fff_ffff,
                0x8000_0000,
                0x8000_0001,
                u32::MAX,
                u32::MAX - 6,
                64,
                1 << 20,
            ]
        }
    }
}

/// Buffer `number` of a pair gets every special value against every one of the other buffer.
fn special_pairs(dtype: DType, number: u64, count: usize) -> Vec<u8> {
    let values = special(dtype);
    let place = |at: usize| if number == 0 { at / values.len() } else { at % values.len() };
    (0..count).flat_map(|at| narrowed(dtype, values[place(at) % values.len()])).collect()
}

/// Numbers that look random and are the same everywhere: floats in [-2, 2), small integers.
fn plain_numbers(dtype: DType, number: u64, count: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 40).expect("24 bits")
    };
    let bits = |word: u32| match dtype {
        #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
        DType::F32 | DType::Bf16 => (word as f32 / 4_194_304.0 - 2.0).to_bits(),
        DType::I32 | DType::U32 => word % 64,
    };
    (0..count).flat_map(|_| narrowed(dtype, bits(next()))).collect()
}

fn narrowed(dtype: DType, bits: u32) -> Vec<u8> {
    match dtype {
        DType::Bf16 => half::bf16::from_f32(f32::from_bits(bits)).to_le_bytes().to_vec(),
        _ => bits.to_le_bytes().to_vec(),
    }
}

fn buffer(name: &str, dtype: DType, shape: Shape) -> Buffer {
    Buffer { name: name.into(), dtype, shape, role: Role::State, init: Init::Zeros, tap: false }
}

/// A program with one node over these buffers, if it keeps the rules.
fn single(buffers: Vec<Buffer>, op: NodeOp) -> Option<ValidProgram> {
    let mut program = Program { name: "case".into(), ..Program::default() };
    program.buffers.extend(buffers);
    let mut nodes = PrimaryMap::new();
    let node = nodes.push(Node { name: "node".into(), op, after: Vec::new() });
    let mut phases = PrimaryMap::new();
    phases.push(Phase { name: "main".into(), nodes: vec![node], ..Phase::default() });
    program.steps.push(Step { name: "run".into(), variants: Vec::new(), phases, nodes });
    validate(program, Origins::default(), HostFns::default()).ok()
}

/// The loads of buffers `0 .. count` at the element's own place.
fn loads(b: &mut ExprBuilder, program: &[Buffer]) -> Vec<stepgraph::entity::ValueId> {
    let load = |(number, buffer): (usize, &Buffer)| {
        let view = View::full(stepgraph::entity::BufferId::new(number), &buffer.shape);
        let index = (0..buffer.shape.rank()).map(|axis| IndexTerm::Axis(u8::try_from(axis).expect("few"))).collect();
        b.push(ExprOp::Load { view, index })
    };
    program.iter().enumerate().map(load).collect()
}

/// Protects: every operation gives the host's bits on every type and at every special value, and is never undefined in C.
#[test]
fn operations_have_the_hosts_bits() {
    if !is_possible() {
        return;
    }
    let mut ops: Vec<(String, ExprOp)> = Vec::new();
    let (a, b) = (stepgraph::entity::ValueId::new(0), stepgraph::entity::ValueId::new(1));
    ops.extend(UnaryOp::ALL.map(|(op, name)| (name.to_owned(), ExprOp::Unary(op, a))));
    ops.extend(BinaryOp::ALL.map(|(op, name)| (name.to_owned(), ExprOp::Binary(op, a, b))));
    ops.extend(CompareOp::ALL.map(|(op, name)| (name.to_owned(), ExprOp::Compare(op, a, b))));
    let types = [ValueType::F32, ValueType::I32, ValueType::U32, ValueType::Bool];
    ops.extend(types.map(|to| (format!("cast to {}", to.name()), ExprOp::Cast(to, a))));
    let mut cases = Vec::new();
    for (dtype, (name, op)) in DType::ALL.into_iter().flat_map(|dtype| ops.iter().map(move |op| (dtype, op))) {
        let Some(program) = has_meaning(op, dtype).then(|| operation(dtype, op)).flatten() else { continue };
        cases.extend(Case::new(format!("{name} of {dtype}"), program, special_pairs));
    }
    assert!(cases.len() > 80, "only {} cases are valid", cases.len());
    compare(&cases);
}

/// Whether the operation is defined for the type; validation may allow less.
fn has_meaning(op: &ExprOp, dtype: DType) -> bool {
    let float = ValueType::of(dtype) == ValueType::F32;
    match op {
        ExprOp::Unary(UnaryOp::Not, _) => !float,
        ExprOp::Unary(UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Relu | UnaryOp::Floor | UnaryOp::IsFinite, _) => true,
        ExprOp::Unary(..) | ExprOp::Binary(BinaryOp::Pow, ..) => float,
        ExprOp::Binary(BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr, ..) => !float,
        _ => true,
    }
}

fn operation(dtype: DType, op: &ExprOp) -> Option<ValidProgram> {
    let out = match op {
        ExprOp::Compare(..) | ExprOp::Unary(UnaryOp::IsFinite, _) => DType::U32,
        ExprOp::Cast(ValueType::F32, _) => DType::F32,
        ExprOp::Cast(ValueType::I32, _) => DType::I32,
        ExprOp::Cast(..) => DType::U32,
        _ => dtype,
    };
    let shape = Shape::new(&[256]).expect("one axis");
    let inputs = vec![buffer("a", dtype, shape), buffer("b", dtype, shape)];
    let mut b = ExprBuilder::new();
    loads(&mut b, &inputs);
    let value = b.push(op.clone());
    // Truth values cannot be stored.
    let value = match op {
        ExprOp::Compare(..) | ExprOp::Unary(UnaryOp::IsFinite, _) | ExprOp::Cast(ValueType::Bool, _) => {
            b.push(ExprOp::Cast(ValueType::U32, value))
        }
        _ => value,
    };
    let target = View::full(stepgraph::entity::BufferId::new(2), &shape);
    let map = Map {
        space: shape,
        expr: b.finish(&[value]),
        stores: vec![Store { target: Target::View(target), scatter: None }],
    };
    single(inputs.into_iter().chain([buffer("out", out, shape)]).collect(), NodeOp::Map(map))
}

/// Protects: reductions of every layout, lane count and chunking add in the order that the host adds in.
#[test]
fn reductions_have_the_hosts_bits() {
    if !is_possible() {
        return;
    }
    let shapes: [(&[u32], &[u8]); 15] = [
        (&[1], &[0]),
        (&[3], &[0]),
        (&[40_000], &[0]),
        (&[5, 7], &[1]),
        (&[64, 10], &[1]),
        (&[3, 300], &[1]),
        (&[1100, 300], &[1]),
        (&[2, 40_000], &[1]),
        (&[64, 10], &[0]),
        (&[33, 70], &[0]),
        (&[40_000, 3], &[0]),
        (&[6, 5, 4], &[1]),
        (&[6, 5, 4], &[0, 2]),
        (&[6, 5, 4], &[0, 1, 2]),
        (&[9, 1], &[0]),
    ];
    let mut cases = Vec::new();
    for (dims, axes) in shapes {
        for (combiner, dtype) in [
            (Combiner::Sum, DType::F32),
            (Combiner::Sum, DType::I32),
            (Combiner::Max, DType::Bf16),
            (Combiner::Argmax, DType::F32),
            (Combiner::LogSumExp, DType::F32),
        ] {
            if combiner == Combiner::Argmax && axes.len() > 1 {
                continue;
            }
            let program = reduction(dims, axes, combiner, dtype).expect("valid");
            let name = format!("{} of {dims:?} {dtype} over {axes:?}", combiner.name());
            // Ties, NaN and infinities where lanes and chunks are many or few; plain numbers where sums would drown in them.
            let fill = if dtype == DType::F32 && combiner == Combiner::Sum { plain_numbers } else { special_pairs };
            cases.extend(Case::new(name, program, fill));
        }
    }
    compare(&cases);
}

fn reduction(dims: &[u32], axes: &[u8], combiner: Combiner, dtype: DType) -> Option<ValidProgram> {
    let out = match (combiner, dtype) {
        (Combiner::Argmax, _) => DType::U32,
        (_, DType::Bf16) => DType::F32,
        (_, dtype) => dtype,
    };
    let space = Shape::new(dims).expect("few axes");
    let inputs = vec![buffer("x", dtype, space)];
    let mut b = ExprBuilder::new();
    let loaded = loads(&mut b, &inputs);
    let expr = b.finish(&loaded);
    let mut b = ExprBuilder::new();
    let acc = b.push(ExprOp::Acc);
    let kept = space.without(|axis| axes.iter().any(|&reduced| usize::from(reduced) == axis));
    let target = View::full(stepgraph::entity::BufferId::new(1), &kept);
    let stores = vec![Store { target: Target::View(target), scatter: None }];
    let finish: Expr = b.finish(&[acc]);
    let reduce = Reduce { space, axes: axes.to_vec(), combiner, expr, finish, stores };
    single(inputs.into_iter().chain([buffer("out", out, kept)]).collect(), NodeOp::Reduce(reduce))
}

/// Protects: whole random programs of maps, reductions, copies and fills, with their views, gathers, scatters and draws.
#[test]
fn random_programs_have_the_hosts_bits() {
    if !is_possible() {
        return;
    }
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let recipes = common::random::recipes();
    let mut cases = Vec::new();
    for number in 0..60 {
        let (program, _) = recipes.new_tree(&mut runner).expect("a recipe").current().build();
        let Some(program) = generated_part(program) else { continue };
        cases.extend(Case::new(format!("random program {number}"), program, plain_numbers));
    }
    assert!(cases.len() > 30, "only {} programs are left", cases.len());
    compare(&cases);
}

/// Protects: setters decide as the host does: both branches of an `If`, each body of a `Switch` and none, loops that end on their
/// bound, on their flag and before they begin, nested, with their index.
#[test]
fn conditionals_have_the_hosts_bits() {
    if !is_possible() {
        return;
    }
    let mut cases = Vec::new();
    for value in 0..4u32 {
        let mut p = Builder::new("control");
        let (choice, bound) = (p.host_scalar("choice", value), p.host_scalar("bound", value * 3));
        let [index, until, inner, count, odd] =
            ["index", "until", "inner", "count", "odd"].map(|name| p.device_scalar(name, 7u32));
        let x = p.state::<f32>("x", [70], Init::Zeros);
        let trace = p.state::<u32>("trace", [64], Init::Zeros);
        p.step("run", |s| {
            s.phase("main", |f| {
                f.when_else("either", choice, |b| add(b, "up", x, 1.0), |b| add(b, "down", x, -1.0));
                f.switch("which", choice, &mut [&mut |b| add(b, "zero", x, 0.5), &mut |b| add(b, "one", x, 0.25)]);
                f.repeat("outer", Bound::Scalar(bound), Some(index), Some(until), |b| {
                    b.map_node("note")
                        .over([1])
                        .scatter(trace, [index.val().into()], ScatterRule::Unique, index + 100u32)
                        .done();
                    b.set("parity", odd, index % 2u32);
                    b.when("if_odd", odd, |c| add(c, "shift", x, 0.125));
                    b.repeat("nested", Bound::Const(3), Some(inner), None, |c| c.set("count", count, count + inner));
                    b.set("enough", until, index.val().equal(6u32).to_u32());
                });
            });
        });
        let program = p.build().expect("valid");
        cases.extend(Case::new(format!("choice {value}"), program, plain_numbers));
    }
    compare(&cases);
}

fn add(f: &mut Body<'_>, name: &str, x: Tensor<f32>, amount: f32) {
    f.map_to(name, x, x + amount);
}

/// Protects: steps in a loop on the device, with their setters and the names that looping gives them.
#[test]
fn looped_programs_have_the_hosts_bits() {
    if !is_possible() {
        return;
    }
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let recipes = common::random::recipes();
    let mut cases = Vec::new();
    for number in 0..20 {
        let (mut program, _) = recipes.new_tree(&mut runner).expect("a recipe").current().build();
        for buffer in program.buffers.values_mut().filter(|buffer| buffer.role == Role::Input) {
            buffer.role = Role::State;
        }
        let Some(program) = generated_part(program) else { continue };
        let (step, fusion) = (&program.program().steps.values().next().expect("one step").name, FusionPlan::mega());
        let looped = fusion.repeated(Repeat::Loop(3));
        let plan = program.plan(step, &looped, &PlanTarget::default(), &Tuning::default()).expect("it plans");
        cases.extend(Case::new(format!("random program {number}"), plan.program().clone(), plain_numbers));
    }
    assert!(cases.len() > 10, "only {} programs are left", cases.len());
    compare(&cases);
}

/// The first step of a program, in its first form, with nothing but nodes that become generated kernels. Temps become state, so
/// that a node whose producer is gone still reads something.
fn generated_part(program: Program) -> Option<ValidProgram> {
    let step = program.steps.values().next()?.clone();
    let form = step.forms().into_iter().next().flatten().map(str::to_owned);
    let mut part = Program { steps: PrimaryMap::new(), ..program };
    for buffer in part.buffers.values_mut().filter(|buffer| buffer.role != Role::Input) {
        (buffer.role, buffer.tap) = (Role::State, false);
    }
    let (mut nodes, mut phases) = (PrimaryMap::<NodeId, Node>::new(), PrimaryMap::new());
    for (_, phase) in step.phases_in(form.as_deref()) {
        let kept =
            phase.nodes.iter().map(|&node| &step.nodes[node]).filter(|node| {
                matches!(node.op, NodeOp::Map(_) | NodeOp::Reduce(_)) || is_generated_box(&part, &node.op)
            });
        let kept: Vec<_> = kept.map(|node| nodes.push(Node { after: Vec::new(), ..node.clone() })).collect();
        if !kept.is_empty() {
            phases.push(Phase { name: phase.name.clone(), nodes: kept, ..Phase::default() });
        }
    }
    if nodes.is_empty() {
        return None;
    }
    part.steps.push(Step { name: step.name, variants: Vec::new(), phases, nodes });
    validate(part, Origins::default(), HostFns::default()).ok()
}

/// Whether a copy or fill needs a kernel: the emulated device has no memcpy nodes.
fn is_generated_box(program: &Program, op: &NodeOp) -> bool {
    match op {
        NodeOp::Copy { from, to } => {
            let (a, b) = (&program.buffers[from.buffer].shape, &program.buffers[to.buffer].shape);
            stepgraph::codegen::copy_boxes(from, a, to, b).is_none()
        }
        NodeOp::Fill { to, .. } => stepgraph::codegen::fill_box(to, &program.buffers[to.buffer].shape).is_none(),
        _ => false,
    }
}
