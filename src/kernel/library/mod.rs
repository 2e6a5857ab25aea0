//! Kernels that come with the crate: one module per family, beside `kernels/<family>.cu`, each with its host function.
//!
//! Host functions compute in `f32` what the kernels compute, in the same order where that is cheap; they agree but for the
//! last digits of transcendental functions and of long sums.

pub mod dqn;
#[cfg(test)]
mod draws;
pub mod guarded;
pub mod loss;
pub mod optim;
pub mod replay;
pub mod spectral;
pub mod trading;
