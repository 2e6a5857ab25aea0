//! The frame of a step: variants, phases, bodies, conditionals, `after`; and the order in which nodes stand.

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::names;
use super::report::{Report, Site};
use crate::entity::{EntityRef, NodeId, PhaseId, ScalarId, StepId};
use crate::ir::{
    DType, Item, LoopBound, MAX_NESTING, MAX_VARIANTS, Node, NodeOp, Program, ProgramError, Scalar, Step, Writer,
};

/// A step's nodes in program order.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) phases: Vec<PhaseLayout>,
    /// The variants that each node runs in, one bit each; none for a node in no phase.
    pub(super) masks: Vec<u64>,
    /// Whether every node is in exactly one place, so that the order below means something.
    pub(super) is_sound: bool,
}

/// A phase's nodes in program order.
#[derive(Debug)]
pub(super) struct PhaseLayout {
    pub(super) phase: PhaseId,
    /// The variants that it runs in, one bit each.
    pub(super) mask: u64,
    pub(super) events: Vec<Event>,
}

/// What happens next in program order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A node runs.
    Node(NodeId),
    /// A body of the conditional before starts; it may not run.
    Enter,
    /// It ends.
    Leave,
}

/// Checks a step's frame.
pub(super) fn check(program: &Program, id: StepId, report: &mut Report<'_>) -> Layout {
    let step = &program.steps[id];
    let masks = variants(id, step, report);
    let mut frame =
        Frame { program, id, step, places: Places::new(step), layout: Layout { is_sound: true, ..Layout::default() } };
    frame.layout.masks = vec![0; step.nodes.len()];
    frame.count(report);
    for (phase, mask) in step.phases.keys().zip(masks) {
        frame.phase(phase, mask, report);
    }
    frame.placement(report);
    frame.node_names(report);
    for node in step.nodes.keys() {
        frame.after(node, report);
    }
    frame.layout
}

/// Checks the cells and bodies of a conditional.
pub(super) fn conditional(site: &mut Site<'_, '_>, op: &NodeOp) {
    match op {
        NodeOp::If { condition, then_body, .. } => {
            cell(site, "condition", *condition);
            filled(site, then_body);
        }
        NodeOp::Switch { selector, bodies } => {
            cell(site, "selector", *selector);
            bodies.iter().for_each(|body| filled(site, body));
            if bodies.is_empty() {
                filled(site, &[]);
            }
        }
        NodeOp::While { max, index, until, body } => {
            filled(site, body);
            repetition(site, *max, *index, *until);
        }
        _ => {}
    }
}

fn filled(site: &mut Site<'_, '_>, body: &[NodeId]) {
    if body.is_empty() {
        site.fail("", |node| ProgramError::Empty { what: format!("a body of `{node}`") });
    }
}

/// A `u32` cell.
fn cell<'a>(site: &mut Site<'_, 'a>, part: &'static str, id: ScalarId) -> Option<&'a Scalar> {
    let scalar = site.scalar(part, id)?;
    let found = scalar.init.dtype();
    if found != DType::U32 {
        site.fail(part, |node| ProgramError::ConditionType { node, part, scalar: scalar.name.clone(), found });
    }
    Some(scalar)
}

fn repetition(site: &mut Site<'_, '_>, max: LoopBound, index: Option<ScalarId>, until: Option<ScalarId>) {
    let bound = match max {
        LoopBound::Const(0) => {
            let reason = "the loop runs at most 0 times: give it a bound of at least 1".into();
            site.fail("max", |node| ProgramError::BadLoop { node, reason });
            None
        }
        LoopBound::Const(_) => None,
        LoopBound::Scalar(id) => {
            cell(site, "max", id);
            Some(id)
        }
    };
    for (part, id) in [("index", index), ("until", until)] {
        let Some(scalar) = id.and_then(|id| cell(site, part, id)) else { continue };
        if scalar.writer == Writer::Host {
            let name = &scalar.name;
            let reason = format!("the loop writes its {part} `{name}`, so declare it with writer = \"device\"");
            site.fail(part, |node| ProgramError::BadLoop { node, reason });
        }
    }
    let shared = index.is_some() && (index == until || index == bound) || until.is_some() && until == bound;
    if shared {
        let reason = "bound, index and until must be different cells".into();
        site.fail("", |node| ProgramError::BadLoop { node, reason });
    }
}

