//! Buffers, groups and scalars: the tables that declare a program's memory.

use toml::de::{DeTable, DeValue};

use super::context::{Context, symbol_kind};
use super::document::{Entry, Fields, Text, flatten};
use super::error::SpecError;
use crate::entity::{BufferId, GroupId};
use crate::ir::{Buffer, ConstValue, DType, Group, Init, Item, ProgramError, Role, Scalar, Shape, Symbol, Writer};

/// Reads `[input]`, `[param]`, `[state]`, `[temp]` or `[output]`; or `[buffer]`, whose entries name their role.
pub(super) fn buffers(cx: &mut Context<'_>, entry: &Entry<'_>, role: Option<Role>) {
    let Some(table) = entry.table() else {
        let _: Option<()> = cx.wrong_type(entry, "a table of buffers");
        return;
    };
    for (name, entry) in flatten(table, is_buffer) {
        if buffer(cx, &name, &entry, role).is_none() {
            cx.poison(&name);
        }
    }
}

/// A table declares a buffer where it has a shape, or anything else that only a declaration has.
fn is_buffer(table: &DeTable<'_>) -> bool {
    let declares = |key: &str, value: &DeValue<'_>| match value {
        DeValue::Array(_) => key == "shape",
        DeValue::Table(_) => false,
        _ => true,
    };
    table.iter().any(|(key, value)| declares(key.get_ref(), value.get_ref()))
}

fn buffer(cx: &mut Context<'_>, name: &str, entry: &Entry<'_>, role: Option<Role>) -> Option<()> {
    let mut buffer = Buffer {
        name: name.to_owned(),
        dtype: DType::F32,
        shape: Shape::SCALAR,
        role: role.unwrap_or(Role::State),
        init: Init::Zeros,
        tap: false,
    };
    let Some(table) = entry.table() else {
        buffer.shape = cx.shape(name, entry)?;
        if role.is_none() {
            return cx.fail(entry.span(), SpecError::MissingKey { place: format!("buffer `{name}`"), key: "role" });
        }
        cx.declare(buffer, entry.whole());
        return Some(());
    };
    let mut fields = Fields::new(["buffer `", name, "`"].concat(), entry.key_span(), table);
    let shape = fields.need(cx, "shape").and_then(|shape| cx.shape(name, &shape));
    let dtype = fields.take("type");
    let dtype = cx.dtype(dtype);
    if role.is_none() {
        let role = fields.need(cx, "role");
        buffer.role = role.and_then(|role| cx.choice(&role, &Role::ALL.map(|role| (role.name(), role))))?;
    }
    // Only what keeps its contents has a first value, and only a Temp's memory can be reused: elsewhere the keys are unknown.
    if matches!(buffer.role, Role::Param | Role::State)
        && let Some(entry) = fields.take("init")
    {
        buffer.init = init(cx, &entry)?;
    }
    if buffer.role == Role::Temp
        && let Some(entry) = fields.take("tap")
    {
        buffer.tap = cx.boolean(&entry)?;
    }
    fields.finish(cx);
    (buffer.shape, buffer.dtype) = (shape?, dtype?);
    cx.declare(buffer, entry.whole());
    Some(())
}

fn init(cx: &mut Context<'_>, entry: &Entry<'_>) -> Option<Init> {
    let constant = |value: ConstValue| f32::from_bits(value.bits());
    let Some(table) = entry.table() else {
        if matches!(entry.value, DeValue::String(text) if text == "zeros") {
            return Some(Init::Zeros);
        }
        return cx.constant(entry, DType::F32).map(|value| Init::Constant(constant(value)));
    };
    let mut fields = Fields::new("init".into(), entry.span(), table);
    fields.exclusive(cx, "uniform", "normal");
    let (uniform, normal) = (fields.take("uniform"), fields.take("normal"));
    fields.finish(cx);
    match (uniform, normal) {
        (Some(bound), _) => Some(Init::Uniform { bound: constant(cx.constant(&bound, DType::F32)?) }),
        (None, Some(std)) => Some(Init::Normal { std: constant(cx.constant(&std, DType::F32)?) }),
        (None, None) => cx.wrong_type(entry, "a number, \"zeros\", { uniform = … } or { normal = … }"),
    }
}

/// Reads `[scalar]`.
pub(super) fn scalars(cx: &mut Context<'_>, entry: &Entry<'_>) {
    let Some(table) = entry.table() else {
        let _: Option<()> = cx.wrong_type(entry, "a table of scalars");
        return;
    };
    for (name, entry) in flatten(table, is_scalar) {
        if scalar(cx, &name, &entry).is_none() {
            cx.poison(&name);
        }
    }
}

fn is_scalar(table: &DeTable<'_>) -> bool {
    let key = |key: &str| table.get(key).is_some_and(|value| !matches!(value.get_ref(), DeValue::Table(_)));
    key("init") || key("type") || key("writer") || table.is_empty()
}

