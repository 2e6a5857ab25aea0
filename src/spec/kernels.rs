//! Kernels that a spec names: those of the library, and those of `.cu` files under `[kernel]`.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use toml::de::DeValue;

use super::context::Context;
use super::document::{Entry, Fields, Span, Text, entries, similar};
use super::error::SpecError;
use crate::entity::{GroupId, KernelId};
use crate::ir::{
    DType, Dim, Item, KernelDecl, KernelParam, KernelSource, LaunchRule, ParamClass, PdlContract, Program,
    ProgramError, SharedRule,
};
use crate::kernel::signature::{self, CParam, Passing, Signature};
use crate::kernel::{KernelDef, registry};

/// The kernels of one spec by name.
pub(super) type KernelTable = FxHashMap<String, KernelId>;

/// The kernel of this name. A program has the kernels that its spec declares, then those of the library that its nodes call,
/// in the order of their first call.
pub(super) fn find(cx: &mut Context<'_>, name: &Text<'_>) -> Option<KernelId> {
    if let Some(&id) = cx.kernels.get(name.text) {
        return Some(id);
    }
    if cx.is_poisoned(&poison_key(name.text)) {
        return None;
    }
    match registry::find(name.text) {
        Some(def) => Some(add(cx, def, name.whole())),
        None => unknown(cx, name),
    }
}

fn add(cx: &mut Context<'_>, def: KernelDef, span: Span) -> KernelId {
    let name = def.decl.name.clone();
    let id = cx.program.kernels.push(def.decl);
    cx.host_fns[id] = def.host;
    cx.origin(Item::Kernel(id), span);
    cx.kernels.insert(name, id);
    id
}

fn unknown<T>(cx: &mut Context<'_>, name: &Text<'_>) -> Option<T> {
    let mut known: Vec<_> = registry::names().map(str::to_owned).collect();
    known.extend(cx.program.kernels.values().map(|decl| decl.name.clone()));
    let (name, span) = (name.text.to_owned(), name.whole());
    let similar = similar(&name, known);
    cx.fail(span, ProgramError::UnknownName { kind: "kernel", name, similar })
}

/// The length of a group as one flat array, padding included.
pub(super) fn group_elements(program: &Program, group: GroupId) -> Option<u32> {
    let first = program.groups[group].members.first()?;
    let (_, bytes) = program.group_layout(group);
    u32::try_from(bytes / program.buffers[*first].dtype.size()).ok()
}

/// Kernels have names of their own.
fn poison_key(name: &str) -> String {
    format!("kernel {name}")
}

/// Reads `[kernel]`.
pub(super) fn declare(cx: &mut Context<'_>, entry: &Entry<'_>) {
    let Some(table) = entry.table() else {
        let _: Option<()> = cx.wrong_type(entry, "a table of kernels");
        return;
    };
    for entry in entries(table) {
        match kernel(cx, &entry) {
            Some(def) => drop(add(cx, def, entry.key_span())),
            None => cx.poison(&poison_key(entry.key)),
        }
    }
}

fn kernel(cx: &mut Context<'_>, entry: &Entry<'_>) -> Option<KernelDef> {
    let Some(table) = entry.table() else { return cx.wrong_type(entry, "a table that declares a kernel") };
    let mut fields = Fields::new(format!("kernel `{}`", entry.key), entry.key_span(), table);
    if let Some(library) = fields.take("library") {
        return from_library(cx, entry, fields, &library);
    }
    let file = fields.need(cx, "file").and_then(|file| cx.text(&file, "the name of a .cu file"));
    let params = fields.take("params");
    let launch = fields.need(cx, "launch").and_then(|launch| launch_rule(cx, &launch));
    let shared = fields.take("shared").map_or(Some(SharedRule::default()), |shared| shared_rule(cx, &shared));
    let cluster = fields.take("cluster").map(|cluster| cx.unsigned_array::<3>(&cluster));
    let cooperative = fields.take("cooperative").map_or(Some(false), |entry| cx.boolean(&entry));
    let pdl = fields.take("pdl").map(|pdl| pdl_contract(cx, &pdl));
    fields.finish(cx);
    let file = file?;
    let text = source(cx, &file)?;
    let signature = signature_of(cx, entry, &file, &text)?;
    let params = parameters(cx, entry, params, &signature)?;
    let decl = KernelDecl {
        name: entry.key.to_owned(),
        source: KernelSource { file: file.text.to_owned(), text },
        params,
        launch: launch?,
        shared: shared?,
        cluster: transposed(cluster)?,
        cooperative: cooperative?,
        pdl: transposed(pdl)?,
    };
    if let Err(fault) = signature::check(&decl) {
        return bad_kernel(cx, entry, file.text, &fault.to_string());
    }
    Some(KernelDef { decl, host: None })
}

