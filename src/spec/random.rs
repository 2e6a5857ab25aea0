//! `uniform` and `normal`: the same operations that the Rust API makes of them.

use super::expr::Lowering;
use crate::entity::ValueId;
use crate::ir::{BinaryOp, ConstValue, ExprOp, UnaryOp, ValueType};

/// A number for every element of the index space: uniform in [0, 1), or standard normal by Box and Muller (1958).
pub(super) fn draw(
    lowering: &mut Lowering<'_, '_>,
    normal: bool,
    key: ValueId,
    counter: ValueId,
    stream: u32,
) -> ValueId {
    let element = linear_index(lowering);
    let word = |lowering: &mut Lowering<'_, '_>, word| {
        let op = ExprOp::Philox { key, counter, element, stream, word };
        let bits = lowering.push(op, ValueType::U32);
        unit(lowering, bits)
    };
    let first = word(lowering, 0);
    if !normal {
        return first;
    }
    let second = word(lowering, 1);
    let one = lowering.push_const(ConstValue::F32(1.0));
    let rest = lowering.push_binary(BinaryOp::Sub, one, first);
    let log = lowering.push(ExprOp::Unary(UnaryOp::Log, rest), ValueType::F32);
    let minus_two = lowering.push_const(ConstValue::F32(-2.0));
    let square = lowering.push_binary(BinaryOp::Mul, log, minus_two);
    let radius = lowering.push(ExprOp::Unary(UnaryOp::Sqrt, square), ValueType::F32);
    let tau = lowering.push_const(ConstValue::F32(std::f32::consts::TAU));
    let angle = lowering.push_binary(BinaryOp::Mul, second, tau);
    let cos = lowering.push(ExprOp::Unary(UnaryOp::Cos, angle), ValueType::F32);
    lowering.push_binary(BinaryOp::Mul, radius, cos)
}

/// The top 24 bits of a word as a number in [0, 1).
fn unit(lowering: &mut Lowering<'_, '_>, word: ValueId) -> ValueId {
    let eight = lowering.push_const(ConstValue::U32(8));
    let top = lowering.push_binary(BinaryOp::Shr, word, eight);
    let float = lowering.push(ExprOp::Cast(ValueType::F32, top), ValueType::F32);
    let scale = lowering.push_const(ConstValue::F32(1.0 / 16_777_216.0));
    lowering.push_binary(BinaryOp::Mul, float, scale)
}

/// The element's row-major index in the index space, by Horner's rule.
fn linear_index(lowering: &mut Lowering<'_, '_>) -> ValueId {
    let mut sum = None;
    let space = lowering.space;
    for (axis, &extent) in (0u8..).zip(space.dims()) {
        let own = lowering.push(ExprOp::Index(axis), ValueType::U32);
        sum = Some(match sum {
            None => own,
            Some(outer) => {
                let extent = lowering.push_const(ConstValue::U32(extent));
                let scaled = lowering.push_binary(BinaryOp::Mul, outer, extent);
                lowering.push_binary(BinaryOp::Add, scaled, own)
            }
        });
    }
    sum.unwrap_or_else(|| lowering.push_const(ConstValue::U32(0)))
}
