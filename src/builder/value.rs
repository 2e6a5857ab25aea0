//! Values inside expressions, with the operators that users expect.
//!
//! A [`Val`] is cheap to clone. Tensors, scalars and numbers turn into values where an operator needs one; a tensor
//! stands for its element at the present place of the index space, broadcast as in NumPy (right-aligned, extents of 1 stretch).

use std::marker::PhantomData;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};
use std::rc::Rc;

use crate::handle::{Place, ProgramTag, Scalar, Tensor};
use crate::ir::{BinaryOp, CompareOp, ConstValue, Element, MAX_DEPTH, ScalarElement, UnaryOp, ValueType};

/// A value of an expression: `T` is `f32`, `i32`, `u32` or `bool`.
///
/// Operations lie at most 1000 deep in each other. Where a value would be deeper, its operands are let go, and the node that uses
/// it is reported: whatever a user builds, nothing recurses further than that.
pub struct Val<T> {
    node: Rc<Node>,
    /// Operations between here and the deepest leaf.
    depth: u32,
    kind: PhantomData<T>,
}

impl<T> Clone for Val<T> {
    fn clone(&self) -> Self {
        Self { node: Rc::clone(&self.node), depth: self.depth, kind: PhantomData }
    }
}

impl<T> std::fmt::Debug for Val<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.node)
    }
}

#[derive(Debug)]
pub(super) enum Node {
    Const(ConstValue),
    Index(u8),
    Scalar(ProgramTag, crate::entity::ScalarId),
    /// Without an index the load broadcasts.
    Load {
        tag: ProgramTag,
        place: Place,
        index: Option<Vec<Ix>>,
    },
    Acc,
    Unary(UnaryOp, Rc<Node>),
    Binary(BinaryOp, Rc<Node>, Rc<Node>),
    Compare(CompareOp, Rc<Node>, Rc<Node>),
    Select(Rc<Node>, Rc<Node>, Rc<Node>),
    Cast(ValueType, Rc<Node>),
    Philox {
        key: Rc<Node>,
        counter: Rc<Node>,
        element: Rc<Node>,
        stream: u32,
        word: u8,
    },
    /// The element's linear index in the index space.
    Linear,
    /// Stands for an operation that would be this deep.
    TooDeep(u32),
}

/// Where a load or scattered store goes along one axis.
#[derive(Clone, Debug)]
pub enum Ix {
    /// The element's own coordinate along this axis of the index space.
    Axis(u8),
    /// A fixed place.
    Fixed(u32),
    /// A computed place.
    Value(Val<u32>),
}

impl From<u32> for Ix {
    fn from(place: u32) -> Self {
        Self::Fixed(place)
    }
}

impl From<Val<u32>> for Ix {
    fn from(place: Val<u32>) -> Self {
        Self::Value(place)
    }
}

impl From<&Val<u32>> for Ix {
    fn from(place: &Val<u32>) -> Self {
        Self::Value(place.clone())
    }
}

/// The coordinate along an axis of the index space, as an index.
pub const fn axis(axis: u8) -> Ix {
    Ix::Axis(axis)
}

/// What can stand as a value of type `T` in an expression.
pub trait IntoVal<T> {
    /// The value.
    fn into_val(self) -> Val<T>;
}

impl<T> IntoVal<T> for Val<T> {
    fn into_val(self) -> Val<T> {
        self
    }
}

impl<T> IntoVal<T> for &Val<T> {
    fn into_val(self) -> Val<T> {
        self.clone()
    }
}

impl<E: Element> IntoVal<E::Value> for Tensor<E> {
    fn into_val(self) -> Val<E::Value> {
        Val::new(Node::Load { tag: self.tag, place: self.place, index: None })
    }
}

impl<T: ScalarElement> IntoVal<T> for Scalar<T> {
    fn into_val(self) -> Val<T> {
        Val::new(Node::Scalar(self.tag, self.id))
    }
}

macro_rules! literals {
    ($($type:ty),*) => {$(
        impl IntoVal<$type> for $type {
            fn into_val(self) -> Val<$type> {
                Val::new(Node::Const(self.to_const()))
            }
        }
    )*};
}

literals!(f32, i32, u32);

impl<T> Val<T> {
    fn new(node: Node) -> Self {
        Self { node: Rc::new(node), depth: 0, kind: PhantomData }
    }

    /// An operation over operands of which the deepest has this depth.
    fn over(deepest: u32, node: Node) -> Self {
        let depth = deepest.saturating_add(1);
        let node = if depth > MAX_DEPTH { Node::TooDeep(depth) } else { node };
        Self { node: Rc::new(node), depth, kind: PhantomData }
    }

    fn unary<R>(&self, op: UnaryOp) -> Val<R> {
        Val::over(self.depth, Node::Unary(op, Rc::clone(&self.node)))
    }

    fn binary(&self, op: BinaryOp, other: impl IntoVal<T>) -> Self {
        let other = other.into_val();
        Self::over(self.depth.max(other.depth), Node::Binary(op, Rc::clone(&self.node), other.node))
    }

