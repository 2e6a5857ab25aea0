//! The session: one device's memory and executables for all plans of a program.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use super::backend::{Backend, Completion, LaneLayout, Lent, OpenOptions, RawHandles};
use super::checkpoint::Checkpoints;
use super::cuda;
use super::device::Device;
use super::error::RuntimeError;
use super::fallback::{OnFailure, OpenError, fall_back};
use super::history::History;
use super::host;
use super::init::{initial_bytes, is_zero};
use super::lanes::{self, Lanes};
use super::link::{Link, Publish};
use super::report::{Fallback, LaneReport, PlanReport, SessionReport, step_name};
use super::stop::StopHandle;
use super::ticket::Ticket;
use crate::cuda::UserMemory;
use crate::ir::{ConstValue, Element, Program, Role, Writer};
use crate::plan::{Placement, Region, StepPlan};

/// Zeros are sent in pieces of so many bytes, so that resetting large memory needs little of the host's.
const ZERO_PIECE: u64 = 16 << 20;

/// Owns a device's memory and executables for the plans of one program.
///
/// A launch returns at once on a device; the host runs it to its end. Memory keeps its addresses as long as the session lives:
/// loads and resets write in place.
///
/// ```
/// use stepgraph::Builder;
/// use stepgraph::plan::{FusionPlan, Target, Tuning};
/// use stepgraph::runtime::{Device, Session};
///
/// let mut p = Builder::new("scale");
/// let rate = p.host_scalar("rate", 2.0f32);
/// let x = p.input::<f32>("x", [3]);
/// let y = p.output::<f32>("y", [3]);
/// p.step("step", |s| {
///     s.phase("main", |f| {
///         f.map_to("y", y, x * rate);
///     });
/// });
/// let plan = p.build()?.plan("step", &FusionPlan::mega(), &Target::default(), &Tuning::default())?;
///
/// let mut session = Session::open(Device::Host, [plan])?;
/// session.write_input(x, &[1.0, 2.0, 3.0])?;
/// session.set(rate, 10.0)?;
/// let ticket = session.launch("step")?;
/// assert_eq!(ticket.wait(&mut session)?.read(y)?, [10.0, 20.0, 30.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session {
    /// Dropped first: what is being written is finished while the device is there.
    pub(super) checkpoints: Checkpoints,
    pub(super) id: u64,
    pub(super) backend: Box<dyn Backend>,
    pub(super) plans: Vec<StepPlan>,
    /// What the inbox holds from the next launch on.
    pub(super) inbox: Vec<u8>,
    /// Whether the inbox differs from each lane's.
    pub(super) inbox_changed: Vec<bool>,
    pub(super) history: History,
    pub(super) lanes: Lanes,
    links: Vec<String>,
    pub(super) seed: u64,
    /// Each lane's last launch.
    last: Vec<Option<Completion>>,
    pub(super) launches: u64,
    inbox_copies: u64,
    fallbacks: Vec<Fallback>,
}

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

impl Session {
    /// Opens a session with seed 0 and the device's defaults; [`Session::builder`] has the choices.
    ///
    /// # Errors
    /// As [`SessionBuilder::open`].
    pub fn open(device: Device, plans: impl IntoIterator<Item = StepPlan>) -> Result<Self, RuntimeError> {
        Self::builder().open(device, plans)
    }

    /// Choices before opening.
    pub fn builder() -> SessionBuilder {
        SessionBuilder::default()
    }

    /// Launches a step that has no variants: the inbox copy, where something changed, and the plan's graphs.
    ///
    /// # Errors
    /// No such plan, or a device that failed.
    pub fn launch(&mut self, step: &str) -> Result<Ticket, RuntimeError> {
        self.launch_form(step, None)
    }

    /// Launches one variant of a step.
    ///
    /// # Errors
    /// As [`Session::launch`].
    pub fn launch_variant(&mut self, step: &str, variant: &str) -> Result<Ticket, RuntimeError> {
        self.launch_form(step, Some(variant))
    }

    fn launch_form(&mut self, step: &str, variant: Option<&str>) -> Result<Ticket, RuntimeError> {
        let plan = self.find(step, variant)?;
        let lane = self.lanes.of_plan(plan);
        let changed = self.inbox_changed[lane];
        let launch = self.backend.launch(plan, changed.then_some(self.inbox.as_slice()))?;
        self.inbox_copies += u64::from(changed && !self.inbox.is_empty());
        self.inbox_changed[lane] = false;
        self.launches += 1;
        self.last[lane] = Some(launch);
        Ok(Ticket { session: self.id, plan, moment: self.history.launched(plan), launch })
    }

