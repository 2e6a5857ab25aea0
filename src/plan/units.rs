//! Units: nodes become launches, and lists of nodes become ordered bodies.

use rustc_hash::FxHashMap;

use super::error::PlanError;
use super::launch::{check_driver, check_kernel, check_limits, kernel_launch};
use super::options::{GemmImpl, GemmKey, Target, Tuning};
use super::order::order;
use super::types::{Body, Unit, Work};
use crate::codegen::{map_launch, reduce_schedule};
use crate::entity::{NodeId, PhaseId, PrimaryMap, UnitId};
use crate::ir::{Gemm, LaunchConfig, NodeOp, Program, Reduce, Step, subtree_accesses};

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
    pub(super) step: &'a Step,
    pub(super) target: &'a Target,
    pub(super) tuning: &'a Tuning,
    /// Whether units follow one another in program order.
    pub(super) chain: bool,
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
        let after = self.after(nodes);
        Ok(order(units, &accesses, &after, self.chain))
    }

    /// The `after` wishes inside a body, as places; a wish is about nodes of one step.
    fn after(&self, nodes: &[Listed]) -> Vec<(u32, u32)> {
        if nodes.iter().all(|&Listed { node, .. }| self.step.nodes[node].after.is_empty()) {
            return Vec::new();
        }
        let key = |listed: &Listed| (listed.node, listed.iteration);
        let places: FxHashMap<_, u32> = (0u32..).zip(nodes).map(|(place, listed)| (key(listed), place)).collect();
        let mut wishes = Vec::new();
        for (to, &Listed { node, iteration, .. }) in (0u32..).zip(nodes) {
            let wished = &self.step.nodes[node].after;
            wishes.extend(wished.iter().filter_map(|&from| Some((*places.get(&(from, iteration))?, to))));
        }
        wishes
    }

    fn unit(&mut self, listed: Listed) -> Result<UnitId, PlanError> {
        let Listed { phase, node, iteration } = listed;
        let name = [&self.step.phases[phase].name, ".", &self.step.nodes[node].name].concat();
        let name = numbered(&name, iteration, self.copies);
        let work = self.work(&name, listed)?;
        Ok(self.units.push(Unit { name, phase, node, iteration, work }))
    }

    fn work(&mut self, name: &str, Listed { phase, node, iteration }: Listed) -> Result<Work, PlanError> {
        let step = self.step;
        let op = &step.nodes[node].op;
        check_driver(name, op, self.target)?;
        let mut inner = |body: &[NodeId]| {
            let nodes: Vec<_> = body.iter().map(|&node| Listed { phase, node, iteration }).collect();
            self.body(&nodes)
        };
        match op {
            NodeOp::If { then_body, else_body, .. } => {
                Ok(Work::If { then_body: inner(then_body)?, else_body: inner(else_body)? })
            }
            NodeOp::Switch { bodies, .. } => {
                Ok(Work::Switch { bodies: bodies.iter().map(|body| inner(body)).collect::<Result<_, _>>()? })
            }
            NodeOp::While { body, .. } => Ok(Work::While { body: inner(body)? }),
            NodeOp::Kernel(call) => {
                let config = kernel_launch(self.program, name, call)?;
                check_kernel(name, &self.program.kernels[call.kernel], &config, self.target)?;
                Ok(Work::Kernel(config))
            }
            NodeOp::Map(map) => self.generated(name, map_launch(&map.space)).map(Work::Map),
            NodeOp::Reduce(reduce) => self.reduce(name, reduce),
            NodeOp::Gemm(gemm) => Ok(Work::Gemm(self.gemm(gemm))),
            NodeOp::Copy { .. } => Ok(Work::Copy),
            NodeOp::Fill { .. } => Ok(Work::Fill),
        }
    }

    fn reduce(&self, name: &str, reduce: &Reduce) -> Result<Work, PlanError> {
        let schedule = reduce_schedule(reduce);
        self.generated(name, schedule.first)?;
        schedule.second.map(|second| self.generated(name, second)).transpose()?;
        Ok(Work::Reduce(schedule))
    }

    fn generated(&self, name: &str, config: LaunchConfig) -> Result<LaunchConfig, PlanError> {
        check_limits(name, &config, self.target).map(|()| config)
    }

    fn gemm(&self, gemm: &Gemm) -> GemmImpl {
        self.tuning.gemm(&GemmKey::of(gemm))
    }
}

/// `name`, or `name#2` for the second of several copies.
pub(super) fn numbered(name: &str, iteration: u32, copies: u32) -> String {
    if copies == 1 { name.to_owned() } else { format!("{name}#{}", iteration + 1) }
}