    fn compare(&self, op: CompareOp, other: impl IntoVal<T>) -> Val<bool> {
        let other = other.into_val();
        Val::over(self.depth.max(other.depth), Node::Compare(op, Rc::clone(&self.node), other.node))
    }

    fn cast<R>(&self, to: ValueType) -> Val<R> {
        Val::over(self.depth, Node::Cast(to, Rc::clone(&self.node)))
    }

    /// The value that the surrounding node computed.
    pub(super) fn acc() -> Self {
        Self::new(Node::Acc)
    }

    pub(super) fn node(&self) -> &Rc<Node> {
        &self.node
    }

    /// Whether both are equal.
    pub fn equal(&self, other: impl IntoVal<T>) -> Val<bool> {
        self.compare(CompareOp::Eq, other)
    }

    /// Whether both differ.
    pub fn not_equal(&self, other: impl IntoVal<T>) -> Val<bool> {
        self.compare(CompareOp::Ne, other)
    }
}

impl<T: ScalarElement> Val<T> {
    /// Whether this is below the other.
    pub fn below(&self, other: impl IntoVal<T>) -> Val<bool> {
        self.compare(CompareOp::Lt, other)
    }

    /// Whether this is at most the other.
    pub fn at_most(&self, other: impl IntoVal<T>) -> Val<bool> {
        self.compare(CompareOp::Le, other)
    }

    /// Whether this is above the other.
    pub fn above(&self, other: impl IntoVal<T>) -> Val<bool> {
        self.compare(CompareOp::Gt, other)
    }

    /// Whether this is at least the other.
    pub fn at_least(&self, other: impl IntoVal<T>) -> Val<bool> {
        self.compare(CompareOp::Ge, other)
    }

    /// The smaller of both; NaN if either is.
    #[must_use]
    pub fn min(&self, other: impl IntoVal<T>) -> Self {
        self.binary(BinaryOp::Min, other)
    }

    /// The larger of both; NaN if either is.
    #[must_use]
    pub fn max(&self, other: impl IntoVal<T>) -> Self {
        self.binary(BinaryOp::Max, other)
    }

    /// The absolute value.
    #[must_use]
    pub fn abs(&self) -> Self {
        self.unary(UnaryOp::Abs)
    }

    /// The value as `f32`.
    pub fn to_f32(&self) -> Val<f32> {
        self.cast(ValueType::F32)
    }

    /// The value as `i32`: rounded towards zero, saturating.
    pub fn to_i32(&self) -> Val<i32> {
        self.cast(ValueType::I32)
    }

    /// The value as `u32`: rounded towards zero, saturating.
    pub fn to_u32(&self) -> Val<u32> {
        self.cast(ValueType::U32)
    }
}

