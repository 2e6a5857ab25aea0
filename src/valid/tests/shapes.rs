use super::{Base, breaks, copy, fill, full, map, set_cell, shape};
use crate::ir::{AxisRange, ConstValue, DType, ExprOp, Group, Init, NodeOp, ProgramError, Role, Shape, View};

/// Protects: extents that a kernel cannot index are refused where they are declared, and only there.
#[test]
fn absurd_extents() {
    for dims in [&[0][..], &[4, 0], &[1 << 31], &[u32::MAX, 0, u32::MAX], &[65536, 65536], &[1 << 16, 1 << 16, 1, 0]] {
        let mut base = Base::new();
        let id = base.buffer("big", Role::State, DType::F32, dims);
        base.add(NodeOp::Fill { to: View::full(id, &shape(dims)), value: ConstValue::F32(0.0) });
        breaks!(base, BadExtent, "each extent, and their product");
    }
    let mut space = Base::with([map(full("h"), [ExprOp::Const(ConstValue::F32(0.0))])]);
    if let NodeOp::Map(map) = &mut space.step().nodes[crate::entity::NodeId::from_u32(0)].op {
        map.space = shape(&[4, 0]);
    }
    breaks!(space, BadExtent, "the index space of n0");
    Base::with([set_cell("n")]).keeps_every_rule();
    let mut group = Base::with([fill(full("h"))]);
    let members = ["g1", "g2"].map(|name| group.buffer(name, Role::State, DType::F32, &[1 << 30])).to_vec();
    group.program.groups.push(Group { name: "g".into(), members });
    breaks!(group, BadExtent, "`g` has the shape [2147483648]");
}

/// Protects: integers have no random initial values.
#[test]
fn random_integers() {
    let mut base = Base::with([fill(full("h"))]);
    let id = base.id("places");
    base.program.buffers[id].init = Init::Normal { std: 1.0 };
    breaks!(base, UnsupportedType, "random initial values need a float buffer");
}

/// Protects: an initial value that the buffer cannot hold is no other value, and no spread is below zero or infinite.
#[test]
fn initial_values_that_do_not_fit() {
    let with = |name: &str, init: Init| {
        let mut base = Base::with([fill(full("h"))]);
        let id = base.id(name);
        base.program.buffers[id].init = init;
        base
    };
    for bound in [-1.0, f32::NAN, f32::INFINITY] {
        breaks!(with("w", Init::Uniform { bound }), BadInit, "a bound of at least 0");
        breaks!(with("w", Init::Normal { std: bound }), BadInit, "a deviation of at least 0");
    }
    for value in [-1.0, 4_294_967_296.0, f32::NAN] {
        breaks!(with("places", Init::Constant(value)), BadInit, "a value that u32 holds");
    }
    for value in [0.0, -0.5, 7.9, 4_294_967_040.0] {
        with("places", Init::Constant(value)).keeps_every_rule();
    }
    with("w", Init::Constant(f32::NAN)).keeps_every_rule();
    with("w", Init::Normal { std: 0.0 }).keeps_every_rule();
}

/// Protects: a group can be laid out as one array of one type that one owner initialises.
#[test]
fn groups_of_unlike_buffers() {
    let with = |members: &[&str]| {
        let mut base = Base::with([fill(full("h"))]);
        base.buffer("h16", Role::Param, DType::Bf16, &[4]);
        let members = members.iter().map(|name| base.id(name)).collect();
        base.program.groups.push(Group { name: "g".into(), members });
        base
    };
    with(&["w"]).keeps_every_rule();
    breaks!(with(&["w", "s"]), BadGroup, "`s` has the role state, but `w` has the role param");
    breaks!(with(&["w", "h16"]), BadGroup, "`h16` is bf16, but `w` is f32");
    breaks!(with(&["w", "w"]), BadGroup, "`w` is in group `g` already");
    breaks!(with(&[]), Empty, "group `g` is empty");
    let mut twice = with(&["w"]);
    let member = twice.id("w");
    twice.program.groups.push(Group { name: "other".into(), members: vec![member] });
    breaks!(twice, BadGroup, "group `other`: `w` is in group `g` already");
}

/// Protects: no node reaches outside a buffer.
#[test]
fn views_outside_their_buffers() {
    let ranges = |ranges: &[(u32, u32, bool)]| {
        let ranges: Vec<_> = ranges.iter().map(|&(start, len, dropped)| AxisRange { start, len, dropped }).collect();
        View::from_ranges(Base::new().id("s"), &ranges).expect("few axes")
    };
    for (view, text) in [
        (ranges(&[(0, 5, false), (0, 8, false)]), "[0:5, 0:8]"),
        (ranges(&[(0, 4, false), (u32::MAX, u32::MAX, false)]), "[0:4, 4294967295:8589934590]"),
        (ranges(&[(0, 0, false), (0, 8, false)]), "[0:0, 0:8]"),
        (ranges(&[(4, 1, true), (0, 8, false)]), "[4, 0:8]"),
        (ranges(&[(0, 2, true), (0, 8, false)]), "[0:2, 0:8]"),
        (ranges(&[(0, 4, false)]), "[0:4]"),
        (ranges(&[(0, 4, false), (0, 8, false), (0, 1, false)]), "[0:4, 0:8, 0:1]"),
        (View::full(Base::new().id("s"), &Shape::SCALAR), "[]"),
    ] {
        let error = Base::with([fill(view)]).one_error();
        assert!(matches!(error, ProgramError::ViewOutOfBounds { .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("takes {text} of `s`, whose shape is [4, 8]")), "{error}");
    }
}

/// Protects: copies and fills neither reshape nor convert.
#[test]
fn copies_and_fills_that_do_not_fit() {
    let rows = super::boxed("y", &[(0, 2), (0, 8)]);
    breaks!(Base::with([copy(full("x"), rows)]), ShapeMismatch, "to has the shape [2, 8], expected [4, 8]");
    let mut converting = Base::new();
    let half = converting.buffer("half", Role::State, DType::Bf16, &[4, 8]);
    converting.add(copy(full("x"), View::full(half, &shape(&[4, 8]))));
    breaks!(converting, TypeMismatch, "to is bf16, expected f32");
    let integer = NodeOp::Fill { to: full("h"), value: ConstValue::U32(0) };
    breaks!(Base::with([integer]), TypeMismatch, "the value is u32, expected f32");
    let mut half = Base::new();
    let id = half.buffer("half", Role::State, DType::Bf16, &[4]);
    half.add(NodeOp::Fill { to: View::full(id, &shape(&[4])), value: ConstValue::F32(1.0) });
    half.keeps_every_rule();
}
