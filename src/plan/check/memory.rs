//! Everything has a place of its own, or one that its last owner has certainly left.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::CheckError;
use super::reach::{name_at, unreached};
use super::structure::Bodies;
use crate::entity::{BufferId, GroupId, UnitId};
use crate::ir::{Program, Resource, Role, Writer, node_accesses};
use crate::plan::arena::workspace;
use crate::plan::types::{Placement, Region, StepPlan, Work};

/// Something that must stay in one piece: a buffer, a group, a workspace, a scalar.
struct Piece {
    name: String,
    placement: Placement,
    /// The units that touch it, or loops that stand for units in them, in the order of the plan; only for scratch.
    users: Vec<UnitId>,
    /// Whether nothing may share its bytes.
    alone: bool,
}

pub(super) fn check(plan: &StepPlan, bodies: &Bodies<'_>, errors: &mut Vec<CheckError>) {
    let users = users(plan, bodies);
    let mut memory = Memory { plan, users, pieces: Vec::new(), errors };
    memory.scalars();
    memory.buffers();
    memory.workspaces();
    let mut pieces = std::mem::take(&mut memory.pieces);
    pieces.iter_mut().for_each(|piece| piece.users = standing(plan, bodies, &piece.users));
    for piece in &pieces {
        inside_region(plan, piece, errors);
    }
    for region in Region::ALL {
        let own = pieces.iter().filter(|piece| piece.placement.region == region);
        owners(plan, bodies, own.collect(), region, errors);
    }
}

/// Which units touch each buffer, in the order of the plan, bodies after their conditional.
fn users(plan: &StepPlan, bodies: &Bodies<'_>) -> FxHashMap<BufferId, Vec<UnitId>> {
    let program = plan.program.program();
    let mut users: FxHashMap<BufferId, Vec<UnitId>> = FxHashMap::default();
    let mut stack: Vec<UnitId> = Vec::new();
    for body in bodies.list.iter().filter(|body| body.owner.is_none()) {
        stack.extend(body.body.units.iter().rev());
        while let Some(unit) = stack.pop() {
            for access in node_accesses(program, &program.steps[plan.step], plan.units[unit].node) {
                let Resource::View(view) = access.resource else { continue };
                let list = users.entry(view.buffer).or_default();
                if list.last() != Some(&unit) {
                    list.push(unit);
                }
            }
            plan.units[unit].work.bodies().iter().rev().for_each(|inner| stack.extend(inner.units.iter().rev()));
        }
    }
    users
}

struct Memory<'a, 'e> {
    plan: &'a StepPlan,
    users: FxHashMap<BufferId, Vec<UnitId>>,
    pieces: Vec<Piece>,
    errors: &'e mut Vec<CheckError>,
}

impl Memory<'_, '_> {
    fn program(&self) -> &Program {
        self.plan.program.program()
    }

    fn fault(&mut self, what: &str, reason: impl Into<String>) {
        self.errors.push(CheckError::BadPlacement { what: what.to_owned(), reason: reason.into() });
    }

    fn scalars(&mut self) {
        let plan = self.plan;
        for (id, scalar) in plan.program.program().scalars.iter() {
            let region = if scalar.writer == Writer::Host { Region::Inbox } else { Region::Persistent };
            self.expect(&scalar.name, plan.arena.scalars[id], region, 4, 4);
            self.add(&scalar.name, plan.arena.scalars[id], Vec::new(), true);
        }
    }

    fn buffers(&mut self) {
        let plan = self.plan;
        let program = plan.program.program();
        let grouped: FxHashMap<BufferId, GroupId> = program
            .groups
            .iter()
            .flat_map(|(id, group)| group.members.iter().map(move |&member| (member, id)))
            .collect();
        for (id, buffer) in program.buffers.iter() {
            if !self.is_needed(id, grouped.get(&id)) {
                if plan.arena.buffers[id].is_some() {
                    self.fault(&buffer.name, "has a place although nothing touches it");
                }
                continue;
            }
            let lasts = grouped.get(&id).is_some_and(|&group| program.has_padding(group));
            let region = region_of(buffer.role, lasts);
            let align = if grouped.contains_key(&id) { 16 } else { 256 };
            self.expect(&buffer.name, plan.arena.buffers[id], region, buffer.bytes(), align);
            if !grouped.contains_key(&id) {
                let users = self.users.get(&id).cloned().unwrap_or_default();
                self.add(&buffer.name, plan.arena.buffers[id], users, buffer.tap);
            }
        }
        program.groups.keys().for_each(|group| self.group(group));
    }

    /// Temps have a place if this plan touches them, or a member of their group; groups with padding and everything else
    /// always have one.
    fn is_needed(&self, buffer: BufferId, group: Option<&GroupId>) -> bool {
        let program = self.program();
        let touched = |id: &BufferId| self.users.contains_key(id);
        program.buffers[buffer].role != Role::Temp
            || touched(&buffer)
            || group
                .is_some_and(|&group| program.has_padding(group) || program.groups[group].members.iter().any(touched))
    }