/// The variants of each phase, one bit each; without variants every phase has the one bit of the unnamed form.
fn variants(id: StepId, step: &Step, report: &mut Report<'_>) -> Vec<u64> {
    if step.variants.len() > MAX_VARIANTS {
        let (step, found) = (step.name.clone(), step.variants.len());
        report.add(&Item::Step(id), ProgramError::TooManyVariants { step, found });
    }
    let bits: FxHashMap<&str, u64> =
        step.variants.iter().take(MAX_VARIANTS).enumerate().map(|(at, name)| (name.as_str(), 1 << at)).collect();
    let all = bits.values().fold(0, |all, bit| all | bit).max(1);
    let mut used = 0;
    let masks: Vec<u64> = step
        .phases
        .iter()
        .map(|(phase_id, phase)| {
            let mut mask = if phase.variants.is_empty() { all } else { 0 };
            for variant in &phase.variants {
                match bits.get(variant.as_str()) {
                    Some(bit) => mask |= bit,
                    None if step.variants.len() > MAX_VARIANTS => {}
                    None => report.add(
                        &Item::Phase(id, phase_id),
                        ProgramError::UnknownVariant {
                            step: step.name.clone(),
                            phase: phase.name.clone(),
                            variant: variant.clone(),
                        },
                    ),
                }
            }
            used |= mask;
            mask
        })
        .collect();
    if step.phases.is_empty() {
        report.add(&Item::Step(id), ProgramError::Empty { what: format!("step `{}`", step.name) });
        return masks;
    }
    for (variant, bit) in step.variants.iter().take(MAX_VARIANTS).map(|name| (name, bits[name.as_str()])) {
        if used & bit == 0 {
            let what = format!("variant `{variant}` of step `{}`", step.name);
            report.add(&Item::Step(id), ProgramError::Empty { what });
        }
    }
    masks
}

/// Where each node stands.
struct Places {
    /// In how many phases and bodies.
    counts: Vec<usize>,
    /// A node whose body it is in.
    holders: Vec<Option<NodeId>>,
    /// Which list (phase or body) it is in, and where in it; for nodes that the walk reached.
    lists: Vec<Option<(usize, usize)>>,
    next_list: usize,
}

impl Places {
    fn new(step: &Step) -> Self {
        let nodes = step.nodes.len();
        Self { counts: vec![0; nodes], holders: vec![None; nodes], lists: vec![None; nodes], next_list: 0 }
    }
}

struct Frame<'a> {
    program: &'a Program,
    id: StepId,
    step: &'a Step,
    places: Places,
    layout: Layout,
}

enum Work {
    Node(NodeId, usize),
    Enter,
    Leave,
}

