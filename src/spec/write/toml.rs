//! Pieces of TOML: keys, texts and numbers.

use std::collections::BTreeSet;

use crate::ir::{ConstValue, Shape};

/// The names of one table, to tell which of them may be dotted.
#[derive(Debug)]
pub(super) struct Keys<'p> {
    names: BTreeSet<&'p str>,
}

impl<'p> Keys<'p> {
    pub(super) fn new(names: impl Iterator<Item = &'p str>) -> Self {
        Self { names: names.collect() }
    }

    /// A name as a key. A dotted key opens tables, so it must not meet another name, nor the key `shape`.
    pub(super) fn key(&self, name: &str) -> String {
        let parts: Vec<_> = name.split('.').collect();
        let prefixes = name.match_indices('.').map(|(at, _)| &name[..at]);
        let meets = prefixes.into_iter().any(|prefix| self.names.contains(prefix));
        let plain = parts.iter().all(|part| is_bare(part)) && !parts[1..].contains(&"shape");
        if plain && !meets { name.to_owned() } else { quoted(name) }
    }
}

fn is_bare(part: &str) -> bool {
    !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A name as one key, dots and all.
pub(super) fn single_key(name: &str) -> String {
    if is_bare(name) { name.to_owned() } else { quoted(name) }
}

/// A text value.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A list of texts; a single one stands alone.
pub(super) fn one_or_list(texts: &[String]) -> String {
    match texts {
        [text] => quoted(text),
        _ => list(texts.iter().map(String::as_str)),
    }
}

/// A list of texts.
pub(super) fn list<'t>(texts: impl Iterator<Item = &'t str>) -> String {
    format!("[{}]", texts.map(quoted).collect::<Vec<_>>().join(", "))
}

/// A list of numbers.
pub(super) fn numbers<T: ToString>(numbers: &[T]) -> String {
    format!("[{}]", numbers.iter().map(T::to_string).collect::<Vec<_>>().join(", "))
}

/// A shape as an array of extents.
pub(super) fn shape(shape: &Shape) -> String {
    numbers(shape.dims())
}

/// A constant as a number, or as text where TOML has no number for its bits.
pub(super) fn constant(value: ConstValue) -> String {
    match value {
        ConstValue::F32(x) => float(x),
        ConstValue::I32(_) | ConstValue::U32(_) => value.to_string(),
    }
}

/// A float as TOML writes it.
pub(super) fn float(x: f32) -> String {
    match float_text(x) {
        text if text.starts_with("bits") => quoted(&text),
        text => text,
    }
}

/// A float as expressions write it: the same bits come back.
pub(super) fn float_text(x: f32) -> String {
    if !x.is_nan() {
        return format!("{x:?}");
    }
    if x.to_bits() == f32::NAN.to_bits() { "nan".to_owned() } else { format!("bits({:#x})", x.to_bits()) }
}
