//! The CUDA backend: a session's memory on one device, its executables, and the ring through which the inbox travels.
//!
//! A launch is one copy, where the inbox changed, and what the plan says: one graph launch for a mega plan. Nothing is
//! allocated, compiled, updated or waited for, except for a ring slot that the device has not read yet.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backend::{Backend, Completion, Emitted, Lap, Lent, OpenOptions, RawHandles, StopCell};
use super::error::RuntimeError;
use crate::cuda::nvrtc::Nvrtc;
use crate::cuda::{Context, CudaError, Event, PinnedMemory, Stream, UserMemory};
use crate::emit::cache::Cache;
use crate::emit::modules::PlanModules;
use crate::emit::{EmitError, Executable, Lane, Loader, SessionMemory, emit};
use crate::ir::Role;
use crate::plan::{Placement, Region, StepPlan};

/// Images of the inbox that can be on their way at once.
const SLOTS: usize = 4;
/// Loads and downloads travel in pieces of so many bytes.
const PIECE: u64 = 4 << 20;
/// Launches in flight before finished ones are looked for.
const TIDY: usize = 16;

/// One CUDA device, as a session sees it. Executables are dropped first: each waits for what it queued.
struct CudaBackend {
    executables: Vec<Executable>,
    ring: Ring,
    flights: Flights,
    staging: Option<PinnedMemory>,
    memory: Arc<SessionMemory>,
    lane: Arc<Lane>,
    poison: bool,
    checked: bool,
    startup: Vec<Lap>,
    /// The start and end of what is being measured; made when it is first needed.
    timer: Option<[Event; 2]>,
    /// What killed the device, after which every call fails.
    dead: Option<String>,
}

/// Opens a device for these plans: memory, device code, executables.
pub(super) fn open(ordinal: u32, plans: &[StepPlan], options: &OpenOptions) -> Result<Box<dyn Backend>, RuntimeError> {
    let unavailable = |reason: String| RuntimeError::DeviceUnavailable { device: format!("cuda:{ordinal}"), reason };
    let mut clock = Clock::start();
    let lane = Arc::new(open_lane(ordinal, options).map_err(|error| unavailable(error.to_string()))?);
    lane.stream().synchronize().map_err(|error| failed("work that was queued before this session", error))?;
    clock.lap("create the context");
    let compiler = Nvrtc::load().map_err(|error| unavailable(error.to_string()))?;
    clock.lap("load the compiler");
    let lent = lent_places(&plans[0], &options.lent)?;
    let memory = open_memory(&lane, plans, lent).map_err(|error| failed("taking the session's memory", error))?;
    clock.lap("take memory");
    let (cache, sm) = (Cache::of_user(), lane.context().properties().sm);
    let compile = |plan: &StepPlan| {
        PlanModules::compile(plan, sm, &compiler, &cache)
            .map_err(|error| RuntimeError::Compile { step: plan.step_name().to_owned(), error })
    };
    let compiled = plans.iter().map(compile).collect::<Result<Vec<_>, _>>()?;
    clock.lap("compile, or find in the cache");
    let mut loader = Loader::new(lane.context());
    let mut executables = Vec::with_capacity(plans.len());
    for (plan, compiled) in plans.iter().zip(compiled) {
        let load = |error| failed(&format!("loading the code of step `{}`", plan.step_name()), error);
        let kernels = loader.load(compiled).map_err(load)?;
        executables.push(emit(plan, &memory, kernels, &lane).map_err(|error| emit_failed("building", error))?);
    }
    clock.lap("load code and build graphs");
    let inbox = plans.iter().map(|plan| plan.arena().size(Region::Inbox)).max().unwrap_or(0);
    let ring = Ring::new(lane.context(), inbox).map_err(|error| failed("taking the inbox ring", error))?;
    Ok(Box::new(CudaBackend {
        executables,
        ring,
        flights: Flights::new(lane.context()),
        staging: None,
        memory,
        lane,
        poison: options.poison,
        checked: options.checked,
        startup: clock.laps,
        timer: None,
        dead: None,
    }))
}

fn open_lane(ordinal: u32, options: &OpenOptions) -> Result<Lane, CudaError> {
    match (&options.stream, &options.context) {
        (Some(stream), _) => Lane::on(Stream::of_user(Arc::clone(stream))?),
        (None, Some(context)) => Lane::new(&Context::of_user(Arc::clone(context))?),
        (None, None) => Lane::new(&Context::primary(ordinal)?),
    }
}