    /// A group lies as its layout says, and is one piece, padding included.
    fn group(&mut self, group: GroupId) {
        let plan = self.plan;
        let program = plan.program.program();
        let members = &program.groups[group].members;
        let Some(first) = members.first().and_then(|&member| plan.arena.buffers[member]) else { return };
        let (starts, bytes) = program.group_layout(group);
        for (&member, start) in members.iter().zip(starts) {
            if plan.arena.buffers[member]
                .is_none_or(|placement| Some(placement.offset) != first.offset.checked_add(start))
            {
                self.fault(&program.buffers[member].name, "does not lie where its group's layout puts it");
            }
        }
        if first.offset % 256 != 0 {
            self.fault(&program.groups[group].name, "does not start at a multiple of 256 bytes");
        }
        let mut users: Vec<UnitId> =
            members.iter().filter_map(|member| self.users.get(member)).flatten().copied().collect();
        users.sort_unstable();
        users.dedup();
        let tapped = members.iter().any(|&member| program.buffers[member].tap);
        self.add(&program.groups[group].name, Some(Placement { bytes, ..first }), users, tapped);
    }

    fn workspaces(&mut self) {
        let plan = self.plan;
        let step = &plan.program.program().steps[plan.step];
        for (id, unit) in plan.units.iter() {
            let bytes = workspace(step, unit);
            let name = format!("workspace of {}", unit.name);
            match plan.arena.workspaces[id] {
                None if bytes == 0 => {}
                Some(_) if bytes == 0 => self.fault(&name, "has a place although the unit needs none"),
                placement => {
                    self.expect(&name, placement, Region::Scratch, bytes, 256);
                    self.add(&name, placement, vec![id], false);
                }
            }
        }
    }

    fn expect(&mut self, name: &str, found: Option<Placement>, region: Region, bytes: u64, align: u64) {
        let Some(found) = found else { return self.fault(name, "has no place") };
        if found.region != region {
            self.fault(name, format!("lies in the {} region, expected {}", found.region.name(), region.name()));
        }
        if found.bytes != bytes {
            self.fault(name, format!("has {} bytes, needs {bytes}", found.bytes));
        }
        if found.offset % align != 0 {
            self.fault(name, format!("starts at byte {}, not a multiple of {align}", found.offset));
        }
    }

    fn add(&mut self, name: &str, placement: Option<Placement>, users: Vec<UnitId>, tapped: bool) {
        let Some(placement) = placement else { return };
        let alone = tapped || placement.region != Region::Scratch;
        self.pieces.push(Piece { name: name.to_owned(), placement, users, alone });
    }
}

/// A Temp of a group with padding lasts: the padding must stay zero.
fn region_of(role: Role, lasts: bool) -> Region {
    match role {
        Role::Temp if lasts => Region::Persistent,
        Role::Input => Region::Inbox,
        Role::Param | Role::State => Region::Persistent,
        Role::Output => Region::Output,
        Role::Temp => Region::Scratch,
    }
}

fn inside_region(plan: &StepPlan, piece: &Piece, errors: &mut Vec<CheckError>) {
    let size = plan.arena.size(piece.placement.region);
    let end = piece.placement.offset.checked_add(piece.placement.bytes);
    if end.is_none_or(|end| end > size) {
        let reason = format!("ends outside its region of {size} bytes");
        errors.push(CheckError::BadPlacement { what: piece.name.clone(), reason });
    }
}

/// Goes through the pieces of a region in the order of their first use, keeping the owner of each byte.
fn owners(plan: &StepPlan, bodies: &Bodies<'_>, mut pieces: Vec<&Piece>, region: Region, errors: &mut Vec<CheckError>) {
    let paths: FxHashMap<UnitId, Vec<(usize, u32)>> =
        pieces.iter().flat_map(|piece| &piece.users).map(|&unit| (unit, path(bodies, unit))).collect();
    pieces.sort_by_key(|piece| piece.users.iter().map(|unit| &paths[unit]).min().cloned());
    let mut owned: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let mut reuse = Reuse { paths: &paths, pairs: BTreeMap::new(), never: Vec::new() };
    for (at, piece) in pieces.iter().enumerate() {
        let Placement { offset: start, bytes, .. } = piece.placement;
        let end = start.saturating_add(bytes);
        for (owner_start, (owner_end, owner)) in overlapping(&owned, start, end) {
            if piece.alone || pieces[owner].alone {
                let (first, second) = (pieces[owner].name.clone(), piece.name.clone());
                errors.push(CheckError::SharedBytes { first, second, region });
            } else {
                reuse.require(owner, pieces[owner], at, piece);
            }
            owned.remove(&owner_start);
            if owner_start < start {
                owned.insert(owner_start, (start, owner));
            }
            if owner_end > end {
                owned.insert(end, (owner_end, owner));
            }
        }
        owned.insert(start, (end, at));
    }
    reuse.report(plan, bodies, &pieces, errors);
}

