use super::{Base, breaks, full, load, map, value};
use crate::ir::{
    BinaryOp, CompareOp, ConstValue, ExprOp, IndexTerm, MAX_DEPTH, NodeOp, ProgramError, UnaryOp, ValueType, View,
};

const FLOAT: ExprOp = ExprOp::Const(ConstValue::F32(1.0));
const INT: ExprOp = ExprOp::Const(ConstValue::I32(1));
const UINT: ExprOp = ExprOp::Const(ConstValue::U32(1));

/// A base whose one map evaluates the operations; the result is cast to f32 unless it is one.
fn with(ops: Vec<ExprOp>) -> Base {
    Base::with([map(full("h"), ops)])
}

/// As [`with`], with the last value cast to f32.
fn cast(mut ops: Vec<ExprOp>) -> Base {
    ops.push(ExprOp::Cast(ValueType::F32, value(ops.len() - 1)));
    with(ops)
}

/// Protects: every operation is accepted for exactly the types that its documentation names.
#[test]
fn operations_have_a_meaning_for_some_types_only() {
    let truth = |ops: &mut Vec<ExprOp>| {
        ops.push(ExprOp::Compare(CompareOp::Eq, value(ops.len() - 1), value(ops.len() - 1)));
    };
    for (of, literal) in
        [(ValueType::F32, FLOAT), (ValueType::I32, INT), (ValueType::U32, UINT), (ValueType::Bool, UINT)]
    {
        let start = || {
            let mut ops = vec![literal.clone()];
            if of == ValueType::Bool {
                truth(&mut ops);
            }
            ops
        };
        let at = value(start().len() - 1);
        for (op, name) in UnaryOp::ALL {
            let mut ops = start();
            ops.push(ExprOp::Unary(op, at));
            let fits = match op {
                UnaryOp::Neg | UnaryOp::Abs => of != ValueType::Bool,
                UnaryOp::Not => of != ValueType::F32,
                _ => of == ValueType::F32,
            };
            expect(cast(ops), fits, name);
        }
        for (op, name) in BinaryOp::ALL {
            let mut ops = start();
            ops.push(ExprOp::Binary(op, at, at));
            let fits = match op {
                BinaryOp::Pow => of == ValueType::F32,
                BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => of != ValueType::F32,
                BinaryOp::Shl | BinaryOp::Shr => of != ValueType::F32 && of != ValueType::Bool,
                _ => of != ValueType::Bool,
            };
            expect(cast(ops), fits, name);
        }
        for (op, symbol) in CompareOp::ALL {
            let mut ops = start();
            ops.push(ExprOp::Compare(op, at, at));
            let fits = of != ValueType::Bool || matches!(op, CompareOp::Eq | CompareOp::Ne);
            expect(cast(ops), fits, symbol);
        }
    }
}

#[track_caller]
fn expect(base: Base, fits: bool, op: &str) {
    if fits {
        base.keeps_every_rule();
        return;
    }
    let error = base.one_error();
    assert!(matches!(&error, ProgramError::ExprType { op: found, .. } if found == op), "{error:?}");
}

/// Protects: operands are never converted silently.
#[test]
fn operands_of_two_types() {
    let mixed = [
        cast(vec![FLOAT, INT, ExprOp::Binary(BinaryOp::Add, value(0), value(1))]),
        cast(vec![UINT, INT, ExprOp::Compare(CompareOp::Lt, value(0), value(1))]),
        cast(vec![
            UINT,
            FLOAT,
            ExprOp::Compare(CompareOp::Lt, value(0), value(0)),
            ExprOp::Select { condition: value(2), if_true: value(0), if_false: value(1) },
        ]),
    ];
    for base in mixed {
        breaks!(base, ExprType, "must have one type: cast one");
    }
    let condition = ExprOp::Select { condition: value(0), if_true: value(0), if_false: value(0) };
    breaks!(with(vec![FLOAT, condition]), ExprType, "its condition is a bool");
    let to_bool = vec![UINT, ExprOp::Cast(ValueType::Bool, value(0)), ExprOp::Cast(ValueType::F32, value(1))];
    breaks!(with(to_bool), ExprType, "compare with 0 instead");
}

