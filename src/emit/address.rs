//! From the program's names for memory to device addresses.

use super::error::{EmitError, Place};
use super::memory::LaneMemory;
use crate::cuda::MatrixSpec;
use crate::entity::{BufferId, GroupId, ScalarId, UnitId};
use crate::ir::{Arg, DType, Program, View};
use crate::plan::{Arena, Placement, Unit};

/// Finds the addresses of one unit's memory.
pub(super) struct Addresses<'a> {
    pub(super) program: &'a Program,
    pub(super) arena: &'a Arena,
    pub(super) memory: &'a LaneMemory,
    pub(super) step: &'a str,
    pub(super) id: UnitId,
    pub(super) unit: &'a Unit,
}

impl Addresses<'_> {
    /// Where the unit stands, for errors.
    pub(super) fn place(&self) -> Place {
        Place { step: self.step.to_owned(), graph: None, node: Some(self.unit.name.clone()) }
    }

    fn unplaced(&self, what: &str) -> EmitError {
        EmitError::Unplaced { place: Box::new(self.place()), what: what.to_owned() }
    }

    fn inside(&self, at: Option<Placement>, what: &str) -> Result<Placement, EmitError> {
        at.filter(|at| at.end() <= self.arena.size(at.region)).ok_or_else(|| self.unplaced(what))
    }

    pub(super) fn scalar(&self, scalar: ScalarId) -> Result<u64, EmitError> {
        let name = &self.program.scalars[scalar].name;
        self.inside(self.arena.scalars[scalar], name).map(|at| self.memory.address(at))
    }

    /// The first element of a buffer.
    pub(super) fn buffer(&self, buffer: BufferId) -> Result<u64, EmitError> {
        let name = &self.program.buffers[buffer].name;
        self.inside(self.arena.buffers[buffer], name).map(|at| self.memory.address(at))
    }

    /// The first element of a view.
    pub(super) fn view(&self, view: &View) -> Result<u64, EmitError> {
        let buffer = &self.program.buffers[view.buffer];
        Ok(self.buffer(view.buffer)? + view.offset(&buffer.shape) * buffer.dtype.size())
    }

    /// The first element of a group, and its elements, padding included.
    fn group(&self, group: GroupId) -> Result<(u64, u64), EmitError> {
        let (_, bytes) = self.program.group_layout(group);
        let members = &self.program.groups[group].members;
        let &first = members.first().ok_or_else(|| self.unplaced(&self.program.groups[group].name))?;
        Ok((self.buffer(first)?, bytes / self.program.buffers[first].dtype.size()))
    }

    /// The first element and the extents of a kernel's buffer argument.
    pub(super) fn argument(&self, arg: &Arg) -> Result<(u64, Vec<u32>), EmitError> {
        match arg {
            Arg::View(view) => Ok((self.view(view)?, view.shape().dims().to_vec())),
            Arg::Group(group) => {
                let (address, elements) = self.group(*group)?;
                Ok((address, vec![u32::try_from(elements).unwrap_or(u32::MAX)]))
            }
            Arg::Scalar(_) | Arg::Const(_) => Err(self.unplaced(arg.kind())),
        }
    }

    /// The unit's workspace; `None` where it has none.
    pub(super) fn workspace(&self) -> Result<Option<(u64, u64)>, EmitError> {
        let Some(at) = self.arena.workspaces[self.id] else { return Ok(None) };
        let at = self.inside(Some(at), "the workspace")?;
        Ok(Some((self.memory.address(at), at.bytes)))
    }

    /// A view of rank 2 as a row-major matrix. Its rows are contiguous: validation saw to that.
    pub(super) fn matrix(&self, view: &View) -> Result<MatrixSpec, EmitError> {
        let (shape, buffer) = (view.shape(), &self.program.buffers[view.buffer]);
        let &[rows, columns] = shape.dims() else { return Err(self.unplaced("an operand that is no matrix")) };
        Ok(MatrixSpec {
            address: self.view(view)?,
            rows: rows.into(),
            columns: columns.into(),
            row_stride: view.strides(&buffer.shape)[0].max(columns.into()),
            is_bf16: buffer.dtype == DType::Bf16,
        })
    }
}
