//! Collects broken rules, each with its place, and puts them in program order.

use super::shapes;
use crate::entity::{BufferId, EntityRef, NodeId, ScalarId, StepId};
use crate::ir::{DType, Diagnostic, Diagnostics, Item, Origins, Program, ProgramError, Scalar, Shape, View};

/// Of one rule, so many breaks of one node are reported: a group with thousands of members says the same thousands of times.
pub(super) const MAX_REPEATS: usize = 8;

/// The broken rules so far.
pub(super) struct Report<'a> {
    origins: &'a Origins,
    found: Vec<(Rank, Diagnostic)>,
}

/// Declarations first, then steps with their nodes, each in declared order.
type Rank = (u8, usize, usize);

impl<'a> Report<'a> {
    pub(super) const fn new(origins: &'a Origins) -> Self {
        Self { origins, found: Vec::new() }
    }

    pub(super) fn add(&mut self, item: &Item, error: ProgramError) {
        self.found.push((rank(item), Diagnostic { error, origin: self.origins.get(item) }));
    }

    /// All of them in program order, each once; `None` where there are none.
    pub(super) fn finish(mut self) -> Option<Diagnostics> {
        self.found.sort_by_key(|(rank, _)| *rank);
        let mut diagnostics: Vec<_> = self.found.into_iter().map(|(_, diagnostic)| diagnostic).collect();
        diagnostics.dedup();
        (!diagnostics.is_empty()).then_some(Diagnostics(diagnostics))
    }
}

fn rank(item: &Item) -> Rank {
    match item {
        Item::Program => (0, 0, 0),
        Item::Buffer(id) => (1, id.index(), 0),
        Item::Group(id) => (2, id.index(), 0),
        Item::Scalar(id) => (3, id.index(), 0),
        Item::Kernel(id) => (4, id.index(), 0),
        Item::Step(step) | Item::Phase(step, _) => (5, step.index(), 0),
        Item::Node(step, node) | Item::Part(step, node, _) => (5, step.index(), 1 + node.index()),
    }
}

/// A view, once it is known to lie in its buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Viewed {
    pub(super) dtype: DType,
    /// The view's shape.
    pub(super) shape: Shape,
    /// The buffer's shape.
    pub(super) whole: Shape,
}

/// The node under examination.
pub(super) struct Site<'r, 'a> {
    pub(super) program: &'a Program,
    pub(super) step: StepId,
    pub(super) node: NodeId,
    report: &'r mut Report<'a>,
    /// Whether a rule was broken here.
    pub(super) broken: bool,
}

impl<'r, 'a> Site<'r, 'a> {
    pub(super) fn new(program: &'a Program, step: StepId, node: NodeId, report: &'r mut Report<'a>) -> Self {
        Self { program, step, node, report, broken: false }
    }

    pub(super) fn name(&self) -> String {
        self.program.steps[self.step].nodes[self.node].name.clone()
    }

    /// Reports a broken rule at a part of the node (an [`Item::Part`] name, or nothing for the node itself); `error` gets the node's name.
    pub(super) fn fail(&mut self, part: &str, error: impl FnOnce(String) -> ProgramError) {
        self.broken = true;
        let item = match part {
            "" => Item::Node(self.step, self.node),
            part => Item::Part(self.step, self.node, part.to_owned().into()),
        };
        let error = error(self.name());
        self.report.add(&item, error);
    }

    /// Reports an id that names nothing.
    pub(super) fn unknown(&mut self, part: &str, kind: &'static str, id: impl ToString) {
        self.fail(part, |_| ProgramError::UnknownName { kind, name: id.to_string(), similar: None });
    }

    /// What a view of the node's part `place` is; an error where it names no buffer or leaves it. `what` names it in the message.
    pub(super) fn view(&mut self, place: &str, what: &str, view: View) -> Option<Viewed> {
        let buffer = self.buffer(place, view.buffer)?;
        if !shapes::is_sound(&buffer.shape) {
            // Reported where the buffer is declared.
            self.broken = true;
            return None;
        }
        let fits = view.fits(&buffer.shape) && view.ranges().iter().all(|range| !range.dropped || range.len == 1);
        if !fits {
            self.fail(place, |node| ProgramError::ViewOutOfBounds {
                node,
                part: what.into(),
                buffer: buffer.name.clone(),
                found: view.ranges_text(),
                shape: buffer.shape,
            });
            return None;
        }
        Some(Viewed { dtype: buffer.dtype, shape: view.shape(), whole: buffer.shape })
    }

    pub(super) fn buffer(&mut self, place: &str, id: BufferId) -> Option<&'a crate::ir::Buffer> {
        let buffer = self.program.buffers.get(id);
        if buffer.is_none() {
            self.unknown(place, "buffer", id);
        }
        buffer
    }

    pub(super) fn scalar(&mut self, place: &str, id: ScalarId) -> Option<&'a Scalar> {
        let scalar = self.program.scalars.get(id);
        if scalar.is_none() {
            self.unknown(place, "scalar", id);
        }
        scalar
    }

    /// Compares a shape with the one that a part must have.
    pub(super) fn same_shape(&mut self, place: &str, what: &str, found: Shape, expected: Shape) {
        if found != expected {
            self.fail(place, |node| ProgramError::ShapeMismatch {
                node,
                part: what.into(),
                found: found.to_string(),
                expected: expected.to_string(),
            });
        }
    }

    /// Compares a type with the one that a part must have.
    pub(super) fn same_type(&mut self, place: &str, what: &str, found: &str, expected: &str) {
        if found != expected {
            self.fail(place, |node| ProgramError::TypeMismatch {
                node,
                part: what.into(),
                found: found.into(),
                expected: expected.into(),
            });
        }
    }
}

/// A name as messages show it. Made for every operand, wrong or not, so without the formatter.
pub(super) fn quoted(name: &str) -> String {
    ["`", name, "`"].concat()
}
