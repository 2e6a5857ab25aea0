//! The driver layer: every line of unsafe code, behind owners that free what they hold. It knows nothing of programs and plans.
//!
//! Nothing here panics where a library or a device is missing: [`probe`] looks before the first call, and a context exists only
//! on a driver that is new enough for every call of this layer. Addresses and launch sizes come from a checked plan; the calls
//! that take them are private to the crate.
#![expect(unsafe_code, reason = "the one module that talks to the driver")]

#[macro_use]
pub mod calls;

mod context;
mod cublaslt;
mod error;
mod event;
mod exec;
mod graph;
mod harvest;
mod launch;
mod memory;
mod module;
pub mod nvrtc;
pub mod probe;
mod stream;

pub use context::{Context, DeviceProperties};
pub use cublaslt::BlasLt;
pub(crate) use cublaslt::{Epilogue, Factors, Matmul, MatmulSpec, MatrixSpec, Precision};
pub use error::CudaError;
pub use event::Event;
pub use exec::GraphExec;
pub(crate) use graph::{Conditional, EdgeOrder, GraphBody};
pub use graph::{Graph, Node};
pub(crate) use harvest::Harvest;
pub(crate) use launch::{CopyBox, FillBox, KernelLaunch, LaunchArg};
pub use memory::{DeviceMemory, PinnedMemory, UserMemory};
pub use module::{Function, Module};
pub use stream::Stream;
