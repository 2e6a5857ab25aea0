//! The plan as data: units, edges, graphs, memory.

use indexmap::IndexMap;

use super::check::{CheckError, check};
use super::options::{FusionPlan, GemmImpl, Target};
use crate::analysis::Hazard;
use crate::codegen::ReduceSchedule;
use crate::entity::{BufferId, NodeId, PhaseId, PrimaryMap, ScalarId, SecondaryMap, StepId, UnitId};
use crate::ir::{LaunchConfig, Resource};
use crate::valid::ValidProgram;

/// The parts of a plan, for reading and for making plans by hand; see [`StepPlan::from_parts`].
#[derive(Clone, Debug)]
pub struct PlanParts {
    /// The program after the plan's passes.
    pub program: ValidProgram,
    /// The step.
    pub step: StepId,
    /// The variant, where the step has variants.
    pub variant: Option<String>,
    /// The choices.
    pub fusion: FusionPlan,
    /// The device class.
    pub target: Target,
    /// Every unit.
    pub units: PrimaryMap<UnitId, Unit>,
    /// The graphs, in launch order.
    pub graphs: Vec<GraphPlan>,
    /// Where everything lies.
    pub arena: Arena,
}

/// A step, lowered: what is launched, in which order, over which memory. Immutable.
#[derive(Clone, Debug)]
pub struct StepPlan {
    pub(super) program: ValidProgram,
    pub(super) step: StepId,
    pub(super) variant: Option<String>,
    pub(super) fusion: FusionPlan,
    pub(super) target: Target,
    pub(super) units: PrimaryMap<UnitId, Unit>,
    pub(super) graphs: Vec<GraphPlan>,
    pub(super) arena: Arena,
}

impl StepPlan {
    /// The plan of these parts, if it proves right.
    ///
    /// # Errors
    /// Every rule of [`check`] that it breaks.
    pub fn from_parts(parts: PlanParts) -> Result<Self, Vec<CheckError>> {
        let PlanParts { program, step, variant, fusion, target, units, graphs, arena } = parts;
        let plan = Self { program, step, variant, fusion, target, units, graphs, arena };
        check(&plan).map(|()| plan)
    }

    /// The plan's parts.
    pub fn into_parts(self) -> PlanParts {
        let Self { program, step, variant, fusion, target, units, graphs, arena } = self;
        PlanParts { program, step, variant, fusion, target, units, graphs, arena }
    }

    /// The program after the plan's passes; ids in the plan are of this program.
    pub fn program(&self) -> &ValidProgram {
        &self.program
    }

    /// The step.
    pub fn step(&self) -> StepId {
        self.step
    }

    /// The step's name.
    pub fn step_name(&self) -> &str {
        &self.program.program().steps[self.step].name
    }

    /// The variant, where the step has variants.
    pub fn variant(&self) -> Option<&str> {
        self.variant.as_deref()
    }

    /// The choices that the plan was made with.
    pub fn fusion(&self) -> &FusionPlan {
        &self.fusion
    }

    /// The device class that the plan was made for.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Every unit, those of conditional bodies included.
    pub fn units(&self) -> &PrimaryMap<UnitId, Unit> {
        &self.units
    }

    /// The graphs, in launch order.
    pub fn graphs(&self) -> &[GraphPlan] {
        &self.graphs
    }

    /// Where everything lies.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }
}

/// A graph: one launch. Under per-node plans it is a list of stream launches instead.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphPlan {
    /// The phase's name, numbered as units are where the plan is unrolled; the step's for a mega-graph.
    pub name: String,
    /// What it runs.
    pub body: Body,
}

/// Units and the order between them; the units are listed in one legal order.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Body {
    /// The units.
    pub units: Vec<UnitId>,
    /// Dependency edges, sorted by target, then source, in list order.
    pub edges: Vec<Edge>,
}

/// One launch: a node, or several that were merged.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// `phase.node`, and `phase.node#2` for the second step of an unrolled plan.
    pub name: String,
    /// The phase.
    pub phase: PhaseId,
    /// The node.
    pub node: NodeId,
    /// Which step of an unrolled plan it belongs to, from 0; 0 under other plans.
    pub iteration: u32,
    /// How it runs.
    pub work: Work,
}

