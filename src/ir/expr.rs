//! Element-wise expressions: a flat list of operations in single-assignment form.
//!
//! An expression is evaluated once per element of an index space. It is always in *normal form*: operations are numbered
//! by a depth-first walk from the roots, equal operations are one value, and nothing is unreachable. So two ways of writing
//! the same expression are equal, and the Rust API and a spec can be compared.

use rustc_hash::FxHashMap;

use super::dtype::{ConstValue, DType};
use super::shape::View;
use crate::entity::{EntityRef, PrimaryMap, ScalarId, SecondaryMap, ValueId};

/// How deep operations can lie in each other, so that later stages may recurse.
pub const MAX_DEPTH: u32 = 1000;

/// The type of a value inside an expression. `bf16` elements are `F32` here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// A float.
    F32,
    /// A signed integer.
    I32,
    /// An unsigned integer.
    U32,
    /// A truth value.
    Bool,
}

impl ValueType {
    /// The type that an element has once it is loaded.
    pub const fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::Bf16 => Self::F32,
            DType::I32 => Self::I32,
            DType::U32 => Self::U32,
        }
    }

    /// The type's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::Bool => "bool",
        }
    }
}

/// How a load or a scattered store picks its place along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexTerm {
    /// The element's own coordinate along this axis of the index space.
    Axis(u8),
    /// A fixed place; 0 broadcasts an axis of extent 1.
    Fixed(u32),
    /// A computed `u32` or `i32` value. A load clamps it to the view; a scattered store outside the view is skipped.
    Value(ValueId),
}

/// Operations of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnaryOp {
    /// -x; integers wrap.
    Neg,
    /// |x|; `i32::MIN` stays itself.
    Abs,
    /// eˣ.
    Exp,
    /// ln x.
    Log,
    /// eˣ - 1, accurate near 0.
    Expm1,
    /// ln(1 + x), accurate near 0.
    Log1p,
    /// √x, correctly rounded.
    Sqrt,
    /// tanh x.
    Tanh,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// 0 where x ≤ 0, else x: NaN stays NaN, as in the matrix library's epilogue.
    Relu,
    /// sin x, x in radians.
    Sin,
    /// cos x, x in radians.
    Cos,
    /// The largest integer not above x.
    Floor,
    /// Whether x is neither NaN nor infinite.
    IsFinite,
    /// Logical not of a truth value, bitwise not of an integer.
    Not,
}

impl UnaryOp {
    /// Every operation with the name that specs and dumps use.
    pub const ALL: [(Self, &'static str); 15] = [
        (Self::Neg, "neg"),
        (Self::Abs, "abs"),
        (Self::Exp, "exp"),
        (Self::Log, "log"),
        (Self::Expm1, "expm1"),
        (Self::Log1p, "log1p"),
        (Self::Sqrt, "sqrt"),
        (Self::Tanh, "tanh"),
        (Self::Sigmoid, "sigmoid"),
        (Self::Relu, "relu"),
        (Self::Sin, "sin"),
        (Self::Cos, "cos"),
        (Self::Floor, "floor"),
        (Self::IsFinite, "is_finite"),
        (Self::Not, "not"),
    ];

    /// The operation's name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(op, _)| *op == self).map_or("", |(_, name)| name)
    }
}

/// Operations of two operands of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BinaryOp {
    /// a + b; integers wrap.
    Add,
    /// a - b; integers wrap.
    Sub,
    /// a · b; integers wrap.
    Mul,
    /// a / b; integers round towards zero, and give 0 where b is 0.
    Div,
    /// The remainder of [`BinaryOp::Div`] with the sign of a; 0 where b is 0.
    Rem,
    /// The smaller one, a where they are equal (so also for zeros of either sign); NaN if either is NaN.
    Min,
    /// The larger one, a where they are equal (so also for zeros of either sign); NaN if either is NaN.
    Max,
    /// aᵇ. Floats only.
    Pow,
    /// Bitwise, or logical, and.
    And,
    /// Bitwise, or logical, or.
    Or,
    /// Bitwise, or logical, exclusive or.
    Xor,
    /// Shift left by `b mod 32`. Integers only.
    Shl,
    /// Shift right by `b mod 32`; arithmetic for `i32`. Integers only.
    Shr,
}

impl BinaryOp {
    /// Every operation with the name that specs and dumps use.
    pub const ALL: [(Self, &'static str); 13] = [
        (Self::Add, "add"),
        (Self::Sub, "sub"),
        (Self::Mul, "mul"),
        (Self::Div, "div"),
        (Self::Rem, "rem"),
        (Self::Min, "min"),
        (Self::Max, "max"),
        (Self::Pow, "pow"),
        (Self::And, "and"),
        (Self::Or, "or"),
        (Self::Xor, "xor"),
        (Self::Shl, "shl"),
        (Self::Shr, "shr"),
    ];

    /// The operation's name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(op, _)| *op == self).map_or("", |(_, name)| name)
    }
}

