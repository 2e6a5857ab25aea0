//! Random well-typed expressions.

use stepgraph::entity::{BufferId, ValueId};
use stepgraph::ir::{BinaryOp, CompareOp, ConstValue, ExprBuilder, ExprOp, IndexTerm, Shape, UnaryOp, ValueType, View};

use super::maker::{Maker, Picks, boxed};

const FLOAT_UNARY: [UnaryOp; 14] = [
    UnaryOp::Relu,
    UnaryOp::Neg,
    UnaryOp::Abs,
    UnaryOp::Tanh,
    UnaryOp::Sigmoid,
    UnaryOp::Exp,
    UnaryOp::Log,
    UnaryOp::Expm1,
    UnaryOp::Log1p,
    UnaryOp::Sqrt,
    UnaryOp::Sin,
    UnaryOp::Cos,
    UnaryOp::Floor,
    UnaryOp::Relu,
];
const FLOAT_BINARY: [BinaryOp; 8] = [
    BinaryOp::Add,
    BinaryOp::Sub,
    BinaryOp::Mul,
    BinaryOp::Div,
    BinaryOp::Min,
    BinaryOp::Max,
    BinaryOp::Rem,
    BinaryOp::Pow,
];
const INT_BINARY: [BinaryOp; 12] = [
    BinaryOp::Add,
    BinaryOp::Sub,
    BinaryOp::Mul,
    BinaryOp::Div,
    BinaryOp::Rem,
    BinaryOp::Min,
    BinaryOp::Max,
    BinaryOp::And,
    BinaryOp::Or,
    BinaryOp::Xor,
    BinaryOp::Shl,
    BinaryOp::Shr,
];

/// Builds one expression.
pub(super) struct ExprMaker<'m, 'p> {
    pub(super) maker: &'m Maker,
    pub(super) picks: &'m mut Picks<'p>,
    pub(super) builder: ExprBuilder,
    pub(super) space: Shape,
    /// The type of `acc`, where it has a meaning.
    pub(super) acc: Option<ValueType>,
    /// Buffers that the node writes; they are not loaded.
    pub(super) avoid: Vec<BufferId>,
    /// Views that the node writes, of the index space's shape, that may be loaded at the element's own place.
    pub(super) own: Vec<View>,
}

impl<'m, 'p> ExprMaker<'m, 'p> {
    pub(super) fn new(maker: &'m Maker, picks: &'m mut Picks<'p>, space: Shape) -> Self {
        Self { maker, picks, builder: ExprBuilder::new(), space, acc: None, avoid: vec![], own: vec![] }
    }

    /// A value of a type, at most `depth` operations deep.
    pub(super) fn value(&mut self, of: ValueType, depth: usize) -> ValueId {
        if depth == 0 {
            return self.leaf(of);
        }
        let (kind, deeper) = (self.picks.below(7), depth - 1);
        let op = match (kind, of) {
            (0 | 1, _) => return self.leaf(of),
            (2, _) => ExprOp::Select {
                condition: self.value(ValueType::Bool, deeper),
                if_true: self.value(of, deeper),
                if_false: self.value(of, deeper),
            },
            (3, ValueType::F32) => ExprOp::Unary(self.picks.of(&FLOAT_UNARY), self.value(of, deeper)),
            (3, ValueType::I32) => ExprOp::Unary(self.picks.of(&[UnaryOp::Neg, UnaryOp::Abs]), self.value(of, deeper)),
            (3, ValueType::U32) => return self.philox(),
            (3 | 4, ValueType::Bool) => self.comparison(deeper),
            (4, _) => {
                let from = self.picks.of(&[ValueType::I32, ValueType::U32, ValueType::Bool, ValueType::F32]);
                ExprOp::Cast(of, self.value(from, deeper))
            }
            (_, ValueType::Bool) => {
                let op = self.picks.of(&[BinaryOp::And, BinaryOp::Or, BinaryOp::Xor]);
                ExprOp::Binary(op, self.value(of, deeper), self.value(of, deeper))
            }
            (_, ValueType::F32) => {
                let op = self.picks.of(&FLOAT_BINARY);
                ExprOp::Binary(op, self.value(of, deeper), self.value(of, deeper))
            }
            (_, ValueType::I32 | ValueType::U32) => {
                let op = self.picks.of(&INT_BINARY);
                ExprOp::Binary(op, self.value(of, deeper), self.value(of, deeper))
            }
        };
        self.builder.push(op)
    }

    fn comparison(&mut self, depth: usize) -> ExprOp {
        if self.picks.one_in(5) {
            return ExprOp::Unary(UnaryOp::IsFinite, self.value(ValueType::F32, depth));
        }
        let (op, _) = self.picks.of(&CompareOp::ALL);
        let of = self.picks.of(&[ValueType::F32, ValueType::U32, ValueType::I32]);
        ExprOp::Compare(op, self.value(of, depth), self.value(of, depth))
    }

