//! The index space that an expression implies: the smallest that every plain operand broadcasts to.

use super::context::Context;
use super::error::SpecError;
use super::syntax::{Ast, AstKind, IndexEntry, ProgramAst};
use super::view::{self, Place};
use crate::ir::{MAX_RANK, Shape};

/// The space of an expression, and whether any operand gave it a shape. `acc` is the shape that `acc` has, if it has one.
pub(super) fn infer(cx: &mut Context<'_>, ast: &ProgramAst, acc: Option<Shape>) -> Option<(Shape, bool)> {
    let mut walk = Walk { acc, space: Shape::SCALAR, found: false, lets: Vec::new() };
    for (name, value) in &ast.lets {
        walk.visit(cx, value)?;
        walk.lets.push(name);
    }
    ast.results.iter().try_for_each(|result| walk.visit(cx, result))?;
    Some((walk.space, walk.found))
}

struct Walk<'t> {
    acc: Option<Shape>,
    space: Shape,
    found: bool,
    lets: Vec<&'t str>,
}

impl<'t> Walk<'t> {
    fn visit(&mut self, cx: &mut Context<'_>, ast: &'t Ast) -> Option<()> {
        match &ast.kind {
            AstKind::Float(_) | AstKind::Int(..) => Some(()),
            AstKind::Name { name, .. } if self.lets.contains(&name.as_str()) => Some(()),
            AstKind::Name { name, quoted: false } if name == "acc" => match self.acc {
                Some(shape) => self.widen(cx, ast, shape),
                None => Some(()),
            },
            AstKind::Name { .. } | AstKind::Index(..) => self.memory(cx, ast),
            AstKind::Unary(_, x) => self.visit(cx, x),
            AstKind::Binary(_, a, b) | AstKind::Compare(_, a, b) => {
                self.visit(cx, a)?;
                self.visit(cx, b)
            }
            AstKind::Call(_, args) => args.iter().try_for_each(|arg| self.visit(cx, arg)),
        }
    }

    /// Operands that mean nothing are reported where they are lowered, not here.
    fn memory(&mut self, cx: &mut Context<'_>, ast: &'t Ast) -> Option<()> {
        let known = cx.errors.len();
        let place = view::resolve(cx, ast, "buffer or scalar");
        cx.errors.truncate(known);
        match place {
            Some(Place::View(view, None)) => self.widen(cx, ast, view.shape()),
            Some(Place::View(_, Some(entries))) => entries.iter().try_for_each(|entry| match entry {
                IndexEntry::At { value, .. } => self.visit(cx, value),
                IndexEntry::Range(..) => Some(()),
            }),
            Some(Place::Group(_) | Place::Scalar(_)) | None => Some(()),
        }
    }

    fn widen(&mut self, cx: &mut Context<'_>, ast: &Ast, shape: Shape) -> Option<()> {
        self.found = true;
        match broadcast(&self.space, &shape) {
            Some(space) => {
                self.space = space;
                Some(())
            }
            None => {
                let what = format!("`{}`", cx.source.get(ast.span.clone()).unwrap_or_default());
                let (found, space) = (shape.to_string(), self.space.to_string());
                cx.fail(ast.span.clone(), SpecError::Broadcast { what, found, space })
            }
        }
    }
}

/// The smallest shape that both broadcast to, right-aligned.
pub(super) fn broadcast(a: &Shape, b: &Shape) -> Option<Shape> {
    let (long, short) = if a.rank() >= b.rank() { (a, b) } else { (b, a) };
    let mut dims = [0; MAX_RANK];
    let dims = &mut dims[..long.rank()];
    dims.copy_from_slice(long.dims());
    let skip = long.rank() - short.rank();
    for (dim, &other) in dims[skip..].iter_mut().zip(short.dims()) {
        *dim = match (*dim, other) {
            (same, other) if same == other => same,
            (1, other) => other,
            (same, 1) => same,
            _ => return None,
        };
    }
    Shape::new(dims)
}
