//! Opening contenders, checking them, and taking samples in turn.

use std::time::{Duration, Instant};

use super::agreement::{Agreement, Contents, of_plan};
use super::error::BenchError;
use super::random::Random;
use super::report::{BenchReport, ContenderReport, Cost, Timing};
use super::statistics::Spread;
use crate::plan::{Counts, Region, StepPlan};
use crate::runtime::{Device, RuntimeError, Session};

/// One plan that is compared.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name in the report.
    pub name: String,
    /// The plan.
    pub plan: StepPlan,
    /// How long planning took.
    pub planned_in: Duration,
}

/// How a comparison is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchOptions {
    /// Steps after which results are compared; more where contenders of several steps per launch meet only later.
    pub checked: u32,
    /// Launches of each contender before samples count.
    pub warm_up: u32,
    /// Samples of each contender.
    pub rounds: u32,
    /// Launches of one sample, back to back.
    pub launches: u32,
    /// Seeds initial values and the order of samples.
    pub seed: u64,
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self { checked: 3, warm_up: 50, rounds: 30, launches: 50, seed: 0 }
    }
}

/// What the comparison is doing, for a progress display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A contender is opened and checked.
    Opening(&'a str),
    /// So many of all samples are taken.
    Sampled(u32, u32),
}

struct Entry<'a> {
    contender: &'a Contender,
    session: Session,
    cost: Cost,
    agreement: Agreement,
    device: Vec<f64>,
    submit: Vec<f64>,
    throughput: Vec<f64>,
}

