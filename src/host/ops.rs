//! The arithmetic of expressions, over slices of 32-bit words.
//!
//! Each operation means exactly what [`crate::ir`] says of it; validation has excluded what a type does not have.

use bytemuck::Pod;

use super::philox::philox4x32;
use crate::ir::{BinaryOp, CompareOp, UnaryOp, ValueType};

pub(super) fn unary(op: UnaryOp, of: ValueType, x: &[u32], out: &mut [u32]) {
    match of {
        ValueType::F32 => unary_f32(op, x, out),
        ValueType::I32 => match op {
            UnaryOp::Neg => map(x, out, i32::wrapping_neg),
            UnaryOp::Abs => map(x, out, i32::wrapping_abs),
            UnaryOp::Not => map(x, out, |x: i32| !x),
            UnaryOp::Relu => map(x, out, |x: i32| x.max(0)),
            UnaryOp::Floor => out.copy_from_slice(x),
            UnaryOp::IsFinite => out.fill(1),
            _ => undefined(op.name(), of),
        },
        ValueType::U32 => match op {
            UnaryOp::Neg => map(x, out, u32::wrapping_neg),
            UnaryOp::Not => map(x, out, |x: u32| !x),
            UnaryOp::Abs | UnaryOp::Relu | UnaryOp::Floor => out.copy_from_slice(x),
            UnaryOp::IsFinite => out.fill(1),
            _ => undefined(op.name(), of),
        },
        ValueType::Bool => match op {
            UnaryOp::Not => map(x, out, |x: u32| x ^ 1),
            _ => undefined(op.name(), of),
        },
    }
}

fn unary_f32(op: UnaryOp, x: &[u32], out: &mut [u32]) {
    match op {
        UnaryOp::Neg => map(x, out, |x: f32| -x),
        UnaryOp::Abs => map(x, out, f32::abs),
        UnaryOp::Exp => map(x, out, f32::exp),
        UnaryOp::Log => map(x, out, f32::ln),
        UnaryOp::Expm1 => map(x, out, f32::exp_m1),
        UnaryOp::Log1p => map(x, out, f32::ln_1p),
        UnaryOp::Sqrt => map(x, out, f32::sqrt),
        UnaryOp::Tanh => map(x, out, f32::tanh),
        UnaryOp::Sigmoid => map(x, out, |x: f32| 1.0 / (1.0 + (-x).exp())),
        UnaryOp::Relu => map(x, out, |x: f32| if x <= 0.0 { 0.0 } else { x }),
        UnaryOp::Sin => map(x, out, f32::sin),
        UnaryOp::Cos => map(x, out, f32::cos),
        UnaryOp::Floor => map(x, out, f32::floor),
        UnaryOp::IsFinite => map(x, out, |x: f32| u32::from(x.is_finite())),
        UnaryOp::Not => undefined(op.name(), ValueType::F32),
    }
}

pub(super) fn binary(op: BinaryOp, of: ValueType, a: &[u32], b: &[u32], out: &mut [u32]) {
    match of {
        ValueType::F32 => binary_f32(op, a, b, out),
        ValueType::I32 => binary_i32(op, a, b, out),
        ValueType::U32 => binary_u32(op, a, b, out),
        ValueType::Bool => match op {
            BinaryOp::And => zip(a, b, out, |a: u32, b| a & b),
            BinaryOp::Or => zip(a, b, out, |a: u32, b| a | b),
            BinaryOp::Xor => zip(a, b, out, |a: u32, b| a ^ b),
            _ => undefined(op.name(), of),
        },
    }
}

fn binary_f32(op: BinaryOp, a: &[u32], b: &[u32], out: &mut [u32]) {
    match op {
        BinaryOp::Add => zip(a, b, out, |a: f32, b| a + b),
        BinaryOp::Sub => zip(a, b, out, |a: f32, b| a - b),
        BinaryOp::Mul => zip(a, b, out, |a: f32, b| a * b),
        BinaryOp::Div => zip(a, b, out, |a: f32, b| a / b),
        BinaryOp::Rem => zip(a, b, out, |a: f32, b| a % b),
        BinaryOp::Min => zip(a, b, out, min_f32),
        BinaryOp::Max => zip(a, b, out, max_f32),
        BinaryOp::Pow => zip(a, b, out, f32::powf),
        _ => undefined(op.name(), ValueType::F32),
    }
}