/// Protects: Philox is keyed by integers, and has four words.
#[test]
fn philox_takes_integers() {
    let philox = |word| ExprOp::Philox { key: value(0), counter: value(0), element: value(0), stream: 0, word };
    cast(vec![UINT, philox(3)]).keeps_every_rule();
    breaks!(cast(vec![UINT, philox(4)]), ExprType, "the words 0 to 3");
    assert!(cast(vec![FLOAT, philox(0)]).errors().iter().all(|error| matches!(error, ProgramError::ExprType { .. })));
}

/// Protects: one fault is reported once, not again by everything that stands on it.
#[test]
fn one_fault_is_reported_once() {
    let mut ops = vec![FLOAT, INT, ExprOp::Binary(BinaryOp::Add, value(0), value(1))];
    for at in 2..20 {
        ops.push(ExprOp::Unary(UnaryOp::Exp, value(at)));
    }
    breaks!(with(ops), ExprType, "`add` of f32 and i32");
}

/// Protects: loads stay inside their views.
#[test]
fn loads_outside_their_views() {
    let gather = |index: Vec<IndexTerm>| with(vec![ExprOp::Load { view: full("x"), index }]);
    let axis = IndexTerm::Axis;
    gather(vec![axis(0), axis(1)]).keeps_every_rule();
    gather(vec![IndexTerm::Fixed(3), axis(1)]).keeps_every_rule();
    breaks!(gather(vec![axis(0)]), BadIndex, "1 terms, expected one for each of the 2 axes");
    breaks!(gather(vec![axis(0), axis(2)]), BadIndex, "axis 2, expected an axis of the index space [4, 8]");
    breaks!(gather(vec![IndexTerm::Fixed(4), axis(1)]), BadIndex, "4 along axis 0, expected a place below 4");
    breaks!(gather(vec![axis(1), axis(1)]), ShapeMismatch, "`x` has the shape [4, 8], expected [8, 8]");
    breaks!(with(vec![ExprOp::Index(2), ExprOp::Cast(ValueType::F32, value(0))]), BadIndex, "an index");

    let computed = |of: ExprOp| {
        with(vec![of, ExprOp::Load { view: full("x"), index: vec![IndexTerm::Value(value(0)), IndexTerm::Axis(1)] }])
    };
    computed(INT).keeps_every_rule();
    computed(UINT).keeps_every_rule();
    breaks!(computed(FLOAT), BadIndex, "a value of type f32, expected an i32 or u32");
    let outside = View::full(Base::new().id("x"), &super::shape(&[9, 9]));
    breaks!(with(vec![load(outside)]), ViewOutOfBounds, "`x` takes [0:9, 0:9]");
}

/// Protects: `acc` means something only where a node combined something.
#[test]
fn acc_in_a_map() {
    breaks!(with(vec![ExprOp::Acc]), AccOutside, "`acc` has no meaning here");
}

/// Protects: later stages can walk an expression by recursion.
#[test]
fn expressions_have_a_depth_limit() {
    let chain = |depth: u32| {
        let mut ops = vec![FLOAT];
        (0..depth).for_each(|at| ops.push(ExprOp::Unary(UnaryOp::Exp, value(at as usize))));
        with(ops)
    };
    chain(MAX_DEPTH).keeps_every_rule();
    breaks!(chain(MAX_DEPTH + 1), ExprTooDeep, "1001 operations deep");
}

/// Protects: the side table gives each value its type.
#[test]
fn the_side_table_has_every_type() {
    let ops = [UINT, ExprOp::Compare(CompareOp::Eq, value(0), value(0)), ExprOp::Cast(ValueType::F32, value(1))];
    let base = Base::with([map(full("h"), ops), NodeOp::Copy { from: full("h"), to: full("y") }]);
    let valid = super::validate(base.program, Default::default(), Default::default()).expect("valid");
    let types = valid.types(super::first_step(), crate::entity::NodeId::from_u32(0));
    let types: Vec<_> = types.expr.values().copied().collect();
    assert_eq!(types, [ValueType::U32, ValueType::Bool, ValueType::F32]);
    assert!(valid.types(super::first_step(), crate::entity::NodeId::from_u32(1)).expr.is_empty());
}
