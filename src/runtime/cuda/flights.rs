//! Launches in flight: an event behind each, so that one can be asked for or waited for without waiting for more.

use std::collections::VecDeque;

use crate::cuda::{Context, CudaError, Event, Stream};

/// Launches in flight before finished ones are looked for.
const TIDY: usize = 16;

/// Launches of one lane that may not have finished, oldest first.
pub(super) struct Flights {
    context: Context,
    flying: VecDeque<Flight>,
    spare: Vec<Event>,
    /// The last launch that is known to have finished, and so have all of the lane before it.
    done: u64,
    last: u64,
}

struct Flight {
    launch: u64,
    plan: usize,
    event: Event,
}

impl Flights {
    pub(super) fn new(context: &Context) -> Self {
        Self { context: context.clone(), flying: VecDeque::new(), spare: Vec::new(), done: 0, last: 0 }
    }

    /// Records the event of the launch that was just queued. Numbers grow from call to call.
    pub(super) fn add(&mut self, launch: u64, plan: usize, stream: &Stream) -> Result<(), CudaError> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => Event::new(&self.context)?,
        };
        event.record(stream)?;
        self.last = launch;
        self.flying.push_back(Flight { launch, plan, event });
        Ok(())
    }

    /// Whether an event tells when everything up to this launch has run; none does where that launch failed and none followed.
    pub(super) fn covers(&self, launch: u64) -> bool {
        launch <= self.last
    }

    pub(super) fn plan_of(&self, launch: u64) -> Option<usize> {
        self.find(launch).filter(|flight| flight.launch == launch).map(|flight| flight.plan)
    }

    pub(super) fn is_known_done(&self, launch: u64) -> bool {
        launch <= self.done
    }

    /// Whether a launch has finished; never blocks.
    pub(super) fn is_done(&mut self, launch: u64) -> Result<bool, CudaError> {
        if self.is_known_done(launch) {
            return Ok(true);
        }
        let Some(flight) = self.find(launch) else { return Ok(false) };
        let reached = flight.event.is_reached()?;
        if reached {
            self.retire(launch);
        }
        Ok(reached)
    }

    /// Waits for a launch; one that was never made counts as finished.
    pub(super) fn wait(&mut self, launch: u64) -> Result<(), CudaError> {
        if self.is_known_done(launch) {
            return Ok(());
        }
        let Some(flight) = self.find(launch) else { return Ok(()) };
        flight.event.synchronize()?;
        self.retire(launch);
        Ok(())
    }

    /// Takes events of finished launches back, once there are many.
    pub(super) fn tidy(&mut self) -> Result<(), CudaError> {
        while self.flying.len() >= TIDY {
            let Some(oldest) = self.flying.front().map(|flight| flight.launch) else { return Ok(()) };
            if !self.is_done(oldest)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The first launch in flight that is not before this one: the launch itself, unless it failed or has finished.
    fn find(&self, launch: u64) -> Option<&Flight> {
        self.flying.get(self.flying.partition_point(|flight| flight.launch < launch))
    }

    fn retire(&mut self, launch: u64) {
        self.done = self.done.max(launch);
        while let Some(flight) = self.flying.pop_front_if(|flight| flight.launch <= self.done) {
            self.spare.push(flight.event);
        }
    }
}
