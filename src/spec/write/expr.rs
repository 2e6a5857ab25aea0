//! Expressions as text: the least parentheses, and a `let` for every value that is used more than once.

use std::collections::BTreeSet;

use super::toml::float_text;
use crate::builder::broadcast_terms;
use crate::entity::{BufferId, EntityRef, PrimaryMap, ValueId};
use crate::ir::{
    BinaryOp, ConstValue, Expr, ExprOp, IndexTerm, Program, Shape, Symbol, UnaryOp, ValueType, View, value_types,
};
use crate::spec::syntax::is_reserved;

/// How deep a text may nest before a part of it gets a name.
const MAX_TEXT_DEPTH: u32 = 40;

/// The level of names, literals and calls; those of operators are below it.
const ATOM: u8 = 10;
const UNARY: u8 = 9;

/// What a rendered expression knows about its surroundings.
#[derive(Clone, Copy)]
pub(super) struct Scope<'p> {
    pub(super) program: &'p Program,
    /// The names of buffers, groups and scalars.
    pub(super) taken: &'p BTreeSet<&'p str>,
    pub(super) space: Shape,
    /// The type of `acc`.
    pub(super) acc_type: ValueType,
    /// The buffer that `acc` stands for, where it does not stand for what the node computed.
    pub(super) acc: Option<BufferId>,
}

/// An expression as text.
pub(super) struct ExprText {
    lets: String,
    values: PrimaryMap<ValueId, Piece>,
}

#[derive(Clone)]
struct Piece {
    text: String,
    level: u8,
    depth: u32,
}

impl Piece {
    const fn atom(text: String) -> Self {
        Self { text, level: ATOM, depth: 0 }
    }

    /// The text as an operand of an operator of this level.
    fn at(&self, level: u8) -> String {
        if self.level >= level { self.text.clone() } else { format!("({})", self.text) }
    }
}

impl ExprText {
    pub(super) fn new(scope: &Scope<'_>, expr: &Expr) -> Self {
        let types = value_types(scope.program, expr, scope.acc_type);
        let uses = expr.uses();
        let mut names = LetNames { taken: scope.taken, next: 0 };
        let mut text = Self { lets: String::new(), values: PrimaryMap::new() };
        for (value, op) in expr.ops().iter() {
            let mut piece = text.piece(scope, op, &types);
            let shared = uses[value] > 1 && !is_leaf(op);
            if shared || piece.depth > MAX_TEXT_DEPTH {
                let name = names.fresh();
                text.lets.push_str(&format!("let {name} = {}; ", piece.text));
                piece = Piece::atom(name);
            }
            text.values.push(piece);
        }
        text
    }

    /// The bindings and these results.
    pub(super) fn results(&self, roots: &[ValueId]) -> String {
        let results: Vec<_> = roots.iter().map(|&root| self.values[root].text.clone()).collect();
        format!("{}{}", self.lets, results.join(", "))
    }

    /// An index as text, without its brackets.
    pub(super) fn terms(&self, index: &[IndexTerm]) -> String {
        let term = |term: &IndexTerm| match term {
            IndexTerm::Axis(axis) => format!("i{axis}"),
            IndexTerm::Fixed(place) => place.to_string(),
            IndexTerm::Value(value) => match &*self.values[*value].text {
                text @ ("i0" | "i1" | "i2" | "i3") => format!("({text})"),
                text => text.to_owned(),
            },
        };
        index.iter().map(term).collect::<Vec<_>>().join(", ")
    }

    fn piece(&self, scope: &Scope<'_>, op: &ExprOp, types: &PrimaryMap<ValueId, ValueType>) -> Piece {
        let mut depth = 0;
        op.operands(|operand| depth = depth.max(self.values[operand].depth));
        let (text, level) = match op {
            ExprOp::Const(value) => return Piece::atom(literal(*value)),
            ExprOp::Index(axis) => return Piece::atom(format!("i{axis}")),
            ExprOp::Scalar(scalar) => return Piece::atom(name_text(&scope.program.scalars[*scalar].name)),
            ExprOp::Acc => return Piece::atom("acc".to_owned()),
            ExprOp::Load { view, index } => (self.load(scope, view, index), ATOM),
            ExprOp::Unary(op, x) => self.unary(*op, *x),
            ExprOp::Binary(op, a, b) => match symbol(*op, types[*a] == ValueType::Bool) {
                Some((symbol, level)) => {
                    let (a, b) = (self.values[*a].at(level), self.values[*b].at(level + 1));
                    (format!("{a} {symbol} {b}"), level)
                }
                None => (self.call(op.name(), &[*a, *b]), ATOM),
            },
            ExprOp::Compare(op, a, b) => {
                (format!("{} {} {}", self.values[*a].at(3), op.symbol(), self.values[*b].at(3)), 2)
            }
            ExprOp::Select { condition, if_true, if_false } => {
                (self.call("select", &[*condition, *if_true, *if_false]), ATOM)
            }
            ExprOp::Cast(to, x) => (self.call(to.name(), &[*x]), ATOM),
            ExprOp::Philox { key, counter, element, stream, word } => {
                let text = |value: &ValueId| &self.values[*value].text;
                let (key, counter, element) = (text(key), text(counter), text(element));
                (format!("philox({key}, {counter}, {element}, {stream}, {word})"), ATOM)
            }
        };
        Piece { text, level, depth: depth + 1 }
    }

