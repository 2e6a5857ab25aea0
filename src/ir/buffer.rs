//! Buffers and groups of buffers.

use super::dtype::DType;
use super::shape::Shape;
use crate::entity::BufferId;

/// What a buffer is for, and so who writes it and how long it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Written by the host before a launch, through the inbox; nodes only read it.
    Input,
    /// A trained weight: lives as long as the session, is checkpointed.
    Param,
    /// Any other memory that lives as long as the session and is checkpointed: moments, a data set, a replay buffer.
    State,
    /// Lives inside one launch of one step; its memory is reused.
    Temp,
    /// Written by nodes, read by the host through a ticket.
    Output,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 5] = [Self::Input, Self::Param, Self::State, Self::Temp, Self::Output];

    /// The role's name: the table of a spec that declares it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Param => "param",
            Self::State => "state",
            Self::Temp => "temp",
            Self::Output => "output",
        }
    }

    /// Whether the buffer keeps its contents from one launch to the next.
    pub const fn is_persistent(self) -> bool {
        !matches!(self, Self::Temp)
    }
}

/// What a persistent buffer holds when a session opens, or is reset.
///
/// Random values are Philox draws keyed by the session's seed and the buffer's name, so that adding a buffer moves no other.
/// Compared by bits, as constants are: NaN equals itself.
#[derive(Clone, Copy, Debug)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All equal to one value (rounded towards zero for integers).
    Constant(f32),
    /// Uniform in `[-bound, bound)`. Float buffers only.
    Uniform {
        /// The half-width of the interval.
        bound: f32,
    },
    /// Normal with mean 0. Float buffers only.
    Normal {
        /// The standard deviation.
        std: f32,
    },
}

impl Init {
    /// The kind, and the bits of its number.
    const fn key(self) -> (u8, u32) {
        match self {
            Self::Zeros => (0, 0),
            Self::Constant(value) => (1, value.to_bits()),
            Self::Uniform { bound } => (2, bound.to_bits()),
            Self::Normal { std } => (3, std.to_bits()),
        }
    }
}

impl PartialEq for Init {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Init {}

/// A piece of device memory with a type and a shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// The user's name, unique among buffers and scalars; dots allowed (`trunk.w`).
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The row-major shape.
    pub shape: Shape,
    /// What it is for.
    pub role: Role,
    /// What it holds at first; ignored for `Input`, `Temp`, `Output`, which start as zero.
    pub init: Init,
    /// Whether its memory is never reused, so that it can be read after a launch. For `Temp` only.
    pub tap: bool,
}

impl Buffer {
    /// The buffer's size in bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.elements().saturating_mul(self.dtype.size())
    }
}

/// Bytes that every member of a group, and every buffer, is aligned to inside its group.
pub const GROUP_ALIGN: u64 = 16;

/// Buffers of one role and type that lie side by side in this order, so that one kernel can take them as one flat array.
///
/// Each member starts at a multiple of [`GROUP_ALIGN`]; the padding between members is zero, and a kernel that gets the flat
/// array must leave zeros zero (an optimiser does: a zero gradient on a zero weight). Two groups whose members have the
/// same shapes in the same order have the same layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The user's name, unique among buffers, groups and scalars.
    pub name: String,
    /// The members, in memory order.
    pub members: Vec<BufferId>,
}
