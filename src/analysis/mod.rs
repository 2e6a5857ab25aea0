//! Facts about order: which nodes must follow which, which edges other edges imply, what certainly precedes what. And what differs
//! from step to step where a step is repeated.
//!
//! Order is found from vertex numbers and memory accesses alone, `series` reads expressions too. Nothing here knows a plan, decides
//! anything or changes anything, and every answer is the same every time. Order stays near-linear for steps of a hundred thousand
//! nodes; series take a round over the step for each cell of the longest chain that steps hand on, usually two or three.

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
