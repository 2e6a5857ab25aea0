//! The DOT form, for Graphviz.

use std::fmt::Write;

use super::describe::describe;
use super::edges::Waits;
use super::names::Names;
use crate::entity::UnitId;
use crate::plan::types::{Body, StepPlan};

impl StepPlan {
    /// The plan as a Graphviz digraph: a cluster per graph, body and phase, edges with their causes.
    pub fn dot(&self) -> String {
        let names = Names::new(self);
        let mut dot = Dot { names, waits: Waits::new(names), out: String::new(), clusters: 0 };
        let title = format!("{}.{} {}", names.program.name, self.step_name(), self.fusion.name);
        dot.line(0, &format!("digraph {} {{", quoted(&title)));
        dot.line(1, "rankdir = TB;");
        dot.line(1, "node [shape = box, fontname = monospace];");
        dot.line(1, "edge [fontname = monospace, fontsize = 10];");
        for graph in &self.graphs {
            dot.cluster(1, &graph.name, &graph.body);
        }
        dot.line(0, "}");
        dot.out
    }
}

struct Dot<'a> {
    names: Names<'a>,
    waits: Waits<'a>,
    out: String,
    clusters: usize,
}

impl Dot<'_> {
    fn cluster(&mut self, depth: usize, label: &str, body: &Body) {
        self.line(depth, &format!("subgraph cluster_{} {{", self.clusters));
        self.clusters += 1;
        self.line(depth + 1, &format!("label = {};", quoted(label)));
        for &id in &body.units {
            let unit = &self.names.plan.units[id];
            let description = describe(&self.names, unit);
            let label = format!("{}\n{}", unit.name, description.headline);
            self.line(depth + 1, &format!("{} [label = {}];", self.node(id), quoted(&label)));
            for (label, inner) in description.bodies {
                self.cluster(depth + 1, &format!("{}: {label}", unit.name), inner);
            }
        }
        let mut waits = self.waits.of(body);
        for &id in &body.units {
            let name = self.node(id);
            for wait in waits.remove(&id).unwrap_or_default().iter().filter(|wait| wait.via.is_none()) {
                let style = if wait.programmatic { ", style = dashed" } else { "" };
                let label = quoted(&wait.causes.join("\n"));
                self.line(depth + 1, &format!("{} -> {name} [label = {label}{style}];", quoted(wait.from)));
            }
        }
        self.line(depth, "}");
    }

    /// Unit names are unique in a plan.
    fn node(&self, unit: UnitId) -> String {
        quoted(self.names.unit(unit))
    }

    fn line(&mut self, depth: usize, line: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{:indent$}{line}", "", indent = 2 * depth);
    }
}

fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}
