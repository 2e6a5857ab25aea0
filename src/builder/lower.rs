//! From values, which are trees that share parts, to the flat operations of an expression over one index space.

use std::collections::HashMap;
use std::rc::Rc;

use super::core::Core;
use super::value::{Ix, Node};
use crate::entity::ValueId;
use crate::handle::{Place, ProgramTag};
use crate::ir::{BinaryOp, ConstValue, ExprBuilder, ExprOp, IndexTerm, Origin, ProgramError, Shape, View};

/// The smallest index space that broadcasts every tensor of the expressions.
pub(super) fn space_of(roots: &[Rc<Node>]) -> Vec<u32> {
    let mut space: Vec<u32> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut stack: Vec<&Rc<Node>> = roots.iter().collect();
    while let Some(node) = stack.pop() {
        if !seen.insert(Rc::as_ptr(node)) {
            continue;
        }
        if let Node::Load { place: Place::View(view), index: None, .. } = &**node {
            widen(&mut space, view.shape().dims());
        }
        operands(node, &mut stack);
    }
    space
}

fn widen(space: &mut Vec<u32>, dims: &[u32]) {
    while space.len() < dims.len() {
        space.insert(0, 1);
    }
    let skip = space.len() - dims.len();
    for (extent, &dim) in space[skip..].iter_mut().zip(dims) {
        *extent = (*extent).max(dim);
    }
}

fn operands<'a>(node: &'a Node, stack: &mut Vec<&'a Rc<Node>>) {
    match node {
        Node::Const(_) | Node::Index(_) | Node::Scalar(..) | Node::Acc | Node::Linear | Node::TooDeep(_) => {}
        Node::Load { index, .. } => stack.extend(index.iter().flatten().filter_map(|term| match term {
            Ix::Value(value) => Some(value.node()),
            Ix::Axis(_) | Ix::Fixed(_) => None,
        })),
        Node::Unary(_, x) | Node::Cast(_, x) => stack.push(x),
        Node::Binary(_, a, b) | Node::Compare(_, a, b) => stack.extend([a, b]),
        Node::Select(c, a, b) => stack.extend([c, a, b]),
        Node::Philox { key, counter, element, .. } => stack.extend([key, counter, element]),
    }
}

/// Turns values into operations over one index space.
pub(super) struct Lowering<'a> {
    pub(super) core: &'a mut Core,
    pub(super) node: &'a str,
    pub(super) space: Shape,
    pub(super) origin: Origin,
    ops: ExprBuilder,
    known: HashMap<*const Node, ValueId>,
}

impl<'a> Lowering<'a> {
    pub(super) fn new(core: &'a mut Core, node: &'a str, space: Shape, origin: Origin) -> Self {
        Self { core, node, space, origin, ops: ExprBuilder::new(), known: HashMap::new() }
    }

    pub(super) fn finish(self, roots: &[ValueId]) -> crate::ir::Expr {
        self.ops.finish(roots)
    }

    pub(super) fn lower(&mut self, node: &Rc<Node>) -> ValueId {
        if let Some(&value) = self.known.get(&Rc::as_ptr(node)) {
            return value;
        }
        let value = match &**node {
            Node::Linear => self.linear(),
            other => {
                let op = self.op(other);
                self.ops.push(op)
            }
        };
        self.known.insert(Rc::as_ptr(node), value);
        value
    }

