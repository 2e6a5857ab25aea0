//! Nodes: what a step does.

use super::dtype::ConstValue;
use super::expr::{Expr, IndexTerm};
use super::shape::{Shape, View};
use crate::entity::{GroupId, KernelId, NodeId, ScalarId};

/// One operation of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The user's name, unique in its step and variant; dumps show it behind the phase (`forward.h1`).
    pub name: String,
    /// What it does.
    pub op: NodeOp,
    /// Nodes that must finish first although no memory says so.
    pub after: Vec<NodeId>,
}

/// What a node does.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeOp {
    /// Launches a hand-written kernel.
    Kernel(KernelCall),
    /// A matrix product.
    Gemm(Gemm),
    /// Evaluates an expression at every element of an index space.
    Map(Map),
    /// Combines an expression's values along axes.
    Reduce(Reduce),
    /// Copies one view to another of the same shape and type.
    Copy {
        /// What is read.
        from: View,
        /// What is written.
        to: View,
    },
    /// Sets every element of a view.
    Fill {
        /// What is written.
        to: View,
        /// The value; its type is the buffer's (`F32` for `bf16`).
        value: ConstValue,
    },
    /// Runs one of two bodies.
    If {
        /// A `u32` cell; not 0 means true.
        condition: ScalarId,
        /// Runs where the condition holds; not empty.
        then_body: Vec<NodeId>,
        /// Runs where it does not; may be empty.
        else_body: Vec<NodeId>,
    },
    /// Runs the body that a selector names, or none.
    Switch {
        /// A `u32` cell: the index of the body; past the last one nothing runs.
        selector: ScalarId,
        /// The bodies; none is empty.
        bodies: Vec<Vec<NodeId>>,
    },
    /// Runs a body again and again, until a bound, a device flag or the host ends it.
    While {
        /// The most iterations.
        max: LoopBound,
        /// A device `u32` cell that counts iterations from 0; the loop writes it, bodies may read it.
        index: Option<ScalarId>,
        /// A device `u32` cell, written in the body: not 0 ends the loop after the iteration. Cleared at loop entry.
        until: Option<ScalarId>,
        /// Runs in each iteration; not empty.
        body: Vec<NodeId>,
    },
}

impl NodeOp {
    /// The operation's name, as dumps write it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Kernel(_) => "kernel",
            Self::Gemm(_) => "gemm",
            Self::Map(_) => "map",
            Self::Reduce(_) => "reduce",
            Self::Copy { .. } => "copy",
            Self::Fill { .. } => "fill",
            Self::If { .. } => "if",
            Self::Switch { .. } => "switch",
            Self::While { .. } => "while",
        }
    }

    /// The bodies of a conditional, in order; none for other nodes.
    pub fn bodies(&self) -> Vec<&[NodeId]> {
        match self {
            Self::If { then_body, else_body, .. } => vec![then_body, else_body],
            Self::Switch { bodies, .. } => bodies.iter().map(Vec::as_slice).collect(),
            Self::While { body, .. } => vec![body],
            _ => Vec::new(),
        }
    }
}

/// The most iterations of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoopBound {
    /// Baked into the graph.
    Const(u32),
    /// The present value of a `u32` cell when the loop starts.
    Scalar(ScalarId),
}

/// A call of a declared kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCall {
    /// The declaration.
    pub kernel: KernelId,
    /// One argument per parameter that is not a size, in declared order.
    pub args: Vec<Arg>,
}

/// An argument of a kernel call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A contiguous view.
    View(View),
    /// A whole group, as one flat array.
    Group(GroupId),
    /// A scalar cell.
    Scalar(ScalarId),
    /// A baked constant.
    Const(ConstValue),
}

impl Arg {
    /// What the argument is, in words.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::View(_) => "a buffer",
            Self::Group(_) => "a group",
            Self::Scalar(_) => "a scalar",
            Self::Const(_) => "a constant",
        }
    }
}

/// The arithmetic of a matrix product. Accumulation is in float32 always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compute {
    /// Full float32 products.
    F32,
    /// Operands rounded to TF32 (10 mantissa bits).
    Tf32,
    /// Operands rounded to bfloat16 (7 mantissa bits).
    Bf16,
}

impl Compute {
    /// Every compute type.
    pub const ALL: [Self; 3] = [Self::F32, Self::Tf32, Self::Bf16];

    /// The type's name, as specs write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
        }
    }
}

/// A matrix operand, transposed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// A view of rank 2.
    pub view: View,
    /// Whether the product takes its transpose.
    pub transposed: bool,
}

/// A factor that is baked or lives in a cell.
///
/// Compared by bits, as constants are: NaN equals itself.
#[derive(Clone, Copy, Debug)]
pub enum Factor {
    /// Baked into the node.
    Const(f32),
    /// The present value of a cell.
    Scalar(ScalarId),
}

