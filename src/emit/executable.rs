//! Executables: a plan on a device, ready to run any number of times.

use std::sync::Arc;

use super::error::{At, EmitError, Place};
use super::graph::{EmittedGraph, build};
use super::kernels::PlanKernels;
use super::lane::Lane;
use super::memory::LaneMemory;
use super::report::{Counts, NodeLine};
use super::stream::{Run, Sequence};
use super::unit::{Units, step_name};
use crate::cuda::{DeviceMemory, PinnedMemory};
use crate::plan::{Graphs, StepPlan};

/// A plan on a device. It owns, or keeps alive, everything that its launches name.
#[derive(Debug)]
pub struct Executable {
    step: String,
    parts: Vec<Part>,
    word: PinnedMemory,
    memory: Arc<LaneMemory>,
    _constants: Vec<DeviceMemory>,
    _kernels: PlanKernels,
    lane: Arc<Lane>,
}

#[derive(Debug)]
enum Part {
    Graph(Box<EmittedGraph>),
    Stream { name: String, sequence: Sequence },
}

/// Turns a plan into executables over a lane's memory.
///
/// # Errors
/// Where the driver or the matrix library refuses something, or the plan needs what they do not have; with the node's name.
pub fn emit(
    plan: &StepPlan,
    memory: &Arc<LaneMemory>,
    kernels: PlanKernels,
    lane: &Arc<Lane>,
) -> Result<Executable, EmitError> {
    let step = step_name(plan);
    let place = || Place { step: step.clone(), graph: None, node: None };
    lane.context().bind().at(place)?;
    let units = Units::new(plan, memory, &kernels, lane);
    let mut parts = Vec::with_capacity(plan.graphs().len());
    for graph in plan.graphs() {
        parts.push(match plan.fusion().graphs {
            Graphs::PerNode => Part::Stream { name: graph.name.clone(), sequence: Sequence::new(&units, &graph.body)? },
            Graphs::PerPhase | Graphs::Mega => Part::Graph(Box::new(build(&units, lane, graph)?)),
        });
    }
    let word = PinnedMemory::new(lane.context(), 4).at(place)?;
    // Uploads and constants have arrived before anyone launches, on whatever stream.
    lane.stream().synchronize().at(place)?;
    let constants = units.into_constants();
    Ok(Executable {
        parts,
        word,
        memory: Arc::clone(memory),
        _constants: constants,
        _kernels: kernels,
        lane: Arc::clone(lane),
        step,
    })
}

impl Executable {
    /// Queues one run on the lane's stream.
    ///
    /// # Errors
    /// Whatever the driver says, with the graph's or node's name; a fault of earlier work may show here.
    pub fn launch(&mut self) -> Result<(), EmitError> {
        self.run(false)
    }

    /// Runs once and waits after each launch, so that a fault names the node, or the graph, that made it.
    ///
    /// # Errors
    /// As [`Executable::launch`].
    pub fn launch_checked(&mut self) -> Result<(), EmitError> {
        self.run(true)
    }

    fn run(&mut self, checked: bool) -> Result<(), EmitError> {
        let stream = self.lane.stream();
        for part in &mut self.parts {
            match part {
                Part::Graph(graph) => {
                    let EmittedGraph { name, exec, .. } = &mut **graph;
                    let place = || Place { step: self.step.clone(), graph: Some(name.clone()), node: None };
                    exec.launch(stream).at(place)?;
                    if checked {
                        stream.synchronize().at(place)?;
                    }
                }
                Part::Stream { sequence, .. } => {
                    let (memory, word, step) = (&self.memory, &self.word, self.step.as_str());
                    sequence.run(&Run { stream, memory, word, checked, step })?;
                }
            }
        }
        Ok(())
    }

    /// The step, with its variant.
    pub fn step(&self) -> &str {
        &self.step
    }

    /// How much the plan became.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for part in &self.parts {
            match part {
                Part::Graph(graph) => {
                    counts.graphs += 1;
                    counts.nodes += graph.nodes;
                    counts.edges += graph.edges;
                    counts.launches += 1;
                }
                Part::Stream { sequence, .. } => counts.launches += sequence.count(),
            }
        }
        counts
    }

    /// The driver's handle of each graph (`CUgraphExec`), in launch order; none where nodes are launched one by one.
    pub fn raw_graphs(&self) -> Vec<usize> {
        let graph = |part: &Part| match part {
            Part::Graph(graph) => Some(graph.exec.raw() as usize),
            Part::Stream { .. } => None,
        };
        self.parts.iter().filter_map(graph).collect()
    }

    /// Every node, those taken over from libraries included, as text: one line each, without addresses.
    pub fn dump(&self) -> String {
        let mut text = String::new();
        for part in &self.parts {
            let (head, lines) = match part {
                Part::Graph(graph) => {
                    (format!("graph {}: {} nodes, {} edges", graph.name, graph.nodes, graph.edges), graph.lines.clone())
                }
                Part::Stream { name, sequence } => {
                    let mut lines: Vec<NodeLine> = Vec::new();
                    sequence.lines(0, &mut lines);
                    (format!("stream {name}: {} launches", sequence.count()), lines)
                }
            };
            text.push_str(&head);
            text.push('\n');
            lines.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        }
        text
    }
}

impl Drop for Executable {
    /// Waits for what is queued, because it names memory that may be freed next.
    fn drop(&mut self) {
        if let Err(error) = self.lane.stream().synchronize() {
            tracing::debug!(%error, step = self.step, "while dropping an executable");
        }
    }
}
