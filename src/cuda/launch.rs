//! Launches: what a kernel, copy or fill needs, whether it becomes a node of a graph or goes to a stream.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUmemorytype,
};

use super::error::CudaError;
use super::module::Function;
use super::stream::Stream;

/// One kernel argument, by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaunchArg {
    /// A device address.
    Address(u64),
    /// The bits of a 4-byte value.
    Word(u32),
    /// An 8-byte value.
    Long(u64),
}

impl LaunchArg {
    /// The size in bytes that the compiled parameter must have.
    pub(crate) const fn size(self) -> usize {
        match self {
            Self::Address(_) | Self::Long(_) => 8,
            Self::Word(_) => 4,
        }
    }

    const fn bits(self) -> u64 {
        match self {
            Self::Address(bits) | Self::Long(bits) => bits,
            Self::Word(bits) => bits as u64,
        }
    }
}

/// A kernel with its launch configuration and arguments.
#[derive(Clone, Debug)]
pub(crate) struct KernelLaunch {
    /// The kernel.
    pub(crate) function: Function,
    /// Blocks along x, y, z.
    pub(crate) grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub(crate) block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub(crate) shared: u32,
    /// Blocks of a cluster along x, y, z.
    pub(crate) cluster: Option<[u32; 3]>,
    /// Whether all blocks must be resident at once.
    pub(crate) cooperative: bool,
    /// The arguments, in the order of the C signature.
    pub(crate) args: Vec<LaunchArg>,
}

impl KernelLaunch {
    /// Compares the arguments with the compiled parameters.
    ///
    /// Gives what was compiled where they differ: count, or offset and size of one of them.
    pub(crate) fn check_parameters(&self) -> Result<Option<String>, CudaError> {
        let compiled = self.function.parameters()?;
        if compiled.len() != self.args.len() {
            return Ok(Some(format!(
                "the compiled kernel has {} parameters, {} are passed",
                compiled.len(),
                self.args.len()
            )));
        }
        let mut offset = 0_usize;
        for (position, (&arg, &found)) in self.args.iter().zip(&compiled).enumerate() {
            offset = offset.next_multiple_of(arg.size());
            if found != (offset, arg.size()) {
                let (at, size) = found;
                return Ok(Some(format!(
                    "parameter {position} is compiled with {size} bytes at offset {at}, {} bytes at offset {offset} are passed",
                    arg.size()
                )));
            }
            offset += arg.size();
        }
        Ok(None)
    }

    /// Queues the launch.
    pub(crate) fn on_stream(&self, stream: &Stream) -> Result<(), CudaError> {
        let values = self.values();
        let mut pointers = pointers(&values);
        let mut attributes = self.attributes();
        let config = CUlaunchConfig {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block[0],
            blockDimY: self.block[1],
            blockDimZ: self.block[2],
            sharedMemBytes: self.shared,
            hStream: stream.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: u32::try_from(attributes.len()).unwrap_or(0),
        };
        // SAFETY: function and stream are alive; `config`, the attributes, the argument pointers and the values they point to
        // outlive the call, which copies them; there are as many arguments as parameters (emission checked that).
        unsafe {
            driver_call!(cuLaunchKernelEx(
                &raw const config,
                self.function.raw(),
                pointers.as_mut_ptr(),
                ptr::null_mut()
            ))
        }
    }

    /// Calls `then` with the driver's description, which is valid during that call only.
    pub(super) fn with_node_params<T>(&self, then: impl FnOnce(&CUDA_KERNEL_NODE_PARAMS) -> T) -> T {
        let values = self.values();
        let mut pointers = pointers(&values);
        then(&CUDA_KERNEL_NODE_PARAMS {
            func: self.function.raw(),
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block[0],
            blockDimY: self.block[1],
            blockDimZ: self.block[2],
            sharedMemBytes: self.shared,
            kernelParams: pointers.as_mut_ptr(),
            extra: ptr::null_mut(),
            kern: ptr::null_mut(),
            ctx: ptr::null_mut(),
        })
    }

