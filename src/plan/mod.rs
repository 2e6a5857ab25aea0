//! Planning: decides launches, order and memory. Pure data in and out: no CUDA call, no pointer, the same bytes every time.

mod arena;
mod check;
mod counts;
mod error;
mod identity;
mod launch;
mod options;
mod order;
mod packing;
mod planner;
mod repeat;
mod show;
mod timeline;
mod types;
mod units;

pub use crate::analysis::Hazard;
pub use check::{CheckError, check};
pub use counts::Counts;
pub use error::{PlanError, PlanNode};
pub use identity::PlanIdentity;
pub use options::{Fuse, FusionPlan, GemmImpl, GemmKey, Graphs, Repeat, Schedule, Target, Tuning};
pub use planner::plan;
pub use types::{Arena, Body, Cause, Edge, EdgeKind, GraphPlan, Placement, PlanParts, Region, StepPlan, Unit, Work};
