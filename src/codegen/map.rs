//! Element-wise nodes.

use super::coords::Coords;
use super::kernel::{Draft, GeneratedKernel};
use super::params::Params;
use super::printer::Printer;
use super::schedule::{BLOCK, map_launch};
use crate::ir::{Map, Shape, ValueType};

/// The kernel of a map: one thread per element, all loads of an element before its stores.
pub(super) fn kernel(draft: &Draft<'_>, map: &Map) -> GeneratedKernel {
    let mut params = Params::new(draft.program);
    params.add_expr(&map.expr);
    params.add_stores(&map.stores);
    let coords = Coords::linear(map.space, "element");
    let mut printer = Printer::new(draft.program, &params, coords, 'v', &map.expr, ValueType::F32);
    let (values, stores) = (printer.values("    "), printer.stores(&map.stores, "    "));
    let body = element_body(&map.space, &printer.coords, &(values + &stores));
    let what = format!("map over {}", map.space);
    draft.finish("", &what, params, map_launch(&map.space), &body)
}

/// The body of a kernel with one thread per element.
pub(super) fn element_body(space: &Shape, coords: &Coords, work: &str) -> String {
    let declarations = coords.declarations("element", "    ");
    format!(
        "    const unsigned int element = blockIdx.x * {BLOCK}u + threadIdx.x;\n    if (element >= {}u) return;\n{declarations}{work}",
        space.elements()
    )
}
