//! Tickets: the claim on one checkpoint's end.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::CheckpointError;

/// A checkpoint that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// From the call to the file under its name.
    pub took: Duration,
}

/// Stands for one checkpoint that is being written. It may be dropped: a failure then comes out of the session's next call.
#[derive(Debug)]
pub struct CheckpointTicket {
    pub(super) progress: Arc<Progress>,
}

impl CheckpointTicket {
    /// Whether it is over, well or not; never blocks.
    pub fn is_done(&self) -> bool {
        self.progress.is_done()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// [`CheckpointError::Write`] and [`CheckpointError::Device`]: a file of that name is as it was.
    pub fn wait(self) -> Result<Written, CheckpointError> {
        self.progress.wait()
    }
}

/// How far one checkpoint is, as the writing thread, the ticket and the session see it.
#[derive(Debug)]
pub(super) struct Progress {
    path: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    Writing,
    Over(Result<Written, CheckpointError>),
    /// Somebody has been told.
    Told,
}

impl Progress {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, state: Mutex::new(State::Writing), changed: Condvar::new() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_done(&self) -> bool {
        !matches!(*self.lock(), State::Writing)
    }

    /// Notes the end; the first one counts.
    pub(super) fn end(&self, result: Result<Written, CheckpointError>) {
        let mut state = self.lock();
        if matches!(*state, State::Writing) {
            *state = State::Over(result);
            self.changed.notify_all();
        }
    }

    fn wait(&self) -> Result<Written, CheckpointError> {
        let mut state = self.lock();
        while matches!(*state, State::Writing) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match std::mem::replace(&mut *state, State::Told) {
            State::Over(result) => result,
            State::Writing | State::Told => Err(CheckpointError::WriterLost { path: self.path.clone() }),
        }
    }

    /// Whether it failed and nobody has been told.
    pub(super) fn has_failed(&self) -> bool {
        matches!(*self.lock(), State::Over(Err(_)))
    }

    /// The failure, where nobody has been told.
    pub(super) fn take_failure(&self) -> Option<CheckpointError> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Told) {
            State::Over(Err(error)) => Some(error),
            other => {
                *state = other;
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
