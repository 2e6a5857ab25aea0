//! Programs as text: reads TOML specs, and writes any program in canonical form.
//!
//! A spec is declarations of memory and one table per phase, with one node a line; the node's key is its name and names its
//! output. Reading resolves every name, shape and dimension, and gives the same [`Program`] that the Rust API makes;
//! it reports all errors at once, each with the bytes that it is about. Nothing here decides whether the program makes sense:
//! validation does.
//!
//! ```
//! use stepgraph::spec::{self, SpecOptions};
//!
//! let text = r#"
//! program = "axpy"
//! dims = { B = 8 }
//! [scalar]
//! rate = { init = 0.5, writer = "host" }
//! [input]
//! x = ["B", 4]
//! [param]
//! w = { shape = [3, 4], init = { normal = 0.1 } }
//! [output]
//! y = ["B", 3]
//! [forward.main]
//! h = { gemm = "x @ w'", then = "relu(acc)" }
//! y = { map = "h * rate" }
//! "#;
//! let parsed = spec::parse(text, &SpecOptions::default())?;
//! let again = spec::parse(&spec::write(&parsed.program), &SpecOptions::default())?;
//! assert_eq!(again.program, parsed.program);
//! # Ok::<(), spec::SpecErrors>(())
//! ```

mod context;
mod dims;
mod document;
mod error;
mod expr;
mod kernels;
mod memory;
mod nodes;
mod random;
mod space;
mod syntax;
#[cfg(test)]
mod tests;
mod view;
mod write;

use std::path::Path;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

pub use context::SpecOptions;
pub use error::{Labelled, SpecError, SpecErrors};
pub use write::write;

use crate::ir::{Item, Origins, Program, Role};
use crate::kernel::HostFns;
use context::Context;
use document::{Entry, Fields, entries, similar};

/// A spec that was read; validation has not seen it.
#[derive(Clone, Debug)]
pub struct ParsedSpec {
    /// The file's name, as messages show it.
    pub name: String,
    /// The spec's text.
    pub source_text: Arc<str>,
    /// The program.
    pub program: Program,
    /// Where its parts stand in the text.
    pub origins: Origins,
    /// The host functions of its kernels.
    pub host_fns: HostFns,
}

/// Reads a spec file. `.cu` files are looked up beside it, unless the options say otherwise.
///
/// # Errors
/// Everything that is wrong with the file and its text.
pub fn read(path: &Path, options: &SpecOptions) -> Result<ParsedSpec, SpecErrors> {
    let name = path.display().to_string();
    let fail = |error| SpecErrors::new(&name, Arc::from(""), vec![Labelled { error, span: 0..0 }]);
    let bytes = crate::file::read_text(path)
        .map_err(|error| fail(SpecError::Unreadable { path: name.clone(), reason: error.to_string() }))?;
    let text = String::from_utf8(bytes)
        .map_err(|error| fail(SpecError::NotUtf8 { path: name.clone(), offset: error.utf8_error().valid_up_to() }))?;
    let base = options.base.clone().or_else(|| path.parent().map(Path::to_path_buf));
    parse(&text, &SpecOptions { name: name.clone(), base, ..options.clone() })
}

/// Reads a spec.
///
/// # Errors
/// Everything that is wrong with its text, in the order of the text. What a wrong declaration leads to is not reported.
pub fn parse(text: &str, options: &SpecOptions) -> Result<ParsedSpec, SpecErrors> {
    let name = if options.name.is_empty() { "spec" } else { &options.name };
    let (document, faults) = DeTable::parse_recoverable(text);
    if !faults.is_empty() {
        let labelled = faults.into_iter().map(|fault| Labelled {
            error: SpecError::Toml { reason: fault.message().to_owned() },
            span: fault.span().unwrap_or(0..0),
        });
        return Err(SpecErrors::new(name, text.into(), labelled.collect()));
    }
    let mut cx = Context::new(text, options);
    program(&mut cx, document.get_ref());
    let Context { errors, program, origins, host_fns, .. } = cx;
    if !errors.is_empty() {
        return Err(SpecErrors::new(name, text.into(), errors));
    }
    Ok(ParsedSpec { name: name.to_owned(), source_text: text.into(), program, origins, host_fns })
}

/// The tables that declare memory and kernels; any other table is a step.
const DECLARATIONS: [&str; 9] = ["scalar", "input", "param", "state", "temp", "output", "buffer", "group", "kernel"];

fn program<'d>(cx: &mut Context<'_>, table: &'d DeTable<'d>) {
    let mut fields = Fields::new("the spec".into(), 0..0, table);
    if let Some(entry) = fields.need(cx, "program")
        && let Some(name) = cx.text(&entry, "the program's name")
    {
        cx.program.name = name.text.to_owned();
        cx.origin(Item::Program, name.whole());
    }
    let table = dims::take(cx, &mut fields);
    dims::declare(cx, table);
    let mut steps = Vec::new();
    for entry in fields.rest() {
        match entry.key {
            "scalar" => memory::scalars(cx, &entry),
            "buffer" => memory::buffers(cx, &entry, None),
            "group" => memory::groups(cx, &entry),
            "kernel" => kernels::declare(cx, &entry),
            "step" => steps.extend(entry.table().map(entries).unwrap_or_default()),
            key => match Role::ALL.into_iter().find(|role| role.name() == key) {
                Some(role) => memory::buffers(cx, &entry, Some(role)),
                None if is_step(&entry) => steps.push(entry),
                None => unknown_table(cx, &entry),
            },
        }
    }
    steps.sort_by_key(|entry| entry.key_span().start);
    for step in &steps {
        nodes::step(cx, step);
    }
}

/// A step is a table with phases; a table that resembles a declaration's must have a node to count as one.
fn is_step(entry: &Entry<'_>) -> bool {
    let Some(table) = entry.table() else { return false };
    match similar(entry.key, DECLARATIONS) {
        Some(_) => table.values().any(|phase| has_node(phase.get_ref())),
        None => {
            let is_phase = |value: &DeValue<'_>| value.is_table() || value.is_array();
            table.is_empty() || table.values().any(|value| is_phase(value.get_ref()))
        }
    }
}

fn has_node(value: &DeValue<'_>) -> bool {
    match value {
        DeValue::Array(elements) => elements.iter().any(|element| has_node(element.get_ref())),
        DeValue::Table(table) => {
            let is_kind = |kind: &&str| table.get(*kind).is_some_and(|value| !value.get_ref().is_table());
            nodes::KINDS.iter().any(is_kind) || table.values().any(|value| has_node(value.get_ref()))
        }
        _ => false,
    }
}

/// Whether a step of this name needs no `step.` before it.
fn is_plain_step_name(name: &str) -> bool {
    !DECLARATIONS.contains(&name) && !["program", "dims", "step"].contains(&name)
}

fn unknown_table(cx: &mut Context<'_>, entry: &Entry<'_>) {
    let similar = similar(entry.key, DECLARATIONS.into_iter().chain(["program", "dims"]));
    let error = SpecError::UnknownKey { place: "the spec".into(), key: entry.key.to_owned(), similar };
    cx.error(entry.key_span(), error);
}
