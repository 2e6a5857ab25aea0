//! Setters: the kernels that tell a conditional node what to run.
//!
//! A loop's workspace holds its counter and its bound, so that a body may not change either. After the loop its index cell,
//! if it has one, holds the number of iterations that ran.

use super::kernel::{Draft, GeneratedKernel};
use super::params::Params;
use crate::entity::ScalarId;
use crate::ir::{LaunchConfig, LoopBound};

/// Sets an If: body 0 where the cell is not 0, else body 1.
pub(super) fn if_setter(draft: &Draft<'_>, condition: ScalarId) -> GeneratedKernel {
    let params = setter_params(draft, &[(condition, false)]);
    let body = format!("    cudaGraphSetConditional(condition, *{} != 0u);\n", params.scalar(condition));
    finish(draft, "__set", "if", params, &body)
}

/// Sets a Switch: the body whose number the cell holds; past the last one nothing runs.
pub(super) fn switch_setter(draft: &Draft<'_>, selector: ScalarId) -> GeneratedKernel {
    let params = setter_params(draft, &[(selector, false)]);
    let body = format!("    cudaGraphSetConditional(condition, *{});\n", params.scalar(selector));
    finish(draft, "__set", "switch", params, &body)
}

/// Sets a While at its entry, and at the end of its body.
pub(super) fn while_setters(
    draft: &Draft<'_>,
    max: LoopBound,
    index: Option<ScalarId>,
    until: Option<ScalarId>,
) -> Vec<GeneratedKernel> {
    vec![enter(draft, max, index, until), advance(draft, index, until)]
}

fn enter(draft: &Draft<'_>, max: LoopBound, index: Option<ScalarId>, until: Option<ScalarId>) -> GeneratedKernel {
    let bound_cell = match max {
        LoopBound::Const(_) => None,
        LoopBound::Scalar(scalar) => Some((scalar, false)),
    };
    let written = index.into_iter().chain(until).map(|cell| (cell, true));
    let cells: Vec<_> = bound_cell.into_iter().chain(written).collect();
    let params = loop_params(draft, &cells);
    let bound = match max {
        LoopBound::Const(max) => format!("{max}u"),
        LoopBound::Scalar(scalar) => format!("*{}", params.scalar(scalar)),
    };
    let mut body = format!("    const unsigned int max = {bound};\n    loop[0] = 0u;\n    loop[1] = max;\n");
    for cell in index.into_iter().chain(until) {
        body.push_str(&format!("    *{} = 0u;\n", params.scalar(cell)));
    }
    body.push_str("    cudaGraphSetConditional(condition, max > 0u && *stop == 0u);\n");
    finish(draft, "__enter", "loop entry", params, &body)
}

fn advance(draft: &Draft<'_>, index: Option<ScalarId>, until: Option<ScalarId>) -> GeneratedKernel {
    let cells: Vec<_> = index.map(|cell| (cell, true)).into_iter().chain(until.map(|cell| (cell, false))).collect();
    let params = loop_params(draft, &cells);
    let mut body = String::from("    const unsigned int done = loop[0] + 1u;\n    loop[0] = done;\n");
    if let Some(cell) = index {
        body.push_str(&format!("    *{} = done;\n", params.scalar(cell)));
    }
    let until = until.map_or_else(String::new, |cell| format!(" && *{} == 0u", params.scalar(cell)));
    body.push_str(&format!("    cudaGraphSetConditional(condition, done < loop[1]{until} && *stop == 0u);\n"));
    finish(draft, "__next", "end of the loop's body", params, &body)
}

fn setter_params<'a>(draft: &Draft<'a>, cells: &[(ScalarId, bool)]) -> Params<'a> {
    let mut params = Params::new(draft.program);
    params.add_condition();
    cells.iter().for_each(|&(cell, written)| params.add_scalar(cell, written));
    params
}

fn loop_params<'a>(draft: &Draft<'a>, cells: &[(ScalarId, bool)]) -> Params<'a> {
    let mut params = setter_params(draft, cells);
    params.add_stop();
    params.add_workspace("loop", "unsigned int", true);
    params
}

fn finish(draft: &Draft<'_>, suffix: &str, what: &str, params: Params<'_>, body: &str) -> GeneratedKernel {
    draft.finish(suffix, what, params, LaunchConfig::linear(1, 1), body)
}
