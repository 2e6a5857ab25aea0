//! Steps, phases and bodies: tables of nodes, in the order in which they are written.

mod call;
mod control;
mod element;
mod matrix;
mod output;

use std::borrow::Cow;

use rustc_hash::FxHashMap;
use toml::de::{DeTable, DeValue};

use super::context::Context;
use super::document::{Entry, Fields, Span, Text, entries, flatten, similar};
use super::error::SpecError;
use crate::entity::{NodeId, PhaseId, StepId};
use crate::ir::{Item, Node, NodeOp, Phase, ProgramError, Step};

/// The keys that say what a node does.
pub(super) const KINDS: [&str; 9] = ["gemm", "map", "reduce", "kernel", "copy", "fill", "if", "switch", "while"];

/// Reads a step: a table of phases.
pub(super) fn step(cx: &mut Context<'_>, entry: &Entry<'_>) {
    let Some(table) = entry.table() else {
        let _: Option<()> = cx.wrong_type(entry, "a table: a step, with a table per phase");
        return;
    };
    let step = cx.program.steps.push(Step { name: entry.key.to_owned(), ..Step::default() });
    cx.origin(Item::Step(step), entry.key_span());
    let mut reader = StepReader { cx, step, names: FxHashMap::default(), after: Vec::new() };
    for (entry, table) in reader.settings_and_phases(table) {
        reader.phase(&entry, table);
    }
    reader.resolve_after();
}

/// Reads one step.
struct StepReader<'c, 'a, 'd> {
    cx: &'c mut Context<'a>,
    step: StepId,
    /// Every node of the step by name, with the body that it is in.
    names: FxHashMap<String, Vec<(BodyKey, NodeId)>>,
    /// What is still to be resolved: nodes, their bodies, and the names they come after.
    after: Vec<(NodeId, BodyKey, Vec<Text<'d>>)>,
}

/// Tells bodies apart: where their table stands.
type BodyKey = (usize, usize);

/// A node with the places of its parts, before it has an id.
struct Draft {
    op: NodeOp,
    parts: Vec<(Cow<'static, str>, Span)>,
}

impl Draft {
    fn new(op: NodeOp, parts: Vec<(&'static str, Span)>) -> Self {
        Self { op, parts: parts.into_iter().map(|(part, span)| (part.into(), span)).collect() }
    }
}

impl<'d> StepReader<'_, '_, 'd> {
    /// Takes the step's own settings, and gives its phases in the order of their text; one name may stand for several.
    fn settings_and_phases(&mut self, table: &'d DeTable<'d>) -> Vec<(Entry<'d>, &'d DeTable<'d>)> {
        let mut phases = Vec::new();
        for entry in entries(table) {
            match entry.value {
                DeValue::Table(table) => phases.push((entry, table)),
                DeValue::Array(elements) if elements.iter().any(|element| element.get_ref().is_table()) => {
                    for element in elements {
                        let element = entry.element(element);
                        match element.table() {
                            Some(table) => phases.push((element, table)),
                            None => drop(self.cx.wrong_type::<()>(&element, "a phase: a table of nodes")),
                        }
                    }
                }
                _ if entry.key == "variants" => {
                    let variants = self.cx.texts(&entry, "a list of variants").unwrap_or_default();
                    let variants = variants.iter().map(|variant| variant.text.to_owned()).collect();
                    self.cx.program.steps[self.step].variants = variants;
                }
                _ => {
                    let (place, key) = (self.place(), entry.key.to_owned());
                    let similar = similar(&key, ["variants"]);
                    self.cx.error(entry.key_span(), SpecError::UnknownKey { place, key, similar });
                }
            }
        }
        phases.sort_by_key(|(entry, _)| entry.span().start.max(entry.key_span().start));
        phases
    }

    fn place(&self) -> String {
        format!("step `{}`", self.cx.program.steps[self.step].name)
    }

    fn phase(&mut self, entry: &Entry<'d>, table: &'d DeTable<'d>) {
        let phase = Phase { name: entry.key.to_owned(), ..Phase::default() };
        let id = self.cx.program.steps[self.step].phases.push(phase);
        self.cx.origin(Item::Phase(self.step, id), entry.key_span());
        let mut nodes = Vec::new();
        for (name, entry) in flatten(table, is_node) {
            match entry.table() {
                Some(_) => nodes.push((name, entry)),
                None => drop(self.phase_setting(id, &entry)),
            }
        }
        let nodes = self.body(nodes, entry);
        self.cx.program.steps[self.step].phases[id].nodes = nodes;
    }

