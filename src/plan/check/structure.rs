//! Every node is one unit in the right body, runs as its declaration says, and edges join units of one body, forward.

use rustc_hash::{FxHashMap, FxHashSet};

use super::CheckError;
use crate::analysis::Varying;
use crate::codegen::{map_launch, reduce_schedule};
use crate::entity::{NodeId, PhaseId, SecondaryMap, UnitId};
use crate::ir::{LoopBound, NodeOp, Origin, Phase};
use crate::plan::error::PlanNode;
use crate::plan::launch::{check_driver, check_kernel, check_limits, kernel_launch};
use crate::plan::options::{Graphs, Repeat};
use crate::plan::types::{Body, StepPlan, Unit, Work};

/// A body and where it hangs.
pub(super) struct BodyView<'a> {
    pub(super) body: &'a Body,
    /// The conditional that it belongs to; `None` for a graph.
    pub(super) owner: Option<UnitId>,
    /// Its nodes in program order.
    pub(super) nodes: Vec<Listed>,
}

/// A node, and which step of an unrolled plan it belongs to.
pub(super) type Listed = (NodeId, u32);

/// All bodies, graphs first, and the place of each unit.
pub(super) struct Bodies<'a> {
    pub(super) list: Vec<BodyView<'a>>,
    /// The body and the place in its list of each unit.
    pub(super) place: SecondaryMap<UnitId, Option<(usize, u32)>>,
}

pub(super) fn check<'a>(plan: &'a StepPlan, errors: &mut Vec<CheckError>) -> Bodies<'a> {
    if !plan.program.program().steps.is_valid(plan.step) {
        errors.push(CheckError::UnknownStep { step: plan.step.to_string() });
        return Bodies { list: Vec::new(), place: SecondaryMap::new() };
    }
    let mut structure = Structure { plan, errors, bodies: Bodies { list: Vec::new(), place: SecondaryMap::new() } };
    structure.repeat();
    structure.graphs();
    structure.units();
    structure.bodies
}

struct Structure<'a, 'e> {
    plan: &'a StepPlan,
    errors: &'e mut Vec<CheckError>,
    bodies: Bodies<'a>,
}

