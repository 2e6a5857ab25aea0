//! A lane: the stream that executables are launched on, and what emission needs besides.

use std::sync::{Arc, OnceLock};

use crate::cuda::{BlasLt, Context, CudaError, Stream};

/// A stream with its own matrix library handle, so that lanes never share a workspace or a handle.
#[derive(Debug)]
pub struct Lane {
    context: Context,
    stream: Stream,
    /// Library calls are recorded here, one at a time: the launch stream may be the user's, or the default stream, which
    /// cannot be recorded.
    capture: Stream,
    blas: OnceLock<Arc<BlasLt>>,
}

impl Lane {
    /// A lane on a new stream.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        Self::on(Stream::new(context)?)
    }

    /// A lane on this stream.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn on(stream: Stream) -> Result<Self, CudaError> {
        let context = stream.context().clone();
        Ok(Self { capture: Stream::new(&context)?, context, stream, blas: OnceLock::new() })
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The stream that launches go to.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn capture(&self) -> &Stream {
        &self.capture
    }

    /// The matrix library, opened at the first use: programs without products do not need it.
    pub(super) fn blas(&self) -> Result<&Arc<BlasLt>, CudaError> {
        if let Some(open) = self.blas.get() {
            return Ok(open);
        }
        let opened = BlasLt::new(&self.context)?;
        Ok(self.blas.get_or_init(|| opened))
    }
}
