//! Passes: program in, program out; each result is validated again.
//!
//! A pass rewrites the nodes of one step and nothing else: buffers, scalars, kernels and other steps stay as they are, so that
//! all plans of a program agree about persistent memory. What a pass may assume is that its input is valid.

mod edit;
mod epilogue;
mod guard;
mod library;
mod prune;
mod repeat;
mod split;

use crate::entity::StepId;
use crate::ir::{Diagnostics, Item, Program};
use crate::valid::{ValidProgram, validate_rewrite};
use edit::Rewrite;

pub use library::{LibraryEpilogue, library_epilogue};

/// The passes that a plan can name, in the order in which they run.
pub const NAMES: [&str; 2] = ["prune", "epilogue"];

/// Why passes could not run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PassError {
    /// A plan names only passes that exist.
    #[error("there is no pass `{name}`: the passes are {}", NAMES.join(", "))]
    UnknownPass {
        /// What was named.
        name: String,
    },
    /// What a pass makes is a valid program; anything else is a defect of the pass.
    #[error("pass `{pass}` made an invalid program (a defect of stepgraph; leave the pass out): {diagnostics}")]
    BrokenResult {
        /// The pass.
        pass: &'static str,
        /// The rules that its result breaks.
        diagnostics: Diagnostics,
    },
}

type Pass = fn(&Program, StepId) -> Option<Rewrite>;

/// Runs the passes that `wanted` names, in the compiler's own order, and those that always run.
///
/// # Errors
/// Unknown names; and a result that is not valid.
pub fn run(program: &ValidProgram, step: StepId, wanted: &[&str]) -> Result<ValidProgram, PassError> {
    if let Some(name) = wanted.iter().find(|name| !NAMES.contains(name)) {
        return Err(PassError::UnknownPass { name: (*name).to_owned() });
    }
    let mut program = program.clone();
    for (name, pass) in passes(wanted) {
        program = apply(name, pass, program, step)?;
    }
    Ok(program)
}

/// The passes in order: cleaning, then fusion, then lowering.
fn passes(wanted: &[&str]) -> Vec<(&'static str, Pass)> {
    let choices: [(&str, Pass); NAMES.len()] = [("prune", prune::prune), ("epilogue", epilogue::epilogue)];
    let mut list: Vec<_> = choices.into_iter().filter(|(name, _)| wanted.contains(name)).collect();
    list.extend([("split", split::split as Pass), ("guard", guard::guard)]);
    list
}

/// Puts one variant of a step, after all other passes, into a loop that runs it `count` times.
///
/// # Errors
/// A result that is not valid.
pub fn looped(
    program: ValidProgram,
    step: StepId,
    variant: Option<&str>,
    count: u32,
) -> Result<ValidProgram, PassError> {
    apply("loop", |program, step| Some(repeat::repeat(program, step, variant, count)), program, step)
}

fn apply(
    name: &'static str,
    pass: impl FnOnce(&Program, StepId) -> Option<Rewrite>,
    program: ValidProgram,
    step: StepId,
) -> Result<ValidProgram, PassError> {
    let _span = tracing::debug_span!("pass", name).entered();
    let Some(rewrite) = pass(program.program(), step) else { return Ok(program) };
    let mut origins = program.origins().clone();
    origins.renumber(step, |node| rewrite.nodes[node], |phase| rewrite.phases[phase]);
    for (node, stands_for) in rewrite.made {
        origins.set(Item::Node(step, node), origins.get(&stands_for));
    }
    validate_rewrite(rewrite.program, origins, &program)
        .map_err(|diagnostics| PassError::BrokenResult { pass: name, diagnostics })
}
