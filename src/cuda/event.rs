//! Events: points in a stream that can be asked for, waited for, and timed.

use std::fmt;
use std::ptr;

use cudarc::driver::sys::{self, CUevent_flags};

use super::context::Context;
use super::error::{CudaError, ignore};
use super::stream::Stream;

/// A point in a stream. An event that was never recorded counts as reached.
pub struct Event {
    raw: sys::CUevent,
    context: Context,
}

// SAFETY: an event handle may be used from any thread; the driver synchronises access to it.
unsafe impl Send for Event {}
// SAFETY: as above; nothing in `Event` changes after it was made.
unsafe impl Sync for Event {}

impl Event {
    /// An event for ordering and waiting.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        Self::with_flags(context, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event that also notes the time.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn timed(context: &Context) -> Result<Self, CudaError> {
        Self::with_flags(context, CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with_flags(context: &Context, flags: CUevent_flags) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the context is current, and `raw` outlives the call.
        unsafe { driver_call!(cuEventCreate(&raw mut raw, flags as u32)) }?;
        Ok(Self { raw, context: context.clone() })
    }

    /// The raw handle, valid as long as this value.
    pub fn raw(&self) -> sys::CUevent {
        self.raw
    }

    /// Moves the event to the present end of the stream.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: event and stream are alive.
        unsafe { driver_call!(cuEventRecord(self.raw, stream.raw())) }
    }

    /// Whether the stream has come this far.
    ///
    /// # Errors
    /// Whatever the driver says, faults of earlier work included.
    pub fn is_reached(&self) -> Result<bool, CudaError> {
        // SAFETY: the event is alive.
        match unsafe { driver_call!(cuEventQuery(self.raw)) } {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_ready() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until the stream has come this far.
    ///
    /// # Errors
    /// Whatever the driver says, faults of earlier work included.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the event is alive.
        unsafe { driver_call!(cuEventSynchronize(self.raw)) }
    }

    /// Milliseconds from this event to a later one; both must be timed and reached.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn milliseconds_to(&self, later: &Self) -> Result<f32, CudaError> {
        let mut elapsed = 0.0;
        // SAFETY: both events are alive, and `elapsed` outlives the call.
        #[cfg(feature = "cuda-13000")]
        unsafe {
            super::probe::require_driver(self.context.properties().driver, 12_080, "timing with this build")?;
            driver_call!(cuEventElapsedTime_v2(&raw mut elapsed, self.raw, later.raw))?;
        }
        // SAFETY: as above.
        #[cfg(not(feature = "cuda-13000"))]
        unsafe {
            driver_call!(cuEventElapsedTime(&raw mut elapsed, self.raw, later.raw))?;
        }
        Ok(elapsed)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").finish_non_exhaustive()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        ignore(self.context.bind());
        // SAFETY: the event is ours and is not used again; the driver keeps it while a stream still needs it.
        ignore(unsafe { driver_call!(cuEventDestroy_v2(self.raw)) });
    }
}
