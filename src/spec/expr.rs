//! Syntax trees to expressions of the intermediate representation, over one index space.

use rustc_hash::FxHashMap;

use super::context::{Context, symbol_kind};
use super::dims;
use super::document::similar;
use super::error::SpecError;
use super::random;
use super::syntax::{Ast, AstKind, IndexEntry, ProgramAst, Suffix, axis};
use super::view::{self, Place};
use crate::builder::broadcast_terms;
use crate::entity::{PrimaryMap, ValueId};
use crate::ir::{
    BinaryOp, ConstValue, DType, Expr, ExprBuilder, ExprOp, IndexTerm, ProgramError, Shape, Symbol, UnaryOp, ValueType,
    View,
};

/// What `acc` stands for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Acc {
    /// What the node itself computed, of this type.
    Node(ValueType),
    /// An element of the product that the node follows.
    Product(View),
}

/// Expressions of one node under construction.
pub(super) struct Lowering<'c, 'a> {
    pub(super) cx: &'c mut Context<'a>,
    pub(super) space: Shape,
    acc: Acc,
    ops: ExprBuilder,
    types: PrimaryMap<ValueId, ValueType>,
    lets: FxHashMap<String, ValueId>,
}

impl<'c, 'a> Lowering<'c, 'a> {
    pub(super) fn new(cx: &'c mut Context<'a>, space: Shape, acc: Acc) -> Self {
        Self { cx, space, acc, ops: ExprBuilder::new(), types: PrimaryMap::new(), lets: FxHashMap::default() }
    }

    /// The results of an expression; `hints` are the types of what they are stored to, where known.
    pub(super) fn results(&mut self, ast: &ProgramAst, hints: &[Option<ValueType>]) -> Option<Vec<ValueId>> {
        for (name, value) in &ast.lets {
            let value = self.value(value, None)?;
            self.lets.insert(name.clone(), value);
        }
        let hints = hints.iter().copied().chain(std::iter::repeat(None));
        let results: Vec<_> = ast.results.iter().zip(hints).map(|(result, hint)| self.value(result, hint)).collect();
        results.into_iter().collect()
    }

    /// The type of a value.
    pub(super) fn type_of(&self, value: ValueId) -> ValueType {
        self.types[value]
    }

    /// The normal form as seen from `roots`.
    pub(super) fn finish(self, roots: &[ValueId]) -> Expr {
        self.ops.finish(roots)
    }

    /// Adds an operation of this type.
    pub(super) fn push(&mut self, op: ExprOp, value_type: ValueType) -> ValueId {
        self.types.push(value_type);
        self.ops.push(op)
    }

    pub(super) fn push_const(&mut self, value: ConstValue) -> ValueId {
        self.push(ExprOp::Const(value), ValueType::of(value.dtype()))
    }

    pub(super) fn push_binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> ValueId {
        let value_type = self.types[a];
        self.push(ExprOp::Binary(op, a, b), value_type)
    }

    fn push_unary(&mut self, op: UnaryOp, x: ValueId) -> ValueId {
        let value_type = if op == UnaryOp::IsFinite { ValueType::Bool } else { self.types[x] };
        self.push(ExprOp::Unary(op, x), value_type)
    }

    /// One index term per entry, for a load or a scattered store.
    pub(super) fn terms(&mut self, entries: &[IndexEntry]) -> Option<Vec<IndexTerm>> {
        let terms: Vec<_> = entries.iter().map(|entry| self.term(entry)).collect();
        terms.into_iter().collect()
    }

