//! A stand-in for the CUDA driver, NVRTC and cuBLASLt, so that the driver layer and emission run where there is no GPU.
//!
//! It is loaded in place of the real libraries by their names. It checks that every handle is alive and of the right kind,
//! that addresses lie in live memory when work *runs* (work is queued and runs late, as on a device), that graphs have no cycle, and it
//! counts calls. Copies, fills and matrix products are carried out; other kernels only have their arguments checked, so bodies of
//! conditional nodes do not run, but are checked as if they did.
//!
//! - `STANDIN_FAIL=CALL:N:CODE` makes the N-th call of that name fail with this code. Calls that release something,
//!   or wait, still do.
//! - `STANDIN_STICKY=1` lets every call on the context fail with that code from then on, as after a fault of device code.
//! - `STANDIN_LIE=parameters` reports other kernel parameters than the code has, `shared` and `attributes` drop what is set, `allocation`
//!   shows memset nodes as allocations.
//! - `STANDIN_VERSION=N` is the driver's CUDA version times 1000; 13000 otherwise.
//! - `STANDIN_REPORT=FILE` writes calls, violations and what is still alive to a file when the process ends.
#![expect(unsafe_code, reason = "it implements a C interface")]

#[macro_use]
mod entry;

mod blas;
mod compiler;
mod driver;
mod exec;
mod graph;
mod objects;
mod run;
