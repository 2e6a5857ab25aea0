//! What a session asks of a device: memory by placement, launches by plan, completion by launch.
//!
//! A backend is opened over all plans of a session and owns their memory and executables until it is dropped. It knows
//! regions and plans; it never sees names, handles or values. The session keeps the host's image of the inbox and every rule
//! that a user can break, so a backend's errors are failures of the device or of the program's own promises.
//!
//! The host backend is in `host.rs`, the CUDA backend in `cuda/`.
//!
//! Contract
//! - [`Region::Persistent`], [`Region::Output`] and [`Region::Inbox`] are laid out alike in every plan. Each lane has an inbox
//!   and a scratch of its own; [`Region::Scratch`] is one piece of the lane's largest plan's size that its plans use in turn.
//!   Fresh memory is zero.
//! - The launches of a lane run in the order in which they were made; a [`Completion`] done means that all earlier ones of its
//!   lane are. Lanes are ordered by publications alone; a backend may also run everything in one order.
//! - Nothing but [`Backend::launch`], [`Backend::publish`] and [`Backend::is_done`] is called in the steady state.
//!
//! [`Region::Persistent`]: crate::plan::Region::Persistent
//! [`Region::Output`]: crate::plan::Region::Output
//! [`Region::Inbox`]: crate::plan::Region::Inbox
//! [`Region::Scratch`]: crate::plan::Region::Scratch

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};

use super::error::RuntimeError;
use crate::cuda::UserMemory;
use crate::ir::DType;
use crate::plan::{Placement, Region, StepPlan};

/// Names one launch of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Completion {
    /// The lane that it runs on.
    pub(crate) lane: usize,
    /// The first launch of the session is 1, each later one is larger, whatever its lane.
    pub(crate) number: u64,
}

/// Which lanes there are, and what joins them. Lane 0 is the main one.
#[derive(Clone, Debug)]
pub(crate) struct LaneLayout {
    /// How many lanes there are, at least one.
    pub(crate) lanes: usize,
    /// The lane of each plan.
    pub(crate) lane_of: Vec<usize>,
    /// The links.
    pub(crate) links: Vec<LinkPlan>,
}

impl LaneLayout {
    /// Bytes of a region that a lane's plans need.
    pub(crate) fn size(&self, plans: &[StepPlan], lane: usize, region: Region) -> u64 {
        let of_lane = plans.iter().zip(&self.lane_of).filter(|&(_, &of)| of == lane);
        of_lane.map(|(plan, _)| plan.arena().size(region)).max().unwrap_or(0)
    }
}

/// What one publication copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkPlan {
    /// The lane that writes the source.
    pub(crate) from: usize,
    /// The lane that reads the target.
    pub(crate) to: usize,
    /// Source and target, of equal size each.
    pub(crate) copies: Vec<(Placement, Placement)>,
}

/// What a read must come after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Everything that this lane holds now.
    After(usize),
    /// Nothing: what this lane wrote there is known to be there, and nothing writes it.
    Settled(usize),
}

/// What the user asked for when the session was opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenOptions {
    /// Whether scratch is filled with NaN (every byte 0xFF) before each launch.
    pub(crate) poison: bool,
    /// Whether each launch of a node or graph is waited for, so that a fault names it. The host always does.
    pub(crate) checked: bool,
    /// The user's own context, in place of the device's primary one.
    pub(crate) context: Option<Arc<CudaContext>>,
    /// The user's own stream, in place of a fresh one.
    pub(crate) stream: Option<Arc<CudaStream>>,
    /// The user's own memory, in place of parts of the session's, by buffer.
    pub(crate) lent: Vec<Lent>,
}

/// Memory of the user's that takes the place of a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    pub(crate) buffer: String,
    pub(crate) dtype: DType,
    pub(crate) memory: UserMemory,
}

impl OpenOptions {
    /// The options, where none of them needs CUDA.
    pub(crate) fn without_cuda(&self) -> Result<&Self, RuntimeError> {
        let given =
            [("stream", self.stream.is_some()), ("context", self.context.is_some()), ("buffer", !self.lent.is_empty())];
        match given.into_iter().find(|&(_, given)| given) {
            Some((what, _)) => Err(RuntimeError::NotOnHost { what }),
            None => Ok(self),
        }
    }
}

/// A device that runs plans.
pub(crate) trait Backend {
    /// The device's name and what drives it, for reports: `host`, `cuda:0 NVIDIA H200`.
    fn device(&self) -> String;

