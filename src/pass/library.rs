//! What the matrix library can compute behind a product: the one place that knows.

use crate::entity::ValueId;
use crate::ir::{BinaryOp, Expr, ExprOp, Gemm, IndexTerm, Program, UnaryOp, View};

/// An epilogue that the matrix library has: `acc`, `acc + bias`, `relu(acc)` or `relu(acc + bias)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryEpilogue {
    /// What is added to each row: a view, and the row of it that holds the values.
    pub bias: Option<(View, u32)>,
    /// Whether relu follows.
    pub relu: bool,
}

/// The library's form of a product's epilogue.
///
/// # Errors
/// Why it has none, in words.
pub fn library_epilogue(program: &Program, gemm: &Gemm, epilogue: &Expr) -> Result<LibraryEpilogue, &'static str> {
    let (ops, &[root]) = (epilogue.ops(), epilogue.roots()) else { return Err("it has more than one result") };
    let (inner, relu) = match ops[root] {
        ExprOp::Unary(UnaryOp::Relu, inner) => (inner, true),
        _ => (root, false),
    };
    let is_acc = |value: ValueId| ops[value] == ExprOp::Acc;
    let added = match ops[inner] {
        ExprOp::Acc => return Ok(LibraryEpilogue { bias: None, relu }),
        ExprOp::Binary(BinaryOp::Add, a, b) if is_acc(a) => b,
        ExprOp::Binary(BinaryOp::Add, a, b) if is_acc(b) => a,
        _ => return Err("it is more than a bias and relu"),
    };
    Ok(LibraryEpilogue { bias: Some(bias(program, gemm, &ops[added])?), relu })
}

/// One value per column of D, side by side, of D's type.
fn bias(program: &Program, gemm: &Gemm, op: &ExprOp) -> Result<(View, u32), &'static str> {
    let ExprOp::Load { view, index } = op else { return Err("what is added is not a buffer") };
    let buffer = &program.buffers[view.buffer];
    if buffer.dtype != program.buffers[gemm.d.buffer].dtype {
        return Err("the bias has another type than the result");
    }
    let strides = view.strides(&buffer.shape);
    match index.as_slice() {
        [IndexTerm::Axis(1)] if strides[0] == 1 => Ok((*view, 0)),
        [IndexTerm::Fixed(row), IndexTerm::Axis(1)] if strides[1] == 1 => Ok((*view, *row)),
        _ => Err("the bias is not one value per column, side by side"),
    }
}
