//! Scalars, buffers and groups.

use super::implied::Implied;
use super::line;
use super::toml::{Keys, constant, float, list, quoted, shape};
use crate::ir::{Buffer, DType, Init, Program, Role, Scalar};

/// Writes every scalar, every buffer that no node declares, and every group.
pub(super) fn write(text: &mut String, program: &Program, implied: &Implied) {
    if !program.scalars.is_empty() {
        line(text, format_args!("\n[scalar]"));
        let keys = Keys::new(program.scalars.values().map(|scalar| scalar.name.as_str()));
        for declared in program.scalars.values() {
            line(text, format_args!("{} = {}", keys.key(&declared.name), scalar(declared)));
        }
    }
    let buffers: Vec<_> = program.buffers.iter().filter(|(id, _)| !implied.has(*id)).map(|(_, own)| own).collect();
    write_buffers(text, &buffers);
    if !program.groups.is_empty() {
        line(text, format_args!("\n[group]"));
        let keys = Keys::new(program.groups.values().map(|group| group.name.as_str()));
        for group in program.groups.values() {
            let members = group.members.iter().map(|&member| program.buffers[member].name.as_str());
            line(text, format_args!("{} = {}", keys.key(&group.name), list(members)));
        }
    }
}

fn scalar(scalar: &Scalar) -> String {
    let mut fields = Vec::new();
    if scalar.init.dtype() != DType::F32 {
        fields.push(format!("type = {}", quoted(scalar.init.dtype().name())));
    }
    if scalar.init.bits() != 0 {
        fields.push(format!("init = {}", constant(scalar.init)));
    }
    fields.push(format!("writer = {}", quoted(scalar.writer.name())));
    format!("{{ {} }}", fields.join(", "))
}

/// One table per role, in the order in which roles come; one table for all where roles alternate, because order is memory.
fn write_buffers(text: &mut String, buffers: &[&Buffer]) {
    let runs: Vec<_> = buffers.chunk_by(|a, b| a.role == b.role).collect();
    let apart = Role::ALL.iter().all(|role| runs.iter().filter(|run| run[0].role == *role).count() <= 1);
    if !apart {
        write_table(text, "buffer", buffers, true);
        return;
    }
    for run in runs {
        write_table(text, run[0].role.name(), run, false);
    }
}

fn write_table(text: &mut String, name: &str, buffers: &[&Buffer], with_role: bool) {
    line(text, format_args!("\n[{name}]"));
    let keys = Keys::new(buffers.iter().map(|buffer| buffer.name.as_str()));
    for declared in buffers {
        line(text, format_args!("{} = {}", keys.key(&declared.name), buffer(declared, with_role)));
    }
}

fn buffer(buffer: &Buffer, with_role: bool) -> String {
    let mut fields = Vec::new();
    if with_role {
        fields.push(format!("role = {}", quoted(buffer.role.name())));
    }
    if buffer.dtype != DType::F32 {
        fields.push(format!("type = {}", quoted(buffer.dtype.name())));
    }
    match buffer.init {
        Init::Zeros => {}
        Init::Constant(value) => fields.push(format!("init = {}", float(value))),
        Init::Uniform { bound } => fields.push(format!("init = {{ uniform = {} }}", float(bound))),
        Init::Normal { std } => fields.push(format!("init = {{ normal = {} }}", float(std))),
    }
    if buffer.tap {
        fields.push("tap = true".to_owned());
    }
    if fields.is_empty() {
        return shape(&buffer.shape);
    }
    fields.insert(0, format!("shape = {}", shape(&buffer.shape)));
    format!("{{ {} }}", fields.join(", "))
}
