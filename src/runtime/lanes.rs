//! Which lane writes what, and the rule that keeps lanes apart: what one lane writes no other touches.

use super::error::RuntimeError;
use super::report::step_name;
use crate::entity::{BufferId, ScalarId, SecondaryMap};
use crate::ir::{Resource, Writer, node_accesses};
use crate::plan::{Region, StepPlan};

/// The name of the lane that a session always has.
pub(super) const MAIN: &str = "main";

/// The lanes of a session, and what each touches. Lane 0 is [`MAIN`].
#[derive(Debug)]
pub(super) struct Lanes {
    names: Vec<String>,
    of_plan: Vec<usize>,
    buffers: SecondaryMap<BufferId, Touched>,
    scalars: SecondaryMap<ScalarId, Touched>,
}

/// Who touches a piece of memory that lasts from launch to launch.
#[derive(Clone, Debug, Default)]
struct Touched {
    /// The first plan that writes it.
    writer: Option<usize>,
    /// The first plan of each lane that touches it.
    by: Vec<(usize, usize)>,
    /// The lane that a link writes it on.
    target: Option<usize>,
}

impl Lanes {
    /// The lanes with these names, and the lane of each plan.
    ///
    /// # Errors
    /// Memory that one lane writes and another touches.
    pub(super) fn new(names: Vec<String>, of_plan: Vec<usize>, plans: &[StepPlan]) -> Result<Self, RuntimeError> {
        let mut lanes = Self { names, of_plan, buffers: SecondaryMap::new(), scalars: SecondaryMap::new() };
        for (index, plan) in plans.iter().enumerate() {
            lanes.note(index, plan);
        }
        let program = plans[0].program().program();
        for (id, buffer) in program.buffers.iter() {
            lanes.check(&lanes.buffers[id], "buffer", &buffer.name, plans)?;
        }
        for (id, scalar) in program.scalars.iter() {
            lanes.check(&lanes.scalars[id], "scalar", &scalar.name, plans)?;
        }
        Ok(lanes)
    }

    fn note(&mut self, index: usize, plan: &StepPlan) {
        let (program, lane) = (plan.program().program(), self.of_plan[index]);
        let step = &program.steps[plan.step()];
        for access in plan.units().values().flat_map(|unit| node_accesses(program, step, unit.node)) {
            let touched = match access.resource {
                Resource::View(view) if lasts(plan, view.buffer) => &mut self.buffers[view.buffer],
                Resource::Scalar(scalar) if program.scalars[scalar].writer == Writer::Device => {
                    &mut self.scalars[scalar]
                }
                _ => continue,
            };
            if access.mode.writes() {
                touched.writer.get_or_insert(index);
            }
            if touched.by.iter().all(|&(of, _)| of != lane) {
                touched.by.push((lane, index));
            }
        }
    }

    fn check(&self, touched: &Touched, kind: &'static str, name: &str, plans: &[StepPlan]) -> Result<(), RuntimeError> {
        let Some(writer) = touched.writer else { return Ok(()) };
        let lane = self.of_plan[writer];
        let Some(&(other, reader)) = touched.by.iter().find(|&&(of, _)| of != lane) else { return Ok(()) };
        let step = |plan: usize, lane: usize| {
            let step = step_name(plans[plan].step_name(), plans[plan].variant());
            format!("{step} on lane `{}`", self.names[lane])
        };
        Err(RuntimeError::SharedAcrossLanes {
            kind,
            name: name.to_owned(),
            writer: step(writer, lane),
            other: step(reader, other),
        })
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.names.len()
    }

    /// Their names.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The lane of a plan.
    pub(super) fn of_plan(&self, plan: usize) -> usize {
        self.of_plan[plan]
    }

    /// The lane of each plan.
    pub(super) fn of_plans(&self) -> &[usize] {
        &self.of_plan
    }

    /// The lane of this name.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn find(&self, name: &str) -> Result<usize, RuntimeError> {
        let found = self.names.iter().position(|lane| lane == name);
        found.ok_or_else(|| RuntimeError::NoLane { name: name.to_owned(), have: self.names.join(", ") })
    }

    /// The lane whose launches write a buffer; the main one where none do.
    pub(super) fn writer_of_buffer(&self, buffer: BufferId) -> usize {
        self.writing_lane(buffer).unwrap_or(0)
    }

    /// The lane whose launches or links write a buffer, if any do.
    pub(super) fn writing_lane(&self, buffer: BufferId) -> Option<usize> {
        let touched = &self.buffers[buffer];
        touched.target.or(touched.writer.map(|plan| self.of_plan[plan]))
    }

    /// The lane whose launches write a scalar; the main one where none do.
    pub(super) fn writer_of_scalar(&self, scalar: ScalarId) -> usize {
        self.scalars[scalar].writer.map_or(0, |plan| self.of_plan[plan])
    }

    /// A plan that writes a buffer.
    pub(super) fn writing_plan(&self, buffer: BufferId) -> Option<usize> {
        self.buffers[buffer].writer
    }

    /// The lanes that touch a buffer.
    pub(super) fn touching(&self, buffer: BufferId) -> impl Iterator<Item = usize> {
        self.buffers[buffer].by.iter().map(|&(lane, _)| lane)
    }

    /// Notes that a link writes a buffer on a lane.
    pub(super) fn is_target(&mut self, buffer: BufferId, lane: usize) {
        self.buffers[buffer].target = Some(lane);
    }
}

/// Whether a buffer keeps its place between launches, so that lanes could meet in it.
fn lasts(plan: &StepPlan, buffer: BufferId) -> bool {
    let at = plan.arena().buffers[buffer];
    at.is_some_and(|at| matches!(at.region, Region::Persistent | Region::Output))
}

/// Checks that lanes have names, each its own.
///
/// # Errors
/// An empty name, or one that is taken.
pub(super) fn check_names(names: &[String]) -> Result<(), RuntimeError> {
    if names.iter().any(String::is_empty) {
        return Err(RuntimeError::UnnamedLane);
    }
    let taken = names.iter().enumerate().find(|&(at, name)| names[..at].contains(name));
    taken.map_or(Ok(()), |(_, name)| Err(RuntimeError::DuplicateLane { name: name.clone() }))
}