/// `{ library = true }`: gives a kernel of the library its place among the others.
fn from_library(cx: &mut Context<'_>, entry: &Entry<'_>, fields: Fields<'_>, library: &Entry<'_>) -> Option<KernelDef> {
    fields.finish(cx);
    if !cx.boolean(library)? {
        return cx.wrong_type(library, "true, or nothing at all");
    }
    let name = Text::new(entry.key, cx.source, entry.key_span());
    registry::find(entry.key).or_else(|| unknown(cx, &name))
}

/// Tells "not given" (`Some(None)`) from "given wrongly" (`None`).
fn transposed<T>(given: Option<Option<T>>) -> Option<Option<T>> {
    match given {
        Some(None) => None,
        Some(Some(value)) => Some(Some(value)),
        None => Some(None),
    }
}

fn bad_kernel<T>(cx: &mut Context<'_>, entry: &Entry<'_>, file: &str, reason: &str) -> Option<T> {
    let (kernel, file, reason) = (entry.key.to_owned(), file.to_owned(), reason.to_owned());
    cx.fail(entry.key_span(), ProgramError::BadKernel { kernel, file, reason })
}

fn source(cx: &mut Context<'_>, file: &Text<'_>) -> Option<Arc<str>> {
    if let Some(text) = cx.options.sources.get(file.text) {
        return Some(Arc::clone(text));
    }
    let read = match &cx.options.base {
        Some(base) => {
            crate::file::read_text(&base.join(file.text)).map_err(|error| error.to_string()).and_then(|bytes| {
                String::from_utf8(bytes).map_err(|error| format!("it is not UTF-8 text: {}", error.utf8_error()))
            })
        }
        None => Err("the spec was not read from a directory".to_owned()),
    };
    match read {
        Ok(text) => Some(text.into()),
        Err(reason) => cx.fail(file.whole(), SpecError::Unreadable { path: file.text.to_owned(), reason }),
    }
}

fn signature_of(cx: &mut Context<'_>, entry: &Entry<'_>, file: &Text<'_>, text: &str) -> Option<Signature> {
    let signatures = match signature::parse(text) {
        Ok(signatures) => signatures,
        Err(error) => return bad_kernel(cx, entry, file.text, &error.to_string()),
    };
    let found = signatures.iter().position(|signature| signature.name == entry.key);
    let Some(at) = found else {
        let names: Vec<_> = signatures.iter().map(|signature| signature.name.as_str()).collect();
        let reason = match names.join(", ") {
            none if none.is_empty() => {
                format!("the file has no kernel: declare one as extern \"C\" __global__ void {}(…) {{ … }}", entry.key)
            }
            names => format!("the file has no such kernel, it has: {names}"),
        };
        return bad_kernel(cx, entry, file.text, &reason);
    };
    signatures.into_iter().nth(at)
}

