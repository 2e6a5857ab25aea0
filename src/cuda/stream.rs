//! Streams: where work is queued.

use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUstream_flags, CUstreamCaptureMode};

use super::context::Context;
use super::error::{CudaError, ignore};
use super::event::Event;
use super::graph::Graph;
use super::memory::{PinnedMemory, check_range};

/// A stream of its own, or the user's.
pub struct Stream {
    raw: sys::CUstream,
    context: Context,
    user: Option<Arc<CudaStream>>,
}

// SAFETY: a stream handle may be used from any thread; the driver synchronises access to it.
unsafe impl Send for Stream {}
// SAFETY: as above; nothing in `Stream` changes after it was made.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream that does not wait for the default stream.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current, and `raw` outlives the call.
        unsafe { driver_call!(cuStreamCreate(&raw mut raw, flags)) }?;
        Ok(Self { raw, context: context.clone(), user: None })
    }

    /// The user's stream, kept alive. Work that the user queues on it is ordered with ours.
    ///
    /// # Errors
    /// As [`Context::of_user`].
    pub fn of_user(user: Arc<CudaStream>) -> Result<Self, CudaError> {
        let context = Context::of_user(Arc::clone(user.context()))?;
        Ok(Self { raw: user.cu_stream(), context, user: Some(user) })
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The raw handle, valid as long as this value.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Waits until everything queued so far has run.
    ///
    /// # Errors
    /// Whatever the driver says, faults of earlier work included.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: the stream is alive.
        unsafe { driver_call!(cuStreamSynchronize(self.raw)) }
    }

    /// Lets work queued from now on wait for an event.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: stream and event are alive; the driver keeps the event as long as it is waited for.
        unsafe { driver_call!(cuStreamWaitEvent(self.raw, event.raw(), 0)) }
    }

    /// Queues a copy of pinned bytes to the device. The bytes must stay as they are until the copy has run.
    pub(crate) fn copy_in(&self, to: u64, from: &PinnedMemory, offset: u64, bytes: u64) -> Result<(), CudaError> {
        check_range("a copy to the device", offset, bytes, from.size())?;
        let source = from.host_address(offset);
        // SAFETY: the source range lies in a live pinned allocation; `to` is an address of the plan's memory with room for it.
        unsafe { driver_call!(cuMemcpyHtoDAsync_v2(to, source.cast_const(), bytes as usize, self.raw)) }
    }

    /// Queues a copy of device bytes to pinned memory. The bytes are there once the stream has come this far.
    pub(crate) fn copy_out(&self, from: u64, to: &PinnedMemory, offset: u64, bytes: u64) -> Result<(), CudaError> {
        check_range("a copy from the device", offset, bytes, to.size())?;
        // SAFETY: the target range lies in a live pinned allocation; `from` is an address of the plan's memory.
        unsafe { driver_call!(cuMemcpyDtoHAsync_v2(to.host_address(offset), from, bytes as usize, self.raw)) }
    }

    /// Queues a copy within the device's memory.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: both are addresses of live memory of the session with room for the bytes; the ranges do not overlap.
        unsafe { driver_call!(cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.raw)) }
    }

    /// Queues setting `words` 32-bit words of the device's memory.
    pub(crate) fn fill_words(&self, at: u64, word: u32, words: u64) -> Result<(), CudaError> {
        // SAFETY: `at` is an address of the plan's memory with room for the words, aligned for them.
        unsafe { driver_call!(cuMemsetD32Async(at, word, words as usize, self.raw)) }
    }

    /// Queues setting `bytes` bytes of the device's memory.
    pub(crate) fn fill_bytes(&self, at: u64, byte: u8, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: `at` is an address of the plan's memory with room for the bytes.
        unsafe { driver_call!(cuMemsetD8Async(at, byte, bytes as usize, self.raw)) }
    }

    /// Records what `work` queues on this stream as a graph, instead of running it. No other call may use the stream meanwhile.
    ///
    /// Only calls of this thread are recorded. A failure of `work` ends the recording before it is reported.
    pub(crate) fn capture(&self, work: impl FnOnce(&Self) -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        self.context.bind()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and not the default stream, which cannot be captured (that would be an error).
        unsafe { driver_call!(cuStreamBeginCapture_v2(self.raw, mode)) }?;
        let queued = work(self);
        let mut raw = ptr::null_mut();
        // SAFETY: the stream is being captured by this thread; `raw` outlives the call and is ours afterwards.
        let ended = unsafe { driver_call!(cuStreamEndCapture(self.raw, &raw mut raw)) };
        let graph = Graph::from_raw(raw, &self.context);
        queued.and(ended)?;
        graph.ok_or_else(|| CudaError::HarvestRefused { found: "none (the recording is empty)".to_owned() })
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("user", &self.user.is_some()).finish_non_exhaustive()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.user.is_some() {
            return;
        }
        ignore(self.context.bind());
        // SAFETY: the stream is ours and is not used again; queued work still runs to its end.
        ignore(unsafe { driver_call!(cuStreamDestroy_v2(self.raw)) });
    }
}
