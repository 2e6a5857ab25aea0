//! The CUDA backend: a session's memory on one device, and its lanes, each with a stream, executables and an inbox of its own.
//!
//! A launch is one copy, where the inbox changed, and what the plan says: one graph launch for a mega plan. Nothing is
//! allocated, compiled, updated or waited for, except for a ring slot that the device has not read yet. No lane waits for
//! another but where a link says so.

mod flights;
mod link;
mod ring;
mod snapshot;
mod transfer;

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flights::Flights;
use link::DeviceLink;
use ring::Ring;
use snapshot::SnapshotMemory;
use transfer::Transfers;

use super::backend::{
    Backend, Completion, Emitted, LaneLayout, Lap, Lent, OpenOptions, Order, RawHandles, SnapshotReader, StopCell,
};
use super::error::RuntimeError;
use super::fallback::OpenError;
use crate::cuda::nvrtc::Nvrtc;
use crate::cuda::{Context, CudaError, Event, Stream, UserMemory};
use crate::emit::cache::Cache;
use crate::emit::modules::PlanModules;
use crate::emit::{EmitError, Executable, Lane, LaneMemory, Loader, SessionMemory, emit};
use crate::ir::Role;
use crate::plan::{Placement, Region, StepPlan};

/// Said of a fault of device code: the driver keeps one context per device and process, and does not tell whose work it was.
const LOST: &str = "(or work of another session of this process on the device: a fault ends them all)";

/// One CUDA device, as a session sees it. Executables are dropped first: each waits for what its lane queued.
struct CudaBackend {
    context: Context,
    executables: Vec<Executable>,
    links: Vec<DeviceLink>,
    transfers: Transfers,
    /// Where snapshots are kept; taken when the first one is.
    snapshots: Option<Arc<SnapshotMemory>>,
    lanes: Vec<CudaLane>,
    /// The lane of each executable.
    lane_of: Vec<usize>,
    memory: Arc<SessionMemory>,
    /// Launches so far, on whatever lane, failed ones included.
    launches: u64,
    poison: bool,
    checked: bool,
    startup: Vec<Lap>,
    /// The start and end of what is being measured; made when it is first needed.
    timer: Option<[Event; 2]>,
    /// What killed the device, after which every call fails.
    dead: Option<String>,
}

/// A stream, and what launches on it need.
struct CudaLane {
    lane: Arc<Lane>,
    memory: Arc<LaneMemory>,
    ring: Ring,
    flights: Flights,
}

/// Opens a device for these plans: memory, device code, executables.
pub(super) fn open(
    ordinal: u32,
    plans: &[StepPlan],
    layout: &LaneLayout,
    options: &OpenOptions,
) -> Result<Box<dyn Backend>, OpenError> {
    let unavailable = |reason: String| RuntimeError::DeviceUnavailable { device: format!("cuda:{ordinal}"), reason };
    let mut clock = Clock::start();
    let main = open_main(ordinal, options).map_err(|error| unavailable(error.to_string()))?;
    main.stream().synchronize().map_err(|error| failed("work that was queued before this session", error))?;
    let context = main.context().clone();
    clock.lap("create the context");
    let compiler = Nvrtc::load().map_err(|error| unavailable(error.to_string()))?;
    clock.lap("load the compiler");
    let lent = lent_places(&plans[0], &options.lent)?;
    let taking = |error| failed("taking the session's memory", error);
    let memory = open_memory(&main, plans, lent).map_err(taking)?;
    let lanes = open_lanes(main, &memory, plans, layout).map_err(taking)?;
    clock.lap("take memory");
    let (cache, sm) = (Cache::of_user(), context.properties().sm);
    let compile = |plan: &StepPlan| {
        PlanModules::compile(plan, sm, &compiler, &cache)
            .map_err(|error| RuntimeError::Compile { step: plan.step_name().to_owned(), error })
    };
    let compiled = plans.iter().map(compile).collect::<Result<Vec<_>, _>>()?;
    clock.lap("compile, or find in the cache");
    let mut loader = Loader::new(&context);
    let mut executables = Vec::with_capacity(plans.len());
    for (index, ((plan, compiled), &lane)) in plans.iter().zip(compiled).zip(&layout.lane_of).enumerate() {
        let load = |error| failed(&format!("loading the code of step `{}`", plan.step_name()), error);
        let kernels = loader.load(compiled).map_err(load)?;
        let CudaLane { lane, memory, .. } = &lanes[lane];
        executables.push(emit(plan, memory, kernels, lane).map_err(|error| refused(index, error))?);
    }
    clock.lap("load code and build graphs");
    let link = |plan| {
        let end = |lane: usize| (&lanes[lane].lane, &lanes[lane].memory);
        DeviceLink::new(&context, plan, end(plan.from), end(plan.to))
    };
    let links = layout.links.iter().map(link).collect::<Result<_, _>>().map_err(taking)?;
    Ok(Box::new(CudaBackend {
        transfers: Transfers::new(&context).map_err(|error| failed("making the stream of loads and reads", error))?,
        snapshots: None,
        context,
        executables,
        links,
        lanes,
        lane_of: layout.lane_of.clone(),
        memory,
        launches: 0,
        poison: options.poison,
        checked: options.checked,
        startup: clock.laps,
        timer: None,
        dead: None,
    }))
}

