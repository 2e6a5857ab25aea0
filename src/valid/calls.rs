//! Kernel calls: arguments of the declared class, type and shape; what they bind symbols to.

use super::kernels::Symbols;
use super::report::{Site, Viewed};
use crate::entity::GroupId;
use crate::ir::{Arg, Dim, GROUP_ALIGN, KernelCall, KernelParam, ParamClass, ProgramError, Shape};

/// Checks a call. Gives the extent of each symbol of the kernel's shapes.
pub(super) fn check(site: &mut Site<'_, '_>, call: &KernelCall, symbols: &Symbols) -> Option<Vec<u32>> {
    let Some(decl) = site.program.kernels.get(call.kernel) else {
        site.unknown("", "kernel", call.kernel);
        return None;
    };
    let mut bound = Bound { names: &symbols[call.kernel], extents: vec![None; symbols[call.kernel].len()] };
    let mut args = call.args.iter();
    for param in decl.params.iter().filter(|param| param.class.needs_argument()) {
        match args.next() {
            Some(arg) => argument(site, param, arg, &mut bound),
            None => site.fail(&param.name, |node| ProgramError::MissingArg {
                node,
                kernel: decl.name.clone(),
                arg: param.name.clone(),
            }),
        }
    }
    if args.len() > 0 {
        let arg = format!("{} more", args.len());
        site.fail("", |node| ProgramError::UnknownArg { node, kernel: decl.name.clone(), arg, similar: None });
    }
    bound.extents.into_iter().collect()
}

/// The extents that symbols have so far.
struct Bound<'a> {
    names: &'a [String],
    extents: Vec<Option<u32>>,
}

fn argument(site: &mut Site<'_, '_>, param: &KernelParam, arg: &Arg, bound: &mut Bound<'_>) {
    let name = param.name.as_str();
    match (arg, &param.class) {
        (Arg::View(view), class) if class.is_buffer() => {
            let Some(viewed) = site.view(name, &format!("`{name}`"), *view) else { return };
            if !view.is_contiguous(&viewed.whole) {
                site.fail(name, |node| ProgramError::NotContiguous { node, part: format!("`{name}`") });
            }
            buffer(site, param, &viewed, bound);
        }
        (Arg::Group(id), class) if class.is_buffer() => group(site, param, *id, bound),
        (Arg::Scalar(id), class) if class.is_scalar() => {
            let Some(scalar) = site.scalar(name, *id) else { return };
            site.same_type(name, &format!("`{name}`"), scalar.init.dtype().name(), param.dtype.name());
        }
        (Arg::Const(value), ParamClass::Const) => {
            site.same_type(name, &format!("`{name}`"), value.dtype().name(), param.dtype.name());
        }
        (Arg::Const(_), class) if class.is_scalar() => {
            site.fail(name, |node| ProgramError::ConstForScalar { node, arg: name.into() });
        }
        (Arg::Scalar(_), ParamClass::Const) => {
            site.fail(name, |node| ProgramError::ScalarForConst { node, arg: name.into() });
        }
        (arg, class) => site.fail(name, |node| ProgramError::ArgClass {
            node,
            arg: name.into(),
            found: arg.kind(),
            expected: class.name(),
        }),
    }
}

fn buffer(site: &mut Site<'_, '_>, param: &KernelParam, viewed: &Viewed, bound: &mut Bound<'_>) {
    let part = format!("`{}`", param.name);
    site.same_type(&param.name, &part, viewed.dtype.name(), param.dtype.name());
    pattern(site, param, &viewed.shape, bound);
}

/// A group is one flat axis: its padded length.
fn group(site: &mut Site<'_, '_>, param: &KernelParam, id: GroupId, bound: &mut Bound<'_>) {
    let name = param.name.as_str();
    let Some(group) = site.program.groups.get(id) else {
        site.unknown(name, "group", id);
        return;
    };
    let mut elements = 0u64;
    for &member in &group.members {
        let Some(buffer) = site.buffer(name, member) else { return };
        let padded = buffer.bytes().checked_next_multiple_of(GROUP_ALIGN).unwrap_or(u64::MAX);
        elements = elements.saturating_add(padded / buffer.dtype.size());
    }
    let first = group.members.first().map(|&member| &site.program.buffers[member]);
    let (Some(first), Ok(extent)) = (first, u32::try_from(elements)) else {
        // An empty or too long group was reported where it is declared.
        site.broken = true;
        return;
    };
    site.same_type(name, &format!("`{name}`"), first.dtype.name(), param.dtype.name());
    if let Some(shape) = Shape::new(&[extent]) {
        pattern(site, param, &shape, bound);
    }
}

fn pattern(site: &mut Site<'_, '_>, param: &KernelParam, shape: &Shape, bound: &mut Bound<'_>) {
    let Some(dims) = &param.shape else { return };
    let fits = dims.len() == shape.rank()
        && dims.iter().zip(shape.dims()).all(|(dim, extent)| !matches!(dim, Dim::Fixed(fixed) if fixed != extent));
    if !fits {
        site.fail(&param.name, |node| ProgramError::ShapeMismatch {
            node,
            part: format!("`{}`", param.name),
            found: shape.to_string(),
            expected: pattern_text(dims),
        });
        return;
    }
    for (dim, &found) in dims.iter().zip(shape.dims()) {
        let Dim::Symbol(symbol) = dim else { continue };
        let Some(at) = bound.names.iter().position(|name| name == symbol) else { continue };
        let expected = *bound.extents[at].get_or_insert(found);
        if expected != found {
            site.fail(&param.name, |node| ProgramError::SymbolMismatch {
                node,
                arg: param.name.clone(),
                symbol: symbol.clone(),
                found,
                expected,
            });
        }
    }
}

fn pattern_text(dims: &[Dim]) -> String {
    let dims = dims.iter().map(|dim| match dim {
        Dim::Symbol(name) => name.clone(),
        Dim::Fixed(extent) => extent.to_string(),
    });
    format!("[{}]", dims.collect::<Vec<_>>().join(", "))
}