    fn find(&self, step: &str, variant: Option<&str>) -> Result<usize, RuntimeError> {
        let is_it = |plan: &StepPlan| plan.step_name() == step && plan.variant() == variant;
        self.plans.iter().position(is_it).ok_or_else(|| RuntimeError::NoPlan {
            step: step_name(step, variant),
            have: self.plans.iter().map(plan_name).collect::<Vec<_>>().join("; "),
        })
    }

    /// Publishes what a link's source holds after all launches of its lane so far: the reading lane's next launch sees it. Never
    /// blocks the host; where both slots still wait for the reading lane, the writing lane waits for one on the device.
    /// [`Session::try_publish`] leaves it be in that case.
    ///
    /// # Errors
    /// No such link, or a device that failed.
    pub fn publish(&mut self, link: &str) -> Result<(), RuntimeError> {
        let link = self.find_link(link)?;
        self.backend.publish(link, true).map(drop)
    }

    /// As [`Session::publish`], but nothing is done where the writing lane would have to wait. Never so on the host.
    ///
    /// # Errors
    /// As [`Session::publish`].
    pub fn try_publish(&mut self, link: &str) -> Result<Publish, RuntimeError> {
        let link = self.find_link(link)?;
        Ok(if self.backend.publish(link, false)? { Publish::Done } else { Publish::Busy })
    }

    fn find_link(&self, link: &str) -> Result<usize, RuntimeError> {
        let found = self.links.iter().position(|name| name == link);
        found.ok_or_else(|| RuntimeError::NoLink { name: link.to_owned(), have: self.links.join(", ") })
    }

    /// Waits for everything that was launched, on all lanes.
    ///
    /// # Errors
    /// A launch that failed on the device.
    pub fn wait(&mut self) -> Result<(), RuntimeError> {
        self.last.iter().flatten().try_for_each(|&launch| self.backend.wait(launch))
    }

