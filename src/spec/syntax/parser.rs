//! Tokens to syntax trees, by precedence climbing.

use std::ops::Range;

use super::lexer::{Token, tokens};
use super::{Ast, AstKind, IndexEntry, MAX_DEPTH, OperandAst, ProgramAst};
use crate::ir::{BinaryOp, CompareOp, UnaryOp};
use crate::spec::context::Context;
use crate::spec::document::Text;
use crate::spec::error::SpecError;

/// Reads results separated by commas, after `let` bindings.
pub(in super::super) fn program(cx: &mut Context<'_>, text: &Text<'_>) -> Option<ProgramAst> {
    read(cx, text, Parser::program)
}

/// Reads one expression.
pub(in super::super) fn expression(cx: &mut Context<'_>, text: &Text<'_>) -> Option<Ast> {
    read(cx, text, |parser| parser.binary(0))
}

/// Reads a buffer, view or scalar.
pub(in super::super) fn place(cx: &mut Context<'_>, text: &Text<'_>) -> Option<Ast> {
    read(cx, text, Parser::postfix)
}

/// Reads a matrix product.
pub(in super::super) fn product(cx: &mut Context<'_>, text: &Text<'_>) -> Option<(OperandAst, OperandAst)> {
    read(cx, text, |parser| {
        let a = parser.operand()?;
        parser.expect("@")?;
        Ok((a, parser.operand()?))
    })
}

fn read<'t, T>(cx: &mut Context<'_>, text: &'t Text<'t>, rule: impl FnOnce(&mut Parser<'t>) -> Read<T>) -> Option<T> {
    let mut parser = Parser { text, tokens: tokens(text.text), at: 0, open: 0 };
    let read = rule(&mut parser).and_then(|value| match parser.peek() {
        Token::End => Ok(value),
        _ => Err(parser.expected("an operator or the end")),
    });
    match read {
        Ok(value) => Some(value),
        Err(failure) => cx.fail(text.place(failure.bytes), *failure.error),
    }
}

/// The guilty bytes of the text, and what is wrong with them. Boxed to keep results small.
struct Failure {
    bytes: Range<usize>,
    error: Box<SpecError>,
}

type Read<T> = Result<T, Failure>;

struct Parser<'t> {
    text: &'t Text<'t>,
    tokens: Vec<(Token, Range<usize>)>,
    at: usize,
    /// How many calls of [`Parser::unary`] are open.
    open: u32,
}

#[derive(Clone, Copy)]
enum Infix {
    Binary(BinaryOp),
    Compare(CompareOp),
}

/// The level of comparisons, which do not chain.
const COMPARISONS: u8 = 2;