    fn philox(&mut self) -> ValueId {
        let key = self.builder.push(ExprOp::Scalar(self.maker.cells.seed));
        let counter = self.builder.push(ExprOp::Scalar(self.maker.cells.counter));
        let element = self.linear_index();
        let (stream, word) = (u32::from(self.picks.one_in(2)), u8::try_from(self.picks.below(4)).expect("below 4"));
        self.builder.push(ExprOp::Philox { key, counter, element, stream, word })
    }

    /// The element's linear index in the index space.
    pub(super) fn linear_index(&mut self) -> ValueId {
        let mut linear = self.constant(ConstValue::U32(0));
        for (axis, &dim) in self.space.dims().to_vec().iter().enumerate() {
            let extent = self.constant(ConstValue::U32(dim));
            let index = self.builder.push(ExprOp::Index(u8::try_from(axis).expect("few axes")));
            let outer = self.builder.push(ExprOp::Binary(BinaryOp::Mul, linear, extent));
            linear = self.builder.push(ExprOp::Binary(BinaryOp::Add, outer, index));
        }
        linear
    }

    pub(super) fn constant(&mut self, value: ConstValue) -> ValueId {
        self.builder.push(ExprOp::Const(value))
    }

    fn leaf(&mut self, of: ValueType) -> ValueId {
        if self.acc == Some(of) && self.picks.one_in(2) {
            return self.builder.push(ExprOp::Acc);
        }
        let own: Vec<_> = self.own.iter().copied().filter(|view| self.loads(view.buffer) == of).collect();
        if !own.is_empty() && self.picks.one_in(3) {
            let view = self.picks.of(&own);
            let index = (0..self.space.rank()).map(|axis| IndexTerm::Axis(u8::try_from(axis).expect("few axes")));
            return self.builder.push(ExprOp::Load { view, index: index.collect() });
        }
        match (self.picks.below(4), of) {
            (1 | 2, ValueType::F32 | ValueType::I32 | ValueType::U32) => {
                self.load(of).unwrap_or_else(|| self.plain_constant(of))
            }
            (3, ValueType::F32) => {
                let scalar = self.picks.of(&self.maker.cells.floats);
                self.builder.push(ExprOp::Scalar(scalar))
            }
            (3, ValueType::I32) => self.builder.push(ExprOp::Scalar(self.maker.cells.shift)),
            (3, ValueType::U32) if self.space.rank() > 0 => {
                let axis = u8::try_from(self.picks.below(self.space.rank())).expect("few axes");
                self.builder.push(ExprOp::Index(axis))
            }
            _ => self.plain_constant(of),
        }
    }

    fn plain_constant(&mut self, of: ValueType) -> ValueId {
        let small = self.picks.below(5);
        match of {
            ValueType::F32 => {
                let value = [0.5, 1.0, -2.0, 0.0, 3.25][small];
                self.constant(ConstValue::F32(value))
            }
            ValueType::I32 => {
                let value = [1, -1, 7, i32::MIN, 0][small];
                self.constant(ConstValue::I32(value))
            }
            ValueType::U32 => {
                let value = [1, 2, 0, u32::MAX, 5][small];
                self.constant(ConstValue::U32(value))
            }
            ValueType::Bool => {
                let one = self.constant(ConstValue::U32(1));
                let other = self.constant(ConstValue::U32(u32::from(small.is_multiple_of(2))));
                self.builder.push(ExprOp::Compare(CompareOp::Eq, one, other))
            }
        }
    }

    fn loads(&self, buffer: BufferId) -> ValueType {
        ValueType::of(self.maker.program.buffers[buffer].dtype)
    }

    /// An element of a readable buffer, or of a box of it: along the index space where extents agree, else broadcast or gathered.
    fn load(&mut self, of: ValueType) -> Option<ValueId> {
        let choices = self.maker.readable(|id, buffer| ValueType::of(buffer.dtype) == of && !self.avoid.contains(&id));
        if choices.is_empty() {
            return None;
        }
        let buffer = self.picks.of(&choices);
        let shape = self.maker.shape(buffer);
        let view = match boxed(self.picks, buffer, &shape, &self.space) {
            Some(view) if self.picks.one_in(2) => view,
            _ => View::full(buffer, &shape),
        };
        let index = view.shape().dims().to_vec().into_iter().map(|dim| self.term(dim)).collect();
        Some(self.builder.push(ExprOp::Load { view, index }))
    }

    fn term(&mut self, dim: u32) -> IndexTerm {
        let axes = self.space.dims().iter().enumerate().filter(|(_, extent)| **extent == dim);
        let axes: Vec<_> = axes.map(|(axis, _)| u8::try_from(axis).expect("few axes")).collect();
        if !axes.is_empty() && !self.picks.one_in(4) {
            return IndexTerm::Axis(self.picks.of(&axes));
        }
        if self.picks.one_in(2) {
            return IndexTerm::Fixed(self.picks.extent(dim));
        }
        let of = self.picks.of(&[ValueType::U32, ValueType::I32]);
        IndexTerm::Value(self.value(of, 1))
    }
}
