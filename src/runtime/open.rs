//! Opening a session: what may be chosen before, and what must hold of the plans.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use super::backend::{Backend, LaneLayout, Lent, OpenOptions};
use super::checkpoint::Checkpoints;
use super::cuda;
use super::device::Device;
use super::error::RuntimeError;
use super::fallback::{OnFailure, OpenError, fall_back};
use super::history::History;
use super::host;
use super::lanes::{self, Lanes};
use super::link::Link;
use super::session::{Session, plan_name};
use crate::cuda::UserMemory;
use crate::ir::Element;
use crate::plan::{Region, StepPlan};

/// How a session is opened.
#[derive(Clone, Debug, Default)]
pub struct SessionBuilder {
    seed: u64,
    on_failure: OnFailure,
    options: OpenOptions,
    lanes: Vec<(String, Vec<StepPlan>)>,
    links: Vec<Link>,
}

impl SessionBuilder {
    /// The seed of random initial values; 0 by default.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Fills scratch with NaN before each launch, so that reading what nobody wrote shows. For debugging: it costs time.
    #[must_use]
    pub fn poison_scratch(mut self) -> Self {
        self.options.poison = true;
        self
    }

    /// Waits after each node of a plan without graphs, and after each graph of others, so that a fault names it. For debugging:
    /// it costs most of the speed.
    #[must_use]
    pub fn check_each_launch(mut self) -> Self {
        self.options.checked = true;
        self
    }

    /// What to do where the device refuses the graph of a whole step; by default opening fails.
    #[must_use]
    pub fn on_failure(mut self, policy: OnFailure) -> Self {
        self.on_failure = policy;
        self
    }

    /// Runs in this context in place of the device's primary one. The device must be the context's.
    #[must_use]
    pub fn cuda_context(mut self, context: Arc<CudaContext>) -> Self {
        self.options.context = Some(context);
        self
    }

    /// Launches to this stream in place of a fresh one; its context is used.
    #[must_use]
    pub fn cuda_stream(mut self, stream: Arc<CudaStream>) -> Self {
        self.options.context = Some(Arc::clone(stream.context()));
        self.options.stream = Some(stream);
        self
    }

    /// Uses this memory for a parameter or state in place of the session's own, and keeps it alive. Its contents stay as they
    /// are when the session opens; [`Session::reset`] writes initial values into it. What else is done with it must be ordered
    /// with launches by the caller: on the same stream, or with events.
    #[must_use]
    pub fn cuda_buffer<T: Element>(mut self, buffer: &str, slice: Arc<CudaSlice<T>>) -> Self {
        self.options.lent.push(Lent { buffer: buffer.to_owned(), dtype: T::DTYPE, memory: UserMemory::new(slice) });
        self
    }

    /// Runs these plans on a lane of their own, beside the main one: a stream, a matrix library handle with its workspaces, an
    /// inbox and scratch that no other lane uses. Lanes are not ordered with each other, so what a step of one lane writes
    /// no step of another may touch; [`SessionBuilder::link`] is how they meet.
    ///
    /// On the host, launches of all lanes run in the order in which they are made, with the same results.
    #[must_use]
    pub fn lane(mut self, name: &str, plans: impl IntoIterator<Item = StepPlan>) -> Self {
        self.lanes.push((name.to_owned(), plans.into_iter().collect()));
        self
    }

    /// Lets one lane publish to another.
    #[must_use]
    pub fn link(mut self, link: Link) -> Self {
        self.links.push(link);
        self
    }

