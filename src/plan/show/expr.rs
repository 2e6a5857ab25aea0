//! Expressions as infix text, with a name for what is used twice or would make a line too long.

use super::names::Names;
use crate::entity::{SecondaryMap, ValueId};
use crate::ir::{BinaryOp, ConstValue, Expr, ExprOp, IndexTerm, UnaryOp, View};

/// A longer part gets a line and a name of its own.
const LONGEST: usize = 72;

/// An expression's lines: `%0 = …` for named parts, and the text of each root.
pub(super) struct ExprText {
    pub(super) named: Vec<String>,
    pub(super) roots: Vec<String>,
    /// The text of every value, by which scattered stores name their places.
    values: SecondaryMap<ValueId, Part>,
}

/// The text of a value, and how tightly its outermost operation binds.
#[derive(Clone, Default)]
struct Part {
    text: String,
    binding: u8,
}

/// Binds tighter than any operation: names, calls, literals.
const ATOM: u8 = 9;
const UNARY: u8 = 8;
const COMPARE: u8 = 1;

impl ExprText {
    pub(super) fn new(names: &Names<'_>, expr: &Expr) -> Self {
        let uses = expr.uses();
        let mut text = Self { named: Vec::new(), roots: Vec::new(), values: SecondaryMap::new() };
        for (value, op) in expr.ops().iter() {
            let part = text.part(names, op);
            let is_leaf = matches!(op, ExprOp::Const(_) | ExprOp::Index(_) | ExprOp::Scalar(_) | ExprOp::Acc);
            let is_load = matches!(op, ExprOp::Load { .. });
            let named = uses[value] > 1 && !is_leaf && !is_load || part.text.len() > LONGEST && !is_leaf;
            text.values[value] = match named && !is_lone_root(expr, value, uses[value]) {
                true => text.name(part),
                false => part,
            };
        }
        text.roots = expr.roots().iter().map(|&root| text.values[root].text.clone()).collect();
        text
    }

    /// `[i0, 3, idx[i0]]`: where a load or store goes; nothing for a view without axes.
    pub(super) fn place(&self, index: &[IndexTerm]) -> String {
        if index.is_empty() {
            return String::new();
        }
        let terms: Vec<String> = index
            .iter()
            .map(|term| match term {
                IndexTerm::Axis(axis) => format!("i{axis}"),
                IndexTerm::Fixed(place) => place.to_string(),
                IndexTerm::Value(value) => self.values[*value].text.clone(),
            })
            .collect();
        format!("[{}]", terms.join(", "))
    }

    fn name(&mut self, part: Part) -> Part {
        let name = format!("%{}", self.named.len());
        self.named.push(format!("{name} = {}", part.text));
        Part { text: name, binding: ATOM }
    }

    fn part(&self, names: &Names<'_>, op: &ExprOp) -> Part {
        let text = |value: &ValueId| self.values[*value].text.as_str();
        let atom = |text: String| Part { text, binding: ATOM };
        match op {
            ExprOp::Const(value) => Part { text: literal(*value), binding: UNARY },
            ExprOp::Index(axis) => atom(format!("i{axis}")),
            ExprOp::Scalar(scalar) => atom(names.scalar(*scalar).to_owned()),
            ExprOp::Load { view, index } => atom(self.load(names, view, index)),
            ExprOp::Acc => atom("acc".to_owned()),
            ExprOp::Unary(UnaryOp::Neg, x) => Part { text: format!("-{}", self.inside(*x, ATOM)), binding: UNARY },
            ExprOp::Unary(UnaryOp::Not, x) => Part { text: format!("!{}", self.inside(*x, UNARY)), binding: UNARY },
            ExprOp::Unary(op, x) => atom(format!("{}({})", op.name(), text(x))),
            ExprOp::Binary(op, a, b) => match operator(*op) {
                Some((symbol, binding)) => self.infix(symbol, binding, *a, *b),
                None => atom(format!("{}({}, {})", op.name(), text(a), text(b))),
            },
            ExprOp::Compare(op, a, b) => self.infix(op.symbol(), COMPARE, *a, *b),
            ExprOp::Select { condition, if_true, if_false } => {
                atom(format!("select({}, {}, {})", text(condition), text(if_true), text(if_false)))
            }
            ExprOp::Cast(to, x) => atom(format!("{}({})", to.name(), text(x))),
            ExprOp::Philox { key, counter, element, stream, word } => atom(format!(
                "philox({}, {}, {}, stream {stream}, word {word})",
                text(key),
                text(counter),
                text(element)
            )),
        }
    }

    /// A whole buffer shows one bracket, the place; a box shows two, the box and the place in it.
    fn load(&self, names: &Names<'_>, view: &View, index: &[IndexTerm]) -> String {
        format!("{}{}", names.view(view), self.place(index))
    }

    /// Operators of one binding group to the left; comparisons do not chain.
    fn infix(&self, symbol: &str, binding: u8, a: ValueId, b: ValueId) -> Part {
        let left = if binding == COMPARE { binding + 1 } else { binding };
        let text = format!("{} {symbol} {}", self.inside(a, left), self.inside(b, binding + 1));
        Part { text, binding }
    }

    fn inside(&self, value: ValueId, least: u8) -> String {
        let part = &self.values[value];
        if part.binding < least { format!("({})", part.text) } else { part.text.clone() }
    }
}

/// Whether the value is only what a store takes, whose line it then is.
fn is_lone_root(expr: &Expr, value: ValueId, uses: u32) -> bool {
    uses == 1 && expr.roots().contains(&value)
}

/// The symbol of an operation and how tightly it binds, as in Rust; `None` for those that are written as calls.
fn operator(op: BinaryOp) -> Option<(&'static str, u8)> {
    match op {
        BinaryOp::Mul => Some(("*", 7)),
        BinaryOp::Div => Some(("/", 7)),
        BinaryOp::Rem => Some(("%", 7)),
        BinaryOp::Add => Some(("+", 6)),
        BinaryOp::Sub => Some(("-", 6)),
        BinaryOp::Shl => Some(("<<", 5)),
        BinaryOp::Shr => Some((">>", 5)),
        BinaryOp::And => Some(("&", 4)),
        BinaryOp::Xor => Some(("^", 3)),
        BinaryOp::Or => Some(("|", 2)),
        BinaryOp::Min | BinaryOp::Max | BinaryOp::Pow => None,
    }
}

/// A constant with its type: `1.0`, `1i`, `1u`.
pub(super) fn literal(value: ConstValue) -> String {
    match value {
        ConstValue::F32(_) => value.to_string(),
        ConstValue::I32(_) => format!("{value}i"),
        ConstValue::U32(_) => format!("{value}u"),
    }
}