    fn term(&mut self, entry: &IndexEntry) -> Option<IndexTerm> {
        let (value, bare) = match entry {
            IndexEntry::At { value, bare } => (value, *bare),
            IndexEntry::Range(_, _, span) => {
                let expected = "one index: an axis of the index space such as `i0`, or a value".to_owned();
                return self.cx.fail(span.clone(), SpecError::Syntax { expected, found: "a range".to_owned() });
            }
        };
        if bare && let AstKind::Name { name, quoted: false } = &value.kind {
            let shadowed = self.lets.contains_key(name);
            if let Some(axis) = axis(name).filter(|_| !shadowed) {
                return Some(IndexTerm::Axis(axis));
            }
        }
        if bare && self.is_literal(value) {
            let place = dims::evaluate(self.cx, value)?;
            return match u32::try_from(place) {
                Ok(place) => Some(IndexTerm::Fixed(place)),
                Err(_) => self.bad_number("an index", place, "u32", value),
            };
        }
        self.value(value, Some(ValueType::U32)).map(IndexTerm::Value)
    }

    /// The value of `ast`; an integer literal without a type takes the type `hint`.
    fn value(&mut self, ast: &Ast, hint: Option<ValueType>) -> Option<ValueId> {
        if self.is_literal(ast) {
            return self.literal(ast, hint);
        }
        match &ast.kind {
            AstKind::Float(value) => Some(self.push_const(ConstValue::F32(*value))),
            AstKind::Int(value, suffix) => self.typed_literal(ast, *value, *suffix),
            AstKind::Name { name, quoted } => self.name(ast, name, *quoted),
            AstKind::Index(..) => self.memory(ast),
            AstKind::Unary(op, x) => {
                let x = self.value(x, hint)?;
                Some(self.push_unary(*op, x))
            }
            AstKind::Binary(op, a, b) => {
                let (a, b) = self.pair(a, b, hint)?;
                Some(self.push_binary(*op, a, b))
            }
            AstKind::Compare(op, a, b) => {
                let (a, b) = self.pair(a, b, None)?;
                Some(self.push(ExprOp::Compare(*op, a, b), ValueType::Bool))
            }
            AstKind::Call(name, args) => self.call(ast, name, args, hint),
        }
    }

    /// Whether an expression is integer arithmetic whose type is still open.
    fn is_literal(&self, ast: &Ast) -> bool {
        dims::is_constant(self.cx, ast) && !self.names_a_let(ast)
    }

    fn names_a_let(&self, ast: &Ast) -> bool {
        match &ast.kind {
            AstKind::Name { name, .. } => self.lets.contains_key(name),
            AstKind::Unary(_, x) => self.names_a_let(x),
            AstKind::Binary(_, a, b) => self.names_a_let(a) || self.names_a_let(b),
            _ => false,
        }
    }

    fn literal(&mut self, ast: &Ast, hint: Option<ValueType>) -> Option<ValueId> {
        let dtype = match hint {
            Some(ValueType::F32) => DType::F32,
            Some(ValueType::I32) => DType::I32,
            Some(ValueType::U32) => DType::U32,
            Some(ValueType::Bool) | None => {
                let text = self.cx.source.get(ast.span.clone()).unwrap_or_default().to_owned();
                return self.cx.fail(ast.span.clone(), SpecError::UntypedLiteral { text });
            }
        };
        let value = dims::evaluate(self.cx, ast)?;
        match dims::literal(value, dtype) {
            Some(constant) => Some(self.push_const(constant)),
            None => self.bad_number("a literal", value, dtype.name(), ast),
        }
    }

    fn typed_literal(&mut self, ast: &Ast, value: i64, suffix: Suffix) -> Option<ValueId> {
        let dtype = if suffix == Suffix::I32 { DType::I32 } else { DType::U32 };
        match dims::literal(value, dtype) {
            Some(constant) => Some(self.push_const(constant)),
            None => self.bad_number("a literal", value, dtype.name(), ast),
        }
    }

    fn bad_number<T>(&mut self, what: &str, value: i64, dtype: &'static str, ast: &Ast) -> Option<T> {
        let error = SpecError::BadNumber { what: what.to_owned(), found: value.to_string(), dtype };
        self.cx.fail(ast.span.clone(), error)
    }

    /// Two operands of one type: the one whose type is open follows the other.
    fn pair(&mut self, a: &Ast, b: &Ast, hint: Option<ValueType>) -> Option<(ValueId, ValueId)> {
        if self.is_open(a) && !self.is_open(b) {
            let right = self.value(b, hint)?;
            return Some((self.value(a, Some(self.types[right]))?, right));
        }
        let left = self.value(a, hint);
        let hint = left.map(|left| self.types[left]).or(hint);
        let right = self.value(b, hint);
        Some((left?, right?))
    }

