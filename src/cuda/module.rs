//! Modules: compiled device code, and the kernels in it.

use std::ffi::CString;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction_attribute};

use super::context::Context;
use super::error::{CudaError, ignore};

/// Loaded device code.
pub struct Module {
    raw: sys::CUmodule,
    context: Context,
}

// SAFETY: a module handle may be used from any thread; the driver synchronises access to it.
unsafe impl Send for Module {}
// SAFETY: as above; nothing in `Module` changes after it was made.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a CUBIN, or PTX text.
    ///
    /// # Errors
    /// Whatever the driver says: an image for another architecture, or PTX newer than the driver.
    pub fn load(context: &Context, image: &[u8]) -> Result<Arc<Self>, CudaError> {
        context.bind()?;
        // PTX must end with a zero byte; a CUBIN knows its own size and ignores one more.
        let image: Vec<u8> = image.iter().copied().chain([0]).collect();
        let mut raw = ptr::null_mut();
        // SAFETY: the context is current, `image` outlives the call and ends with a zero byte, and so does `raw`.
        unsafe { driver_call!(cuModuleLoadData(&raw mut raw, image.as_ptr().cast())) }?;
        Ok(Arc::new(Self { raw, context: context.clone() }))
    }

    /// The kernel of this `extern "C"` name.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND` where there is none.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function, CudaError> {
        self.context.bind()?;
        // A name with a zero byte is no C name, so the part before it is looked for and not found.
        let c_name = CString::new(name.split('\0').next().unwrap_or_default()).unwrap_or_default();
        let mut raw = ptr::null_mut();
        // SAFETY: the module is alive, the name ends with a zero byte, and `raw` outlives the call.
        unsafe { driver_call!(cuModuleGetFunction(&raw mut raw, self.raw, c_name.as_ptr())) }?;
        Ok(Function { raw, name: name.into(), module: Arc::clone(self) })
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").finish_non_exhaustive()
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        ignore(self.context.bind());
        // SAFETY: the module is ours, and its functions and the graphs that use them keep it alive.
        ignore(unsafe { driver_call!(cuModuleUnload(self.raw)) });
    }
}

/// A kernel; it keeps its module loaded.
#[derive(Clone)]
pub struct Function {
    raw: sys::CUfunction,
    name: Arc<str>,
    module: Arc<Module>,
}

// SAFETY: a function handle may be used from any thread; the driver synchronises access to it.
unsafe impl Send for Function {}
// SAFETY: as above; nothing in `Function` changes after it was made.
unsafe impl Sync for Function {}

impl Function {
    /// The kernel's `extern "C"` name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The raw handle, valid as long as this value.
    pub fn raw(&self) -> sys::CUfunction {
        self.raw
    }

    /// Registers per thread.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn registers(&self) -> Result<u32, CudaError> {
        self.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    /// The most threads of a block that the kernel can be launched with.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn max_threads(&self) -> Result<u32, CudaError> {
        self.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    }

    /// Lets blocks ask for this much dynamic shared memory, and reads the limit back.
    ///
    /// # Errors
    /// Whatever the driver says; [`CudaError::NotApplied`] where it kept a lower limit.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        if bytes <= self.attribute(attribute)? {
            return Ok(());
        }
        let wanted = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function is alive.
        unsafe { driver_call!(cuFuncSetAttribute(self.raw, attribute, wanted)) }?;
        let found = self.attribute(attribute)?;
        if found >= bytes {
            return Ok(());
        }
        let (expected, found) = (bytes.to_string(), found.to_string());
        Err(CudaError::NotApplied { call: "cuFuncSetAttribute", what: "dynamic shared memory", expected, found })
    }

    /// Offset and size in bytes of each parameter, as compiled.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn parameters(&self) -> Result<Vec<(usize, usize)>, CudaError> {
        let mut found = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the function is alive, and both outputs outlive the call.
            match unsafe { driver_call!(cuFuncGetParamInfo(self.raw, found.len(), &raw mut offset, &raw mut size)) } {
                Ok(()) => found.push((offset, size)),
                // The driver has no call for the count before CUDA 13.2: an index past the last one is refused.
                Err(error) if error.code() == Some(sys::CUresult::CUDA_ERROR_INVALID_VALUE as u32) => return Ok(found),
                Err(error) => return Err(error),
            }
        }
    }

    /// How many blocks of this size one multiprocessor holds at once.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn resident_blocks(&self, threads: u32, shared: u32) -> Result<u32, CudaError> {
        self.module.context.bind()?;
        let mut blocks = 0;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the function is alive, and `blocks` outlives the call.
        unsafe {
            driver_call!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut blocks,
                self.raw,
                threads,
                shared as usize
            ))
        }?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    fn attribute(&self, attribute: CUfunction_attribute) -> Result<u32, CudaError> {
        let mut value = 0;
        // SAFETY: the function is alive, and `value` outlives the call.
        unsafe { driver_call!(cuFuncGetAttribute(&raw mut value, attribute, self.raw)) }?;
        Ok(u32::try_from(value).unwrap_or(0))
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Function").field(&self.name).finish()
    }
}
