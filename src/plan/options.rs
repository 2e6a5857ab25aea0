//! What a plan is made from besides the program: the user's choices, the device class, and what was measured.

use std::collections::BTreeMap;
use std::fmt;

use crate::ir::{Compute, Gemm};

/// How a step is cut into launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Graphs {
    /// Stream launches, one by one; no graph.
    PerNode,
    /// One graph per phase.
    PerPhase,
    /// One graph for the whole step.
    Mega,
}

/// In which order a graph's units may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// One after another, in program order. Memory is reused by liveness.
    Chain,
    /// As their hazards allow. Memory is reused only where the edges already order all uses.
    Dag,
}

/// Which passes may change nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fuse {
    /// None.
    None,
    /// All of them.
    All,
    /// Those named, in the compiler's own order; see [`crate::pass::NAMES`].
    Named(Vec<String>),
}

/// How many steps one run of a plan makes.
///
/// A plan of K steps leaves the bits that K runs of the single step leave. Host scalars hold one value for all K; outputs, and
/// temps that are tapped, have what the last step wrote. A step that reads an `Input` runs once per launch only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeat {
    /// One step.
    Once,
    /// So many copies of the step's units, ordered by the hazards between all of them: work of neighbouring steps may overlap.
    Unroll(u32),
    /// One loop node around the step, which runs it so often. Needs [`Graphs::Mega`].
    Loop(u32),
}

impl Repeat {
    /// Steps of one run.
    pub const fn steps(self) -> u32 {
        match self {
            Self::Once => 1,
            Self::Unroll(steps) | Self::Loop(steps) => steps,
        }
    }

    /// How often the plan lists each unit.
    pub const fn copies(self) -> u32 {
        match self {
            Self::Unroll(steps) => steps,
            Self::Once | Self::Loop(_) => 1,
        }
    }
}

/// `once`, `unroll 4`, `loop 4`.
impl fmt::Display for Repeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Once => f.write_str("once"),
            Self::Unroll(steps) => write!(f, "unroll {steps}"),
            Self::Loop(steps) => write!(f, "loop {steps}"),
        }
    }
}

/// How a step becomes launches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FusionPlan {
    /// The plan's name, as dumps show it.
    pub name: String,
    /// How the step is cut.
    pub graphs: Graphs,
    /// How units are ordered.
    pub schedule: Schedule,
    /// Which passes run.
    pub fuse: Fuse,
    /// Whether kernels that promise it are launched programmatically.
    pub pdl: bool,
    /// How many steps one run makes.
    pub repeat: Repeat,
}

impl FusionPlan {
    /// The names of the plans that every program has.
    pub const NAMES: [&str; 4] = ["debug", "phases", "mega", "fast"];

    /// Stream launches, one after another, nothing fused: for finding the node at fault.
    pub fn debug() -> Self {
        Self {
            name: "debug".into(),
            graphs: Graphs::PerNode,
            schedule: Schedule::Chain,
            fuse: Fuse::None,
            pdl: false,
            repeat: Repeat::Once,
        }
    }

    /// One graph per phase.
    pub fn phases() -> Self {
        Self { name: "phases".into(), graphs: Graphs::PerPhase, schedule: Schedule::Dag, ..Self::debug() }
    }

    /// One graph for the whole step.
    pub fn mega() -> Self {
        Self { name: "mega".into(), graphs: Graphs::Mega, ..Self::phases() }
    }

    /// The fastest plan that is known; at present what [`FusionPlan::mega`] is.
    pub fn fast() -> Self {
        Self { name: "fast".into(), ..Self::mega() }
    }

    /// This plan with another number of steps per run; its name says so, as in `mega loop 4`.
    #[must_use]
    pub fn repeated(self, repeat: Repeat) -> Self {
        let single = self.name.strip_suffix(&format!(" {}", self.repeat)).unwrap_or(&self.name);
        let name = if repeat == Repeat::Once { single.to_owned() } else { format!("{single} {repeat}") };
        Self { name, repeat, ..self }
    }

    /// The plan of this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "debug" => Some(Self::debug()),
            "phases" => Some(Self::phases()),
            "mega" => Some(Self::mega()),
            "fast" => Some(Self::fast()),
            _ => None,
        }
    }
}

/// The device class that a plan is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The compute capability times ten: 90 for Hopper.
    pub sm: u32,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// The most dynamic shared memory of one block, in bytes.
    pub shared_per_block: u32,
    /// The driver's CUDA version times 1000 (13000 for 13.0), which gates conditional nodes.
    pub driver: u32,
}

/// An H200 under CUDA 13.0.
impl Default for Target {
    fn default() -> Self {
        Self { sm: 90, multiprocessors: 132, shared_per_block: 232_448, driver: 13_000 }
    }
}

/// How a matrix product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmImpl {
    /// The vendor's library.
    Library {
        /// Which of the library's suggestions for this problem, best guess first, is taken.
        algo: u32,
        /// Bytes of workspace that it may use.
        workspace: u64,
    },
}

/// A matrix product's problem, for looking up what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GemmKey {
    /// Rows of D.
    pub m: u32,
    /// Columns of D.
    pub n: u32,
    /// The inner extent.
    pub k: u32,
    /// Whether A is taken transposed.
    pub transposed_a: bool,
    /// Whether B is taken transposed.
    pub transposed_b: bool,
    /// The arithmetic, by name.
    pub compute: &'static str,
}

impl GemmKey {
    /// The key of a problem.
    pub fn new([m, n, k]: [u32; 3], transposed_a: bool, transposed_b: bool, compute: Compute) -> Self {
        Self { m, n, k, transposed_a, transposed_b, compute: compute.name() }
    }

    /// The key of a product's problem.
    pub(super) fn of(gemm: &Gemm) -> Self {
        let (m, n, k) = gemm.dims().unwrap_or_default();
        Self::new([m, n, k], gemm.a.transposed, gemm.b.transposed, gemm.compute)
    }
}

/// What was measured on a device, to choose implementations by.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tuning {
    /// The implementation of each problem; a problem that is not here takes [`Tuning::default_gemm`].
    pub gemms: BTreeMap<GemmKey, GemmImpl>,
}

impl Tuning {
    /// The most workspace of a problem that nobody measured: 4 MiB.
    pub const MAX_WORKSPACE: u64 = 4 << 20;

    /// What a problem that nobody measured gets: the library's first suggestion, with workspace for 32 results of float32, so
    /// that it may split k into 32 parts: 128·m·n bytes in whole placements of 256, at most [`Tuning::MAX_WORKSPACE`].
    ///
    /// Products that may run side by side have a workspace each: the same 4 MiB for all took 26 GB for a few thousand small ones.
    pub fn default_gemm(key: &GemmKey) -> GemmImpl {
        let results = u64::from(key.m).saturating_mul(u64::from(key.n)).saturating_mul(4 * 32);
        let workspace = results.min(Self::MAX_WORKSPACE).next_multiple_of(256);
        GemmImpl::Library { algo: 0, workspace }
    }

    /// The implementation of a problem.
    pub fn gemm(&self, key: &GemmKey) -> GemmImpl {
        self.gemms.get(key).copied().unwrap_or_else(|| Self::default_gemm(key))
    }
}
