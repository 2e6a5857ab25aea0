//! The session: one device's memory and executables for all plans of a program.

use std::fmt;
use std::time::Duration;

use super::backend::{Backend, Completion, RawHandles};
use super::checkpoint::Checkpoints;
use super::device::Device;
use super::error::RuntimeError;
use super::history::History;
use super::init::{initial_bytes, is_zero};
use super::lanes::Lanes;
use super::link::Publish;
use super::open::SessionBuilder;
use super::report::{Fallback, LaneReport, PlanReport, SessionReport, step_name};
use super::stop::StopHandle;
use super::ticket::Ticket;
use crate::ir::{ConstValue, Program, Role, Writer};
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
    pub(super) links: Vec<String>,
    pub(super) seed: u64,
    /// Each lane's last launch.
    pub(super) last: Vec<Option<Completion>>,
    pub(super) launches: u64,
    pub(super) inbox_copies: u64,
    pub(super) fallbacks: Vec<Fallback>,
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
        // Noted first: a launch that fails may have written a part of what its step writes.
        let moment = self.history.launched(plan);
        let launch = self.backend.launch(plan, changed.then_some(self.inbox.as_slice()))?;
        self.inbox_copies += u64::from(changed && !self.inbox.is_empty());
        self.inbox_changed[lane] = false;
        self.launches += 1;
        self.last[lane] = Some(launch);
        Ok(Ticket { session: self.id, plan, moment, launch })
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
        let shared = |region| match region {
            Region::Inbox | Region::Scratch => bytes(0, region),
            Region::Persistent | Region::Output => {
                (0..self.lanes.count()).map(|lane| bytes(lane, region)).max().unwrap_or(0)
            }
        };
        let lane_report = |lane: usize| LaneReport {
            lane: self.lanes.names()[lane].clone(),
            memory: [Region::Inbox, Region::Scratch].map(|region| (region, bytes(lane, region))).to_vec(),
        };
        SessionReport {
            device: self.backend.device(),
            plans: self.plans.iter().enumerate().map(plan_report).collect(),
            memory: Region::ALL.map(|region| (region, shared(region))).to_vec(),
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
    pub(super) fn initialise(&mut self, fresh: bool) -> Result<(), RuntimeError> {
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

pub(super) fn plan_name(plan: &StepPlan) -> String {
    step_name(plan.step_name(), plan.variant())
}
