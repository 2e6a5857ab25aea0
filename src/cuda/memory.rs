//! Memory: on the device, and pinned on the host.

use std::any::Any;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, DevicePtr, sys};

use super::context::Context;
use super::error::{CudaError, ignore};

/// An allocation on the device, aligned to 256 bytes at least.
pub struct DeviceMemory {
    address: u64,
    size: u64,
    context: Context,
}

impl DeviceMemory {
    /// `size` bytes, at least one. Their contents are not defined.
    ///
    /// # Errors
    /// Whatever the driver says: `CUDA_ERROR_OUT_OF_MEMORY` where the device has no room.
    pub fn new(context: &Context, size: u64) -> Result<Self, CudaError> {
        context.bind()?;
        let size = size.max(1);
        let mut address = 0;
        // SAFETY: the context is current, and `address` outlives the call.
        unsafe { driver_call!(cuMemAlloc_v2(&raw mut address, size as usize)) }?;
        Ok(Self { address, size, context: context.clone() })
    }

    /// The device address, valid as long as this value.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        ignore(self.context.bind());
        // SAFETY: the allocation is ours; what used it keeps it alive, so no queued work is left that names it.
        ignore(unsafe { driver_call!(cuMemFree_v2(self.address)) });
    }
}

/// Device memory of the user's, kept alive.
#[derive(Clone)]
pub struct UserMemory {
    address: u64,
    size: u64,
    _owner: Arc<dyn Any + Send + Sync>,
}

impl UserMemory {
    /// A slice of the user's. What else the user does with it must be ordered with our launches by the user: on the same
    /// stream, or with events.
    pub fn new<T: Send + Sync + 'static>(slice: Arc<CudaSlice<T>>) -> Self {
        let stream = Arc::clone(slice.stream());
        let (address, recorded) = slice.device_ptr(&stream);
        let size = slice.num_bytes() as u64;
        drop(recorded);
        Self { address, size, _owner: slice }
    }

    /// The device address, valid as long as this value.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl fmt::Debug for UserMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserMemory").field("size", &self.size).finish_non_exhaustive()
    }
}

/// Page-locked host memory that starts as zero, cached by the processor, usable by every context.
///
/// Host code copies bytes in and out and never holds a reference into it: the device may touch it at any time. Who reads
/// and who writes is ordered by events.
pub struct PinnedMemory {
    host: *mut u8,
    device: u64,
    size: u64,
    context: Context,
}

// SAFETY: the pointer is to memory of the whole process, which any thread may touch and free.
unsafe impl Send for PinnedMemory {}
// SAFETY: shared access copies bytes; users order it with events, as they must for the device anyway.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// `size` bytes for copies.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn new(context: &Context, size: u64) -> Result<Self, CudaError> {
        Self::with_flags(context, size, sys::CU_MEMHOSTALLOC_PORTABLE)
    }

    /// `size` bytes that kernels can also read and write, at [`PinnedMemory::device_address`].
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn mapped(context: &Context, size: u64) -> Result<Self, CudaError> {
        let mut memory =
            Self::with_flags(context, size, sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP)?;
        // SAFETY: the allocation is alive and mapped, and `device` outlives the call.
        unsafe { driver_call!(cuMemHostGetDevicePointer_v2(&raw mut memory.device, memory.host.cast(), 0)) }?;
        Ok(memory)
    }

    fn with_flags(context: &Context, size: u64, flags: u32) -> Result<Self, CudaError> {
        context.bind()?;
        let size = size.max(1);
        let mut host = ptr::null_mut();
        // SAFETY: the context is current, and `host` outlives the call.
        unsafe { driver_call!(cuMemHostAlloc(&raw mut host, size as usize, flags)) }?;
        let memory = Self { host: host.cast(), device: 0, size, context: context.clone() };
        // SAFETY: the allocation has `size` bytes and nobody else knows it yet.
        unsafe { ptr::write_bytes(memory.host, 0, size as usize) };
        Ok(memory)
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The address under which kernels see mapped memory; 0 for memory that is not mapped.
    pub fn device_address(&self) -> u64 {
        self.device
    }

    /// Copies bytes in. The device must not be reading them.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), CudaError> {
        check_range("a write to pinned memory", offset, bytes.len() as u64, self.size)?;
        // SAFETY: the range lies in the allocation, which no Rust reference points into.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.host.add(offset as usize), bytes.len()) };
        Ok(())
    }

    /// Copies bytes out. The device must not be writing them.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), CudaError> {
        check_range("a read of pinned memory", offset, into.len() as u64, self.size)?;
        // SAFETY: the range lies in the allocation, which was filled when it was made.
        unsafe { ptr::copy_nonoverlapping(self.host.add(offset as usize).cast_const(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Sets the first 32-bit word while the device may be reading it.
    pub fn set_first_word(&self, word: u32) {
        // SAFETY: allocations are page-aligned; every user of this call made at least four bytes (checked here).
        unsafe {
            assert!(self.size >= 4, "the memory has no whole word");
            ptr::write_volatile(self.host.cast::<u32>(), word);
        }
    }

    /// The first 32-bit word, while the device or another thread may be writing it.
    pub fn first_word(&self) -> u32 {
        // SAFETY: as in `set_first_word`.
        unsafe {
            assert!(self.size >= 4, "the memory has no whole word");
            ptr::read_volatile(self.host.cast::<u32>())
        }
    }

    pub(super) fn host_address(&self, offset: u64) -> *mut std::ffi::c_void {
        self.host.wrapping_add(offset as usize).cast()
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedMemory").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        ignore(self.context.bind());
        // SAFETY: the allocation is ours; what used it keeps it alive, so no queued work is left that names it.
        ignore(unsafe { driver_call!(cuMemFreeHost(self.host.cast())) });
    }
}

pub(super) fn check_range(what: &'static str, offset: u64, bytes: u64, size: u64) -> Result<(), CudaError> {
    let end = offset.saturating_add(bytes);
    if end > size { Err(CudaError::OutOfRange { what, offset, end, size }) } else { Ok(()) }
}
