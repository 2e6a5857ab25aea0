//! Where everything lies: four regions, of which only scratch depends on the plan.

use rustc_hash::FxHashMap;

use super::error::PlanError;
use super::options::GemmImpl;
use super::packing::{ALIGN, Request, pack};
use super::timeline::Timeline;
use super::types::{Arena, GraphPlan, Placement, Region, Unit, Work};
use crate::analysis::Precedence;
use crate::codegen::workspace_bytes;
use crate::entity::{BufferId, GroupId, PrimaryMap, SecondaryMap, UnitId};
use crate::ir::{Program, Resource, Role, Step, Writer, node_accesses};

/// A region must be smaller than the address space of a device.
const REGION_LIMIT: u64 = 1 << 47;
/// Bytes of a scalar cell.
const CELL: u64 = 4;

/// The arena of a plan. Where temps are kept apart, none takes the memory of another, so that all can be looked at after a launch.
///
/// # Errors
/// [`PlanError::ArenaTooLarge`].
pub(super) fn arena(
    program: &Program,
    step: &Step,
    units: &PrimaryMap<UnitId, Unit>,
    graphs: &[GraphPlan],
    apart: bool,
) -> Result<Arena, PlanError> {
    let mut layout = Layout { program, groups: groups(program), apart, arena: Arena::default() };
    layout.lasting(Region::Inbox, Some(Writer::Host), &[Role::Input]);
    layout.lasting(Region::Persistent, Some(Writer::Device), &[Role::Param, Role::State]);
    layout.padded_temps();
    layout.lasting(Region::Output, None, &[Role::Output]);
    layout.scratch(step, units, graphs);
    let too_large = layout.arena.sizes.iter().find(|&(_, &bytes)| bytes > REGION_LIMIT);
    if let Some((&region, &bytes)) = too_large {
        return Err(PlanError::ArenaTooLarge { region, bytes });
    }
    Ok(layout.arena)
}

/// Bytes of the workspace that a unit needs.
pub(super) fn workspace(program_step: &Step, unit: &Unit) -> u64 {
    match unit.work {
        Work::Gemm(GemmImpl::Library { workspace, .. }) => workspace,
        _ => workspace_bytes(&program_step.nodes[unit.node].op),
    }
}

/// The group of each buffer that is in one.
pub(super) fn groups(program: &Program) -> SecondaryMap<BufferId, Option<GroupId>> {
    let mut groups = SecondaryMap::with_capacity(program.buffers.len());
    for (id, group) in program.groups.iter() {
        group.members.iter().for_each(|&member| groups[member] = Some(id));
    }
    groups
}

struct Layout<'a> {
    program: &'a Program,
    groups: SecondaryMap<BufferId, Option<GroupId>>,
    apart: bool,
    arena: Arena,
}

/// Something that is placed as one piece.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Piece {
    Buffer(BufferId),
    Group(GroupId),
    Workspace(UnitId),
}

