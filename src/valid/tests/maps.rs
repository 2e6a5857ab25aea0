use super::{Base, breaks, full, load, map, shape, store, value};
use crate::ir::{
    BinaryOp, Combiner, CompareOp, ConstValue, DType, Expr, ExprBuilder, ExprOp, IndexTerm, Map, NodeOp, ProgramError,
    Reduce, Role, Scatter, ScatterRule, Shape, Store, Target, View,
};

const FLOAT: ExprOp = ExprOp::Const(ConstValue::F32(1.0));

fn sum_of_rows() -> Reduce {
    Reduce {
        space: shape(&[4, 8]),
        axes: vec![1],
        combiner: Combiner::Sum,
        expr: super::expr([load(full("x"))]),
        finish: super::expr([ExprOp::Acc]),
        stores: vec![],
    }
}

/// A base with a state `r` of this type and shape, and a reduction into it.
fn reduced(dtype: DType, dims: &[u32], change: impl FnOnce(&mut Reduce)) -> Base {
    let mut base = Base::new();
    let r = base.buffer("r", Role::State, dtype, dims);
    let mut reduce = sum_of_rows();
    reduce.stores = vec![store(View::full(r, &shape(dims)))];
    change(&mut reduce);
    base.add(NodeOp::Reduce(reduce));
    base
}

/// Protects: a reduction names axes that its space has, each once.
#[test]
fn axes_that_cannot_be_reduced() {
    reduced(DType::F32, &[4], |_| {}).keeps_every_rule();
    breaks!(reduced(DType::F32, &[4], |reduce| reduce.axes = vec![]), BadAxes, "at least one axis");
    breaks!(reduced(DType::F32, &[4], |reduce| reduce.axes = vec![2]), BadAxes, "axes that the space has");
    breaks!(reduced(DType::F32, &[4], |reduce| reduce.axes = vec![1, 1]), BadAxes, "each axis once");
    breaks!(reduced(DType::F32, &[4], |reduce| reduce.axes = vec![1, 0]), BadAxes, "ascending");
    let argmax = |reduce: &mut Reduce| {
        reduce.combiner = Combiner::Argmax;
        reduce.axes = vec![0, 1];
    };
    breaks!(reduced(DType::U32, &[], argmax), BadAxes, "exactly one axis");
}

/// Protects: combiners combine what they have a meaning for, and argmax gives an index.
#[test]
fn combiners_have_types() {
    reduced(DType::U32, &[4], |reduce| reduce.combiner = Combiner::Argmax).keeps_every_rule();
    let argmax_as_float = reduced(DType::F32, &[4], |reduce| reduce.combiner = Combiner::Argmax);
    breaks!(argmax_as_float, TypeMismatch, "the value for `r` is u32, expected f32");
    let integers = reduced(DType::U32, &[4], |reduce| {
        reduce.expr = super::expr([ExprOp::Index(0)]);
        reduce.combiner = Combiner::LogSumExp;
    });
    breaks!(integers, ExprType, "`logsumexp` of u32");
    let truths = reduced(DType::F32, &[4], |reduce| {
        reduce.expr = super::expr([FLOAT, ExprOp::Compare(CompareOp::Eq, value(0), value(0))]);
    });
    breaks!(truths, ExprType, "`sum` of bool");
}

/// Protects: an expression gives one value per store, then the places of scattered stores, and nothing else.
#[test]
fn results_and_stores_are_counted() {
    let none = reduced(DType::F32, &[4], |reduce| reduce.expr = Expr::default());
    breaks!(none, ResultCount, "expr has 0 results, expected 1");
    let finish = reduced(DType::F32, &[4], |reduce| reduce.finish = Expr::default());
    breaks!(finish, ResultCount, "finish has 0 results");
    let two = Map { space: shape(&[4, 8]), expr: two_results(), stores: vec![store(full("h"))] };
    breaks!(Base::with([NodeOp::Map(two)]), ResultCount, "expr has 2 results, expected 1 and 0 places");
    let nowhere = Map { space: shape(&[4, 8]), expr: super::expr([FLOAT]), stores: vec![] };
    breaks!(Base::with([NodeOp::Map(nowhere)]), Empty, "map `n0` is empty");
}

fn two_results() -> Expr {
    let mut builder = ExprBuilder::new();
    let values = [builder.push(FLOAT), builder.push(ExprOp::Const(ConstValue::F32(2.0)))];
    builder.finish(&values)
}