/// Comparisons of two operands of one type; every one but `Ne` is false when an operand is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CompareOp {
    /// a = b.
    Eq,
    /// a ≠ b.
    Ne,
    /// a < b.
    Lt,
    /// a ≤ b.
    Le,
    /// a > b.
    Gt,
    /// a ≥ b.
    Ge,
}

impl CompareOp {
    /// Every comparison with its symbol.
    pub const ALL: [(Self, &'static str); 6] =
        [(Self::Eq, "=="), (Self::Ne, "!="), (Self::Lt, "<"), (Self::Le, "<="), (Self::Gt, ">"), (Self::Ge, ">=")];

    /// The comparison's symbol.
    pub fn symbol(self) -> &'static str {
        Self::ALL.iter().find(|(op, _)| *op == self).map_or("", |(_, symbol)| symbol)
    }
}

/// One operation. Operands are earlier values of the same expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ExprOp {
    /// A constant of the expression itself; it is part of the program's text.
    Const(ConstValue),
    /// The element's coordinate along an axis of the index space, as `u32`.
    Index(u8),
    /// The present value of a scalar cell.
    Scalar(ScalarId),
    /// An element of a buffer: one index term per axis of the view's shape.
    Load {
        /// The box that is read.
        view: View,
        /// Where in the box.
        index: Vec<IndexTerm>,
    },
    /// The value that the surrounding node computed: the accumulator of a GEMM's epilogue, the result of a reduction.
    Acc,
    /// An operation of one operand.
    Unary(UnaryOp, ValueId),
    /// An operation of two operands of one type.
    Binary(BinaryOp, ValueId, ValueId),
    /// A comparison, giving a truth value.
    Compare(CompareOp, ValueId, ValueId),
    /// `if_true` where `condition` holds, else `if_false`; both are evaluated, neither is multiplied by anything.
    Select {
        /// A truth value.
        condition: ValueId,
        /// The result where it holds.
        if_true: ValueId,
        /// The result where it does not.
        if_false: ValueId,
    },
    /// Conversion. Float to integer rounds towards zero, saturates, and gives 0 for NaN; bool gives 0 or 1.
    Cast(ValueType, ValueId),
    /// One word of Philox-4x32-10 (Salmon et al., SC 2011) as `u32`: key `[key, stream]`, counter `[element, counter, 0, 0]`.
    Philox {
        /// The run's seed (`u32`).
        key: ValueId,
        /// A quantity that differs at every launch (`u32`), usually a device counter.
        counter: ValueId,
        /// A quantity that differs between elements (`u32`), usually the element's linear index.
        element: ValueId,
        /// Separates independent uses of one key.
        stream: u32,
        /// Which of the four words, 0 to 3.
        word: u8,
    },
}

impl ExprOp {
    /// Calls `visit` with each operand, in order.
    pub fn operands(&self, mut visit: impl FnMut(ValueId)) {
        let fixed = match self {
            Self::Const(_) | Self::Index(_) | Self::Scalar(_) | Self::Acc => [None; 3],
            Self::Load { index, .. } => {
                return index.iter().for_each(|term| {
                    if let IndexTerm::Value(value) = term {
                        visit(*value)
                    }
                });
            }
            Self::Unary(_, x) | Self::Cast(_, x) => [Some(x), None, None],
            Self::Binary(_, a, b) | Self::Compare(_, a, b) => [Some(a), Some(b), None],
            Self::Select { condition, if_true, if_false } => [Some(condition), Some(if_true), Some(if_false)],
            Self::Philox { key, counter, element, .. } => [Some(key), Some(counter), Some(element)],
        };
        fixed.into_iter().flatten().for_each(|value| visit(*value));
    }

    fn map_operands(mut self, map: impl Fn(ValueId) -> ValueId) -> Self {
        let fixed = match &mut self {
            Self::Const(_) | Self::Index(_) | Self::Scalar(_) | Self::Acc => [None, None, None],
            Self::Load { index, .. } => {
                for term in index {
                    if let IndexTerm::Value(value) = term {
                        *value = map(*value);
                    }
                }
                [None, None, None]
            }
            Self::Unary(_, x) | Self::Cast(_, x) => [Some(x), None, None],
            Self::Binary(_, a, b) | Self::Compare(_, a, b) => [Some(a), Some(b), None],
            Self::Select { condition, if_true, if_false } => [Some(condition), Some(if_true), Some(if_false)],
            Self::Philox { key, counter, element, .. } => [Some(key), Some(counter), Some(element)],
        };
        fixed.into_iter().flatten().for_each(|value| *value = map(*value));
        self
    }
}