/// The parameters of the C signature, with the classes and shapes that the spec gives.
fn parameters(
    cx: &mut Context<'_>,
    entry: &Entry<'_>,
    given: Option<Entry<'_>>,
    signature: &Signature,
) -> Option<Vec<KernelParam>> {
    let mut classes = FxHashMap::default();
    if let Some(given) = given {
        let Some(table) = given.table() else {
            return cx.wrong_type(&given, "a table such as { x = \"In[n]\", n = \"Size\" }");
        };
        for given in entries(table) {
            if signature.params.iter().all(|param| param.name != given.key) {
                let similar = similar(given.key, signature.params.iter().map(|param| param.name.as_str()));
                let place = format!("the signature of kernel `{}`", entry.key);
                cx.error(given.key_span(), SpecError::UnknownKey { place, key: given.key.to_owned(), similar });
            }
            classes.insert(given.key, class(cx, &given)?);
        }
    }
    let is_symbol = |name: &str| {
        let shapes = classes.values().filter_map(|class: &Class| class.shape.as_ref()).flatten();
        shapes.into_iter().any(|dim| matches!(dim, Dim::Symbol(symbol) if symbol == name))
    };
    let mut params = Vec::new();
    for param in &signature.params {
        let implied = implied_class(param, is_symbol(&param.name));
        let known = classes.get(param.name.as_str());
        let Some(class) = known.map(|known| known.class.clone()).or(implied) else {
            let place = format!("`params` of kernel `{}`", entry.key);
            let error = SpecError::MissingClass { place, param: param.name.clone(), found: param.to_string() };
            cx.error(entry.key_span(), error);
            continue;
        };
        let dtype = known.and_then(|known| known.dtype).unwrap_or(param.dtype);
        let shape = known.and_then(|known| known.shape.clone());
        params.push(KernelParam { name: param.name.clone(), class, dtype, shape });
    }
    (params.len() == signature.params.len()).then_some(params)
}

/// The class that a C type means where the spec does not say.
fn implied_class(param: &CParam, is_symbol: bool) -> Option<ParamClass> {
    match param.passing {
        Passing::ConstPointer => Some(ParamClass::In),
        Passing::Value if param.dtype == DType::U32 && is_symbol => Some(ParamClass::Size),
        Passing::Value => Some(ParamClass::Const),
        Passing::Pointer => None,
    }
}

/// What `"In<f32>[b, 4]"` says.
struct Class {
    class: ParamClass,
    dtype: Option<DType>,
    shape: Option<Vec<Dim>>,
}

const CLASSES: [ParamClass; 8] = [
    ParamClass::In,
    ParamClass::Out,
    ParamClass::InOut,
    ParamClass::Scalar,
    ParamClass::ScalarOut,
    ParamClass::ScalarInOut,
    ParamClass::Const,
    ParamClass::Size,
];

fn class(cx: &mut Context<'_>, entry: &Entry<'_>) -> Option<Class> {
    let expected = "a class with an optional type and shape, such as \"In\", \"Out[b, h]\" or \"Scalar<u32>\"";
    let text = cx.text(entry, expected)?;
    parse_class(text.text).or_else(|| {
        let (key, found) = (entry.key.to_owned(), format!("\"{}\"", text.text));
        cx.fail(text.whole(), SpecError::WrongType { key, expected: expected.to_owned(), found })
    })
}

fn parse_class(text: &str) -> Option<Class> {
    let text = text.trim();
    let end = text.find(['<', '[']).unwrap_or(text.len());
    let class = CLASSES.into_iter().find(|class| class.name() == text[..end].trim())?;
    let mut rest = &text[end..];
    let mut dtype = None;
    if let Some(inner) = rest.strip_prefix('<') {
        let (name, after) = inner.split_once('>')?;
        dtype = Some(name.trim().parse().ok()?);
        rest = after.trim_start();
    }
    let mut shape = None;
    if let Some(inner) = rest.strip_prefix('[') {
        let (dims, after) = inner.split_once(']')?;
        shape = Some(dims.split(',').filter(|dim| !dim.trim().is_empty()).map(dim).collect::<Option<_>>()?);
        rest = after;
    }
    rest.trim().is_empty().then_some(Class { class, dtype, shape })
}