fn overlapping(owned: &BTreeMap<u64, (u64, usize)>, start: u64, end: u64) -> Vec<(u64, (u64, usize))> {
    let mut found: Vec<_> = owned.range(start..end).map(|(&at, &owner)| (at, owner)).collect();
    let before = owned.range(..start).next_back().filter(|(_, (owner_end, _))| *owner_end > start);
    found.extend(before.map(|(&at, &owner)| (at, owner)));
    found
}

/// What is used inside and outside of a loop is in use as long as the loop: the outermost loop that does not hold all users stands
/// for those that it holds. What only one loop uses is written in full before it is read in each iteration, since it would be
/// unwritten in the first one: validation has seen to that.
fn standing(plan: &StepPlan, bodies: &Bodies<'_>, users: &[UnitId]) -> Vec<UnitId> {
    let loops: Vec<Vec<UnitId>> = users.iter().map(|&user| loops(plan, bodies, user)).collect();
    let Some(first) = loops.first() else { return Vec::new() };
    let shared = (0..first.len()).take_while(|&at| loops.iter().all(|own| own.get(at) == first.get(at))).count();
    let mut found: Vec<UnitId> =
        users.iter().zip(&loops).map(|(&user, own)| own.get(shared).copied().unwrap_or(user)).collect();
    found.dedup();
    found
}

/// The loops around a unit, outermost first.
fn loops(plan: &StepPlan, bodies: &Bodies<'_>, unit: UnitId) -> Vec<UnitId> {
    let owner = |unit: UnitId| bodies.place[unit].and_then(|(body, _)| bodies.list[body].owner);
    let around = std::iter::successors(owner(unit), |&around| owner(around));
    let mut found: Vec<UnitId> =
        around.filter(|&around| matches!(plan.units[around].work, Work::While { .. })).collect();
    found.reverse();
    found
}

/// Where a unit stands: its graph and place, then body and place further in.
fn path(bodies: &Bodies<'_>, unit: UnitId) -> Vec<(usize, u32)> {
    let mut path = Vec::new();
    let mut at = Some(unit);
    while let Some((body, place)) = at.and_then(|unit| bodies.place[unit]) {
        path.push((body, place));
        at = bodies.list[body].owner;
    }
    path.reverse();
    path
}

/// Pairs of places that must be ordered, with the pieces between which bytes change hands.
type HandOvers = BTreeMap<(u32, u32), (usize, usize)>;

/// Orders that memory reuse needs, collected per body so that they can be answered together.
struct Reuse<'a> {
    paths: &'a FxHashMap<UnitId, Vec<(usize, u32)>>,
    /// Per body.
    pairs: BTreeMap<usize, HandOvers>,
    /// Uses that nothing can order: two branches of one conditional, a loop and what is in it, one unit, or a later graph.
    never: Vec<(usize, usize, UnitId, UnitId)>,
}

impl Reuse<'_> {
    fn require(&mut self, owner: usize, first: &Piece, taker: usize, second: &Piece) {
        for &earlier in &first.users {
            for &later in &second.users {
                match self.order(earlier, later) {
                    Some(None) => {}
                    Some(Some((body, pair))) => {
                        self.pairs.entry(body).or_default().entry(pair).or_insert((owner, taker));
                    }
                    None => self.never.push((owner, taker, earlier, later)),
                }
            }
        }
    }

    /// Which pair of places must be ordered so that `earlier` precedes `later`: `Some(None)` if they are anyway, `None` if
    /// nothing can order them.
    fn order(&self, earlier: UnitId, later: UnitId) -> Option<Option<(usize, (u32, u32))>> {
        let (a, b) = (&self.paths[&earlier], &self.paths[&later]);
        let (&(body_a, place_a), &(body_b, place_b)) = a.iter().zip(b).find(|(a, b)| a != b)?;
        let outermost = a[0] == (body_a, place_a);
        if body_a == body_b {
            return Some(Some((body_a, (place_a, place_b))));
        }
        (outermost && body_a < body_b).then_some(None)
    }

    fn report(self, plan: &StepPlan, bodies: &Bodies<'_>, pieces: &[&Piece], errors: &mut Vec<CheckError>) {
        let mut add = |owner: usize, taker: usize, earlier: String, later: String| {
            let (first, second) = (pieces[owner].name.clone(), pieces[taker].name.clone());
            errors.push(CheckError::UnorderedReuse { first, second, earlier, later });
        };
        for (body, pairs) in self.pairs {
            for pair @ (from, to) in unreached(bodies, body, pairs.keys().copied().collect()) {
                let (owner, taker) = pairs[&pair];
                add(owner, taker, name_at(plan, bodies, body, from), name_at(plan, bodies, body, to));
            }
        }
        for (owner, taker, earlier, later) in self.never {
            add(owner, taker, plan.units[earlier].name.clone(), plan.units[later].name.clone());
        }
    }
}