fn binary_i32(op: BinaryOp, a: &[u32], b: &[u32], out: &mut [u32]) {
    match op {
        BinaryOp::Div => zip(a, b, out, |a: i32, b| if b == 0 { 0 } else { a.wrapping_div(b) }),
        BinaryOp::Rem => zip(a, b, out, |a: i32, b| if b == 0 { 0 } else { a.wrapping_rem(b) }),
        BinaryOp::Min => zip(a, b, out, |a: i32, b| a.min(b)),
        BinaryOp::Max => zip(a, b, out, |a: i32, b| a.max(b)),
        BinaryOp::Shr => zip(a, b, out, |a: i32, b: i32| a.wrapping_shr(b.cast_unsigned())),
        _ => binary_u32(op, a, b, out),
    }
}

fn binary_u32(op: BinaryOp, a: &[u32], b: &[u32], out: &mut [u32]) {
    match op {
        BinaryOp::Add => zip(a, b, out, u32::wrapping_add),
        BinaryOp::Sub => zip(a, b, out, u32::wrapping_sub),
        BinaryOp::Mul => zip(a, b, out, u32::wrapping_mul),
        BinaryOp::Div => zip(a, b, out, |a: u32, b| a.checked_div(b).unwrap_or(0)),
        BinaryOp::Rem => zip(a, b, out, |a: u32, b| a.checked_rem(b).unwrap_or(0)),
        BinaryOp::Min => zip(a, b, out, |a: u32, b| a.min(b)),
        BinaryOp::Max => zip(a, b, out, |a: u32, b| a.max(b)),
        BinaryOp::And => zip(a, b, out, |a: u32, b| a & b),
        BinaryOp::Or => zip(a, b, out, |a: u32, b| a | b),
        BinaryOp::Xor => zip(a, b, out, |a: u32, b| a ^ b),
        BinaryOp::Shl => zip(a, b, out, u32::wrapping_shl),
        BinaryOp::Shr => zip(a, b, out, u32::wrapping_shr),
        BinaryOp::Pow => undefined(op.name(), ValueType::U32),
    }
}

/// The smaller one, the first one where they are equal, or the one NaN that devices give too.
fn min_f32(a: f32, b: f32) -> f32 {
    match (a.is_nan() || b.is_nan(), b < a) {
        (true, _) => f32::NAN,
        (false, true) => b,
        (false, false) => a,
    }
}

/// The larger one, the first one where they are equal, or the one NaN that devices give too.
pub(super) fn max_f32(a: f32, b: f32) -> f32 {
    match (a.is_nan() || b.is_nan(), b > a) {
        (true, _) => f32::NAN,
        (false, true) => b,
        (false, false) => a,
    }
}

pub(super) fn compare(op: CompareOp, of: ValueType, a: &[u32], b: &[u32], out: &mut [u32]) {
    match of {
        ValueType::F32 => compare_as::<f32>(op, a, b, out),
        ValueType::I32 => compare_as::<i32>(op, a, b, out),
        ValueType::U32 | ValueType::Bool => compare_as::<u32>(op, a, b, out),
    }
}

fn compare_as<T: Pod + PartialOrd>(op: CompareOp, a: &[u32], b: &[u32], out: &mut [u32]) {
    match op {
        CompareOp::Eq => zip(a, b, out, |a: T, b| u32::from(a == b)),
        CompareOp::Ne => zip(a, b, out, |a: T, b| u32::from(a != b)),
        CompareOp::Lt => zip(a, b, out, |a: T, b| u32::from(a < b)),
        CompareOp::Le => zip(a, b, out, |a: T, b| u32::from(a <= b)),
        CompareOp::Gt => zip(a, b, out, |a: T, b| u32::from(a > b)),
        CompareOp::Ge => zip(a, b, out, |a: T, b| u32::from(a >= b)),
    }
}

pub(super) fn select(condition: &[u32], if_true: &[u32], if_false: &[u32], out: &mut [u32]) {
    for (((slot, &condition), &yes), &no) in out.iter_mut().zip(condition).zip(if_true).zip(if_false) {
        *slot = if condition != 0 { yes } else { no };
    }
}

pub(super) fn cast(from: ValueType, to: ValueType, x: &[u32], out: &mut [u32]) {
    match (from, to) {
        (ValueType::F32, ValueType::I32) => map(x, out, |x: f32| x as i32),
        (ValueType::F32, ValueType::U32) => map(x, out, |x: f32| x as u32),
        (ValueType::F32, ValueType::Bool) => map(x, out, |x: f32| u32::from(x != 0.0)),
        (ValueType::I32, ValueType::F32) => map(x, out, |x: i32| x as f32),
        (ValueType::U32 | ValueType::Bool, ValueType::F32) => map(x, out, |x: u32| x as f32),
        (ValueType::I32 | ValueType::U32, ValueType::Bool) => map(x, out, |x: u32| u32::from(x != 0)),
        _ => out.copy_from_slice(x),
    }
}

