//! The ordered pipeline: from a declared program to a plan.

use crate::builder::Builder;
use crate::ir::Diagnostics;
use crate::valid::{ValidProgram, validate};

impl Builder {
    /// Checks the program.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with the line that made it. Handles of other programs and tensors that do not
    /// broadcast are reported alone, since the nodes that have them are missing from the program.
    pub fn build(self) -> Result<ValidProgram, Diagnostics> {
        let (program, origins, host_fns, errors) = self.into_parts();
        match errors {
            Some(errors) => Err(errors),
            None => validate(program, origins, host_fns),
        }
    }
}