/// Protects: results have the shape and type of where they go.
#[test]
fn results_fit_their_targets() {
    let rows = super::boxed("h", &[(0, 2), (0, 8)]);
    let smaller = Map { space: shape(&[4, 8]), expr: super::expr([FLOAT]), stores: vec![store(rows)] };
    breaks!(Base::with([NodeOp::Map(smaller)]), ShapeMismatch, "`h` has the shape [2, 8], expected [4, 8]");
    breaks!(Base::with([map(full("h"), [ExprOp::Index(0)])]), TypeMismatch, "the value for `h` is u32, expected f32");
    let truth = [FLOAT, ExprOp::Compare(CompareOp::Eq, value(0), value(0))];
    breaks!(Base::with([map(full("h"), truth)]), TypeMismatch, "is bool, expected f32");

    let to_scalar = |space: Shape, scatter| {
        let stores = vec![Store { target: Target::Scalar(Base::new().cell("f")), scatter }];
        Base::with([NodeOp::Map(Map { space, expr: super::expr([FLOAT]), stores })])
    };
    to_scalar(Shape::SCALAR, None).keeps_every_rule();
    to_scalar(shape(&[1, 1]), None).keeps_every_rule();
    breaks!(to_scalar(shape(&[2]), None), ShapeMismatch, "[2], expected a single element");
    let scatter = Scatter { index: vec![], rule: Some(ScatterRule::Unique) };
    breaks!(to_scalar(Shape::SCALAR, Some(scatter)), BadIndex, "none: it is a scalar");
}

fn scattered(index: Vec<IndexTerm>, rule: Option<ScatterRule>) -> Base {
    let mut builder = ExprBuilder::new();
    let (value, place) = (builder.push(FLOAT), builder.push(ExprOp::Index(0)));
    let stores = vec![Store { target: Target::View(full("s")), scatter: Some(Scatter { index, rule }) }];
    let has_place =
        stores[0].scatter.iter().flat_map(|scatter| &scatter.index).any(|term| matches!(term, IndexTerm::Value(_)));
    let roots = if has_place { vec![value, place] } else { vec![value] };
    let expr = builder.finish(&roots);
    Base::with([NodeOp::Map(Map { space: shape(&[8]), expr, stores })])
}

/// Protects: where scattered elements may meet, the program says what then holds.
#[test]
fn scattered_stores() {
    let unique = Some(ScatterRule::Unique);
    let place = || IndexTerm::Value(value(1));
    scattered(vec![place(), IndexTerm::Axis(0)], unique).keeps_every_rule();
    breaks!(scattered(vec![place(), IndexTerm::Axis(0)], None), ScatterWithoutRule, "`unique` or `same_value`");
    breaks!(scattered(vec![place()], unique), BadIndex, "1 terms");
    breaks!(scattered(vec![place(), IndexTerm::Axis(1)], unique), BadIndex, "axis 1");
    breaks!(scattered(vec![place(), IndexTerm::Fixed(8)], unique), BadIndex, "8 along axis 1");
    breaks!(scattered(vec![IndexTerm::Axis(0), IndexTerm::Fixed(0)], unique), ShapeMismatch, "[4, 8], expected [8, 8]");
    let mut builder = ExprBuilder::new();
    let float = builder.push(FLOAT);
    let expr = builder.finish(&[float, float]);
    let index = vec![IndexTerm::Value(expr.roots()[1]), IndexTerm::Axis(0)];
    let stores = vec![Store { target: Target::View(full("s")), scatter: Some(Scatter { index, rule: unique }) }];
    let by_float = Base::with([NodeOp::Map(Map { space: shape(&[8]), expr, stores })]);
    breaks!(by_float, BadIndex, "a value of type f32");
}

/// Protects: a generated kernel's arguments fit in one launch.
#[test]
fn nodes_that_touch_too_much() {
    let many = |count: u32| {
        let mut base = Base::new();
        let mut ops = vec![FLOAT];
        for at in 0..count {
            let id = base.buffer(&format!("b{at}"), Role::State, DType::F32, &[4, 8]);
            ops.push(load(View::full(id, &shape(&[4, 8]))));
        }
        let loads = ops.len();
        // A balanced tree stays within the depth limit.
        let mut level: Vec<_> = (0..loads).collect();
        while level.len() > 1 {
            level = level
                .chunks(2)
                .map(|pair| match pair {
                    [a, b] => {
                        ops.push(ExprOp::Binary(BinaryOp::Add, value(*a), value(*b)));
                        ops.len() - 1
                    }
                    _ => pair[0],
                })
                .collect();
        }
        base.add(map(full("h"), ops));
        base
    };
    many(499).keeps_every_rule();
    let error = many(500).one_error();
    assert!(matches!(error, ProgramError::TooManyOperands { found: 501, .. }), "{error:?}");
}
