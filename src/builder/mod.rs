//! The Rust API for declaring programs.
//!
//! A [`Builder`] collects declarations and steps; `build()` checks them and reports every error at once, each with the line
//! that made it. Nothing here decides how a step runs, and nothing needs a GPU.
//!
//! ```
//! use stepgraph::Builder;
//! use stepgraph::ir::Init;
//!
//! let mut p = Builder::new("axpy");
//! let rate = p.host_scalar("rate", 0.5f32);
//! let x = p.input::<f32>("x", [8, 4]);
//! let w = p.param::<f32>("w", [3, 4], Init::Normal { std: 0.1 });
//! let y = p.output::<f32>("y", [8, 3]);
//! p.step("forward", |s| {
//!     s.phase("main", |f| {
//!         let h = f.gemm("h", x.nt(w)).then(|acc| acc.relu());
//!         f.map_to("y", y, h * rate);
//!     });
//! });
//! let program = p.build()?;
//! assert_eq!(program.program().steps.len(), 1);
//! # Ok::<(), stepgraph::ir::Diagnostics>(())
//! ```

mod body;
mod core;
mod gemm;
mod lower;
mod map;
mod reduce;
mod step;
mod tensor;
mod value;

pub use body::{Body, Bound};
pub use gemm::{GemmBuilder, IntoFactor, Product, TaggedFactor};
pub(crate) use lower::broadcast_terms;
pub use map::MapBuilder;
pub use reduce::ReduceBuilder;
pub use step::StepBuilder;
pub use value::{IntoVal, Ix, Val, axis, normal, philox, uniform};

use std::panic::Location;

use crate::handle::{Place, ProgramTag, Scalar, Tensor};
use crate::ir::{
    Buffer, Diagnostics, Element, Group, Init, Item, Origin, Origins, Program, ProgramError, Role, ScalarElement,
    Symbol, View, Writer,
};
use crate::kernel::HostFns;
use core::Core;

/// Extents of a buffer or index space, outermost first.
pub trait Extents {
    /// The extents.
    fn extents(&self) -> Vec<u32>;
}

impl<const N: usize> Extents for [u32; N] {
    fn extents(&self) -> Vec<u32> {
        self.to_vec()
    }
}

impl Extents for Vec<u32> {
    fn extents(&self) -> Vec<u32> {
        self.clone()
    }
}

impl Extents for &[u32] {
    fn extents(&self) -> Vec<u32> {
        self.to_vec()
    }
}

impl Extents for crate::ir::Shape {
    fn extents(&self) -> Vec<u32> {
        self.dims().to_vec()
    }
}

/// A program under construction.
#[derive(Debug)]
pub struct Builder {
    core: Core,
}

impl Builder {
    /// An empty program.
    pub fn new(name: &str) -> Self {
        Self { core: Core::new(name) }
    }

    /// The tag that this program's handles carry.
    pub fn tag(&self) -> ProgramTag {
        self.core.tag
    }

    /// A buffer that the host fills before a launch.
    #[track_caller]
    pub fn input<T: Element>(&mut self, name: &str, shape: impl Extents) -> Tensor<T> {
        self.core.declare(name, &shape.extents(), Role::Input, Init::Zeros, false, here())
    }

    /// A trained weight.
    #[track_caller]
    pub fn param<T: Element>(&mut self, name: &str, shape: impl Extents, init: Init) -> Tensor<T> {
        self.core.declare(name, &shape.extents(), Role::Param, init, false, here())
    }

    /// Memory that lives as long as the session.
    #[track_caller]
    pub fn state<T: Element>(&mut self, name: &str, shape: impl Extents, init: Init) -> Tensor<T> {
        self.core.declare(name, &shape.extents(), Role::State, init, false, here())
    }

    /// Memory of one launch. Nodes declare their own outputs; this is for those that write into a part of one.
    #[track_caller]
    pub fn temp<T: Element>(&mut self, name: &str, shape: impl Extents) -> Tensor<T> {
        self.core.declare(name, &shape.extents(), Role::Temp, Init::Zeros, false, here())
    }

    /// A buffer that the host reads after a launch.
    #[track_caller]
    pub fn output<T: Element>(&mut self, name: &str, shape: impl Extents) -> Tensor<T> {
        self.core.declare(name, &shape.extents(), Role::Output, Init::Zeros, false, here())
    }

