//! From the program's names for memory to places in it, once per plan.

use super::error::HostError;
use super::memory::{Cell, inside};
use super::walk::{Access, Computed};
use crate::entity::{BufferId, GroupId, ScalarId};
use crate::ir::{Arg, IndexTerm, MAX_RANK, Program, View};
use crate::plan::{Arena, Placement};

/// Finds the places of one unit's memory.
pub(super) struct Resolver<'a> {
    pub(super) program: &'a Program,
    pub(super) arena: &'a Arena,
    /// The unit's name, for errors.
    pub(super) node: &'a str,
}

impl Resolver<'_> {
    fn unplaced(&self, what: &str) -> HostError {
        HostError::Unplaced { node: self.node.to_owned(), what: what.to_owned() }
    }

    pub(super) fn cell(&self, scalar: ScalarId) -> Result<Cell, HostError> {
        Cell::of(self.arena, scalar).ok_or_else(|| self.unplaced(&self.program.scalars[scalar].name))
    }

    pub(super) fn buffer(&self, buffer: BufferId) -> Result<Placement, HostError> {
        let declared = &self.program.buffers[buffer];
        inside(self.arena, self.arena.buffers[buffer])
            .filter(|at| at.bytes >= declared.bytes() && at.offset % declared.dtype.size() == 0)
            .ok_or_else(|| self.unplaced(&declared.name))
    }

    /// A view whose axes are the index space's own.
    pub(super) fn view(&self, view: &View) -> Result<Access, HostError> {
        let terms: Vec<_> = (0..view.shape().rank() as u8).map(IndexTerm::Axis).collect();
        self.access(view, &terms, |_| false)
    }

    /// A view with an index term per axis. `is_signed` tells of a value whether it is an `i32`.
    pub(super) fn access(
        &self,
        view: &View,
        terms: &[IndexTerm],
        is_signed: impl Fn(usize) -> bool,
    ) -> Result<Access, HostError> {
        let (at, buffer) = (self.buffer(view.buffer)?, &self.program.buffers[view.buffer]);
        let strides = view.strides(&buffer.shape);
        let mut access = Access {
            region: at.region,
            dtype: buffer.dtype,
            first: (at.offset / buffer.dtype.size() + view.offset(&buffer.shape)) as usize,
            steps: [0; MAX_RANK],
            computed: Vec::new(),
        };
        for ((&term, stride), &extent) in terms.iter().zip(strides).zip(view.shape().dims()) {
            let stride = stride as usize;
            match term {
                IndexTerm::Axis(axis) => access.steps[usize::from(axis)] += stride,
                IndexTerm::Fixed(place) => access.first += place as usize * stride,
                IndexTerm::Value(value) => {
                    let value = value.as_u32() as usize;
                    access.computed.push(Computed { value, signed: is_signed(value), extent, stride });
                }
            }
        }
        Ok(access)
    }

    /// The bytes of a group, padding included.
    pub(super) fn group(&self, group: GroupId) -> Result<Placement, HostError> {
        let group_name = || self.unplaced(&self.program.groups[group].name);
        let (_, bytes) = self.program.group_layout(group);
        let &first = self.program.groups[group].members.first().ok_or_else(group_name)?;
        let at = Placement { bytes, ..self.buffer(first)? };
        inside(self.arena, Some(at)).ok_or_else(group_name)
    }

    /// The bytes and the extents of a kernel's buffer argument.
    pub(super) fn argument(&self, arg: &Arg) -> Result<(Placement, Vec<u32>), HostError> {
        match arg {
            Arg::Group(group) => {
                let at = self.group(*group)?;
                let members = &self.program.groups[*group].members;
                let size = members.first().map_or(1, |&member| self.program.buffers[member].dtype.size());
                Ok((at, vec![(at.bytes / size) as u32]))
            }
            Arg::View(view) => {
                let (at, buffer) = (self.buffer(view.buffer)?, &self.program.buffers[view.buffer]);
                let offset = at.offset + view.offset(&buffer.shape) * buffer.dtype.size();
                let bytes = view.shape().elements() * buffer.dtype.size();
                Ok((Placement { region: at.region, offset, bytes }, view.shape().dims().to_vec()))
            }
            Arg::Scalar(_) | Arg::Const(_) => Err(self.unplaced(arg.kind())),
        }
    }
}
