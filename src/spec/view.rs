//! Names and slices: what memory a piece of text means.

use super::context::{Context, symbol_kind};
use super::dims;
use super::document::Span;
use super::error::SpecError;
use super::syntax::{Ast, AstKind, IndexEntry};
use crate::entity::{BufferId, GroupId, ScalarId};
use crate::ir::{AxisRange, Symbol, View};

/// What a name, slice or index stands for.
#[derive(Debug)]
pub(super) enum Place<'t> {
    /// A box of a buffer; with computed indices into it, where there are any.
    View(View, Option<&'t [IndexEntry]>),
    /// A whole group.
    Group(GroupId),
    /// A scalar cell.
    Scalar(ScalarId),
}

/// What `ast` stands for. `kind` is what is looked for, for messages.
pub(super) fn resolve<'t>(cx: &mut Context<'_>, ast: &'t Ast, kind: &'static str) -> Option<Place<'t>> {
    let (base, first, second) = match &ast.kind {
        AstKind::Index(base, entries) => match &base.kind {
            AstKind::Index(inner, slices) => (&**inner, Some(slices), Some(entries)),
            _ => (&**base, Some(entries), None),
        },
        _ => (ast, None, None),
    };
    let AstKind::Name { name, .. } = &base.kind else {
        let found = cx.source.get(base.span.clone()).unwrap_or_default().to_owned();
        let error = SpecError::Syntax { expected: format!("the name of a {kind}"), found: format!("`{found}`") };
        return cx.fail(base.span.clone(), error);
    };
    let symbol = cx.lookup(name, kind, base.span.clone())?;
    let Symbol::Buffer(buffer) = symbol else {
        if first.is_some() {
            let (name, found) = (name.clone(), symbol_kind(symbol));
            return cx
                .fail(ast.span.clone(), SpecError::WrongKind { name, found, expected: "a buffer, to be indexed" });
        }
        return Some(match symbol {
            Symbol::Group(group) => Place::Group(group),
            Symbol::Scalar(scalar) => Place::Scalar(scalar),
            Symbol::Buffer(buffer) => Place::View(full(cx, buffer), None),
        });
    };
    match (first, second) {
        (None, _) => Some(Place::View(full(cx, buffer), None)),
        (Some(slices), Some(index)) => Some(Place::View(slice(cx, buffer, slices, &ast.span)?, Some(index))),
        (Some(entries), None) if entries.iter().all(|entry| is_static(cx, entry)) => {
            Some(Place::View(slice(cx, buffer, entries, &ast.span)?, None))
        }
        (Some(entries), None) => Some(Place::View(full(cx, buffer), Some(entries))),
    }
}

/// A box of a buffer, whose indices are all known now.
pub(super) fn resolve_view(cx: &mut Context<'_>, ast: &Ast) -> Option<View> {
    match resolve(cx, ast, "buffer")? {
        Place::View(view, None) => Some(view),
        Place::View(_, Some(_)) => {
            let expected = "a buffer or a slice of one".to_owned();
            let found = "indices that are computed".to_owned();
            cx.fail(ast.span.clone(), SpecError::Syntax { expected, found })
        }
        Place::Group(_) => wrong_kind(cx, ast, "a group"),
        Place::Scalar(_) => wrong_kind(cx, ast, "a scalar"),
    }
}

fn wrong_kind<T>(cx: &mut Context<'_>, ast: &Ast, found: &'static str) -> Option<T> {
    let name = cx.source.get(ast.span.clone()).unwrap_or_default().to_owned();
    cx.fail(ast.span.clone(), SpecError::WrongKind { name, found, expected: "a buffer or a slice of one" })
}

fn full(cx: &Context<'_>, buffer: BufferId) -> View {
    View::full(buffer, &cx.program.buffers[buffer].shape)
}

fn is_static(cx: &Context<'_>, entry: &IndexEntry) -> bool {
    match entry {
        IndexEntry::Range(..) => true,
        IndexEntry::At { value, .. } => dims::is_constant(cx, value),
    }
}

fn slice(cx: &mut Context<'_>, buffer: BufferId, entries: &[IndexEntry], span: &Span) -> Option<View> {
    let mut view = full(cx, buffer);
    let rank = view.ranges().len();
    if entries.len() > rank {
        return index_count(cx, buffer, entries.len(), span);
    }
    for (axis, entry) in entries.iter().enumerate() {
        let range = axis_range(cx, entry, view.ranges()[axis])?;
        view.ranges_mut()[axis] = range;
    }
    Some(view)
}

/// Notes that a buffer is indexed with the wrong number of indices.
pub(super) fn index_count<T>(cx: &mut Context<'_>, buffer: BufferId, found: usize, span: &Span) -> Option<T> {
    let buffer = &cx.program.buffers[buffer];
    let error = SpecError::IndexCount { name: buffer.name.clone(), axes: buffer.shape.rank(), found };
    cx.fail(span.clone(), error)
}

fn axis_range(cx: &mut Context<'_>, entry: &IndexEntry, axis: AxisRange) -> Option<AxisRange> {
    let (start, end, span, dropped) = match entry {
        IndexEntry::At { value, .. } => {
            let start = dims::evaluate(cx, value)?;
            (start, start.saturating_add(1), value.span.clone(), true)
        }
        IndexEntry::Range(start, end, span) => {
            let start = start.as_ref().map_or(Some(0), |start| dims::evaluate(cx, start))?;
            let end = end.as_ref().map_or(Some(i64::from(axis.len)), |end| dims::evaluate(cx, end))?;
            (start, end, span.clone(), false)
        }
    };
    let bounds = u32::try_from(start).ok().zip(end.checked_sub(start).and_then(|len| u32::try_from(len).ok()));
    match bounds.filter(|&(_, len)| len > 0) {
        Some((start, len)) => Some(AxisRange { start, len, dropped }),
        None => cx.fail(span, SpecError::BadSlice { found: format!("{start}:{end}") }),
    }
}
