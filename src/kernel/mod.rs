//! Hand-written kernels: declaring them, reading their CUDA source, finding them by name, running them on the host.

mod host;

pub use host::{HostArg, HostArgs, HostFn, cell, elements, elements_mut, size, value};

use crate::entity::{KernelId, SecondaryMap};
use crate::handle::ProgramTag;
use crate::ir::{Arg, KernelDecl};

/// A kernel that programs can call.
#[derive(Clone, Debug)]
pub struct KernelDef {
    /// Its declaration.
    pub decl: KernelDecl,
    /// What it computes, in Rust, where that exists.
    pub host: Option<HostFn>,
}

/// The host functions of a program's kernels.
pub type HostFns = SecondaryMap<KernelId, Option<HostFn>>;

/// The arguments of a declared kernel: `kernel!` makes one type with a named field per argument.
pub trait KernelArgs {
    /// The kernel.
    fn def() -> KernelDef;

    /// The arguments in declared order, each with the program that made it (none for constants).
    fn args(&self) -> Vec<(Option<ProgramTag>, Arg)>;
}
