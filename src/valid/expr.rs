//! Expressions: every operation gets operands that it has a meaning for, and every place is inside its view.

use super::report::{Site, quoted};
use crate::entity::{PrimaryMap, SecondaryMap, ValueId};
use crate::ir::{
    BinaryOp, CompareOp, Expr, ExprOp, IndexTerm, MAX_DEPTH, ProgramError, Shape, UnaryOp, ValueType, View,
};

use ValueType::{Bool, F32, I32, U32};

/// Where an expression stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The part of the node: `expr`, `finish` or `epilogue`.
    pub(super) part: &'static str,
    /// The index space.
    pub(super) space: Shape,
    /// The type of `acc`, where it has a meaning.
    pub(super) acc: Option<ValueType>,
}

/// The type of each value; a value that makes no sense, or stands on one, has none, and was reported.
pub(super) type Types = SecondaryMap<ValueId, Option<ValueType>>;

/// Checks an expression.
pub(super) fn check(site: &mut Site<'_, '_>, expr: &Expr, place: Place) -> Types {
    let mut checker = Checker { site, place, types: Types::with_capacity(expr.ops().len()) };
    let mut depths: SecondaryMap<ValueId, u32> = SecondaryMap::with_capacity(expr.ops().len());
    let mut deepest = 0;
    for (value, op) in expr.ops().iter() {
        let mut depth = 0;
        let mut in_order = true;
        op.operands(|operand| {
            in_order &= operand < value;
            depth = depth.max(depths[operand] + 1);
        });
        depths[value] = depth;
        deepest = deepest.max(depth);
        checker.types[value] = if in_order { checker.op(op) } else { checker.out_of_order(op) };
    }
    let types = checker.types;
    if deepest > MAX_DEPTH {
        let part = place.part;
        site.fail(part, |node| ProgramError::ExprTooDeep { node, part, found: deepest });
    }
    types
}

/// The types as a plain map, where every value has one.
pub(super) fn complete(expr: &Expr, types: &Types) -> Option<PrimaryMap<ValueId, ValueType>> {
    expr.ops().keys().map(|value| types[value]).collect()
}

struct Checker<'s, 'r, 'a> {
    site: &'s mut Site<'r, 'a>,
    place: Place,
    types: Types,
}