/// Compares plans of one step. `prepare` loads data into each session; it is called once per session and must load the same
/// each time.
///
/// # Errors
/// No contender, an option that is 0, a session that failed, or whatever `prepare` returns. A contender whose results differ is no error: the report
/// says so, and has no timing of it.
pub fn bench<E: From<BenchError>>(
    device: Device,
    contenders: &[Contender],
    options: &BenchOptions,
    mut prepare: impl FnMut(&mut Session) -> Result<(), E>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<BenchReport, E> {
    check_options(contenders, options)?;
    let options = &BenchOptions { checked: common_steps(contenders, options.checked)?, ..*options };
    let mut entries: Vec<Entry<'_>> = Vec::with_capacity(contenders.len() + 1);
    let mut first = None;
    // The first contender runs against itself, too: that is the noise floor.
    for contender in contenders.iter().chain(contenders.first()) {
        progress(Progress::Opening(&contender.name));
        let (entry, contents) = open(device, contender, options, &mut prepare)?;
        let agreement = contents.agreement(first.as_ref().unwrap_or(&contents), &contender.plan);
        first.get_or_insert(contents);
        entries.push(Entry { agreement, ..entry });
    }
    let total = options.rounds;
    let mut order: Vec<usize> = (0..entries.len()).collect();
    let mut random = Random::new(options.seed);
    for round in 0..total {
        random.shuffle(&mut order);
        for &index in &order {
            let entry = &mut entries[index];
            if !matches!(entry.agreement, Agreement::Differs(_)) {
                entry.sample(options.launches).map_err(of_plan(&entry.contender.name))?;
            }
        }
        progress(Progress::Sampled(round + 1, total));
    }
    let device = entries[0].session.report().device;
    let mut reports: Vec<_> = entries.into_iter().map(Entry::into_report).collect();
    let again = reports.pop();
    Ok(BenchReport::new(device, *options, reports, again.and_then(|report| report.timing)))
}

fn check_options(contenders: &[Contender], options: &BenchOptions) -> Result<(), BenchError> {
    if contenders.is_empty() {
        return Err(BenchError::NoContender);
    }
    let counts = [("checked", options.checked), ("rounds", options.rounds), ("launches", options.launches)];
    match counts.into_iter().find(|&(_, count)| count == 0) {
        Some((what, _)) => Err(BenchError::Zero { what }),
        None => Ok(()),
    }
}

/// The most steps that are made for comparing results.
const COMMON_LIMIT: u32 = 1 << 20;

/// The smallest number of steps, at least `wanted`, that is a whole number of launches of every contender.
fn common_steps(contenders: &[Contender], wanted: u32) -> Result<u32, BenchError> {
    let too_many = || BenchError::NoCommonSteps { limit: COMMON_LIMIT };
    let common = contenders.iter().map(Contender::steps).try_fold(1u32, |common, steps| {
        let shared = greatest_common_divisor(common, steps);
        (common / shared).checked_mul(steps).filter(|&common| common <= COMMON_LIMIT)
    });
    let common = common.ok_or_else(too_many)?;
    wanted.checked_next_multiple_of(common).ok_or_else(too_many)
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl Contender {
    /// Steps that one launch makes.
    fn steps(&self) -> u32 {
        self.plan.fusion().repeat.steps().max(1)
    }
}

/// Opens a session, loads its data, launches as often as is checked, and warms up.
fn open<'a, E: From<BenchError>>(
    device: Device,
    contender: &'a Contender,
    options: &BenchOptions,
    prepare: &mut impl FnMut(&mut Session) -> Result<(), E>,
) -> Result<(Entry<'a>, Contents), E> {
    let failed = of_plan(&contender.name);
    let start = Instant::now();
    let session = Session::builder().seed(options.seed).open(device, [contender.plan.clone()]);
    let mut session = session.map_err(&failed)?;
    let opened_in = start.elapsed();
    prepare(&mut session)?;
    let (first_launch, contents) = check(&mut session, contender, options).map_err(&failed)?;
    let emitted = session.report().plans[0].emitted;
    let counts = Counts::of(&contender.plan);
    let cost = Cost {
        plan_ms: milliseconds(contender.planned_in),
        open_ms: milliseconds(opened_in),
        first_launch_ms: milliseconds(first_launch),
        graphs: emitted.graphs,
        nodes: emitted.nodes,
        edges: emitted.edges,
        launches: emitted.launches,
        steps: contender.steps(),
        levels: counts.levels,
        arena_bytes: Region::ALL.iter().map(|&region| contender.plan.arena().size(region)).sum(),
    };
    let (device, submit, throughput) = (Vec::new(), Vec::new(), Vec::new());
    Ok((Entry { contender, session, cost, agreement: Agreement::BitEqual, device, submit, throughput }, contents))
}

/// The first launch's time, and the results after all steps that are compared; then the warm-up.
fn check(
    session: &mut Session,
    contender: &Contender,
    options: &BenchOptions,
) -> Result<(Duration, Contents), RuntimeError> {
    let plan = &contender.plan;
    let start = Instant::now();
    launch(session, plan)?;
    session.wait()?;
    let first_launch = start.elapsed();
    for _ in 1..options.checked / contender.steps() {
        launch(session, plan)?;
    }
    session.wait()?;
    let contents = Contents::of(plan, session)?;
    for _ in 0..options.warm_up {
        launch(session, plan)?;
    }
    session.wait()?;
    Ok((first_launch, contents))
}

fn launch(session: &mut Session, plan: &StepPlan) -> Result<(), RuntimeError> {
    match plan.variant() {
        Some(variant) => session.launch_variant(plan.step_name(), variant)?,
        None => session.launch(plan.step_name())?,
    };
    Ok(())
}

impl Entry<'_> {
    /// One launch alone for its time on the device, then several back to back.
    fn sample(&mut self, launches: u32) -> Result<(), RuntimeError> {
        let plan = &self.contender.plan;
        let steps = f64::from(self.contender.steps());
        self.session.wait()?;
        let alone = self.session.time_on_device(|session| launch(session, plan))?;
        self.session.wait()?;
        let start = Instant::now();
        for _ in 0..launches {
            launch(&mut self.session, plan)?;
        }
        let submitted = start.elapsed();
        self.session.wait()?;
        let done = start.elapsed();
        self.device.push(microseconds(alone) / steps);
        self.submit.push(microseconds(submitted) / f64::from(launches) / steps);
        self.throughput.push(microseconds(done) / f64::from(launches) / steps);
        Ok(())
    }

    fn into_report(self) -> ContenderReport {
        let timing = || {
            Some(Timing {
                device_us: Spread::of(&self.device)?,
                submit_us: Spread::of(&self.submit)?,
                step_us: Spread::of(&self.throughput)?,
            })
        };
        let timing = timing();
        ContenderReport { name: self.contender.name.clone(), agreement: self.agreement, cost: self.cost, timing }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
