//! What can go wrong while a plan becomes launches, or is launched.

use std::fmt;

use thiserror::Error;

use crate::cuda::CudaError;

/// Where in a program something happened, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Place {
    /// The step, with its variant.
    pub step: String,
    /// The graph: a phase's name, or the step's.
    pub graph: Option<String>,
    /// The unit, as `phase.node`.
    pub node: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step `{}`", self.step)?;
        match (&self.node, &self.graph) {
            (Some(node), _) => write!(f, ", node `{node}`"),
            (None, Some(graph)) => write!(f, ", graph `{graph}`"),
            (None, None) => Ok(()),
        }
    }
}

/// An error of emission or of a launch. Every variant says where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EmitError {
    /// A call of the driver or a library failed.
    #[error("{place}: {error}")]
    Cuda {
        /// Where.
        place: Box<Place>,
        /// The failure.
        error: Box<CudaError>,
    },
    /// A plan gives memory to everything that its units name.
    #[error("{place}: {what} has no memory in the plan")]
    Unplaced {
        /// Where.
        place: Box<Place>,
        /// The buffer, scalar or workspace.
        what: String,
    },
    /// Every kernel of a plan was compiled.
    #[error("{place}: the kernel `{kernel}` was not compiled for this plan")]
    MissingKernel {
        /// Where.
        place: Box<Place>,
        /// The kernel.
        kernel: String,
    },
    /// A compiled kernel takes what its declaration says.
    #[error("{place}: the kernel `{kernel}` does not match its declaration: {found}; declare it as its source says")]
    ParameterMismatch {
        /// Where.
        place: Box<Place>,
        /// The kernel.
        kernel: String,
        /// The difference.
        found: String,
    },
    /// All blocks of a cooperative kernel are resident at once.
    #[error(
        "{place}: {wanted} blocks of the cooperative kernel `{kernel}` must be resident at once, this device holds {room}; use fewer blocks or less shared memory"
    )]
    TooManyBlocks {
        /// Where.
        place: Box<Place>,
        /// The kernel.
        kernel: String,
        /// The grid's blocks.
        wanted: u64,
        /// How many the device holds.
        room: u64,
    },
    /// The matrix library computes `acc + bias`, `relu(acc)` or `relu(acc + bias)` after a product, with one bias per column; the
    /// pass `split` makes a map of anything else, so that this is a defect of a plan.
    #[error(
        "{place}: the matrix library cannot compute this epilogue ({found}); a plan has a map for it (a defect of stepgraph if it has not); write it as `then` instead"
    )]
    Epilogue {
        /// Where.
        place: Box<Place>,
        /// What does not fit.
        found: String,
    },
    /// The matrix library takes both operands in one type.
    #[error("{place}: the matrix library cannot multiply {a} by {b}; make both the same type")]
    OperandTypes {
        /// Where.
        place: Box<Place>,
        /// The type of A.
        a: &'static str,
        /// The type of B.
        b: &'static str,
    },
    /// A programmatic edge joins two kernels of our own.
    #[error("{place}: a programmatic edge starts or ends at a node that is no single kernel")]
    ProgrammaticEdge {
        /// Where.
        place: Box<Place>,
    },
}

impl EmitError {
    /// Where it happened.
    pub fn place(&self) -> &Place {
        match self {
            Self::Cuda { place, .. }
            | Self::Unplaced { place, .. }
            | Self::MissingKernel { place, .. }
            | Self::ParameterMismatch { place, .. }
            | Self::TooManyBlocks { place, .. }
            | Self::Epilogue { place, .. }
            | Self::OperandTypes { place, .. }
            | Self::ProgrammaticEdge { place } => place,
        }
    }
}

impl EmitError {
    /// Whether it is a fault of device code, after which the context is lost.
    pub fn is_sticky(&self) -> bool {
        matches!(self, Self::Cuda { error, .. } if error.is_sticky())
    }
}

/// Puts the place to an error of the driver layer.
pub(super) trait At<T> {
    fn at(self, place: impl FnOnce() -> Place) -> Result<T, EmitError>;
}

impl<T> At<T> for Result<T, CudaError> {
    fn at(self, place: impl FnOnce() -> Place) -> Result<T, EmitError> {
        self.map_err(|source| EmitError::Cuda { place: Box::new(place()), error: Box::new(source) })
    }
}
