//! Matrix products.

use super::NodeTypes;
use super::expr::{self, Place};
use super::report::{Site, Viewed};
use crate::ir::{DType, Expr, Factor, Gemm, Operand, ProgramError, Shape, ValueType, View};

/// Checks a matrix product.
pub(super) fn check(site: &mut Site<'_, '_>, gemm: &Gemm) -> Option<NodeTypes> {
    let a = matrix(site, "a", gemm.a.view);
    let b = matrix(site, "b", gemm.b.view);
    let d = matrix(site, "d", gemm.d);
    let c = gemm.add.and_then(|(_, view)| matrix(site, "c", view));
    factor(site, "alpha", gemm.alpha);
    if let Some((beta, _)) = gemm.add {
        factor(site, "beta", beta);
    }
    let (a, b, d) = (a?, b?, d?);
    types(site, &a, &b, &d);
    dims(site, gemm, &d);
    if let Some(c) = c {
        site.same_shape("c", "c", c.shape, d.shape);
        site.same_type("c", "c", c.dtype.name(), d.dtype.name());
    }
    match &gemm.epilogue {
        Some(epilogue) => check_epilogue(site, epilogue, d.shape),
        None => None,
    }
}

/// A view of rank 2 whose rows lie side by side.
fn matrix(site: &mut Site<'_, '_>, part: &'static str, view: View) -> Option<Viewed> {
    let viewed = site.view(part, part, view)?;
    if viewed.shape.rank() != 2 {
        site.fail(part, |node| ProgramError::ShapeMismatch {
            node,
            part: part.into(),
            found: viewed.shape.to_string(),
            expected: "a matrix: two axes".into(),
        });
        return None;
    }
    if viewed.shape.dims()[1] > 1 && view.strides(&viewed.whole)[1] != 1 {
        site.fail(part, |node| ProgramError::NotContiguous { node, part: format!("a row of {part}") });
    }
    Some(viewed)
}

fn factor(site: &mut Site<'_, '_>, part: &'static str, factor: Factor) {
    let Factor::Scalar(id) = factor else { return };
    if let Some(scalar) = site.scalar(part, id) {
        site.same_type(part, part, scalar.init.dtype().name(), DType::F32.name());
    }
}

/// A and B have one float type; D has it too, or is f32.
fn types(site: &mut Site<'_, '_>, a: &Viewed, b: &Viewed, d: &Viewed) {
    if !matches!(a.dtype, DType::F32 | DType::Bf16) {
        site.fail("a", |node| ProgramError::TypeMismatch {
            node,
            part: "a".into(),
            found: a.dtype.to_string(),
            expected: "f32 or bf16".into(),
        });
        return;
    }
    site.same_type("b", "b", b.dtype.name(), a.dtype.name());
    if d.dtype != DType::F32 {
        site.same_type("d", "d", d.dtype.name(), a.dtype.name());
    }
}

fn dims(site: &mut Site<'_, '_>, gemm: &Gemm, d: &Viewed) {
    let (a, b) = (turned(&gemm.a), turned(&gemm.b));
    if a[1] == b[0] && *d.shape.dims() == [a[0], b[1]] {
        return;
    }
    let text = |[rows, columns]: [u32; 2]| format!("[{rows}, {columns}]");
    let d = d.shape.to_string();
    site.fail("d", |node| ProgramError::GemmDims { node, a: text(a), b: text(b), d });
}

/// The extents of op(X); the operand has rank 2.
fn turned(operand: &Operand) -> [u32; 2] {
    match *operand.view.shape().dims() {
        [rows, columns] if operand.transposed => [columns, rows],
        [rows, columns] => [rows, columns],
        _ => [0, 0],
    }
}

fn check_epilogue(site: &mut Site<'_, '_>, epilogue: &Expr, space: Shape) -> Option<NodeTypes> {
    let place = Place { part: "epilogue", space, acc: Some(ValueType::F32) };
    let types = expr::check(site, epilogue, place);
    let &[root] = epilogue.roots() else {
        let found = epilogue.roots().len();
        site.fail("epilogue", |node| ProgramError::ResultCount { node, part: "epilogue", found, expected: "1".into() });
        return None;
    };
    if let Some(of) = types[root] {
        site.same_type("epilogue", "the epilogue", of.name(), ValueType::F32.name());
    }
    Some(NodeTypes { expr: expr::complete(epilogue, &types)?, ..NodeTypes::default() })
}
