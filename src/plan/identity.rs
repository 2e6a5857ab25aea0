//! What a plan is, in 32 bytes: two plans with the same identity run the same work over the same memory.

use std::fmt::{self, Debug, Write};

use super::types::StepPlan;

/// The hash of everything in a plan: the program with its kernels' sources, the choices, units, edges and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanIdentity([u8; 32]);

impl PlanIdentity {
    /// The hash's bytes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// In hexadecimal.
impl fmt::Display for PlanIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl StepPlan {
    /// The plan's identity. It moves when anything in the plan does, and is the same in every process of one version of this
    /// crate.
    pub fn identity(&self) -> PlanIdentity {
        let Self { program, step, variant, fusion, target, units, graphs, arena } = self;
        let mut hash = Dump(blake3::Hasher::new());
        hash.part(&env!("CARGO_PKG_VERSION"));
        hash.part(program.program());
        hash.part(step);
        hash.part(variant);
        hash.part(fusion);
        hash.part(target);
        hash.part(units);
        hash.part(graphs);
        hash.part(arena);
        PlanIdentity(*hash.0.finalize().as_bytes())
    }
}

/// Hashes the complete dump of each part without ever holding it.
struct Dump(blake3::Hasher);

impl Dump {
    fn part(&mut self, part: &dyn Debug) {
        // Hashing cannot fail, and the parts' dumps do not.
        let _ = writeln!(self, "{part:?}");
    }
}

impl Write for Dump {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}