fn dim(text: &str) -> Option<Dim> {
    let text = text.trim();
    if let Ok(extent) = text.parse() {
        return Some(Dim::Fixed(extent));
    }
    let is_name = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then(|| Dim::Symbol(text.to_owned()))
}

fn launch_rule(cx: &mut Context<'_>, entry: &Entry<'_>) -> Option<LaunchRule> {
    let expected = "a table with one of the keys elements, rows, tiles, grid";
    let Some(table) = entry.table() else { return cx.wrong_type(entry, expected) };
    let mut fields = Fields::new("launch".into(), entry.span(), table);
    let kinds = ["elements", "rows", "tiles"].into_iter().filter(|kind| fields.has(kind)).collect::<Vec<_>>();
    let rule = match kinds[..] {
        [] if fields.has("grid") => {
            let grid = fields.take("grid").and_then(|grid| cx.unsigned_array(&grid));
            let block = fields.need(cx, "block").and_then(|block| cx.unsigned_array(&block));
            grid.zip(block).map(|(grid, block)| LaunchRule::Fixed { grid, block })
        }
        [] => return cx.wrong_type(entry, expected),
        [first, second, ..] => {
            let (place, first, second) = ("launch".into(), first.into(), second.into());
            return cx.fail(entry.span(), SpecError::Conflict { place, first, second });
        }
        [kind] => {
            let of = fields.take(kind).and_then(|of| cx.text(&of, "the name of a buffer argument"));
            let of = of.map(|of| of.text.to_owned());
            let block = fields.need(cx, "block").and_then(|block| cx.unsigned(&block));
            match kind {
                "elements" => {
                    let per_thread = fields.take("per_thread").map_or(Some(1), |entry| cx.unsigned(&entry));
                    of.zip(block.zip(per_thread)).map(|(of, (block, per_thread))| LaunchRule::Elements {
                        of,
                        block,
                        per_thread,
                    })
                }
                "rows" => of.zip(block).map(|(of, block)| LaunchRule::Rows { of, block }),
                _ => {
                    let tile = fields.need(cx, "tile").and_then(|tile| cx.unsigned_array(&tile));
                    of.zip(block.zip(tile)).map(|(of, (block, tile))| LaunchRule::Tiles { of, tile, block })
                }
            }
        }
    };
    fields.finish(cx);
    rule
}

fn shared_rule(cx: &mut Context<'_>, entry: &Entry<'_>) -> Option<SharedRule> {
    if let DeValue::Integer(_) | DeValue::String(_) = entry.value {
        return cx.unsigned(entry).map(|base| SharedRule { base, per_unit: None });
    }
    let Some(table) = entry.table() else {
        return cx.wrong_type(entry, "bytes, or { base = …, per_unit = …, of = \"…\" }");
    };
    let mut fields = Fields::new("shared".into(), entry.span(), table);
    let base = fields.take("base").map_or(Some(0), |base| cx.unsigned(&base));
    let per_unit = fields.need(cx, "per_unit").and_then(|entry| cx.unsigned(&entry));
    let of = fields.need(cx, "of").and_then(|of| cx.text(&of, "a symbol of the kernel's shapes"));
    fields.finish(cx);
    Some(SharedRule { base: base?, per_unit: Some((per_unit?, of?.text.to_owned())) })
}

fn pdl_contract(cx: &mut Context<'_>, entry: &Entry<'_>) -> Option<PdlContract> {
    let Some(table) = entry.table() else { return cx.wrong_type(entry, "{ early = […] }") };
    let mut fields = Fields::new("pdl".into(), entry.span(), table);
    let early = fields.need(cx, "early").and_then(|early| cx.texts(&early, "a list of arguments"));
    fields.finish(cx);
    Some(PdlContract { early: early?.iter().map(|name| name.text.to_owned()).collect() })
}
