//! Looks for libraries and devices before the first call: the bindings panic where a library is missing.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::context::DeviceProperties;
use super::error::CudaError;

/// The oldest CUDA version whose driver has every call of this layer, times 1000.
pub const OLDEST_DRIVER: u32 = 12_040;

/// A shared library that is loaded at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// The driver itself.
    Driver,
    /// The run-time compiler.
    Nvrtc,
    /// The matrix library.
    CublasLt,
}

impl Library {
    /// Every library.
    pub const ALL: [Self; 3] = [Self::Driver, Self::Nvrtc, Self::CublasLt];

    /// The library's file name, without its version.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "libcuda.so.1",
            Self::Nvrtc => "libnvrtc.so",
            Self::CublasLt => "libcublasLt.so",
        }
    }

    /// What to do where it is missing.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Driver => "install an NVIDIA driver",
            Self::Nvrtc => {
                "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`, and add its directory to LD_LIBRARY_PATH"
            }
            Self::CublasLt => {
                "install the CUDA toolkit, or `pip install nvidia-cublas`, and add its directory to LD_LIBRARY_PATH"
            }
        }
    }

    /// Whether it can be loaded.
    pub fn is_present(self) -> bool {
        static PRESENT: [OnceLock<bool>; 3] = [const { OnceLock::new() }; 3];
        // SAFETY: each function only tries to open the library, whose initialisers are NVIDIA's own and safe to run.
        *PRESENT[self as usize].get_or_init(|| unsafe {
            match self {
                Self::Driver => cudarc::driver::sys::is_culib_present(),
                Self::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Self::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
            }
        })
    }

    /// Fails where it cannot be loaded.
    ///
    /// # Errors
    /// [`CudaError::LibraryMissing`], with what to do.
    pub fn require(self) -> Result<(), CudaError> {
        if self.is_present() {
            return Ok(());
        }
        Err(CudaError::LibraryMissing { name: self.name(), remedy: self.remedy() })
    }
}

/// The CUDA version that the driver supports, times 1000 (13000 for 13.0). The driver is initialised.
///
/// # Errors
/// [`CudaError::NoDriver`] without a library or a device, [`CudaError::DriverTooOld`] before [`OLDEST_DRIVER`].
pub fn driver_version() -> Result<u32, CudaError> {
    static KNOWN: AtomicU32 = AtomicU32::new(0);
    let known = KNOWN.load(Ordering::Relaxed);
    if known != 0 {
        return Ok(known);
    }
    let have = ask_version()?;
    require_driver(have, OLDEST_DRIVER, "stepgraph")?;
    KNOWN.store(have, Ordering::Relaxed);
    Ok(have)
}

/// Fails where a driver of version `have` is older than `need`.
pub(crate) fn require_driver(have: u32, need: u32, what: &'static str) -> Result<(), CudaError> {
    if have < need { Err(CudaError::DriverTooOld { have, need, what }) } else { Ok(()) }
}

/// Every device, in the driver's order.
///
/// # Errors
/// As [`driver_version`], and whatever the driver says.
pub fn devices() -> Result<Vec<DeviceProperties>, CudaError> {
    driver_version()?;
    let mut count = 0;
    // SAFETY: the driver is initialised, and `count` outlives the call.
    unsafe { driver_call!(cuDeviceGetCount(&raw mut count)) }?;
    (0..u32::try_from(count).unwrap_or(0)).map(DeviceProperties::of).collect()
}

fn ask_version() -> Result<u32, CudaError> {
    if !Library::Driver.is_present() {
        return Err(CudaError::NoDriver { reason: format!("{} cannot be loaded", Library::Driver.name()) });
    }
    // SAFETY: the library is present; cuInit may be called at any time and any number of times.
    let started = unsafe { driver_call!(cuInit(0)) };
    started.map_err(|error| CudaError::NoDriver { reason: error.to_string() })?;
    let mut version = 0;
    // SAFETY: the driver is initialised, and `version` outlives the call.
    unsafe { driver_call!(cuDriverGetVersion(&raw mut version)) }?;
    Ok(u32::try_from(version).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: on a machine without a driver the probe answers with a typed error instead of a panic.
    #[test]
    fn a_missing_driver_is_an_error() {
        match driver_version() {
            Ok(version) => assert!(version >= OLDEST_DRIVER),
            Err(error) => assert!(
                matches!(error, CudaError::NoDriver { .. } | CudaError::DriverTooOld { .. } | CudaError::Call { .. }),
                "{error}"
            ),
        }
        if !Library::CublasLt.is_present() {
            let error = Library::CublasLt.require().expect_err("it is not present");
            assert!(error.to_string().contains("libcublasLt.so"), "{error}");
        }
    }
}
