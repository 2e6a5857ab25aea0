//! The session: one device's memory and executables for all plans of a program.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use super::backend::{Backend, Completion, Lent, OpenOptions, RawHandles};
use super::cuda;
use super::device::Device;
use super::error::RuntimeError;
use super::history::History;
use super::host;
use super::init::{initial_bytes, is_zero};
use super::report::{PlanReport, SessionReport, step_name};
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
    pub(super) id: u64,
    pub(super) backend: Box<dyn Backend>,
    pub(super) plans: Vec<StepPlan>,
    /// What the inbox holds from the next launch on.
    pub(super) inbox: Vec<u8>,
    pub(super) inbox_changed: bool,
    pub(super) history: History,
    seed: u64,
    last: Option<Completion>,
    launches: u64,
    inbox_copies: u64,
}

/// How a session is opened.
#[derive(Clone, Debug, Default)]
pub struct SessionBuilder {
    seed: u64,
    options: OpenOptions,
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

    /// Opens the session: takes memory, builds executables, writes initial values.
    ///
    /// # Errors
    /// No plan, two plans for one step and variant, plans of different programs, CUDA objects for the host, a device that is not
    /// there or fails.
    pub fn open(self, device: Device, plans: impl IntoIterator<Item = StepPlan>) -> Result<Session, RuntimeError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let plans: Vec<StepPlan> = plans.into_iter().collect();
        check_plans(&plans)?;
        let backend = match device {
            Device::Host => host::open(&plans, self.options.without_cuda()?)?,
            Device::Cuda { ordinal } => cuda::open(ordinal, &plans, &self.options)?,
        };
        let inbox = vec![0; plans[0].arena().size(Region::Inbox) as usize];
        let mut session = Session {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            backend,
            history: History::new(&plans),
            plans,
            inbox,
            inbox_changed: true,
            seed: self.seed,
            last: None,
            launches: 0,
            inbox_copies: 0,
        };
        session.initialise(true)?;
        Ok(session)
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
        let image = self.inbox_changed.then_some(self.inbox.as_slice());
        let launch = self.backend.launch(plan, image)?;
        self.inbox_copies += u64::from(self.inbox_changed && !self.inbox.is_empty());
        self.inbox_changed = false;
        self.launches += 1;
        self.last = Some(launch);
        Ok(Ticket { session: self.id, plan, moment: self.history.launched(plan), launch })
    }

    fn find(&self, step: &str, variant: Option<&str>) -> Result<usize, RuntimeError> {
        let is_it = |plan: &StepPlan| plan.step_name() == step && plan.variant() == variant;
        self.plans.iter().position(is_it).ok_or_else(|| RuntimeError::NoPlan {
            step: step_name(step, variant),
            have: self.plans.iter().map(plan_name).collect::<Vec<_>>().join("; "),
        })
    }

    /// Waits for everything that was launched.
    ///
    /// # Errors
    /// A launch that failed on the device.
    pub fn wait(&mut self) -> Result<(), RuntimeError> {
        self.last.map_or(Ok(()), |launch| self.backend.wait(launch))
    }

    /// How long the device takes for what `work` launches, from the first launch's start to the last one's end. Waits for it.
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

    /// Puts every buffer and scalar back to its initial value, in place; executables stay.
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
            emitted: self.backend.emitted(index),
        };
        let bytes = |region| self.plans.iter().map(|plan| plan.arena().size(region)).max().unwrap_or(0);
        SessionReport {
            device: self.backend.device(),
            plans: self.plans.iter().enumerate().map(plan_report).collect(),
            memory: Region::ALL.map(|region| (region, bytes(region))).to_vec(),
            startup: self.backend.startup().to_vec(),
            launches: self.launches,
            inbox_copies: self.inbox_copies,
        }
    }

    /// Ends loops while they run.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle::new(self.backend.stop_cell())
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
        self.inbox_changed = true;
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