/// An expression in normal form, with one root per result.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Expr {
    ops: PrimaryMap<ValueId, ExprOp>,
    roots: Vec<ValueId>,
}

impl Expr {
    /// The normal form of `ops` as seen from `roots`. Operands must be earlier values, as [`ExprBuilder`] ensures.
    pub fn new(ops: &PrimaryMap<ValueId, ExprOp>, roots: &[ValueId]) -> Self {
        let mut normal =
            Normaliser { from: ops, known: FxHashMap::default(), renamed: SecondaryMap::new(), expr: Self::default() };
        let roots: Vec<_> = roots.iter().map(|&root| normal.rename(root)).collect();
        Self { roots, ..normal.expr }
    }

    /// The operations; operands precede their users.
    pub fn ops(&self) -> &PrimaryMap<ValueId, ExprOp> {
        &self.ops
    }

    /// The results, in the order in which the expression was given them.
    pub fn roots(&self) -> &[ValueId] {
        &self.roots
    }

    /// How often each value is used, roots included.
    pub fn uses(&self) -> SecondaryMap<ValueId, u32> {
        let mut uses = SecondaryMap::new();
        self.ops.values().for_each(|op| op.operands(|value| uses[value] += 1));
        self.roots.iter().for_each(|&root| uses[root] += 1);
        uses
    }
}

struct Normaliser<'a> {
    from: &'a PrimaryMap<ValueId, ExprOp>,
    known: FxHashMap<ExprOp, ValueId>,
    renamed: SecondaryMap<ValueId, Option<ValueId>>,
    expr: Expr,
}

impl Normaliser<'_> {
    /// The new name of `root`, after everything that it needs. The walk keeps its own stack: an expression can be deep.
    fn rename(&mut self, root: ValueId) -> ValueId {
        let mut stack = vec![(root, false)];
        while let Some((value, operands_done)) = stack.pop() {
            if self.renamed[value].is_some() {
                continue;
            }
            let op = &self.from[value];
            if operands_done {
                let op = op.clone().map_operands(|operand| self.renamed[operand].unwrap_or(operand));
                let name = *self.known.entry(op.clone()).or_insert_with(|| self.expr.ops.push(op));
                self.renamed[value] = Some(name);
            } else {
                stack.push((value, true));
                let at = stack.len();
                op.operands(|operand| stack.push((operand, false)));
                stack[at..].reverse();
            }
        }
        self.renamed[root].unwrap_or_else(|| ValueId::new(0))
    }
}

/// Collects operations, each after its operands, and makes them an [`Expr`].
#[derive(Clone, Debug, Default)]
pub struct ExprBuilder {
    ops: PrimaryMap<ValueId, ExprOp>,
}

impl ExprBuilder {
    /// An empty expression.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an operation.
    ///
    /// # Panics
    /// If an operand does not come from this builder.
    pub fn push(&mut self, op: ExprOp) -> ValueId {
        op.operands(|value| assert!(self.ops.is_valid(value), "operand {value} is not part of this expression"));
        self.ops.push(op)
    }

    /// The operation that gave `value`.
    pub fn op(&self, value: ValueId) -> Option<&ExprOp> {
        self.ops.get(value)
    }

    /// The normal form as seen from `roots`.
    pub fn finish(&self, roots: &[ValueId]) -> Expr {
        Expr::new(&self.ops, roots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: two spellings of one expression are equal, whatever the order in which their parts were made.
    #[test]
    fn normal_form_forgets_order_duplicates_and_dead_values() {
        let mut a = ExprBuilder::new();
        let (x, y) = (a.push(ExprOp::Index(0)), a.push(ExprOp::Index(1)));
        let sum = a.push(ExprOp::Binary(BinaryOp::Add, x, y));
        let square = a.push(ExprOp::Binary(BinaryOp::Mul, sum, sum));

        let mut b = ExprBuilder::new();
        let (y, x) = (b.push(ExprOp::Index(1)), b.push(ExprOp::Index(0)));
        let dead = b.push(ExprOp::Unary(UnaryOp::Not, y));
        let (left, right) = (b.push(ExprOp::Binary(BinaryOp::Add, x, y)), b.push(ExprOp::Binary(BinaryOp::Add, x, y)));
        let product = b.push(ExprOp::Binary(BinaryOp::Mul, left, right));

        assert_eq!(a.finish(&[square]), b.finish(&[product]));
        assert_ne!(a.finish(&[square]), b.finish(&[product, dead]));
        assert_eq!(a.finish(&[square]).ops().len(), 4);
    }
}