    /// Keeps a `Temp`'s memory, or that of a group of them, from being reused, so that it can be read after a launch. Memory of other
    /// roles is kept anyway.
    #[track_caller]
    pub fn tap<T: Element>(&mut self, tensor: Tensor<T>) {
        let buffers = match self.core.own_place("tap", "the tapped buffer", tensor, here()) {
            Some(Place::View(view)) => vec![view.buffer],
            Some(Place::Group(group)) => self.core.program.groups[group].members.clone(),
            None => return,
        };
        for buffer in buffers {
            let buffer = &mut self.core.program.buffers[buffer];
            buffer.tap |= buffer.role == Role::Temp;
        }
    }

    /// A cell that the host sets.
    #[track_caller]
    pub fn host_scalar<T: ScalarElement>(&mut self, name: &str, init: T) -> Scalar<T> {
        self.core.declare_scalar(name, Writer::Host, init, here())
    }

    /// A cell that nodes write.
    #[track_caller]
    pub fn device_scalar<T: ScalarElement>(&mut self, name: &str, init: T) -> Scalar<T> {
        self.core.declare_scalar(name, Writer::Device, init, here())
    }

    /// Makes whole buffers lie side by side in this order, as one flat array.
    #[track_caller]
    pub fn group<T: Element>(&mut self, name: &str, members: &[Tensor<T>]) -> Tensor<T> {
        let origin = here();
        let mut buffers = Vec::with_capacity(members.len());
        for &member in members {
            let Some(place) = self.core.own_place(name, "a member", member, origin) else { continue };
            match place {
                Place::View(view) if view.is_full(&self.core.program.buffers[view.buffer].shape) => {
                    buffers.push(view.buffer)
                }
                _ => self.core.fail(
                    ProgramError::BadGroup {
                        group: name.into(),
                        member: "a view or group".into(),
                        reason: "is not a whole buffer: name the buffer itself".into(),
                    },
                    origin,
                ),
            }
        }
        self.core.declare_group(Group { name: name.into(), members: buffers }, origin)
    }

    /// Declares one buffer `name.member` per member of `like`, with its shape and zero at first, as a group of the same
    /// layout.
    #[track_caller]
    pub fn group_like<T: Element>(&mut self, name: &str, like: Tensor<T>, role: Role) -> Tensor<T> {
        let origin = here();
        let members = match self.core.own_place(name, "the group that is followed", like, origin) {
            Some(Place::Group(group)) => self.core.program.groups[group].members.clone(),
            Some(Place::View(view)) => vec![view.buffer],
            None => Vec::new(),
        };
        let members = members.into_iter().map(|member| {
            let Buffer { name: suffix, shape, .. } = self.core.program.buffers[member].clone();
            let own: Tensor<T> =
                self.core.declare(&format!("{name}.{suffix}"), shape.dims(), role, Init::Zeros, false, origin);
            own
        });
        let members: Vec<_> = members.collect();
        let buffers = members.iter().filter_map(|member| match member.place {
            Place::View(view) => Some(view.buffer),
            Place::Group(_) => None,
        });
        let group = Group { name: name.into(), members: buffers.collect() };
        self.core.declare_group(group, origin)
    }

    /// The buffer or group of this name, whoever declared it.
    #[track_caller]
    pub fn tensor<T: Element>(&mut self, name: &str) -> Tensor<T> {
        self.core.tensor(name, here())
    }

    /// Adds a step. What the closure returns is handed on, so that handles can leave it.
    #[track_caller]
    pub fn step<R>(&mut self, name: &str, fill: impl FnOnce(&mut StepBuilder<'_>) -> R) -> R {
        self.step_with_variants(name, &[], fill)
    }

    /// Adds a step with variants that the host chooses between at launch.
    #[track_caller]
    pub fn step_with_variants<R>(
        &mut self,
        name: &str,
        variants: &[&str],
        fill: impl FnOnce(&mut StepBuilder<'_>) -> R,
    ) -> R {
        step::add(&mut self.core, name, variants, here(), fill)
    }

    /// The program as declared so far, its places, its host functions, and what went wrong on the way.
    pub fn into_parts(self) -> (Program, Origins, HostFns, Option<Diagnostics>) {
        let Core { program, origins, host_fns, errors, .. } = self.core;
        (program, origins, host_fns, (!errors.is_empty()).then_some(Diagnostics(errors)))
    }
}

/// The user's line.
#[track_caller]
fn here() -> Origin {
    Origin::Code(Location::caller())
}
