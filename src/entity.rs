//! Typed ids and the maps they index.
//!
//! Every thing in a program or a plan is named by a small id that only fits its own map, so that a node id cannot
//! index a buffer table. Ids are meaningful only together with the program that made them.

use std::sync::atomic::{AtomicU32, Ordering};

use cranelift_entity::entity_impl;
pub use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);
        entity_impl!($name, $prefix);
    )*};
}

ids! {
    /// A buffer of a program.
    BufferId = "buffer";
    /// A group of buffers that lie side by side.
    GroupId = "group";
    /// A device-resident scalar cell of a program.
    ScalarId = "scalar";
    /// A kernel declaration that a program uses.
    KernelId = "kernel";
    /// A step of a program.
    StepId = "step";
    /// A phase of a step.
    PhaseId = "phase";
    /// A node of a step.
    NodeId = "node";
    /// A value of an expression.
    ValueId = "v";
    /// A unit (one launch) of a plan.
    UnitId = "unit";
}

/// Identifies the program that made an id or a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramTag(u32);

impl ProgramTag {
    /// No program's tag: of a handle that names nothing, whose error was reported when it was asked for.
    pub const NOTHING: Self = Self(0);

    /// A tag that no other program of this process has.
    pub fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
