//! Text to tokens.

use std::ops::Range;

use super::Suffix;

/// A piece of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Float(f32),
    Int(i64, Suffix),
    Name(String),
    /// A name in back quotes, which keeps a reserved word from being read as one.
    Quoted(String),
    Symbol(&'static str),
    End,
    /// Text that is no token, and why.
    Bad(String),
}

impl Token {
    /// The token in words, for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Float(value) => format!("the number {value:?}"),
            Self::Int(value, _) => format!("the number {value}"),
            Self::Name(name) | Self::Quoted(name) => format!("`{name}`"),
            Self::Symbol(symbol) => format!("`{symbol}`"),
            Self::End => "the end".to_owned(),
            Self::Bad(what) => what.clone(),
        }
    }
}

/// Longer symbols come before their prefixes.
const SYMBOLS: [&str; 29] = [
    "||", "&&", "==", "!=", "<=", ">=", "<<", ">>", "<", ">", "=", "!", "|", "^", "&", "+", "-", "*", "/", "%", "(",
    ")", "[", "]", ",", ";", ":", "@", "'",
];

/// Whether a name means something to the language, so that a buffer of this name must stand in back quotes.
pub(in super::super) fn is_reserved(name: &str) -> bool {
    matches!(name, "acc" | "let" | "inf" | "nan") || axis(name).is_some()
}

/// The axis that `i0` to `i3` name.
pub(in super::super) fn axis(name: &str) -> Option<u8> {
    match name {
        "i0" => Some(0),
        "i1" => Some(1),
        "i2" => Some(2),
        "i3" => Some(3),
        _ => None,
    }
}

/// The tokens of `text` with their bytes; the last one is [`Token::End`].
pub(super) fn tokens(text: &str) -> Vec<(Token, Range<usize>)> {
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        at += text[at..].len() - text[at..].trim_start().len();
        let Some(first) = text[at..].chars().next() else { break };
        let (token, length) = next(&text[at..], first);
        found.push((token, at..at + length));
        at += length;
    }
    found.push((Token::End, text.len()..text.len()));
    found
}

fn next(rest: &str, first: char) -> (Token, usize) {
    if first.is_ascii_digit() {
        return number(rest);
    }
    if is_name_start(first) {
        return name(rest);
    }
    if first == '`' {
        return quoted(rest);
    }
    match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
        Some(symbol) => (Token::Symbol(symbol), symbol.len()),
        None => (Token::Bad(format!("`{first}`")), first.len_utf8()),
    }
}

fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

fn is_name_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn run(text: &str, holds: impl Fn(char) -> bool) -> usize {
    text.find(|c| !holds(c)).unwrap_or(text.len())
}

/// A name with its dotted parts.
fn name(rest: &str) -> (Token, usize) {
    let mut end = run(rest, is_name_part);
    while let Some(part) = rest[end..].strip_prefix('.') {
        if !part.starts_with(is_name_start) {
            break;
        }
        end += 1 + run(part, is_name_part);
    }
    match &rest[..end] {
        "inf" => (Token::Float(f32::INFINITY), end),
        "nan" => (Token::Float(f32::NAN), end),
        name => (Token::Name(name.to_owned()), end),
    }
}

fn quoted(rest: &str) -> (Token, usize) {
    match rest[1..].find('`') {
        Some(end) => (Token::Quoted(rest[1..=end].to_owned()), end + 2),
        None => (Token::Bad("a back quote that is not closed".to_owned()), rest.len()),
    }
}

fn number(rest: &str) -> (Token, usize) {
    if let Some(digits) = rest.strip_prefix("0x") {
        let length = run(digits, |c| c.is_ascii_hexdigit());
        return integer(&digits[..length], 16, &rest[2 + length..], 2 + length);
    }
    let whole = run(rest, |c| c.is_ascii_digit());
    let mut end = whole;
    if let Some(fraction) = rest[end..].strip_prefix('.') {
        end += 1 + run(fraction, |c| c.is_ascii_digit());
    }
    if let Some(exponent) = rest[end..].strip_prefix(['e', 'E']) {
        let sign = usize::from(exponent.starts_with(['+', '-']));
        let digits = run(&exponent[sign..], |c| c.is_ascii_digit());
        end += if digits > 0 { 1 + sign + digits } else { 0 };
    }
    if end == whole {
        return integer(&rest[..whole], 10, &rest[whole..], whole);
    }
    match rest[..end].parse::<f32>() {
        Ok(value) if value.is_finite() => (Token::Float(value), end),
        _ => (Token::Bad(format!("`{}`, which no f32 can hold", &rest[..end])), end),
    }
}

fn integer(digits: &str, radix: u32, after: &str, length: usize) -> (Token, usize) {
    let Ok(value) = i64::from_str_radix(digits, radix) else {
        return (Token::Bad(format!("`{digits}`, which is no integer of 64 bits")), length);
    };
    let suffix = match after.chars().next() {
        Some('u') => Suffix::U32,
        Some('i') => Suffix::I32,
        _ => Suffix::None,
    };
    (Token::Int(value, suffix), length + usize::from(suffix != Suffix::None))
}
