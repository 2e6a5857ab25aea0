//! Expressions as CUDA C: one line per operation.

use super::coords::{Coords, label, scaled, sum};
use super::kernel::one_line;
use super::params::Params;
use crate::entity::{EntityRef, PrimaryMap, ValueId};
use crate::ir::{
    BinaryOp, ConstValue, DType, Expr, ExprOp, IndexTerm, MAX_RANK, Program, Store, Target, UnaryOp, ValueType, View,
    value_types,
};

/// Prints one expression and its stores.
pub(super) struct Printer<'a> {
    pub(super) program: &'a Program,
    pub(super) params: &'a Params<'a>,
    pub(super) coords: Coords,
    /// The letter that values are named with.
    letter: char,
    expr: &'a Expr,
    types: PrimaryMap<ValueId, ValueType>,
}

impl<'a> Printer<'a> {
    /// A printer of `expr`, whose `Acc` is a variable `acc` of type `acc`.
    pub(super) fn new(
        program: &'a Program,
        params: &'a Params<'a>,
        coords: Coords,
        letter: char,
        expr: &'a Expr,
        acc: ValueType,
    ) -> Self {
        Self { program, params, coords, letter, expr, types: value_types(program, expr, acc) }
    }

    /// The declarations of all values.
    pub(super) fn values(&mut self, indent: &str) -> String {
        let mut text = String::new();
        for (value, op) in self.expr.ops().iter() {
            let comment = match op {
                ExprOp::Load { view, .. } => format!("  // {}", label(self.program, view)),
                ExprOp::Scalar(scalar) => format!("  // {}", one_line(&self.program.scalars[*scalar].name)),
                _ => String::new(),
            };
            let (c_type, name, rhs) = (c_type(self.types[value]), self.value(value), self.op(op));
            text.push_str(&format!("{indent}const {c_type} {name} = {rhs};{comment}\n"));
        }
        text
    }

    /// The stores of the roots.
    pub(super) fn stores(&mut self, stores: &[Store], indent: &str) -> String {
        let roots: Vec<ValueId> = self.expr.roots().to_vec();
        stores.iter().zip(roots).map(|(store, root)| self.store(store, root, indent)).collect()
    }

    /// The name of the expression's first root.
    pub(super) fn root(&self) -> String {
        self.expr.roots().first().map_or_else(String::new, |&root| self.value(root))
    }

    /// The type of the expression's first root.
    pub(super) fn root_type(&self) -> ValueType {
        self.expr.roots().first().map_or(ValueType::F32, |&root| self.types[root])
    }

    fn store(&mut self, store: &Store, root: ValueId, indent: &str) -> String {
        let value = self.value(root);
        let view = match store.target {
            Target::Scalar(scalar) => {
                let name = one_line(&self.program.scalars[scalar].name);
                return format!("{indent}*{} = {value};  // {name}\n", self.params.scalar(scalar));
            }
            Target::View(view) => view,
        };
        let buffer = self.params.buffer(view.buffer);
        let value = match self.program.buffers[view.buffer].dtype {
            DType::Bf16 => format!("sg::to_bf16({value})"),
            _ => value,
        };
        let (guard, index) = match &store.scatter {
            Some(scatter) => (self.inside(&view, &scatter.index), self.place(&view, &scatter.index, false)),
            None => (String::new(), self.place(&view, &identity(&view), false)),
        };
        format!("{indent}{guard}{buffer}[{index}] = {value};  // {}\n", label(self.program, &view))
    }

    /// `if (…) ` where a place may lie outside the view.
    fn inside(&mut self, view: &View, index: &[IndexTerm]) -> String {
        let shape = view.shape();
        let mut conditions = Vec::new();
        for (term, &extent) in index.iter().zip(shape.dims()) {
            match *term {
                IndexTerm::Value(value) => conditions.push(format!("{} < {extent}u", self.unsigned(value))),
                IndexTerm::Axis(axis) if self.coords.extent(axis.into()) > extent => {
                    conditions.push(format!("{} < {extent}u", self.coords.axis(axis.into())));
                }
                IndexTerm::Fixed(place) if place >= extent => conditions.push("false".into()),
                IndexTerm::Axis(_) | IndexTerm::Fixed(_) => {}
            }
        }
        if conditions.is_empty() { String::new() } else { format!("if ({}) ", conditions.join(" && ")) }
    }

