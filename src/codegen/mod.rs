//! Code generation: maps and reductions become CUDA C; how they are launched, and in which order they add, is decided here.

mod schedule;

pub use schedule::{ReduceSchedule, map_launch, reduce_schedule, workspace_bytes};
