//! Which launch wrote what, so that a ticket never reads what a later launch has written.

use crate::entity::{BufferId, ScalarId, SecondaryMap};
use crate::ir::{Resource, node_accesses};
use crate::plan::StepPlan;

/// A point in a session's life: launches, loads, resets and resumes each take one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Moment(pub(super) u64);

/// What each plan writes, and when it last ran.
#[derive(Debug)]
pub(super) struct History {
    plans: Vec<PlanHistory>,
    loaded: SecondaryMap<BufferId, Moment>,
    reset: Moment,
    resumed: Moment,
    now: Moment,
    last_plan: Option<usize>,
}

#[derive(Debug, Default)]
struct PlanHistory {
    buffers: SecondaryMap<BufferId, bool>,
    scalars: SecondaryMap<ScalarId, bool>,
    lane: usize,
    last: Moment,
}

/// A buffer or a scalar.
#[derive(Clone, Copy, Debug)]
pub(super) enum Memory {
    Buffer(BufferId),
    /// A `Temp`: every launch of its lane may write it.
    Temp(BufferId),
    Scalar(ScalarId),
}

/// What overwrote a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overwriter {
    /// A launch of the plan with this index.
    Launch(usize),
    Load,
    Reset,
    Resume,
}

impl History {
    /// Of these plans, each on its lane.
    pub(super) fn new(plans: &[StepPlan], lane_of: &[usize]) -> Self {
        Self {
            plans: plans.iter().zip(lane_of).map(|(plan, &lane)| PlanHistory::new(plan, lane)).collect(),
            loaded: SecondaryMap::new(),
            reset: Moment(0),
            resumed: Moment(0),
            now: Moment(0),
            last_plan: None,
        }
    }

    fn tick(&mut self) -> Moment {
        self.now.0 += 1;
        self.now
    }

    /// Notes a launch.
    pub(super) fn launched(&mut self, plan: usize) -> Moment {
        let now = self.tick();
        self.plans[plan].last = now;
        self.last_plan = Some(plan);
        now
    }

    pub(super) fn loaded(&mut self, buffer: BufferId) {
        self.loaded[buffer] = self.tick();
    }

    pub(super) fn was_reset(&mut self) {
        self.reset = self.tick();
    }

    pub(super) fn was_resumed(&mut self) {
        self.resumed = self.tick();
    }

    /// The plan that was launched last, where nothing has been reset or resumed since.
    pub(super) fn last_plan(&self) -> Option<usize> {
        self.last_plan.filter(|&plan| self.plans[plan].last > self.reset.max(self.resumed))
    }

    /// Whether a plan writes the memory.
    pub(super) fn writes(&self, plan: usize, memory: Memory) -> bool {
        match memory {
            Memory::Buffer(buffer) | Memory::Temp(buffer) => self.plans[plan].buffers[buffer],
            Memory::Scalar(scalar) => self.plans[plan].scalars[scalar],
        }
    }

    /// What has written the memory since a launch of `launched`, if anything.
    pub(super) fn overwriter(&self, launched: usize, since: Moment, memory: Memory) -> Option<Overwriter> {
        if self.reset > since {
            return Some(Overwriter::Reset);
        }
        if self.resumed > since {
            return Some(Overwriter::Resume);
        }
        if matches!(memory, Memory::Buffer(buffer) if self.loaded[buffer] > since) {
            return Some(Overwriter::Load);
        }
        let lane = self.plans[launched].lane;
        let touches = |plan: usize| match memory {
            Memory::Temp(_) => self.plans[plan].lane == lane,
            Memory::Buffer(_) | Memory::Scalar(_) => self.writes(plan, memory),
        };
        (0..self.plans.len()).find(|&plan| self.plans[plan].last > since && touches(plan)).map(Overwriter::Launch)
    }
}

impl PlanHistory {
    fn new(plan: &StepPlan, lane: usize) -> Self {
        let mut history = Self { lane, ..Self::default() };
        let program = plan.program().program();
        let step = &program.steps[plan.step()];
        let accesses = plan.units().values().flat_map(|unit| node_accesses(program, step, unit.node));
        for access in accesses.filter(|access| access.mode.writes()) {
            match access.resource {
                Resource::View(view) => history.buffers[view.buffer] = true,
                Resource::Scalar(scalar) => history.scalars[scalar] = true,
            }
        }
        history
    }
}
