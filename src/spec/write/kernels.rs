//! Declarations of kernels that are not the library's.

use indexmap::IndexSet;

use super::line;
use super::toml::{list, numbers, quoted, single_key};
use crate::entity::KernelId;
use crate::ir::{Dim, KernelDecl, KernelParam, LaunchRule, NodeOp, ParamClass, Program};
use crate::kernel::registry;

/// Writes one table per kernel that the library does not have. Where the order of kernels is not the one in which they are
/// found when the spec is read, those of the library have tables too.
pub(super) fn write(text: &mut String, program: &Program) {
    let own = || program.kernels.iter().filter(|(_, decl)| !is_library(decl)).map(|(id, _)| id);
    let found = own().chain(first_calls(program).into_iter().filter(|&id| is_library(&program.kernels[id])));
    let in_order = found.eq(program.kernels.keys());
    for decl in program.kernels.values() {
        if !is_library(decl) {
            write_kernel(text, decl);
        } else if !in_order {
            line(text, format_args!("\n[kernel.{}]\nlibrary = true", single_key(&decl.name)));
        }
    }
}

fn is_library(decl: &KernelDecl) -> bool {
    registry::find(&decl.name).is_some_and(|known| known.decl == *decl)
}

/// The kernels that nodes call, in the order of their first call in the text.
fn first_calls(program: &Program) -> IndexSet<KernelId> {
    let mut calls = IndexSet::new();
    for step in program.steps.values() {
        for phase in step.phases.values() {
            for node in step.walk(&phase.nodes) {
                if let NodeOp::Kernel(call) = &step.nodes[node].op {
                    calls.insert(call.kernel);
                }
            }
        }
    }
    calls
}

fn write_kernel(text: &mut String, decl: &KernelDecl) {
    line(text, format_args!("\n[kernel.{}]", single_key(&decl.name)));
    line(text, format_args!("file = {}", quoted(&decl.source.file)));
    let params: Vec<_> = decl.params.iter().map(|own| format!("{} = {}", single_key(&own.name), param(own))).collect();
    if !params.is_empty() {
        line(text, format_args!("params = {{ {} }}", params.join(", ")));
    }
    line(text, format_args!("launch = {{ {} }}", launch(&decl.launch)));
    match &decl.shared.per_unit {
        Some((per_unit, of)) => {
            let base = decl.shared.base;
            line(text, format_args!("shared = {{ base = {base}, per_unit = {per_unit}, of = {} }}", quoted(of)));
        }
        None if decl.shared.base > 0 => line(text, format_args!("shared = {}", decl.shared.base)),
        None => {}
    }
    if let Some(cluster) = &decl.cluster {
        line(text, format_args!("cluster = {}", numbers(cluster)));
    }
    if decl.cooperative {
        line(text, format_args!("cooperative = true"));
    }
    if let Some(pdl) = &decl.pdl {
        line(text, format_args!("pdl = {{ early = {} }}", list(pdl.early.iter().map(String::as_str))));
    }
}

fn param(param: &KernelParam) -> String {
    let mut class = param.class.name().to_owned();
    if param.class != ParamClass::Size {
        class.push_str(&format!("<{}>", param.dtype));
    }
    if let Some(shape) = &param.shape {
        let dims = shape.iter().map(|dim| match dim {
            Dim::Symbol(symbol) => symbol.clone(),
            Dim::Fixed(extent) => extent.to_string(),
        });
        class.push_str(&format!("[{}]", dims.collect::<Vec<_>>().join(", ")));
    }
    quoted(&class)
}

fn launch(rule: &LaunchRule) -> String {
    match rule {
        LaunchRule::Elements { of, block, per_thread } => {
            format!("elements = {}, block = {block}, per_thread = {per_thread}", quoted(of))
        }
        LaunchRule::Rows { of, block } => format!("rows = {}, block = {block}", quoted(of)),
        LaunchRule::Tiles { of, tile, block } => {
            format!("tiles = {}, tile = {}, block = {block}", quoted(of), numbers(tile))
        }
        LaunchRule::Fixed { grid, block } => format!("grid = {}, block = {}", numbers(grid), numbers(block)),
    }
}
