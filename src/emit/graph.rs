//! From the bodies of a plan to a CUDA graph: one loop over units, one over edges.

use std::collections::HashMap;

use super::error::{At, EmitError, Place};
use super::gemm;
use super::lane::Lane;
use super::report::NodeLine;
use super::unit::{Launch, Units};
use crate::cuda::{Conditional, EdgeOrder, Function, Graph, GraphBody, GraphExec, Harvest, Matmul, Node};
use crate::entity::UnitId;
use crate::plan::{Body, EdgeKind, GraphPlan, Work};

/// An executable graph with everything that it needs.
#[derive(Debug)]
pub(super) struct EmittedGraph {
    pub(super) name: String,
    pub(super) exec: GraphExec,
    /// What the graph holds, by level.
    pub(super) lines: Vec<NodeLine>,
    pub(super) nodes: usize,
    pub(super) edges: usize,
    /// Dropped after the executable, in this order.
    _graph: Graph,
    _keep: Keep,
}

/// What nodes need as long as they live.
#[derive(Debug, Default)]
struct Keep {
    harvests: Vec<Harvest>,
    products: Vec<Matmul>,
    functions: Vec<Function>,
}

/// The nodes of one unit that others are ordered with.
#[derive(Default)]
struct Ends {
    first: Vec<Node>,
    last: Vec<Node>,
    /// Whether it is a single kernel of our own, which programmatic edges may join.
    is_kernel: bool,
}

struct Build<'u, 'a> {
    units: &'u Units<'a>,
    lane: &'u Lane,
    keep: Keep,
    lines: Vec<NodeLine>,
    names: HashMap<Node, String>,
    nodes: usize,
    edges: usize,
}

/// Builds and instantiates one graph of a plan.
pub(super) fn build(units: &Units<'_>, lane: &Lane, plan: &GraphPlan) -> Result<EmittedGraph, EmitError> {
    let place = || Place { step: units.step_name.clone(), graph: Some(plan.name.clone()), node: None };
    let mut graph = Graph::new(lane.context()).at(place)?;
    let mut build =
        Build { units, lane, keep: Keep::default(), lines: Vec::new(), names: HashMap::new(), nodes: 0, edges: 0 };
    build.body(&plan.body, &mut graph.body(), 0)?;
    let mut exec = GraphExec::new(&graph, |node| build.names.get(&node).cloned()).at(place)?;
    exec.upload(lane.stream()).at(place)?;
    let Build { keep, lines, nodes, edges, .. } = build;
    Ok(EmittedGraph { name: plan.name.clone(), exec, lines, nodes, edges, _graph: graph, _keep: keep })
}

impl Build<'_, '_> {
    /// Adds the units of a body and the edges between them; gives the nodes that nothing in the body follows.
    fn body(&mut self, body: &Body, into: &mut GraphBody<'_>, depth: usize) -> Result<Vec<Node>, EmitError> {
        let mut ends: HashMap<UnitId, Ends> = HashMap::with_capacity(body.units.len());
        for &unit in &body.units {
            ends.insert(unit, self.unit(unit, into, depth)?);
        }
        let mut edges = Vec::with_capacity(body.edges.len());
        for edge in &body.edges {
            let (Some(from), Some(to)) = (ends.get(&edge.from), ends.get(&edge.to)) else { continue };
            let order = match edge.kind {
                EdgeKind::Full => EdgeOrder::Full,
                EdgeKind::Programmatic if from.is_kernel && to.is_kernel => EdgeOrder::Programmatic,
                EdgeKind::Programmatic => {
                    return Err(EmitError::ProgrammaticEdge { place: Box::new(self.units.addresses(edge.to).place()) });
                }
            };
            edges.extend(from.last.iter().flat_map(|&from| to.first.iter().map(move |&to| (from, to, order))));
        }
        let place = || Place { step: self.units.step_name.clone(), graph: None, node: None };
        into.add_edges(&edges).at(place)?;
        self.edges += edges.len();
        let followed: std::collections::HashSet<UnitId> = body.edges.iter().map(|edge| edge.from).collect();
        let sinks = body.units.iter().filter(|&unit| !followed.contains(unit)).filter_map(|unit| ends.get(unit));
        Ok(sinks.flat_map(|ends| ends.last.iter().copied()).collect())
    }

    fn unit(&mut self, unit: UnitId, into: &mut GraphBody<'_>, depth: usize) -> Result<Ends, EmitError> {
        match &self.units.plan.units()[unit].work {
            Work::If { then_body, else_body } => {
                let has_else = !else_body.units.is_empty();
                let bodies: Vec<_> = std::iter::once(then_body).chain(has_else.then_some(else_body)).collect();
                self.conditional(unit, Conditional::If { has_else }, &bodies, into, depth)
            }
            Work::Switch { bodies } => {
                let kind = Conditional::Switch { bodies: u32::try_from(bodies.len()).unwrap_or(u32::MAX) };
                self.conditional(unit, kind, &bodies.iter().collect::<Vec<_>>(), into, depth)
            }
            Work::While { body } => self.conditional(unit, Conditional::While, &[body], into, depth),
            _ => self.simple(unit, into, depth),
        }
    }