impl Checker<'_, '_, '_> {
    fn op(&mut self, op: &ExprOp) -> Option<ValueType> {
        match op {
            ExprOp::Const(constant) => Some(ValueType::of(constant.dtype())),
            ExprOp::Index(axis) => self.index(*axis),
            ExprOp::Scalar(scalar) => {
                let scalar = self.site.scalar(self.place.part, *scalar)?;
                Some(ValueType::of(scalar.init.dtype()))
            }
            ExprOp::Load { view, index } => self.load(*view, index),
            ExprOp::Acc => self.acc(),
            ExprOp::Unary(op, x) => self.unary(*op, *x),
            ExprOp::Binary(op, a, b) => self.binary(*op, *a, *b),
            ExprOp::Compare(op, a, b) => self.compare(*op, *a, *b),
            ExprOp::Select { condition, if_true, if_false } => self.select(*condition, *if_true, *if_false),
            ExprOp::Cast(to, x) => self.cast(*to, *x),
            ExprOp::Philox { key, counter, element, word, .. } => self.philox([*key, *counter, *element], *word),
        }
    }

    fn index(&mut self, axis: u8) -> Option<ValueType> {
        if usize::from(axis) >= self.place.space.rank() {
            self.bad_index("an index".into(), format!("axis {axis}"), format!("an axis of {}", self.place.space));
        }
        Some(U32)
    }

    fn load(&mut self, view: View, index: &[IndexTerm]) -> Option<ValueType> {
        let part = self.place.part;
        let what = match self.site.program.buffers.get(view.buffer) {
            Some(buffer) => quoted(&buffer.name),
            None => view.buffer.to_string(),
        };
        let viewed = self.site.view(part, &what, view)?;
        let types = &self.types;
        check_index(self.site, part, &what, index, &viewed.shape, &self.place.space, |value| types[value]);
        Some(ValueType::of(viewed.dtype))
    }

    fn acc(&mut self) -> Option<ValueType> {
        if self.place.acc.is_none() {
            self.site.fail(self.place.part, |node| ProgramError::AccOutside { node });
        }
        self.place.acc
    }

    fn unary(&mut self, op: UnaryOp, x: ValueId) -> Option<ValueType> {
        let of = self.types[x]?;
        let (fits, expected) = match op {
            UnaryOp::Neg | UnaryOp::Abs => (of != Bool, "it takes f32, i32 or u32"),
            UnaryOp::Not => (of != F32, "it takes bool, i32 or u32"),
            UnaryOp::IsFinite => (of == F32, "it takes f32"),
            _ => (of == F32, "it takes f32: cast first"),
        };
        self.meaning(fits, op.name(), &[of], expected)?;
        Some(if op == UnaryOp::IsFinite { Bool } else { of })
    }

    fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> Option<ValueType> {
        let (a, b) = (self.types[a]?, self.types[b]?);
        self.meaning(a == b, op.name(), &[a, b], "both operands must have one type: cast one")?;
        let (fits, expected) = match op {
            BinaryOp::Pow => (a == F32, "it takes f32: cast first"),
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => (a != F32, "it takes bool, i32 or u32"),
            BinaryOp::Shl | BinaryOp::Shr => (matches!(a, I32 | U32), "it takes i32 or u32"),
            _ => (a != Bool, "it takes f32, i32 or u32: cast first"),
        };
        self.meaning(fits, op.name(), &[a, b], expected)?;
        Some(a)
    }

    fn compare(&mut self, op: CompareOp, a: ValueId, b: ValueId) -> Option<ValueType> {
        if let (Some(a), Some(b)) = (self.types[a], self.types[b]) {
            self.meaning(a == b, op.symbol(), &[a, b], "both operands must have one type: cast one")?;
            let is_ordered = a != Bool || matches!(op, CompareOp::Eq | CompareOp::Ne);
            self.meaning(is_ordered, op.symbol(), &[a, b], "truth values have no order: use == or !=")?;
        }
        Some(Bool)
    }

    fn select(&mut self, condition: ValueId, if_true: ValueId, if_false: ValueId) -> Option<ValueType> {
        if let Some(condition) = self.types[condition] {
            self.meaning(condition == Bool, "select", &[condition], "its condition is a bool: compare first")?;
        }
        let (a, b) = (self.types[if_true]?, self.types[if_false]?);
        self.meaning(a == b, "select", &[a, b], "both results must have one type: cast one")?;
        Some(a)
    }

    fn cast(&mut self, to: ValueType, x: ValueId) -> Option<ValueType> {
        let from = self.types[x].unwrap_or(to);
        self.meaning(to != Bool || from == Bool, "cast to bool", &[from], "compare with 0 instead")?;
        Some(to)
    }

    fn philox(&mut self, operands: [ValueId; 3], word: u8) -> Option<ValueType> {
        for operand in operands {
            if let Some(of) = self.types[operand] {
                self.meaning(of == U32, "philox", &[of], "its key, counter and element are u32: cast first")?;
            }
        }
        if word > 3 {
            self.fail_meaning("philox", format!("word {word}"), "it has the words 0 to 3");
        }
        Some(U32)
    }

    fn out_of_order(&mut self, op: &ExprOp) -> Option<ValueType> {
        self.fail_meaning(&format!("{op:?}"), "a later value".into(), "operands stand before their users");
        None
    }

    /// `Some` where the operation has a meaning; an error otherwise.
    fn meaning(&mut self, fits: bool, op: &str, of: &[ValueType], expected: &'static str) -> Option<()> {
        if !fits {
            let found: Vec<_> = of.iter().map(|of| of.name()).collect();
            self.fail_meaning(op, found.join(" and "), expected);
        }
        fits.then_some(())
    }

    fn fail_meaning(&mut self, op: &str, found: String, expected: &'static str) {
        let op = op.into();
        self.site.fail(self.place.part, |node| ProgramError::ExprType { node, op, found, expected });
    }

    fn bad_index(&mut self, part: String, found: String, expected: String) {
        self.site.fail(self.place.part, |node| ProgramError::BadIndex { node, part, found, expected });
    }
}

/// Checks the places that a load or scattered store of the part `place` takes in a view of shape `shape`.
pub(super) fn check_index(
    site: &mut Site<'_, '_>,
    place: &str,
    what: &str,
    index: &[IndexTerm],
    shape: &Shape,
    space: &Shape,
    type_of: impl Fn(ValueId) -> Option<ValueType>,
) {
    let mut bad = |found: String, expected: String| {
        site.fail(place, |node| ProgramError::BadIndex { node, part: what.into(), found, expected });
    };
    if index.len() != shape.rank() {
        let (found, expected) = (index.len(), shape.rank());
        bad(format!("{found} terms"), format!("one for each of the {expected} axes of {shape}"));
        return;
    }
    let mut expected_dims = shape.dims().to_vec();
    for (axis, (term, &dim)) in index.iter().zip(shape.dims()).enumerate() {
        match *term {
            IndexTerm::Axis(own) => match space.dims().get(usize::from(own)) {
                Some(&extent) => expected_dims[axis] = extent,
                None => bad(format!("axis {own}"), format!("an axis of the index space {space}")),
            },
            IndexTerm::Fixed(at) if at < dim => {}
            IndexTerm::Fixed(at) => bad(format!("{at} along axis {axis}"), format!("a place below {dim}")),
            IndexTerm::Value(value) => match type_of(value) {
                Some(I32 | U32) | None => {}
                Some(other) => bad(format!("a value of type {}", other.name()), "an i32 or u32".into()),
            },
        }
    }
    if let Some(expected) = Shape::new(&expected_dims) {
        site.same_shape(place, what, *shape, expected);
    }
}
