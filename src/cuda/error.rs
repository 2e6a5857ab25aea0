//! What can go wrong below a plan: a library that is missing, or a call that failed.

use cudarc::cublaslt::sys::cublasStatus_t;
use cudarc::driver::sys::CUresult;
use thiserror::Error;

/// An error of the driver layer. Showing it touches no library.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CudaError {
    /// There is no usable NVIDIA driver, or no device.
    #[error("no CUDA device can be used: {reason}; install an NVIDIA driver, or run with `--device host`")]
    NoDriver {
        /// What was found instead.
        reason: String,
    },
    /// The driver lacks something that is needed.
    #[error("the NVIDIA driver supports CUDA {}, but {what} needs CUDA {}; update the driver", version(*.have), version(*.need))]
    DriverTooOld {
        /// The driver's CUDA version times 1000.
        have: u32,
        /// The version that is needed, times 1000.
        need: u32,
        /// What needs it.
        what: &'static str,
    },
    /// The crate was built for a CUDA version that lacks something that is needed.
    #[error("this build has the bindings of an older CUDA, but {what} needs those of CUDA {}; build with a later `cuda-*` feature", version(*.need))]
    BindingsTooOld {
        /// The version that is needed, times 1000.
        need: u32,
        /// What needs it.
        what: &'static str,
    },
    /// A shared library cannot be loaded.
    #[error("the library {name} cannot be loaded; {remedy}")]
    LibraryMissing {
        /// The library.
        name: &'static str,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A call failed.
    #[error("{call} failed with {name} ({code})")]
    Call {
        /// The function.
        call: &'static str,
        /// The library's name of the error.
        name: String,
        /// The library's number of the error.
        code: u32,
    },
    /// The driver accepted a setting and then reports another one.
    #[error("{call} did not take effect: {what} was set to {expected}, the driver reports {found}")]
    NotApplied {
        /// The function.
        call: &'static str,
        /// What was set.
        what: &'static str,
        /// The value that was asked for.
        expected: String,
        /// The value that was read back.
        found: String,
    },
    /// The driver refused to make a graph executable.
    #[error("cuGraphInstantiateWithParams failed with {name} ({code}): {result}{}", node.as_ref().map_or(String::new(), |node| format!(" at node {node}")))]
    Instantiate {
        /// The driver's name of the error.
        name: String,
        /// The driver's number of the error.
        code: u32,
        /// The driver's reason.
        result: String,
        /// The node that it blames, where it names one; emission puts the plan's name here.
        node: Option<String>,
    },
    /// A device pointer, offset or size does not fit the memory that it is for.
    #[error("{what} takes bytes {offset}..{end} of an allocation of {size} bytes")]
    OutOfRange {
        /// The operation.
        what: &'static str,
        /// The first byte.
        offset: u64,
        /// One past the last byte.
        end: u64,
        /// The size of the allocation.
        size: u64,
    },
    /// A captured library call left a node that an explicit graph cannot take over.
    #[error(
        "the library call recorded a node of type {found}; only kernel, memset, memcpy and empty nodes can be taken over"
    )]
    HarvestRefused {
        /// The driver's name of the node's type.
        found: String,
    },
    /// The matrix library has no algorithm for a problem.
    #[error(
        "cuBLASLt suggests {found} algorithms for this problem with {workspace} bytes of workspace, number {wanted} was asked for; tune it on this device"
    )]
    NoAlgorithm {
        /// The suggestion that was asked for, from 0.
        wanted: u32,
        /// How many there are.
        found: u32,
        /// The workspace that was offered.
        workspace: u64,
    },
}

impl CudaError {
    pub(super) fn of_driver(call: &'static str, code: CUresult) -> Result<(), Self> {
        match code {
            CUresult::CUDA_SUCCESS => Ok(()),
            // The derived name needs no library, unlike cuGetErrorName.
            failed => Err(Self::Call { call, name: format!("{failed:?}"), code: failed as u32 }),
        }
    }

    pub(super) fn of_blas(call: &'static str, code: cublasStatus_t) -> Result<(), Self> {
        match code {
            cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
            failed => Err(Self::Call { call, name: format!("{failed:?}"), code: failed as u32 }),
        }
    }

    /// Whether the error is a fault of device code, after which every further call on the context fails the same way.
    pub fn is_sticky(&self) -> bool {
        const FAULTS: [CUresult; 10] = [
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUresult::CUDA_ERROR_INVALID_PC,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
        ];
        let is_fault = |code: u32| FAULTS.iter().any(|&fault| fault as u32 == code);
        match self {
            Self::Call { call, code, .. } => call.starts_with("cu") && !call.starts_with("cublas") && is_fault(*code),
            Self::Instantiate { code, .. } => is_fault(*code),
            _ => false,
        }
    }

    /// The driver's number of the error, where a call failed.
    pub fn code(&self) -> Option<u32> {
        match self {
            Self::Call { code, .. } | Self::Instantiate { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether a query said that the work is not finished yet.
    pub(super) fn is_not_ready(&self) -> bool {
        self.code() == Some(CUresult::CUDA_ERROR_NOT_READY as u32)
    }
}

/// `12.4` for 12040.
fn version(thousands: u32) -> String {
    format!("{}.{}", thousands / 1000, thousands % 1000 / 10)
}

/// Notes an error of a destructor: nobody can be told, and at the end of a process the driver may be gone already.
pub(super) fn ignore(result: Result<(), CudaError>) {
    if let Err(error) = result {
        tracing::debug!(%error, "while releasing a device object");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: a message names the call, the library's own name of the error and its number, without touching the library.
    #[test]
    fn messages_name_call_and_code() {
        let error = CudaError::of_driver("cuMemAlloc_v2", CUresult::CUDA_ERROR_OUT_OF_MEMORY).expect_err("a failure");
        assert_eq!(error.to_string(), "cuMemAlloc_v2 failed with CUDA_ERROR_OUT_OF_MEMORY (2)");
        let old = CudaError::DriverTooOld { have: 12_020, need: 12_040, what: "stepgraph" };
        assert!(old.to_string().contains("supports CUDA 12.2, but stepgraph needs CUDA 12.4"), "{old}");
    }

    /// Protects: only faults of device code count as sticky; a refused call leaves the context usable.
    #[test]
    fn only_device_faults_are_sticky() {
        let fault =
            CudaError::of_driver("cuEventSynchronize", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).expect_err("a failure");
        let refused = CudaError::of_driver("cuGraphLaunch", CUresult::CUDA_ERROR_INVALID_VALUE).expect_err("a failure");
        assert!(fault.is_sticky());
        let instantiate =
            |code| CudaError::Instantiate { name: String::new(), code, result: String::new(), node: None }.is_sticky();
        assert!(instantiate(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS as u32));
        assert!(!instantiate(CUresult::CUDA_ERROR_INVALID_VALUE as u32));
        assert!(!refused.is_sticky());
    }
}
