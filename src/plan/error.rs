//! Why a step cannot be planned, one rule each.

use std::fmt;

use super::check::CheckError;
use super::types::Region;
use crate::ir::Origin;
use crate::pass::PassError;

/// A rule of planning that a step, its target or its options break.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The step must be one of the program's.
    #[error("program `{program}` has no step `{step}`: its steps are {}", .known.join(", "))]
    UnknownStep {
        /// The program.
        program: String,
        /// What was asked for.
        step: String,
        /// The steps that exist.
        known: Vec<String>,
    },
    /// The variant must be one of the step's.
    #[error("step `{step}` has no variant `{variant}`: {}", known_variants(.known))]
    UnknownVariant {
        /// The step.
        step: String,
        /// What was asked for.
        variant: String,
        /// The variants that exist.
        known: Vec<String>,
    },
    /// A step with variants is planned for one of them.
    #[error("step `{step}` has the variants {}: name one of them", .known.join(", "))]
    VariantNeeded {
        /// The step.
        step: String,
        /// The variants that exist.
        known: Vec<String>,
    },
    /// Passes exist and make valid programs.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A launch keeps the limits of every CUDA device: grid x up to 2³¹ - 1, y and z up to 65,535; blocks of 1 to 1,024
    /// threads, z up to 64.
    #[error("node {node}: {what} is {found}, the limit is {limit}: {remedy}")]
    LaunchLimit {
        /// The node.
        node: PlanNode,
        /// Which number.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The largest one that is possible.
        limit: u64,
        /// What to do.
        remedy: &'static str,
    },
    /// No extent of a grid or block is zero.
    #[error("node {node}: an extent of its {what} is 0: its launch rule must give at least one block of one thread")]
    EmptyLaunch {
        /// The node.
        node: PlanNode,
        /// `grid` or `block`.
        what: &'static str,
    },
    /// A block's shared memory fits the target: what is above 48 KiB is opted into, up to the target's own limit.
    #[error(
        "node {node}: a block takes {found} bytes of shared memory, the target has {limit}: take smaller tiles, or plan \
         for another device"
    )]
    SharedMemory {
        /// The node.
        node: PlanNode,
        /// Bytes of a block.
        found: u64,
        /// Bytes that the target has.
        limit: u64,
    },
    /// A thread-block cluster has at most 8 blocks, its extents divide the grid, and the device is sm_90 or later.
    #[error("node {node}: a cluster of {cluster} {reason}")]
    Cluster {
        /// The node.
        node: PlanNode,
        /// The cluster's extents.
        cluster: String,
        /// What is wrong with it.
        reason: String,
    },
    /// All blocks of a cooperative kernel are resident at once.
    #[error(
        "node {node}: a cooperative grid of {found} blocks, but at most {limit} can be resident on {multiprocessors} \
         multiprocessors: let each block do more"
    )]
    CooperativeGrid {
        /// The node.
        node: PlanNode,
        /// Blocks of the grid.
        found: u64,
        /// Blocks that can be resident, registers not counted.
        limit: u64,
        /// Multiprocessors of the target.
        multiprocessors: u32,
    },
    /// A launch rule names arguments and symbols that the call has.
    #[error("node {node}: the launch rule of kernel `{kernel}` needs `{name}`, which the call does not give")]
    LaunchRule {
        /// The node.
        node: PlanNode,
        /// The kernel.
        kernel: String,
        /// The argument or symbol.
        name: String,
    },
    /// `If` without `else` and `While` need a driver for CUDA 12.4, `else` and `Switch` one for 12.8.
    #[error("node {node}: {what} needs a driver for CUDA {}, the target has {}: update the driver", version(*.needed), version(*.found))]
    DriverTooOld {
        /// The node.
        node: PlanNode,
        /// What it is.
        what: &'static str,
        /// The target's driver, as CUDA version times 1000 plus ten times the minor version.
        found: u32,
        /// The oldest that will do.
        needed: u32,
    },
    /// A plan runs its step at least once.
    #[error("plan `{plan}` runs its step 0 times: take at least 1")]
    NoSteps {
        /// The plan.
        plan: String,
    },
    /// The steps of a plan of several read an `Input` in parts of their own only: all of them see what the host wrote once.
    #[error(
        "plan `{plan}` makes several steps per launch, but node {node} reads the same part of the input `{input}` in all of \
         them: let a map pick a part by a counter that the step advances (`x[t % K, i0]`), or launch single steps"
    )]
    RepeatedInput {
        /// The plan.
        plan: String,
        /// The input.
        input: String,
        /// The first node that reads it.
        node: PlanNode,
    },
    /// A loop of steps is one graph: only plans with one graph for the step can be looped.
    #[error("plan `{plan}` loops over its step, but cuts it into {cut}: take a plan with one graph, or unroll")]
    LoopOfParts {
        /// The plan.
        plan: String,
        /// `graphs per phase`, or `launches per node`.
        cut: &'static str,
    },
    /// Conditionals of a looped step lie at most 31 deep in each other: the loop is one more.
    #[error(
        "node {node} lies {found} conditionals deep, and a loop around the step would be one more, the limit is {limit}: unroll"
    )]
    LoopTooDeep {
        /// The innermost conditional.
        node: PlanNode,
        /// How deep it lies, itself included.
        found: usize,
        /// The deepest that is possible, the loop included.
        limit: usize,
    },
    /// An unrolled plan has at most 131,072 units.
    #[error("plan `{plan}` would have {found} units, the limit is {limit}: unroll fewer steps, or loop")]
    TooManyUnits {
        /// The plan.
        plan: String,
        /// Units of all copies.
        found: u64,
        /// The most that is possible.
        limit: u64,
    },
    /// Each region of memory is smaller than 2⁴⁷ bytes, the address space of a device.
    #[error("the {} region needs {bytes} bytes, more than a device can address: make buffers smaller", .region.name())]
    ArenaTooLarge {
        /// The region.
        region: Region,
        /// Its size.
        bytes: u64,
    },
    /// A plan passes its own check; a failure is a defect of the planner.
    #[error("the plan failed its check (a defect of stepgraph): {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Unsound(Vec<CheckError>),
}

