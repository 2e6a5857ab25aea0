//! The device memory of a session, and where placements lie in it.

use std::sync::Arc;

use crate::cuda::{Context, CudaError, DeviceMemory, PinnedMemory, UserMemory};
use crate::plan::{Placement, Region};

/// The memory that all executables of a session share. Each of them keeps it alive.
#[derive(Debug)]
pub struct SessionMemory {
    inbox: DeviceMemory,
    persistent: DeviceMemory,
    output: PinnedMemory,
    scratch: DeviceMemory,
    stop: PinnedMemory,
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
            inbox: DeviceMemory::new(context, size(Region::Inbox))?,
            persistent: DeviceMemory::new(context, size(Region::Persistent))?,
            output: PinnedMemory::mapped(context, size(Region::Output))?,
            scratch: DeviceMemory::new(context, size(Region::Scratch))?,
            stop: PinnedMemory::mapped(context, 4)?,
            lent,
        }))
    }

    /// The address of a region's first byte, as kernels see it.
    pub fn region(&self, region: Region) -> u64 {
        match region {
            Region::Inbox => self.inbox.address(),
            Region::Persistent => self.persistent.address(),
            Region::Output => self.output.device_address(),
            Region::Scratch => self.scratch.address(),
        }
    }

    /// The size of a region in bytes.
    pub fn size(&self, region: Region) -> u64 {
        match region {
            Region::Inbox => self.inbox.size(),
            Region::Persistent => self.persistent.size(),
            Region::Output => self.output.size(),
            Region::Scratch => self.scratch.size(),
        }
    }

    /// The address of a placement, as kernels see it; the user's own where the user lent a buffer for it.
    pub fn address(&self, at: Placement) -> u64 {
        match self.lent(at) {
            Some((place, memory)) => memory.address() + (at.offset - place.offset),
            None => self.region(at.region) + at.offset,
        }
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

    /// Outputs, as the host reads them.
    pub fn output(&self) -> &PinnedMemory {
        &self.output
    }

    /// The mapped word by which the host ends loops.
    pub fn stop(&self) -> &PinnedMemory {
        &self.stop
    }

    /// Whether the host has asked loops to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.first_word() != 0
    }
}
