//! The thread that writes one checkpoint, and what a session remembers about it.
//!
//! A file is written beside its place under a name of its own, made safe on the disk, and renamed: whoever looks finds the old
//! file or the new one. A failure removes what was begun.

use std::cell::OnceCell;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use tempfile::NamedTempFile;

use super::content::{self, Saved};
use super::error::CheckpointError;
use super::folder;
use super::format::Header;
use super::ticket::{CheckpointTicket, Progress, Written};
use crate::file;
use crate::plan::{Region, StepPlan};
use crate::runtime::backend::SnapshotReader;

/// Unfinished files are named `.checkpoint-*.tmp`.
pub(super) const UNFINISHED: (&str, &str) = (".checkpoint-", ".tmp");
/// Small tensors are gathered up to so many bytes.
const BUFFER: usize = 1 << 20;

/// Everything that the thread needs.
pub(super) struct Job {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    pub(super) content: Vec<Saved>,
    /// The host's own part of the state.
    pub(super) inbox: Vec<u8>,
    /// The rest, in the order of `content`.
    pub(super) snapshot: Box<dyn SnapshotReader>,
    pub(super) retention: Option<Retention>,
    pub(super) started: Instant,
}

/// Which older files of a folder go when a new one is there.
pub(super) struct Retention {
    pub(super) folder: PathBuf,
    pub(super) keep: usize,
}

/// The checkpoints of one session.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Checkpoints {
    running: Option<Running>,
    /// Failures that their tickets have not told yet.
    failed: Vec<Arc<Progress>>,
    /// Launches of the checkpoint that was resumed, and of this session at that time.
    resumed: (u64, u64),
    /// The program's hash, once it was needed: writing a large program down takes longer than a training step.
    hash: OnceCell<String>,
}

#[derive(Debug)]
struct Running {
    thread: JoinHandle<()>,
    progress: Arc<Progress>,
}

impl Checkpoints {
    /// The hash of the session's program; `plan` is any of its plans.
    pub(super) fn program_hash(&self, plan: &StepPlan) -> &str {
        self.hash.get_or_init(|| content::program_hash(plan))
    }

    /// Launches that led to the present state, after so many of this session.
    pub(super) fn position(&self, launches: u64) -> u64 {
        let (before, since) = self.resumed;
        before.saturating_add(launches - since)
    }

    /// Notes a resume from a checkpoint of so many launches.
    pub(super) fn was_resumed(&mut self, checkpoint: u64, session: u64) {
        self.resumed = (checkpoint, session);
    }

    /// Fails while one is being written; says what failed before.
    pub(super) fn settle(&mut self) -> Result<(), CheckpointError> {
        match &self.running {
            Some(running) if !running.progress.is_done() => {
                Err(CheckpointError::Busy { path: running.progress.path().to_owned() })
            }
            _ => self.finish(),
        }
    }

    /// Waits for the one that is being written; says what failed before.
    pub(super) fn finish(&mut self) -> Result<(), CheckpointError> {
        self.join();
        // A ticket that is still there tells its failure itself.
        self.failed.retain(|progress| progress.has_failed());
        let untold = self.failed.iter().position(|progress| Arc::strong_count(progress) == 1);
        match untold.and_then(|at| self.failed.remove(at).take_failure()) {
            Some(failure) => Err(CheckpointError::Earlier { cause: Box::new(failure) }),
            None => Ok(()),
        }
    }

    fn join(&mut self) {
        let Some(Running { thread, progress }) = self.running.take() else { return };
        if thread.join().is_err() {
            progress.end(Err(CheckpointError::WriterLost { path: progress.path().to_owned() }));
        }
        self.failed.push(progress);
    }

    pub(super) fn start(&mut self, job: Job) -> Result<CheckpointTicket, CheckpointError> {
        let path = job.path.clone();
        let progress = Arc::new(Progress::new(path.clone()));
        let reporter = Reporter(Arc::clone(&progress));
        let thread = thread::Builder::new().name("checkpoint".to_owned()).spawn(move || {
            let result = write(job);
            reporter.0.end(result);
        });
        let thread =
            thread.map_err(|cause| CheckpointError::Write { path, doing: "starting the thread that writes", cause })?;
        self.running = Some(Running { thread, progress: Arc::clone(&progress) });
        Ok(CheckpointTicket { progress })
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        while let Err(error) = self.finish() {
            tracing::error!(%error, "a checkpoint was lost when its session was dropped");
        }
    }
}

