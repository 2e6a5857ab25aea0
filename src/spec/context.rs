//! What every part of the reader shares: the program so far, the names that are known, the errors.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use indexmap::IndexMap;
use rustc_hash::{FxHashMap, FxHashSet};
use toml::de::DeValue;

use super::dims;
use super::document::{Entry, Span, Text, similar};
use super::error::{Labelled, SpecError};
use super::kernels::KernelTable;
use super::syntax;
use crate::entity::{BufferId, ScalarId};
use crate::ir::{
    Buffer, ConstValue, DType, Init, Item, MAX_ELEMENTS, MAX_RANK, Origin, Origins, Program, ProgramError, Role, Shape,
    Symbol,
};
use crate::kernel::HostFns;

/// What comes from outside the spec's text.
#[derive(Clone, Debug, Default)]
pub struct SpecOptions {
    /// The file's name, as messages show it.
    pub name: String,
    /// Dimensions that replace those of the spec.
    pub dims: BTreeMap<String, i64>,
    /// The directory that `.cu` files are looked up in; none refuses files that are not in `sources`.
    pub base: Option<PathBuf>,
    /// Texts of `.cu` files by the name that the spec gives; they come before the file system.
    pub sources: BTreeMap<String, Arc<str>>,
}

/// The state of reading one spec.
pub(super) struct Context<'a> {
    pub(super) source: &'a str,
    pub(super) options: &'a SpecOptions,
    pub(super) errors: Vec<Labelled>,
    pub(super) dims: IndexMap<String, i64>,
    pub(super) symbols: FxHashMap<String, Symbol>,
    /// Names whose declaration is wrong, so that their uses are not.
    poisoned: FxHashSet<String>,
    pub(super) kernels: KernelTable,
    pub(super) program: Program,
    pub(super) origins: Origins,
    pub(super) host_fns: HostFns,
}

impl<'a> Context<'a> {
    pub(super) fn new(source: &'a str, options: &'a SpecOptions) -> Self {
        Self {
            source,
            options,
            errors: Vec::new(),
            dims: IndexMap::new(),
            symbols: FxHashMap::default(),
            poisoned: FxHashSet::default(),
            kernels: KernelTable::default(),
            program: Program::default(),
            origins: Origins::default(),
            host_fns: HostFns::new(),
        }
    }

    /// Notes an error.
    pub(super) fn error(&mut self, span: Span, error: impl Into<SpecError>) {
        self.errors.push(Labelled { error: error.into(), span });
    }

    /// Notes an error and gives up on the value that it concerns.
    pub(super) fn fail<T>(&mut self, span: Span, error: impl Into<SpecError>) -> Option<T> {
        self.error(span, error);
        None
    }

    /// Notes where a part of the program was written.
    pub(super) fn origin(&mut self, item: Item, span: Span) {
        self.origins.set(item, Origin::Spec { start: span.start, end: span.end });
    }

    /// Notes that a value is of the wrong kind.
    pub(super) fn wrong_type<T>(&mut self, entry: &Entry<'_>, expected: &str) -> Option<T> {
        let (key, expected) = (entry.key.to_owned(), expected.to_owned());
        let found = describe(entry.value).to_owned();
        self.fail(entry.span(), SpecError::WrongType { key, expected, found })
    }

