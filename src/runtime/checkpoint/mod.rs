//! Checkpoints: a session's state in a file, and back.
//!
//! A checkpoint is a safetensors file with everything that decides how training goes on: parameters, states, inputs, scalars of
//! the host and of the device, the seed, the number of launches, and what the user adds. It is copied within the device's memory
//! and written by a thread, so training never waits; it appears under its name when it is complete, never before. A file is
//! checked in full before anything of a session is changed. Temps and outputs are not state; nor is what only another lane than
//! the main one writes, such as published weights and a validation's own state.

mod content;
mod error;
mod folder;
mod format;
mod resume;
mod ticket;
mod writer;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

pub use error::CheckpointError;
pub use folder::{CheckpointFolder, Newest};
pub use format::CheckpointInfo;
pub use ticket::{CheckpointTicket, Written};
pub(super) use writer::Checkpoints;

use super::session::Session;
use crate::plan::Region;
use format::Header;
use resume::CheckpointFile;
use writer::{Job, Retention};

impl Session {
    /// Starts to write the state as it is after all launches of the main lane so far, with the user's own metadata; returns at once. Where an
    /// earlier checkpoint is still being written, waits for it.
    ///
    /// The file replaces one of the same name when it is complete. On a device the first checkpoint takes as much device memory
    /// as the state, and keeps it.
    ///
    /// # Errors
    /// An earlier checkpoint that failed after its ticket was dropped ([`CheckpointError::Earlier`]): nothing new is written, call
    /// again. A device that failed. What goes wrong in writing comes through the ticket.
    pub fn checkpoint(
        &mut self,
        path: impl AsRef<Path>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<CheckpointTicket, CheckpointError> {
        self.checkpoints.finish()?;
        self.start_checkpoint(path.as_ref(), metadata, None)
    }

    /// As [`Session::checkpoint`], but never waits.
    ///
    /// # Errors
    /// As [`Session::checkpoint`], and [`CheckpointError::Busy`] while an earlier one is being written.
    pub fn try_checkpoint(
        &mut self,
        path: impl AsRef<Path>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<CheckpointTicket, CheckpointError> {
        self.checkpoints.settle()?;
        self.start_checkpoint(path.as_ref(), metadata, None)
    }

    /// Waits until no checkpoint is being written.
    ///
    /// # Errors
    /// [`CheckpointError::Earlier`]: one that failed and whose ticket was dropped.
    pub fn finish_checkpoints(&mut self) -> Result<(), CheckpointError> {
        self.checkpoints.finish()
    }

    /// Puts the state of a checkpoint in place of the session's, after all launches so far; executables stay. Launches from now
    /// on give the same bits as those behind the checkpoint did.
    ///
    /// The whole file is read and checked before anything is changed. The session takes over the checkpoint's seed and counts
    /// its launches on in later checkpoints. What the file leaves out, because another lane wrote it, stays as it is: publish
    /// before that lane runs.
    ///
    /// # Errors
    /// A file that is none, is damaged, or is of another program: nothing has changed. [`CheckpointError::Restore`] where the
    /// device failed half-way.
    pub fn resume(&mut self, path: impl AsRef<Path>) -> Result<CheckpointInfo, CheckpointError> {
        let file = CheckpointFile::read(path.as_ref())?;
        let content = file.content_for(self)?;
        self.restore(file, &content)
    }

    fn start_checkpoint(
        &mut self,
        path: &Path,
        metadata: &BTreeMap<String, String>,
        retention: Option<Retention>,
    ) -> Result<CheckpointTicket, CheckpointError> {
        let started = Instant::now();
        let info = CheckpointInfo {
            program: self.program().name.clone(),
            launches: self.checkpoints.position(self.launches),
            seed: self.seed,
            metadata: metadata.clone(),
        };
        let content = content::of(&self.plans[0], &self.lanes);
        let header = Header::new(&content, &info, self.checkpoints.program_hash(&self.plans[0]))?;
        let content = content.saved;
        let pieces: Vec<_> = content.iter().map(|tensor| tensor.at).filter(|at| at.region != Region::Inbox).collect();
        let snapshot = self.backend.snapshot(&pieces).map_err(CheckpointError::Device)?;
        let inbox = self.inbox.clone();
        self.checkpoints.start(Job { path: path.to_owned(), header, content, inbox, snapshot, retention, started })
    }
}
