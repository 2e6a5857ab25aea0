//! Whether two contenders computed the same: compared before anything is timed.

use serde::Serialize;

use super::error::BenchError;
use crate::ir::{DType, Role, Writer};
use crate::plan::{Fuse, StepPlan};
use crate::runtime::{RuntimeError, Session};

/// How close fused plans must be to the first contender: the largest difference over the largest magnitude of each buffer.
/// Fusion only moves roundings: an element passes through a few tens of float32 operations (2⁻²⁴ each), and a training step
/// can amplify that by the ratio of its gradients.
const FUSED_TOLERANCE: f64 = 1e-4;

/// What the comparison of a contender with the first one gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Agreement {
    /// Every byte is the same.
    BitEqual,
    /// The largest relative difference of any buffer, below the tolerance for fused plans.
    Within(f64),
    /// Something differs; the contender is not timed.
    Differs(Mismatch),
}

/// The first thing that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mismatch {
    /// The buffer or scalar.
    pub name: String,
    /// The largest difference over the largest magnitude; infinite where a value is not finite in one of both.
    pub relative: f64,
}

/// Everything that outlives a launch, in declared order.
pub(super) struct Contents(Vec<(String, DType, Vec<u8>)>);

impl Contents {
    pub(super) fn of(plan: &StepPlan, session: &mut Session) -> Result<Self, RuntimeError> {
        let program = plan.program().program();
        let mut contents = Vec::new();
        let kept = |role| matches!(role, Role::Param | Role::State | Role::Output);
        for buffer in program.buffers.values().filter(|buffer| kept(buffer.role)) {
            let data = session.read_by_name(&buffer.name)?;
            contents.push((buffer.name.clone(), data.dtype, data.bytes));
        }
        for scalar in program.scalars.values().filter(|scalar| scalar.writer == Writer::Device) {
            let value = session.read_scalar_by_name(&scalar.name)?;
            contents.push((scalar.name.clone(), value.dtype(), value.bits().to_le_bytes().to_vec()));
        }
        Ok(Self(contents))
    }

    /// Compares with the first contender; bits are asked for unless a pass was allowed to change nodes.
    pub(super) fn agreement(&self, first: &Self, plan: &StepPlan) -> Agreement {
        let fused = plan.fusion().fuse != Fuse::None;
        let mut worst = 0f64;
        for ((name, dtype, bytes), (_, _, expected)) in self.0.iter().zip(&first.0) {
            if bytes == expected {
                continue;
            }
            let relative = difference(*dtype, bytes, expected);
            if !fused || relative > FUSED_TOLERANCE {
                return Agreement::Differs(Mismatch { name: name.clone(), relative });
            }
            worst = worst.max(relative);
        }
        if worst == 0.0 { Agreement::BitEqual } else { Agreement::Within(worst) }
    }
}

/// The largest difference over the largest magnitude.
fn difference(dtype: DType, a: &[u8], b: &[u8]) -> f64 {
    let (a, b) = (values(dtype, a), values(dtype, b));
    let scale = b.iter().filter(|x| x.is_finite()).fold(0f64, |scale, x| scale.max(x.abs()));
    let worst = a.iter().zip(&b).filter(|(a, b)| a != b && !(a.is_nan() && b.is_nan())).fold(0f64, |worst, (a, b)| {
        let difference = (a - b).abs();
        if difference.is_finite() { worst.max(difference) } else { f64::INFINITY }
    });
    if worst == 0.0 { 0.0 } else { worst / scale }
}

fn values(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::Bf16 => bytes.chunks_exact(2).map(|x| half::bf16::from_le_bytes([x[0], x[1]]).to_f64()).collect(),
        DType::F32 => words(bytes).map(|bits| f64::from(f32::from_bits(bits))).collect(),
        DType::I32 => words(bytes).map(|bits| f64::from(bits.cast_signed())).collect(),
        DType::U32 => words(bytes).map(f64::from).collect(),
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|x| u32::from_le_bytes([x[0], x[1], x[2], x[3]]))
}

/// Names the contender in a session's error.
pub(super) fn of_plan<E: From<BenchError>>(name: &str) -> impl Fn(RuntimeError) -> E {
    move |source| BenchError::Session { plan: name.to_owned(), source }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    /// Protects: a value that is finite in only one contender is never called close, and equal NaNs are no difference.
    #[test]
    fn differences_are_relative_and_see_what_is_not_finite() {
        let of = |a: &[f32], b: &[f32]| difference(DType::F32, &bytes(a), &bytes(b));
        assert!((of(&[1.0, 10.5], &[1.0, 10.0]) - 0.05).abs() < 1e-9);
        assert_eq!(of(&[f32::NAN, 1.0], &[2.0, 1.0]), f64::INFINITY);
        assert_eq!(of(&[f32::NAN, 1.0], &[f32::NAN, 1.0]), 0.0);
        assert_eq!(of(&[0.0], &[0.0]), 0.0);
    }
}
