//! The type of each value of an expression.

use super::expr::{Expr, ExprOp, ValueType};
use super::program::Program;
use crate::entity::{PrimaryMap, ValueId};

/// The type of each value of a well-typed expression; `acc` is the type of [`ExprOp::Acc`] where the expression stands.
///
/// Types follow from the first operand alone: whether the operands fit together is for validation to say.
pub fn value_types(program: &Program, expr: &Expr, acc: ValueType) -> PrimaryMap<ValueId, ValueType> {
    let mut types = PrimaryMap::with_capacity(expr.ops().len());
    for op in expr.ops().values() {
        let value_type = match op {
            ExprOp::Const(constant) => ValueType::of(constant.dtype()),
            ExprOp::Index(_) | ExprOp::Philox { .. } => ValueType::U32,
            ExprOp::Scalar(scalar) => ValueType::of(program.scalars[*scalar].init.dtype()),
            ExprOp::Load { view, .. } => ValueType::of(program.buffers[view.buffer].dtype),
            ExprOp::Acc => acc,
            ExprOp::Unary(super::UnaryOp::IsFinite, _) | ExprOp::Compare(..) => ValueType::Bool,
            ExprOp::Unary(_, operand) | ExprOp::Binary(_, operand, _) => types[*operand],
            ExprOp::Select { if_true, .. } => types[*if_true],
            ExprOp::Cast(to, _) => *to,
        };
        types.push(value_type);
    }
    types
}
