//! Passes: program in, program out; each result is validated again.

/// The passes that a plan can name, in the order in which they run.
pub const NAMES: [&str; 0] = [];