/// Where each buffer of the user's goes: it has the type and size of a parameter or state that is in no group, since a group's
/// members lie side by side.
fn lent_places(plan: &StepPlan, lent: &[Lent]) -> Result<Vec<(Placement, UserMemory)>, RuntimeError> {
    let (program, arena) = (plan.program().program(), plan.arena());
    let place = |lent: &Lent| {
        let name = lent.buffer.clone();
        let unknown = || RuntimeError::UnknownName { kind: "buffer", name: name.clone() };
        let id = program.buffer(&name).ok_or_else(unknown)?;
        let buffer = &program.buffers[id];
        let grouped = program.groups.values().any(|group| group.members.contains(&id));
        if grouped || !matches!(buffer.role, Role::Param | Role::State) {
            let role = if grouped { "a member of a group" } else { buffer.role.name() };
            let remedy = "lend memory for a param or state outside of groups, or load it";
            return Err(RuntimeError::WrongRole { name, role, action: "replaced by memory of the user's", remedy });
        }
        if lent.dtype != buffer.dtype {
            return Err(RuntimeError::WrongType { name, expected: buffer.dtype, found: lent.dtype });
        }
        if lent.memory.size() != buffer.bytes() {
            let (expected, found) = (buffer.shape.elements(), lent.memory.size() / buffer.dtype.size());
            return Err(RuntimeError::WrongLength { name, expected, found });
        }
        Ok((arena.buffers[id].ok_or_else(unknown)?, lent.memory.clone()))
    };
    lent.iter().map(place).collect()
}

fn open_memory(
    lane: &Lane,
    plans: &[StepPlan],
    lent: Vec<(Placement, UserMemory)>,
) -> Result<Arc<SessionMemory>, CudaError> {
    let size = |region| plans.iter().map(|plan| plan.arena().size(region)).max().unwrap_or(0);
    let memory = SessionMemory::new(lane.context(), size, lent)?;
    let mut fresh = [Region::Inbox, Region::Persistent, Region::Scratch].into_iter();
    let filled = fresh.try_for_each(|region| lane.stream().fill_bytes(memory.region(region), 0, memory.size(region)));
    // Waited for even after a failure: nothing that is queued may name memory that is dropped.
    lane.stream().synchronize().and(filled)?;
    Ok(memory)
}

impl CudaBackend {
    fn alive(&self) -> Result<(), RuntimeError> {
        let Some(reason) = &self.dead else { return Ok(()) };
        let source = "the device's context is lost; open the session in a new process".into();
        Err(RuntimeError::Device { context: format!("the device failed earlier: {reason}"), source })
    }

    /// Notes whether an error killed the context, and says what was being done.
    fn fail(&mut self, doing: &str, error: CudaError) -> RuntimeError {
        if error.is_sticky() {
            self.dead = Some(format!("{doing}: {error}"));
        }
        failed(doing, error)
    }

    fn guarded<T>(
        &mut self,
        doing: impl FnOnce(&Self) -> String,
        work: impl FnOnce(&mut Self) -> Result<T, CudaError>,
    ) -> Result<T, RuntimeError> {
        self.alive()?;
        let done = self.lane.context().bind().and_then(|()| work(self));
        done.map_err(|error| {
            let doing = doing(self);
            self.fail(&doing, error)
        })
    }

    fn launch_name(&self, launch: u64) -> String {
        let step = self.flights.plan_of(launch).and_then(|plan| self.executables.get(plan));
        match step {
            Some(executable) => format!("launch {launch}, step `{}`, or one before it", executable.step()),
            None => format!("launch {launch}, or one before it"),
        }
    }

    /// Moves bytes between host and device in pieces through pinned memory, after all launches so far.
    fn transfer(
        &mut self,
        at: Placement,
        mut piece: impl FnMut(&PinnedMemory, &Stream, u64, Piece) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let staging = match self.staging.take() {
            Some(staging) => staging,
            None => PinnedMemory::new(self.lane.context(), PIECE)?,
        };
        let address = self.memory.address(at);
        let mut done = 0;
        let mut result = Ok(());
        while done < at.bytes && result.is_ok() {
            let bytes = PIECE.min(at.bytes - done);
            result = piece(&staging, self.lane.stream(), address + done, Piece { start: done as usize, bytes });
            done += bytes;
        }
        self.staging = Some(staging);
        result
    }
}

/// A part of a transfer: where it starts in the host's bytes, and how long it is.
#[derive(Clone, Copy)]
struct Piece {
    start: usize,
    bytes: u64,
}

impl Backend for CudaBackend {
    fn device(&self) -> String {
        let properties = self.lane.context().properties();
        format!("cuda:{} {}", properties.ordinal, properties.name)
    }

    fn upload(&mut self, to: Placement, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.guarded(
            |_| "loading bytes".to_owned(),
            |backend| {
                if to.region == Region::Output {
                    backend.lane.stream().synchronize()?;
                    return backend.memory.output().write(to.offset, bytes);
                }
                backend.transfer(to, |staging, stream, address, piece| {
                    staging.write(0, &bytes[piece.start..][..piece.bytes as usize])?;
                    stream.copy_in(address, staging, 0, piece.bytes)?;
                    stream.synchronize()
                })
            },
        )
    }

