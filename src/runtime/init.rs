//! What memory holds when a session opens: made on the host, so that it is the same on every device.
//!
//! Random values are Philox-4x32-10 draws. The key is the session's seed, exclusive-or the first eight bytes of the BLAKE3 hash
//! of the buffer's name; element `i` uses word `i mod 4` of counter `i / 4` (uniform), or words `2·(i mod 2)` and `2·(i mod 2) + 1`
//! of counter `i / 2` (normal). So a buffer's values depend on seed and name, not on what else the program declares.

use half::bf16;

use crate::host::philox4x32;
use crate::ir::{Buffer, DType, Init};

/// The bytes of a buffer's initial value, row-major.
pub(super) fn initial_bytes(buffer: &Buffer, seed: u64) -> Vec<u8> {
    let elements = buffer.shape.elements();
    let key = key(&buffer.name, seed);
    match buffer.init {
        Init::Zeros => vec![0; buffer.bytes() as usize],
        Init::Constant(value) => encode(buffer.dtype, (0..elements).map(|_| value)),
        Init::Uniform { bound } => encode(buffer.dtype, (0..elements).map(|i| uniform(key, i) * bound)),
        Init::Normal { std } => encode(buffer.dtype, (0..elements).map(|i| (normal(key, i) * f64::from(std)) as f32)),
    }
}

/// Whether the initial value is all zero bytes.
pub(super) fn is_zero(buffer: &Buffer) -> bool {
    matches!(buffer.init, Init::Zeros)
}

fn key(name: &str, seed: u64) -> [u32; 2] {
    let hash = blake3::hash(name.as_bytes());
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| hash.as_bytes()[at + byte]));
    [word(0) ^ seed as u32, word(4) ^ (seed >> 32) as u32]
}

fn words(key: [u32; 2], counter: u64) -> [u32; 4] {
    philox4x32([counter as u32, (counter >> 32) as u32, 0, 0], key)
}

/// Uniform in [-1, 1), on a grid of 2⁻²³, so that a bound times it stays inside the bound.
fn uniform(key: [u32; 2], element: u64) -> f32 {
    let word = words(key, element / 4)[(element % 4) as usize];
    (word >> 8) as f32 * f32::powi(2.0, -23) - 1.0
}

/// Standard normal, by Box and Muller (1958), in float64.
fn normal(key: [u32; 2], element: u64) -> f64 {
    let pair = 2 * (element % 2) as usize;
    let words = words(key, element / 2);
    let unit = |word: u32| (f64::from(word) + 0.5) * f64::powi(2.0, -32);
    (-2.0 * unit(words[pair]).ln()).sqrt() * (std::f64::consts::TAU * unit(words[pair + 1])).cos()
}

fn encode(dtype: DType, values: impl Iterator<Item = f32>) -> Vec<u8> {
    match dtype {
        DType::F32 => values.flat_map(f32::to_ne_bytes).collect(),
        DType::Bf16 => values.flat_map(|x| bf16::from_f32(x).to_ne_bytes()).collect(),
        DType::I32 => values.flat_map(|x| (x as i32).to_ne_bytes()).collect(),
        DType::U32 => values.flat_map(|x| (x as u32).to_ne_bytes()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Role, Shape};

    fn values(name: &str, init: Init, seed: u64) -> Vec<f32> {
        let shape = Shape::new(&[20_000]).expect("one axis");
        let buffer = Buffer { name: name.into(), dtype: DType::F32, shape, role: Role::Param, init, tap: false };
        bytemuck::pod_collect_to_vec(&initial_bytes(&buffer, seed))
    }

    /// Protects: the draws have the moments that their names promise. With n draws the mean of n squares of a unit normal has
    /// the standard deviation √(2/n), that of a uniform square √(4/45/n); six of them is one failure in 10⁹ seeds.
    #[test]
    fn moments_are_right() {
        let normal = values("w", Init::Normal { std: 2.0 }, 7);
        let uniform = values("w", Init::Uniform { bound: 0.5 }, 7);
        let moments = |values: &[f32]| {
            let n = values.len() as f64;
            let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
            (mean, values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n)
        };
        let n = normal.len() as f64;
        let (mean, square) = moments(&normal);
        assert!(mean.abs() < 6.0 * 2.0 / n.sqrt() && (square / 4.0 - 1.0).abs() < 6.0 * (2.0 / n).sqrt());
        let (mean, square) = moments(&uniform);
        assert!(mean.abs() < 6.0 * 0.5 / (3.0 * n).sqrt());
        assert!((square * 4.0 - 1.0 / 3.0).abs() < 6.0 * (4.0 / 45.0 / n).sqrt());
        assert!(uniform.iter().all(|x| (-0.5..0.5).contains(x)));
    }

    /// Protects: seed and name both matter, and nothing else does.
    #[test]
    fn seed_and_name_decide() {
        let init = Init::Uniform { bound: 1.0 };
        assert_eq!(values("w", init, 1), values("w", init, 1));
        assert_ne!(values("w", init, 1), values("w", init, 2));
        assert_ne!(values("w", init, 1), values("w", init, 1 << 32 | 1));
        assert_ne!(values("w", init, 1), values("v", init, 1));
    }
}
