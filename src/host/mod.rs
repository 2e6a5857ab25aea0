//! The CPU executor: runs any plan without CUDA, in plan order or any other legal one.

mod error;

pub use error::HostError;
