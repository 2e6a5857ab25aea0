//! What a plan amounts to, in numbers.

use rustc_hash::FxHashMap;

use super::options::Graphs;
use super::types::{Body, StepPlan, Work};
use crate::analysis::Dag;
use crate::entity::UnitId;

/// The size of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Graphs; 0 under per-node plans.
    pub graphs: usize,
    /// Launch calls that the host makes for one run of the plan: one per graph, or one per kernel under per-node plans.
    pub launches: usize,
    /// Steps that one run makes.
    pub steps: u32,
    /// Units by kind of node, those of bodies included; kinds that do not occur are left out.
    pub units: Vec<(&'static str, usize)>,
    /// Dependency edges, those of bodies included.
    pub edges: usize,
    /// Units that must follow one another: the critical path of each graph, added up. A conditional counts as one.
    pub levels: u32,
}

const KINDS: [&str; 9] = ["kernel", "gemm", "map", "reduce", "copy", "fill", "if", "switch", "while"];

impl Counts {
    /// Counts a plan.
    pub fn of(plan: &StepPlan) -> Self {
        let nodes = &plan.program.program().steps[plan.step].nodes;
        let mut units = KINDS.map(|kind| (kind, 0));
        for unit in plan.units.values() {
            let kind = nodes[unit.node].op.kind();
            units.iter_mut().filter(|(own, _)| *own == kind).for_each(|(_, count)| *count += 1);
        }
        let inner = plan.units.values().flat_map(|unit| unit.work.bodies());
        let outer = || plan.graphs.iter().map(|graph| &graph.body);
        let per_node = plan.fusion.graphs == Graphs::PerNode;
        let launches =
            |body: &Body| body.units.iter().map(|&unit| stream_launches(&plan.units[unit].work)).sum::<usize>();
        Self {
            graphs: if per_node { 0 } else { plan.graphs.len() },
            launches: if per_node { outer().map(launches).sum() } else { plan.graphs.len() },
            steps: plan.fusion.repeat.steps(),
            units: units.into_iter().filter(|&(_, count)| count > 0).collect(),
            edges: outer().chain(inner).map(|body| body.edges.len()).sum(),
            levels: outer().map(levels).sum(),
        }
    }
}

fn stream_launches(work: &Work) -> usize {
    match work {
        Work::Reduce(schedule) if schedule.second.is_some() => 2,
        _ => 1,
    }
}

fn levels(body: &Body) -> u32 {
    let places: FxHashMap<UnitId, u32> = body.units.iter().zip(0u32..).map(|(&unit, place)| (unit, place)).collect();
    let mut edges: Vec<(u32, u32)> = body.edges.iter().map(|edge| (places[&edge.from], places[&edge.to])).collect();
    edges.sort_unstable_by_key(|&(from, to)| (to, from));
    Dag::new(body.units.len(), &edges).levels().into_iter().max().map_or(0, |level| level + 1)
}
