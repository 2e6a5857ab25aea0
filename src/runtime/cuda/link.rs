//! A link on the device: two slots between two lanes, ordered by events on their streams. The host waits for nothing.

use std::sync::Arc;

use crate::cuda::{Context, CudaError, DeviceMemory, Event};
use crate::emit::{Lane, LaneMemory};
use crate::plan::Placement;
use crate::runtime::backend::LinkPlan;

/// Slots of a link: one can be read while the other is filled.
const SLOTS: usize = 2;

/// One end of a link.
struct End {
    lane: Arc<Lane>,
    memory: Arc<LaneMemory>,
}

/// A link between two lanes.
pub(super) struct DeviceLink {
    from: End,
    to: End,
    /// Source, target, bytes, and where the bytes lie in a slot.
    pieces: Vec<(Placement, Placement, u64)>,
    slots: Vec<Slot>,
    next: usize,
    /// Whether a call failed after which the events no longer tell what has run.
    unsettled: bool,
}

struct Slot {
    memory: DeviceMemory,
    filled: Event,
    /// Behind the copy out of the slot; reached while the slot was never used.
    taken: Event,
}

impl DeviceLink {
    pub(super) fn new(
        context: &Context,
        plan: &LinkPlan,
        from: (&Arc<Lane>, &Arc<LaneMemory>),
        to: (&Arc<Lane>, &Arc<LaneMemory>),
    ) -> Result<Self, CudaError> {
        let mut bytes = 0;
        let mut pieces = Vec::with_capacity(plan.copies.len());
        for &(source, target) in &plan.copies {
            pieces.push((source, target, bytes));
            bytes += source.bytes.next_multiple_of(256);
        }
        let slot = |_| {
            let memory = DeviceMemory::new(context, bytes)?;
            Ok(Slot { memory, filled: Event::new(context)?, taken: Event::new(context)? })
        };
        let end =
            |(lane, memory): (&Arc<Lane>, &Arc<LaneMemory>)| End { lane: Arc::clone(lane), memory: Arc::clone(memory) };
        let slots = (0..SLOTS).map(slot).collect::<Result<_, CudaError>>()?;
        Ok(Self { from: end(from), to: end(to), pieces, slots, next: 0, unsettled: false })
    }

    /// Queues one publication: source to slot on one lane, slot to target on the other. While the slot's last reader has not
    /// run, the source's lane waits for it, or, unless `wait`, nothing is queued and the answer is `false`.
    pub(super) fn publish(&mut self, wait: bool) -> Result<bool, CudaError> {
        if self.unsettled {
            self.settle()?;
        }
        let slot = &self.slots[self.next];
        if !slot.taken.is_reached()? {
            if !wait {
                return Ok(false);
            }
            self.from.lane.stream().wait(&slot.taken)?;
        }
        self.unsettled = true;
        let (from, to) = (self.from.lane.stream(), self.to.lane.stream());
        for &(source, _, offset) in &self.pieces {
            from.copy(slot.memory.address() + offset, self.from.memory.address(source), source.bytes)?;
        }
        slot.filled.record(from)?;
        to.wait(&slot.filled)?;
        for &(_, target, offset) in &self.pieces {
            to.copy(self.to.memory.address(target), slot.memory.address() + offset, target.bytes)?;
        }
        slot.taken.record(to)?;
        self.unsettled = false;
        self.next = (self.next + 1) % SLOTS;
        Ok(true)
    }

    fn settle(&mut self) -> Result<(), CudaError> {
        self.from.lane.stream().synchronize()?;
        self.to.lane.stream().synchronize()?;
        self.unsettled = false;
        Ok(())
    }
}

impl Drop for DeviceLink {
    /// Waits for queued copies, because they name the slots.
    fn drop(&mut self) {
        if let Err(error) = self.settle() {
            tracing::debug!(%error, "while dropping a link");
        }
    }
}
