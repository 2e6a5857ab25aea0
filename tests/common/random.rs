//! Random programs that keep every rule, for property tests.
//!
//! A [`Recipe`] is the seed form: plain numbers that proptest can draw and shrink. [`Recipe::build`] reads it as a list of wishes
//! and always makes a valid program, whatever the numbers are: fewer nodes and smaller picks give simpler programs.
//!
//! ```ignore
//! proptest!(|(recipe in random::recipes())| { let (program, host_fns) = recipe.build(); … });
//! ```

mod expr;
mod kernels;
mod maker;
pub(crate) mod mutation;
mod nodes;

use proptest::array::uniform16;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use stepgraph::ir::Program;
use stepgraph::kernel::HostFns;

/// The seed form of a program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recipe {
    pub(crate) steps: Vec<StepRecipe>,
}

/// The seed form of a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StepRecipe {
    /// How many variants it has; one variant counts as none.
    pub(crate) variants: u8,
    pub(crate) phases: Vec<PhaseRecipe>,
}

/// The seed form of a phase.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PhaseRecipe {
    /// Bit `v` puts the phase in variant `v`; no bit at all means every variant.
    pub(crate) variants: u8,
    pub(crate) guarded: bool,
    pub(crate) nodes: Vec<NodeRecipe>,
}

/// The seed form of a node, or of a few that belong together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeRecipe {
    pub(crate) kind: u8,
    pub(crate) picks: [u16; 16],
}

impl Recipe {
    /// The program, which keeps every rule, and the host functions of its kernels.
    pub(crate) fn build(&self) -> (Program, HostFns) {
        maker::build(self)
    }
}

/// Recipes of 1 or 2 steps with up to 3 phases of up to 7 nodes each.
pub(crate) fn recipes() -> impl Strategy<Value = Recipe> {
    sized_recipes(2, 3, 7)
}

/// Recipes with at most so many steps, phases per step and nodes per phase.
pub(crate) fn sized_recipes(steps: usize, phases: usize, nodes: usize) -> impl Strategy<Value = Recipe> {
    let node = (0..NodeRecipe::KINDS, uniform16(any::<u16>())).prop_map(|(kind, picks)| NodeRecipe { kind, picks });
    let phase = (0..8u8, proptest::bool::weighted(0.2), vec(node, 1..=nodes))
        .prop_map(|(variants, guarded, nodes)| PhaseRecipe { variants, guarded, nodes });
    let step = (0..4u8, vec(phase, 1..=phases)).prop_map(|(variants, phases)| StepRecipe { variants, phases });
    vec(step, 1..=steps).prop_map(|steps| Recipe { steps })
}

impl NodeRecipe {
    /// Kinds of node recipes; see `nodes.rs` for what each one makes.
    pub(crate) const KINDS: u8 = 16;
}