impl Frame<'_> {
    fn fail(&mut self, item: &Item, error: ProgramError, report: &mut Report<'_>) {
        self.layout.is_sound = false;
        report.add(item, error);
    }

    /// Counts in how many lists each node is.
    fn count(&mut self, report: &mut Report<'_>) {
        let step = self.step;
        for (id, phase) in step.phases.iter() {
            self.count_list(&Item::Phase(self.id, id), None, &phase.nodes, report);
        }
        for (id, node) in step.nodes.iter() {
            for body in node.op.bodies() {
                self.count_list(&Item::Node(self.id, id), Some(id), body, report);
            }
        }
    }

    fn count_list(&mut self, item: &Item, holder: Option<NodeId>, list: &[NodeId], report: &mut Report<'_>) {
        for &node in list {
            match self.places.counts.get_mut(node.index()) {
                Some(count) => {
                    *count += 1;
                    self.places.holders[node.index()] = holder;
                }
                None => {
                    let error = ProgramError::UnknownName { kind: "node", name: node.to_string(), similar: None };
                    self.fail(item, error, report);
                }
            }
        }
    }

    fn phase(&mut self, id: PhaseId, mask: u64, report: &mut Report<'_>) {
        let phase = &self.step.phases[id];
        let item = Item::Phase(self.id, id);
        names::form(&item, &phase.name, report);
        if phase.nodes.is_empty() {
            report.add(&item, ProgramError::Empty { what: format!("phase `{}`", phase.name) });
        }
        if let Some(guard) = phase.guard {
            self.guard(&item, &phase.name, guard, report);
        }
        // A guard becomes a conditional around the phase.
        let events = self.walk(&phase.nodes, usize::from(phase.guard.is_some()), mask, report);
        self.layout.phases.push(PhaseLayout { phase: id, mask, events });
    }

    fn guard(&self, item: &Item, phase: &str, guard: ScalarId, report: &mut Report<'_>) {
        let Some(scalar) = self.program.scalars.get(guard) else {
            let error = ProgramError::UnknownName { kind: "scalar", name: guard.to_string(), similar: None };
            return report.add(item, error);
        };
        let found = scalar.init.dtype();
        if found != DType::U32 {
            let (node, scalar) = (phase.into(), scalar.name.clone());
            report.add(item, ProgramError::ConditionType { node, part: "the guard", scalar, found });
        }
    }

    /// The nodes of a list and of the bodies below it, in program order; each is visited once, wherever it stands again.
    fn walk(&mut self, list: &[NodeId], depth: usize, mask: u64, report: &mut Report<'_>) -> Vec<Event> {
        let mut events = Vec::with_capacity(list.len());
        let mut stack = Vec::new();
        self.push_list(list, depth, &mut stack);
        while let Some(work) = stack.pop() {
            match work {
                Work::Enter => events.push(Event::Enter),
                Work::Leave => events.push(Event::Leave),
                Work::Node(node, depth) => {
                    events.push(Event::Node(node));
                    self.layout.masks[node.index()] = mask;
                    self.push_bodies(node, depth, &mut stack, report);
                }
            }
        }
        events
    }

    fn push_list(&mut self, list: &[NodeId], depth: usize, stack: &mut Vec<Work>) {
        let number = self.places.next_list;
        self.places.next_list += 1;
        let bottom = stack.len();
        for (at, &node) in list.iter().enumerate() {
            let Some(place) = self.places.lists.get_mut(node.index()) else { continue };
            if place.is_none() {
                *place = Some((number, at));
                stack.push(Work::Node(node, depth));
            }
        }
        stack[bottom..].reverse();
    }

    fn push_bodies(&mut self, node: NodeId, depth: usize, stack: &mut Vec<Work>, report: &mut Report<'_>) {
        let bodies = self.step.nodes[node].op.bodies();
        if bodies.is_empty() {
            return;
        }
        if depth == MAX_NESTING {
            let name = self.step.nodes[node].name.clone();
            let error = ProgramError::NestingTooDeep { node: name, found: depth + 1 };
            self.fail(&Item::Node(self.id, node), error, report);
        }
        for body in bodies.into_iter().rev() {
            stack.push(Work::Leave);
            self.push_list(body, depth + 1, stack);
            stack.push(Work::Enter);
        }
    }

    fn placement(&mut self, report: &mut Report<'_>) {
        for (id, node) in self.step.nodes.iter() {
            let count = self.places.counts[id.index()];
            if count != 1 {
                let error = ProgramError::NodePlacement { node: node.name.clone(), count };
                self.fail(&Item::Node(self.id, id), error, report);
            }
        }
        for id in self.recursive() {
            let error = ProgramError::RecursiveBody { node: self.step.nodes[id].name.clone() };
            self.fail(&Item::Node(self.id, id), error, report);
        }
    }

    /// The nodes that lie in bodies of their own: those that come back to themselves from holder to holder.
    fn recursive(&self) -> Vec<NodeId> {
        let mut found = Vec::new();
        let mut seen_from = vec![None; self.step.nodes.len()];
        for start in self.step.nodes.keys() {
            let mut at = Some(start);
            while let Some(node) = at.filter(|node| seen_from[node.index()].is_none()) {
                seen_from[node.index()] = Some(start);
                at = self.places.holders[node.index()];
            }
            let Some(cycle) = at.filter(|node| seen_from[node.index()] == Some(start)) else { continue };
            let mut at = Some(cycle);
            while let Some(node) = at {
                found.push(node);
                at = self.places.holders[node.index()].filter(|&next| next != cycle);
            }
        }
        found
    }

    /// Names are unique in each variant.
    fn node_names(&self, report: &mut Report<'_>) {
        let mut taken: FxHashMap<&str, u64> = FxHashMap::with_capacity_and_hasher(self.step.nodes.len(), FxBuildHasher);
        for (id, node) in self.step.nodes.iter() {
            let (item, mask) = (Item::Node(self.id, id), self.layout.masks[id.index()]);
            names::form(&item, &node.name, report);
            duplicate("node", &node.name, mask, &mut taken, &item, report);
        }
        let mut taken: FxHashMap<&str, u64> = FxHashMap::default();
        for layout in &self.layout.phases {
            let (item, name) = (Item::Phase(self.id, layout.phase), &self.step.phases[layout.phase].name);
            duplicate("phase", name, layout.mask, &mut taken, &item, report);
        }
    }

    /// `after` names nodes that stand before in the same list.
    fn after(&self, id: NodeId, report: &mut Report<'_>) {
        let node = &self.step.nodes[id];
        let item = || Item::Part(self.id, id, "after".into());
        for &after in &node.after {
            let Some(other) = self.step.nodes.get(after) else {
                let error = ProgramError::UnknownName { kind: "node", name: after.to_string(), similar: None };
                report.add(&item(), error);
                continue;
            };
            let (own, others) = (self.places.lists[id.index()], self.places.lists[after.index()]);
            if let Some(error) = after_fault(node, own, other, others) {
                report.add(&item(), error);
            }
        }
    }
}

fn after_fault(
    node: &Node,
    own: Option<(usize, usize)>,
    other: &Node,
    others: Option<(usize, usize)>,
) -> Option<ProgramError> {
    let (own, others) = (own?, others?);
    if own.0 != others.0 {
        return Some(ProgramError::BadAfter { node: node.name.clone(), after: other.name.clone() });
    }
    if others.1 < own.1 {
        return None;
    }
    let mut nodes = vec![node.name.clone(), other.name.clone(), node.name.clone()];
    nodes.dedup();
    if nodes.len() == 1 {
        nodes.push(node.name.clone());
    }
    Some(ProgramError::Cycle { nodes })
}

fn duplicate<'a>(
    kind: &'static str,
    name: &'a str,
    mask: u64,
    taken: &mut FxHashMap<&'a str, u64>,
    item: &Item,
    report: &mut Report<'_>,
) {
    let before = taken.entry(name).or_default();
    if *before & mask != 0 {
        report.add(item, ProgramError::DuplicateName { kind, name: name.into() });
    }
    *before |= mask;
}
