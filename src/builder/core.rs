//! What every part of the builder shares: the program so far, its names, and the errors so far.

use std::collections::HashMap;

use super::{Element, Item, Place, Symbol, View, Writer};
use crate::entity::{BufferId, EntityRef, KernelId};
use crate::handle::{ProgramTag, Scalar, Tensor};
use crate::ir::{
    Buffer, DType, Diagnostic, Group, Init, Origin, Origins, Program, ProgramError, Role, Scalar as ScalarDecl,
    ScalarElement, Shape,
};
use crate::kernel::{HostFns, KernelDef};

#[derive(Debug)]
pub(super) struct Core {
    pub(super) tag: ProgramTag,
    pub(super) program: Program,
    pub(super) origins: Origins,
    pub(super) host_fns: HostFns,
    pub(super) errors: Vec<Diagnostic>,
    names: HashMap<String, Symbol>,
    kernels: HashMap<String, KernelId>,
}

impl Core {
    pub(super) fn new(name: &str) -> Self {
        let tag = ProgramTag::fresh();
        Self {
            tag,
            program: Program { name: name.into(), ..Program::default() },
            origins: Origins::of(tag),
            host_fns: HostFns::new(),
            errors: Vec::new(),
            names: HashMap::new(),
            kernels: HashMap::new(),
        }
    }

    pub(super) fn fail(&mut self, error: ProgramError, origin: Origin) {
        self.errors.push(Diagnostic { error, origin });
    }

    /// The shape with these extents; the scalar shape and an error where there are too many.
    pub(super) fn shape(&mut self, what: &str, extents: &[u32], origin: Origin) -> Shape {
        Shape::new(extents).unwrap_or_else(|| {
            self.fail(ProgramError::RankTooHigh { what: what.into(), found: extents.len() }, origin);
            Shape::SCALAR
        })
    }

    pub(super) fn declare<T: Element>(
        &mut self,
        name: &str,
        extents: &[u32],
        role: Role,
        init: Init,
        tap: bool,
        origin: Origin,
    ) -> Tensor<T> {
        let shape = self.shape(name, extents, origin);
        self.buffer(Buffer { name: name.into(), dtype: T::DTYPE, shape, role, init, tap }, origin)
    }

    fn buffer<T: Element>(&mut self, buffer: Buffer, origin: Origin) -> Tensor<T> {
        let (name, shape) = (buffer.name.clone(), buffer.shape);
        let id = self.program.buffers.push(buffer);
        self.origins.set(Item::Buffer(id), origin);
        self.name(name, Symbol::Buffer(id));
        Tensor::new(self.tag, Place::View(View::full(id, &shape)))
    }

    /// The `Temp` that a node of this name writes: the one that another step or variant already uses where it has the same
    /// type and shape, a new one otherwise.
    pub(super) fn temp<T: Element>(&mut self, name: &str, shape: Shape, origin: Origin) -> Tensor<T> {
        if let Some(&Symbol::Buffer(id)) = self.names.get(name) {
            let known = &self.program.buffers[id];
            if known.role == Role::Temp && known.dtype == T::DTYPE && known.shape == shape {
                return Tensor::new(self.tag, Place::View(View::full(id, &shape)));
            }
        }
        self.declare(name, shape.dims(), Role::Temp, Init::Zeros, false, origin)
    }

    pub(super) fn declare_scalar<T: ScalarElement>(
        &mut self,
        name: &str,
        writer: Writer,
        init: T,
        origin: Origin,
    ) -> Scalar<T> {
        let id = self.program.scalars.push(ScalarDecl { name: name.into(), writer, init: init.to_const() });
        self.origins.set(Item::Scalar(id), origin);
        self.name(name.into(), Symbol::Scalar(id));
        Scalar::new(self.tag, id)
    }

    pub(super) fn declare_group<T: Element>(&mut self, group: Group, origin: Origin) -> Tensor<T> {
        let name = group.name.clone();
        let id = self.program.groups.push(group);
        self.origins.set(Item::Group(id), origin);
        self.name(name, Symbol::Group(id));
        Tensor::new(self.tag, Place::Group(id))
    }

    pub(super) fn kernel(&mut self, def: &KernelDef, origin: Origin) -> KernelId {
        let decl = &def.decl;
        let Some(&id) = self.kernels.get(&decl.name) else {
            let id = self.program.kernels.push(decl.clone());
            self.host_fns[id] = def.host;
            self.origins.set(Item::Kernel(id), origin);
            self.kernels.insert(decl.name.clone(), id);
            return id;
        };
        if self.program.kernels[id] != *decl {
            self.fail(ProgramError::DuplicateName { kind: "kernel", name: decl.name.clone() }, origin);
        }
        id
    }

    /// The buffer or group of this name; an error and a handle of nothing where there is none, an error where its type is another.
    pub(super) fn tensor<T: Element>(&mut self, name: &str, origin: Origin) -> Tensor<T> {
        let (place, dtype) = match self.names.get(name) {
            Some(&Symbol::Buffer(id)) => {
                let buffer = &self.program.buffers[id];
                (Place::View(View::full(id, &buffer.shape)), Some(buffer.dtype))
            }
            Some(&Symbol::Group(id)) => {
                let first = self.program.groups[id].members.first();
                (Place::Group(id), first.map(|&member| self.program.buffers[member].dtype))
            }
            Some(Symbol::Scalar(_)) | None => {
                let error = ProgramError::UnknownName { kind: "buffer or group", name: name.into(), similar: None };
                self.fail(error, origin);
                return Tensor::new(ProgramTag::NOTHING, Place::View(View::full(BufferId::new(0), &Shape::SCALAR)));
            }
        };
        if let Some(dtype) = dtype.filter(|&dtype| dtype != T::DTYPE) {
            self.wrong_type(name, dtype, T::DTYPE, origin);
        }
        Tensor::new(self.tag, place)
    }

    fn wrong_type(&mut self, name: &str, found: DType, expected: DType, origin: Origin) {
        self.fail(
            ProgramError::TypeMismatch {
                node: name.into(),
                part: "the buffer".into(),
                found: found.to_string(),
                expected: expected.to_string(),
            },
            origin,
        );
    }

    /// What a handle names, or an error where another program made it.
    pub(super) fn own_place<T: Element>(
        &mut self,
        node: &str,
        part: &str,
        tensor: Tensor<T>,
        origin: Origin,
    ) -> Option<Place> {
        self.own(node, part, tensor.tag, origin).then_some(tensor.place)
    }

    /// Whether a tag is this program's; an error where it is another's.
    pub(super) fn own(&mut self, node: &str, part: &str, tag: ProgramTag, origin: Origin) -> bool {
        if tag != self.tag && tag != ProgramTag::NOTHING {
            self.fail(ProgramError::ForeignHandle { node: node.into(), part: part.into() }, origin);
        }
        tag == self.tag
    }

    /// Validation reports names that meet; here the first declaration keeps the name.
    fn name(&mut self, name: String, symbol: Symbol) {
        self.names.entry(name).or_insert(symbol);
    }
}