fn open_main(ordinal: u32, options: &OpenOptions) -> Result<Lane, CudaError> {
    match (&options.stream, &options.context) {
        (Some(stream), _) => Lane::on(Stream::of_user(Arc::clone(stream))?),
        (None, Some(context)) => Lane::new(&Context::of_user(Arc::clone(context))?),
        (None, None) => Lane::new(&Context::primary(ordinal)?),
    }
}

fn open_memory(
    main: &Lane,
    plans: &[StepPlan],
    lent: Vec<(Placement, UserMemory)>,
) -> Result<Arc<SessionMemory>, CudaError> {
    let size = |region| plans.iter().map(|plan| plan.arena().size(region)).max().unwrap_or(0);
    SessionMemory::new(main.context(), size, lent)
}

/// The lanes over the session's memory, all of it zero.
fn open_lanes(
    main: Lane,
    shared: &Arc<SessionMemory>,
    plans: &[StepPlan],
    layout: &LaneLayout,
) -> Result<Vec<CudaLane>, CudaError> {
    let context = main.context().clone();
    let mut main = Some(main);
    let mut lanes = Vec::with_capacity(layout.lanes);
    for index in 0..layout.lanes {
        let lane = match main.take() {
            Some(main) => main,
            None => Lane::new(&context)?,
        };
        let size = |region| layout.size(plans, index, region);
        let memory = LaneMemory::new(&context, shared, size)?;
        let ring = Ring::new(&context, size(Region::Inbox))?;
        lanes.push(CudaLane { lane: Arc::new(lane), memory, ring, flights: Flights::new(&context) });
    }
    let fill = |lane: &CudaLane, region| {
        let memory = &lane.memory;
        lane.lane.stream().fill_bytes(memory.region(region), 0, memory.size(region))
    };
    let mut filled = lanes.first().map_or(Ok(()), |main| fill(main, Region::Persistent));
    for lane in &lanes {
        filled = filled.and_then(|()| fill(lane, Region::Inbox)).and_then(|()| fill(lane, Region::Scratch));
    }
    // Waited for even after a failure: nothing that is queued may name memory that is dropped.
    lanes.iter().try_for_each(|lane| lane.lane.stream().synchronize()).and(filled)?;
    Ok(lanes)
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

impl CudaBackend {
    fn alive(&self) -> Result<(), RuntimeError> {
        let Some(reason) = &self.dead else { return Ok(()) };
        let source = "the device's context is lost; open the session in a new process".into();
        Err(RuntimeError::Device { context: format!("the device failed earlier: {reason}"), source })
    }

    /// Notes whether an error killed the context, and says what was being done.
    fn fail(&mut self, doing: &str, error: CudaError) -> RuntimeError {
        if !error.is_sticky() {
            return failed(doing, error);
        }
        self.dead = Some(format!("{doing}: {error}"));
        failed(&format!("{doing} {LOST}"), error)
    }

    fn guarded<T>(
        &mut self,
        doing: impl FnOnce(&Self) -> String,
        work: impl FnOnce(&mut Self) -> Result<T, CudaError>,
    ) -> Result<T, RuntimeError> {
        self.alive()?;
        let done = self.context.bind().and_then(|()| work(self));
        done.map_err(|error| {
            let doing = doing(self);
            self.fail(&doing, error)
        })
    }

    fn launch_name(&self, launch: Completion) -> String {
        let number = launch.number;
        let plan = self.lanes[launch.lane].flights.plan_of(number);
        let step = plan.and_then(|plan| self.executables.get(plan));
        let step = step.map_or(String::new(), |executable| format!(", step `{}`", executable.step()));
        let others = if self.lanes.len() > 1 { "one before it, or one of another lane" } else { "or one before it" };
        format!("launch {number}{step}, {others}")
    }

    /// Whether a launch is known to have finished without asking the device.
    fn is_known_done(&self, launch: Completion) -> bool {
        self.lanes[launch.lane].flights.is_known_done(launch.number)
    }

    /// The session's address of a placement that no lane has to itself.
    fn address(&self, at: Placement) -> u64 {
        self.lanes[0].memory.address(at)
    }
}

impl Backend for CudaBackend {
    fn device(&self) -> String {
        let properties = self.context.properties();
        format!("cuda:{} {}", properties.ordinal, properties.name)
    }

    fn upload(&mut self, to: Placement, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.guarded(
            |_| "loading bytes".to_owned(),
            |backend| {
                backend.lanes.iter().try_for_each(|lane| backend.transfers.after(lane.lane.stream()))?;
                if to.region == Region::Output {
                    backend.transfers.settle()?;
                    return backend.memory.output().write(to.offset, bytes);
                }
                let address = backend.address(to);
                backend.transfers.upload(address, bytes)
            },
        )
    }

    fn download(&mut self, from: Placement, into: &mut [u8], order: Order) -> Result<(), RuntimeError> {
        self.guarded(
            |_| "reading bytes".to_owned(),
            |backend| {
                let lane = match order {
                    Order::After(lane) => {
                        backend.transfers.after(backend.lanes[lane].lane.stream())?;
                        lane
                    }
                    Order::Settled(lane) => lane,
                };
                if from.region == Region::Output {
                    if matches!(order, Order::After(_)) {
                        backend.transfers.settle()?;
                    }
                    return backend.memory.output().read(from.offset, into);
                }
                let address = backend.lanes[lane].memory.address(from);
                backend.transfers.download(address, into)
            },
        )
    }

    fn snapshot(&mut self, pieces: &[Placement]) -> Result<Box<dyn SnapshotReader>, RuntimeError> {
        self.guarded(
            |_| "copying the state for a checkpoint".to_owned(),
            |backend| {
                let CudaLane { lane, memory, .. } = &backend.lanes[0];
                snapshot::take(&mut backend.snapshots, pieces, memory, lane.stream())
            },
        )
    }

    fn launch(&mut self, plan: usize, inbox: Option<&[u8]>) -> Result<Completion, RuntimeError> {
        let lane = self.lane_of[plan];
        self.launches += 1;
        let launch = Completion { lane, number: self.launches };
        self.guarded(
            |backend| format!("preparing {}", backend.launch_name(launch)),
            |backend| {
                let CudaLane { lane, memory, ring, flights } = &mut backend.lanes[lane];
                flights.tidy()?;
                if let Some(image) = inbox.filter(|image| !image.is_empty()) {
                    ring.send(image, memory.region(Region::Inbox), launch.number, lane.stream(), flights)?;
                }
                if !backend.poison {
                    return Ok(());
                }
                lane.stream().fill_bytes(memory.region(Region::Scratch), 0xFF, memory.size(Region::Scratch))
            },
        )?;
        let executable = &mut self.executables[plan];
        let launched = if self.checked { executable.launch_checked() } else { executable.launch() };
        if let Err(error) = launched {
            let mut doing = format!("launch {}", launch.number);
            if error.is_sticky() {
                self.dead = Some(format!("{doing}: {error}"));
                doing = format!("{doing} {LOST}");
            }
            return Err(emit_failed(&doing, error));
        }
        self.guarded(
            |backend| format!("marking {}", backend.launch_name(launch)),
            |backend| {
                let CudaLane { lane, flights, .. } = &mut backend.lanes[lane];
                flights.add(launch.number, plan, lane.stream())
            },
        )?;
        Ok(launch)
    }

    fn publish(&mut self, link: usize, wait: bool) -> Result<bool, RuntimeError> {
        self.guarded(|_| "publishing to another lane".to_owned(), |backend| backend.links[link].publish(wait))
    }

    fn is_done(&mut self, launch: Completion) -> Result<bool, RuntimeError> {
        if self.is_known_done(launch) {
            return Ok(true);
        }
        let doing = |backend: &Self| backend.launch_name(launch);
        self.guarded(doing, |backend| backend.lanes[launch.lane].flights.is_done(launch.number))
    }

    fn wait(&mut self, launch: Completion) -> Result<(), RuntimeError> {
        if self.is_known_done(launch) {
            return Ok(());
        }
        let doing = |backend: &Self| backend.launch_name(launch);
        self.guarded(doing, |backend| backend.lanes[launch.lane].flights.wait(launch.number))
    }

    fn start_timer(&mut self) -> Result<(), RuntimeError> {
        self.guarded(
            |_| "starting a timer".to_owned(),
            |backend| {
                let timer = match backend.timer.take() {
                    Some(timer) => timer,
                    None => [Event::timed(&backend.context)?, Event::timed(&backend.context)?],
                };
                let [start, _] = backend.timer.insert(timer);
                start.record(backend.lanes[0].lane.stream())
            },
        )
    }

    fn stop_timer(&mut self) -> Result<Duration, RuntimeError> {
        self.guarded(
            |_| "reading a timer".to_owned(),
            |backend| {
                let Some([start, end]) = &backend.timer else { return Ok(Duration::ZERO) };
                end.record(backend.lanes[0].lane.stream())?;
                end.synchronize()?;
                Ok(Duration::from_secs_f32(start.milliseconds_to(end)?.max(0.0) / 1e3))
            },
        )
    }

    fn stop_cell(&self, lane: usize) -> Arc<dyn StopCell> {
        Arc::new(MappedStop(Arc::clone(&self.lanes[lane].memory)))
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
        let CudaLane { lane, memory, .. } = &self.lanes[self.lane_of[plan]];
        Some(RawHandles {
            context: self.context.raw() as usize,
            stream: lane.stream().raw() as usize,
            graph_execs: self.executables[plan].raw_graphs(),
            regions: Region::ALL.map(|region| memory.region(region)),
        })
    }
}

/// The mapped word that a lane's loops read.
struct MappedStop(Arc<LaneMemory>);

impl StopCell for MappedStop {
    fn set(&self, stop: bool) {
        self.0.stop().set_first_word(u32::from(stop));
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

/// Tells a graph that the driver does not take from a device that is lost and a plan that is wrong.
fn refused(plan: usize, error: EmitError) -> OpenError {
    let refused = matches!(error, EmitError::Cuda { .. }) && !error.is_sticky();
    OpenError { error: emit_failed("building", error), refused: refused.then_some(plan) }
}

/// Keeps the place in the context and the failed call as the cause.
fn emit_failed(doing: &str, error: EmitError) -> RuntimeError {
    match error {
        EmitError::Cuda { place, error } => failed(&format!("{doing}, {place},"), *error),
        other => failed(doing, other),
    }
}
