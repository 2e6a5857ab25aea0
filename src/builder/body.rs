//! The body of a phase, a branch or a loop: a list of nodes.

use super::core::Core;
use super::gemm::{GemmBuilder, Product};
use crate::entity::{NodeId, StepId};
use crate::handle::{Place, ProgramTag, Scalar, Tensor};
use crate::ir::{Arg, Element, Item, KernelCall, LoopBound, Node, NodeOp, Origin, ProgramError, ScalarElement, View};
use crate::kernel::KernelArgs;

/// A list of nodes under construction, in program order.
#[derive(Debug)]
pub struct Body<'b> {
    pub(super) core: &'b mut Core,
    step: StepId,
    nodes: Vec<NodeId>,
}

/// The bound of a loop: a number that is baked, or a cell.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// Baked.
    Const(u32),
    /// The contents of a cell when the loop starts.
    Scalar(Scalar<u32>),
}

impl<'b> Body<'b> {
    pub(super) const fn new(core: &'b mut Core, step: StepId) -> Self {
        Self { core, step, nodes: Vec::new() }
    }

    pub(super) fn into_nodes(self) -> Vec<NodeId> {
        self.nodes
    }

    pub(super) fn add(&mut self, name: &str, op: NodeOp, origin: Origin) -> NodeId {
        let node = Node { name: name.into(), op, after: Vec::new() };
        let id = self.core.program.steps[self.step].nodes.push(node);
        self.core.origins.set(Item::Node(self.step, id), origin);
        self.nodes.push(id);
        id
    }

    /// Calls a declared kernel.
    #[track_caller]
    pub fn kernel<K: KernelArgs>(&mut self, name: &str, args: K) {
        let origin = super::here();
        let kernel = self.core.kernel(&K::def(), origin);
        let tagged = args.args();
        let mut own = true;
        for (tag, _) in &tagged {
            own &= tag.is_none_or(|tag: ProgramTag| self.core.own(name, "an argument", tag, origin));
        }
        if own {
            let args = tagged.into_iter().map(|(_, arg)| arg).collect::<Vec<Arg>>();
            self.add(name, NodeOp::Kernel(KernelCall { kernel, args }), origin);
        }
    }

