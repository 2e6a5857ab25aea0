//! Where a run writes at its end is looked at before it starts: told before hours of training, not after. Writes nothing itself.

use std::fs::{self, OpenOptions};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use stepgraph::file;

use super::keeper;

/// The results can be written to this file, which stays as it is.
///
/// # Errors
/// A folder, or a place that cannot be written.
pub(crate) fn check_results(path: &Path) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    ensure!(!path.is_dir(), "{}: it is a folder: name a file in it", cannot());
    let writable = if path.exists() {
        OpenOptions::new().append(true).open(path).map(drop)
    } else {
        tempfile::tempfile_in(file::folder_of(path)).map(drop)
    };
    writable.with_context(cannot)
}

/// Checkpoints can be written below this folder, which is made where it is not there; those of another run stay.
///
/// # Errors
/// A folder that cannot be made or written, or one that holds checkpoints and not the one that is gone on from.
pub(crate) fn check_checkpoints(folder: &Path, resume: Option<&Path>) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let own = folder.canonicalize().with_context(|| format!("cannot look into {}", folder.display()))?;
    // Where there is nothing to go on from, that is told when it is read.
    let goes_on_here = |from: &Path| from.canonicalize().map_or(true, |from| from.starts_with(&own));
    if !resume.is_some_and(goes_on_here) {
        keeper::refuse_used(folder)?;
    }
    tempfile::tempfile_in(folder).map(drop).with_context(|| format!("cannot write into {}", folder.display()))
}