    /// The index of an element of the view's buffer.
    fn place(&mut self, view: &View, index: &[IndexTerm], clamp: bool) -> String {
        let shape = self.program.buffers[view.buffer].shape;
        let (strides, extents) = (view.strides(&shape), view.shape());
        let mut constant = view.offset(&shape);
        let mut coefficients = [0u64; MAX_RANK];
        let mut computed = Vec::new();
        for ((term, stride), &extent) in index.iter().zip(strides).zip(extents.dims()) {
            match *term {
                IndexTerm::Axis(axis) => coefficients[usize::from(axis)] += stride,
                IndexTerm::Fixed(place) => constant += u64::from(place) * stride,
                IndexTerm::Value(value) if clamp => {
                    computed.push(scaled(&format!("sg::clamp_index({}, {extent}u)", self.value(value)), stride));
                }
                IndexTerm::Value(value) => computed.push(scaled(&self.unsigned(value), stride)),
            }
        }
        let mut terms = self.coords.terms(&coefficients);
        terms.append(&mut computed);
        sum(terms, constant)
    }

    fn op(&mut self, op: &ExprOp) -> String {
        match op {
            ExprOp::Const(constant) => literal(*constant),
            ExprOp::Index(axis) => self.coords.axis(usize::from(*axis)),
            ExprOp::Scalar(scalar) => format!("*{}", self.params.scalar(*scalar)),
            ExprOp::Load { view, index } => {
                let element = format!("{}[{}]", self.params.buffer(view.buffer), self.place(view, index, true));
                match self.program.buffers[view.buffer].dtype {
                    DType::Bf16 => format!("sg::to_float({element})"),
                    _ => element,
                }
            }
            ExprOp::Acc => "acc".into(),
            ExprOp::Unary(op, x) => unary(*op, self.types[*x], &self.value(*x)),
            ExprOp::Binary(op, a, b) => binary(*op, self.types[*a], &self.value(*a), &self.value(*b)),
            ExprOp::Compare(op, a, b) => format!("{} {} {}", self.value(*a), op.symbol(), self.value(*b)),
            ExprOp::Select { condition, if_true, if_false } => {
                format!("{} ? {} : {}", self.value(*condition), self.value(*if_true), self.value(*if_false))
            }
            ExprOp::Cast(to, x) => cast(self.types[*x], *to, &self.value(*x)),
            ExprOp::Philox { key, counter, element, stream, word } => {
                let (key, counter, element) = (self.value(*key), self.value(*counter), self.value(*element));
                format!("sg::philox({key}, {stream}u, {element}, {counter}).word[{word}]")
            }
        }
    }

    fn value(&self, value: ValueId) -> String {
        format!("{}{}", self.letter, value.index())
    }

    /// A computed place as an unsigned number: a negative one becomes a huge one, which is outside any view.
    fn unsigned(&self, value: ValueId) -> String {
        match self.types[value] {
            ValueType::I32 => format!("(unsigned int){}", self.value(value)),
            _ => self.value(value),
        }
    }
}

/// The place of an element that is not scattered: its own coordinates.
fn identity(view: &View) -> Vec<IndexTerm> {
    (0..view.shape().rank()).map(|axis| IndexTerm::Axis(u8::try_from(axis).unwrap_or(u8::MAX))).collect()
}

/// The C type of a value.
pub(super) const fn c_type(value_type: ValueType) -> &'static str {
    match value_type {
        ValueType::F32 => "float",
        ValueType::I32 => "int",
        ValueType::U32 => "unsigned int",
        ValueType::Bool => "bool",
    }
}

/// A constant, exactly. A decimal is printed where a compiler that reads it as a double first still gets the same float.
fn literal(constant: ConstValue) -> String {
    match constant {
        ConstValue::U32(x) => format!("{x}u"),
        ConstValue::I32(i32::MIN) => "(-2147483647 - 1)".into(),
        ConstValue::I32(x) => x.to_string(),
        ConstValue::F32(x) => {
            let text = format!("{x:?}");
            #[expect(clippy::cast_possible_truncation, reason = "this is the rounding that is asked about")]
            let exact =
                x.is_finite() && text.parse::<f64>().is_ok_and(|double| (double as f32).to_bits() == x.to_bits());
            if exact { format!("{text}f") } else { format!("__uint_as_float({:#010x}u) /* {text} */", x.to_bits()) }
        }
    }
}

