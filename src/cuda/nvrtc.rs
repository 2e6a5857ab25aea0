//! The run-time compiler: CUDA C in, CUBIN or PTX out. It needs no device and no driver.

#![expect(unsafe_code, reason = "calls of the compiler library")]

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

use cudarc::nvrtc::sys;
use thiserror::Error;

/// What the compiler can refuse.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NvrtcError {
    /// The library is not on this machine, or not where the loader looks.
    #[error(
        "NVRTC (libnvrtc) was not found: install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`, and put its folder on \
         LD_LIBRARY_PATH"
    )]
    Missing,
    /// The source does not compile.
    #[error("{name} does not compile:\n{log}")]
    Compile {
        /// The source's name.
        name: String,
        /// The compiler's messages, with the lines of the source itself.
        log: String,
    },
    /// A source, name or option holds a NUL byte, which the compiler takes for its end.
    #[error("{what} of {name} holds a NUL byte")]
    Nul {
        /// The source's name.
        name: String,
        /// What holds it.
        what: &'static str,
    },
    /// A call failed for a reason that is not the source's.
    #[error("{name}: {call} failed with {code}")]
    Call {
        /// The source's name, or the library's where no source is compiled yet.
        name: String,
        /// The call.
        call: &'static str,
        /// The library's name of the error.
        code: String,
    },
}

/// A translation unit.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its name in messages.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
    /// Headers that it may include: name and text. No other header is found.
    pub headers: &'a [(&'a str, &'a str)],
    /// Options besides the architecture.
    pub options: &'a [&'a str],
}

/// What to compile for: a compute capability times ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// Machine code for this architecture: a CUBIN.
    Real(u32),
    /// Portable code for this architecture and later ones: PTX, which the driver compiles when it is loaded.
    Virtual(u32),
}

impl Arch {
    /// The architecture as the compiler's option names it: `sm_90` or `compute_90`.
    pub fn name(self) -> String {
        match self {
            Self::Real(sm) => format!("sm_{sm}"),
            Self::Virtual(sm) => format!("compute_{sm}"),
        }
    }
}

/// A compiled translation unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// A CUBIN, or PTX with its final NUL: what `cuModuleLoadData` takes.
    pub bytes: Vec<u8>,
    /// The compiler's messages; warnings, as it compiled.
    pub log: String,
}

/// The compiler, once it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvrtc {
    version: (i32, i32),
    archs: Vec<u32>,
}

impl Nvrtc {
    /// Finds the library.
    ///
    /// # Errors
    /// [`NvrtcError::Missing`] where it is absent, [`NvrtcError::Call`] where it does not answer.
    pub fn load() -> Result<Self, NvrtcError> {
        static FOUND: OnceLock<Result<Nvrtc, NvrtcError>> = OnceLock::new();
        FOUND.get_or_init(Self::find).clone()
    }

    /// The library's version: major, minor.
    pub const fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The compute capabilities (times ten) that it compiles for, ascending.
    pub fn archs(&self) -> &[u32] {
        &self.archs
    }

    /// How to compile for a device: to machine code where the compiler knows the device, else to PTX of the latest
    /// architecture before it. `None` where the device is older than all that the compiler knows.
    pub fn arch_for(&self, sm: u32) -> Option<Arch> {
        let latest = *self.archs.iter().rfind(|&&known| known <= sm)?;
        Some(if latest == sm { Arch::Real(sm) } else { Arch::Virtual(latest) })
    }

    /// Compiles a translation unit.
    ///
    /// # Errors
    /// [`NvrtcError::Compile`] with the compiler's messages, or another variant where it could not start.
    pub fn compile(&self, source: &Source<'_>, arch: Arch) -> Result<Image, NvrtcError> {
        let program = Program::create(source)?;
        let target = format!("--gpu-architecture={}", arch.name());
        let options = std::iter::once(target.as_str()).chain(source.options.iter().copied());
        let options =
            options.map(|option| c_string(source.name, "an option", option)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX);
        // SAFETY: the program is alive, and `pointers` are `count` strings that outlive the call.
        let outcome = unsafe { sys::nvrtcCompileProgram(program.handle, count, pointers.as_ptr()) };
        let log = program.log(source.name)?;
        match outcome {
            sys::nvrtcResult::NVRTC_SUCCESS => Ok(Image { bytes: program.image(source.name, arch)?, log }),
            sys::nvrtcResult::NVRTC_ERROR_COMPILATION => Err(NvrtcError::Compile { name: source.name.into(), log }),
            other => Err(NvrtcError::Call {
                name: source.name.into(),
                call: "nvrtcCompileProgram",
                code: format!("{other:?} {log}").trim_end().into(),
            }),
        }
    }

    fn find() -> Result<Self, NvrtcError> {
        // SAFETY: this only tries to load the library; its initialisers are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err(NvrtcError::Missing);
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both point to an integer that the call fills.
        check("libnvrtc", "nvrtcVersion", unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) })?;
        let mut count = 0;
        // SAFETY: `count` is an integer that the call fills.
        check("libnvrtc", "nvrtcGetNumSupportedArchs", unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) })?;
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: `archs` has room for the number of architectures that the library just gave.
        check("libnvrtc", "nvrtcGetSupportedArchs", unsafe { sys::nvrtcGetSupportedArchs(archs.as_mut_ptr()) })?;
        let mut archs: Vec<u32> = archs.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect();
        archs.sort_unstable();
        Ok(Self { version: (major, minor), archs })
    }
}