    /// A chain of launches.
    fn simple(&mut self, unit: UnitId, into: &mut GraphBody<'_>, depth: usize) -> Result<Ends, EmitError> {
        let place = || self.units.addresses(unit).place();
        let launches = self.units.launches(unit)?;
        let is_kernel = matches!(launches.as_slice(), [Launch::Kernel(_)]);
        let mut ends = Ends { is_kernel, ..Ends::default() };
        for launch in launches {
            let (first, last) = match launch {
                Launch::Kernel(kernel) => {
                    let node = into.add_kernel(&kernel).at(place)?;
                    self.note(node, unit, depth, kernel_text(&kernel));
                    self.keep.functions.push(kernel.function);
                    (vec![node], vec![node])
                }
                Launch::Copy(copy) => {
                    let node = into.add_copy(&copy).at(place)?;
                    self.note(node, unit, depth, format!("memcpy {} rows of {} bytes", copy.height, copy.width));
                    (vec![node], vec![node])
                }
                Launch::Fill(fill) => {
                    let node = into.add_fill(&fill).at(place)?;
                    let text = format!("memset {} rows of {} × {} bytes", fill.height, fill.width, fill.element);
                    self.note(node, unit, depth, text);
                    (vec![node], vec![node])
                }
                Launch::Product(product) => self.product(unit, *product, into, depth)?,
            };
            if ends.first.is_empty() {
                ends.first = first;
            } else {
                let links: Vec<_> = ends
                    .last
                    .iter()
                    .flat_map(|&from| first.iter().map(move |&to| (from, to, EdgeOrder::Full)))
                    .collect();
                into.add_edges(&links).at(|| self.units.addresses(unit).place())?;
                self.edges += links.len();
            }
            ends.last = last;
        }
        Ok(ends)
    }

    fn product(
        &mut self,
        unit: UnitId,
        product: Matmul,
        into: &mut GraphBody<'_>,
        depth: usize,
    ) -> Result<(Vec<Node>, Vec<Node>), EmitError> {
        let harvest = gemm::harvest(self.lane, &product, into).at(|| self.units.addresses(unit).place())?;
        for (node, what) in &harvest.nodes {
            self.note(*node, unit, depth, what.clone());
        }
        self.edges += harvest.edges;
        let ends = (harvest.first.clone(), harvest.last.clone());
        self.keep.harvests.push(harvest);
        self.keep.products.push(product);
        Ok(ends)
    }

    /// A setter, the conditional node behind it, and its bodies. A loop's body ends with a second setter.
    fn conditional(
        &mut self,
        unit: UnitId,
        kind: Conditional,
        bodies: &[&Body],
        into: &mut GraphBody<'_>,
        depth: usize,
    ) -> Result<Ends, EmitError> {
        let place = || self.units.addresses(unit).place();
        let handle = into.conditional_handle().at(place)?;
        let mut setters = self.units.setters(unit, handle)?.into_iter();
        let Some(setter) = setters.next() else {
            return Err(EmitError::MissingKernel {
                place: Box::new(place()),
                kernel: "the condition's setter".to_owned(),
            });
        };
        let first = into.add_kernel(&setter).at(place)?;
        self.note(first, unit, depth, kernel_text(&setter));
        self.keep.functions.push(setter.function);
        let (node, inner) = into.add_conditional(handle, kind).at(|| self.units.addresses(unit).place())?;
        self.note(node, unit, depth, self.units.op(unit).kind().to_owned());
        into.add_edges(&[(first, node, EdgeOrder::Full)]).at(|| self.units.addresses(unit).place())?;
        self.edges += 1;
        for (body, mut inner) in bodies.iter().zip(inner) {
            let sinks = self.body(body, &mut inner, depth + 1)?;
            if let Some(advance) = setters.next() {
                let place = || self.units.addresses(unit).place();
                let node = inner.add_kernel(&advance).at(place)?;
                let links: Vec<_> = sinks.into_iter().map(|from| (from, node, EdgeOrder::Full)).collect();
                inner.add_edges(&links).at(place)?;
                self.edges += links.len();
                self.note(node, unit, depth + 1, kernel_text(&advance));
                self.keep.functions.push(advance.function);
            }
        }
        Ok(Ends { first: vec![first], last: vec![node], is_kernel: false })
    }

    fn note(&mut self, node: Node, unit: UnitId, depth: usize, what: String) {
        let name = &self.units.plan.units()[unit].name;
        self.nodes += 1;
        self.names.insert(node, name.clone());
        self.lines.push(NodeLine { unit: name.clone(), depth, what });
    }
}

pub(super) fn kernel_text(kernel: &crate::cuda::KernelLaunch) -> String {
    let config = crate::ir::LaunchConfig { grid: kernel.grid, block: kernel.block, shared: kernel.shared };
    format!("kernel {} {config}", kernel.function.name())
}
