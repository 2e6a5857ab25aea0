//! Snapshots on a CUDA device: the state is copied within the device's memory on the training stream, and from there to the
//! host on a stream of its own, a few MiB at a time.
//!
//! The training stream waits for nothing but its own copy, and the host waits only where it reads. Device memory for the copy is
//! taken at the first snapshot and kept, so that later ones allocate nothing.

use std::sync::Arc;

use super::failed;
use crate::cuda::{Context, CudaError, DeviceMemory, Event, PinnedMemory, Stream};
use crate::emit::LaneMemory;
use crate::plan::Placement;
use crate::runtime::RuntimeError;
use crate::runtime::backend::SnapshotReader;

/// Bytes of each of the two pinned pieces.
const CHUNK: u64 = 4 << 20;
/// Placements closer than this are copied together with the padding between them: buffers start at multiples of it.
const GAP: u64 = 256;

/// What snapshots of one session use in turn.
pub(super) struct SnapshotMemory {
    context: Context,
    device: DeviceMemory,
    /// Recorded on the training stream when the state has been copied.
    copied: Event,
    stream: Stream,
    slots: [Slot; 2],
}

struct Slot {
    pinned: PinnedMemory,
    filled: Event,
}

impl SnapshotMemory {
    fn new(context: &Context, bytes: u64) -> Result<Self, CudaError> {
        let slot = || Ok(Slot { pinned: PinnedMemory::new(context, CHUNK.min(bytes))?, filled: Event::new(context)? });
        Ok(Self {
            context: context.clone(),
            device: DeviceMemory::new(context, bytes)?,
            copied: Event::new(context)?,
            stream: Stream::new(context)?,
            slots: [slot()?, slot()?],
        })
    }
}

/// Copies these pieces of a session's memory on its stream. Memory that another snapshot still reads is left to it.
pub(super) fn take(
    kept: &mut Option<Arc<SnapshotMemory>>,
    pieces: &[Placement],
    memory: &LaneMemory,
    stream: &Stream,
) -> Result<Box<dyn SnapshotReader>, CudaError> {
    let (spans, bytes) = spans(pieces, |piece| memory.shared().is_lent(piece));
    let is_free = |kept: &Arc<SnapshotMemory>| Arc::strong_count(kept) == 1 && kept.device.size() >= bytes;
    let target = match kept.take().filter(is_free) {
        Some(kept) => kept,
        None => Arc::new(SnapshotMemory::new(stream.context(), bytes)?),
    };
    let base = target.device.address();
    let copies = spans.iter().try_for_each(|span| stream.copy(base + span.at, memory.address(span.of), span.of.bytes));
    if let Err(error) = copies.and_then(|()| target.copied.record(stream)) {
        // No event tells when the copies that were queued have run, and their target is about to be freed.
        let _ = stream.synchronize();
        return Err(error);
    }
    let chunks = pieces.iter().flat_map(|&piece| chunks(&spans, piece)).collect();
    *kept = Some(Arc::clone(&target));
    Ok(Box::new(CudaSnapshot { memory: target, chunks, queued: 0, read: 0, bytes: Vec::new() }))
}

/// Bytes that are copied at once, and where in the snapshot they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    of: Placement,
    at: u64,
}

/// The pieces, neighbours joined, and the bytes that the snapshot takes. Memory that the user lent stands alone: what lies behind it is
/// not the session's.
fn spans(pieces: &[Placement], is_lent: impl Fn(Placement) -> bool) -> (Vec<Span>, u64) {
    let mut sorted: Vec<_> = pieces.iter().map(|&piece| (is_lent(piece), piece)).collect();
    sorted.sort_by_key(|&(lent, piece)| (lent, piece.region, piece.offset));
    let mut spans: Vec<Placement> = Vec::new();
    for (lent, piece) in sorted {
        match spans.last_mut() {
            Some(last) if !lent && last.region == piece.region && piece.offset < last.end() + GAP => {
                last.bytes = piece.end().max(last.end()) - last.offset;
            }
            _ => spans.push(piece),
        }
    }
    let mut end = 0;
    let place = |of: Placement| {
        let at = end;
        end += of.bytes.next_multiple_of(GAP);
        Span { of, at }
    };
    (spans.into_iter().map(place).collect(), end)
}

