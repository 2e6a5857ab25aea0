//! A folder of checkpoints: the newest few, and the best one.

use std::collections::BTreeMap;
use std::fs::{self, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::error::CheckpointError;
use super::resume::CheckpointFile;
use super::ticket::CheckpointTicket;
use super::writer::{Retention, UNFINISHED, sync_folder};
use crate::runtime::Session;

const PREFIX: &str = "step-";
const SUFFIX: &str = ".safetensors";
const BEST: &str = "best.safetensors";

/// Checkpoints of one training in one folder: `step-NUMBER.safetensors`, of which the newest are kept, and `best.safetensors`. One
/// process at a time writes into it.
///
/// ```
/// # use std::collections::BTreeMap;
/// # use stepgraph::runtime::{CheckpointFolder, Session};
/// # fn train(session: &mut Session, folder: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
/// let folder = CheckpointFolder::open(folder, 3)?;
/// let newest = folder.newest_loadable(session)?;
/// for damaged in &newest.skipped {
///     tracing::warn!(%damaged, "left out");
/// }
/// if let Some(path) = newest.path {
///     session.resume(path)?;
/// }
/// for step in 1..=1000 {
///     session.launch("train")?;
///     if step % 100 == 0 {
///         folder.save(session, step, &BTreeMap::new())?;
///     }
/// }
/// session.finish_checkpoints()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CheckpointFolder {
    path: PathBuf,
    keep: usize,
}

/// The newest checkpoint of a folder that can be taken over.
#[derive(Debug)]
pub struct Newest {
    /// The file; `None` where there is none.
    pub path: Option<PathBuf>,
    /// Newer files that are damaged, each with the reason.
    pub skipped: Vec<CheckpointError>,
}

impl CheckpointFolder {
    /// Uses a folder, and makes it where there is none. Of the numbered checkpoints the newest `keep` stay, at least one. What a
    /// killed process left unfinished is removed; what is being written stays.
    ///
    /// # Errors
    /// A folder that cannot be made or read.
    pub fn open(path: impl Into<PathBuf>, keep: usize) -> Result<Self, CheckpointError> {
        let path = path.into();
        fs::create_dir_all(&path).map_err(|cause| CheckpointError::Write {
            path: path.clone(),
            doing: "making the folder",
            cause,
        })?;
        for name in names(&path)? {
            if name.starts_with(UNFINISHED.0) && name.ends_with(UNFINISHED.1) {
                remove_unfinished(&path.join(name));
            }
        }
        Ok(Self { path, keep: keep.max(1) })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// As [`Session::checkpoint`], to `step-NUMBER.safetensors`. Once it is written, numbered files beyond those that are kept
    /// are removed.
    ///
    /// # Errors
    /// As [`Session::checkpoint`].
    pub fn save(
        &self,
        session: &mut Session,
        number: u64,
        metadata: &BTreeMap<String, String>,
    ) -> Result<CheckpointTicket, CheckpointError> {
        session.checkpoints.finish()?;
        self.start(session, number, metadata)
    }

    /// As [`CheckpointFolder::save`], but never waits.
    ///
    /// # Errors
    /// As [`Session::try_checkpoint`].
    pub fn try_save(
        &self,
        session: &mut Session,
        number: u64,
        metadata: &BTreeMap<String, String>,
    ) -> Result<CheckpointTicket, CheckpointError> {
        session.checkpoints.settle()?;
        self.start(session, number, metadata)
    }

    fn start(
        &self,
        session: &mut Session,
        number: u64,
        metadata: &BTreeMap<String, String>,
    ) -> Result<CheckpointTicket, CheckpointError> {
        let retention = Retention { folder: self.path.clone(), keep: self.keep };
        session.start_checkpoint(&self.path.join(file_name(number)), metadata, Some(retention))
    }

    /// As [`Session::checkpoint`], to `best.safetensors`.
    ///
    /// # Errors
    /// As [`Session::checkpoint`].
    pub fn save_best(
        &self,
        session: &mut Session,
        metadata: &BTreeMap<String, String>,
    ) -> Result<CheckpointTicket, CheckpointError> {
        session.checkpoint(self.path.join(BEST), metadata)
    }

    /// Makes the numbered checkpoint the best one too, in one step and without writing it again; `false`, with nothing done, where
    /// there is no such file.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn set_best(&self, number: u64) -> Result<bool, CheckpointError> {
        let (from, best) = (self.path.join(file_name(number)), self.path.join(BEST));
        let begun = self.path.join(format!("{}best{}", UNFINISHED.0, UNFINISHED.1));
        let failed = |doing| {
            let path = best.clone();
            move |cause| CheckpointError::Write { path, doing, cause }
        };
        if begun.exists() {
            remove(&begun);
        }
        // Where the file system has no second names, a copy does.
        match fs::hard_link(&from, &begun).or_else(|_| copy(&from, &begun)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(failed("giving a checkpoint a second name")(error)),
        }
        fs::rename(&begun, &best).map_err(failed("giving it its name"))?;
        if begun.exists() {
            // Both names were of one file already, and such a renaming does nothing.
            remove(&begun);
        }
        sync_folder(&self.path).map_err(failed("making its name safe on the disk"))?;
        Ok(true)
    }