    /// Whether an expression has no type of its own.
    fn is_open(&self, ast: &Ast) -> bool {
        if self.is_literal(ast) {
            return true;
        }
        match &ast.kind {
            AstKind::Unary(UnaryOp::Neg | UnaryOp::Not, x) => self.is_open(x),
            AstKind::Binary(_, a, b) => self.is_open(a) && self.is_open(b),
            AstKind::Call(name, args) if name == "select" => args.iter().skip(1).all(|arg| self.is_open(arg)),
            AstKind::Call(name, args) => {
                BinaryOp::ALL.iter().any(|(_, known)| known == name) && args.iter().all(|arg| self.is_open(arg))
            }
            _ => false,
        }
    }

    fn name(&mut self, ast: &Ast, name: &str, quoted: bool) -> Option<ValueId> {
        if quoted {
            return self.memory(ast);
        }
        if let Some(&value) = self.lets.get(name) {
            return Some(value);
        }
        if let Some(axis) = axis(name) {
            return Some(self.push(ExprOp::Index(axis), ValueType::U32));
        }
        match (name, self.acc) {
            ("acc", Acc::Node(value_type)) => Some(self.push(ExprOp::Acc, value_type)),
            ("acc", Acc::Product(view)) => self.load(ast, view, None),
            _ => self.memory(ast),
        }
    }

    /// The contents of a buffer or cell.
    fn memory(&mut self, ast: &Ast) -> Option<ValueId> {
        match view::resolve(self.cx, ast, "buffer or scalar")? {
            Place::Scalar(scalar) => {
                let value_type = ValueType::of(self.cx.program.scalars[scalar].init.dtype());
                Some(self.push(ExprOp::Scalar(scalar), value_type))
            }
            Place::View(view, entries) => self.load(ast, view, entries),
            Place::Group(group) => {
                let name = self.cx.program.groups[group].name.clone();
                let found = symbol_kind(Symbol::Group(group));
                let expected = "a buffer or scalar: a group is an argument for kernels";
                self.cx.fail(ast.span.clone(), SpecError::WrongKind { name, found, expected })
            }
        }
    }

    fn load(&mut self, ast: &Ast, view: View, entries: Option<&[IndexEntry]>) -> Option<ValueId> {
        let shape = view.shape();
        let index = match entries {
            Some(entries) if entries.len() != shape.rank() => {
                return view::index_count(self.cx, view.buffer, entries.len(), &ast.span);
            }
            Some(entries) => self.terms(entries)?,
            None => match broadcast_terms(&shape, &self.space) {
                Some(terms) => terms,
                None => {
                    let what = format!("`{}`", self.cx.source.get(ast.span.clone()).unwrap_or_default());
                    let (found, space) = (shape.to_string(), self.space.to_string());
                    return self.cx.fail(ast.span.clone(), SpecError::Broadcast { what, found, space });
                }
            },
        };
        let value_type = ValueType::of(self.cx.program.buffers[view.buffer].dtype);
        Some(self.push(ExprOp::Load { view, index }, value_type))
    }

