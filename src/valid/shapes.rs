//! Extents of buffers and index spaces, initial values, groups, and the operands of copies and fills.

use super::report::{Report, Site};
use crate::entity::{EntityRef, GroupId};
use crate::ir::{
    Buffer, ConstValue, DType, GROUP_ALIGN, Init, Item, MAX_ELEMENTS, Program, ProgramError, Role, Shape, ValueType,
    View,
};

/// Checks buffers and groups.
pub(super) fn check(program: &Program, report: &mut Report<'_>) {
    for (id, buffer) in program.buffers.iter() {
        if !is_sound(&buffer.shape) {
            let (what, found) = (buffer.name.clone(), buffer.shape.to_string());
            report.add(&Item::Buffer(id), ProgramError::BadExtent { what, found });
        }
        if let Some(error) = init_error(buffer) {
            report.add(&Item::Buffer(id), error);
        }
    }
    let mut owners = vec![None; program.buffers.len()];
    for id in program.groups.keys() {
        group(program, id, &mut owners, report);
    }
}

/// Whether each extent, and their product, is between 1 and [`MAX_ELEMENTS`].
pub(super) fn is_sound(shape: &Shape) -> bool {
    // A zero extent makes the product 0 and an extent above the limit makes it larger, unless another is 0.
    (1..=MAX_ELEMENTS).contains(&shape.elements())
}

/// Checks an index space.
pub(super) fn space(site: &mut Site<'_, '_>, space: &Shape) -> bool {
    if !is_sound(space) {
        let found = space.to_string();
        site.fail("", |node| ProgramError::BadExtent { what: format!("the index space of {node}"), found });
    }
    is_sound(space)
}

/// Checks a copy.
pub(super) fn copy(site: &mut Site<'_, '_>, from: View, to: View) {
    let (Some(from), Some(to)) = (site.view("from", "from", from), site.view("to", "to", to)) else { return };
    site.same_shape("to", "to", to.shape, from.shape);
    site.same_type("to", "to", to.dtype.name(), from.dtype.name());
}

/// Checks a fill.
pub(super) fn fill(site: &mut Site<'_, '_>, to: View, value: ConstValue) {
    let Some(to) = site.view("to", "to", to) else { return };
    site.same_type("to", "the value", value.dtype().name(), ValueType::of(to.dtype).name());
}

fn init_error(buffer: &Buffer) -> Option<ProgramError> {
    let is_random = matches!(buffer.init, Init::Uniform { .. } | Init::Normal { .. });
    let is_float = matches!(buffer.dtype, DType::F32 | DType::Bf16);
    let matters = matches!(buffer.role, Role::Param | Role::State);
    if !matters {
        return None;
    }
    if is_random && !is_float {
        return Some(ProgramError::UnsupportedType {
            what: buffer.name.clone(),
            found: buffer.dtype,
            remedy: "random initial values need a float buffer",
        });
    }
    let is_spread = |value: f32| value.is_finite() && value >= 0.0;
    // The bounds are powers of two, which f32 holds; the upper ones are the first values that are too large.
    let (found, fits, expected) = match (buffer.init, buffer.dtype) {
        (Init::Uniform { bound }, _) => (bound, is_spread(bound), "a bound of at least 0"),
        (Init::Normal { std }, _) => (std, is_spread(std), "a deviation of at least 0"),
        (Init::Constant(value), DType::I32) => {
            (value, (-2_147_483_648.0..2_147_483_648.0).contains(&value.trunc()), "a value that i32 holds")
        }
        (Init::Constant(value), DType::U32) => {
            (value, (0.0..4_294_967_296.0).contains(&value.trunc()), "a value that u32 holds")
        }
        (Init::Constant(_), DType::F32 | DType::Bf16) | (Init::Zeros, _) => return None,
    };
    (!fits).then(|| ProgramError::BadInit { buffer: buffer.name.clone(), found, expected })
}

fn group(program: &Program, id: GroupId, owners: &mut [Option<GroupId>], report: &mut Report<'_>) {
    let group = &program.groups[id];
    let mut fail = |member: String, reason: String| {
        report.add(&Item::Group(id), ProgramError::BadGroup { group: group.name.clone(), member, reason });
    };
    let mut first: Option<&Buffer> = None;
    let mut elements = 0u64;
    for &member in &group.members {
        let Some(buffer) = program.buffers.get(member) else {
            fail(member.to_string(), "is not declared".into());
            continue;
        };
        let first = *first.get_or_insert(buffer);
        if buffer.dtype != first.dtype {
            fail(buffer.name.clone(), format!("is {}, but `{}` is {}", buffer.dtype, first.name, first.dtype));
        }
        if buffer.role != first.role {
            let (own, other) = (buffer.role.name(), first.role.name());
            fail(buffer.name.clone(), format!("has the role {own}, but `{}` has the role {other}", first.name));
        }
        if let Some(owner) = owners[member.index()].replace(id) {
            let owner = &program.groups[owner].name;
            fail(buffer.name.clone(), format!("is in group `{owner}` already: a buffer is in one group, once"));
        }
        let padded = buffer.bytes().checked_next_multiple_of(GROUP_ALIGN).unwrap_or(u64::MAX);
        elements = elements.saturating_add(padded / buffer.dtype.size());
    }
    if group.members.is_empty() {
        report.add(&Item::Group(id), ProgramError::Empty { what: format!("group `{}`", group.name) });
    } else if elements > MAX_ELEMENTS {
        let what = group.name.clone();
        report.add(&Item::Group(id), ProgramError::BadExtent { what, found: format!("[{elements}]") });
    }
}