pub(super) struct PhiloxArgs<'a> {
    pub(super) key: &'a [u32],
    pub(super) counter: &'a [u32],
    pub(super) element: &'a [u32],
    pub(super) stream: u32,
    pub(super) word: u8,
}

pub(super) fn philox(args: &PhiloxArgs<'_>, out: &mut [u32]) {
    for (number, slot) in out.iter_mut().enumerate() {
        let counter = [args.element[number], args.counter[number], 0, 0];
        *slot = philox4x32(counter, [args.key[number], args.stream])[usize::from(args.word)];
    }
}

fn map<A: Pod, B: Pod>(x: &[u32], out: &mut [u32], f: impl Fn(A) -> B) {
    let (x, out): (&[A], &mut [B]) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out));
    out.iter_mut().zip(x).for_each(|(slot, &x)| *slot = f(x));
}

fn zip<A: Pod, B: Pod>(a: &[u32], b: &[u32], out: &mut [u32], f: impl Fn(A, A) -> B) {
    let (a, b): (&[A], &[A]) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
    let out: &mut [B] = bytemuck::cast_slice_mut(out);
    out.iter_mut().zip(a.iter().zip(b)).for_each(|(slot, (&a, &b))| *slot = f(a, b));
}

/// Validation refuses such an operation, so reaching this is a defect of this crate.
fn undefined(op: &str, of: ValueType) -> ! {
    unreachable!("`{op}` of {} passed validation", of.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(op: BinaryOp, of: ValueType, a: u32, b: u32) -> u32 {
        let mut out = [0];
        binary(op, of, &[a], &[b], &mut out);
        out[0]
    }

    fn float(op: BinaryOp, a: f32, b: f32) -> f32 {
        f32::from_bits(one(op, ValueType::F32, a.to_bits(), b.to_bits()))
    }

    fn cast_one(to: ValueType, x: f32) -> u32 {
        let mut out = [0];
        cast(ValueType::F32, to, &[x.to_bits()], &mut out);
        out[0]
    }

    /// Protects: NaN wins in `min` and `max` from either side, and passes through `relu`.
    #[test]
    fn nan_rules() {
        for op in [BinaryOp::Min, BinaryOp::Max] {
            assert!(float(op, f32::NAN, 1.0).is_nan() && float(op, 1.0, f32::NAN).is_nan());
        }
        assert_eq!((float(BinaryOp::Min, 1.0, 2.0), float(BinaryOp::Max, 1.0, 2.0)), (1.0, 2.0));
        let mut out = [7];
        unary(UnaryOp::Relu, ValueType::F32, &[f32::NAN.to_bits()], &mut out);
        assert!(f32::from_bits(out[0]).is_nan());
        compare(CompareOp::Ne, ValueType::F32, &[f32::NAN.to_bits()], &[f32::NAN.to_bits()], &mut out);
        assert_eq!(out, [1]);
    }

    /// Protects: integer arithmetic is total: division by zero gives 0, the one overflowing quotient wraps, shifts are mod 32.
    #[test]
    fn integers_are_total() {
        let min = i32::MIN.cast_unsigned();
        for of in [ValueType::I32, ValueType::U32] {
            assert_eq!((one(BinaryOp::Div, of, 7, 0), one(BinaryOp::Rem, of, 7, 0)), (0, 0));
            assert_eq!(one(BinaryOp::Shl, of, 3, 33), 6);
        }
        assert_eq!(one(BinaryOp::Div, ValueType::I32, min, u32::MAX), min);
        assert_eq!(one(BinaryOp::Rem, ValueType::I32, min, u32::MAX), 0);
        assert_eq!(one(BinaryOp::Rem, ValueType::I32, (-7i32).cast_unsigned(), 3), (-1i32).cast_unsigned());
        assert_eq!(one(BinaryOp::Shr, ValueType::I32, (-8i32).cast_unsigned(), 33), (-4i32).cast_unsigned());
        assert_eq!(one(BinaryOp::Shr, ValueType::U32, 0x8000_0000, 31), 1);
    }

    /// Protects: float to integer saturates, rounds towards zero, and gives 0 for NaN.
    #[test]
    fn casts_saturate() {
        assert_eq!(cast_one(ValueType::I32, -3e9), i32::MIN.cast_unsigned());
        assert_eq!(cast_one(ValueType::U32, -1.0), 0);
        assert_eq!(cast_one(ValueType::U32, 1e20), u32::MAX);
        assert_eq!(cast_one(ValueType::I32, -2.9), (-2i32).cast_unsigned());
        assert_eq!(cast_one(ValueType::I32, f32::NAN), 0);
    }
}