    fn download(&mut self, from: Placement, into: &mut [u8]) -> Result<(), RuntimeError> {
        self.guarded(
            |_| "reading bytes".to_owned(),
            |backend| {
                if from.region == Region::Output {
                    backend.lane.stream().synchronize()?;
                    return backend.memory.output().read(from.offset, into);
                }
                backend.transfer(from, |staging, stream, address, piece| {
                    stream.copy_out(address, staging, 0, piece.bytes)?;
                    stream.synchronize()?;
                    staging.read(0, &mut into[piece.start..][..piece.bytes as usize])
                })
            },
        )
    }

    fn launch(&mut self, plan: usize, inbox: Option<&[u8]>) -> Result<Completion, RuntimeError> {
        let launch = self.flights.next();
        self.guarded(
            |backend| format!("preparing {}", backend.launch_name(launch)),
            |backend| {
                backend.flights.tidy()?;
                if let Some(image) = inbox.filter(|image| !image.is_empty()) {
                    let to = backend.memory.region(Region::Inbox);
                    backend.ring.send(image, to, launch, backend.lane.stream(), &mut backend.flights)?;
                }
                if !backend.poison {
                    return Ok(());
                }
                let (at, bytes) = (backend.memory.region(Region::Scratch), backend.memory.size(Region::Scratch));
                backend.lane.stream().fill_bytes(at, 0xFF, bytes)
            },
        )?;
        let executable = &mut self.executables[plan];
        let launched = if self.checked { executable.launch_checked() } else { executable.launch() };
        if let Err(error) = launched {
            if error.is_sticky() {
                self.dead = Some(format!("launch {launch}: {error}"));
            }
            return Err(emit_failed(&format!("launch {launch}"), error));
        }
        self.guarded(
            |backend| format!("marking {}", backend.launch_name(launch)),
            |backend| backend.flights.add(plan, backend.lane.stream()),
        )?;
        Ok(Completion(launch))
    }

    fn is_done(&mut self, launch: Completion) -> Result<bool, RuntimeError> {
        if self.flights.is_known_done(launch.0) {
            return Ok(true);
        }
        self.guarded(|backend| backend.launch_name(launch.0), |backend| backend.flights.is_done(launch.0))
    }

    fn wait(&mut self, launch: Completion) -> Result<(), RuntimeError> {
        if self.flights.is_known_done(launch.0) {
            return Ok(());
        }
        self.guarded(|backend| backend.launch_name(launch.0), |backend| backend.flights.wait(launch.0))
    }

    fn start_timer(&mut self) -> Result<(), RuntimeError> {
        self.guarded(
            |_| "starting a timer".to_owned(),
            |backend| {
                let context = backend.lane.context();
                let timer = match backend.timer.take() {
                    Some(timer) => timer,
                    None => [Event::timed(context)?, Event::timed(context)?],
                };
                let [start, _] = backend.timer.insert(timer);
                start.record(backend.lane.stream())
            },
        )
    }

    fn stop_timer(&mut self) -> Result<Duration, RuntimeError> {
        self.guarded(
            |_| "reading a timer".to_owned(),
            |backend| {
                let Some([start, end]) = &backend.timer else { return Ok(Duration::ZERO) };
                end.record(backend.lane.stream())?;
                end.synchronize()?;
                Ok(Duration::from_secs_f32(start.milliseconds_to(end)?.max(0.0) / 1e3))
            },
        )
    }

    fn stop_cell(&self) -> Arc<dyn StopCell> {
        Arc::new(MappedStop(Arc::clone(&self.memory)))
    }

    fn emitted(&self, plan: usize) -> Emitted {
        let counts = self.executables[plan].counts();
        Emitted { graphs: counts.graphs, nodes: counts.nodes, edges: counts.edges, launches: counts.launches }
    }

    fn dump(&self, plan: usize) -> Option<String> {
        Some(self.executables[plan].dump())
    }

    fn is_lent(&self, at: Placement) -> bool {
        self.memory.is_lent(at)
    }

    fn startup(&self) -> &[Lap] {
        &self.startup
    }

    fn raw(&self, plan: usize) -> Option<RawHandles> {
        Some(RawHandles {
            context: self.lane.context().raw() as usize,
            stream: self.lane.stream().raw() as usize,
            graph_execs: self.executables[plan].raw_graphs(),
            regions: Region::ALL.map(|region| self.memory.region(region)),
        })
    }
}

/// The mapped word that loops on the device read.
struct MappedStop(Arc<SessionMemory>);