    /// A text value.
    pub(super) fn text<'d>(&mut self, entry: &Entry<'d>, expected: &str) -> Option<Text<'d>> {
        match entry.value {
            DeValue::String(text) => Some(Text::new(text, self.source, entry.span())),
            _ => self.wrong_type(entry, expected),
        }
    }

    /// A truth value.
    pub(super) fn boolean(&mut self, entry: &Entry<'_>) -> Option<bool> {
        match entry.value {
            DeValue::Boolean(value) => Some(*value),
            _ => self.wrong_type(entry, "true or false"),
        }
    }

    /// The elements of an array.
    pub(super) fn array<'d>(&mut self, entry: &Entry<'d>, expected: &str) -> Option<Vec<Entry<'d>>> {
        match entry.value {
            DeValue::Array(elements) => Some(elements.iter().map(|element| entry.element(element)).collect()),
            _ => self.wrong_type(entry, expected),
        }
    }

    /// A list of texts.
    pub(super) fn texts<'d>(&mut self, entry: &Entry<'d>, expected: &str) -> Option<Vec<Text<'d>>> {
        self.array(entry, expected)?.iter().map(|element| self.text(element, expected)).collect()
    }

    /// One text, or a list of them.
    pub(super) fn text_or_texts<'d>(&mut self, entry: &Entry<'d>, expected: &str) -> Option<Vec<Text<'d>>> {
        match entry.value {
            DeValue::Array(_) => self.texts(entry, expected),
            _ => Some(vec![self.text(entry, expected)?]),
        }
    }

    /// One of a set of words.
    pub(super) fn choice<T: Copy>(&mut self, entry: &Entry<'_>, words: &[(&'static str, T)]) -> Option<T> {
        let DeValue::String(text) = entry.value else { return self.wrong_type(entry, &one_of(words)) };
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let (key, found) = (entry.key.to_owned(), format!("\"{text}\""));
            self.error(entry.span(), SpecError::WrongType { key, expected: one_of(words), found });
        }
        found
    }

    /// An element type; `f32` where none is given.
    pub(super) fn dtype(&mut self, entry: Option<Entry<'_>>) -> Option<DType> {
        let words = DType::ALL.map(|dtype| (dtype.name(), dtype));
        entry.map_or(Some(DType::F32), |entry| self.choice(&entry, &words))
    }

    /// An integer: a number, or dimension arithmetic.
    pub(super) fn integer(&mut self, entry: &Entry<'_>) -> Option<i64> {
        match entry.value {
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(value) => Some(value),
                Err(_) => {
                    let reason = "is out of range".to_owned();
                    self.fail(entry.span(), SpecError::BadDim { text: number.to_string(), reason })
                }
            },
            DeValue::String(text) => {
                let text = Text::new(text, self.source, entry.span());
                let ast = syntax::expression(self, &text)?;
                dims::evaluate(self, &ast)
            }
            _ => self.wrong_type(entry, "an integer, or dimension arithmetic such as \"4*V\""),
        }
    }

    /// An integer that fits `u32`.
    pub(super) fn unsigned(&mut self, entry: &Entry<'_>) -> Option<u32> {
        let value = self.integer(entry)?;
        u32::try_from(value).ok().or_else(|| {
            let error = SpecError::BadNumber { what: entry.key.to_owned(), found: value.to_string(), dtype: "u32" };
            self.fail(entry.span(), error)
        })
    }

    /// Exactly `N` integers that fit `u32`.
    pub(super) fn unsigned_array<const N: usize>(&mut self, entry: &Entry<'_>) -> Option<[u32; N]> {
        let expected = format!("an array of {N} integers");
        let elements = self.array(entry, &expected)?;
        let values: Vec<u32> = elements.iter().map(|element| self.unsigned(element)).collect::<Option<_>>()?;
        match <[u32; N]>::try_from(values) {
            Ok(values) => Some(values),
            Err(_) => self.wrong_type(entry, &expected),
        }
    }

    /// The shape of `what`: an array of extents.
    pub(super) fn shape(&mut self, what: &str, entry: &Entry<'_>) -> Option<Shape> {
        let elements = self.array(entry, "a shape: an array of extents")?;
        if elements.len() > MAX_RANK {
            let error = ProgramError::RankTooHigh { what: what.to_owned(), found: elements.len() };
            return self.fail(entry.span(), error);
        }
        let extents: Vec<Option<u32>> = elements.iter().map(|element| self.extent(what, element)).collect();
        Shape::new(&extents.into_iter().collect::<Option<Vec<_>>>()?)
    }

    fn extent(&mut self, what: &str, entry: &Entry<'_>) -> Option<u32> {
        let value = self.integer(entry)?;
        let in_range = u64::try_from(value).is_ok_and(|extent| (1..=MAX_ELEMENTS).contains(&extent));
        let extent = u32::try_from(value).ok().filter(|_| in_range);
        extent.or_else(|| {
            let found = format!("[{value}]");
            self.fail(entry.span(), ProgramError::BadExtent { what: what.to_owned(), found })
        })
    }

    /// A constant of a type: a number, dimension arithmetic, or `bits(…)`.
    pub(super) fn constant(&mut self, entry: &Entry<'_>, dtype: DType) -> Option<ConstValue> {
        if let DeValue::String(text) = entry.value {
            let text = Text::new(text, self.source, entry.span());
            let ast = syntax::expression(self, &text)?;
            return dims::constant(self, &ast, entry.key, dtype);
        }
        let (found, value) = match (entry.value, dtype) {
            (DeValue::Integer(number), DType::F32 | DType::Bf16) => {
                let value = i64::from_str_radix(number.as_str(), number.radix()).ok().and_then(dims::exact_f32);
                (number.to_string(), value.map(ConstValue::F32))
            }
            (DeValue::Float(number), DType::F32 | DType::Bf16) => {
                (number.as_str().to_owned(), dims::float(number.as_str()).map(ConstValue::F32))
            }
            (DeValue::Integer(number), DType::I32) => {
                (number.to_string(), i32::from_str_radix(number.as_str(), number.radix()).ok().map(ConstValue::I32))
            }
            (DeValue::Integer(number), DType::U32) => {
                (number.to_string(), u32::from_str_radix(number.as_str(), number.radix()).ok().map(ConstValue::U32))
            }
            (DeValue::Float(number), _) => (number.as_str().to_owned(), None),
            _ => return self.wrong_type(entry, "a number"),
        };
        value.or_else(|| {
            self.fail(entry.span(), SpecError::BadNumber { what: entry.key.to_owned(), found, dtype: dtype.name() })
        })
    }

    /// What a name stands for.
    pub(super) fn lookup(&mut self, name: &str, kind: &'static str, span: Span) -> Option<Symbol> {
        if let Some(&symbol) = self.symbols.get(name) {
            return Some(symbol);
        }
        if self.poisoned.contains(name) {
            return None;
        }
        let similar = similar(name, self.symbols.keys().chain(self.dims.keys()).map(String::as_str));
        self.fail(span, ProgramError::UnknownName { kind, name: name.to_owned(), similar })
    }

    /// Notes that a name is declared, though wrongly: its uses are no errors of their own.
    pub(super) fn poison(&mut self, name: &str) {
        self.poisoned.insert(name.to_owned());
    }

    /// Whether a name is declared wrongly.
    pub(super) fn is_poisoned(&self, name: &str) -> bool {
        self.poisoned.contains(name)
    }

    /// The scalar of this name.
    pub(super) fn scalar(&mut self, text: &Text<'_>) -> Option<ScalarId> {
        match self.lookup(text.text, "scalar", text.whole())? {
            Symbol::Scalar(id) => Some(id),
            other => {
                let (name, found) = (text.text.to_owned(), symbol_kind(other));
                self.fail(text.whole(), SpecError::WrongKind { name, found, expected: "a scalar" })
            }
        }
    }

    /// Declares a buffer. A taken name keeps its first meaning; validation reports it.
    pub(super) fn declare(&mut self, buffer: Buffer, span: Span) -> BufferId {
        let name = buffer.name.clone();
        let id = self.program.buffers.push(buffer);
        self.origin(Item::Buffer(id), span);
        self.symbols.entry(name).or_insert(Symbol::Buffer(id));
        id
    }

    /// Declares the `Temp` that a node's output needs.
    pub(super) fn declare_temp(&mut self, name: &str, dtype: DType, shape: Shape, span: Span) -> BufferId {
        let name = name.to_owned();
        self.declare(Buffer { name, dtype, shape, role: Role::Temp, init: Init::Zeros, tap: false }, span)
    }
}

/// What a name stands for, in words.
pub(super) const fn symbol_kind(symbol: Symbol) -> &'static str {
    match symbol {
        Symbol::Buffer(_) => "a buffer",
        Symbol::Group(_) => "a group",
        Symbol::Scalar(_) => "a scalar",
    }
}

fn one_of<T>(words: &[(&'static str, T)]) -> String {
    let listed: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
    format!("one of {}", listed.join(", "))
}

fn describe(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
