//! Contexts: the device's primary one, or one that the user brings.

use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUdevice_attribute};

use super::error::{CudaError, ignore};
use super::probe;

/// What a device is, as far as plans and launches care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// The driver's number of the device.
    pub ordinal: u32,
    /// The product's name.
    pub name: String,
    /// The compute capability times ten: 90 for Hopper.
    pub sm: u32,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// The most dynamic shared memory that a block can ask for, in bytes.
    pub shared_per_block: u32,
    /// Its memory, in bytes.
    pub memory: u64,
    /// The CUDA version that the driver supports, times 1000.
    pub driver: u32,
}

impl DeviceProperties {
    /// Asks the driver.
    ///
    /// # Errors
    /// As [`probe::driver_version`]; a call fails where there is no such device.
    pub fn of(ordinal: u32) -> Result<Self, CudaError> {
        let driver = probe::driver_version()?;
        let device = device(ordinal)?;
        let mut name = [0_u8; 128];
        let mut memory = 0_usize;
        // SAFETY: the driver is initialised, `device` came from it, and both outputs outlive their calls; the last byte of
        // `name` is not offered, so that it always ends with a zero.
        unsafe {
            driver_call!(cuDeviceGetName(name.as_mut_ptr().cast(), 127, device))?;
            driver_call!(cuDeviceTotalMem_v2(&raw mut memory, device))?;
        }
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let [major, minor, multiprocessors, shared_per_block] = [
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        ]
        .map(|attribute| attribute_of(device, attribute));
        Ok(Self {
            ordinal,
            name: String::from_utf8_lossy(&name[..length]).into_owned(),
            sm: 10 * major? + minor?,
            multiprocessors: multiprocessors?,
            shared_per_block: shared_per_block?,
            memory: memory as u64,
            driver,
        })
    }
}

/// A context that stays valid as long as anything made in it lives. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    raw: sys::CUcontext,
    properties: DeviceProperties,
    owner: Owner,
}

enum Owner {
    /// The device's primary context, retained once.
    Primary(sys::CUdevice),
    /// The user's context, kept alive.
    User(Arc<CudaContext>),
}

// SAFETY: a context handle may be used from any thread; the driver synchronises access to it.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing in `Inner` changes after it was made.
unsafe impl Sync for Inner {}

impl Context {
    /// The primary context of a device, the one that other CUDA libraries of the process use.
    ///
    /// # Errors
    /// As [`DeviceProperties::of`], and whatever the driver says.
    pub fn primary(ordinal: u32) -> Result<Self, CudaError> {
        let properties = DeviceProperties::of(ordinal)?;
        let device = device(ordinal)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the driver is initialised, `device` came from it, and `raw` outlives the call.
        unsafe { driver_call!(cuDevicePrimaryCtxRetain(&raw mut raw, device)) }?;
        let context = Self { inner: Arc::new(Inner { raw, properties, owner: Owner::Primary(device) }) };
        context.bind()?;
        Ok(context)
    }

    /// The user's context. Everything made in it keeps it alive.
    ///
    /// # Errors
    /// As [`DeviceProperties::of`].
    pub fn of_user(user: Arc<CudaContext>) -> Result<Self, CudaError> {
        let properties = DeviceProperties::of(u32::try_from(user.ordinal()).unwrap_or(u32::MAX))?;
        let context = Self { inner: Arc::new(Inner { raw: user.cu_ctx(), properties, owner: Owner::User(user) }) };
        context.bind()?;
        Ok(context)
    }

    /// The device.
    pub fn properties(&self) -> &DeviceProperties {
        &self.inner.properties
    }

    /// The raw handle, valid as long as this value.
    pub fn raw(&self) -> sys::CUcontext {
        self.inner.raw
    }

    /// Makes the context current on this thread, which most calls need.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn bind(&self) -> Result<(), CudaError> {
        let mut current = ptr::null_mut();
        // SAFETY: the driver is initialised, `current` outlives the call, and the context lives as long as `self`.
        unsafe {
            driver_call!(cuCtxGetCurrent(&raw mut current))?;
            if current == self.inner.raw { Ok(()) } else { driver_call!(cuCtxSetCurrent(self.inner.raw)) }
        }
    }

    /// Free and total bytes of the device's memory.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: the context is current, and both outputs outlive the call.
        unsafe { driver_call!(cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
        Ok((free as u64, total as u64))
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        self.inner.raw == other.inner.raw
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.inner.properties.name).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: the context was retained once by `Context::primary`, and nothing made in it is left.
            Owner::Primary(device) => ignore(unsafe { driver_call!(cuDevicePrimaryCtxRelease_v2(*device)) }),
            Owner::User(user) => tracing::trace!(ordinal = user.ordinal(), "leaving the user's context"),
        }
    }
}

fn device(ordinal: u32) -> Result<sys::CUdevice, CudaError> {
    let mut device = 0;
    // SAFETY: the driver is initialised (callers probed it), and `device` outlives the call.
    unsafe { driver_call!(cuDeviceGet(&raw mut device, i32::try_from(ordinal).unwrap_or(i32::MAX))) }?;
    Ok(device)
}

fn attribute_of(device: sys::CUdevice, attribute: CUdevice_attribute) -> Result<u32, CudaError> {
    let mut value = 0;
    // SAFETY: the driver is initialised, `device` came from it, and `value` outlives the call.
    unsafe { driver_call!(cuDeviceGetAttribute(&raw mut value, attribute, device)) }?;
    Ok(u32::try_from(value).unwrap_or(0))
}
