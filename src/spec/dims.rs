//! Dimensions: integer arithmetic that is done while a spec is read.

use toml::de::DeTable;

use super::context::Context;
use super::document::{Fields, entries, similar};
use super::error::SpecError;
use super::syntax::{Ast, AstKind, Suffix};
use crate::ir::{BinaryOp, ConstValue, DType, ProgramError, UnaryOp};

/// Reads the `dims` table, each dimension after those before it, and applies what is set from outside.
pub(super) fn declare(cx: &mut Context<'_>, table: Option<&DeTable<'_>>) {
    for entry in table.map(entries).unwrap_or_default() {
        let value = match cx.options.dims.get(entry.key) {
            Some(&value) => Some(value),
            None => cx.integer(&entry),
        };
        match value.filter(|&value| value >= 1) {
            Some(value) => drop(cx.dims.insert(entry.key.to_owned(), value)),
            None => {
                if let Some(value) = value {
                    let found = format!("[{value}]");
                    cx.error(entry.span(), ProgramError::BadExtent { what: entry.key.to_owned(), found });
                }
                cx.dims.insert(entry.key.to_owned(), 1);
            }
        }
    }
    for name in cx.options.dims.keys() {
        if !cx.dims.contains_key(name) {
            let similar = similar(name, cx.dims.keys().map(String::as_str));
            cx.error(0..0, SpecError::UnknownDim { name: name.clone(), similar });
        }
    }
}

/// Takes the `dims` table out of the document's keys.
pub(super) fn take<'d>(cx: &mut Context<'_>, fields: &mut Fields<'d>) -> Option<&'d DeTable<'d>> {
    let entry = fields.take("dims")?;
    entry.table().or_else(|| cx.wrong_type(&entry, "a table of integers"))
}

/// Whether an expression is integer arithmetic over literals and dimensions.
pub(super) fn is_constant(cx: &Context<'_>, ast: &Ast) -> bool {
    match &ast.kind {
        AstKind::Int(_, suffix) => *suffix == Suffix::None,
        AstKind::Name { name, .. } => cx.dims.contains_key(name) && !cx.symbols.contains_key(name),
        AstKind::Unary(UnaryOp::Neg, x) => is_constant(cx, x),
        AstKind::Binary(op, a, b) => is_arithmetic(*op) && is_constant(cx, a) && is_constant(cx, b),
        _ => false,
    }
}

const fn is_arithmetic(op: BinaryOp) -> bool {
    matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem)
}

/// The value of integer arithmetic.
pub(super) fn evaluate(cx: &mut Context<'_>, ast: &Ast) -> Option<i64> {
    match &ast.kind {
        AstKind::Int(value, Suffix::None) => Some(*value),
        AstKind::Name { name, .. } => match cx.dims.get(name) {
            Some(&value) => Some(value),
            None => {
                let similar = similar(name, cx.dims.keys().map(String::as_str));
                let error = ProgramError::UnknownName { kind: "dimension", name: name.clone(), similar };
                cx.fail(ast.span.clone(), error)
            }
        },
        AstKind::Unary(UnaryOp::Neg, x) => {
            let value = evaluate(cx, x)?.checked_neg();
            value.or_else(|| bad(cx, ast, "overflows"))
        }
        AstKind::Binary(op, a, b) if is_arithmetic(*op) => {
            let (a, b) = (evaluate(cx, a), evaluate(cx, b));
            let (a, b) = (a?, b?);
            combine(*op, a, b).or_else(|| bad(cx, ast, fault(*op, b)))
        }
        _ => bad(cx, ast, "is not integer arithmetic"),
    }
}

fn combine(op: BinaryOp, a: i64, b: i64) -> Option<i64> {
    match op {
        BinaryOp::Add => a.checked_add(b),
        BinaryOp::Sub => a.checked_sub(b),
        BinaryOp::Mul => a.checked_mul(b),
        BinaryOp::Div => a.checked_rem(b).filter(|&rest| rest == 0).and_then(|_| a.checked_div(b)),
        _ => a.checked_rem(b),
    }
}

const fn fault(op: BinaryOp, b: i64) -> &'static str {
    match op {
        BinaryOp::Div | BinaryOp::Rem if b == 0 => "divides by zero",
        BinaryOp::Div => "leaves a remainder",
        _ => "overflows",
    }
}

fn bad<T>(cx: &mut Context<'_>, ast: &Ast, reason: &str) -> Option<T> {
    let text = cx.source.get(ast.span.clone()).unwrap_or_default().to_owned();
    cx.fail(ast.span.clone(), SpecError::BadDim { text, reason: reason.to_owned() })
}

/// The constant that an expression without cells and buffers is.
pub(super) fn constant(cx: &mut Context<'_>, ast: &Ast, what: &str, dtype: DType) -> Option<ConstValue> {
    let is_float = matches!(dtype, DType::F32 | DType::Bf16);
    match &ast.kind {
        AstKind::Float(value) if is_float => Some(ConstValue::F32(*value)),
        AstKind::Call(name, args) if name == "bits" && is_float => bits(cx, ast, args),
        _ => {
            let value = evaluate(cx, ast)?;
            literal(value, dtype).or_else(|| {
                let what = what.to_owned();
                cx.fail(ast.span.clone(), SpecError::BadNumber { what, found: value.to_string(), dtype: dtype.name() })
            })
        }
    }
}

/// The float with the bits that `bits(…)` names.
pub(super) fn bits(cx: &mut Context<'_>, ast: &Ast, args: &[Ast]) -> Option<ConstValue> {
    let [arg] = args else {
        return cx.fail(ast.span.clone(), SpecError::ArgCount { name: "bits".into(), expected: 1, found: args.len() });
    };
    let value = evaluate(cx, arg)?;
    match u32::try_from(value) {
        Ok(bits) => Some(ConstValue::F32(f32::from_bits(bits))),
        Err(_) => cx.fail(
            arg.span.clone(),
            SpecError::BadNumber { what: "bits".into(), found: value.to_string(), dtype: "u32" },
        ),
    }
}

/// An integer as a constant of a type, where it fits.
pub(super) fn literal(value: i64, dtype: DType) -> Option<ConstValue> {
    match dtype {
        DType::F32 | DType::Bf16 => exact_f32(value).map(ConstValue::F32),
        DType::I32 => i32::try_from(value).ok().map(ConstValue::I32),
        DType::U32 => u32::try_from(value).ok().map(ConstValue::U32),
    }
}

/// An integer as a float that equals it.
pub(super) fn exact_f32(value: i64) -> Option<f32> {
    let float = value as f32;
    (i128::from(value) == float as i128).then_some(float)
}

/// A float as TOML writes it; none where it is too large.
pub(super) fn float(text: &str) -> Option<f32> {
    let value: f32 = text.parse().ok()?;
    (value.is_finite() || text.contains("inf") || text.contains("nan")).then_some(value)
}
