//! NVRTC: "compiled" code is the source itself, from which the driver reads kernel names and parameters.

use std::ffi::{c_char, c_int};

use cudarc::nvrtc::sys::{self as bindings, nvrtcProgram, nvrtcResult};

use crate::entry::{list, put, text};
use crate::objects::{Object, World};

/// A program of the compiler.
pub(crate) struct Program {
    source: String,
}

fn code(_: u32) -> nvrtcResult {
    nvrtcResult::NVRTC_ERROR_INTERNAL_ERROR
}

fn program(world: &mut World, handle: nvrtcProgram) -> Result<Vec<u8>, nvrtcResult> {
    match world.object(handle as usize) {
        Some(Object::Program(program)) => Ok(program.source.as_bytes().iter().copied().chain([0]).collect()),
        _ => {
            world.violation("a compiler call on a program that is not alive".to_owned());
            Err(nvrtcResult::NVRTC_ERROR_INVALID_PROGRAM)
        }
    }
}

exports! {
    bindings, nvrtcResult, code, nvrtcResult::NVRTC_SUCCESS;

    fn nvrtcVersion(_world, major: *mut c_int, minor: *mut c_int) {
        put(major, 13);
        put(minor, 0);
        Ok(())
    }

    fn nvrtcGetNumSupportedArchs(_world, count: *mut c_int) {
        put(count, 3);
        Ok(())
    }

    fn nvrtcGetSupportedArchs(_world, archs: *mut c_int) {
        [80, 90, 100].into_iter().enumerate().for_each(|(at, arch)| put(archs.wrapping_add(at), arch));
        Ok(())
    }

    fn nvrtcCreateProgram(
        world,
        program: *mut nvrtcProgram,
        source: *const c_char,
        _name: *const c_char,
        count: c_int,
        headers: *const *const c_char,
        _names: *const *const c_char
    ) {
        let _headers: Vec<String> = list(headers, count as usize).into_iter().map(text).collect();
        let handle = world.add(Object::Program(Program { source: text(source) }));
        put(program, handle as nvrtcProgram);
        Ok(())
    }

    fn nvrtcCompileProgram(world, handle: nvrtcProgram, _count: c_int, _options: *const *const c_char) {
        program(world, handle).map(drop)
    }

    fn nvrtcGetProgramLogSize(world, handle: nvrtcProgram, size: *mut usize) {
        program(world, handle)?;
        put(size, 1);
        Ok(())
    }

    fn nvrtcGetProgramLog(world, handle: nvrtcProgram, log: *mut c_char) {
        program(world, handle)?;
        put(log, 0);
        Ok(())
    }

    fn nvrtcGetCUBINSize(world, handle: nvrtcProgram, size: *mut usize) {
        put(size, program(world, handle)?.len());
        Ok(())
    }

    fn nvrtcGetCUBIN(world, handle: nvrtcProgram, image: *mut c_char) {
        let bytes = program(world, handle)?;
        bytes.into_iter().enumerate().for_each(|(at, byte)| put(image.wrapping_add(at), byte.cast_signed()));
        Ok(())
    }

    fn nvrtcGetPTXSize(world, handle: nvrtcProgram, size: *mut usize) {
        put(size, program(world, handle)?.len());
        Ok(())
    }

    fn nvrtcGetPTX(world, handle: nvrtcProgram, image: *mut c_char) {
        let bytes = program(world, handle)?;
        bytes.into_iter().enumerate().for_each(|(at, byte)| put(image.wrapping_add(at), byte.cast_signed()));
        Ok(())
    }

    #[release]
    fn nvrtcDestroyProgram(world, handle: *mut nvrtcProgram) {
        let program = crate::entry::get(handle);
        world.remove(program as usize, "destruction of a program").map_err(|_| nvrtcResult::NVRTC_ERROR_INVALID_PROGRAM)?;
        put(handle, std::ptr::null_mut());
        Ok(())
    }
}