impl PlanError {
    /// Where the node that breaks the rule was written; unknown for rules that are not about a node.
    pub fn origin(&self) -> Origin {
        self.node().map_or(Origin::Unknown, |node| node.origin)
    }

    /// The node that breaks the rule.
    fn node(&self) -> Option<&PlanNode> {
        match self {
            Self::LaunchLimit { node, .. }
            | Self::EmptyLaunch { node, .. }
            | Self::SharedMemory { node, .. }
            | Self::Cluster { node, .. }
            | Self::CooperativeGrid { node, .. }
            | Self::LaunchRule { node, .. }
            | Self::DriverTooOld { node, .. }
            | Self::RepeatedInput { node, .. }
            | Self::LoopTooDeep { node, .. } => Some(node),
            Self::UnknownStep { .. }
            | Self::UnknownVariant { .. }
            | Self::VariantNeeded { .. }
            | Self::Pass(_)
            | Self::NoSteps { .. }
            | Self::LoopOfParts { .. }
            | Self::TooManyUnits { .. }
            | Self::ArenaTooLarge { .. }
            | Self::Unsound(_) => None,
        }
    }
}

/// A node that breaks a rule, by its name in the plan; shown with the line of Rust that made it, where one did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanNode {
    /// `phase.node`, as the plan calls it.
    pub name: String,
    /// Where it was written; what a pass made was written where that which it stands for was.
    pub origin: Origin,
}

impl fmt::Display for PlanNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.name)?;
        match self.origin {
            Origin::Code(_) => write!(f, " ({})", self.origin),
            Origin::Unknown | Origin::Spec { .. } => Ok(()),
        }
    }
}

fn known_variants(known: &[String]) -> String {
    match known {
        [] => "it has none".to_owned(),
        known => format!("its variants are {}", known.join(", ")),
    }
}

/// `12.4` for 12040.
fn version(driver: u32) -> String {
    format!("{}.{}", driver / 1000, driver % 1000 / 10)
}