    /// A matrix product: `f.gemm("h", x.nt(w)).then(|acc| (acc + b).relu())`.
    #[track_caller]
    pub fn gemm<'a, T: Element>(&'a mut self, name: &str, product: Product<T>) -> GemmBuilder<'a, 'b, T> {
        GemmBuilder::new(self, name, product, super::here())
    }

    /// Declares a `Temp`, for a node that writes into a part of one, or for a kernel's output.
    #[track_caller]
    pub fn temp<T: Element>(&mut self, name: &str, shape: impl super::Extents) -> Tensor<T> {
        let origin = super::here();
        let shape = self.core.shape(name, &shape.extents(), origin);
        self.core.temp(name, shape, origin)
    }

    /// Copies one view to another of the same shape and type.
    #[track_caller]
    pub fn copy<T: Element>(&mut self, name: &str, from: Tensor<T>, to: Tensor<T>) {
        let origin = super::here();
        let (from, to) = (self.view(name, "from", from, origin), self.view(name, "to", to, origin));
        if let (Some(from), Some(to)) = (from, to) {
            self.add(name, NodeOp::Copy { from, to }, origin);
        }
    }

    /// Sets every element of a view.
    #[track_caller]
    pub fn fill<T: Element>(&mut self, name: &str, to: Tensor<T>, value: T::Value) {
        let origin = super::here();
        if let Some(to) = self.view(name, "to", to, origin) {
            self.add(name, NodeOp::Fill { to, value: value.to_const() }, origin);
        }
    }

    /// Runs a body where a cell is not 0.
    #[track_caller]
    pub fn when(&mut self, name: &str, condition: Scalar<u32>, then_body: impl FnOnce(&mut Body<'_>)) {
        self.branch(name, condition, super::here(), then_body, |_| {});
    }

    /// Runs one body where a cell is not 0, and the other where it is.
    #[track_caller]
    pub fn when_else(
        &mut self,
        name: &str,
        condition: Scalar<u32>,
        then_body: impl FnOnce(&mut Body<'_>),
        else_body: impl FnOnce(&mut Body<'_>),
    ) {
        self.branch(name, condition, super::here(), then_body, else_body);
    }

    fn branch(
        &mut self,
        name: &str,
        condition: Scalar<u32>,
        origin: Origin,
        then_body: impl FnOnce(&mut Body<'_>),
        else_body: impl FnOnce(&mut Body<'_>),
    ) {
        let own = self.core.own(name, "the condition", condition.tag, origin);
        let (then_body, else_body) = (self.inner(then_body), self.inner(else_body));
        if own {
            self.add(name, NodeOp::If { condition: condition.id, then_body, else_body }, origin);
        }
    }

    /// Runs the body that a cell names; past the last one nothing runs.
    #[track_caller]
    pub fn switch(&mut self, name: &str, selector: Scalar<u32>, bodies: &mut [&mut dyn FnMut(&mut Body<'_>)]) {
        let origin = super::here();
        let own = self.core.own(name, "the selector", selector.tag, origin);
        let bodies = bodies.iter_mut().map(|body| self.inner(|inner| body(inner))).collect();
        if own {
            self.add(name, NodeOp::Switch { selector: selector.id, bodies }, origin);
        }
    }

    /// Runs a body again and again: at most `max` times, until `until` is not 0 after an iteration. `index` counts
    /// iterations from 0.
    #[track_caller]
    pub fn repeat(
        &mut self,
        name: &str,
        max: Bound,
        index: Option<Scalar<u32>>,
        until: Option<Scalar<u32>>,
        body: impl FnOnce(&mut Body<'_>),
    ) {
        let origin = super::here();
        let body = self.inner(body);
        let mut own = true;
        let bound = match max {
            Bound::Scalar(scalar) => Some(scalar),
            Bound::Const(_) => None,
        };
        for (part, cell) in [("the bound", bound), ("the index", index), ("the end flag", until)] {
            own &= cell.is_none_or(|cell| self.core.own(name, part, cell.tag, origin));
        }
        let max = match max {
            Bound::Const(count) => LoopBound::Const(count),
            Bound::Scalar(scalar) => LoopBound::Scalar(scalar.id),
        };
        if own {
            let (index, until) = (index.map(|cell| cell.id), until.map(|cell| cell.id));
            self.add(name, NodeOp::While { max, index, until, body }, origin);
        }
    }

    /// Makes one node of this body wait for others although no memory says so.
    #[track_caller]
    pub fn after(&mut self, node: &str, earlier: &[&str]) {
        let origin = super::here();
        let Some(id) = self.find(node, origin) else { return };
        for earlier in earlier {
            if let Some(earlier) = self.find(earlier, origin) {
                self.core.program.steps[self.step].nodes[id].after.push(earlier);
            }
        }
    }

    /// The buffer or group of this name, whoever declared it.
    #[track_caller]
    pub fn tensor<T: Element>(&mut self, name: &str) -> Tensor<T> {
        self.core.tensor(name, super::here())
    }

    fn find(&mut self, name: &str, origin: Origin) -> Option<NodeId> {
        let nodes = &self.core.program.steps[self.step].nodes;
        let found = self.nodes.iter().rev().copied().find(|&node| nodes[node].name == name);
        if found.is_none() {
            let error = ProgramError::UnknownName { kind: "node", name: name.into(), similar: None };
            self.core.fail(error, origin);
        }
        found
    }

    fn inner(&mut self, fill: impl FnOnce(&mut Body<'_>)) -> Vec<NodeId> {
        let mut body = Body::new(self.core, self.step);
        fill(&mut body);
        body.into_nodes()
    }

    fn view<T: Element>(&mut self, node: &str, part: &str, tensor: Tensor<T>, origin: Origin) -> Option<View> {
        match self.core.own_place(node, part, tensor, origin)? {
            Place::View(view) => Some(view),
            Place::Group(_) => {
                let error = ProgramError::ShapeMismatch {
                    node: node.into(),
                    part: part.into(),
                    found: "a group".into(),
                    expected: "a buffer: a group is an argument for kernels".into(),
                };
                self.core.fail(error, origin);
                None
            }
        }
    }
}
