//! Scalar cells: quantities that change between launches and so live on the device.

use super::dtype::ConstValue;

/// Who writes a scalar. There is exactly one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// The host sets it before a launch, through the inbox; nodes only read it.
    Host,
    /// Nodes write it; the host only resets it, or restores it from a checkpoint.
    Device,
}

impl Writer {
    /// The writer's name, as specs write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Device => "device",
        }
    }
}

/// A 4-byte device cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// The user's name, unique among buffers, groups and scalars.
    pub name: String,
    /// Its one writer.
    pub writer: Writer,
    /// Its value when a session opens, or is reset; also gives its type.
    pub init: ConstValue,
}
