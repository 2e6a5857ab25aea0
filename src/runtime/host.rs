//! The host backend: launches run to their end before they return, on whatever lane, and publications are copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::backend::{
    Backend, Completion, Emitted, LaneLayout, LinkPlan, OpenOptions, Order, SnapshotReader, StopCell,
};
use super::error::RuntimeError;
use crate::host::{HostExecutor, HostMemory, HostScratch};
use crate::plan::{Placement, Region, StepPlan};

/// The CPU, as a device.
pub(super) struct HostBackend {
    executors: Vec<HostExecutor>,
    /// One inbox does for all lanes, since launches never overlap; the scratch is that of the lane in turn.
    memory: HostMemory,
    in_turn: usize,
    /// The scratch of each lane; that of the lane in turn is in `memory`.
    scratch: Vec<HostScratch>,
    lane_of: Vec<usize>,
    links: Vec<LinkPlan>,
    launches: u64,
    /// Each lane's.
    stops: Vec<Arc<HostStop>>,
    poison: bool,
    timer: Instant,
}

#[derive(Debug, Default)]
struct HostStop(AtomicBool);

impl StopCell for HostStop {
    fn set(&self, stop: bool) {
        self.0.store(stop, Ordering::Relaxed);
    }
}

/// Copies of the pieces, made at once.
struct HostSnapshot {
    pieces: Vec<Vec<u8>>,
    next: usize,
}

impl SnapshotReader for HostSnapshot {
    fn next(&mut self) -> Result<Option<&[u8]>, RuntimeError> {
        self.next += 1;
        Ok(self.pieces.get(self.next - 1).map(Vec::as_slice))
    }
}

/// Opens the host for these plans.
pub(super) fn open(
    plans: &[StepPlan],
    layout: &LaneLayout,
    options: &OpenOptions,
) -> Result<Box<dyn Backend>, RuntimeError> {
    let scratch = |lane| {
        let of_lane = plans.iter().zip(&layout.lane_of).filter(|&(_, &of)| of == lane && of != 0);
        HostScratch::for_arenas(of_lane.map(|(plan, _)| plan.arena()))
    };
    Ok(Box::new(HostBackend {
        executors: plans.iter().map(HostExecutor::new).collect::<Result<_, _>>()?,
        memory: HostMemory::for_arenas(plans.iter().map(StepPlan::arena))?,
        in_turn: 0,
        scratch: (0..layout.lanes).map(scratch).collect::<Result<_, _>>()?,
        lane_of: layout.lane_of.clone(),
        links: layout.links.clone(),
        launches: 0,
        stops: (0..layout.lanes).map(|_| Arc::default()).collect(),
        poison: options.poison,
        timer: Instant::now(),
    }))
}

impl HostBackend {
    /// Puts a lane's scratch in place.
    fn turn_to(&mut self, lane: usize) {
        self.memory.exchange_scratch(&mut self.scratch[self.in_turn]);
        self.memory.exchange_scratch(&mut self.scratch[lane]);
        self.in_turn = lane;
    }
}

impl Backend for HostBackend {
    fn device(&self) -> String {
        "host".to_owned()
    }

    fn upload(&mut self, to: Placement, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.memory.bytes_mut(to).copy_from_slice(bytes);
        Ok(())
    }

    fn download(&mut self, from: Placement, into: &mut [u8], order: Order) -> Result<(), RuntimeError> {
        let (Order::After(lane) | Order::Settled(lane)) = order;
        self.turn_to(lane);
        into.copy_from_slice(self.memory.bytes(from));
        Ok(())
    }

    fn snapshot(&mut self, pieces: &[Placement]) -> Result<Box<dyn SnapshotReader>, RuntimeError> {
        let pieces = pieces.iter().map(|&piece| self.memory.bytes(piece).to_vec()).collect();
        Ok(Box::new(HostSnapshot { pieces, next: 0 }))
    }

    fn launch(&mut self, plan: usize, inbox: Option<&[u8]>) -> Result<Completion, RuntimeError> {
        let lane = self.lane_of[plan];
        self.launches += 1;
        self.turn_to(lane);
        if let Some(image) = inbox {
            self.memory.region_mut(Region::Inbox)[..image.len()].copy_from_slice(image);
        }
        if self.poison {
            self.memory.poison_scratch();
        }
        self.executors[plan].run(&mut self.memory, &self.stops[lane].0)?;
        Ok(Completion { lane, number: self.launches })
    }

    fn publish(&mut self, link: usize, _wait: bool) -> Result<bool, RuntimeError> {
        for &(source, target) in &self.links[link].copies {
            let bytes = self.memory.bytes(source).to_vec();
            self.memory.bytes_mut(target).copy_from_slice(&bytes);
        }
        Ok(true)
    }

    fn is_done(&mut self, _launch: Completion) -> Result<bool, RuntimeError> {
        Ok(true)
    }

    fn wait(&mut self, _launch: Completion) -> Result<(), RuntimeError> {
        Ok(())
    }

    fn start_timer(&mut self) -> Result<(), RuntimeError> {
        self.timer = Instant::now();
        Ok(())
    }

    fn stop_timer(&mut self) -> Result<Duration, RuntimeError> {
        Ok(self.timer.elapsed())
    }

    fn stop_cell(&self, lane: usize) -> Arc<dyn StopCell> {
        Arc::clone(&self.stops[lane]) as Arc<dyn StopCell>
    }

    fn emitted(&self, plan: usize) -> Emitted {
        Emitted { nodes: self.executors[plan].units(), ..Emitted::default() }
    }
}