    /// The best checkpoint, where one was saved.
    pub fn best(&self) -> Option<PathBuf> {
        Some(self.path.join(BEST)).filter(|path| path.is_file())
    }

    /// The numbered checkpoints, newest first.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn steps(&self) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
        steps(&self.path)
    }

    /// Looks for the newest numbered checkpoint that the session can resume; damaged files are passed over and reported.
    ///
    /// # Errors
    /// A folder or file that cannot be read, and a file of another program or of a newer format: starting over beside it would
    /// in time remove it.
    pub fn newest_loadable(&self, session: &Session) -> Result<Newest, CheckpointError> {
        let mut skipped = Vec::new();
        for (_, path) in self.steps()? {
            match CheckpointFile::read(&path).and_then(|file| file.content_for(session)) {
                Ok(_) => return Ok(Newest { path: Some(path), skipped }),
                Err(error) if error.is_damage() => skipped.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok(Newest { path: None, skipped })
    }
}

/// Copies a file and makes the copy safe on the disk.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    fs::File::open(to)?.sync_all()
}

/// Removes an unfinished file unless somebody, in this process or another, still writes it: its writer holds a lock on it. The lock
/// is held until the file is gone, so that a writer which waits for it sees that.
fn remove_unfinished(path: &Path) {
    let locked = fs::File::open(path).map(|file| (file.try_lock(), file));
    if !matches!(locked, Ok((Err(TryLockError::WouldBlock), _))) {
        remove(path);
    }
}

/// Removes numbered checkpoints but the newest `keep`, and never the one that was just written.
pub(super) fn prune(folder: &Path, keep: usize, written: &Path) {
    let steps = match steps(folder) {
        Ok(steps) => steps,
        Err(error) => return tracing::warn!(%error, "older checkpoints stay"),
    };
    for (_, path) in steps.into_iter().skip(keep).filter(|(_, path)| path != written) {
        remove(&path);
    }
}

fn steps(folder: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let number = |name: &str| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse::<u64>().ok();
    let names = names(folder)?.into_iter();
    let numbered = names.filter_map(|name| number(&name).map(|number| (number, name)));
    // What has a number in another form, or is a folder, is somebody else's: it would be removed in time.
    let own = numbered.filter(|(number, name)| *name == file_name(*number));
    let mut found: Vec<_> = own.map(|(number, name)| (number, folder.join(name))).collect();
    found.retain(|(_, path)| !path.is_dir());
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

fn file_name(number: u64) -> String {
    format!("{PREFIX}{number}{SUFFIX}")
}

/// Names in a folder; those that are not UTF-8 are none of ours.
fn names(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    let entries = fs::read_dir(folder).and_then(|entries| {
        let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.collect::<std::io::Result<Vec<_>>>()
    });
    let names = entries.map_err(|cause| CheckpointError::Read { path: folder.to_owned(), cause })?;
    Ok(names.into_iter().flatten().collect())
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "a file that is not needed stays");
        }
        _ => {}
    }
}