impl StopCell for MappedStop {
    fn set(&self, stop: bool) {
        self.0.stop().set_first_word(u32::from(stop));
    }
}

/// Pinned images of the inbox, used in turn. A slot is used again only when the launch that read it has finished.
struct Ring {
    slots: Vec<PinnedMemory>,
    users: [u64; SLOTS],
    next: usize,
}

impl Ring {
    fn new(context: &Context, bytes: u64) -> Result<Self, CudaError> {
        let slots = (0..SLOTS).map(|_| PinnedMemory::new(context, bytes)).collect::<Result<_, _>>()?;
        Ok(Self { slots, users: [0; SLOTS], next: 0 })
    }

    fn send(
        &mut self,
        image: &[u8],
        to: u64,
        launch: u64,
        stream: &Stream,
        flights: &mut Flights,
    ) -> Result<(), CudaError> {
        let slot = self.next;
        if self.users[slot] > flights.launched {
            // The launch that the slot was filled for failed: no event tells when its copy has run.
            stream.synchronize()?;
        } else {
            flights.wait(self.users[slot])?;
        }
        self.slots[slot].write(0, image)?;
        stream.copy_in(to, &self.slots[slot], 0, image.len() as u64)?;
        self.users[slot] = launch;
        self.next = (slot + 1) % SLOTS;
        Ok(())
    }
}

/// Launches that may not have finished, oldest first, each with the event behind it.
struct Flights {
    context: Context,
    flying: VecDeque<Flight>,
    spare: Vec<Event>,
    /// The last launch that is known to have finished, and so have all before it.
    done: u64,
    launched: u64,
}

struct Flight {
    launch: u64,
    plan: usize,
    event: Event,
}

impl Flights {
    fn new(context: &Context) -> Self {
        Self { context: context.clone(), flying: VecDeque::new(), spare: Vec::new(), done: 0, launched: 0 }
    }

    /// The number of the next launch.
    fn next(&self) -> u64 {
        self.launched + 1
    }

    /// Records the event of the launch that was just queued.
    fn add(&mut self, plan: usize, stream: &Stream) -> Result<(), CudaError> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => Event::new(&self.context)?,
        };
        event.record(stream)?;
        self.launched += 1;
        self.flying.push_back(Flight { launch: self.launched, plan, event });
        Ok(())
    }

    fn find(&self, launch: u64) -> Option<&Flight> {
        let first = self.flying.front()?.launch;
        self.flying.get(usize::try_from(launch.checked_sub(first)?).ok()?)
    }

    fn plan_of(&self, launch: u64) -> Option<usize> {
        self.find(launch).map(|flight| flight.plan)
    }

    fn is_known_done(&self, launch: u64) -> bool {
        launch <= self.done
    }

    fn is_done(&mut self, launch: u64) -> Result<bool, CudaError> {
        let Some(flight) = self.find(launch) else { return Ok(self.is_known_done(launch)) };
        let reached = flight.event.is_reached()?;
        if reached {
            self.retire(launch);
        }
        Ok(reached)
    }

    /// Waits for a launch; one that was never made counts as finished.
    fn wait(&mut self, launch: u64) -> Result<(), CudaError> {
        let Some(flight) = self.find(launch) else { return Ok(()) };
        flight.event.synchronize()?;
        self.retire(launch);
        Ok(())
    }

    /// Takes events of finished launches back, once there are many.
    fn tidy(&mut self) -> Result<(), CudaError> {
        while self.flying.len() >= TIDY {
            let Some(oldest) = self.flying.front().map(|flight| flight.launch) else { return Ok(()) };
            if !self.is_done(oldest)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn retire(&mut self, launch: u64) {
        self.done = self.done.max(launch);
        while let Some(flight) = self.flying.pop_front_if(|flight| flight.launch <= self.done) {
            self.spare.push(flight.event);
        }
    }
}

/// Measures each part of opening.
struct Clock {
    last: Instant,
    laps: Vec<Lap>,
}

impl Clock {
    fn start() -> Self {
        Self { last: Instant::now(), laps: Vec::new() }
    }

    fn lap(&mut self, what: &'static str) {
        let now = Instant::now();
        let took = now - self.last;
        tracing::info!(milliseconds = took.as_secs_f64() * 1e3, "time to {what}");
        self.laps.push(Lap { what, took });
        self.last = now;
    }
}

fn failed(doing: &str, error: impl Error + Send + Sync + 'static) -> RuntimeError {
    RuntimeError::Device { context: format!("{doing} failed"), source: Box::new(error) }
}

/// Keeps the place in the context and the failed call as the cause.
fn emit_failed(doing: &str, error: EmitError) -> RuntimeError {
    match error {
        EmitError::Cuda { place, error } => failed(&format!("{doing}, {place},"), *error),
        other => failed(doing, other),
    }
}