    /// How long the device takes for what `work` launches on the main lane, from the first launch's start to the last one's end. Waits for it.
    ///
    /// # Errors
    /// Whatever `work` returns, or a device that failed.
    pub fn time_on_device(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), RuntimeError>,
    ) -> Result<Duration, RuntimeError> {
        self.backend.start_timer()?;
        work(self)?;
        self.backend.stop_timer()
    }

    /// Puts every buffer and scalar back to its initial value, in place and after all launches so far; executables stay.
    ///
    /// # Errors
    /// A device that failed.
    pub fn reset(&mut self) -> Result<(), RuntimeError> {
        self.initialise(false)
    }

    /// As [`Session::reset`], with random initial values of another seed.
    ///
    /// # Errors
    /// As [`Session::reset`].
    pub fn reset_to(&mut self, seed: u64) -> Result<(), RuntimeError> {
        self.seed = seed;
        self.initialise(false)
    }

    /// The session in numbers.
    pub fn report(&self) -> SessionReport {
        let plan_report = |(index, plan): (usize, &StepPlan)| PlanReport {
            step: plan.step_name().to_owned(),
            variant: plan.variant().map(str::to_owned),
            plan: plan.fusion().name.clone(),
            lane: self.lanes.names()[self.lanes.of_plan(index)].clone(),
            emitted: self.backend.emitted(index),
        };
        let bytes = |lane: usize, region| {
            let of_lane = self.plans.iter().zip(self.lanes.of_plans()).filter(|&(_, &of)| of == lane);
            of_lane.map(|(plan, _)| plan.arena().size(region)).max().unwrap_or(0)
        };
        let lane_report = |lane: usize| LaneReport {
            lane: self.lanes.names()[lane].clone(),
            memory: [Region::Inbox, Region::Scratch].map(|region| (region, bytes(lane, region))).to_vec(),
        };
        SessionReport {
            device: self.backend.device(),
            plans: self.plans.iter().enumerate().map(plan_report).collect(),
            memory: Region::ALL.map(|region| (region, bytes(0, region))).to_vec(),
            lanes: (1..self.lanes.count()).map(lane_report).collect(),
            fallbacks: self.fallbacks.clone(),
            startup: self.backend.startup().to_vec(),
            launches: self.launches,
            inbox_copies: self.inbox_copies,
        }
    }

    /// Ends the loops of all lanes while they run.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle::new((0..self.lanes.count()).map(|lane| self.backend.stop_cell(lane)))
    }

    /// Ends the loops of one lane while they run. The main lane is called `main`.
    ///
    /// # Errors
    /// No such lane.
    pub fn stop_handle_of(&self, lane: &str) -> Result<StopHandle, RuntimeError> {
        let lane = self.lanes.find(lane)?;
        Ok(StopHandle::new([self.backend.stop_cell(lane)]))
    }

    /// The plans, in the order in which they were given.
    pub fn plans(&self) -> &[StepPlan] {
        &self.plans
    }

    /// The driver's own handles for a step's plan; `None` on the host.
    ///
    /// # Errors
    /// No such plan.
    pub fn raw(&self, step: &str, variant: Option<&str>) -> Result<Option<RawHandles>, RuntimeError> {
        Ok(self.backend.raw(self.find(step, variant)?))
    }

    /// Every node that a step's plan became on the device, those taken over from libraries included, one a line and without
    /// addresses; `None` on the host.
    ///
    /// # Errors
    /// No such plan.
    pub fn dump(&self, step: &str, variant: Option<&str>) -> Result<Option<String>, RuntimeError> {
        Ok(self.backend.dump(self.find(step, variant)?))
    }

    pub(super) fn program(&self) -> &Program {
        self.plans[0].program().program()
    }

    pub(super) fn plan_name(&self, plan: usize) -> String {
        plan_name(&self.plans[plan])
    }

    pub(super) fn is_done(&mut self, ticket: &Ticket) -> Result<bool, RuntimeError> {
        self.check_ticket(ticket)?;
        self.backend.is_done(ticket.launch)
    }

    pub(super) fn wait_for(&mut self, ticket: &Ticket) -> Result<(), RuntimeError> {
        self.check_ticket(ticket)?;
        self.backend.wait(ticket.launch)
    }

    fn check_ticket(&self, ticket: &Ticket) -> Result<(), RuntimeError> {
        if ticket.session == self.id { Ok(()) } else { Err(RuntimeError::ForeignTicket) }
    }

    /// Writes initial values; fresh memory is zero already.
    fn initialise(&mut self, fresh: bool) -> Result<(), RuntimeError> {
        self.history.was_reset();
        self.inbox.fill(0);
        self.inbox_changed.fill(true);
        let plan = self.plans[0].clone();
        let (program, arena) = (plan.program().program(), plan.arena());
        for (id, scalar) in program.scalars.iter() {
            if let Some(at) = arena.scalars[id] {
                self.write_cell(scalar.writer, at, scalar.init)?;
            }
        }
        for (id, buffer) in program.buffers.iter() {
            let Some(at) = arena.buffers[id] else { continue };
            if fresh && self.backend.is_lent(at) {
                continue;
            }
            match buffer.role {
                Role::Input | Role::Temp => {}
                Role::Param | Role::State if !is_zero(buffer) => {
                    self.backend.upload(at, &initial_bytes(buffer, self.seed))?;
                }
                Role::Param | Role::State | Role::Output if fresh => {}
                Role::Param | Role::State | Role::Output => self.write_zeros(at)?,
            }
        }
        Ok(())
    }

    fn write_cell(&mut self, writer: Writer, at: Placement, value: ConstValue) -> Result<(), RuntimeError> {
        let bytes = value.bits().to_ne_bytes();
        match writer {
            Writer::Host => self.inbox[at.offset as usize..at.end() as usize].copy_from_slice(&bytes),
            Writer::Device => self.backend.upload(at, &bytes)?,
        }
        Ok(())
    }

    fn write_zeros(&mut self, at: Placement) -> Result<(), RuntimeError> {
        let zeros = vec![0; at.bytes.min(ZERO_PIECE) as usize];
        let mut offset = at.offset;
        while offset < at.end() {
            let bytes = ZERO_PIECE.min(at.end() - offset);
            self.backend.upload(Placement { offset, bytes, ..at }, &zeros[..bytes as usize])?;
            offset += bytes;
        }
        Ok(())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("report", &self.report()).finish_non_exhaustive()
    }
}

fn plan_name(plan: &StepPlan) -> String {
    step_name(plan.step_name(), plan.variant())
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
