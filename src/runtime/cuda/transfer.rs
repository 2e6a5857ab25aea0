//! Loads and reads: bytes between the host and the device, on a stream of their own.

use crate::cuda::{Context, CudaError, Event, PinnedMemory, Stream};

/// Bytes travel in pieces of so many.
const PIECE: u64 = 4 << 20;

/// Moves bytes in pieces through pinned memory, after what lanes have queued so far where that is asked for.
pub(super) struct Transfers {
    context: Context,
    stream: Stream,
    mark: Event,
    staging: Option<PinnedMemory>,
}

/// A part of a transfer: where it starts in the host's bytes, and how long it is.
#[derive(Clone, Copy)]
struct Piece {
    start: usize,
    bytes: u64,
}

impl Transfers {
    pub(super) fn new(context: &Context) -> Result<Self, CudaError> {
        let (stream, mark) = (Stream::new(context)?, Event::new(context)?);
        Ok(Self { context: context.clone(), stream, mark, staging: None })
    }

    /// Lets the next transfer run after everything that a stream holds now. The stream itself does not wait.
    pub(super) fn after(&self, stream: &Stream) -> Result<(), CudaError> {
        self.mark.record(stream)?;
        self.stream.wait(&self.mark)
    }

    /// Waits until the streams of [`Transfers::after`] have come this far.
    pub(super) fn settle(&self) -> Result<(), CudaError> {
        self.stream.synchronize()
    }

    /// Writes bytes to a device address, and returns when they are there.
    pub(super) fn upload(&mut self, address: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.pieces(bytes.len() as u64, |staging, stream, piece| {
            staging.write(0, &bytes[piece.start..][..piece.bytes as usize])?;
            stream.copy_in(address + piece.start as u64, staging, 0, piece.bytes)?;
            stream.synchronize()
        })
    }

    /// Reads bytes from a device address.
    pub(super) fn download(&mut self, address: u64, into: &mut [u8]) -> Result<(), CudaError> {
        self.pieces(into.len() as u64, |staging, stream, piece| {
            stream.copy_out(address + piece.start as u64, staging, 0, piece.bytes)?;
            stream.synchronize()?;
            staging.read(0, &mut into[piece.start..][..piece.bytes as usize])
        })
    }

    fn pieces(
        &mut self,
        bytes: u64,
        mut work: impl FnMut(&PinnedMemory, &Stream, Piece) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let staging = match self.staging.take() {
            Some(staging) => staging,
            None => PinnedMemory::new(&self.context, PIECE)?,
        };
        let mut starts = (0..bytes).step_by(PIECE as usize);
        let result = starts.try_for_each(|start| {
            let piece = Piece { start: start as usize, bytes: PIECE.min(bytes - start) };
            work(&staging, &self.stream, piece)
        });
        self.staging = Some(staging);
        result
    }
}

impl Drop for Transfers {
    /// A transfer that failed half way may have left a copy that names the staging memory.
    fn drop(&mut self) {
        if let Err(error) = self.stream.synchronize() {
            tracing::debug!(%error, "while ending transfers");
        }
    }
}