impl<'a> Structure<'a, '_> {
    /// A plan that loops has nothing but a loop of that length; the steps of a plan of several read no input in the same places.
    fn repeat(&mut self) {
        let repeat = self.plan.fusion.repeat;
        match self.one_step() {
            Some(nodes) if repeat.steps() > 1 => self.inputs(&nodes),
            Some(_) => {}
            None => self.errors.push(CheckError::WrongRepeat { expected: repeat.to_string() }),
        }
    }

    /// The outer nodes of one of the steps that the plan makes; `None` where it does not make them as it says.
    fn one_step(&self) -> Option<Vec<NodeId>> {
        let plan = self.plan;
        let step = &plan.program.program().steps[plan.step];
        let listed: Vec<NodeId> = step.phases_in(plan.variant()).flat_map(|(_, phase)| &phase.nodes).copied().collect();
        let Repeat::Loop(steps) = plan.fusion.repeat else {
            return (plan.fusion.repeat.steps() > 0).then_some(listed);
        };
        let [only] = listed[..] else { return None };
        match &step.nodes[only].op {
            NodeOp::While { max: LoopBound::Const(max), index: None, until: None, body }
                if *max == steps && plan.fusion.graphs == Graphs::Mega =>
            {
                Some(body.clone())
            }
            _ => None,
        }
    }

    /// No unit reads the same part of an input in all steps of these outer nodes.
    fn inputs(&mut self, nodes: &[NodeId]) {
        let (plan, program) = (self.plan, self.plan.program.program());
        let step = &program.steps[plan.step];
        let varying = Varying::of(program, step, nodes);
        for unit in plan.units.values().filter(|unit| step.nodes.is_valid(unit.node)) {
            if let Some(input) = varying.fixed_input(unit.node) {
                let input = program.buffers[input].name.clone();
                self.errors.push(CheckError::RepeatedInput { unit: unit.name.clone(), input });
            }
        }
    }

    fn graphs(&mut self) {
        let plan = self.plan;
        let step = &plan.program.program().steps[plan.step];
        let listed = |iteration: u32, (phase, content): (PhaseId, &Phase)| {
            content.nodes.iter().map(|&node| (phase, (node, iteration))).collect::<Vec<_>>()
        };
        let phases_of = |iteration| step.phases_in(plan.variant()).map(move |phase| listed(iteration, phase));
        let phases: Vec<_> = (0..self.copies()).flat_map(phases_of).collect();
        let expected = if plan.fusion.graphs == Graphs::PerPhase { phases } else { vec![phases.concat()] };
        if expected.len() != plan.graphs.len() {
            self.errors.push(CheckError::GraphCount { found: plan.graphs.len(), expected: expected.len() });
            return;
        }
        for (graph, nodes) in plan.graphs.iter().zip(expected) {
            self.body(&graph.body, None, &nodes);
        }
        let mut at = 0;
        while let Some(body) = self.bodies.list.get(at).map(|view| view.body) {
            for (place, &unit) in (0u32..).zip(&body.units) {
                // Where it is listed again, its own bodies included, it is not followed again: that would not end.
                if self.bodies.place[unit] == Some((at, place)) {
                    self.inner(unit);
                }
            }
            at += 1;
        }
    }

    /// Looks at the bodies of a conditional.
    fn inner(&mut self, unit: UnitId) {
        let Some(found) = self.plan.units.get(unit) else { return };
        let step = &self.plan.program.program().steps[self.plan.step];
        let expected = step.nodes.get(found.node).map(|node| node.op.bodies()).unwrap_or_default();
        for (body, nodes) in found.work.bodies().into_iter().zip(expected) {
            let nodes: Vec<_> = nodes.iter().map(|&node| (found.phase, (node, found.iteration))).collect();
            self.body(body, Some(unit), &nodes);
        }
    }

    fn body(&mut self, body: &'a Body, owner: Option<UnitId>, expected: &[(PhaseId, Listed)]) {
        let step = &self.plan.program.program().steps[self.plan.step];
        let index = self.bodies.list.len();
        let mut missing: FxHashMap<Listed, PhaseId> = expected.iter().map(|&(phase, node)| (node, phase)).collect();
        for (place, &unit) in (0u32..).zip(&body.units) {
            let Some(found) = self.plan.units.get(unit) else {
                self.errors.push(CheckError::MisplacedUnit { unit: unit.to_string(), reason: "does not exist" });
                continue;
            };
            let reason = if self.bodies.place[unit].is_some() {
                Some("is listed twice")
            } else if missing.remove(&(found.node, found.iteration)) != Some(found.phase) {
                Some("does not belong into this body")
            } else {
                let mut named = format!("{}.{}", step.phases[found.phase].name, step.nodes[found.node].name);
                if self.copies() > 1 {
                    named += &format!("#{}", found.iteration + 1);
                }
                (named != found.name).then_some("does not have its node's name")
            };
            self.bodies.place[unit].get_or_insert((index, place));
            if let Some(reason) = reason {
                self.errors.push(CheckError::MisplacedUnit { unit: found.name.clone(), reason });
            }
        }
        for &(_, (node, _)) in expected.iter().filter(|(_, listed)| missing.contains_key(listed)) {
            self.errors.push(CheckError::MissingNode { node: step.nodes[node].name.clone() });
        }
        let nodes = expected.iter().map(|&(_, listed)| listed).collect();
        self.bodies.list.push(BodyView { body, owner, nodes });
        self.edges(body, index);
    }

    fn edges(&mut self, body: &Body, index: usize) {
        let mut seen = FxHashSet::default();
        for edge in &body.edges {
            let place = |unit: UnitId| self.bodies.place[unit].filter(|&(own, _)| own == index).map(|(_, place)| place);
            let reason = match (place(edge.from), place(edge.to)) {
                (Some(from), Some(to)) if from >= to => "goes against the listed order",
                (Some(_), Some(_)) if !seen.insert((edge.from, edge.to)) => "is listed twice",
                (Some(_), Some(_)) if edge.causes.is_empty() => "says no cause",
                (Some(_), Some(_)) => continue,
                _ => "leaves its body",
            };
            let name = |unit: UnitId| self.plan.units.get(unit).map_or(unit.to_string(), |unit| unit.name.clone());
            self.errors.push(CheckError::BadEdge { from: name(edge.from), to: name(edge.to), reason });
        }
    }

    /// Copies of each node. A hand-made number of them must not make the check endless.
    fn copies(&self) -> u32 {
        let most = u32::try_from(self.plan.units.len()).unwrap_or(u32::MAX);
        self.plan.fusion.repeat.copies().min(most.saturating_add(1))
    }

    fn units(&mut self) {
        for (id, unit) in self.plan.units.iter() {
            if self.bodies.place[id].is_none() {
                let reason = "is in no body";
                self.errors.push(CheckError::MisplacedUnit { unit: unit.name.clone(), reason });
            }
            if let Some(expected) = self.wrong_work(unit) {
                let found = describe(&unit.work);
                self.errors.push(CheckError::WrongWork { unit: unit.name.clone(), found, expected });
            }
        }
    }

    /// What the unit must run as, if that differs from what it does.
    fn wrong_work(&self, unit: &Unit) -> Option<String> {
        let (program, target) = (self.plan.program.program(), &self.plan.target);
        let name = &PlanNode { name: unit.name.clone(), origin: Origin::Unknown };
        let Some(op) = program.steps[self.plan.step].nodes.get(unit.node).map(|node| &node.op) else {
            return Some("nothing: it does not exist".to_owned());
        };
        if let Err(error) = check_driver(name, op, target) {
            return Some(error.to_string());
        }
        let launch = |expected| Some(format!("a launch of {expected}"));
        let shape = |expected: usize| (unit.work.bodies().len() != expected).then(|| format!("{expected} bodies"));
        match (op, &unit.work) {
            (NodeOp::Kernel(call), Work::Kernel(config)) => match kernel_launch(program, name, call) {
                Ok(expected) if expected != *config => launch(expected),
                Ok(_) => check_kernel(name, &program.kernels[call.kernel], config, target).err().map(|e| e.to_string()),
                Err(error) => Some(error.to_string()),
            },
            (NodeOp::Map(map), Work::Map(config)) => match map_launch(&map.space) {
                expected if expected != *config => launch(expected),
                _ => check_limits(name, config, target).err().map(|error| error.to_string()),
            },
            (NodeOp::Reduce(reduce), Work::Reduce(schedule)) => {
                let expected = reduce_schedule(reduce);
                (expected != *schedule).then(|| format!("{expected:?}"))
            }
            (NodeOp::Gemm(_), Work::Gemm(_))
            | (NodeOp::Copy { .. }, Work::Copy)
            | (NodeOp::Fill { .. }, Work::Fill)
            | (NodeOp::If { .. }, Work::If { .. })
            | (NodeOp::While { .. }, Work::While { .. }) => None,
            (NodeOp::Switch { bodies, .. }, Work::Switch { .. }) => shape(bodies.len()),
            _ => Some(format!("a {}", op.kind())),
        }
    }
}

fn describe(work: &Work) -> String {
    match work {
        Work::Kernel(config) | Work::Map(config) => format!("a launch of {config}"),
        Work::Reduce(schedule) => format!("{schedule:?}"),
        Work::Gemm(_) => "a gemm".into(),
        Work::Copy => "a copy".into(),
        Work::Fill => "a fill".into(),
        Work::If { .. } => "an if".into(),
        Work::Switch { bodies } => format!("a switch of {} bodies", bodies.len()),
        Work::While { .. } => "a while".into(),
    }
}
