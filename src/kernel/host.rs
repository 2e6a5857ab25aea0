//! Host functions: what a hand-written kernel computes, in Rust, for running without a GPU and for checking the kernel.

use std::fmt;

use crate::ir::{ConstValue, ScalarElement};

/// One argument as a host function sees it, in the order of the kernel's parameters.
#[derive(Debug)]
pub enum HostArg<'a> {
    /// The bytes of an `In` buffer, row-major and contiguous, aligned for its elements.
    In(&'a [u8]),
    /// The bytes of an `Out` or `InOut` buffer; an `Out` starts with whatever was there.
    Out(&'a mut [u8]),
    /// The bits of a `Scalar`.
    Scalar(u32),
    /// The bits of a `ScalarOut` or `ScalarInOut`.
    ScalarOut(&'a mut u32),
    /// A baked constant.
    Const(ConstValue),
    /// The extent of a `Size`.
    Size(u32),
}

/// The arguments of one call; each is taken once.
#[derive(Debug)]
pub struct HostArgs<'a> {
    args: std::vec::IntoIter<HostArg<'a>>,
}

impl<'a> HostArgs<'a> {
    /// Arguments in the order of the kernel's parameters.
    pub fn new(args: Vec<HostArg<'a>>) -> Self {
        Self { args: args.into_iter() }
    }

    /// The next argument. Generated code takes as many as the declaration has.
    pub fn take(&mut self) -> Option<HostArg<'a>> {
        self.args.next()
    }
}

/// The elements of an `In` buffer.
pub fn elements<'a, T: bytemuck::Pod>(arg: Option<HostArg<'a>>) -> &'a [T] {
    match arg {
        Some(HostArg::In(bytes)) => bytemuck::cast_slice(bytes),
        other => mismatch("a read-only buffer", other.as_ref()),
    }
}

/// The elements of an `Out` or `InOut` buffer.
pub fn elements_mut<'a, T: bytemuck::Pod>(arg: Option<HostArg<'a>>) -> &'a mut [T] {
    match arg {
        Some(HostArg::Out(bytes)) => bytemuck::cast_slice_mut(bytes),
        other => mismatch("a writable buffer", other.as_ref()),
    }
}

/// The value of a `Scalar` or `Const`.
pub fn value<T: ScalarElement>(arg: Option<HostArg<'_>>) -> T {
    match arg {
        Some(HostArg::Scalar(bits)) => T::from_bits(bits),
        Some(HostArg::Const(constant)) => T::from_bits(constant.bits()),
        other => mismatch("a scalar or constant", other.as_ref()),
    }
}

/// The cell of a `ScalarOut` or `ScalarInOut`.
pub fn cell<'a, T: ScalarElement>(arg: Option<HostArg<'a>>) -> &'a mut T {
    match arg {
        Some(HostArg::ScalarOut(bits)) => bytemuck::cast_mut(bits),
        other => mismatch("a writable scalar", other.as_ref()),
    }
}

/// The extent of a `Size`.
pub fn size(arg: Option<HostArg<'_>>) -> u32 {
    match arg {
        Some(HostArg::Size(extent)) => extent,
        other => mismatch("a size", other.as_ref()),
    }
}

/// Arguments come from one declaration on both sides, so a mismatch is a defect of this crate and not of its user.
fn mismatch(expected: &str, found: Option<&HostArg<'_>>) -> ! {
    unreachable!("host function expected {expected}, the executor passed {found:?}")
}

/// A kernel's host function.
#[derive(Clone, Copy)]
pub struct HostFn(pub fn(&mut HostArgs<'_>));

impl fmt::Debug for HostFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostFn")
    }
}
