//! Plans without graphs: each unit is launched on the stream by itself, and conditionals are decided by the host.

use super::error::{At, EmitError, Place};
use super::memory::LaneMemory;
use super::report::NodeLine;
use super::unit::{Launch, Units};
use crate::cuda::{CudaError, PinnedMemory, Stream};
use crate::entity::UnitId;
use crate::ir::{LoopBound, NodeOp};
use crate::plan::{Body, Work};

/// A body of a plan as a list of launches.
#[derive(Debug)]
pub(super) struct Sequence {
    units: Vec<UnitLaunches>,
}

#[derive(Debug)]
struct UnitLaunches {
    name: String,
    action: Action,
}

#[derive(Debug)]
enum Action {
    Launches(Vec<Launch>),
    /// The body of this number; past the last one none.
    Branch {
        selector: u64,
        is_condition: bool,
        bodies: Vec<Sequence>,
    },
    Loop {
        max: Bound,
        index: Option<u64>,
        until: Option<u64>,
        body: Sequence,
    },
}

#[derive(Debug)]
enum Bound {
    Const(u32),
    Cell(u64),
}

/// What a run of a sequence needs besides.
pub(super) struct Run<'a> {
    pub(super) stream: &'a Stream,
    pub(super) memory: &'a LaneMemory,
    /// A pinned word through which cells are read back.
    pub(super) word: &'a PinnedMemory,
    /// Whether to wait after each launch, so that a fault names its node.
    pub(super) checked: bool,
    pub(super) step: &'a str,
}

impl Sequence {
    pub(super) fn new(units: &Units<'_>, body: &Body) -> Result<Self, EmitError> {
        let units = body.units.iter().map(|&unit| UnitLaunches::new(units, unit)).collect::<Result<_, _>>()?;
        Ok(Self { units })
    }

    /// Launches of one run, those of conditionals not included.
    pub(super) fn count(&self) -> usize {
        let launches = |unit: &UnitLaunches| match &unit.action {
            Action::Launches(launches) => launches.len(),
            Action::Branch { .. } | Action::Loop { .. } => 0,
        };
        self.units.iter().map(launches).sum()
    }

    pub(super) fn lines(&self, depth: usize, into: &mut Vec<NodeLine>) {
        for unit in &self.units {
            let mut line = |what: String| into.push(NodeLine { unit: unit.name.clone(), depth, what });
            match &unit.action {
                Action::Launches(launches) => launches.iter().for_each(|launch| line(launch_text(launch))),
                Action::Branch { bodies, .. } => {
                    line("branch, decided by the host".to_owned());
                    bodies.iter().for_each(|body| body.lines(depth + 1, into));
                }
                Action::Loop { body, .. } => {
                    line("loop, decided by the host".to_owned());
                    body.lines(depth + 1, into);
                }
            }
        }
    }

    /// Queues one run. Conditionals wait for the cell that decides them.
    pub(super) fn run(&self, run: &Run<'_>) -> Result<(), EmitError> {
        for unit in &self.units {
            let place = || Place { step: run.step.to_owned(), graph: None, node: Some(unit.name.clone()) };
            match &unit.action {
                Action::Launches(launches) => {
                    launches.iter().try_for_each(|launch| launch.on_stream(run.stream)).at(place)?;
                    if run.checked {
                        run.stream.synchronize().at(place)?;
                    }
                }
                Action::Branch { selector, is_condition, bodies } => {
                    let value = run.read(*selector).at(place)?;
                    let body = if *is_condition { usize::from(value == 0) } else { value as usize };
                    bodies.get(body).map_or(Ok(()), |body| body.run(run))?;
                }
                Action::Loop { max, index, until, body } => run.repeat(max, *index, *until, body, place)?,
            }
        }
        Ok(())
    }
}

impl Run<'_> {
    fn read(&self, cell: u64) -> Result<u32, CudaError> {
        self.stream.copy_out(cell, self.word, 0, 4)?;
        self.stream.synchronize()?;
        let mut bytes = [0; 4];
        self.word.read(0, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn set(&self, cell: Option<u64>, value: u32) -> Result<(), CudaError> {
        cell.map_or(Ok(()), |cell| self.stream.fill_words(cell, value, 1))
    }

    fn repeat(
        &self,
        max: &Bound,
        index: Option<u64>,
        until: Option<u64>,
        body: &Sequence,
        place: impl Fn() -> Place,
    ) -> Result<(), EmitError> {
        let max = match max {
            Bound::Const(max) => *max,
            Bound::Cell(cell) => self.read(*cell).at(&place)?,
        };
        self.set(index, 0).at(&place)?;
        self.set(until, 0).at(&place)?;
        for done in 1..=max {
            if self.memory.is_stopped() {
                return Ok(());
            }
            body.run(self)?;
            self.set(index, done).at(&place)?;
            if let Some(until) = until
                && self.read(until).at(&place)? != 0
            {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl UnitLaunches {
    fn new(units: &Units<'_>, id: UnitId) -> Result<Self, EmitError> {
        let (at, unit) = (units.addresses(id), &units.plan.units()[id]);
        let sequence = |body: &Body| Sequence::new(units, body);
        let action = match (units.op(id), &unit.work) {
            (NodeOp::If { condition, .. }, Work::If { then_body, else_body }) => Action::Branch {
                selector: at.scalar(*condition)?,
                is_condition: true,
                bodies: vec![sequence(then_body)?, sequence(else_body)?],
            },
            (NodeOp::Switch { selector, .. }, Work::Switch { bodies }) => Action::Branch {
                selector: at.scalar(*selector)?,
                is_condition: false,
                bodies: bodies.iter().map(sequence).collect::<Result<_, _>>()?,
            },
            (NodeOp::While { max, index, until, .. }, Work::While { body }) => Action::Loop {
                max: match max {
                    LoopBound::Const(max) => Bound::Const(*max),
                    LoopBound::Scalar(scalar) => Bound::Cell(at.scalar(*scalar)?),
                },
                index: index.map(|scalar| at.scalar(scalar)).transpose()?,
                until: until.map(|scalar| at.scalar(scalar)).transpose()?,
                body: sequence(body)?,
            },
            _ => Action::Launches(launches(units, id)?),
        };
        Ok(Self { name: unit.name.clone(), action })
    }
}

fn launches(units: &Units<'_>, id: UnitId) -> Result<Vec<Launch>, EmitError> {
    let launches = units.launches(id)?;
    for launch in &launches {
        if let Launch::Kernel(kernel) = launch {
            kernel.function.allow_shared(kernel.shared).at(|| units.addresses(id).place())?;
        }
    }
    Ok(launches)
}

impl Launch {
    fn on_stream(&self, stream: &Stream) -> Result<(), CudaError> {
        match self {
            Self::Kernel(kernel) => kernel.on_stream(stream),
            Self::Copy(copy) => copy.on_stream(stream),
            Self::Fill(fill) => fill.on_stream(stream),
            Self::Product(product) => product.on_stream(stream),
        }
    }
}

fn launch_text(launch: &Launch) -> String {
    match launch {
        Launch::Kernel(kernel) => super::graph::kernel_text(kernel),
        Launch::Copy(copy) => format!("memcpy {} rows of {} bytes", copy.height, copy.width),
        Launch::Fill(fill) => format!("memset {} rows of {} × {} bytes", fill.height, fill.width, fill.element),
        Launch::Product(_) => "cublasLtMatmul".to_owned(),
    }
}
