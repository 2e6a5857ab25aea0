//! Where each part of a program was written: a side table, so that programs compare by content alone.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;

use rustc_hash::FxHashMap;

use crate::entity::{BufferId, GroupId, KernelId, NodeId, PhaseId, ProgramTag, ScalarId, StepId};

/// A place in the user's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Origin {
    /// Not known.
    #[default]
    Unknown,
    /// A line of Rust.
    Code(&'static Location<'static>),
    /// Bytes `start .. end` of a spec.
    Spec {
        /// The first byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown place"),
            Self::Code(location) => write!(f, "{}:{}", location.file(), location.line()),
            Self::Spec { start, end } => write!(f, "bytes {start}..{end}"),
        }
    }
}

/// A part of a program that has a place of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// The program as a whole.
    Program,
    /// A buffer's declaration.
    Buffer(BufferId),
    /// A group's declaration.
    Group(GroupId),
    /// A scalar's declaration.
    Scalar(ScalarId),
    /// A kernel: its declaration, or its first call.
    Kernel(KernelId),
    /// A step.
    Step(StepId),
    /// A phase.
    Phase(StepId, PhaseId),
    /// A node.
    Node(StepId, NodeId),
    /// A part of a node: an argument of a kernel by its name, or `a`, `b`, `c`, `d`, `epilogue`, `expr`, `finish`, `axes`,
    /// `from`, `to`, `after`, `condition`, `index`, `until`, or `out` followed by the store's number.
    Part(StepId, NodeId, Cow<'static, str>),
}

impl Item {
    /// The name of the part that is a node's store of this number.
    pub fn store_part(number: usize) -> Cow<'static, str> {
        // Most nodes have one store: its name costs nothing.
        if number == 0 { "out0".into() } else { format!("out{number}").into() }
    }
}

/// The places of a program's parts, and whose handles name them.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// Of everything but parts of nodes.
    known: FxHashMap<Item, Origin>,
    parts: FxHashMap<(StepId, NodeId), Parts>,
    tag: Option<ProgramTag>,
}

/// The parts of one node.
type Parts = Vec<(Cow<'static, str>, Origin)>;

impl Origins {
    /// No place known yet, for a program whose handles carry `tag`.
    pub fn of(tag: ProgramTag) -> Self {
        Self { tag: Some(tag), ..Self::default() }
    }

    /// The tag that the program's handles carry; `None` where no handles were made, as for a spec.
    pub fn tag(&self) -> Option<ProgramTag> {
        self.tag
    }

    /// Notes where a part was written.
    pub fn set(&mut self, item: Item, origin: Origin) {
        let Item::Part(step, node, part) = item else {
            self.known.insert(item, origin);
            return;
        };
        let parts = self.parts.entry((step, node)).or_default();
        match parts.iter_mut().find(|(known, _)| *known == part) {
            Some((_, known)) => *known = origin,
            None => parts.push((part, origin)),
        }
    }

    /// Moves what is known about a step's nodes and phases to new numbers; those without one are forgotten.
    pub fn renumber(
        &mut self,
        step: StepId,
        number: impl Fn(NodeId) -> Option<NodeId>,
        phase_number: impl Fn(PhaseId) -> Option<PhaseId>,
    ) {
        let moved = std::mem::take(&mut self.known).into_iter().filter_map(|(item, origin)| match item {
            Item::Node(own, node) if own == step => Some((Item::Node(own, number(node)?), origin)),
            Item::Phase(own, phase) if own == step => Some((Item::Phase(own, phase_number(phase)?), origin)),
            other => Some((other, origin)),
        });
        self.known = moved.collect();
        let moved = std::mem::take(&mut self.parts).into_iter().filter_map(|((own, node), parts)| {
            let node = if own == step { number(node)? } else { node };
            Some(((own, node), parts))
        });
        self.parts = moved.collect();
    }

    /// Where a part was written; a part of a node that has no place of its own has the node's.
    pub fn get(&self, item: &Item) -> Origin {
        let Item::Part(step, node, part) = item else { return self.known.get(item).copied().unwrap_or_default() };
        let known = self.parts.get(&(*step, *node)).into_iter().flatten().find(|(known, _)| known == part);
        known.map_or_else(|| self.get(&Item::Node(*step, *node)), |&(_, origin)| origin)
    }
}