    /// Opens the session: takes memory, builds executables, writes initial values. `plans` are those of the main lane.
    ///
    /// # Errors
    /// No plan, two plans for one step and variant, plans of different programs, memory that one lane writes and another touches,
    /// a link that cannot be, CUDA objects for the host, a device that is not there or fails.
    pub fn open(self, device: Device, plans: impl IntoIterator<Item = StepPlan>) -> Result<Session, RuntimeError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut plans: Vec<StepPlan> = plans.into_iter().collect();
        let (mut names, mut lane_of) = (vec![lanes::MAIN.to_owned()], vec![0; plans.len()]);
        for (name, of_lane) in &self.lanes {
            lane_of.resize(plans.len() + of_lane.len(), names.len());
            names.push(name.clone());
            plans.extend(of_lane.iter().cloned());
        }
        lanes::check_names(&names)?;
        let links: Vec<String> = self.links.iter().map(|link| link.name().to_owned()).collect();
        if let Some((_, name)) = links.iter().enumerate().find(|&(at, name)| links[..at].contains(name)) {
            return Err(RuntimeError::DuplicateLink { name: name.clone() });
        }
        let mut fallbacks = Vec::new();
        let (lanes, backend) = loop {
            check_plans(&plans)?;
            let mut lanes = Lanes::new(names.clone(), lane_of.clone(), &plans)?;
            match self.open_backend(device, &plans, &mut lanes) {
                Ok(backend) => break (lanes, backend),
                Err(failure) => fallbacks.push(fall_back(failure, self.on_failure, &mut plans)?),
            }
        };
        let inbox = vec![0; plans[0].arena().size(Region::Inbox) as usize];
        let mut session = Session {
            checkpoints: Checkpoints::default(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            backend,
            history: History::new(&plans, lanes.of_plans()),
            plans,
            inbox,
            inbox_changed: vec![true; lanes.count()],
            links,
            seed: self.seed,
            last: vec![None; lanes.count()],
            lanes,
            launches: 0,
            inbox_copies: 0,
            fallbacks,
        };
        session.initialise(true)?;
        Ok(session)
    }

    fn open_backend(
        &self,
        device: Device,
        plans: &[StepPlan],
        lanes: &mut Lanes,
    ) -> Result<Box<dyn Backend>, OpenError> {
        self.links.iter().try_for_each(|link| link.note_targets(plans, lanes))?;
        let layout = LaneLayout {
            lanes: lanes.count(),
            links: self.links.iter().map(|link| link.resolve(plans, lanes)).collect::<Result<_, _>>()?,
            lane_of: lanes.of_plans().to_vec(),
        };
        match device {
            Device::Host => Ok(host::open(plans, &layout, self.options.without_cuda()?)?),
            Device::Cuda { ordinal } => cuda::open(ordinal, plans, &layout, &self.options),
        }
    }
}

/// Whether the plans can share a session: each for a step and variant of its own, all over the same memory.
fn check_plans(plans: &[StepPlan]) -> Result<(), RuntimeError> {
    let Some(first) = plans.first() else { return Err(RuntimeError::NoPlans) };
    for (index, plan) in plans.iter().enumerate() {
        if !shares_memory(first, plan) {
            return Err(RuntimeError::OtherProgram {
                step: plan_name(plan),
                expected: first.program().program().name.clone(),
                found: plan.program().program().name.clone(),
            });
        }
        let same = |other: &StepPlan| other.step_name() == plan.step_name() && other.variant() == plan.variant();
        if plans[..index].iter().any(same) {
            return Err(RuntimeError::DuplicatePlan { step: plan_name(plan) });
        }
    }
    Ok(())
}

/// Whether two plans are of one program and lay out what they share alike.
fn shares_memory(a: &StepPlan, b: &StepPlan) -> bool {
    let (left, right) = (a.program().program(), b.program().program());
    let same_program = left.name == right.name
        && left.buffers == right.buffers
        && left.groups == right.groups
        && left.scalars == right.scalars
        && a.program().origins().tag() == b.program().origins().tag();
    let same_layout = || {
        let buffers = left.buffers.iter().filter(|(_, buffer)| buffer.role.is_persistent());
        buffers.map(|(id, _)| id).all(|id| a.arena().buffers[id] == b.arena().buffers[id])
            && left.scalars.keys().all(|id| a.arena().scalars[id] == b.arena().scalars[id])
    };
    same_program && same_layout()
}
