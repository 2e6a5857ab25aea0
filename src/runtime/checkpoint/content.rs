//! What a checkpoint holds, in the order of its bytes.

use std::cmp::Reverse;

use crate::ir::{DType, Role, Shape};
use crate::plan::{Placement, StepPlan};
use crate::runtime::lanes::Lanes;
use crate::spec;

/// A tensor of a checkpoint, and where the session has it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Saved {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) at: Placement,
}

/// The state of a session, in the order of its bytes.
#[derive(Clone, Debug, PartialEq, Default)]
pub(super) struct Content {
    /// What a checkpoint holds.
    pub(super) saved: Vec<Saved>,
    /// What only another lane than the main one writes: a checkpoint is a moment of the main lane, in which the others are anywhere.
    pub(super) left_out: Vec<Saved>,
}

impl Content {
    /// All state that the program declares.
    pub(super) fn all(&self) -> impl Iterator<Item = &Saved> {
        self.saved.iter().chain(&self.left_out)
    }
}

/// Every parameter, state, input and scalar. The one place that decides what is state.
pub(super) fn of(plan: &StepPlan, lanes: &Lanes) -> Content {
    let (program, arena) = (plan.program().program(), plan.arena());
    let is_state = |role: Role| match role {
        Role::Param | Role::State | Role::Input => true,
        Role::Temp | Role::Output => false,
    };
    let buffers = program.buffers.iter().filter(|(_, buffer)| is_state(buffer.role)).filter_map(|(id, buffer)| {
        let at = arena.buffers[id]?;
        let saved = Saved { name: buffer.name.clone(), dtype: buffer.dtype, shape: buffer.shape, at };
        Some((lanes.writer_of_buffer(id), saved))
    });
    let scalars = program.scalars.iter().filter_map(|(id, scalar)| {
        let at = arena.scalars[id]?;
        let saved = Saved { name: scalar.name.clone(), dtype: scalar.init.dtype(), shape: Shape::SCALAR, at };
        Some((lanes.writer_of_scalar(id), saved))
    });
    let mut content = Content::default();
    for (lane, tensor) in buffers.chain(scalars) {
        match lane {
            0 => content.saved.push(tensor),
            _ => content.left_out.push(tensor),
        }
    }
    // Wide elements come first, so that each tensor of the file is aligned to its own; then the order in memory, so that
    // neighbours stay neighbours.
    content.saved.sort_by_key(|tensor| (Reverse(tensor.dtype.size()), tensor.at.region, tensor.at.offset));
    content
}

/// The BLAKE3 hash, in hexadecimal, of the program as it was declared: its canonical spec and its kernels' sources. It is the same
/// for every plan, device and process.
pub(super) fn program_hash(plan: &StepPlan) -> String {
    let program = plan.program().declared().program();
    let mut hash = blake3::Hasher::new();
    hash.update(spec::write(program).as_bytes());
    for kernel in program.kernels.values() {
        hash.update(kernel.name.as_bytes());
        hash.update(kernel.source.text.as_bytes());
    }
    hash.finalize().to_hex().to_string()
}