impl PartialEq for Factor {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Const(a), Self::Const(b)) => a.to_bits() == b.to_bits(),
            (Self::Scalar(a), Self::Scalar(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Factor {}

/// `D = epilogue(α · op(A) · op(B) + β · C)`, where D is m × n, op(A) m × k, op(B) k × n and C m × n.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemm {
    /// The left operand.
    pub a: Operand,
    /// The right operand.
    pub b: Operand,
    /// The result. It may be the same view as C, and must not overlap A or B.
    pub d: View,
    /// α.
    pub alpha: Factor,
    /// β and C, where something is added.
    pub add: Option<(Factor, View)>,
    /// The arithmetic.
    pub compute: Compute,
    /// Over the index space [m, n], with [`ExprOp::Acc`](super::expr::ExprOp::Acc) for the product; one root, or none for
    /// the product itself.
    pub epilogue: Option<Expr>,
}

impl Gemm {
    /// m, n and k, as A and B give them; `None` unless both have rank 2.
    pub fn dims(&self) -> Option<(u32, u32, u32)> {
        let (a, b) = (self.a.view.shape(), self.b.view.shape());
        let (&[a0, a1], &[b0, b1]) = (a.dims(), b.dims()) else { return None };
        let (m, k) = if self.a.transposed { (a1, a0) } else { (a0, a1) };
        Some((m, if self.b.transposed { b0 } else { b1 }, k))
    }

    /// The shape that D has when the product declares it: m × n, with 1 for what an operand that is no matrix lacks.
    pub fn product_shape(&self) -> Shape {
        Self::shape_of(&self.a, &self.b)
    }

    /// The shape of the product of two operands, as in [`Gemm::product_shape`].
    pub fn shape_of(a: &Operand, b: &Operand) -> Shape {
        let extent = |operand: &Operand, axis: usize| operand.view.shape().dims().get(axis).copied().unwrap_or(1);
        let (m, n) = (extent(a, usize::from(a.transposed)), extent(b, usize::from(!b.transposed)));
        Shape::new(&[m, n]).unwrap_or_default()
    }
}

/// Where a result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A view; its shape is the index space's, unless the store is scattered.
    View(View),
    /// A device scalar; the index space must have one element.
    Scalar(ScalarId),
}

/// What a scattered store promises about elements that meet in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScatterRule {
    /// No two elements have the same place. The host executor checks it.
    Unique,
    /// Elements with the same place store the same value. The host executor checks it.
    SameValue,
}

impl ScatterRule {
    /// Every rule.
    pub const ALL: [Self; 2] = [Self::Unique, Self::SameValue];

    /// The rule's name, as specs write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unique => "unique",
            Self::SameValue => "same_value",
        }
    }
}

/// A store to computed places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scatter {
    /// One term per axis of the target view.
    pub index: Vec<IndexTerm>,
    /// What happens where places meet; a scattered store without a rule is an error.
    pub rule: Option<ScatterRule>,
}

/// One result of a map or reduction.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    /// Where it goes.
    pub target: Target,
    /// The places, where they are computed. Its values are roots of the expression.
    pub scatter: Option<Scatter>,
}

/// Evaluates an expression at every element of an index space.
///
/// The expression's first `stores.len()` roots are the stored values, in order; further roots are places of scattered
/// stores. Every load of an element happens before any store of the same element; a buffer that is written may be read only
/// at the element's own place.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// The index space.
    pub space: Shape,
    /// What is evaluated.
    pub expr: Expr,
    /// Where the results go; at least one.
    pub stores: Vec<Store>,
}

/// How a reduction combines values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combiner {
    /// The sum; `f32`, `i32` or `u32`.
    Sum,
    /// The largest; NaN if any is NaN.
    Max,
    /// The index of the largest along the one reduced axis, as `u32`: the first on a tie; NaN never wins.
    Argmax,
    /// ln Σ eˣ, with the maximum subtracted. `f32` only.
    LogSumExp,
}

impl Combiner {
    /// Every combiner.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Max, Self::Argmax, Self::LogSumExp];

    /// The combiner's name, as specs and dumps write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Argmax => "argmax",
            Self::LogSumExp => "logsumexp",
        }
    }
}

/// Combines an expression's values along axes of an index space, then finishes each result.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// The index space, reduced axes included.
    pub space: Shape,
    /// The axes that are combined, ascending; at least one.
    pub axes: Vec<u8>,
    /// How values are combined.
    pub combiner: Combiner,
    /// What is combined; one root.
    pub expr: Expr,
    /// Over the kept axes, with [`ExprOp::Acc`](super::expr::ExprOp::Acc) for the combined value; roots as in [`Map`].
    pub finish: Expr,
    /// Where the results go; at least one.
    pub stores: Vec<Store>,
}

impl Reduce {
    /// The index space of the results: the axes that are not combined.
    pub fn kept(&self) -> Shape {
        self.space.without(|axis| self.axes.iter().any(|&reduced| usize::from(reduced) == axis))
    }

    /// How many values each result combines.
    pub fn count(&self) -> u64 {
        self.space.elements() / self.kept().elements().max(1)
    }
}