    fn call(&mut self, ast: &Ast, name: &str, args: &[Ast], hint: Option<ValueType>) -> Option<ValueId> {
        if let Some(&(op, _)) = UnaryOp::ALL.iter().find(|(_, known)| *known == name) {
            let [x] = self.args(ast, name, args)?;
            let own = matches!(op, UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not);
            let x = self.value(x, if own { hint } else { Some(ValueType::F32) })?;
            return Some(self.push_unary(op, x));
        }
        if let Some(&(op, _)) = BinaryOp::ALL.iter().find(|(_, known)| *known == name) {
            let [a, b] = self.args(ast, name, args)?;
            let (a, b) = self.pair(a, b, hint)?;
            return Some(self.push_binary(op, a, b));
        }
        match name {
            "select" => self.select(ast, args, hint),
            "f32" => self.cast(ast, ValueType::F32, args),
            "i32" => self.cast(ast, ValueType::I32, args),
            "u32" => self.cast(ast, ValueType::U32, args),
            "bool" => self.cast(ast, ValueType::Bool, args),
            "bits" => dims::bits(self.cx, ast, args).map(|value| self.push_const(value)),
            "philox" => self.philox(ast, args),
            "uniform" | "normal" => {
                let [key, counter, stream] = self.args(ast, name, args)?;
                let (key, counter) = self.key_and_counter(key, counter)?;
                let stream = self.unsigned("stream", stream)?;
                Some(random::draw(self, name == "normal", key, counter, stream))
            }
            _ => {
                let similar = similar(name, function_names());
                let error = ProgramError::UnknownName { kind: "function", name: name.to_owned(), similar };
                self.cx.fail(ast.span.clone(), error)
            }
        }
    }

    fn args<'t, const N: usize>(&mut self, ast: &Ast, name: &str, args: &'t [Ast]) -> Option<&'t [Ast; N]> {
        let found = <&[Ast; N]>::try_from(args).ok();
        if found.is_none() {
            let error = SpecError::ArgCount { name: name.to_owned(), expected: N, found: args.len() };
            self.cx.error(ast.span.clone(), error);
        }
        found
    }

    fn select(&mut self, ast: &Ast, args: &[Ast], hint: Option<ValueType>) -> Option<ValueId> {
        let [condition, if_true, if_false] = self.args(ast, "select", args)?;
        let condition = self.value(condition, None);
        let (if_true, if_false) = self.pair(if_true, if_false, hint)?;
        let value_type = self.types[if_true];
        Some(self.push(ExprOp::Select { condition: condition?, if_true, if_false }, value_type))
    }

    /// A conversion; a literal whose type is open simply has the type.
    fn cast(&mut self, ast: &Ast, to: ValueType, args: &[Ast]) -> Option<ValueId> {
        let [x] = self.args(ast, to.name(), args)?;
        if self.is_literal(x) {
            return self.literal(x, Some(to));
        }
        let x = self.value(x, None)?;
        Some(self.push(ExprOp::Cast(to, x), to))
    }

    fn philox(&mut self, ast: &Ast, args: &[Ast]) -> Option<ValueId> {
        let [key, counter, element, stream, word] = self.args(ast, "philox", args)?;
        let (key, counter) = self.key_and_counter(key, counter)?;
        let element = self.value(element, Some(ValueType::U32))?;
        let stream = self.unsigned("stream", stream)?;
        match self.unsigned("word", word).map(u8::try_from)? {
            Ok(word) if word < 4 => {
                Some(self.push(ExprOp::Philox { key, counter, element, stream, word }, ValueType::U32))
            }
            _ => {
                let expected = "a word of Philox, 0 to 3".to_owned();
                let found = self.cx.source.get(word.span.clone()).unwrap_or_default().to_owned();
                self.cx.fail(word.span.clone(), SpecError::Syntax { expected, found })
            }
        }
    }

    fn key_and_counter(&mut self, key: &Ast, counter: &Ast) -> Option<(ValueId, ValueId)> {
        let key = self.value(key, Some(ValueType::U32));
        let counter = self.value(counter, Some(ValueType::U32));
        Some((key?, counter?))
    }

    /// A constant that is part of an operation.
    fn unsigned(&mut self, what: &str, ast: &Ast) -> Option<u32> {
        let value = dims::evaluate(self.cx, ast)?;
        u32::try_from(value).ok().or_else(|| self.bad_number(what, value, "u32", ast))
    }
}

fn function_names() -> impl Iterator<Item = &'static str> {
    let unary = UnaryOp::ALL.iter().map(|(_, name)| *name);
    let binary = BinaryOp::ALL.iter().map(|(_, name)| *name);
    let others = ["select", "f32", "i32", "u32", "bool", "bits", "philox", "uniform", "normal"];
    unary.chain(binary).chain(others)
}
