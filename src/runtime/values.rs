//! Values in and out of a session: scalars, inputs, weights, results; by handle and by name.

use std::ops::Range;

use super::backend::Order;
use super::error::RuntimeError;
use super::history::{Memory, Overwriter};
use super::session::Session;
use super::ticket::Ticket;
use crate::entity::{BufferId, GroupId, ProgramTag, ScalarId};
use crate::handle::{Place, Scalar, Tensor};
use crate::ir::{Buffer, ConstValue, DType, Element, Role, ScalarElement, Shape, Symbol, View, Writer};
use crate::plan::{Placement, Region};

/// The contents of a buffer or group, with what is needed to understand them.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorData {
    /// The element type.
    pub dtype: DType,
    /// The row-major shape.
    pub shape: Shape,
    /// The elements, in the machine's byte order.
    pub bytes: Vec<u8>,
}

/// As of when memory is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// After everything that was launched.
    Now,
    /// As a launch of this plan left it; the launch has finished, and nothing has written the memory since.
    Of(usize),
}

impl Session {
    /// Sets a host scalar; launches from now on see the value.
    ///
    /// # Errors
    /// A handle of another program, or a scalar that nodes write.
    pub fn set<T: ScalarElement>(&mut self, scalar: Scalar<T>, value: T) -> Result<(), RuntimeError> {
        self.own(scalar.tag, "the scalar")?;
        self.set_cell(scalar.id, value.to_const())
    }

    /// Fills an input, or a box of one, row-major; launches from now on see the values.
    ///
    /// # Errors
    /// A handle of another program, a buffer that is no input, or another number of elements.
    pub fn write_input<T: Element>(&mut self, tensor: Tensor<T>, values: &[T]) -> Result<(), RuntimeError> {
        self.own_tensor(&tensor)?;
        let name = self.place_name(&tensor.place);
        self.require_role(&tensor.place, &[Role::Input], "written as an input", "load it with `load`")?;
        self.write(&tensor.place, &name, T::DTYPE, bytemuck::cast_slice(values))
    }

    /// Writes a parameter or state, a box of one, or a group with its padding, in place, after all launches so far.
    ///
    /// # Errors
    /// A handle of another program, a buffer of another role, another number of elements, padding that is not zero, or a
    /// device that failed.
    pub fn load<T: Element>(&mut self, tensor: Tensor<T>, values: &[T]) -> Result<(), RuntimeError> {
        self.own_tensor(&tensor)?;
        let name = self.place_name(&tensor.place);
        let remedy = "inputs take `write_input`; temps and outputs are for nodes to write";
        self.require_role(&tensor.place, &[Role::Param, Role::State], "loaded", remedy)?;
        self.write(&tensor.place, &name, T::DTYPE, bytemuck::cast_slice(values))
    }

