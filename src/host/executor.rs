//! Runs the units of a plan, body by body.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::HostError;
use super::expr::Registers;
use super::gemm::{GemmRun, Packing};
use super::kernel::KernelRun;
use super::map::MapRun;
use super::memory::{Cell, HostMemory};
use super::reduce::ReduceRun;
use super::resolve::Resolver;
use crate::entity::{EntityRef, PrimaryMap, UnitId};
use crate::ir::{LoopBound, NodeOp};
use crate::plan::{Body, StepPlan, Unit, Work};

/// A plan, ready to run on the host, any number of times, over any memory of the plan's layout.
#[derive(Clone, Debug)]
pub struct HostExecutor {
    bodies: Vec<Arc<Body>>,
    units: PrimaryMap<UnitId, Ready>,
    buffers: Buffers,
}

/// Working memory, kept between units and runs so that the steady state allocates next to nothing.
#[derive(Clone, Debug, Default)]
struct Buffers {
    registers: Registers,
    finish: Registers,
    packing: Packing,
}

/// A unit, resolved.
#[derive(Clone, Debug)]
struct Ready {
    name: String,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Map(Box<MapRun>),
    Reduce(Box<ReduceRun>),
    Gemm(Box<GemmRun>),
    Kernel(KernelRun),
    /// The body of this number runs; past the last one none does.
    Branch {
        selector: Cell,
        bodies: Vec<Arc<Body>>,
        is_condition: bool,
    },
    Loop(Loop),
}

#[derive(Clone, Debug)]
struct Loop {
    max: Bound,
    index: Option<Cell>,
    until: Option<Cell>,
    body: Arc<Body>,
}

#[derive(Clone, Copy, Debug)]
enum Bound {
    Const(u32),
    Cell(Cell),
}

/// Picks the order in which a body's units run.
type Order<'a> = dyn FnMut(&Body) -> Vec<UnitId> + 'a;

impl HostExecutor {
    /// Resolves every unit of a plan.
    ///
    /// # Errors
    /// A kernel without a host function, or a plan that leaves something without memory.
    pub fn new(plan: &StepPlan) -> Result<Self, HostError> {
        let mut units = PrimaryMap::with_capacity(plan.units().len());
        for unit in plan.units().values() {
            units.push(Ready { name: unit.name.clone(), action: Action::new(plan, unit)? });
        }
        let bodies = plan.graphs().iter().map(|graph| Arc::new(graph.body.clone())).collect();
        Ok(Self { bodies, units, buffers: Buffers::default() })
    }

    /// How many units the plan has, those of bodies included.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Runs the plan once, in its own order. Loops end early once `stop` is set.
    ///
    /// # Errors
    /// A scattered store that breaks its promise.
    pub fn run(&mut self, memory: &mut HostMemory, stop: &AtomicBool) -> Result<(), HostError> {
        self.run_bodies(memory, stop, None)
    }

    /// Runs the plan once, each body in the order that `order` gives for it.
    ///
    /// # Errors
    /// An order that is not one of the body's units, each once, along its edges; or as [`HostExecutor::run`].
    pub fn run_in_order(
        &mut self,
        memory: &mut HostMemory,
        stop: &AtomicBool,
        order: &mut Order<'_>,
    ) -> Result<(), HostError> {
        self.run_bodies(memory, stop, Some(order))
    }

    fn run_bodies(
        &mut self,
        memory: &mut HostMemory,
        stop: &AtomicBool,
        order: Option<&mut Order<'_>>,
    ) -> Result<(), HostError> {
        let Self { bodies, units, buffers } = self;
        let mut run = Running { memory, stop, order, buffers };
        bodies.iter().try_for_each(|body| run.body(units, body))
    }
}

/// What stays the same while a plan runs.
struct Running<'a, 'o> {
    memory: &'a mut HostMemory,
    stop: &'a AtomicBool,
    /// The plan's own order where there is none.
    order: Option<&'a mut Order<'o>>,
    buffers: &'a mut Buffers,
}

impl Running<'_, '_> {
    fn body(&mut self, units: &mut PrimaryMap<UnitId, Ready>, body: &Body) -> Result<(), HostError> {
        let Some(pick) = &mut self.order else {
            return body.units.iter().try_for_each(|&unit| self.unit(units, unit));
        };
        let order = pick(body);
        check_order(units, body, &order)?;
        order.into_iter().try_for_each(|unit| self.unit(units, unit))
    }

    fn unit(&mut self, units: &mut PrimaryMap<UnitId, Ready>, unit: UnitId) -> Result<(), HostError> {
        let Buffers { registers, finish, packing } = &mut *self.buffers;
        let Ready { name, action } = &mut units[unit];
        match action {
            Action::Map(map) => map.run(self.memory, registers, name),
            Action::Reduce(reduce) => reduce.run(self.memory, registers, finish, name),
            Action::Gemm(gemm) => {
                gemm.run(self.memory, registers, packing);
                Ok(())
            }
            Action::Kernel(kernel) => {
                kernel.run(self.memory);
                Ok(())
            }
            Action::Branch { selector, bodies, is_condition } => {
                let value = self.memory.cell(*selector);
                let chosen = if *is_condition { u32::from(value == 0) } else { value };
                let Some(body) = bodies.get(chosen as usize).cloned() else { return Ok(()) };
                self.body(units, &body)
            }
            Action::Loop(found) => {
                let found = found.clone();
                self.repeat(units, &found)
            }
        }
    }

