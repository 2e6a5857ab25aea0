//! What can go wrong with a checkpoint, one rule per variant.

use std::io;
use std::path::PathBuf;

use crate::ir::{DType, Shape};
use crate::runtime::RuntimeError;

/// A checkpoint that cannot be written, read, or taken over. Every variant about a file names it. What the system says is part of
/// the message, and so not a source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// One checkpoint of a session is written at a time.
    #[error("the checkpoint {} is still being written: wait for it, or try again later", path.display())]
    Busy {
        /// The earlier checkpoint.
        path: PathBuf,
    },
    /// A failure that nobody has been told of comes first. Nothing new was started.
    #[error("an earlier checkpoint failed: {cause}")]
    Earlier {
        /// The failure.
        cause: Box<CheckpointError>,
    },
    /// The folder is there and can be written, and the disk has room.
    #[error("cannot write {}: {doing}: {cause}; a file of that name is as it was", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system says.
        cause: io::Error,
    },
    /// A program can be written down as safetensors.
    #[error("a checkpoint of this program cannot be written: {reason}")]
    Unwritable {
        /// Why.
        reason: String,
    },
    /// The thread that writes ends with a result.
    #[error("the thread that wrote {} ended without a result (a defect of stepgraph)", path.display())]
    WriterLost {
        /// The file.
        path: PathBuf,
    },
    /// The device keeps a copy of the state until it is written.
    #[error("the state could not be copied")]
    Device(#[source] RuntimeError),
    /// The device takes what a checked file holds.
    #[error("{} was only partly restored: reset the session or resume again", path.display())]
    Restore {
        /// The file.
        path: PathBuf,
        /// The failure.
        source: RuntimeError,
    },
    /// The file can be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// A checkpoint is one file.
    #[error("{} is a folder: name a checkpoint file in it", path.display())]
    IsFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A checkpoint has contents.
    #[error("{} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A checkpoint is as long as its own beginning says.
    #[error("{} is cut off: it has {found} bytes of at least {expected}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// How long it is, as far as can be known.
        expected: u64,
        /// How long it is.
        found: u64,
    },
    /// A checkpoint is a safetensors file.
    #[error("{} is no safetensors file: {reason}", path.display())]
    NotSafetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A safetensors file that this library wrote as a checkpoint says so.
    #[error("{} holds tensors, but is no checkpoint: load them by name instead", path.display())]
    NotACheckpoint {
        /// The file.
        path: PathBuf,
    },
    /// A checkpoint is what was written.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How it is known.
        reason: String,
    },
    /// A checkpoint has a format that this version knows.
    #[error(
        "{} has format {found}, this version of stepgraph knows formats up to {known}: use the version that wrote it",
        path.display()
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest known format.
        known: u64,
    },
    /// A checkpoint is of the session's program.
    #[error("{} is of program `{found}`, the session runs `{expected}`", path.display())]
    OtherProgram {
        /// The file.
        path: PathBuf,
        /// The session's program.
        expected: String,
        /// The file's program.
        found: String,
    },
    /// Every buffer and scalar that is state is in the file.
    #[error("{} has no `{name}`, which the program declares", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The buffer or scalar.
        name: String,
    },
    /// Everything in the file is state of the program.
    #[error("{} has `{name}`, which is no state of the program", path.display())]
    ExtraTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor has the program's element type.
    #[error("{}: `{name}` holds {found}, the program's holds {expected}", path.display())]
    OtherType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The program's type.
        expected: DType,
        /// The file's type.
        found: String,
    },
    /// A tensor has the program's shape.
    #[error("{}: `{name}` has the shape {found:?}, the program's has {expected}", path.display())]
    OtherShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The program's shape.
        expected: Shape,
        /// The file's shape.
        found: Vec<usize>,
    },
    /// The program computes what it did when the checkpoint was written.
    #[error(
        "{} was written by another version of program `{program}`: the same memory, but other steps or kernels; load its tensors by name to take over the weights",
        path.display()
    )]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// The program.
        program: String,
    },
}

impl CheckpointError {
    /// Whether the file is not what was written: cut off or changed, or none of ours. A file of another program or of a newer
    /// format is not damaged.
    pub const fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Empty { .. }
                | Self::Truncated { .. }
                | Self::NotSafetensors { .. }
                | Self::NotACheckpoint { .. }
                | Self::Damaged { .. }
        )
    }

    /// Whether the device is at fault and not the file, the disk or the user.
    pub fn is_device_failure(&self) -> bool {
        match self {
            Self::Device(source) | Self::Restore { source, .. } => source.is_device_failure(),
            Self::Earlier { cause } => cause.is_device_failure(),
            _ => false,
        }
    }
}
