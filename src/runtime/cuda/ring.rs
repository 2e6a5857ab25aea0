//! The ring through which a lane's inbox travels.

use super::flights::Flights;
use crate::cuda::{Context, CudaError, PinnedMemory, Stream};

/// Images of the inbox that can be on their way at once.
const SLOTS: usize = 4;

/// Pinned images of the inbox, used in turn. A slot is used again only when the launch that read it has finished.
pub(super) struct Ring {
    slots: Vec<PinnedMemory>,
    users: [u64; SLOTS],
    next: usize,
}

impl Ring {
    pub(super) fn new(context: &Context, bytes: u64) -> Result<Self, CudaError> {
        let slots = (0..SLOTS).map(|_| PinnedMemory::new(context, bytes)).collect::<Result<_, _>>()?;
        Ok(Self { slots, users: [0; SLOTS], next: 0 })
    }

    /// Queues the copy of an image that `launch`, the next of the lane, will read.
    pub(super) fn send(
        &mut self,
        image: &[u8],
        to: u64,
        launch: u64,
        stream: &Stream,
        flights: &mut Flights,
    ) -> Result<(), CudaError> {
        let slot = self.next;
        if flights.covers(self.users[slot]) {
            flights.wait(self.users[slot])?;
        } else {
            // The launch that the slot was filled for failed: no event tells when its copy has run.
            stream.synchronize()?;
        }
        self.slots[slot].write(0, image)?;
        stream.copy_in(to, &self.slots[slot], 0, image.len() as u64)?;
        self.users[slot] = launch;
        self.next = (slot + 1) % SLOTS;
        Ok(())
    }
}