    fn repeat(&mut self, units: &mut PrimaryMap<UnitId, Ready>, this: &Loop) -> Result<(), HostError> {
        let max = match this.max {
            Bound::Const(max) => max,
            Bound::Cell(cell) => self.memory.cell(cell),
        };
        this.index.iter().for_each(|&cell| self.memory.set_cell(cell, 0));
        this.until.iter().for_each(|&cell| self.memory.set_cell(cell, 0));
        let mut index = 0;
        while index < max && !self.stop.load(Ordering::Relaxed) {
            self.body(units, &this.body)?;
            index += 1;
            this.index.iter().for_each(|&cell| self.memory.set_cell(cell, index));
            if this.until.is_some_and(|cell| self.memory.cell(cell) != 0) {
                break;
            }
        }
        Ok(())
    }
}

impl Action {
    fn new(plan: &StepPlan, unit: &Unit) -> Result<Self, HostError> {
        let program = plan.program().program();
        let resolver = Resolver { program, arena: plan.arena(), node: &unit.name };
        Ok(match (&program.steps[plan.step()].nodes[unit.node].op, &unit.work) {
            (NodeOp::Kernel(call), _) => Self::Kernel(KernelRun::new(&resolver, plan.program().host_fns(), call)?),
            (NodeOp::Gemm(gemm), _) => Self::Gemm(Box::new(GemmRun::new(&resolver, gemm)?)),
            (NodeOp::Map(map), _) => Self::Map(Box::new(MapRun::new(&resolver, map)?)),
            (NodeOp::Reduce(reduce), Work::Reduce(schedule)) => {
                Self::Reduce(Box::new(ReduceRun::new(&resolver, reduce, schedule)?))
            }
            (NodeOp::Copy { from, to }, _) => Self::Map(Box::new(MapRun::copy(&resolver, *from, *to)?)),
            (NodeOp::Fill { to, value }, _) => Self::Map(Box::new(MapRun::fill(&resolver, *to, *value)?)),
            (NodeOp::If { condition, .. }, Work::If { then_body, else_body }) => Self::Branch {
                selector: resolver.cell(*condition)?,
                bodies: [then_body, else_body].map(|body| Arc::new(body.clone())).to_vec(),
                is_condition: true,
            },
            (NodeOp::Switch { selector, .. }, Work::Switch { bodies }) => Self::Branch {
                selector: resolver.cell(*selector)?,
                bodies: bodies.iter().cloned().map(Arc::new).collect(),
                is_condition: false,
            },
            (NodeOp::While { max, index, until, .. }, Work::While { body }) => {
                let cell = |scalar: &Option<_>| scalar.map(|scalar| resolver.cell(scalar)).transpose();
                let max = match max {
                    LoopBound::Const(max) => Bound::Const(*max),
                    LoopBound::Scalar(scalar) => Bound::Cell(resolver.cell(*scalar)?),
                };
                Self::Loop(Loop { max, index: cell(index)?, until: cell(until)?, body: Arc::new(body.clone()) })
            }
            (op, _) => {
                return Err(HostError::WrongWork { node: unit.name.clone(), kind: op.kind() });
            }
        })
    }
}

/// Whether `order` holds each unit of the body once, after those that its edges put before it.
fn check_order(units: &PrimaryMap<UnitId, Ready>, body: &Body, order: &[UnitId]) -> Result<(), HostError> {
    let illegal = |unit: UnitId, reason: &str| {
        let unit = units.get(unit).map_or_else(|| unit.to_string(), |ready| ready.name.clone());
        Err(HostError::IllegalOrder { unit, reason: reason.to_owned() })
    };
    let (mut is_here, mut position) = (vec![false; units.len()], vec![None; units.len()]);
    body.units.iter().for_each(|unit| is_here[unit.index()] = true);
    for (place, &unit) in order.iter().enumerate() {
        if !is_here.get(unit.index()).is_some_and(|&here| here) {
            return illegal(unit, "it is not in this body");
        }
        if position[unit.index()].replace(place).is_some() {
            return illegal(unit, "it has already run");
        }
    }
    if let Some(&unit) = body.units.iter().find(|unit| position[unit.index()].is_none()) {
        return illegal(unit, "it is left out");
    }
    match body.edges.iter().find(|edge| position[edge.from.index()] > position[edge.to.index()]) {
        Some(edge) => illegal(edge.to, "a unit that it depends on has not run"),
        None => Ok(()),
    }
}
