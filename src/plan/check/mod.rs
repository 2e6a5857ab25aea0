//! The proof of a plan: order and memory are derived again from the program, without the planner's analysis.
//!
//! Order is proven by reachability over the plan's edges; memory by who owned each byte before. Launches, and the sizes of
//! workspaces, must be what the declarations give, by the same functions as in planning. Which inputs repeated steps may read is
//! asked of the analysis: that rule is about what users mean, since steps that read the same leave the bits of single launches.
//! Nothing here repairs a plan or knows how it was made.

mod memory;
mod order;
mod pdl;
mod reach;
mod structure;

use super::types::{Region, StepPlan};

/// A rule that a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// A plan is of a step of its program.
    #[error("the program has no {step}")]
    UnknownStep {
        /// What the plan is of.
        step: String,
    },
    /// A plan has one graph per phase of its variant, or one in all.
    #[error("the plan has {found} graphs, expected {expected}")]
    GraphCount {
        /// How many it has.
        found: usize,
        /// How many it needs.
        expected: usize,
    },
    /// A plan makes at least one step, and one that loops is a loop of so many steps and nothing else.
    #[error("the plan does not {expected}: a loop is the step's only node, in one graph, and no plan makes 0 steps")]
    WrongRepeat {
        /// What it should do.
        expected: String,
    },
    /// The steps of a plan of several read no input in the same places.
    #[error("unit `{unit}` reads the same part of the input `{input}` in every step of a plan of several")]
    RepeatedInput {
        /// The unit.
        unit: String,
        /// The input.
        input: String,
    },
    /// Each node that runs is one unit in each step of the plan, in the body where the program has it.
    #[error("node `{node}` is missing from its body")]
    MissingNode {
        /// The node.
        node: String,
    },
    /// No unit stands anywhere else.
    #[error("unit `{unit}` {reason}")]
    MisplacedUnit {
        /// The unit.
        unit: String,
        /// What is wrong with its place.
        reason: &'static str,
    },
    /// A unit's work fits its node: its kind, its launch, its schedule.
    #[error("unit `{unit}` runs as {found}, its node gives {expected}")]
    WrongWork {
        /// The unit.
        unit: String,
        /// How it runs.
        found: String,
        /// How it must run.
        expected: String,
    },
    /// An edge joins two units of its body, forward in the listed order, once, and says why.
    #[error("the edge `{from}` → `{to}` {reason}")]
    BadEdge {
        /// Its source.
        from: String,
        /// Its target.
        to: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// What must keep its order is joined by a path of edges.
    #[error("`{later}` must follow `{earlier}` ({why}), but no path of edges makes it")]
    MissingOrder {
        /// Must run first.
        earlier: String,
        /// Must run after.
        later: String,
        /// The memory that both touch, or `after`.
        why: String,
    },
    /// Whatever is used has a place, in its own region, aligned, inside the region.
    #[error("`{what}` {reason}")]
    BadPlacement {
        /// The buffer, scalar or workspace.
        what: String,
        /// What is wrong with its place.
        reason: String,
    },
    /// Outside scratch, and for tapped buffers, no two things share bytes.
    #[error("`{first}` and `{second}` share bytes of the {} region", .region.name())]
    SharedBytes {
        /// One of them.
        first: String,
        /// The other.
        second: String,
        /// The region.
        region: Region,
    },
    /// Bytes are reused only when everything about the first owner precedes everything about the next.
    #[error("`{second}` takes bytes of `{first}`, but `{later}` does not follow `{earlier}`")]
    UnorderedReuse {
        /// The first owner.
        first: String,
        /// The next owner.
        second: String,
        /// A unit that uses the first.
        earlier: String,
        /// A unit that uses the second.
        later: String,
    },
    /// Programmatic edges join hand-written kernels with a contract, and what is read early is finished by then.
    #[error("the programmatic edge `{from}` → `{to}` is not legal: {reason}")]
    IllegalProgrammatic {
        /// Its source.
        from: String,
        /// Its target.
        to: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Proves that a plan runs its program: all nodes, in an order that keeps every hazard, over memory that nobody takes too
/// early, with the launches that the declarations give.
///
/// # Errors
/// All rules that the plan breaks. Order and memory are looked at only where the structure is sound.
pub fn check(plan: &StepPlan) -> Result<(), Vec<CheckError>> {
    let _span = tracing::debug_span!("check").entered();
    let mut errors = Vec::new();
    let bodies = structure::check(plan, &mut errors);
    if errors.is_empty() {
        order::check(plan, &bodies, &mut errors);
        memory::check(plan, &bodies, &mut errors);
        pdl::check(plan, &bodies, &mut errors);
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
