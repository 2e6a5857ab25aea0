//! The TOML document as ordered entries with their places; knows nothing of what keys mean.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::context::Context;
use super::error::SpecError;

/// Bytes of the spec.
pub(super) type Span = Range<usize>;

/// A key with its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'d> {
    pub(super) key: &'d str,
    key_span: (usize, usize),
    pub(super) value: &'d DeValue<'d>,
    value_span: (usize, usize),
}

impl<'d> Entry<'d> {
    fn new(key: &'d Spanned<std::borrow::Cow<'d, str>>, value: &'d Spanned<DeValue<'d>>) -> Self {
        let (key_span, value_span) = (key.span(), value.span());
        Self {
            key: key.get_ref(),
            key_span: (key_span.start, key_span.end),
            value: value.get_ref(),
            value_span: (value_span.start, value_span.end),
        }
    }

    /// The element `value` of an array, under the array's own key.
    pub(super) fn element(&self, value: &'d Spanned<DeValue<'d>>) -> Self {
        let span = value.span();
        Self { value: value.get_ref(), value_span: (span.start, span.end), ..*self }
    }

    /// The key's place.
    pub(super) fn key_span(&self) -> Span {
        self.key_span.0..self.key_span.1
    }

    /// The value's place.
    pub(super) fn span(&self) -> Span {
        self.value_span.0..self.value_span.1
    }

    /// The place of key and value together.
    pub(super) fn whole(&self) -> Span {
        self.key_span.0..self.value_span.1.max(self.key_span.1)
    }

    /// The value as a table, where it is one.
    pub(super) fn table(&self) -> Option<&'d DeTable<'d>> {
        match self.value {
            DeValue::Table(table) => Some(table),
            _ => None,
        }
    }
}

/// The entries of a table in the order in which they are written.
pub(super) fn entries<'d>(table: &'d DeTable<'d>) -> Vec<Entry<'d>> {
    let mut entries: Vec<_> = table.iter().map(|(key, value)| Entry::new(key, value)).collect();
    entries.sort_by_key(|entry| entry.key_span.0);
    entries
}

/// The entries of a table whose nested tables give dotted names, in the order in which they are written. `is_leaf` tells
/// a table that is a declaration from one that only nests.
pub(super) fn flatten<'d>(table: &'d DeTable<'d>, is_leaf: fn(&DeTable<'_>) -> bool) -> Vec<(String, Entry<'d>)> {
    let mut found = Vec::new();
    let mut open: Vec<(String, Entry<'d>)> =
        entries(table).into_iter().map(|entry| (entry.key.to_owned(), entry)).collect();
    while let Some((name, entry)) = open.pop() {
        match entry.table() {
            Some(inner) if !is_leaf(inner) => {
                open.extend(entries(inner).into_iter().map(|entry| ([&name, ".", entry.key].concat(), entry)));
            }
            _ => found.push((name, entry)),
        }
    }
    found.sort_by_key(|(_, entry)| entry.key_span.0);
    found
}

/// The keys of a table of which every one must have a meaning.
pub(super) struct Fields<'d> {
    /// What the table is, for messages.
    pub(super) place: String,
    /// Where messages about the table as a whole point.
    pub(super) span: Span,
    entries: Vec<Entry<'d>>,
    known: Vec<&'static str>,
}

impl<'d> Fields<'d> {
    /// The keys of `table`.
    pub(super) fn new(place: String, span: Span, table: &'d DeTable<'d>) -> Self {
        Self { place, span, entries: entries(table), known: Vec::with_capacity(8) }
    }

    /// Whether a key is present, without taking it.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// Takes a key.
    pub(super) fn take(&mut self, key: &'static str) -> Option<Entry<'d>> {
        self.known.push(key);
        self.entries.iter().position(|entry| entry.key == key).map(|at| self.entries.remove(at))
    }

    /// Takes a key that must be there.
    pub(super) fn need(&mut self, cx: &mut Context<'_>, key: &'static str) -> Option<Entry<'d>> {
        let found = self.take(key);
        if found.is_none() {
            cx.error(self.span.clone(), SpecError::MissingKey { place: self.place.clone(), key });
        }
        found
    }

    /// Takes everything that is left.
    pub(super) fn rest(&mut self) -> Vec<Entry<'d>> {
        std::mem::take(&mut self.entries)
    }

    /// Refuses two keys at once.
    pub(super) fn exclusive(&self, cx: &mut Context<'_>, first: &'static str, second: &'static str) {
        if self.has(first) && self.has(second) {
            let error = SpecError::Conflict { place: self.place.clone(), first: first.into(), second: second.into() };
            cx.error(self.span.clone(), error);
        }
    }

    /// Refuses the keys that nobody took.
    pub(super) fn finish(self, cx: &mut Context<'_>) {
        for entry in &self.entries {
            let similar = similar(entry.key, self.known.iter().copied());
            let error = SpecError::UnknownKey { place: self.place.clone(), key: entry.key.to_owned(), similar };
            cx.error(entry.key_span(), error);
        }
    }
}

/// A text value and where its characters stand.
#[derive(Clone, Debug)]
pub(super) struct Text<'d> {
    pub(super) text: &'d str,
    span: Span,
    /// The first byte of the content, where content and file agree byte for byte.
    start: Option<usize>,
}

impl<'d> Text<'d> {
    /// The text `decoded`, whose literal stands at `span` of `source`.
    pub(super) fn new(decoded: &'d str, source: &str, span: Span) -> Self {
        let literal = source.get(span.clone()).unwrap_or_default();
        let start = literal.find(decoded).map(|at| span.start + at);
        Self { text: decoded, span, start }
    }

    /// Where a part of the text stands in the file; the whole literal where escapes hide it.
    pub(super) fn place(&self, part: Range<usize>) -> Span {
        match self.start {
            Some(start) => start + part.start..start + part.end.max(part.start),
            None => self.span.clone(),
        }
    }

    /// Where the text stands.
    pub(super) fn whole(&self) -> Span {
        self.place(0..self.text.len())
    }
}

/// Longer names are not compared: the time grows with the product of two lengths.
const MAX_COMPARED: usize = 256;

/// The candidate that a user who wrote `name` may have meant.
pub(super) fn similar<S: AsRef<str>>(name: &str, candidates: impl IntoIterator<Item = S>) -> Option<String> {
    if name.len() > MAX_COMPARED {
        return None;
    }
    let score = |candidate: S| (strsim::jaro_winkler(name, candidate.as_ref()), candidate.as_ref().to_owned());
    let close = candidates
        .into_iter()
        .filter(|candidate| candidate.as_ref().len() <= MAX_COMPARED)
        .map(score)
        .filter(|(score, _)| *score > 0.8);
    close.max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(&a.1))).map(|(_, name)| name)
}