    fn unary(&self, op: UnaryOp, x: ValueId) -> (String, u8) {
        let operand = &self.values[x];
        // A minus before a literal would be read as part of it.
        let is_number = operand.text.starts_with(|c: char| c.is_ascii_digit()) || operand.text.starts_with("inf");
        match op {
            UnaryOp::Neg if !is_number && operand.text != "nan" => (format!("-{}", operand.at(UNARY)), UNARY),
            UnaryOp::Not => (format!("!{}", operand.at(UNARY)), UNARY),
            _ => (self.call(op.name(), &[x]), ATOM),
        }
    }

    fn call(&self, name: &str, args: &[ValueId]) -> String {
        let args: Vec<_> = args.iter().map(|&arg| self.values[arg].text.as_str()).collect();
        format!("{name}({})", args.join(", "))
    }

    fn load(&self, scope: &Scope<'_>, view: &View, index: &[IndexTerm]) -> String {
        if broadcast_terms(&view.shape(), &scope.space).is_some_and(|plain| plain == index) {
            if scope.acc == Some(view.buffer) {
                return "acc".to_owned();
            }
            return view_text(scope.program, view);
        }
        let only_fixed = index.iter().all(|term| matches!(term, IndexTerm::Fixed(_)));
        let shape = &scope.program.buffers[view.buffer].shape;
        let place = if only_fixed && is_whole(view, shape) {
            format!("{}[{}]", name_text(&scope.program.buffers[view.buffer].name), vec![":"; shape.rank()].join(", "))
        } else {
            view_text(scope.program, view)
        };
        format!("{place}[{}]", self.terms(index))
    }
}

/// Names for values that no buffer, group or scalar has.
struct LetNames<'p> {
    taken: &'p BTreeSet<&'p str>,
    next: u32,
}

impl LetNames<'_> {
    fn fresh(&mut self) -> String {
        loop {
            let name = format!("v{}", self.next);
            self.next += 1;
            if !self.taken.contains(name.as_str()) {
                return name;
            }
        }
    }
}

/// The names that values must not take.
pub(super) fn symbols(program: &Program) -> BTreeSet<&str> {
    program.symbols().into_iter().map(|(name, _): (&str, Symbol)| name).collect()
}

fn is_leaf(op: &ExprOp) -> bool {
    match op {
        ExprOp::Const(_) | ExprOp::Index(_) | ExprOp::Scalar(_) | ExprOp::Acc => true,
        ExprOp::Load { index, .. } => !index.iter().any(|term| matches!(term, IndexTerm::Value(_))),
        _ => false,
    }
}

fn symbol(op: BinaryOp, logical: bool) -> Option<(&'static str, u8)> {
    Some(match op {
        BinaryOp::Or if logical => ("||", 0),
        BinaryOp::And if logical => ("&&", 1),
        BinaryOp::Or => ("|", 3),
        BinaryOp::Xor => ("^", 4),
        BinaryOp::And => ("&", 5),
        BinaryOp::Shl => ("<<", 6),
        BinaryOp::Shr => (">>", 6),
        BinaryOp::Add => ("+", 7),
        BinaryOp::Sub => ("-", 7),
        BinaryOp::Mul => ("*", 8),
        BinaryOp::Div => ("/", 8),
        BinaryOp::Rem => ("%", 8),
        BinaryOp::Min | BinaryOp::Max | BinaryOp::Pow => return None,
    })
}

fn literal(value: ConstValue) -> String {
    match value {
        ConstValue::F32(x) => float_text(x),
        ConstValue::I32(x) => format!("{x}i"),
        ConstValue::U32(x) => format!("{x}u"),
    }
}

/// A name as expressions write it.
pub(super) fn name_text(name: &str) -> String {
    if is_reserved(name) { format!("`{name}`") } else { name.to_owned() }
}

/// A view as expressions write it.
pub(super) fn view_text(program: &Program, view: &View) -> String {
    let buffer = &program.buffers[view.buffer];
    let name = name_text(&buffer.name);
    if is_whole(view, &buffer.shape) {
        return name;
    }
    let ranges = view.ranges().iter().zip(buffer.shape.dims()).map(|(range, &dim)| match range {
        range if range.dropped => range.start.to_string(),
        range if range.start == 0 && range.len == dim => ":".to_owned(),
        range => format!("{}:{}", range.start, range.end()),
    });
    format!("{name}[{}]", ranges.collect::<Vec<_>>().join(", "))
}

/// Whether a view is its buffer, every axis included.
pub(super) fn is_whole(view: &View, shape: &Shape) -> bool {
    view.is_full(shape) && view.ranges().iter().all(|range| !range.dropped)
}

/// The index space that the loads that are written plainly imply, where there are any.
pub(super) fn implied_space(expr: &Expr, space: &Shape) -> Option<Shape> {
    let mut implied: Option<Shape> = None;
    for op in expr.ops().values() {
        let ExprOp::Load { view, index } = op else { continue };
        if broadcast_terms(&view.shape(), space).is_some_and(|plain| plain == *index) {
            implied = Some(crate::spec::space::broadcast(&implied.unwrap_or_default(), &view.shape())?);
        }
    }
    implied
}

/// The expression that only passes on what the node computed.
pub(super) fn is_acc(expr: &Expr) -> bool {
    expr.roots() == [ValueId::new(0)] && matches!(expr.ops().values().as_slice(), [ExprOp::Acc])
}