    fn op(&mut self, node: &Node) -> ExprOp {
        match node {
            Node::Const(value) => ExprOp::Const(*value),
            Node::Index(axis) => ExprOp::Index(*axis),
            Node::Scalar(tag, id) => {
                if self.core.own(self.node, "a scalar of the expression", *tag, self.origin) {
                    ExprOp::Scalar(*id)
                } else {
                    ExprOp::Const(ConstValue::U32(0))
                }
            }
            Node::Load { tag, place, index } => self.load(*tag, *place, index.as_deref()),
            Node::Acc => ExprOp::Acc,
            Node::Unary(op, x) => ExprOp::Unary(*op, self.lower(x)),
            Node::Binary(op, a, b) => ExprOp::Binary(*op, self.lower(a), self.lower(b)),
            Node::Compare(op, a, b) => ExprOp::Compare(*op, self.lower(a), self.lower(b)),
            Node::Select(c, a, b) => {
                ExprOp::Select { condition: self.lower(c), if_true: self.lower(a), if_false: self.lower(b) }
            }
            Node::Cast(to, x) => ExprOp::Cast(*to, self.lower(x)),
            Node::Philox { key, counter, element, stream, word } => ExprOp::Philox {
                key: self.lower(key),
                counter: self.lower(counter),
                element: self.lower(element),
                stream: *stream,
                word: *word,
            },
            Node::Linear => ExprOp::Index(0),
            Node::TooDeep(found) => {
                let error = ProgramError::ExprTooDeep { node: self.node.into(), part: "expr", found: *found };
                self.core.fail(error, self.origin);
                ExprOp::Const(ConstValue::U32(0))
            }
        }
    }

    /// The row-major linear index of the element: Horner's rule over the axes.
    fn linear(&mut self) -> ValueId {
        let mut sum = None;
        for (axis, &extent) in (0u8..).zip(self.space.dims().to_vec().iter()) {
            let own = self.ops.push(ExprOp::Index(axis));
            sum = Some(match sum {
                None => own,
                Some(outer) => {
                    let extent = self.ops.push(ExprOp::Const(ConstValue::U32(extent)));
                    let scaled = self.ops.push(ExprOp::Binary(BinaryOp::Mul, outer, extent));
                    self.ops.push(ExprOp::Binary(BinaryOp::Add, scaled, own))
                }
            });
        }
        sum.unwrap_or_else(|| self.ops.push(ExprOp::Const(ConstValue::U32(0))))
    }

    fn load(&mut self, tag: ProgramTag, place: Place, index: Option<&[Ix]>) -> ExprOp {
        let nothing = ExprOp::Const(ConstValue::F32(0.0));
        if !self.core.own(self.node, "a tensor of the expression", tag, self.origin) {
            return nothing;
        }
        let Place::View(view) = place else {
            self.core.fail(
                ProgramError::ShapeMismatch {
                    node: self.node.into(),
                    part: "a tensor of the expression".into(),
                    found: "a group".into(),
                    expected: "a buffer: a group is an argument for kernels".into(),
                },
                self.origin,
            );
            return nothing;
        };
        let index = match index {
            Some(index) => self.terms(index),
            None => self.broadcast(&view),
        };
        ExprOp::Load { view, index }
    }

    pub(super) fn terms(&mut self, index: &[Ix]) -> Vec<IndexTerm> {
        let term = |term: &Ix| match term {
            Ix::Axis(axis) => IndexTerm::Axis(*axis),
            Ix::Fixed(place) => IndexTerm::Fixed(*place),
            Ix::Value(value) => IndexTerm::Value(self.lower(value.node())),
        };
        index.iter().map(term).collect()
    }

    fn broadcast(&mut self, view: &View) -> Vec<IndexTerm> {
        let (shape, space) = (view.shape(), self.space);
        let terms = broadcast_terms(&shape, &space);
        if terms.is_none() {
            let part = format!("`{}`", self.core.program.buffers[view.buffer].name);
            self.core.fail(
                ProgramError::ShapeMismatch {
                    node: self.node.into(),
                    part,
                    found: shape.to_string(),
                    expected: format!("a shape that broadcasts to {space}"),
                },
                self.origin,
            );
        }
        terms.unwrap_or_else(|| vec![IndexTerm::Fixed(0); shape.rank()])
    }
}

/// The index terms by which a view of this shape broadcasts over an index space, right-aligned; `None` where it does not.
pub(crate) fn broadcast_terms(shape: &Shape, space: &Shape) -> Option<Vec<IndexTerm>> {
    let skip = space.rank().checked_sub(shape.rank())?;
    let axes = shape.dims().iter().zip(&space.dims()[skip..]).zip(skip..);
    axes.map(|((&dim, &extent), axis)| match dim {
        _ if dim == extent => u8::try_from(axis).ok().map(IndexTerm::Axis),
        1 => Some(IndexTerm::Fixed(0)),
        _ => None,
    })
    .collect()
}