/// A program of the library. The library may keep pointers to the strings that it was given, so they live here.
struct Program {
    handle: sys::nvrtcProgram,
    _strings: Vec<CString>,
}

impl Program {
    fn create(source: &Source<'_>) -> Result<Self, NvrtcError> {
        let string = |what, text| c_string(source.name, what, text);
        let (text, name) = (string("the text", source.text)?, string("the name", source.name)?);
        let mut strings = Vec::new();
        let (mut texts, mut names) = (Vec::new(), Vec::new());
        for &(header, header_text) in source.headers {
            let (header, header_text) = (string("a header", header)?, string("a header", header_text)?);
            names.push(header.as_ptr());
            texts.push(header_text.as_ptr());
            strings.extend([header, header_text]);
        }
        let count = c_int::try_from(names.len()).unwrap_or(c_int::MAX);
        let mut handle = ptr::null_mut();
        // SAFETY: `text` and `name` are strings, `texts` and `names` are `count` strings each; all of them are kept in
        // `_strings` as long as the program. `handle` is a place for the program.
        let outcome = unsafe {
            sys::nvrtcCreateProgram(
                &raw mut handle,
                text.as_ptr(),
                name.as_ptr(),
                count,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        strings.extend([text, name]);
        check(source.name, "nvrtcCreateProgram", outcome)?;
        Ok(Self { handle, _strings: strings })
    }

    fn log(&self, name: &str) -> Result<String, NvrtcError> {
        let mut size = 0;
        // SAFETY: the program is alive, and `size` is a place for a size.
        check(name, "nvrtcGetProgramLogSize", unsafe { sys::nvrtcGetProgramLogSize(self.handle, &raw mut size) })?;
        let mut log = vec![0u8; size];
        // SAFETY: `log` has the size that the library just gave.
        check(name, "nvrtcGetProgramLog", unsafe { sys::nvrtcGetProgramLog(self.handle, log.as_mut_ptr().cast()) })?;
        let text = log.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).trim_end().into())
    }

    fn image(&self, name: &str, arch: Arch) -> Result<Vec<u8>, NvrtcError> {
        let mut size = 0;
        let (size_call, call) = match arch {
            Arch::Real(_) => ("nvrtcGetCUBINSize", "nvrtcGetCUBIN"),
            Arch::Virtual(_) => ("nvrtcGetPTXSize", "nvrtcGetPTX"),
        };
        // SAFETY: the program is alive and was compiled, and `size` is a place for a size.
        let outcome = unsafe {
            match arch {
                Arch::Real(_) => sys::nvrtcGetCUBINSize(self.handle, &raw mut size),
                Arch::Virtual(_) => sys::nvrtcGetPTXSize(self.handle, &raw mut size),
            }
        };
        check(name, size_call, outcome)?;
        let mut bytes = vec![0u8; size];
        // SAFETY: `bytes` has the size that the library just gave for the same kind of image.
        let outcome = unsafe {
            match arch {
                Arch::Real(_) => sys::nvrtcGetCUBIN(self.handle, bytes.as_mut_ptr().cast()),
                Arch::Virtual(_) => sys::nvrtcGetPTX(self.handle, bytes.as_mut_ptr().cast()),
            }
        };
        check(name, call, outcome)?;
        Ok(bytes)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the handle came from nvrtcCreateProgram and is destroyed once.
        let outcome = unsafe { sys::nvrtcDestroyProgram(&raw mut self.handle) };
        if outcome != sys::nvrtcResult::NVRTC_SUCCESS {
            tracing::warn!(?outcome, "nvrtcDestroyProgram failed");
        }
    }
}

fn check(name: &str, call: &'static str, outcome: sys::nvrtcResult) -> Result<(), NvrtcError> {
    match outcome {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(NvrtcError::Call { name: name.into(), call, code: format!("{other:?}") }),
    }
}

fn c_string(name: &str, what: &'static str, text: &str) -> Result<CString, NvrtcError> {
    CString::new(text).map_err(|_| NvrtcError::Nul { name: name.into(), what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiler(archs: &[u32]) -> Nvrtc {
        Nvrtc { version: (13, 0), archs: archs.to_vec() }
    }

    /// Protects: a device newer than the compiler gets PTX that its driver can finish, an older one an honest no.
    #[test]
    fn unknown_devices_get_portable_code() {
        let nvrtc = compiler(&[75, 80, 90]);
        assert_eq!(nvrtc.arch_for(90), Some(Arch::Real(90)));
        assert_eq!(nvrtc.arch_for(120), Some(Arch::Virtual(90)));
        assert_eq!(nvrtc.arch_for(86), Some(Arch::Virtual(80)));
        assert_eq!(nvrtc.arch_for(70), None);
    }
}
