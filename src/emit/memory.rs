//! The device memory of a session and of its lanes, and where placements lie in it.

use std::sync::Arc;

use crate::cuda::{Context, CudaError, DeviceMemory, PinnedMemory, UserMemory};
use crate::plan::{Placement, Region};

/// The memory that all lanes of a session share: what lasts from launch to launch.
#[derive(Debug)]
pub struct SessionMemory {
    persistent: DeviceMemory,
    output: PinnedMemory,
    lent: Vec<(Placement, UserMemory)>,
}

impl SessionMemory {
    /// Memory with these sizes, by region; its contents are not defined, those of `Output` are zero. `lent` holds buffers
    /// of the user's that take the place of parts of the persistent region.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn new(
        context: &Context,
        size: impl Fn(Region) -> u64,
        lent: Vec<(Placement, UserMemory)>,
    ) -> Result<Arc<Self>, CudaError> {
        Ok(Arc::new(Self {
            persistent: DeviceMemory::new(context, size(Region::Persistent))?,
            output: PinnedMemory::mapped(context, size(Region::Output))?,
            lent,
        }))
    }

    /// Outputs, as the host reads them.
    pub fn output(&self) -> &PinnedMemory {
        &self.output
    }

    /// Whether a placement lies in a buffer that the user lent.
    pub fn is_lent(&self, at: Placement) -> bool {
        self.lent(at).is_some()
    }

    fn lent(&self, at: Placement) -> Option<&(Placement, UserMemory)> {
        let holds = |place: &Placement| {
            place.region == at.region && place.offset <= at.offset && at.offset + at.bytes <= place.offset + place.bytes
        };
        self.lent.iter().find(|(place, _)| holds(place))
    }
}

/// The memory that the executables of one lane see: the session's, and what no other lane may touch. Each executable keeps it
/// alive.
#[derive(Debug)]
pub struct LaneMemory {
    shared: Arc<SessionMemory>,
    inbox: DeviceMemory,
    scratch: DeviceMemory,
    stop: PinnedMemory,
}

impl LaneMemory {
    /// An inbox, scratch and a stop word of a lane's own, with these sizes; the contents of the first two are not defined.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn new(
        context: &Context,
        shared: &Arc<SessionMemory>,
        size: impl Fn(Region) -> u64,
    ) -> Result<Arc<Self>, CudaError> {
        Ok(Arc::new(Self {
            shared: Arc::clone(shared),
            inbox: DeviceMemory::new(context, size(Region::Inbox))?,
            scratch: DeviceMemory::new(context, size(Region::Scratch))?,
            stop: PinnedMemory::mapped(context, 4)?,
        }))
    }

    /// The address of a region's first byte, as kernels see it.
    pub fn region(&self, region: Region) -> u64 {
        match region {
            Region::Inbox => self.inbox.address(),
            Region::Persistent => self.shared.persistent.address(),
            Region::Output => self.shared.output.device_address(),
            Region::Scratch => self.scratch.address(),
        }
    }

    /// The size of a region in bytes.
    pub fn size(&self, region: Region) -> u64 {
        match region {
            Region::Inbox => self.inbox.size(),
            Region::Persistent => self.shared.persistent.size(),
            Region::Output => self.shared.output.size(),
            Region::Scratch => self.scratch.size(),
        }
    }

    /// The address of a placement, as kernels see it; the user's own where the user lent a buffer for it.
    pub fn address(&self, at: Placement) -> u64 {
        match self.shared.lent(at) {
            Some((place, memory)) => memory.address() + (at.offset - place.offset),
            None => self.region(at.region) + at.offset,
        }
    }

    /// What all lanes of the session share.
    pub fn shared(&self) -> &Arc<SessionMemory> {
        &self.shared
    }

    /// The mapped word by which the host ends this lane's loops.
    pub fn stop(&self) -> &PinnedMemory {
        &self.stop
    }

    /// Whether the host has asked loops to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.first_word() != 0
    }
}