fn unary(op: UnaryOp, of: ValueType, x: &str) -> String {
    match (op, of) {
        (UnaryOp::Neg, ValueType::I32) => format!("sg::neg({x})"),
        (UnaryOp::Neg, ValueType::U32) => format!("0u - {x}"),
        (UnaryOp::Neg, _) => format!("-{x}"),
        (UnaryOp::Abs, ValueType::F32) => format!("fabsf({x})"),
        (UnaryOp::Abs, ValueType::I32) => format!("sg::abs({x})"),
        (UnaryOp::Abs, _) => x.into(),
        (UnaryOp::Exp, _) => format!("expf({x})"),
        (UnaryOp::Log, _) => format!("logf({x})"),
        (UnaryOp::Expm1, _) => format!("expm1f({x})"),
        (UnaryOp::Log1p, _) => format!("log1pf({x})"),
        (UnaryOp::Sqrt, _) => format!("sqrtf({x})"),
        (UnaryOp::Tanh, _) => format!("tanhf({x})"),
        (UnaryOp::Sigmoid, _) => format!("1.0f / (1.0f + expf(-{x}))"),
        (UnaryOp::Relu, ValueType::F32) => format!("{x} <= 0.0f ? 0.0f : {x}"),
        (UnaryOp::Relu, ValueType::I32) => format!("{x} > 0 ? {x} : 0"),
        (UnaryOp::Relu, _) => x.into(),
        (UnaryOp::Sin, _) => format!("sinf({x})"),
        (UnaryOp::Cos, _) => format!("cosf({x})"),
        (UnaryOp::Floor, ValueType::F32) => format!("floorf({x})"),
        (UnaryOp::Floor, _) => x.into(),
        (UnaryOp::IsFinite, ValueType::F32) => format!("sg::is_finite({x})"),
        (UnaryOp::IsFinite, _) => "true".into(),
        (UnaryOp::Not, ValueType::Bool) => format!("!{x}"),
        (UnaryOp::Not, _) => format!("~{x}"),
    }
}

fn binary(op: BinaryOp, of: ValueType, a: &str, b: &str) -> String {
    let float = of == ValueType::F32;
    let signed = of == ValueType::I32;
    let logical = of == ValueType::Bool;
    match op {
        // Signed overflow is undefined in C, so these go through unsigned arithmetic.
        BinaryOp::Add if signed => format!("sg::add({a}, {b})"),
        BinaryOp::Sub if signed => format!("sg::sub({a}, {b})"),
        BinaryOp::Mul if signed => format!("sg::mul({a}, {b})"),
        BinaryOp::Add => format!("{a} + {b}"),
        BinaryOp::Sub => format!("{a} - {b}"),
        BinaryOp::Mul => format!("{a} * {b}"),
        BinaryOp::Div if float => format!("{a} / {b}"),
        BinaryOp::Div => format!("sg::div({a}, {b})"),
        BinaryOp::Rem if float => format!("fmodf({a}, {b})"),
        BinaryOp::Rem => format!("sg::rem({a}, {b})"),
        BinaryOp::Min => format!("sg::min({a}, {b})"),
        BinaryOp::Max => format!("sg::max({a}, {b})"),
        BinaryOp::Pow => format!("powf({a}, {b})"),
        BinaryOp::And if logical => format!("{a} && {b}"),
        BinaryOp::Or if logical => format!("{a} || {b}"),
        BinaryOp::Xor if logical => format!("{a} != {b}"),
        BinaryOp::And => format!("{a} & {b}"),
        BinaryOp::Or => format!("{a} | {b}"),
        BinaryOp::Xor => format!("{a} ^ {b}"),
        BinaryOp::Shl => format!("sg::shl({a}, {b})"),
        BinaryOp::Shr => format!("sg::shr({a}, {b})"),
    }
}

fn cast(from: ValueType, to: ValueType, x: &str) -> String {
    match (from, to) {
        (ValueType::F32, ValueType::I32) => format!("__float2int_rz({x})"),
        (ValueType::F32, ValueType::U32) => format!("__float2uint_rz({x})"),
        (ValueType::F32, ValueType::Bool) => format!("{x} != 0.0f"),
        (ValueType::I32, ValueType::Bool) => format!("{x} != 0"),
        (ValueType::U32, ValueType::Bool) => format!("{x} != 0u"),
        (ValueType::Bool, ValueType::F32) => format!("{x} ? 1.0f : 0.0f"),
        (ValueType::Bool, ValueType::I32) => format!("{x} ? 1 : 0"),
        (ValueType::Bool, ValueType::U32) => format!("{x} ? 1u : 0u"),
        (ValueType::I32, ValueType::F32) => format!("__int2float_rn({x})"),
        (ValueType::U32, ValueType::F32) => format!("__uint2float_rn({x})"),
        (ValueType::I32, ValueType::U32) => format!("(unsigned int){x}"),
        (ValueType::U32, ValueType::I32) => format!("(int){x}"),
        _ => x.into(),
    }
}
