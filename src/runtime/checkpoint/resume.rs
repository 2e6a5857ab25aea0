//! From a file back into a session: everything is checked before anything is changed.

use std::fs;
use std::path::{Path, PathBuf};

use super::content::{self, Saved};
use super::error::CheckpointError;
use super::format::{self, CheckpointInfo, Parsed};
use crate::file;
use crate::plan::Region;
use crate::runtime::Session;

/// A whole checkpoint that is what was written, of whatever program.
#[derive(Debug)]
pub(super) struct CheckpointFile {
    path: PathBuf,
    bytes: Vec<u8>,
    parsed: Parsed,
}

impl CheckpointFile {
    pub(super) fn read(path: &Path) -> Result<Self, CheckpointError> {
        let unreadable = |cause| CheckpointError::Read { path: path.to_owned(), cause };
        if fs::metadata(path).map_err(unreadable)?.is_dir() {
            return Err(CheckpointError::IsFolder { path: path.to_owned() });
        }
        let bytes = file::read(path).map_err(unreadable)?;
        let parsed = format::parse(path, &bytes)?;
        Ok(Self { path: path.to_owned(), bytes, parsed })
    }

    pub(super) fn into_info(self) -> CheckpointInfo {
        self.parsed.info
    }

    /// What the file holds of the session's state, where it is of the same program and holds all but what it says is left out.
    pub(super) fn content_for(&self, session: &Session) -> Result<Vec<Saved>, CheckpointError> {
        let path = || self.path.clone();
        let (expected, found) = (&session.program().name, &self.parsed.info.program);
        if expected != found {
            return Err(CheckpointError::OtherProgram {
                path: path(),
                expected: expected.clone(),
                found: found.clone(),
            });
        }
        let content = content::of(&session.plans[0], &session.lanes);
        content.all().try_for_each(|tensor| self.check(tensor))?;
        let is_known = |name: &String| content.all().any(|tensor| tensor.name == *name);
        if let Some(name) = self.parsed.metadata.offset_keys().into_iter().find(|name| !is_known(name)) {
            return Err(CheckpointError::ExtraTensor { path: path(), name });
        }
        if session.checkpoints.program_hash(&session.plans[0]) != self.parsed.hash {
            return Err(CheckpointError::OtherVersion { path: path(), program: found.clone() });
        }
        Ok(content.all().filter(|tensor| self.parsed.metadata.info(&tensor.name).is_some()).cloned().collect())
    }

    fn check(&self, tensor: &Saved) -> Result<(), CheckpointError> {
        let (path, name) = (|| self.path.clone(), || tensor.name.clone());
        let Some(found) = self.parsed.metadata.info(&tensor.name) else {
            if self.parsed.left_out.contains(&tensor.name) {
                return Ok(());
            }
            return Err(CheckpointError::MissingTensor { path: path(), name: name() });
        };
        if found.dtype != format::dtype(tensor.dtype) {
            let (expected, found) = (tensor.dtype, found.dtype.to_string());
            return Err(CheckpointError::OtherType { path: path(), name: name(), expected, found });
        }
        if !tensor.shape.dims().iter().map(|&dim| dim as usize).eq(found.shape.iter().copied()) {
            let (expected, found) = (tensor.shape, found.shape.clone());
            return Err(CheckpointError::OtherShape { path: path(), name: name(), expected, found });
        }
        Ok(())
    }

    /// A checked tensor's bytes: as long as its type and shape say, which the header's reader has compared.
    fn bytes_of(&self, tensor: &Saved) -> &[u8] {
        let offsets = self.parsed.metadata.info(&tensor.name).map_or((0, 0), |info| info.data_offsets);
        &self.bytes[self.parsed.payload + offsets.0..self.parsed.payload + offsets.1]
    }
}

impl Session {
    /// Takes over what a file holds, after its check.
    pub(super) fn restore(
        &mut self,
        file: CheckpointFile,
        content: &[Saved],
    ) -> Result<CheckpointInfo, CheckpointError> {
        self.history.was_resumed();
        // The device first: it alone can fail.
        for tensor in content.iter().filter(|tensor| tensor.at.region != Region::Inbox) {
            let sent = self.backend.upload(tensor.at, file.bytes_of(tensor));
            sent.map_err(|source| CheckpointError::Restore { path: file.path.clone(), source })?;
        }
        for tensor in content.iter().filter(|tensor| tensor.at.region == Region::Inbox) {
            self.inbox[tensor.at.offset as usize..tensor.at.end() as usize].copy_from_slice(file.bytes_of(tensor));
        }
        self.inbox_changed.fill(true);
        let info = file.into_info();
        self.seed = info.seed;
        self.checkpoints.was_resumed(info.launches, self.launches);
        tracing::info!(launches = info.launches, "resumed from a checkpoint");
        Ok(info)
    }
}
