//! What stops a comparison.

use crate::runtime::RuntimeError;

/// Why nothing was compared.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// There is something to compare.
    #[error("there is nothing to compare: name at least one plan")]
    NoContender,
    /// Samples need launches.
    #[error("{what} is 0: at least 1 is needed")]
    Zero {
        /// Which option.
        what: &'static str,
    },
    /// Contenders that make several steps per launch meet after a number of steps that all can make.
    #[error(
        "the contenders have made the same number of steps only after more than {limit}: take numbers of steps per launch that divide each other"
    )]
    NoCommonSteps {
        /// The most steps that are made for comparing results.
        limit: u32,
    },
    /// A session failed.
    #[error("plan `{plan}`")]
    Session {
        /// The contender.
        plan: String,
        /// What failed.
        #[source]
        source: RuntimeError,
    },
}