macro_rules! float_functions {
    ($($(#[$doc:meta])* $name:ident = $op:ident;)*) => {
        impl Val<f32> {$(
            $(#[$doc])*
            #[must_use]
            pub fn $name(&self) -> Self {
                self.unary(UnaryOp::$op)
            }
        )*}
    };
}

float_functions! {
    /// eˣ.
    exp = Exp;
    /// ln x.
    log = Log;
    /// eˣ - 1, accurate near 0.
    expm1 = Expm1;
    /// ln(1 + x), accurate near 0.
    log1p = Log1p;
    /// √x.
    sqrt = Sqrt;
    /// tanh x.
    tanh = Tanh;
    /// 1 / (1 + e⁻ˣ).
    sigmoid = Sigmoid;
    /// 0 where x ≤ 0, else x; NaN stays NaN.
    relu = Relu;
    /// sin x, x in radians.
    sin = Sin;
    /// cos x, x in radians.
    cos = Cos;
    /// The largest integer not above x.
    floor = Floor;
}

impl Val<f32> {
    /// Whether the value is neither NaN nor infinite.
    pub fn is_finite(&self) -> Val<bool> {
        self.unary(UnaryOp::IsFinite)
    }

    /// The value to this power.
    #[must_use]
    pub fn pow(&self, exponent: impl IntoVal<f32>) -> Self {
        self.binary(BinaryOp::Pow, exponent)
    }
}

impl Val<bool> {
    /// `if_true` where this holds, else `if_false`.
    pub fn select<T>(&self, if_true: impl IntoVal<T>, if_false: impl IntoVal<T>) -> Val<T> {
        let (if_true, if_false) = (if_true.into_val(), if_false.into_val());
        let deepest = self.depth.max(if_true.depth).max(if_false.depth);
        Val::over(deepest, Node::Select(Rc::clone(&self.node), if_true.node, if_false.node))
    }

    /// 1 where this holds, else 0.
    pub fn to_f32(&self) -> Val<f32> {
        self.cast(ValueType::F32)
    }

    /// 1 where this holds, else 0.
    pub fn to_u32(&self) -> Val<u32> {
        self.cast(ValueType::U32)
    }
}

impl Val<u32> {
    /// The element's coordinate along an axis of the index space.
    pub fn index(axis: u8) -> Self {
        Self::new(Node::Index(axis))
    }
}

/// One word of Philox-4x32-10; see [`ExprOp::Philox`](crate::ir::ExprOp::Philox) for the key and counter.
///
/// `word` is taken modulo 4.
pub fn philox(
    key: impl IntoVal<u32>,
    counter: impl IntoVal<u32>,
    element: impl IntoVal<u32>,
    stream: u32,
    word: u8,
) -> Val<u32> {
    let (key, counter, element) = (key.into_val(), counter.into_val(), element.into_val());
    let deepest = key.depth.max(counter.depth).max(element.depth);
    let (key, counter, element) = (key.node, counter.node, element.node);
    Val::over(deepest, Node::Philox { key, counter, element, stream, word: word % 4 })
}

/// A uniform number in [0, 1) for every element of the index space: the top 24 bits of a Philox word times 2⁻²⁴.
pub fn uniform(key: impl IntoVal<u32>, counter: impl IntoVal<u32>, stream: u32) -> Val<f32> {
    unit(&philox(key, counter, Val::new(Node::Linear), stream, 0))
}

/// A standard normal number for every element of the index space, by Box and Muller (1958) from two Philox words.
pub fn normal(key: impl IntoVal<u32>, counter: impl IntoVal<u32>, stream: u32) -> Val<f32> {
    let (key, counter) = (key.into_val(), counter.into_val());
    let word = |word| philox(&key, &counter, Val::new(Node::Linear), stream, word);
    let radius = ((1.0f32 - unit(&word(0))).log() * -2.0f32).sqrt();
    radius * (unit(&word(1)) * std::f32::consts::TAU).cos()
}

/// The top 24 bits of a word as a number in [0, 1).
fn unit(word: &Val<u32>) -> Val<f32> {
    const TWO_TO_MINUS_24: f32 = 1.0 / 16_777_216.0;
    (word.clone() >> 8u32).to_f32() * TWO_TO_MINUS_24
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident [$($number:ty),*];)*) => {$(
        impl<T, R: IntoVal<T>> $trait<R> for Val<T> {
            type Output = Val<T>;
            fn $method(self, other: R) -> Val<T> {
                self.binary(BinaryOp::$op, other)
            }
        }

        impl<T, R: IntoVal<T>> $trait<R> for &Val<T> {
            type Output = Val<T>;
            fn $method(self, other: R) -> Val<T> {
                self.binary(BinaryOp::$op, other)
            }
        }

        impl<E: Element, R: IntoVal<E::Value>> $trait<R> for Tensor<E> {
            type Output = Val<E::Value>;
            fn $method(self, other: R) -> Val<E::Value> {
                self.into_val().binary(BinaryOp::$op, other)
            }
        }

        impl<T: ScalarElement, R: IntoVal<T>> $trait<R> for Scalar<T> {
            type Output = Val<T>;
            fn $method(self, other: R) -> Val<T> {
                self.into_val().binary(BinaryOp::$op, other)
            }
        }

        $(operators!(@number $trait $method $op $number: Val<$number>, &Val<$number>, Tensor<$number>, Scalar<$number>);)*
    )*};
    (@number $trait:ident $method:ident $op:ident $number:ty: $($right:ty),*) => {$(
        impl $trait<$right> for $number {
            type Output = Val<$number>;
            fn $method(self, other: $right) -> Val<$number> {
                self.into_val().binary(BinaryOp::$op, other)
            }
        }
    )*};
}

operators! {
    Add add Add [f32, i32, u32];
    Sub sub Sub [f32, i32, u32];
    Mul mul Mul [f32, i32, u32];
    Div div Div [f32, i32, u32];
    Rem rem Rem [f32, i32, u32];
    BitAnd bitand And [];
    BitOr bitor Or [];
    BitXor bitxor Xor [];
    Shl shl Shl [];
    Shr shr Shr [];
}

impl<T> Neg for Val<T> {
    type Output = Self;
    fn neg(self) -> Self {
        self.unary(UnaryOp::Neg)
    }
}

impl<T> Not for Val<T> {
    type Output = Self;
    fn not(self) -> Self {
        self.unary(UnaryOp::Not)
    }
}

impl<E: Element> Tensor<E> {
    /// The element at a computed place: one index per axis of the tensor's shape.
    pub fn at<const N: usize>(self, index: [Ix; N]) -> Val<E::Value> {
        let deepest = index.iter().filter_map(|term| match term {
            Ix::Value(value) => Some(value.depth),
            Ix::Axis(_) | Ix::Fixed(_) => None,
        });
        let deepest = deepest.max();
        let node = Node::Load { tag: self.tag, place: self.place, index: Some(index.to_vec()) };
        match deepest {
            Some(deepest) => Val::over(deepest, node),
            None => Val::new(node),
        }
    }

    /// The element at the present place, as a value.
    pub fn val(self) -> Val<E::Value> {
        self.into_val()
    }
}

impl<T: ScalarElement> Scalar<T> {
    /// The cell's present contents, as a value.
    pub fn val(self) -> Val<T> {
        self.into_val()
    }
}