    /// The present elements of a buffer, a box of one, or a group with its padding, row-major; waits for all launches so far of
    /// the lane that writes it.
    ///
    /// # Errors
    /// A handle of another program, a `Temp` that is not kept, or a device that failed.
    pub fn read<T: Element>(&mut self, tensor: Tensor<T>) -> Result<Vec<T>, RuntimeError> {
        self.own_tensor(&tensor)?;
        let bytes = self.fetch(&tensor.place, Reading::Now)?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// The present value of a scalar; waits for all launches so far of the lane whose nodes write it, if any do.
    ///
    /// # Errors
    /// A handle of another program, or a device that failed.
    pub fn read_scalar<T: ScalarElement>(&mut self, scalar: Scalar<T>) -> Result<T, RuntimeError> {
        self.own(scalar.tag, "the scalar")?;
        self.fetch_cell(scalar.id, Reading::Now).map(T::from_bits)
    }

    /// Sets a host scalar by name.
    ///
    /// # Errors
    /// No such scalar, one that nodes write, or a value of another type.
    pub fn set_by_name(&mut self, name: &str, value: ConstValue) -> Result<(), RuntimeError> {
        let Some(Symbol::Scalar(scalar)) = self.symbol(name) else { return Err(unknown("scalar", name)) };
        self.set_cell(scalar, value)
    }

    /// Fills an input, a parameter, a state, or a group by name, from bytes in the machine's order.
    ///
    /// # Errors
    /// No such buffer, one that only nodes write, or values of another type or number.
    pub fn write_by_name(&mut self, name: &str, dtype: DType, bytes: &[u8]) -> Result<(), RuntimeError> {
        let place = self.place(name)?;
        let roles = [Role::Input, Role::Param, Role::State];
        self.require_role(&place, &roles, "written by the host", "it is for nodes to write")?;
        self.write(&place, name, dtype, bytes)
    }

    /// The present contents of a buffer or group by name; waits for all launches so far of the lane that writes it.
    ///
    /// # Errors
    /// No such buffer, a `Temp` that is not kept, or a device that failed.
    pub fn read_by_name(&mut self, name: &str) -> Result<TensorData, RuntimeError> {
        let place = self.place(name)?;
        let bytes = self.fetch(&place, Reading::Now)?;
        let dtype = self.place_dtype(&place);
        let shape = match place {
            Place::View(view) => view.shape(),
            Place::Group(_) => Shape::new(&[(bytes.len() as u64 / dtype.size()) as u32]).unwrap_or_default(),
        };
        Ok(TensorData { dtype, shape, bytes })
    }

    /// The present value of a scalar by name; waits for all launches so far of the lane whose nodes write it, if any do.
    ///
    /// # Errors
    /// No such scalar, or a device that failed.
    pub fn read_scalar_by_name(&mut self, name: &str) -> Result<ConstValue, RuntimeError> {
        let Some(Symbol::Scalar(scalar)) = self.symbol(name) else { return Err(unknown("scalar", name)) };
        let bits = self.fetch_cell(scalar, Reading::Now)?;
        let init = self.program().scalars[scalar].init;
        Ok(ConstValue::from_bits(init.dtype(), bits).unwrap_or(init))
    }

    pub(super) fn read_of<T: Element>(&mut self, ticket: &Ticket, tensor: Tensor<T>) -> Result<Vec<T>, RuntimeError> {
        self.own_tensor(&tensor)?;
        for buffer in self.buffers(&tensor.place) {
            let declared = &self.program().buffers[buffer];
            let is_temp = declared.role == Role::Temp;
            let memory = if is_temp { Memory::Temp(buffer) } else { Memory::Buffer(buffer) };
            self.check_current(ticket, memory, &declared.name)?;
        }
        let bytes = self.fetch(&tensor.place, Reading::Of(ticket.plan))?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    pub(super) fn read_scalar_of<T: ScalarElement>(
        &mut self,
        ticket: &Ticket,
        scalar: Scalar<T>,
    ) -> Result<T, RuntimeError> {
        self.own(scalar.tag, "the scalar")?;
        self.check_current(ticket, Memory::Scalar(scalar.id), &self.program().scalars[scalar.id].name)?;
        self.fetch_cell(scalar.id, Reading::Of(ticket.plan)).map(T::from_bits)
    }

    fn check_current(&self, ticket: &Ticket, memory: Memory, name: &str) -> Result<(), RuntimeError> {
        let name = || name.to_owned();
        if !self.history.writes(ticket.plan, memory) {
            return Err(RuntimeError::NotWritten { name: name(), step: self.plan_name(ticket.plan) });
        }
        let by = match self.history.overwriter(ticket.plan, ticket.moment, memory) {
            None => return Ok(()),
            Some(Overwriter::Launch(plan)) => format!("a later launch of {}", self.plan_name(plan)),
            Some(Overwriter::Load) => "a load".to_owned(),
            Some(Overwriter::Reset) => "a reset".to_owned(),
            Some(Overwriter::Resume) => "a resume from a checkpoint".to_owned(),
        };
        Err(RuntimeError::Superseded { name: name(), launch: ticket.launch(), by })
    }

    fn own(&self, tag: ProgramTag, what: &'static str) -> Result<(), RuntimeError> {
        let own = self.plans[0].program().origins().tag();
        if own == Some(tag) { Ok(()) } else { Err(RuntimeError::ForeignHandle { what }) }
    }

    /// The handle is this program's, has the type of what it names, and lies inside of it.
    fn own_tensor<T: Element>(&self, tensor: &Tensor<T>) -> Result<(), RuntimeError> {
        self.own(tensor.tag, "the tensor")?;
        let name = || self.place_name(&tensor.place);
        let (expected, found) = (self.place_dtype(&tensor.place), T::DTYPE);
        if expected != found {
            return Err(RuntimeError::WrongType { name: name(), expected, found });
        }
        let Place::View(view) = tensor.place else { return Ok(()) };
        let shape = self.program().buffers[view.buffer].shape;
        if !view.fits(&shape) {
            return Err(RuntimeError::OutOfBounds { name: name(), found: view.ranges_text(), shape });
        }
        Ok(())
    }

    fn symbol(&self, name: &str) -> Option<Symbol> {
        self.program().symbols().get(name).copied()
    }

    fn place(&self, name: &str) -> Result<Place, RuntimeError> {
        match self.symbol(name) {
            Some(Symbol::Buffer(buffer)) => Ok(Place::View(View::full(buffer, &self.program().buffers[buffer].shape))),
            Some(Symbol::Group(group)) => Ok(Place::Group(group)),
            _ => Err(unknown("buffer", name)),
        }
    }

    fn buffers(&self, place: &Place) -> Vec<BufferId> {
        match place {
            Place::View(view) => vec![view.buffer],
            Place::Group(group) => self.program().groups[*group].members.clone(),
        }
    }

    fn place_dtype(&self, place: &Place) -> DType {
        self.buffers(place).first().map_or(DType::F32, |&buffer| self.program().buffers[buffer].dtype)
    }

    fn place_name(&self, place: &Place) -> String {
        match place {
            Place::View(view) => self.program().buffers[view.buffer].name.clone(),
            Place::Group(group) => self.program().groups[*group].name.clone(),
        }
    }

    fn require_role(
        &self,
        place: &Place,
        roles: &[Role],
        action: &'static str,
        remedy: &'static str,
    ) -> Result<(), RuntimeError> {
        let wrong = self.buffers(place).into_iter().map(|buffer| &self.program().buffers[buffer]);
        match wrong.into_iter().find(|buffer| !roles.contains(&buffer.role)) {
            Some(Buffer { name, role, .. }) => {
                Err(RuntimeError::WrongRole { name: name.clone(), role: role.name(), action, remedy })
            }
            None => Ok(()),
        }
    }

    fn set_cell(&mut self, scalar: ScalarId, value: ConstValue) -> Result<(), RuntimeError> {
        let declared = &self.program().scalars[scalar];
        let name = || declared.name.clone();
        if declared.writer == Writer::Device {
            let remedy = "nodes write it; a reset puts it back";
            return Err(RuntimeError::WrongRole { name: name(), role: "a device scalar", action: "set", remedy });
        }
        let (expected, found) = (declared.init.dtype(), value.dtype());
        if expected != found {
            return Err(RuntimeError::WrongType { name: name(), expected, found });
        }
        if let Some(at) = self.plans[0].arena().scalars[scalar] {
            self.write_inbox(at.offset as usize, &value.bits().to_ne_bytes());
        }
        Ok(())
    }

    fn fetch_cell(&mut self, scalar: ScalarId, reading: Reading) -> Result<u32, RuntimeError> {
        let init = self.program().scalars[scalar].init;
        let Some(at) = self.plans[0].arena().scalars[scalar] else { return Ok(init.bits()) };
        let mut bytes = [0; 4];
        let order = self.order(reading, self.lanes.writer_of_scalar(scalar));
        self.fetch_bytes(at, &mut bytes, order)?;
        Ok(u32::from_ne_bytes(bytes))
    }

    fn write_inbox(&mut self, offset: usize, bytes: &[u8]) {
        let at = &mut self.inbox[offset..offset + bytes.len()];
        if at != bytes {
            at.copy_from_slice(bytes);
            self.inbox_changed.fill(true);
        }
    }

    /// What lies at a placement; the inbox is known without asking the device.
    pub(super) fn fetch_bytes(&mut self, at: Placement, into: &mut [u8], order: Order) -> Result<(), RuntimeError> {
        if at.region == Region::Inbox {
            into.copy_from_slice(&self.inbox[at.offset as usize..at.end() as usize]);
            return Ok(());
        }
        self.backend.download(at, into, order)
    }

    fn write(&mut self, place: &Place, name: &str, dtype: DType, bytes: &[u8]) -> Result<(), RuntimeError> {
        let expected = self.place_dtype(place);
        if expected != dtype {
            return Err(RuntimeError::WrongType { name: name.to_owned(), expected, found: dtype });
        }
        let wanted = match place {
            Place::View(view) => view.shape().elements() * dtype.size(),
            Place::Group(group) => self.program().group_layout(*group).1,
        };
        if wanted != bytes.len() as u64 {
            let (expected, found) = (wanted / dtype.size(), bytes.len() as u64 / dtype.size());
            return Err(RuntimeError::WrongLength { name: name.to_owned(), expected, found });
        }
        match place {
            Place::View(view) => self.write_view(view, bytes),
            Place::Group(group) => self.write_group(*group, name, bytes),
        }
    }

    fn write_view(&mut self, view: &View, bytes: &[u8]) -> Result<(), RuntimeError> {
        let buffer = &self.program().buffers[view.buffer];
        let (shape, size) = (buffer.shape, buffer.dtype.size());
        let Some(whole) = self.plans[0].arena().buffers[view.buffer] else { return Ok(()) };
        // Noted first: a load that fails may have written a part.
        self.history.loaded(view.buffer);
        let mut from = bytes;
        for run in runs(view, &shape) {
            let at = Placement {
                offset: whole.offset + run.start * size,
                bytes: (run.end - run.start) * size,
                region: whole.region,
            };
            let (now, later) = from.split_at(at.bytes as usize);
            from = later;
            match at.region {
                Region::Inbox => self.write_inbox(at.offset as usize, now),
                _ => self.backend.upload(at, now)?,
            }
        }
        Ok(())
    }

    fn write_group(&mut self, group: GroupId, name: &str, bytes: &[u8]) -> Result<(), RuntimeError> {
        let (offsets, _) = self.program().group_layout(group);
        let members = self.program().groups[group].members.clone();
        let declared = members.iter().map(|&member| &self.program().buffers[member]);
        let used: Vec<Range<usize>> = declared
            .zip(&offsets)
            .map(|(buffer, &offset)| offset as usize..(offset + buffer.bytes()) as usize)
            .collect();
        let ends = std::iter::once(0).chain(used.iter().map(|range| range.end));
        let starts = used.iter().map(|range| range.start).chain(std::iter::once(bytes.len()));
        let mut padding = ends.zip(starts).flat_map(|(from, to)| from..to);
        if let Some(byte) = padding.find(|&byte| bytes[byte] != 0) {
            let index = byte / self.place_dtype(&Place::Group(group)).size() as usize;
            return Err(RuntimeError::NonzeroPadding { name: name.to_owned(), index });
        }
        for (&member, range) in members.iter().zip(used) {
            let view = View::full(member, &self.program().buffers[member].shape);
            self.write_view(&view, &bytes[range])?;
        }
        Ok(())
    }

    /// What a read must wait for, of memory that this lane writes.
    fn order(&self, reading: Reading, writer: usize) -> Order {
        match reading {
            Reading::Now => Order::After(writer),
            Reading::Of(plan) => Order::Settled(self.lanes.of_plan(plan)),
        }
    }

    /// The bytes of a place.
    fn fetch(&mut self, place: &Place, reading: Reading) -> Result<Vec<u8>, RuntimeError> {
        match place {
            Place::View(view) => self.fetch_view(view, reading),
            Place::Group(group) => {
                let (offsets, bytes) = self.program().group_layout(*group);
                let mut all = vec![0; bytes as usize];
                for (member, offset) in self.buffers(place).into_iter().zip(offsets) {
                    let view = View::full(member, &self.program().buffers[member].shape);
                    let member = self.fetch_view(&view, reading)?;
                    all[offset as usize..][..member.len()].copy_from_slice(&member);
                }
                Ok(all)
            }
        }
    }

    fn fetch_view(&mut self, view: &View, reading: Reading) -> Result<Vec<u8>, RuntimeError> {
        let Buffer { name, dtype, shape, role, tap, .. } = self.program().buffers[view.buffer].clone();
        let last = match reading {
            Reading::Now => self.history.last_plan(),
            Reading::Of(plan) => Some(plan),
        };
        let (plan, writer) = match role {
            Role::Temp => {
                let kept = last.filter(|&plan| tap && self.history.writes(plan, Memory::Temp(view.buffer)));
                (kept, kept.map_or(0, |plan| self.lanes.of_plan(plan)))
            }
            _ => (Some(0), self.lanes.writer_of_buffer(view.buffer)),
        };
        let placed = plan.and_then(|plan| self.plans[plan].arena().buffers[view.buffer]);
        let Some(whole) = placed else { return Err(RuntimeError::NotKept { name }) };
        let (size, runs) = (dtype.size(), runs(view, &shape));
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(Vec::new()) };
        let span = Placement {
            region: whole.region,
            offset: whole.offset + first.start * size,
            bytes: (last.end - first.start) * size,
        };
        let mut bytes = vec![0; span.bytes as usize];
        let order = self.order(reading, writer);
        self.fetch_bytes(span, &mut bytes, order)?;
        if runs.len() == 1 {
            return Ok(bytes);
        }
        let start = first.start;
        let piece = |run: &Range<u64>| ((run.start - start) * size) as usize..((run.end - start) * size) as usize;
        Ok(runs.iter().flat_map(|run| bytes[piece(run)].iter().copied()).collect())
    }
}

fn unknown(kind: &'static str, name: &str) -> RuntimeError {
    RuntimeError::UnknownName { kind, name: name.to_owned() }
}

/// The elements of a box as ranges of the buffer's elements, in row-major order.
pub(super) fn runs(view: &View, shape: &Shape) -> Vec<Range<u64>> {
    if view.is_contiguous(shape) {
        let start = view.offset(shape);
        return std::iter::once(start..start + view.shape().elements()).collect();
    }
    let (strides, ranges) = (shape.strides(), view.ranges());
    let (Some(last), outer) = (ranges.last(), &ranges[..ranges.len().saturating_sub(1)]) else { return Vec::new() };
    let mut starts = vec![u64::from(last.start)];
    for (range, stride) in outer.iter().zip(strides).rev() {
        let along = (0..u64::from(range.len)).map(|place| (u64::from(range.start) + place) * stride);
        starts = along.flat_map(|offset| starts.iter().map(move |start| offset + start).collect::<Vec<_>>()).collect();
    }
    starts.into_iter().map(|start| start..start + u64::from(last.len)).collect()
}
