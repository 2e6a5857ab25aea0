//! Where the numbers went wrong: the first value that is not finite, in the order in which the last launch wrote.
//!
//! It reads memory as it is and runs nothing. What was overwritten by something else since is passed over: a plan that keeps
//! temps apart, such as `debug`, shows the most.

use std::fmt;

use half::bf16;

use super::backend::Order;
use super::error::RuntimeError;
use super::session::Session;
use super::values::runs;
use crate::entity::{BufferId, ScalarId, UnitId};
use crate::ir::{Buffer, DType, Resource, Role, View, node_accesses};
use crate::plan::{Body, Placement, StepPlan};

/// A value that is NaN or infinite.
#[derive(Clone, Debug, PartialEq)]
pub struct NonFinite {
    /// The step that was launched last.
    pub step: String,
    /// The node that wrote the value, as `phase.node`; `None` for what the step only reads.
    pub node: Option<String>,
    /// Whether that node stands in a body of a conditional: where the body did not run, the value was there before.
    pub in_body: bool,
    /// The buffer or scalar.
    pub buffer: String,
    /// The element, row-major; 0 for a scalar.
    pub index: u64,
    /// The value.
    pub value: f32,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, node, in_body, buffer, index, value } = self;
        write!(f, "`{buffer}`[{index}] is {value}: ")?;
        match node {
            Some(node) if *in_body => {
                write!(
                    f,
                    "node `{node}` of step `{step}` wrote it, or it was there before and the node's body did not run"
                )
            }
            Some(node) => write!(f, "node `{node}` of step `{step}` wrote it"),
            None => write!(f, "step `{step}` reads it and does not write it"),
        }
    }
}

