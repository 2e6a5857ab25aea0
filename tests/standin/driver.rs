//! Devices, contexts, streams, events, memory and modules.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{
    self as bindings, CUDA_MEMCPY3D, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUlaunchConfig, CUmodule, CUresult, CUstream,
};

use crate::entry::{get, lies_about, put, text};
use crate::graph::{Fill, NodeKind, Rows, kernel_call, queue};
use crate::objects::{Event, Function, Object, Stream, Work, World};

/// The memory of the one device.
const MEMORY: u64 = 1 << 36;

/// The error of this number.
pub(crate) fn code(number: u32) -> CUresult {
    match number {
        1 => CUresult::CUDA_ERROR_INVALID_VALUE,
        2 => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        100 => CUresult::CUDA_ERROR_NO_DEVICE,
        700 => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        _ => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

fn event(world: &mut World, handle: CUevent) -> Result<&mut Event, CUresult> {
    if !matches!(world.object(handle as usize), Some(Object::Event(_))) {
        return Err(world.violation("a call on an event that is not alive".to_owned()));
    }
    match world.object_mut(handle as usize) {
        Some(Object::Event(event)) => Ok(event),
        _ => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
    }
}

/// Whether all that was queued before an event was recorded last has run; runs up to `steps` pieces of work to get there.
fn reach(world: &mut World, handle: CUevent, steps: usize) -> Result<bool, CUresult> {
    for step in 0..=steps {
        let found = event(world, handle)?;
        let (done, stream) = (found.reached == found.recorded, found.stream);
        if done || step == steps || !world.step(stream)? {
            return Ok(done);
        }
    }
    Ok(false)
}

/// Name, and the size of each parameter with whether it is an address, of a kernel in CUDA C.
fn signature(source: &str, name: &str) -> Option<Vec<(usize, bool)>> {
    let mut rest = source;
    let after = loop {
        let at = rest.find(name)?;
        let before = rest[..at].chars().next_back();
        rest = &rest[at + name.len()..];
        let is_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
        if !is_word && rest.trim_start().starts_with('(') {
            break rest.trim_start();
        }
    };
    let params = &after[1..after.find(')')?];
    let sizes = params.split(',').map(str::trim).filter(|param| !param.is_empty()).map(|param| {
        let is_address = param.contains('*');
        let is_long = is_address || param.contains("long long");
        (if is_long { 8 } else { 4 }, is_address)
    });
    Some(sizes.collect())
}

/// A copy to or from `host`. Of memory that is not pinned the driver returns only when the copy has been made.
fn copy(world: &mut World, stream: CUstream, to: u64, from: u64, bytes: u64, host: u64) -> Result<(), CUresult> {
    if world.is_live(host, bytes) {
        return queue(world, stream as usize, Work::Copy { to, from, bytes });
    }
    world.drain(stream as usize)?;
    let device = if host == to { from } else { to };
    if world.need_memory(device, bytes, "a copy") {
        crate::run::copy_bytes(to, from, bytes);
    }
    Ok(())
}

fn fill(world: &mut World, stream: CUstream, fill: Fill) -> Result<(), CUresult> {
    queue(world, stream as usize, Work::Node(NodeKind::Fill(fill)))
}

exports! {
    bindings, CUresult, code, CUresult::CUDA_SUCCESS;

    fn cuInit(_world, _flags: c_uint) {
        Ok(())
    }

    fn cuDriverGetVersion(_world, version: *mut c_int) {
        put(version, std::env::var("STANDIN_VERSION").ok().and_then(|text| text.parse().ok()).unwrap_or(13_000));
        Ok(())
    }

    fn cuDeviceGetCount(_world, count: *mut c_int) {
        put(count, 1);
        Ok(())
    }

    fn cuDeviceGet(_world, device: *mut CUdevice, ordinal: c_int) {
        put(device, 0);
        if ordinal == 0 { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_DEVICE) }
    }

    fn cuDeviceGetName(_world, name: *mut c_char, _length: c_int, _device: CUdevice) {
        b"stand-in\0".iter().enumerate().for_each(|(at, byte)| put(name.wrapping_add(at), byte.cast_signed()));
        Ok(())
    }

    fn cuDeviceTotalMem_v2(_world, bytes: *mut usize, _device: CUdevice) {
        put(bytes, MEMORY as usize);
        Ok(())
    }

    fn cuDeviceGetAttribute(_world, value: *mut c_int, attribute: CUdevice_attribute, _device: CUdevice) {
        put(value, match attribute {
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 132,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => 232_448,
            _ => 0,
        });
        Ok(())
    }

    fn cuDevicePrimaryCtxRetain(world, context: *mut CUcontext, _device: CUdevice) {
        let (handle, count) = match world.primary {
            Some((handle, count)) => (handle, count + 1),
            None => (world.add(Object::Context), 1),
        };
        world.primary = Some((handle, count));
        put(context, handle as CUcontext);
        Ok(())
    }

    #[release]
    fn cuDevicePrimaryCtxRelease_v2(world, _device: CUdevice) {
        match world.primary {
            Some((handle, 1)) => {
                world.primary = None;
                world.remove(handle, "release of the primary context").map(drop)
            }
            Some((handle, count)) => {
                world.primary = Some((handle, count - 1));
                Ok(())
            }
            None => Err(world.violation("one release of the primary context too many".to_owned())),
        }
    }

    fn cuCtxGetCurrent(world, context: *mut CUcontext) {
        put(context, world.current as CUcontext);
        Ok(())
    }

    fn cuCtxSetCurrent(world, context: CUcontext) {
        if !matches!(world.object(context as usize), Some(Object::Context)) {
            return Err(world.violation("a context that is not alive is made current".to_owned()));
        }
        world.current = context as usize;
        Ok(())
    }

    // Only the user's own code may wait for the whole device.
    #[release]
    fn cuCtxSynchronize(world) {
        world.need_context("cuCtxSynchronize")?;
        world.drain_all()
    }

    fn cuMemGetInfo_v2(world, free: *mut usize, total: *mut usize) {
        world.need_context("cuMemGetInfo_v2")?;
        put(free, (MEMORY - world.taken()) as usize);
        put(total, MEMORY as usize);
        Ok(())
    }

    fn cuMemAlloc_v2(world, address: *mut CUdeviceptr, bytes: usize) {
        world.need_context("cuMemAlloc_v2")?;
        put(address, world.allocate(bytes as u64, false)?);
        Ok(())
    }

    #[release]
    fn cuMemFree_v2(world, address: CUdeviceptr) {
        world.free(address, false)
    }

    fn cuMemHostAlloc(world, place: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        world.need_context("cuMemHostAlloc")?;
        put(place, world.allocate(bytes as u64, true)? as *mut c_void);
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(world, address: *mut CUdeviceptr, host: *mut c_void, _flags: c_uint) {
        if !world.is_live(host as u64, 1) {
            return Err(world.violation("the device address of memory that is not alive".to_owned()));
        }
        put(address, host as u64);
        Ok(())
    }

    #[release]
    fn cuMemFreeHost(world, host: *mut c_void) {
        world.free(host as u64, true)
    }

    fn cuStreamCreate(world, place: *mut CUstream, _flags: c_uint) {
        world.need_context("cuStreamCreate")?;
        put(place, world.add(Object::Stream(Stream::default())) as CUstream);
        Ok(())
    }

    #[release]
    fn cuStreamDestroy_v2(world, stream: CUstream) {
        // Queued work still runs to its end.
        world.drain(stream as usize)?;
        world.remove(stream as usize, "destruction of a stream").map(drop)
    }

    // A wait that fails reports what earlier work did; that work is over.
    #[release]
    fn cuStreamSynchronize(world, stream: CUstream) {
        world.drain(stream as usize)
    }

    fn cuStreamWaitEvent(world, _stream: CUstream, event: CUevent, _flags: c_uint) {
        // Streams run late and one by one, so what the other stream does first is done here.
        reach(world, event, usize::MAX - 1).map(drop)
    }

    fn cuEventCreate(world, place: *mut CUevent, _flags: c_uint) {
        world.need_context("cuEventCreate")?;
        put(place, world.add(Object::Event(Event::default())) as CUevent);
        Ok(())
    }

    #[release]
    fn cuEventDestroy_v2(world, handle: CUevent) {
        world.remove(handle as usize, "destruction of an event").map(drop)
    }

    fn cuEventRecord(world, handle: CUevent, stream: CUstream) {
        let found = event(world, handle)?;
        found.recorded += 1;
        found.stream = stream as usize;
        let number = found.recorded;
        queue(world, stream as usize, Work::Record { event: handle as usize, number })
    }

    fn cuEventQuery(world, handle: CUevent) {
        if reach(world, handle, 1)? { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    #[release]
    fn cuEventSynchronize(world, handle: CUevent) {
        reach(world, handle, usize::MAX - 1).map(drop)
    }

    fn cuEventElapsedTime_v2(world, milliseconds: *mut f32, from: CUevent, to: CUevent) {
        event(world, from)?;
        event(world, to)?;
        put(milliseconds, 1.0);
        Ok(())
    }

    fn cuMemcpyHtoDAsync_v2(world, to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) {
        copy(world, stream, to, from as u64, bytes as u64, from as u64)
    }

    fn cuMemcpyDtoHAsync_v2(world, to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy(world, stream, to as u64, from, bytes as u64, to as u64)
    }

    fn cuMemcpyDtoDAsync_v2(world, to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        queue(world, stream as usize, Work::Copy { to, from, bytes: bytes as u64 })
    }

    fn cuMemcpy3DAsync_v2(world, copy: *const CUDA_MEMCPY3D, stream: CUstream) {
        queue(world, stream as usize, Work::Node(NodeKind::Copy(Rows::of(&get(copy))?)))
    }

    fn cuMemsetD8Async(world, to: CUdeviceptr, value: u8, count: usize, stream: CUstream) {
        fill(world, stream, Fill { to, pitch: 0, value: value.into(), element: 1, width: count as u64, height: 1 })
    }

    fn cuMemsetD32Async(world, to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) {
        fill(world, stream, Fill { to, pitch: 0, value, element: 4, width: count as u64, height: 1 })
    }

    fn cuMemsetD2D16Async(
        world, to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream
    ) {
        let (width, height) = (width as u64, height as u64);
        fill(world, stream, Fill { to, pitch: pitch as u64, value: value.into(), element: 2, width, height })
    }

    fn cuMemsetD2D32Async(
        world, to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream
    ) {
        let (width, height) = (width as u64, height as u64);
        fill(world, stream, Fill { to, pitch: pitch as u64, value, element: 4, width, height })
    }

    fn cuModuleLoadData(world, place: *mut CUmodule, image: *const c_void) {
        world.need_context("cuModuleLoadData")?;
        let source = Arc::from(text(image.cast()).as_str());
        put(place, world.add(Object::Module { source }) as CUmodule);
        Ok(())
    }

    #[release]
    fn cuModuleUnload(world, module: CUmodule) {
        world.remove(module as usize, "unloading a module").map(drop)
    }

    fn cuModuleGetFunction(world, place: *mut CUfunction, module: CUmodule, name: *const c_char) {
        let Some(Object::Module { source }) = world.object(module as usize) else {
            return Err(world.violation("a function of a module that is not alive".to_owned()));
        };
        let name = text(name);
        let params = signature(source, &name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        let name = CString::new(name).unwrap_or_default();
        let home = module as usize;
        let function = Function { home, name, params, max_shared: 48 << 10, product: None };
        put(place, world.add(Object::Function(function)) as CUfunction);
        Ok(())
    }

    fn cuFuncGetAttribute(world, value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction) {
        let Some(Object::Function(function)) = world.object(function as usize) else {
            return Err(world.violation("an attribute of a function that is not alive".to_owned()));
        };
        put(value, match attribute {
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => function.max_shared,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
            _ => 32,
        });
        Ok(())
    }

    fn cuFuncSetAttribute(world, function: CUfunction, attribute: CUfunction_attribute, value: c_int) {
        match world.object_mut(function as usize) {
            Some(Object::Function(function))
                if attribute == CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES =>
            {
                if !lies_about("shared") {
                    function.max_shared = value;
                }
                Ok(())
            }
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuFuncGetParamInfo(world, function: CUfunction, index: usize, offset: *mut usize, size: *mut usize) {
        let Some(Object::Function(function)) = world.object(function as usize) else {
            return Err(world.violation("a parameter of a function that is not alive".to_owned()));
        };
        let mut end = 0_usize;
        for (at, &(bytes, _)) in function.params.iter().enumerate() {
            end = end.next_multiple_of(bytes);
            if at == index {
                put(offset, end);
                put(size, if lies_about("parameters") { bytes + 8 } else { bytes });
                return Ok(());
            }
            end += bytes;
        }
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuFuncGetName(world, place: *mut *const c_char, function: CUfunction) {
        let Some(Object::Function(function)) = world.object(function as usize) else {
            return Err(world.violation("the name of a function that is not alive".to_owned()));
        };
        put(place, function.name.as_ptr());
        Ok(())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        _world, blocks: *mut c_int, _function: CUfunction, _threads: c_int, _shared: usize
    ) {
        put(blocks, 2);
        Ok(())
    }

    fn cuLaunchKernelEx(
        world, config: *const CUlaunchConfig, function: CUfunction, params: *mut *mut c_void, _extra: *mut *mut c_void
    ) {
        let config = get(config);
        let extents = [
            [config.gridDimX, config.gridDimY, config.gridDimZ],
            [config.blockDimX, config.blockDimY, config.blockDimZ],
        ];
        let call = kernel_call(world, function, extents, config.sharedMemBytes, params)?;
        queue(world, config.hStream as usize, Work::Node(NodeKind::Kernel(call)))
    }
}