    pub(super) fn attributes(&self) -> Vec<CUlaunchAttribute> {
        let mut attributes = Vec::new();
        if let Some([x, y, z]) = self.cluster {
            let mut value = CUlaunchAttributeValue { pad: [0; 64] };
            value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
            attributes.push(attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value));
        }
        if self.cooperative {
            let mut value = CUlaunchAttributeValue { pad: [0; 64] };
            value.cooperative = 1;
            attributes.push(attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value));
        }
        attributes
    }

    fn values(&self) -> Vec<u64> {
        self.args.iter().map(|arg| arg.bits()).collect()
    }
}

/// A copy of rows between two places of the device's memory, or of mapped host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyBox {
    /// Address of the first byte that is read.
    pub(crate) from: u64,
    /// Bytes from one row that is read to the next.
    pub(crate) from_pitch: u64,
    /// Address of the first byte that is written.
    pub(crate) to: u64,
    /// Bytes from one row that is written to the next.
    pub(crate) to_pitch: u64,
    /// Bytes of a row.
    pub(crate) width: u64,
    /// How many rows.
    pub(crate) height: u64,
}

impl CopyBox {
    /// Queues the copy.
    pub(crate) fn on_stream(&self, stream: &Stream) -> Result<(), CudaError> {
        let params = self.params();
        // SAFETY: the stream is alive, `params` outlives the call, and both boxes lie in the plan's memory.
        unsafe { driver_call!(cuMemcpy3DAsync_v2(&raw const params, stream.raw())) }
    }

    pub(super) fn params(&self) -> CUDA_MEMCPY3D {
        // Every field is written: the driver's enums have no zero, so a zeroed struct would be invalid.
        CUDA_MEMCPY3D {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: ptr::null(),
            srcDevice: self.from,
            srcArray: ptr::null_mut(),
            reserved0: ptr::null_mut(),
            srcPitch: self.from_pitch as usize,
            srcHeight: self.height as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: ptr::null_mut(),
            dstDevice: self.to,
            dstArray: ptr::null_mut(),
            reserved1: ptr::null_mut(),
            dstPitch: self.to_pitch as usize,
            dstHeight: self.height as usize,
            WidthInBytes: self.width as usize,
            Height: self.height as usize,
            Depth: 1,
        }
    }
}

/// Rows that are filled with one value of 2 or 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FillBox {
    /// Address of the first byte.
    pub(crate) to: u64,
    /// Bytes from one row to the next.
    pub(crate) pitch: u64,
    /// The value, in the low bytes.
    pub(crate) value: u32,
    /// Bytes of an element: 2 or 4.
    pub(crate) element: u32,
    /// Elements of a row.
    pub(crate) width: u64,
    /// How many rows.
    pub(crate) height: u64,
}

impl FillBox {
    /// Queues the fill.
    pub(crate) fn on_stream(&self, stream: &Stream) -> Result<(), CudaError> {
        let (pitch, width, height) = (self.pitch as usize, self.width as usize, self.height as usize);
        if self.element == 2 {
            let value = (self.value & 0xffff) as u16;
            // SAFETY: the stream is alive and the box lies in the plan's memory, aligned for its elements.
            return unsafe { driver_call!(cuMemsetD2D16Async(self.to, pitch, value, width, height, stream.raw())) };
        }
        // SAFETY: as above.
        unsafe { driver_call!(cuMemsetD2D32Async(self.to, pitch, self.value, width, height, stream.raw())) }
    }

    pub(super) fn params(&self) -> CUDA_MEMSET_NODE_PARAMS {
        CUDA_MEMSET_NODE_PARAMS {
            dst: self.to,
            pitch: self.pitch as usize,
            value: self.value,
            elementSize: self.element,
            width: self.width as usize,
            height: self.height as usize,
        }
    }
}

fn attribute(id: CUlaunchAttributeID, value: CUlaunchAttributeValue) -> CUlaunchAttribute {
    CUlaunchAttribute { id, pad: [0; 4], value }
}

/// Pointers to each value. The driver reads as many bytes of each as its parameter has; values are little-endian.
fn pointers(values: &[u64]) -> Vec<*mut c_void> {
    values.iter().map(|value| ptr::from_ref(value).cast_mut().cast()).collect()
}