impl Layout<'_> {
    /// Lays out scalars of one writer, then buffers of these roles, in declared order. A group lies where its first declared
    /// member would.
    fn lasting(&mut self, region: Region, writer: Option<Writer>, roles: &[Role]) {
        let program = self.program;
        let mut end = 0u64;
        for (id, _) in program.scalars.iter().filter(|(_, scalar)| writer == Some(scalar.writer)) {
            self.arena.scalars[id] = Some(Placement { region, offset: end, bytes: CELL });
            end += CELL;
        }
        for (id, _) in roles.iter().flat_map(|&role| program.buffers_of(role)) {
            if self.arena.buffers[id].is_some() {
                continue;
            }
            let offset = end.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
            let piece = self.piece(id);
            self.place(piece, region, offset);
            end = offset.saturating_add(self.bytes(piece));
        }
        self.arena.sizes.insert(region, end);
    }

    /// Gives groups of Temps with padding memory of their own: shared memory would not leave the padding zero.
    fn padded_temps(&mut self) {
        let program = self.program;
        let mut end = self.arena.size(Region::Persistent);
        for (group, members) in program.groups.iter().map(|(group, declared)| (group, &declared.members)) {
            let is_temp = members.first().is_some_and(|&member| program.buffers[member].role == Role::Temp);
            if !is_temp || !program.has_padding(group) {
                continue;
            }
            let offset = end.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
            self.place(Piece::Group(group), Region::Persistent, offset);
            end = offset.saturating_add(self.bytes(Piece::Group(group)));
        }
        self.arena.sizes.insert(Region::Persistent, end);
    }

    /// Packs Temps and workspaces by when they are in use.
    fn scratch(&mut self, step: &Step, units: &PrimaryMap<UnitId, Unit>, graphs: &[GraphPlan]) {
        let timeline = Timeline::new(units, graphs);
        let mut known: FxHashMap<Piece, usize> = FxHashMap::default();
        let mut pieces: Vec<Piece> = Vec::new();
        let mut users: Vec<Vec<UnitId>> = Vec::new();
        let mut requests: Vec<Request> = Vec::new();
        let mut note = |piece: Piece, bytes: &dyn Fn() -> u64, user: UnitId| {
            let at = *known.entry(piece).or_insert_with(|| {
                pieces.push(piece);
                users.push(Vec::new());
                requests.push(Request { bytes: bytes(), points: Vec::new(), exclusive: self.is_kept(piece) });
                requests.len() - 1
            });
            users[at].push(user);
        };
        for (id, unit) in units.iter() {
            for access in node_accesses(self.program, step, unit.node) {
                let Resource::View(view) = access.resource else { continue };
                let is_placed = self.arena.buffers[view.buffer].is_some();
                if self.program.buffers[view.buffer].role == Role::Temp && !is_placed {
                    let piece = self.piece(view.buffer);
                    note(piece, &|| self.bytes(piece), id);
                }
            }
            let bytes = workspace(step, unit);
            if bytes > 0 {
                note(Piece::Workspace(id), &|| bytes, id);
            }
        }
        requests.iter_mut().zip(&users).for_each(|(request, users)| request.points = timeline.points(users));
        let (offsets, end) = pack(&requests, &Precedence::new(&timeline.dag));
        for ((piece, request), offset) in pieces.into_iter().zip(&requests).zip(offsets) {
            match piece {
                Piece::Workspace(unit) => {
                    let placement = Placement { region: Region::Scratch, offset, bytes: request.bytes };
                    self.arena.workspaces[unit] = Some(placement);
                }
                _ => self.place(piece, Region::Scratch, offset),
            }
        }
        self.arena.sizes.insert(Region::Scratch, end);
    }

    fn piece(&self, buffer: BufferId) -> Piece {
        self.groups[buffer].map_or(Piece::Buffer(buffer), Piece::Group)
    }

    fn bytes(&self, piece: Piece) -> u64 {
        match piece {
            Piece::Buffer(buffer) => self.program.buffers[buffer].bytes(),
            Piece::Group(group) => self.program.group_layout(group).1,
            Piece::Workspace(_) => 0,
        }
    }

    /// Whether nothing else may take its memory.
    fn is_kept(&self, piece: Piece) -> bool {
        let is_tapped = |&buffer: &BufferId| self.program.buffers[buffer].tap;
        match piece {
            Piece::Buffer(buffer) => self.apart || is_tapped(&buffer),
            Piece::Group(group) => self.apart || self.program.groups[group].members.iter().any(is_tapped),
            Piece::Workspace(_) => false,
        }
    }

    fn place(&mut self, piece: Piece, region: Region, offset: u64) {
        let program = self.program;
        let buffers: &mut SecondaryMap<_, _> = &mut self.arena.buffers;
        match piece {
            Piece::Buffer(buffer) => {
                buffers[buffer] = Some(Placement { region, offset, bytes: program.buffers[buffer].bytes() });
            }
            Piece::Group(group) => {
                let (starts, _) = program.group_layout(group);
                for (&member, start) in program.groups[group].members.iter().zip(starts) {
                    let bytes = program.buffers[member].bytes();
                    buffers[member] = Some(Placement { region, offset: offset.saturating_add(start), bytes });
                }
            }
            Piece::Workspace(_) => {}
        }
    }
}
