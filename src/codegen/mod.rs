//! Code generation: maps, reductions and the other small nodes become CUDA C. How they are launched, and in which order
//! reductions add, is decided here too.
//!
//! Nothing is compiled here and no device is asked: the same program gives the same text. Values are computed exactly as
//! `ir::Expr` documents; compiled without contraction (`--fmad=false`), `+ - * / sqrt` and all integer operations are bit
//! for bit what the host executor computes.

mod boxes;
mod conditional;
mod coords;
mod kernel;
mod map;
mod names;
mod params;
mod printer;
mod reduce;
mod schedule;

pub use boxes::{Pitched, copy_boxes, fill_bits, fill_box};
pub use kernel::{GeneratedKernel, Generator, ParamSource};
pub use schedule::{ReduceSchedule, map_launch, reduce_schedule, workspace_bytes};

/// The definitions that every CUDA source of this crate starts from.
pub const PRELUDE: &str = include_str!("../../kernels/prelude.cuh");
