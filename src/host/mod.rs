//! The CPU executor: runs any plan without CUDA, in plan order or any other legal one.
//!
//! It is the reference that devices are compared with. It works over the plan's own arena offsets, so that a wrong reuse of
//! memory shows, and follows to the letter what [`crate::ir`] and [`crate::codegen`] say about operations and about the order
//! of reductions. It never reorders arithmetic to be faster, and holds no state between runs but its working memory.

mod error;
mod executor;
mod expr;
mod gemm;
mod kernel;
mod map;
mod memory;
mod ops;
mod philox;
mod reduce;
mod resolve;
mod store;
mod walk;

pub use error::HostError;
pub use executor::HostExecutor;
pub use memory::{HostMemory, HostScratch};
pub use philox::philox4x32;
