//! Who has which bytes, in the order of the bytes.

use super::names::Names;
use crate::plan::types::{Placement, Region};

/// The placements of a region with their owners' names, by offset, then name.
pub(super) fn owners(names: &Names<'_>, region: Region) -> Vec<(Placement, String)> {
    let (plan, program) = (names.plan, names.program);
    let mut found: Vec<(Placement, String)> = Vec::new();
    let mut add = |placement: Option<Placement>, name: String| {
        found.extend(placement.filter(|placement| placement.region == region).map(|placement| (placement, name)));
    };
    for (id, buffer) in program.buffers.iter() {
        add(plan.arena.buffers[id], buffer.name.clone());
    }
    for (id, scalar) in program.scalars.iter() {
        add(plan.arena.scalars[id], scalar.name.clone());
    }
    for (id, unit) in plan.units.iter() {
        add(plan.arena.workspaces[id], format!("workspace of {}", unit.name));
    }
    found.sort_by(|(a, a_name), (b, b_name)| (a.offset, a.bytes, a_name).cmp(&(b.offset, b.bytes, b_name)));
    found
}
