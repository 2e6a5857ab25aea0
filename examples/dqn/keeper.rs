//! Checkpoints of a run: a folder for each fold, what stands in a file besides the session's state, and how a run goes on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use stepgraph::runtime::{CheckpointError, CheckpointFolder, Session, checkpoint::CheckpointInfo};

use super::report::FoldResult;
use super::validation::Validated;

/// Epochs whose checkpoints are kept: the best one must still be there when its result arrives, an epoch later.
const KEEP: usize = 3;

/// Where a run stands, beyond what the device knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// The present fold, from 0.
    pub(crate) fold: usize,
    /// Its training steps so far.
    pub(crate) done: usize,
    /// Its results so far.
    pub(crate) validated: Vec<Validated>,
    /// The epoch whose policy was to be evaluated next; its weights are those of the checkpoint.
    pub(crate) validating: Option<usize>,
    /// Results of the folds before.
    pub(crate) folds: Vec<FoldResult>,
}

/// Writes checkpoints of a run.
#[derive(Debug)]
pub(crate) struct Keeper {
    root: PathBuf,
    /// What the run was asked to do: another run's checkpoint would go on as neither of the two.
    run: String,
    folder: Option<(usize, CheckpointFolder)>,
}

impl Keeper {
    /// Writes below `root` for the run with this description.
    pub(crate) fn new(root: &Path, run: String) -> Self {
        Self { root: root.to_owned(), run, folder: None }
    }

    /// Starts to write the state at a position; never waits. Where the disk is slower than an epoch, the epoch has none.
    ///
    /// # Errors
    /// An earlier checkpoint that could not be written, or a device that failed.
    pub(crate) fn save(&mut self, session: &mut Session, position: &Position) -> Result<()> {
        let metadata = self.metadata(position)?;
        match self.folder(position.fold)?.try_save(session, position.done as u64, &metadata) {
            Ok(_) => Ok(()),
            Err(CheckpointError::Busy { path }) => {
                tracing::warn!(still_writing = %path.display(), step = position.done, "no checkpoint of this epoch");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the state at a position, and waits until it is safe; gives the file.
    ///
    /// # Errors
    /// As [`Keeper::save`].
    pub(crate) fn save_now(&mut self, session: &mut Session, position: &Position) -> Result<PathBuf> {
        let metadata = self.metadata(position)?;
        Ok(self.folder(position.fold)?.save(session, position.done as u64, &metadata)?.wait()?.path)
    }

    /// Makes the checkpoint at this step of a fold the best one, where it was written.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub(crate) fn is_best(&mut self, fold: usize, done: usize) -> Result<()> {
        if !self.folder(fold)?.set_best(done as u64)? {
            tracing::warn!(step = done, "the best epoch so far has no checkpoint");
        }
        Ok(())
    }

    fn folder(&mut self, fold: usize) -> Result<&CheckpointFolder> {
        let folder = match self.folder.take() {
            Some((of, folder)) if of == fold => folder,
            _ => CheckpointFolder::open(self.root.join(fold_name(fold)), KEEP)?,
        };
        Ok(&self.folder.insert((fold, folder)).1)
    }

    fn metadata(&self, position: &Position) -> Result<BTreeMap<String, String>> {
        let position = serde_json::to_string(position)?;
        Ok([("run".to_owned(), self.run.clone()), ("position".to_owned(), position)].into())
    }
}

/// Puts the state of a checkpoint in place, of the newest one that is whole where `from` is a folder; gives the position.
///
/// # Errors
/// No checkpoint, one that is damaged or of another program, or one of a run with another description.
pub(crate) fn resume(session: &mut Session, from: &Path, run: &str) -> Result<Position> {
    let file = if from.is_dir() { newest(session, from)? } else { from.to_owned() };
    let info = CheckpointInfo::read(&file)?;
    let described =
        info.metadata.get("run").with_context(|| format!("{} is no checkpoint of a run", file.display()))?;
    ensure!(
        described == run,
        "{} is of another run:\n  it was {described}\n  this is {run}\ngive the same options, or start anew",
        file.display()
    );
    let position = info.metadata.get("position").with_context(|| format!("{} has no position", file.display()))?;
    let position = serde_json::from_str(position).with_context(|| format!("the position in {}", file.display()))?;
    session.resume(&file)?;
    tracing::info!(file = %file.display(), "resumed");
    Ok(position)
}

/// Refuses a folder with checkpoints of another run: a new one would take their places one by one.
///
/// # Errors
/// There is one, or the folder cannot be read.
pub(crate) fn refuse_used(root: &Path) -> Result<()> {
    for fold in folds(root)? {
        let folder = CheckpointFolder::open(fold, KEEP)?;
        let newest = folder.steps()?.into_iter().next().map(|(_, file)| file);
        if let Some(file) = newest.or_else(|| folder.best()) {
            let (file, root) = (file.display(), root.display());
            bail!("{file} is of an earlier run: go on with --resume {root}, or name another --checkpoint-dir");
        }
    }
    Ok(())
}

/// The newest checkpoint that is whole, of the latest fold that has one; `root` may be the folder of one fold.
fn newest(session: &Session, root: &Path) -> Result<PathBuf> {
    let mut folds = folds(root)?;
    if folds.is_empty() {
        folds.push(root.to_owned());
    }
    let mut damaged = Vec::new();
    for fold in folds.into_iter().rev() {
        let found = CheckpointFolder::open(&fold, KEEP)?.newest_loadable(session)?;
        for damaged in &found.skipped {
            tracing::warn!(%damaged, "passed over");
        }
        if let Some(path) = found.path {
            return Ok(path);
        }
        damaged.extend(found.skipped);
    }
    let root = root.display();
    match damaged.first() {
        Some(newest) => {
            bail!("no checkpoint below {root} is whole: {newest}; start anew with another --checkpoint-dir")
        }
        None => bail!("there is no checkpoint below {root}: leave --resume out to start anew"),
    }
}

/// The folders of the folds below a run's, in the folds' order.
fn folds(root: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(root).with_context(|| format!("cannot read {}", root.display()))?;
    let mut folds = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FOLD)) {
            folds.push(path);
        }
    }
    folds.sort();
    Ok(folds)
}

const FOLD: &str = "fold-";

/// Folders sort as folds do.
fn fold_name(fold: usize) -> String {
    format!("{FOLD}{:03}", fold + 1)
}
