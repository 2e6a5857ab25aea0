//! Units: nodes become launches, and lists of nodes become ordered bodies.

use rustc_hash::FxHashMap;

use super::error::{PlanError, PlanNode};
use super::launch::{check_driver, check_kernel, check_limits, kernel_launch};
use super::options::{GemmImpl, GemmKey, Target, Tuning};
use super::order::order;
use super::types::{Body, Unit, Work};
use crate::analysis::{Dependency, Reason};
use crate::codegen::{map_launch, reduce_schedule};
use crate::entity::{NodeId, PhaseId, PrimaryMap, StepId, UnitId};
use crate::ir::{Gemm, Item, LaunchConfig, NodeOp, Origins, Program, Reduce, Step, subtree_accesses};

/// A node where a plan lists it: once, or once per step of an unrolled plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    pub(super) phase: PhaseId,
    pub(super) node: NodeId,
    pub(super) iteration: u32,
}

/// Makes the units of one step.
pub(super) struct Lowering<'a> {
    pub(super) program: &'a Program,
    pub(super) origins: &'a Origins,
    pub(super) step_id: StepId,
    pub(super) step: &'a Step,
    pub(super) target: &'a Target,
    pub(super) tuning: &'a Tuning,
    /// Whether units follow one another in program order.
    pub(super) chain: bool,
    /// Whether what is being lowered runs inside of a loop, at whatever depth.
    pub(super) in_loop: bool,
    /// How often the plan lists each node.
    pub(super) copies: u32,
    pub(super) units: PrimaryMap<UnitId, Unit>,
}

impl Lowering<'_> {
    /// The ordered body of these nodes, given in program order. Validation bounds how deep bodies nest.
    pub(super) fn body(&mut self, nodes: &[Listed]) -> Result<Body, PlanError> {
        let mut units = Vec::with_capacity(nodes.len());
        for &listed in nodes {
            units.push(self.unit(listed)?);
        }
        let accesses: Vec<_> =
            nodes.iter().map(|&Listed { node, .. }| subtree_accesses(self.program, self.step, node)).collect();
        let mut others = self.after(nodes);
        if self.in_loop && !self.chain {
            others.extend(self.one_at_a_time(nodes));
        }
        Ok(order(units, &accesses, &others, self.chain))
    }

    /// Each conditional of a body follows the one before it.
    fn one_at_a_time(&self, nodes: &[Listed]) -> Vec<Dependency> {
        let is_conditional = |listed: &Listed| !self.step.nodes[listed.node].op.bodies().is_empty();
        let places: Vec<u32> =
            (0u32..).zip(nodes).filter_map(|(place, listed)| is_conditional(listed).then_some(place)).collect();
        let pair = |pair: &[u32]| Dependency { from: pair[0], to: pair[1], reason: Reason::OneAtATime };
        places.windows(2).map(pair).collect()
    }

    /// The `after` wishes inside a body; a wish is about nodes of one step.
    fn after(&self, nodes: &[Listed]) -> Vec<Dependency> {
        if nodes.iter().all(|&Listed { node, .. }| self.step.nodes[node].after.is_empty()) {
            return Vec::new();
        }
        let key = |listed: &Listed| (listed.node, listed.iteration);
        let places: FxHashMap<_, u32> = (0u32..).zip(nodes).map(|(place, listed)| (key(listed), place)).collect();
        let mut wishes = Vec::new();
        for (to, &Listed { node, iteration, .. }) in (0u32..).zip(nodes) {
            let wished = &self.step.nodes[node].after;
            let earlier = wished.iter().filter_map(|&from| places.get(&(from, iteration)));
            wishes.extend(earlier.map(|&from| Dependency { from, to, reason: Reason::After }));
        }
        wishes
    }

    fn unit(&mut self, listed: Listed) -> Result<UnitId, PlanError> {
        let Listed { phase, node, iteration } = listed;
        let name = [&self.step.phases[phase].name, ".", &self.step.nodes[node].name].concat();
        let name = numbered(&name, iteration, self.copies);
        let named = PlanNode { name, origin: self.origins.get(&Item::Node(self.step_id, node)) };
        let work = self.work(&named, listed)?;
        Ok(self.units.push(Unit { name: named.name, phase, node, iteration, work }))
    }

    /// The body of a conditional that is listed so.
    fn inner(&mut self, owner: Listed, body: &[NodeId]) -> Result<Body, PlanError> {
        let nodes: Vec<_> = body.iter().map(|&node| Listed { node, ..owner }).collect();
        self.body(&nodes)
    }

    fn work(&mut self, named: &PlanNode, listed: Listed) -> Result<Work, PlanError> {
        let step = self.step;
        let op = &step.nodes[listed.node].op;
        check_driver(named, op, self.target)?;
        match op {
            NodeOp::If { then_body, else_body, .. } => {
                let then_body = self.inner(listed, then_body)?;
                Ok(Work::If { then_body, else_body: self.inner(listed, else_body)? })
            }
            NodeOp::Switch { bodies, .. } => {
                let bodies = bodies.iter().map(|body| self.inner(listed, body)).collect::<Result<_, _>>()?;
                Ok(Work::Switch { bodies })
            }
            NodeOp::While { body, .. } => {
                let outside = std::mem::replace(&mut self.in_loop, true);
                let body = self.inner(listed, body);
                self.in_loop = outside;
                Ok(Work::While { body: body? })
            }
            NodeOp::Kernel(call) => {
                let config = kernel_launch(self.program, named, call)?;
                check_kernel(named, &self.program.kernels[call.kernel], &config, self.target)?;
                Ok(Work::Kernel(config))
            }
            NodeOp::Map(map) => self.generated(named, map_launch(&map.space)).map(Work::Map),
            NodeOp::Reduce(reduce) => self.reduce(named, reduce),
            NodeOp::Gemm(gemm) => Ok(Work::Gemm(self.gemm(gemm))),
            NodeOp::Copy { .. } => Ok(Work::Copy),
            NodeOp::Fill { .. } => Ok(Work::Fill),
        }
    }

    fn reduce(&self, named: &PlanNode, reduce: &Reduce) -> Result<Work, PlanError> {
        let schedule = reduce_schedule(reduce);
        self.generated(named, schedule.first)?;
        schedule.second.map(|second| self.generated(named, second)).transpose()?;
        Ok(Work::Reduce(schedule))
    }

    fn generated(&self, named: &PlanNode, config: LaunchConfig) -> Result<LaunchConfig, PlanError> {
        check_limits(named, &config, self.target).map(|()| config)
    }

    fn gemm(&self, gemm: &Gemm) -> GemmImpl {
        self.tuning.gemm(&GemmKey::of(gemm))
    }
}

/// `name`, or `name#2` for the second of several copies.
pub(super) fn numbered(name: &str, iteration: u32, copies: u32) -> String {
    if copies == 1 { name.to_owned() } else { format!("{name}#{}", iteration + 1) }
}