/// Ends the progress even where the thread unwinds, so that nobody waits for ever.
struct Reporter(Arc<Progress>);

impl Drop for Reporter {
    fn drop(&mut self) {
        self.0.end(Err(CheckpointError::WriterLost { path: self.0.path().to_owned() }));
    }
}

fn write(mut job: Job) -> Result<Written, CheckpointError> {
    let path = job.path.clone();
    let failed = |doing| {
        let path = path.clone();
        move |cause: io::Error| CheckpointError::Write { path, doing, cause }
    };
    let place = file::place_of(&path).map_err(failed("looking at what stands there"))?;
    let folder = file::folder_of(&place);
    let mut unfinished = unfinished_in(folder).map_err(failed("making a file beside it"))?;
    let bytes = fill(&mut unfinished, &mut job)?;
    unfinished.as_file().sync_all().map_err(failed("making it safe on the disk"))?;
    // The snapshot's memory is free for the next one from here on.
    drop(job.snapshot);
    unfinished.persist(&place).map_err(|error| failed("giving it its name")(error.error))?;
    sync_folder(folder).map_err(failed("making its name safe on the disk"))?;
    let took = job.started.elapsed();
    tracing::info!(path = %path.display(), bytes, milliseconds = took.as_secs_f64() * 1e3, "checkpoint written");
    if let Some(Retention { folder, keep }) = job.retention {
        folder::prune(&folder, keep, &path);
    }
    Ok(Written { path, bytes, took })
}

/// A new file, locked while it is open: whoever tidies the folder sees that it is in use.
fn unfinished_in(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(UNFINISHED.0).suffix(UNFINISHED.1);
    #[cfg(unix)]
    let builder = {
        use std::os::unix::fs::PermissionsExt;
        // What any new file has: the process's mask decides.
        builder.permissions(std::fs::Permissions::from_mode(0o666))
    };
    loop {
        let file = builder.tempfile_in(folder)?;
        // Not every file system has locks.
        if let Err(error) = file.as_file().lock() {
            tracing::debug!(%error, "an unfinished checkpoint is not locked");
        }
        // Whoever tidied the folder before the lock was there has removed it.
        if file.path().exists() {
            return Ok(file);
        }
    }
}

/// Writes header and tensors, and the checksum last; gives the file's length.
fn fill(file: &mut NamedTempFile, job: &mut Job) -> Result<u64, CheckpointError> {
    let failed =
        |cause: io::Error| CheckpointError::Write { path: job.path.clone(), doing: "writing its contents", cause };
    let mut out =
        Hashed { out: BufWriter::with_capacity(BUFFER, file.as_file_mut()), hash: blake3::Hasher::new(), bytes: 0 };
    out.put(&job.header.bytes).map_err(failed)?;
    for tensor in &job.content {
        if tensor.at.region == Region::Inbox {
            out.put(&job.inbox[tensor.at.offset as usize..tensor.at.end() as usize]).map_err(failed)?;
            continue;
        }
        let mut left = tensor.at.bytes;
        while left > 0 {
            let lost = || CheckpointError::WriterLost { path: job.path.clone() };
            let part = job.snapshot.next().map_err(CheckpointError::Device)?.ok_or_else(lost)?;
            left = left.checked_sub(part.len() as u64).ok_or_else(lost)?;
            out.put(part).map_err(failed)?;
        }
    }
    let Hashed { mut out, hash, bytes } = out;
    let digits = hash.finalize().to_hex();
    out.seek(SeekFrom::Start(job.header.checksum.start as u64)).map_err(failed)?;
    out.write_all(digits.as_bytes()).map_err(failed)?;
    out.flush().map_err(failed)?;
    Ok(bytes)
}

/// Hashes and counts what goes out.
struct Hashed<W> {
    out: W,
    hash: blake3::Hasher,
    bytes: u64,
}

impl<W: Write> Hashed<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

/// A renamed file keeps its new name after a power cut only when the folder itself is on the disk.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: a file that claims more launches than can be counted on is no panic.
    #[test]
    fn launches_are_counted_to_the_end() {
        let mut checkpoints = Checkpoints::default();
        checkpoints.was_resumed(7, 2);
        assert_eq!(checkpoints.position(5), 10);
        checkpoints.was_resumed(u64::MAX - 1, 5);
        assert_eq!(checkpoints.position(9), u64::MAX);
    }
}