/// Where a piece lies in the snapshot, cut so that each part fits a pinned piece.
fn chunks(spans: &[Span], piece: Placement) -> Vec<Chunk> {
    let holds =
        |span: &&Span| span.of.region == piece.region && span.of.offset <= piece.offset && piece.end() <= span.of.end();
    let Some(span) = spans.iter().find(holds) else { return Vec::new() };
    let start = span.at + (piece.offset - span.of.offset);
    let parts = (0..piece.bytes).step_by(CHUNK as usize);
    parts.map(|done| Chunk { at: start + done, bytes: CHUNK.min(piece.bytes - done) }).collect()
}

/// A part of the snapshot that fits a pinned piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    at: u64,
    bytes: u64,
}

/// Reads a snapshot: while one chunk is in the reader's hands, the next one is on its way.
struct CudaSnapshot {
    memory: Arc<SnapshotMemory>,
    chunks: Vec<Chunk>,
    queued: usize,
    read: usize,
    bytes: Vec<u8>,
}

impl CudaSnapshot {
    fn advance(&mut self) -> Result<Option<&[u8]>, CudaError> {
        let memory = &self.memory;
        memory.context.bind()?;
        if self.queued == 0 {
            memory.stream.wait(&memory.copied)?;
        }
        while self.queued < self.chunks.len().min(self.read + memory.slots.len()) {
            let (chunk, slot) = (self.chunks[self.queued], &memory.slots[self.queued % 2]);
            memory.stream.copy_out(memory.device.address() + chunk.at, &slot.pinned, 0, chunk.bytes)?;
            slot.filled.record(&memory.stream)?;
            self.queued += 1;
        }
        let Some(chunk) = self.chunks.get(self.read) else { return Ok(None) };
        let slot = &memory.slots[self.read % 2];
        slot.filled.synchronize()?;
        self.bytes.resize(chunk.bytes as usize, 0);
        slot.pinned.read(0, &mut self.bytes)?;
        self.read += 1;
        Ok(Some(&self.bytes))
    }
}

impl SnapshotReader for CudaSnapshot {
    fn next(&mut self) -> Result<Option<&[u8]>, RuntimeError> {
        self.advance().map_err(|error| failed("copying a checkpoint to the host", error))
    }
}

impl Drop for CudaSnapshot {
    /// Gives the memory back only when nothing that was queued still uses it.
    fn drop(&mut self) {
        let memory = &self.memory;
        let over = memory.context.bind().and_then(|()| memory.copied.synchronize());
        if let Err(error) = over.and(memory.stream.synchronize()) {
            tracing::debug!(%error, "while giving back a snapshot");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Region;

    fn piece(offset: u64, bytes: u64) -> Placement {
        Placement { region: Region::Persistent, offset, bytes }
    }

    /// Protects: neighbours travel in one copy, far pieces and lent ones do not, and each piece is found where it went.
    #[test]
    fn neighbours_are_copied_together() {
        let pieces = [piece(512, 100), piece(0, 4), piece(256, 256), piece(4096, 8), piece(4352, 8)];
        let (spans, bytes) = spans(&pieces, |piece| piece.offset == 4352);
        let expected = [(piece(0, 612), 0), (piece(4096, 8), 768), (piece(4352, 8), 1024)];
        assert_eq!(spans, expected.map(|(of, at)| Span { of, at }));
        assert_eq!(bytes, 1280);
        assert_eq!(chunks(&spans, piece(512, 100)), [Chunk { at: 512, bytes: 100 }]);
        assert_eq!(chunks(&spans, piece(4352, 8)), [Chunk { at: 1024, bytes: 8 }]);
    }

    /// Protects: no chunk is larger than a pinned piece, and together they are the piece.
    #[test]
    fn large_pieces_are_cut() {
        let whole = piece(0, 2 * CHUNK + 12);
        let (spans, _) = spans(&[whole], |_| false);
        let found = chunks(&spans, whole);
        assert_eq!(found.iter().map(|chunk| chunk.bytes).collect::<Vec<_>>(), [CHUNK, CHUNK, 12]);
        assert_eq!(found[2].at, 2 * CHUNK);
    }
}
