use super::{Base, boxed, breaks, copy, full, load, map, set_cell, shape, store};
use crate::ir::{
    Combiner, ConstValue, ExprBuilder, ExprOp, IndexTerm, Map, NodeOp, Reduce, Scatter, ScatterRule, Shape, Store,
    Target,
};

const FLOAT: ExprOp = ExprOp::Const(ConstValue::F32(1.0));

/// Protects: results of one node do not overwrite each other in some order.
#[test]
fn overlapping_outputs() {
    let two = |first: Store, second: Store, space: Shape| {
        let mut builder = ExprBuilder::new();
        let values = [builder.push(FLOAT), builder.push(ExprOp::Const(ConstValue::F32(2.0)))];
        Base::with([NodeOp::Map(Map { space, expr: builder.finish(&values), stores: vec![first, second] })])
    };
    let columns = |start| store(boxed("s", &[(0, 4), (start, 4)]));
    two(columns(0), columns(4), shape(&[4, 4])).keeps_every_rule();
    breaks!(two(columns(0), columns(3), shape(&[4, 4])), OverlappingOutputs, "out0 and out1 overlap in `s`");
    let cell = || Store { target: Target::Scalar(Base::new().cell("f")), scatter: None };
    breaks!(two(cell(), cell(), Shape::SCALAR), OverlappingOutputs, "overlap in `f`");
}

/// Protects: a map reads what it writes only at the element's own place, where no other thread writes.
#[test]
fn maps_in_place() {
    let s = full("s");
    let reading = |index: Vec<IndexTerm>| Base::with([map(s, [ExprOp::Load { view: s, index }])]);
    reading(vec![IndexTerm::Axis(0), IndexTerm::Axis(1)]).keeps_every_rule();
    breaks!(reading(vec![IndexTerm::Fixed(0), IndexTerm::Axis(1)]), ReadsOwnOutput, "expr reads memory of `s`");
    let shifted = map(boxed("s", &[(0, 2), (0, 8)]), [load(boxed("s", &[(1, 2), (0, 8)]))]);
    breaks!(Base::with([shifted]), ReadsOwnOutput, "at another place");
    let apart = map(boxed("s", &[(0, 2), (0, 8)]), [load(boxed("s", &[(2, 2), (0, 8)]))]);
    Base::with([apart]).keeps_every_rule();
    let row = boxed("s", &[(3, 1), (0, 8)]);
    let one_row = ExprOp::Load { view: row, index: vec![IndexTerm::Fixed(0), IndexTerm::Axis(1)] };
    Base::with([map(row, [one_row])]).keeps_every_rule();
}

/// Protects: a scattered store may land anywhere, so that nothing of its view is read.
#[test]
fn scattered_stores_are_never_in_place() {
    let mut builder = ExprBuilder::new();
    let s = full("s");
    let values = [builder.push(load(s)), builder.push(ExprOp::Index(0))];
    let expr = builder.finish(&values);
    let index = vec![IndexTerm::Value(expr.roots()[1]), IndexTerm::Axis(1)];
    let scatter = Some(Scatter { index, rule: Some(ScatterRule::Unique) });
    let stores = vec![Store { target: Target::View(s), scatter }];
    breaks!(Base::with([NodeOp::Map(Map { space: shape(&[4, 8]), expr, stores })]), ReadsOwnOutput, "`s`");
}

/// Protects: a counter can move itself on; a reduction reads its result's old value only when it finishes.
#[test]
fn scalars_and_reductions_in_place() {
    let base = Base::new();
    let f = base.cell("f");
    let cell = || vec![Store { target: Target::Scalar(f), scatter: None }];
    let own = || super::expr([ExprOp::Scalar(f)]);
    Base::with([NodeOp::Map(Map { space: Shape::SCALAR, expr: own(), stores: cell() })]).keeps_every_rule();
    let reduce = |expr, finish| {
        let (space, axes, combiner) = (shape(&[4, 8]), vec![0, 1], Combiner::Sum);
        Base::with([NodeOp::Reduce(Reduce { space, axes, combiner, expr, finish, stores: cell() })])
    };
    reduce(super::expr([FLOAT]), own()).keeps_every_rule();
    breaks!(reduce(own(), super::expr([ExprOp::Acc])), ReadsOwnOutput, "`f`");
}

/// Protects: a copy does not read what it writes.
#[test]
fn overlapping_copies() {
    let rows = |start| boxed("s", &[(start, 2), (0, 8)]);
    breaks!(Base::with([copy(rows(0), rows(1))]), ReadsOwnOutput, "from reads memory of `s`");
    Base::with([copy(rows(0), rows(2))]).keeps_every_rule();
}

/// Protects: what the host writes, nodes only read.
#[test]
fn writes_to_what_is_the_hosts() {
    breaks!(Base::with([copy(full("s"), full("x"))]), WritesInput, "writes the input `x`");
    breaks!(Base::with([set_cell("on")]), WritesHostScalar, "`on`, whose writer is the host");
}