/// How a unit runs. What it computes is in the node.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A hand-written kernel.
    Kernel(LaunchConfig),
    /// A generated element-wise kernel.
    Map(LaunchConfig),
    /// One or two generated kernels. Their scratch is the unit's workspace.
    Reduce(ReduceSchedule),
    /// A matrix product. Its scratch is the unit's workspace.
    Gemm(GemmImpl),
    /// A memcpy node, or a generated kernel where the boxes are not two-dimensional, and inside of conditionals.
    Copy,
    /// A memset node, or a generated kernel where the box is not two-dimensional, and inside of conditionals.
    Fill,
    /// A conditional with two bodies; the second may be empty.
    If {
        /// Where the condition holds.
        then_body: Body,
        /// Where it does not.
        else_body: Body,
    },
    /// A conditional with a body per value.
    Switch {
        /// The bodies.
        bodies: Vec<Body>,
    },
    /// A loop.
    While {
        /// Its body.
        body: Body,
    },
}

impl Work {
    /// The bodies of a conditional, in order; none for other units.
    pub fn bodies(&self) -> Vec<&Body> {
        match self {
            Self::If { then_body, else_body } => vec![then_body, else_body],
            Self::Switch { bodies } => bodies.iter().collect(),
            Self::While { body } => vec![body],
            _ => Vec::new(),
        }
    }
}

/// A dependency between two units of one body.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    /// Runs first.
    pub from: UnitId,
    /// Runs after.
    pub to: UnitId,
    /// Why; never empty.
    pub causes: Vec<Cause>,
    /// How long the target waits.
    pub kind: EdgeKind,
}

/// How long an edge's target waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EdgeKind {
    /// Until the source has finished.
    Full,
    /// Until the source has triggered; the target itself waits for the rest (programmatic dependent launch).
    Programmatic,
}

/// Why two units are ordered.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// Both touch the same memory, and one of them writes it.
    Hazard {
        /// Which kind.
        hazard: Hazard,
        /// The memory, as the later unit names it.
        resource: Resource,
        /// The earlier and later unit, where the edge only lies on the path that covers the hazard.
        via: Option<(UnitId, UnitId)>,
    },
    /// The user asked for it.
    After {
        /// The earlier and later unit, where the edge only lies on the path that covers the wish.
        via: Option<(UnitId, UnitId)>,
    },
    /// Both are conditionals inside of a loop: drivers have been seen to hang where two of them ran side by side
    /// (`docs/plans.md`, "Conditionals inside of loops").
    OneAtATime {
        /// The earlier and later unit, where the edge only lies on the path that orders them.
        via: Option<(UnitId, UnitId)>,
    },
    /// The plan runs units one after another.
    Chain,
}

impl Cause {
    /// The earlier and later unit that the cause is about, where its edge only lies on the path between them.
    pub const fn via(&self) -> Option<(UnitId, UnitId)> {
        match self {
            Self::Hazard { via, .. } | Self::After { via } | Self::OneAtATime { via } => *via,
            Self::Chain => None,
        }
    }
}

/// A piece of the session's memory with its own kind of allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Region {
    /// Host scalars and inputs: one copy from the pinned ring fills it.
    Inbox,
    /// Device scalars, parameters and state, and groups of temps with padding, which must stay zero. The same in every plan
    /// of a program.
    Persistent,
    /// Outputs: pinned host memory that the device writes. The same in every plan of a program.
    Output,
    /// Temps and workspaces of one launch; each plan lays them out for itself.
    Scratch,
}

impl Region {
    /// Every region.
    pub const ALL: [Self; 4] = [Self::Inbox, Self::Persistent, Self::Output, Self::Scratch];

    /// The region's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Persistent => "persistent",
            Self::Output => "output",
            Self::Scratch => "scratch",
        }
    }
}

/// Bytes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The region.
    pub region: Region,
    /// Bytes from the region's start: a multiple of 256 for buffers outside groups and for workspaces, of 16 for
    /// members of groups, of 4 for scalars.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl Placement {
    /// One past the last byte.
    pub const fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    /// Whether both share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.region == other.region && self.offset < other.end() && other.offset < self.end()
    }
}

/// Where everything lies.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Arena {
    /// Buffers; `None` for a `Temp` that this plan does not touch.
    pub buffers: SecondaryMap<BufferId, Option<Placement>>,
    /// Scalars.
    pub scalars: SecondaryMap<ScalarId, Option<Placement>>,
    /// Workspaces of units that need one.
    pub workspaces: SecondaryMap<UnitId, Option<Placement>>,
    /// Bytes of each region.
    pub sizes: IndexMap<Region, u64>,
}

impl Arena {
    /// Bytes of a region.
    pub fn size(&self, region: Region) -> u64 {
        self.sizes.get(&region).copied().unwrap_or(0)
    }
}