fn scalar(cx: &mut Context<'_>, name: &str, entry: &Entry<'_>) -> Option<()> {
    let (writer, init) = match entry.table() {
        None => (Writer::Host, cx.constant(entry, DType::F32)?),
        Some(table) => {
            let mut fields = Fields::new(format!("scalar `{name}`"), entry.key_span(), table);
            let dtype = fields.take("type");
            let dtype = cx.dtype(dtype);
            let writer = fields.need(cx, "writer");
            let words = [Writer::Host, Writer::Device].map(|writer| (writer.name(), writer));
            let writer = writer.and_then(|writer| cx.choice(&writer, &words));
            let init = fields.take("init");
            fields.finish(cx);
            let dtype = dtype.filter(|_| writer.is_some())?;
            let Some(zero) = ConstValue::from_bits(dtype, 0) else {
                let remedy = "scalars are f32, i32 or u32";
                let error = ProgramError::UnsupportedType { what: name.to_owned(), found: dtype, remedy };
                return cx.fail(entry.span(), error);
            };
            (writer?, init.map_or(Some(zero), |init| cx.constant(&init, dtype))?)
        }
    };
    let id = cx.program.scalars.push(Scalar { name: name.to_owned(), writer, init });
    cx.origin(Item::Scalar(id), entry.whole());
    cx.symbols.entry(name.to_owned()).or_insert(Symbol::Scalar(id));
    Some(())
}

/// Reads `[group]`.
pub(super) fn groups(cx: &mut Context<'_>, entry: &Entry<'_>) {
    let Some(table) = entry.table() else {
        let _: Option<()> = cx.wrong_type(entry, "a table of groups");
        return;
    };
    let is_group = |table: &DeTable<'_>| table.get("like").is_some_and(|like| like.get_ref().is_str());
    for (name, entry) in flatten(table, is_group) {
        let members = match entry.table() {
            Some(table) => members_like(cx, &name, &entry, table),
            None => members(cx, &entry),
        };
        let Some(members) = members else {
            cx.poison(&name);
            continue;
        };
        let id = cx.program.groups.push(Group { name: name.clone(), members });
        cx.origin(Item::Group(id), entry.whole());
        cx.symbols.entry(name).or_insert(Symbol::Group(id));
    }
}

fn members(cx: &mut Context<'_>, entry: &Entry<'_>) -> Option<Vec<BufferId>> {
    let names = cx.texts(entry, "a list of buffers, or { like = …, role = … }")?;
    let members: Vec<_> = names.iter().map(|name| member(cx, name)).collect();
    members.into_iter().collect()
}

fn member(cx: &mut Context<'_>, name: &Text<'_>) -> Option<BufferId> {
    match cx.lookup(name.text, "buffer", name.whole())? {
        Symbol::Buffer(buffer) => Some(buffer),
        other => wrong_kind(cx, name, other, "a buffer"),
    }
}

fn wrong_kind<T>(cx: &mut Context<'_>, name: &Text<'_>, found: Symbol, expected: &'static str) -> Option<T> {
    let (name, span) = (name.text.to_owned(), name.whole());
    cx.fail(span, SpecError::WrongKind { name, found: symbol_kind(found), expected })
}

/// Declares one buffer `prefix.member` per member of another group.
fn members_like(cx: &mut Context<'_>, name: &str, entry: &Entry<'_>, table: &DeTable<'_>) -> Option<Vec<BufferId>> {
    let mut fields = Fields::new(format!("group `{name}`"), entry.key_span(), table);
    let like = fields.need(cx, "like").and_then(|like| cx.text(&like, "the name of a group"));
    let role = fields.need(cx, "role");
    let role = role.and_then(|role| cx.choice(&role, &Role::ALL.map(|role| (role.name(), role))));
    let prefix = fields.take("prefix").map(|prefix| cx.text(&prefix, "the first part of the members' names"));
    let first = match fields.take("init") {
        Some(entry) => init(cx, &entry),
        None => Some(Init::Zeros),
    };
    fields.finish(cx);
    let prefix = prefix.map_or(Some(name), |prefix| prefix.map(|prefix| prefix.text))?;
    let (role, first) = (role?, first?);
    let group = liked(cx, &like?)?;
    let members = cx.program.groups[group].members.clone();
    let declared = members.into_iter().map(|member| {
        let like = cx.program.buffers[member].clone();
        let name = [prefix, ".", &like.name].concat();
        cx.declare(Buffer { name, role, init: first, tap: false, ..like }, entry.whole())
    });
    Some(declared.collect())
}

fn liked(cx: &mut Context<'_>, name: &Text<'_>) -> Option<GroupId> {
    match cx.lookup(name.text, "group", name.whole())? {
        Symbol::Group(group) => Some(group),
        other => wrong_kind(cx, name, other, "a group"),
    }
}
