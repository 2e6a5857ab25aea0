//! Emission: a plan becomes CUDA graphs through the explicit node calls.

pub mod cache;
pub mod modules;
