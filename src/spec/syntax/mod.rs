//! The expression language of specs, as text and as a syntax tree; names have no meaning yet.
//!
//! ```text
//! program  = { "let" NAME "=" expr ";" } expr { "," expr }
//! product  = operand "@" operand            operand = postfix [ "'" ]
//! expr     = "||" < "&&" < comparison < "|" < "^" < "&" < "<< >>" < "+ -" < "* / %" < unary "- !" < postfix
//! postfix  = primary { "[" entry { "," entry } "]" }
//! entry    = [expr] ":" [expr] | expr
//! primary  = number | NAME | NAME "(" expr { "," expr } ")" | "(" expr ")"
//! ```

mod lexer;
mod parser;

pub(super) use lexer::{axis, is_reserved};
pub(super) use parser::{expression, place, product, program};

use super::document::Span;
use crate::ir::{BinaryOp, CompareOp, UnaryOp};

/// The deepest nesting of an expression: what recursion over it can afford.
pub(super) const MAX_DEPTH: u32 = 256;

/// The type that an integer literal says it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suffix {
    /// None: the literal takes the type of what it stands with.
    None,
    /// `i`.
    I32,
    /// `u`.
    U32,
}

/// An expression as written.
#[derive(Clone, Debug)]
pub(super) struct Ast {
    pub(super) kind: AstKind,
    pub(super) span: Span,
    /// How deep it nests.
    depth: u32,
}

/// What an expression is.
#[derive(Clone, Debug)]
pub(super) enum AstKind {
    Float(f32),
    Int(i64, Suffix),
    /// A possibly dotted name. `quoted` keeps a reserved word from being read as one.
    Name {
        name: String,
        quoted: bool,
    },
    Index(Box<Ast>, Vec<IndexEntry>),
    Unary(UnaryOp, Box<Ast>),
    Binary(BinaryOp, Box<Ast>, Box<Ast>),
    Compare(CompareOp, Box<Ast>, Box<Ast>),
    Call(String, Vec<Ast>),
}

/// One entry of an index.
#[derive(Clone, Debug)]
pub(super) enum IndexEntry {
    /// `a:b`; a missing end is the axis's own.
    Range(Option<Ast>, Option<Ast>, Span),
    /// A single place. `bare` tells `i0` from `(i0)`.
    At { value: Ast, bare: bool },
}

/// A list of results that may share named values.
#[derive(Clone, Debug)]
pub(super) struct ProgramAst {
    pub(super) lets: Vec<(String, Ast)>,
    pub(super) results: Vec<Ast>,
}

/// A matrix operand.
#[derive(Clone, Debug)]
pub(super) struct OperandAst {
    pub(super) place: Ast,
    pub(super) transposed: bool,
}

impl Ast {
    /// A name that is known to be one.
    pub(super) fn name(name: &str, span: Span) -> Self {
        Self { kind: AstKind::Name { name: name.to_owned(), quoted: true }, span, depth: 1 }
    }
}

impl ProgramAst {
    /// The expression `acc`.
    pub(super) fn acc(span: Span) -> Self {
        let kind = AstKind::Name { name: "acc".to_owned(), quoted: false };
        Self { lets: Vec::new(), results: vec![Ast { kind, span, depth: 1 }] }
    }
}
