//! Emission: a plan becomes CUDA graphs through the explicit node calls, or stream launches where it asks for them.
//!
//! Emission is dull on purpose: one loop over units, one over edges. It decides nothing: which launches there are, in which
//! order and over which memory is in the plan. The only thing that is ever recorded from a stream is one library call per
//! matrix product, on a private stream; its nodes are taken over one by one.
//!
//! An [`Executable`] keeps alive all that it names. Nothing in it is updated between launches: what changes from one launch
//! to the next lies in device memory.

mod address;
pub mod cache;
mod error;
mod executable;
mod gemm;
mod graph;
mod kernels;
mod lane;
mod memory;
pub mod modules;
mod report;
mod stream;
mod unit;

pub use error::{EmitError, Place};
pub use executable::{Executable, emit};
pub use kernels::{Loader, PlanKernels};
pub use lane::Lane;
pub use memory::{LaneMemory, SessionMemory};
pub use report::{Counts, NodeLine};
