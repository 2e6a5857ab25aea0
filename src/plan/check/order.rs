//! Every pair of conflicting accesses is ordered by the plan's edges, and so are conditionals inside of a loop.
//!
//! Accesses are grouped by the box that they name. Two accesses conflict when their boxes overlap and one writes; for each two
//! boxes, each access is paired with the last write to the other box and the reads since then. What lies further back is
//! ordered by the pairs of that box with itself.

use std::collections::BTreeMap;
use std::iter::successors;

use indexmap::IndexMap;
use rustc_hash::FxHashMap;

use super::CheckError;
use super::reach::{name_at, unreached};
use super::structure::{Bodies, Listed};
use crate::entity::{BufferId, UnitId};
use crate::ir::{Program, Resource, View, subtree_accesses};
use crate::plan::types::{StepPlan, Work};

pub(super) fn check(plan: &StepPlan, bodies: &Bodies<'_>, errors: &mut Vec<CheckError>) {
    for body in 0..bodies.list.len() {
        let required = required(plan, bodies, body);
        let pairs = required.keys().copied().collect();
        for pair @ (from, to) in unreached(bodies, body, pairs) {
            errors.push(CheckError::MissingOrder {
                earlier: name_at(plan, bodies, body, from),
                later: name_at(plan, bodies, body, to),
                why: required[&pair].clone(),
            });
        }
    }
}

/// How one node of a body touches one resource; `order` is its number in program order.
#[derive(Clone, Copy)]
struct Use {
    order: u32,
    reads: bool,
    writes: bool,
}

/// The pairs of places that must be ordered, with the reason.
fn required(plan: &StepPlan, bodies: &Bodies<'_>, body: usize) -> BTreeMap<(u32, u32), String> {
    let program = plan.program.program();
    let step = &program.steps[plan.step];
    let view = &bodies.list[body];
    let mut uses: IndexMap<Resource, Vec<Use>> = IndexMap::new();
    for (order, &(node, _)) in (0u32..).zip(&view.nodes) {
        for access in subtree_accesses(program, step, node) {
            let (reads, writes) = (access.mode.reads(), access.mode.writes());
            let list = uses.entry(access.resource).or_default();
            match list.last_mut().filter(|last| last.order == order) {
                Some(last) => (last.reads, last.writes) = (last.reads || reads, last.writes || writes),
                None => list.push(Use { order, reads, writes }),
            }
        }
    }
    let places = places(plan, bodies, body);
    let mut found = BTreeMap::new();
    let mut note = |earlier: u32, later: u32, why: &dyn Fn() -> String| {
        let place = |order: u32| places[&view.nodes[order as usize]];
        found.entry((place(earlier), place(later))).or_insert_with(why);
    };
    for (a, b) in overlapping(&uses) {
        let why = || uses.get_index(b).map_or_else(String::new, |(resource, _)| resource_name(program, resource));
        pairs(&uses[a], &uses[b], &mut |earlier, later| note(earlier, later, &why));
    }
    let orders: FxHashMap<Listed, u32> =
        view.nodes.iter().zip(0u32..).map(|(&listed, order)| (listed, order)).collect();
    for (later, &(node, iteration)) in (0u32..).zip(&view.nodes) {
        let wishes = step.nodes[node].after.iter().filter_map(|&earlier| orders.get(&(earlier, iteration)));
        wishes.for_each(|&earlier| note(earlier, later, &|| "after".to_owned()));
    }
    one_at_a_time(plan, bodies, body, &mut |earlier, later| {
        found.entry((earlier, later)).or_insert_with(|| "conditionals inside of a loop run one at a time".to_owned());
    });
    found
}

/// Each conditional of a body inside of a loop with the next one in the plan's list.
fn one_at_a_time(plan: &StepPlan, bodies: &Bodies<'_>, body: usize, note: &mut dyn FnMut(u32, u32)) {
    let owner = |body: usize| bodies.list[body].owner;
    let outer = |&unit: &UnitId| bodies.place[unit].and_then(|(body, _)| owner(body));
    let is_in_loop = successors(owner(body), outer).any(|unit| matches!(plan.units[unit].work, Work::While { .. }));
    if !is_in_loop {
        return;
    }
    let is_conditional = |unit: UnitId| !plan.units[unit].work.bodies().is_empty();
    let units = (0u32..).zip(&bodies.list[body].body.units);
    let places: Vec<u32> = units.filter_map(|(place, &unit)| is_conditional(unit).then_some(place)).collect();
    places.windows(2).for_each(|pair| note(pair[0], pair[1]));
}