    fn phase_setting(&mut self, phase: PhaseId, entry: &Entry<'_>) -> Option<()> {
        match entry.key {
            "variants" => {
                let variants = self.cx.texts(entry, "a list of variants of the step")?;
                let variants = variants.iter().map(|variant| variant.text.to_owned()).collect();
                self.cx.program.steps[self.step].phases[phase].variants = variants;
            }
            "guard" => {
                let guard = self.cx.text(entry, "the name of a scalar")?;
                let guard = self.cx.scalar(&guard)?;
                self.cx.program.steps[self.step].phases[phase].guard = Some(guard);
            }
            key if matches!(entry.value, DeValue::String(_)) && similar(key, ["variants", "guard"]).is_none() => {
                let expected = format!("a node: a table with one of the keys {}", KINDS.join(", "));
                return self.cx.wrong_type(entry, &expected);
            }
            key => {
                let place = format!("phase `{}`", self.cx.program.steps[self.step].phases[phase].name);
                let similar = similar(key, ["variants", "guard"]);
                self.cx.error(entry.key_span(), SpecError::UnknownKey { place, key: key.to_owned(), similar });
            }
        }
        Some(())
    }

    /// Reads the nodes of a body; `owner` is where the body stands.
    fn body(&mut self, nodes: Vec<(String, Entry<'d>)>, owner: &Entry<'_>) -> Vec<NodeId> {
        let key = (owner.key_span().start, owner.span().start);
        let mut body = Body { key, nodes: Vec::new() };
        for (name, entry) in nodes {
            if self.node(&name, &entry, &mut body).is_none() {
                self.cx.poison(&name);
            }
        }
        body.nodes
    }

    fn node(&mut self, name: &str, entry: &Entry<'d>, body: &mut Body) -> Option<()> {
        let Some(table) = entry.table() else {
            return self.cx.wrong_type(entry, &format!("a node: a table with one of the keys {}", KINDS.join(", ")));
        };
        let mut fields = Fields::new(["node `", name, "`"].concat(), entry.key_span(), table);
        let after = fields.take("after");
        let after = after.and_then(|after| self.cx.text_or_texts(&after, "the names of nodes")).unwrap_or_default();
        let kinds: Vec<_> = KINDS.iter().copied().filter(|kind| fields.has(kind)).collect();
        let drafts = match kinds[..] {
            _ if fields.has("kernel") => self.kernel(name, &mut fields).map(|draft| vec![(name.to_owned(), draft)]),
            [] => return self.cx.fail(entry.key_span(), SpecError::NoKind { node: name.to_owned() }),
            [first, second, ..] => {
                let (place, first, second) = (fields.place.clone(), first.to_owned(), second.to_owned());
                return self.cx.fail(entry.key_span(), SpecError::Conflict { place, first, second });
            }
            ["gemm"] => self.gemm(name, &mut fields),
            [kind] => {
                let draft = match kind {
                    "map" => self.map(name, &mut fields),
                    "reduce" => self.reduce(name, &mut fields),
                    "copy" => self.copy(name, &mut fields),
                    "fill" => self.fill(name, &mut fields),
                    "if" => self.branch(&mut fields),
                    "switch" => self.switch(&mut fields),
                    _ => self.repeat(&mut fields),
                };
                draft.map(|draft| vec![(name.to_owned(), draft)])
            }
        };
        if drafts.is_some() {
            fields.finish(self.cx);
        }
        let span = entry.key_span();
        let mut ids = drafts?.into_iter().map(|(name, draft)| self.add(name, draft, &span, body)).collect::<Vec<_>>();
        if !after.is_empty() {
            self.after.push((ids.swap_remove(0), body.key, after));
        }
        Some(())
    }

    fn add(&mut self, name: String, draft: Draft, span: &Span, body: &mut Body) -> NodeId {
        let node = Node { name: name.clone(), op: draft.op, after: Vec::new() };
        let id = self.cx.program.steps[self.step].nodes.push(node);
        self.cx.origin(Item::Node(self.step, id), span.clone());
        for (part, span) in draft.parts {
            self.cx.origin(Item::Part(self.step, id, part), span);
        }
        self.names.entry(name).or_default().push((body.key, id));
        body.nodes.push(id);
        id
    }

    /// Gives `after` its nodes, now that all are known: those of the same body first.
    fn resolve_after(&mut self) {
        for (node, body, names) in std::mem::take(&mut self.after) {
            let mut found = Vec::with_capacity(names.len());
            for name in &names {
                found.extend(self.named(name, body));
            }
            let span = names.first().map_or(0..0, |name| name.whole());
            self.cx.program.steps[self.step].nodes[node].after = found;
            self.cx.origin(Item::Part(self.step, node, "after".into()), span);
        }
    }

    fn named(&mut self, name: &Text<'_>, body: BodyKey) -> Option<NodeId> {
        if let Some(known) = self.names.get(name.text) {
            let own = known.iter().rev().find(|(key, _)| *key == body);
            return own.or(known.last()).map(|(_, id)| *id);
        }
        if self.cx.is_poisoned(name.text) {
            return None;
        }
        let similar = similar(name.text, self.names.keys().map(String::as_str));
        let error = ProgramError::UnknownName { kind: "node", name: name.text.to_owned(), similar };
        self.cx.fail(name.whole(), error)
    }
}

/// The nodes of a phase or conditional, as they are read.
struct Body {
    key: BodyKey,
    nodes: Vec<NodeId>,
}

/// A table is a node where any of its values is no table; otherwise it only nests names.
fn is_node(table: &DeTable<'_>) -> bool {
    table.is_empty() || table.values().any(|value| !value.get_ref().is_table())
}
