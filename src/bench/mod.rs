//! Comparing plans honestly.
//!
//! Contenders are plans of one step. Each gets a session of its own with the same seed and the same data; their results are
//! compared first, and one that differs is reported and never timed. Then samples are taken in random order, round by
//! round, after a warm-up, with the first contender entered twice: the difference between its two entries is the noise
//! floor, and a difference inside it is called none.

mod agreement;
mod error;
mod harness;
mod random;
mod report;
mod statistics;

pub use agreement::{Agreement, Mismatch};
pub use error::BenchError;
pub use harness::{BenchOptions, Contender, Progress, bench};
pub use random::Random;
pub use report::{BenchReport, ContenderReport, Cost, Timing};
pub use statistics::{Spread, noise_between};