/// The place in the plan's list of each node of a body.
fn places(plan: &StepPlan, bodies: &Bodies<'_>, body: usize) -> FxHashMap<Listed, u32> {
    let listed = |unit| (plan.units[unit].node, plan.units[unit].iteration);
    bodies.list[body].body.units.iter().zip(0u32..).map(|(&unit, place)| (listed(unit), place)).collect()
}

/// Pairs of resources that share memory and of which one is written; each with itself too.
fn overlapping(uses: &IndexMap<Resource, Vec<Use>>) -> Vec<(usize, usize)> {
    let is_written: Vec<bool> = uses.values().map(|list| list.iter().any(|one| one.writes)).collect();
    let mut found: Vec<(usize, usize)> = (0..uses.len()).filter(|&at| is_written[at]).map(|at| (at, at)).collect();
    let mut boxes: IndexMap<BufferId, Vec<(View, usize)>> = IndexMap::new();
    for (at, resource) in uses.keys().enumerate() {
        if let Resource::View(view) = resource {
            boxes.entry(view.buffer).or_default().push((*view, at));
        }
    }
    for list in boxes.values_mut().filter(|list| list.len() > 1) {
        let axis = sweep_axis(list);
        let extent =
            |view: &View| view.ranges().get(axis).map_or((0, 1), |range| (u64::from(range.start), range.end()));
        list.sort_by_key(|(view, at)| (extent(view).0, *at));
        for (number, (view, a)) in list.iter().enumerate() {
            let reached = list[number + 1..].iter().take_while(|(other, _)| extent(other).0 < extent(view).1);
            let hits = reached.filter(|(other, b)| (is_written[*a] || is_written[*b]) && view.overlaps(other));
            found.extend(hits.map(|(_, b)| (*a, *b)));
        }
    }
    found
}

/// The axis along which most boxes start at places of their own.
fn sweep_axis(list: &[(View, usize)]) -> usize {
    let distinct = |axis: usize| {
        let mut starts: Vec<u32> =
            list.iter().filter_map(|(view, _)| view.ranges().get(axis)).map(|range| range.start).collect();
        starts.sort_unstable();
        starts.dedup();
        starts.len()
    };
    (0..list[0].0.ranges().len()).max_by_key(|&axis| distinct(axis)).unwrap_or(0)
}

/// What happened to a box, as seen by accesses of another.
#[derive(Default)]
struct Past {
    writer: Option<u32>,
    readers: Vec<u32>,
}

impl Past {
    /// Pairs a later access with what it conflicts with.
    fn meet(&mut self, now: Use, note: &mut dyn FnMut(u32, u32)) {
        self.writer.iter().filter(|&&writer| writer != now.order).for_each(|&writer| note(writer, now.order));
        if now.writes {
            self.readers.drain(..).filter(|&reader| reader != now.order).for_each(|reader| note(reader, now.order));
        }
    }

    fn add(&mut self, now: Use) {
        if now.writes {
            self.writer = Some(now.order);
            self.readers.clear();
        } else if now.reads {
            self.readers.push(now.order);
        }
    }
}

/// The conflicting pairs (earlier, later) of two boxes' accesses, as far as they do not follow from others.
fn pairs(a: &[Use], b: &[Use], note: &mut dyn FnMut(u32, u32)) {
    let (mut past_a, mut past_b) = (Past::default(), Past::default());
    let (mut at_a, mut at_b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let next = match (at_a.peek(), at_b.peek()) {
            (Some(a), Some(b)) => a.order.min(b.order),
            (Some(one), None) | (None, Some(one)) => one.order,
            (None, None) => return,
        };
        let now_a = at_a.next_if(|one| one.order == next).copied();
        let now_b = at_b.next_if(|one| one.order == next).copied();
        now_a.into_iter().for_each(|now| past_b.meet(now, note));
        now_b.into_iter().for_each(|now| past_a.meet(now, note));
        now_a.into_iter().for_each(|now| past_a.add(now));
        now_b.into_iter().for_each(|now| past_b.add(now));
    }
}

fn resource_name(program: &Program, resource: &Resource) -> String {
    match resource {
        Resource::View(view) => program.buffers[view.buffer].name.clone(),
        Resource::Scalar(scalar) => program.scalars[*scalar].name.clone(),
    }
}
