//! Counts calls into the driver and its libraries, so that tests can prove what a step costs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How often one place in the code made its call.
#[derive(Debug)]
pub(crate) struct Counter {
    name: &'static str,
    calls: AtomicU64,
    listed: AtomicBool,
    waits: bool,
}

/// Calls that return only when the device has come so far.
const WAITS: [&str; 3] = ["cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"];

thread_local! {
    static WAITED: Cell<u64> = const { Cell::new(0) };
}

static LISTED: Mutex<Vec<&'static Counter>> = Mutex::new(Vec::new());

impl Counter {
    pub(crate) const fn new(name: &'static str) -> Self {
        let (mut waits, mut at) = (false, 0);
        while at < WAITS.len() {
            waits |= is_same(name, WAITS[at]);
            at += 1;
        }
        Self { name, calls: AtomicU64::new(0), listed: AtomicBool::new(false), waits }
    }

    pub(crate) fn bump(&'static self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.waits {
            WAITED.set(WAITED.get() + 1);
        }
        if !self.listed.swap(true, Ordering::Relaxed) {
            LISTED.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        }
    }
}

/// Whether two names are the same, in a constant.
const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// How often this thread has made a call that waits for the device: for a stream, an event, or all of it.
pub fn waits_of_this_thread() -> u64 {
    WAITED.get()
}

/// How often the process has made the call of this name (`cuGraphLaunch`), failed ones included.
pub fn count(name: &str) -> u64 {
    let listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    listed.iter().filter(|counter| counter.name == name).map(|counter| counter.calls.load(Ordering::Relaxed)).sum()
}

/// How often the process has made each call, by name.
pub fn snapshot() -> BTreeMap<&'static str, u64> {
    let listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut counts = BTreeMap::new();
    for counter in listed.iter() {
        *counts.entry(counter.name).or_default() += counter.calls.load(Ordering::Relaxed);
    }
    counts
}

/// The calls that were made since `earlier`, by name; calls that were not made are left out.
pub fn since(earlier: &BTreeMap<&'static str, u64>) -> BTreeMap<&'static str, u64> {
    let mut now = snapshot();
    now.retain(|name, calls| {
        *calls -= earlier.get(name).copied().unwrap_or(0);
        *calls > 0
    });
    now
}

/// Counts and makes a call of the driver API; gives `Result<(), CudaError>`. To be used inside an `unsafe` block.
macro_rules! driver_call {
    ($name:ident ( $($arg:expr),* $(,)? )) => {{
        static CALLS: $crate::cuda::calls::Counter = $crate::cuda::calls::Counter::new(stringify!($name));
        CALLS.bump();
        $crate::cuda::error::CudaError::of_driver(stringify!($name), ::cudarc::driver::sys::$name($($arg),*))
    }};
}

/// Counts and makes a call of cuBLASLt; gives `Result<(), CudaError>`. To be used inside an `unsafe` block.
macro_rules! blas_call {
    ($name:ident ( $($arg:expr),* $(,)? )) => {{
        static CALLS: $crate::cuda::calls::Counter = $crate::cuda::calls::Counter::new(stringify!($name));
        CALLS.bump();
        $crate::cuda::error::CudaError::of_blas(stringify!($name), ::cudarc::cublaslt::sys::$name($($arg),*))
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: calls made at different places under one name count together, and a difference shows only new calls.
    #[test]
    fn counts_add_up_over_places() {
        static HERE: Counter = Counter::new("a call of this test");
        static THERE: Counter = Counter::new("a call of this test");
        HERE.bump();
        let before = snapshot();
        HERE.bump();
        THERE.bump();
        assert_eq!(count("a call of this test"), 3);
        assert_eq!(since(&before).get("a call of this test"), Some(&2));
    }

    /// Protects: waiting is told from other calls by the exact name, and counted for the thread that waits.
    #[test]
    fn waits_are_counted_by_thread() {
        static WAIT: Counter = Counter::new("cuStreamSynchronize");
        static OTHER: Counter = Counter::new("cuStreamSynchronize_later");
        let before = waits_of_this_thread();
        WAIT.bump();
        OTHER.bump();
        assert!(std::thread::spawn(|| WAIT.bump()).join().is_ok());
        assert_eq!(waits_of_this_thread(), before + 1);
    }
}
