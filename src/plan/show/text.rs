//! The text form: what users review, and what snapshots keep.

use std::collections::HashMap;
use std::fmt::Write;

use super::describe::{Argument, Description, describe};
use super::edges::{Wait, Waits};
use super::memory::owners;
use super::names::Names;
use crate::entity::NodeId;
use crate::plan::counts::Counts;
use crate::plan::options::{Fuse, Graphs, Repeat, Schedule};
use crate::plan::types::{Body, Region, StepPlan};

impl StepPlan {
    /// The plan as text: the same bytes for the same plan. Everything that decides what runs is in it; byte offsets are in
    /// the last section only, so that a small change of the program is a small change of what is above.
    pub fn text(&self) -> String {
        let names = Names::new(self);
        let mut text = Text { names, waits: Waits::new(names), shown: HashMap::new(), out: String::new() };
        text.header();
        for graph in &self.graphs {
            let kind = if self.fusion.graphs == Graphs::PerNode { "stream launches" } else { "graph" };
            text.line(0, "");
            text.line(0, &format!("{kind} {}", graph.name));
            text.body(&graph.body, 2);
        }
        text.counts();
        text.memory();
        text.out
    }
}

struct Text<'a> {
    names: Names<'a>,
    waits: Waits<'a>,
    /// The first unit of each node, with its headline: further steps of an unrolled plan name it.
    shown: HashMap<NodeId, (&'a str, String)>,
    out: String,
}

impl<'a> Text<'a> {
    fn header(&mut self) {
        let plan = self.names.plan;
        let variant = plan.variant().map(|variant| format!(" ({variant})")).unwrap_or_default();
        self.line(
            0,
            &format!("plan {} of {}.{}{variant}", plan.fusion.name, self.names.program.name, plan.step_name()),
        );
        let graphs = match plan.fusion.graphs {
            Graphs::PerNode => "one launch per node",
            Graphs::PerPhase => "one graph per phase",
            Graphs::Mega => "one graph",
        };
        let schedule = match plan.fusion.schedule {
            Schedule::Chain => "chain",
            Schedule::Dag => "dag",
        };
        let fuse = match &plan.fusion.fuse {
            Fuse::None => "none".to_owned(),
            Fuse::All => "all".to_owned(),
            Fuse::Named(passes) => passes.join(", "),
        };
        let target = &plan.target;
        self.line(2, &format!("graphs    {graphs}"));
        self.line(2, &format!("schedule  {schedule}"));
        self.line(2, &format!("fuse      {fuse}"));
        self.line(2, &format!("pdl       {}", if plan.fusion.pdl { "on" } else { "off" }));
        match plan.fusion.repeat {
            Repeat::Once => {}
            Repeat::Unroll(steps) => self.line(2, &format!("repeat    {steps} steps per run, unrolled")),
            Repeat::Loop(steps) => self.line(2, &format!("repeat    {steps} steps per run, in a loop")),
        }
        self.line(
            2,
            &format!(
                "target    sm_{}, {} multiprocessors, {} bytes of shared memory per block, driver {}.{}",
                target.sm,
                target.multiprocessors,
                target.shared_per_block,
                target.driver / 1000,
                target.driver % 1000 / 10
            ),
        );
    }

    fn body(&mut self, body: &'a Body, indent: usize) {
        let mut waits = self.waits.of(body);
        for &id in &body.units {
            let unit = &self.names.plan.units[id];
            let description = describe(&self.names, unit);
            self.line(0, "");
            self.line(indent, &unit.name);
            match self.shown.get(&unit.node).filter(|shown| shown.1 == description.headline) {
                Some((first, _)) => self.line(indent + 2, &format!("as {first}")),
                None => self.details(&description, indent),
            }
            self.shown.entry(unit.node).or_insert_with(|| (&unit.name, description.headline));
            waits.remove(&id).unwrap_or_default().iter().for_each(|wait| self.line(indent + 2, &waiting(wait)));
            for (label, inner) in description.bodies {
                self.line(indent + 2, &label);
                self.body(inner, indent + 4);
            }
        }
    }

    fn details(&mut self, description: &Description<'_>, indent: usize) {
        self.line(indent + 2, &description.headline);
        self.arguments(&description.arguments, indent + 4);
        description.formulas.iter().for_each(|formula| self.line(indent + 4, formula));
    }

    /// Columns are as wide as this unit needs.
    fn arguments(&mut self, arguments: &[Argument], indent: usize) {
        let width = |column: fn(&Argument) -> &str| {
            arguments.iter().map(|argument| column(argument).chars().count()).max().unwrap_or(0)
        };
        let (names, classes, values) = (width(|a| &a.name), width(|a| a.class), width(|a| &a.value));
        for Argument { name, class, value, detail } in arguments {
            let name = if names == 0 { String::new() } else { format!("{name:names$}  ") };
            self.line(indent, &format!("{name}{class:classes$}  {value:values$}  {detail}"));
        }
    }

    fn counts(&mut self) {
        let counts = Counts::of(self.names.plan);
        self.line(0, "");
        self.line(0, "counts");
        self.line(2, &format!("graphs    {}", counts.graphs));
        let per = if counts.steps == 1 { "step".to_owned() } else { format!("{} steps", counts.steps) };
        self.line(2, &format!("launches  {} per {per}", counts.launches));
        let kinds: Vec<String> = counts.units.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let total: usize = counts.units.iter().map(|(_, count)| count).sum();
        self.line(2, &format!("units     {total}: {}", kinds.join(", ")));
        self.line(2, &format!("edges     {}", counts.edges));
        self.line(2, &format!("levels    {}", counts.levels));
    }

    fn memory(&mut self) {
        self.line(0, "");
        self.line(0, "memory: first byte, bytes, owner");
        for region in Region::ALL {
            self.line(2, &format!("{}  {} bytes", region.name(), self.names.plan.arena.size(region)));
            for (placement, owner) in owners(&self.names, region) {
                self.line(4, &format!("{:>12} {:>12}  {owner}", placement.offset, placement.bytes));
            }
        }
    }

    fn line(&mut self, indent: usize, line: &str) {
        let line = line.trim_end();
        let indent = if line.is_empty() { 0 } else { indent };
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{:indent$}{line}", "");
    }
}

/// `after A: RAW x`, or `after A via B: WAR y` where the edge from B covers it.
fn waiting(wait: &Wait<'_>) -> String {
    let kind = if wait.programmatic { "after the trigger of" } else { "after" };
    let via = wait.via.map(|via| format!(" via {via}")).unwrap_or_default();
    let to = wait.to.map(|to| format!(" for {to}")).unwrap_or_default();
    format!("{kind} {}{via}{to}: {}", wait.from, wait.causes.join(", "))
}
