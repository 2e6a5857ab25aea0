//! Scalars: one writing node in each variant of a step; loops own their cells.

use rustc_hash::FxHashMap;

use super::access;
use super::control::{Event, Layout};
use super::lifetime::Touched;
use super::report::Report;
use crate::entity::{EntityRef, NodeId, ScalarId, StepId};
use crate::ir::{Item, LoopBound, NodeOp, Program, ProgramError, Resource, Step};

/// Checks a step.
pub(super) fn check(program: &Program, id: StepId, layout: &Layout, touched: &Touched, report: &mut Report<'_>) {
    let step = &program.steps[id];
    let mut writers =
        Writers { program, id, step, ends: Vec::new(), known: FxHashMap::default(), bounds: FxHashMap::default() };
    for phase in &layout.phases {
        writers.bounds.clear();
        writers.ends = ends(&phase.events, step.nodes.len());
        for (at, event) in phase.events.iter().enumerate() {
            let Event::Node(node) = *event else { continue };
            writers.node(node, phase.mask, at, touched, report);
        }
    }
    writers.unwritten_flags(report);
}

/// For each conditional, the event behind its last body.
fn ends(events: &[Event], nodes: usize) -> Vec<usize> {
    let mut ends = vec![0; nodes];
    let mut open: Vec<NodeId> = Vec::new();
    let mut last = None;
    for (at, event) in events.iter().enumerate() {
        match *event {
            Event::Node(node) => last = Some(node),
            Event::Enter => open.extend(last),
            Event::Leave => {
                last = open.pop();
                if let Some(node) = last {
                    ends[node.index()] = at;
                }
            }
        }
    }
    ends
}

/// A node that writes a scalar.
struct Writer {
    mask: u64,
    node: NodeId,
    /// For a loop's `until`: the event behind the body, in which one node writes the cell.
    body_end: Option<usize>,
    in_body: bool,
}

struct Writers<'a> {
    program: &'a Program,
    id: StepId,
    step: &'a Step,
    ends: Vec<usize>,
    known: FxHashMap<ScalarId, Vec<Writer>>,
    /// Cells that are the bound of a loop around the present event: the event behind the body, and the loop.
    bounds: FxHashMap<ScalarId, (usize, NodeId)>,
}

impl Writers<'_> {
    fn node(&mut self, node: NodeId, mask: u64, at: usize, touched: &Touched, report: &mut Report<'_>) {
        let until_of = match self.step.nodes[node].op {
            NodeOp::While { max, until, .. } => {
                if !touched.broken[node.index()] {
                    self.bound(max, node, at);
                }
                until
            }
            _ => None,
        };
        for access in touched.accesses[node.index()].iter().filter(|access| access.mode.writes()) {
            let Resource::Scalar(scalar) = access.resource else { continue };
            self.check_bound(scalar, node, at, report);
            let body_end = (until_of == Some(scalar)).then(|| self.ends[node.index()]);
            self.write(scalar, Writer { mask, node, body_end, in_body: false }, at, report);
        }
    }

    fn bound(&mut self, max: LoopBound, node: NodeId, at: usize) {
        let LoopBound::Scalar(scalar) = max else { return };
        let end = self.ends[node.index()];
        let bound = self.bounds.entry(scalar).or_insert((end, node));
        if bound.0 < at || end > bound.0 {
            *bound = (end, node);
        }
    }

    fn check_bound(&self, scalar: ScalarId, node: NodeId, at: usize, report: &mut Report<'_>) {
        let Some(&(end, holder)) = self.bounds.get(&scalar) else { return };
        if at < end && node != holder {
            let (cell, writer) = (&self.program.scalars[scalar].name, &self.step.nodes[node].name);
            let reason = format!("`{writer}` in its body writes the bound `{cell}`: use another cell");
            let name = self.step.nodes[holder].name.clone();
            report.add(&Item::Node(self.id, holder), ProgramError::BadLoop { node: name, reason });
        }
    }

    fn write(&mut self, scalar: ScalarId, writer: Writer, at: usize, report: &mut Report<'_>) {
        let known = self.known.entry(scalar).or_default();
        let Some(first) = known.iter_mut().find(|first| first.mask & writer.mask != 0) else {
            known.push(writer);
            return;
        };
        let is_first_in_body = first.body_end.is_some_and(|end| at < end) && !first.in_body;
        if is_first_in_body {
            first.in_body = true;
            return;
        }
        let (first, second) = (&self.step.nodes[first.node], &self.step.nodes[writer.node]);
        let part = access::part(self.program, second, &Resource::Scalar(scalar), true);
        let item = if part.is_empty() {
            Item::Node(self.id, writer.node)
        } else {
            Item::Part(self.id, writer.node, part.into())
        };
        let error = ProgramError::TwoWriters {
            scalar: self.program.scalars[scalar].name.clone(),
            first: first.name.clone(),
            second: second.name.clone(),
        };
        report.add(&item, error);
    }

    /// A loop with an `until` that its body never sets would be no different without it.
    fn unwritten_flags(&self, report: &mut Report<'_>) {
        for (&scalar, writers) in &self.known {
            for writer in writers.iter().filter(|writer| writer.body_end.is_some() && !writer.in_body) {
                let node = self.step.nodes[writer.node].name.clone();
                let cell = &self.program.scalars[scalar].name;
                let reason = format!("nothing in its body writes its until cell `{cell}`: write it, or leave it out");
                let item = Item::Part(self.id, writer.node, "until".into());
                report.add(&item, ProgramError::BadLoop { node, reason });
            }
        }
    }
}