impl Session {
    /// The first value that is not finite, after waiting for the last launch: first in what its step only reads, then in what
    /// each node wrote, in the order of the plan. `None` where all are finite, and where nothing has been launched since the
    /// session was opened, reset or resumed.
    ///
    /// A value that several nodes wrote counts for the last of them. Memory that the plan has used again since is passed over;
    /// plans without graphs (`debug`) give every temp memory of its own. Temps inside of conditional bodies are passed over too,
    /// since a body may not have run.
    ///
    /// # Errors
    /// A device that failed.
    pub fn first_non_finite(&mut self) -> Result<Option<NonFinite>, RuntimeError> {
        let Some(index) = self.history.last_plan() else { return Ok(None) };
        let plan = self.plans[index].clone();
        let order = Order::After(self.lanes.of_plan(index));
        let touched = Touched::of(&plan);
        let mut search = Search { session: self, plan: &plan, order };
        for resource in &touched.reads {
            if let Some(found) = search.look(*resource, None, &touched.writes)? {
                return Ok(Some(found));
            }
        }
        for (at, write) in touched.writes.iter().enumerate() {
            let later = &touched.writes[at + 1..];
            if !write.is_kept(&plan, later) {
                continue;
            }
            if let Some(found) = search.look(write.resource, Some(write), later)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// A unit's write, in the order of the plan.
#[derive(Clone, Copy, Debug)]
struct Write {
    unit: UnitId,
    resource: Resource,
    in_body: bool,
}

/// What a plan touches.
#[derive(Default)]
struct Touched {
    /// What nodes read, temps left out; what nodes write too is told apart element by element.
    reads: Vec<Resource>,
    writes: Vec<Write>,
}

impl Touched {
    fn of(plan: &StepPlan) -> Self {
        let mut touched = Self::default();
        let mut reads = Vec::new();
        for graph in plan.graphs() {
            touched.body(plan, &graph.body, false, &mut reads);
        }
        for read in reads {
            if !is_temp(plan, &read) && !touched.reads.contains(&read) {
                touched.reads.push(read);
            }
        }
        touched
    }

    fn body(&mut self, plan: &StepPlan, body: &Body, in_body: bool, reads: &mut Vec<Resource>) {
        let program = plan.program().program();
        let step = &program.steps[plan.step()];
        for &unit in &body.units {
            for access in node_accesses(program, step, plan.units()[unit].node) {
                match access.mode.writes() {
                    true => self.writes.push(Write { unit, resource: access.resource, in_body }),
                    false => reads.push(access.resource),
                }
            }
            for inner in plan.units()[unit].work.bodies() {
                self.body(plan, inner, true, reads);
            }
        }
    }
}

/// A temp holds nothing that nobody wrote.
fn is_temp(plan: &StepPlan, resource: &Resource) -> bool {
    matches!(resource, Resource::View(view) if plan.program().program().buffers[view.buffer].role == Role::Temp)
}

impl Write {
    /// Whether the memory still holds what the step put there.
    fn is_kept(&self, plan: &StepPlan, later: &[Self]) -> bool {
        let Resource::View(view) = self.resource else { return true };
        if plan.program().program().buffers[view.buffer].role != Role::Temp {
            return true;
        }
        let arena = plan.arena();
        let Some(own) = arena.buffers[view.buffer] else { return false };
        let overlaps = |at: Option<Placement>| at.is_some_and(|at| at.overlaps(&own));
        let takes = |write: &Self| {
            let other = match write.resource {
                Resource::View(other) if other.buffer != view.buffer => arena.buffers[other.buffer],
                _ => None,
            };
            overlaps(other) || overlaps(arena.workspaces[write.unit])
        };
        // A unit's own workspace never lies in what it writes.
        !self.in_body && !later.iter().filter(|write| write.unit != self.unit).any(takes)
    }
}

/// Looks for values in a session's memory.
struct Search<'a> {
    session: &'a mut Session,
    plan: &'a StepPlan,
    order: Order,
}

impl Search<'_> {
    /// The first value of a resource that is not finite and that no later write of the same memory is to blame for.
    fn look(
        &mut self,
        resource: Resource,
        by: Option<&Write>,
        later: &[Write],
    ) -> Result<Option<NonFinite>, RuntimeError> {
        let found = match resource {
            Resource::Scalar(_) if later.iter().any(|write| write.resource == resource) => None,
            Resource::Scalar(scalar) => self.scalar(scalar)?,
            Resource::View(view) => {
                let same = later.iter().filter_map(|write| match write.resource {
                    Resource::View(other) if other.buffer == view.buffer => Some(other),
                    _ => None,
                });
                self.view(view, &same.collect::<Vec<_>>())?
            }
        };
        let node = by.map(|write| self.plan.units()[write.unit].name.clone());
        let in_body = by.is_some_and(|write| write.in_body);
        let step = self.plan.step_name().to_owned();
        Ok(found.map(|(buffer, index, value)| NonFinite { step, node, in_body, buffer, index, value }))
    }

    fn scalar(&mut self, scalar: ScalarId) -> Result<Option<(String, u64, f32)>, RuntimeError> {
        let declared = &self.plan.program().program().scalars[scalar];
        let Some(at) = self.plan.arena().scalars[scalar].filter(|_| declared.init.dtype() == DType::F32) else {
            return Ok(None);
        };
        let mut bytes = [0; 4];
        self.session.fetch_bytes(at, &mut bytes, self.order)?;
        let value = f32::from_ne_bytes(bytes);
        Ok((!value.is_finite()).then(|| (declared.name.clone(), 0, value)))
    }

    fn view(&mut self, view: View, later: &[View]) -> Result<Option<(String, u64, f32)>, RuntimeError> {
        let Buffer { name, dtype, shape, .. } = &self.plan.program().program().buffers[view.buffer];
        let Some(whole) = self.place(view.buffer).filter(|_| matches!(dtype, DType::F32 | DType::Bf16)) else {
            return Ok(None);
        };
        if later.iter().any(|other| other.contains(&view)) {
            return Ok(None);
        }
        for run in runs(&view, shape) {
            let (start, size) = (run.start, dtype.size());
            let at = Placement { offset: whole.offset + start * size, bytes: (run.end - start) * size, ..whole };
            let mut bytes = vec![0; at.bytes as usize];
            self.session.fetch_bytes(at, &mut bytes, self.order)?;
            let values = bytes.chunks_exact(size as usize).map(|bytes| value(*dtype, bytes));
            let is_ours = |index: u64| later.iter().all(|other| !holds(other, &shape.strides(), index));
            let found = (start..).zip(values).find(|&(index, value)| !value.is_finite() && is_ours(index));
            if let Some((index, value)) = found {
                return Ok(Some((name.clone(), index, value)));
            }
        }
        Ok(None)
    }

    fn place(&self, buffer: BufferId) -> Option<Placement> {
        self.plan.arena().buffers[buffer]
    }
}

fn value(dtype: DType, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (DType::Bf16, &[a, b]) => bf16::from_ne_bytes([a, b]).to_f32(),
        (_, &[a, b, c, d]) => f32::from_ne_bytes([a, b, c, d]),
        _ => 0.0,
    }
}

/// Whether a view holds the element of this row-major index.
fn holds(view: &View, strides: &[u64], index: u64) -> bool {
    let mut rest = index;
    view.ranges().iter().zip(strides).all(|(range, &stride)| {
        let place = rest / stride.max(1);
        rest %= stride.max(1);
        u64::from(range.start) <= place && place < range.end()
    })
}