    /// Writes bytes after all launches of all lanes so far, and returns when they are there. Never called for the inbox.
    fn upload(&mut self, to: Placement, bytes: &[u8]) -> Result<(), RuntimeError>;

    /// Reads bytes. `into` is as long as the placement. Waits for nothing but what `order` says.
    fn download(&mut self, from: Placement, into: &mut [u8], order: Order) -> Result<(), RuntimeError>;

    /// Keeps the bytes of these placements as they are after all launches of the main lane so far, in the order of `pieces`. Never
    /// blocks, and later launches may change the memory at once. Never called for the inbox, for outputs, or for what another
    /// lane writes.
    fn snapshot(&mut self, pieces: &[Placement]) -> Result<Box<dyn SnapshotReader>, RuntimeError>;

    /// Launches the plan of this index in the list that the backend was opened with, on its lane.
    ///
    /// `inbox` is the whole region, where it has changed since the lane's last launch; the bytes may be reused on return.
    fn launch(&mut self, plan: usize, inbox: Option<&[u8]>) -> Result<Completion, RuntimeError>;

    /// Copies a link's source to its target, after all launches of the source's lane so far and before the next ones, and before
    /// the next launch of the target's lane. Never blocks the host. Where the link's slots are all in use, the source's lane
    /// waits for one, or, unless `wait`, nothing is done and the answer is `false`.
    fn publish(&mut self, link: usize, wait: bool) -> Result<bool, RuntimeError>;

    /// Whether a launch has finished; never blocks. A fault on the device is an error here, or in `wait`.
    fn is_done(&mut self, launch: Completion) -> Result<bool, RuntimeError>;

    /// Returns when a launch has finished; waits for nothing that was launched later, or on another lane.
    fn wait(&mut self, launch: Completion) -> Result<(), RuntimeError>;

    /// Starts to measure: what is launched on the main lane from here on counts.
    fn start_timer(&mut self) -> Result<(), RuntimeError>;

    /// The device's time from [`Backend::start_timer`] to the end of everything that the main lane launched since. Waits for it.
    fn stop_timer(&mut self) -> Result<Duration, RuntimeError>;

    /// The cell that ends a lane's loops: while it is not 0, no `While` starts another iteration.
    fn stop_cell(&self, lane: usize) -> Arc<dyn StopCell>;

    /// What one plan became on the device.
    fn emitted(&self, plan: usize) -> Emitted;

    /// Every node that a plan became, those taken over from libraries included, as text; `None` where there are none.
    fn dump(&self, _plan: usize) -> Option<String> {
        None
    }

    /// Whether the memory of this placement is the user's own, whose contents are not to be replaced when a session opens.
    fn is_lent(&self, _at: Placement) -> bool {
        false
    }

    /// How long the parts of opening took, in order.
    fn startup(&self) -> &[Lap] {
        &[]
    }

    /// The raw handles of a plan, where the device has any.
    fn raw(&self, _plan: usize) -> Option<RawHandles> {
        None
    }
}

/// The bytes that a snapshot kept, read once and on any thread.
pub(crate) trait SnapshotReader: Send {
    /// The next bytes, of each piece in turn and never of two; `None` behind the last. Waits for the device.
    fn next(&mut self) -> Result<Option<&[u8]>, RuntimeError>;
}

/// A `u32` that loops read between iterations, possibly while they run on another thread or device.
pub(crate) trait StopCell: Send + Sync {
    /// Sets the cell.
    fn set(&self, stop: bool);
}

/// What one plan became: how much is launched per step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Emitted {
    /// CUDA graphs; 0 where nodes are launched one by one, and on the host.
    pub graphs: usize,
    /// Nodes of all graphs, those of bodies and those harvested from libraries included.
    pub nodes: usize,
    /// Dependency edges of all graphs.
    pub edges: usize,
    /// Calls that start work on the device, per launch of the step, without the inbox copy.
    pub launches: usize,
}

/// One part of opening a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    /// What was done: `create the context`.
    pub what: &'static str,
    /// How long it took.
    pub took: Duration,
}

/// Driver handles of a session, as the driver's C interface passes them. Valid as long as the session.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RawHandles {
    /// `CUcontext`.
    pub context: usize,
    /// `CUstream` that launches go to.
    pub stream: usize,
    /// `CUgraphExec` of each graph, in launch order; empty where nodes are launched one by one.
    pub graph_execs: Vec<usize>,
    /// Device address of each region, in the order of [`crate::plan::Region::ALL`].
    pub regions: [u64; 4],
}
