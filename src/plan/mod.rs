//! Planning: decides launches, order and memory. Pure data in and out: no CUDA call, no pointer, the same bytes every time.

mod options;
mod types;

pub use crate::analysis::Hazard;
pub use options::{Fuse, FusionPlan, GemmImpl, GemmKey, Graphs, Schedule, Target, Tuning};
pub use types::{Arena, Body, Cause, Edge, EdgeKind, GraphPlan, Placement, Region, StepPlan, Unit, Work};
