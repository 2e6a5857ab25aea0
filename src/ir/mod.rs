//! The intermediate representation: plain data, nothing checked, nothing planned.
//!
//! A [`Program`] is buffers, groups, scalars and kernel declarations, and named steps over them. The Rust API and specs make
//! programs; validation turns one into a checked program that later stages can rely on.

mod access;
mod buffer;
mod dtype;
mod error;
mod expr;
mod kernel;
mod launch;
mod node;
mod origin;
mod program;
mod scalar;
mod shape;
mod value_types;

pub use access::{Access, AccessMode, MAX_OPERANDS, Resource, node_accesses, subtree_accesses};
pub use buffer::{Buffer, GROUP_ALIGN, Group, Init, Role};
pub use dtype::{ConstValue, DType, Element, ScalarElement};
pub use error::{Diagnostic, Diagnostics, ProgramError};
pub use expr::{BinaryOp, CompareOp, Expr, ExprBuilder, ExprOp, IndexTerm, MAX_DEPTH, UnaryOp, ValueType};
pub use kernel::{Dim, KernelDecl, KernelParam, KernelSource, LaunchRule, ParamClass, PdlContract, SharedRule};
pub use launch::LaunchConfig;
pub use node::{
    Arg, Combiner, Compute, Factor, Gemm, KernelCall, LoopBound, Map, Node, NodeOp, Operand, Reduce, Scatter,
    ScatterRule, Store, Target,
};
pub use origin::{Item, Origin, Origins};
pub use program::{MAX_NESTING, MAX_VARIANTS, Phase, Program, Step, Symbol};
pub use scalar::{Scalar, Writer};
pub use shape::{AxisRange, MAX_ELEMENTS, MAX_RANK, Shape, View};
pub use value_types::value_types;
