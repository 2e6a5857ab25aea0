//! Hand-written kernels: declaring them, reading their CUDA source, finding them by name, running them on the host.

mod host;
pub mod library;
mod macros;

pub mod registry;
pub mod signature;

pub use host::{HostArg, HostArgs, HostFn, cell, elements, elements_mut, size, value};

use crate::entity::{KernelId, SecondaryMap};
use crate::handle::{Const, Place, ProgramTag, Scalar, Tensor};
use crate::ir::{Arg, Element, KernelDecl, ScalarElement};

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

/// A tensor as an argument, with the program that made it.
#[doc(hidden)]
pub const fn tensor_arg<T: Element>(tensor: Tensor<T>) -> (Option<ProgramTag>, Arg) {
    let arg = match tensor.place {
        Place::View(view) => Arg::View(view),
        Place::Group(group) => Arg::Group(group),
    };
    (Some(tensor.tag), arg)
}

/// A scalar cell as an argument, with the program that made it.
#[doc(hidden)]
pub const fn scalar_arg<T: ScalarElement>(scalar: Scalar<T>) -> (Option<ProgramTag>, Arg) {
    (Some(scalar.tag), Arg::Scalar(scalar.id))
}

/// A baked constant as an argument.
#[doc(hidden)]
pub fn const_arg<T: ScalarElement>(constant: Const<T>) -> (Option<ProgramTag>, Arg) {
    (None, Arg::Const(constant.0.to_const()))
}
