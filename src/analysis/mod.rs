//! Facts about order: which nodes must follow which, which edges other edges imply, what certainly precedes what; and what
//! differs from step to step.
//!
//! Works on vertex numbers and memory accesses alone: it knows no plan, decides nothing and changes nothing. Everything here
//! stays near-linear for steps of a hundred thousand nodes, and gives the same answer every time.

mod boxes;
mod chains;
mod dag;
mod hazards;
mod precedence;
mod reduction;
mod series;

pub use dag::Dag;
pub use hazards::{Dependency, Hazard, Reason, dependencies};
pub use precedence::{Precedence, Span};
pub use reduction::{Kept, transitive_reduction};
pub use series::Varying;