/// An infix symbol's level, loosest first, and meaning.
fn infix(symbol: &str) -> Option<(u8, Infix)> {
    let (level, op) = match symbol {
        "||" => (0, BinaryOp::Or),
        "&&" => (1, BinaryOp::And),
        "|" => (3, BinaryOp::Or),
        "^" => (4, BinaryOp::Xor),
        "&" => (5, BinaryOp::And),
        "<<" => (6, BinaryOp::Shl),
        ">>" => (6, BinaryOp::Shr),
        "+" => (7, BinaryOp::Add),
        "-" => (7, BinaryOp::Sub),
        "*" => (8, BinaryOp::Mul),
        "/" => (8, BinaryOp::Div),
        "%" => (8, BinaryOp::Rem),
        _ => {
            let compare = CompareOp::ALL.iter().find(|(_, name)| *name == symbol)?.0;
            return Some((COMPARISONS, Infix::Compare(compare)));
        }
    };
    Some((level, Infix::Binary(op)))
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn bytes(&self) -> Range<usize> {
        self.tokens[self.at].1.clone()
    }

    fn is(&self, symbol: &str) -> bool {
        matches!(self.peek(), Token::Symbol(found) if *found == symbol)
    }

    fn accept(&mut self, symbol: &str) -> bool {
        let found = self.is(symbol);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: &str) -> Read<()> {
        if self.accept(symbol) { Ok(()) } else { Err(self.expected(&format!("`{symbol}`"))) }
    }

    fn expected(&self, expected: &str) -> Failure {
        let error = SpecError::Syntax { expected: expected.to_owned(), found: self.peek().describe() };
        Failure { bytes: self.bytes(), error: error.into() }
    }

    fn program(&mut self) -> Read<ProgramAst> {
        let mut lets = Vec::new();
        while matches!(self.peek(), Token::Name(name) if name == "let") {
            self.at += 1;
            let Token::Name(name) = self.peek().clone() else { return Err(self.expected("a name for the value")) };
            self.at += 1;
            self.expect("=")?;
            lets.push((name, self.binary(0)?));
            self.expect(";")?;
        }
        let mut results = vec![self.binary(0)?];
        while self.accept(",") {
            results.push(self.binary(0)?);
        }
        Ok(ProgramAst { lets, results })
    }

    fn operand(&mut self) -> Read<OperandAst> {
        let place = self.postfix()?;
        Ok(OperandAst { place, transposed: self.accept("'") })
    }

    /// An expression of operators at `loosest` or tighter.
    fn binary(&mut self, loosest: u8) -> Read<Ast> {
        let start = self.bytes().start;
        let mut left = self.unary()?;
        let mut compared = false;
        while let Some((level, op)) = self.next_infix(loosest) {
            if level == COMPARISONS && compared {
                return Err(self.expected("`&&` or `||` between two comparisons"));
            }
            compared = level == COMPARISONS;
            self.at += 1;
            let right = self.binary(level + 1)?;
            let depth = left.depth.max(right.depth);
            let kind = match op {
                Infix::Binary(op) => AstKind::Binary(op, left.into(), right.into()),
                Infix::Compare(op) => AstKind::Compare(op, left.into(), right.into()),
            };
            left = self.node(start, depth, kind)?;
        }
        Ok(left)
    }

    fn next_infix(&self, loosest: u8) -> Option<(u8, Infix)> {
        let Token::Symbol(symbol) = self.peek() else { return None };
        infix(symbol).filter(|(level, _)| *level >= loosest)
    }

    fn unary(&mut self) -> Read<Ast> {
        if self.open == MAX_DEPTH {
            return Err(Failure { bytes: self.bytes(), error: SpecError::TooDeep.into() });
        }
        self.open += 1;
        let read = self.prefix();
        self.open -= 1;
        read
    }

    fn prefix(&mut self) -> Read<Ast> {
        let start = self.bytes().start;
        if self.accept("!") {
            let x = self.unary()?;
            return self.node(start, x.depth, AstKind::Unary(UnaryOp::Not, x.into()));
        }
        if !self.accept("-") {
            return self.postfix();
        }
        let negative = match *self.peek() {
            Token::Float(value) => Some(AstKind::Float(-value)),
            Token::Int(value, suffix) => Some(AstKind::Int(-value, suffix)),
            _ => None,
        };
        if let Some(literal) = negative {
            self.at += 1;
            return self.node(start, 0, literal);
        }
        let x = self.unary()?;
        self.node(start, x.depth, AstKind::Unary(UnaryOp::Neg, x.into()))
    }

    fn postfix(&mut self) -> Read<Ast> {
        let start = self.bytes().start;
        let mut base = self.primary()?;
        while self.accept("[") {
            let entries = self.list("]", Self::index_entry)?;
            let depth = entries.iter().map(entry_depth).fold(base.depth, u32::max);
            base = self.node(start, depth, AstKind::Index(base.into(), entries))?;
        }
        Ok(base)
    }

    /// Items separated by commas up to `close`, which is taken.
    fn list<T>(&mut self, close: &'static str, item: fn(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let mut items = Vec::new();
        while !self.is(close) {
            items.push(item(self)?);
            if !self.accept(",") {
                break;
            }
        }
        self.expect(close)?;
        Ok(items)
    }

    fn index_entry(&mut self) -> Read<IndexEntry> {
        let start = self.bytes().start;
        let bare = !self.is("(");
        let first = if self.is(":") { None } else { Some(self.binary(0)?) };
        if !self.accept(":") {
            return match first {
                Some(value) => Ok(IndexEntry::At { value, bare }),
                None => Err(self.expected("an index")),
            };
        }
        let last = if self.is(",") || self.is("]") { None } else { Some(self.binary(0)?) };
        Ok(IndexEntry::Range(first, last, self.text.place(start..self.taken_to())))
    }

    fn primary(&mut self) -> Read<Ast> {
        let start = self.bytes().start;
        let kind = match self.peek().clone() {
            Token::Float(value) => AstKind::Float(value),
            Token::Int(value, suffix) => AstKind::Int(value, suffix),
            Token::Quoted(name) => AstKind::Name { name, quoted: true },
            Token::Name(name) => return self.name_or_call(start, name),
            Token::Symbol("(") => {
                self.at += 1;
                let inner = self.binary(0)?;
                self.expect(")")?;
                return Ok(inner);
            }
            _ => return Err(self.expected("a value")),
        };
        self.at += 1;
        self.node(start, 0, kind)
    }

    fn name_or_call(&mut self, start: usize, name: String) -> Read<Ast> {
        self.at += 1;
        if !self.accept("(") {
            return self.node(start, 0, AstKind::Name { name, quoted: false });
        }
        let args = self.list(")", |parser| parser.binary(0))?;
        let depth = args.iter().map(|arg| arg.depth).max().unwrap_or(0);
        self.node(start, depth, AstKind::Call(name, args))
    }

    /// The end of the last token that was taken.
    fn taken_to(&self) -> usize {
        self.tokens[self.at - 1].1.end
    }

    /// A node from `start` to the last token taken, whose deepest part has the depth `below`.
    fn node(&self, start: usize, below: u32, kind: AstKind) -> Read<Ast> {
        let bytes = start..self.taken_to();
        if below == MAX_DEPTH {
            return Err(Failure { bytes, error: SpecError::TooDeep.into() });
        }
        Ok(Ast { kind, span: self.text.place(bytes), depth: below + 1 })
    }
}

fn entry_depth(entry: &IndexEntry) -> u32 {
    match entry {
        IndexEntry::Range(start, end, _) => start.iter().chain(end).map(|ast| ast.depth).max().unwrap_or(0),
        IndexEntry::At { value, .. } => value.depth,
    }
}
