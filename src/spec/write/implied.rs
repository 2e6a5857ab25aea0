//! Which `Temp`s need no declaration, because the node that first writes them gives them name, type and shape.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::expr::is_whole;
use crate::entity::{BufferId, EntityRef, NodeId};
use crate::ir::{
    Arg, Combiner, DType, Dim, ExprOp, Gemm, KernelCall, Map, NodeOp, ParamClass, Program, Resource, Role, Shape, Step,
    Store, Target, ValueType, View, node_accesses, value_types,
};
use crate::spec::kernels::group_elements;

/// The buffers that nodes declare.
pub(super) struct Implied {
    /// Buffers from this one on are declared by nodes: a canonical spec declares the others first.
    first: usize,
}

impl Implied {
    /// Finds the last buffers of a program that its nodes declare in the same order when a spec is read.
    pub(super) fn of(program: &Program) -> Self {
        let grouped = program.groups.values().flat_map(|group| group.members.iter().copied()).collect();
        let mut search = Search { program, mentioned: grouped, order: BTreeMap::new() };
        for step in program.steps.values() {
            for phase in step.phases.values() {
                search.body(step, &phase.nodes);
            }
        }
        let mut first = program.buffers.len();
        let mut next = usize::MAX;
        while let Some(&at) = first.checked_sub(1).and_then(|id| search.order.get(&BufferId::new(id))) {
            if at >= next {
                break;
            }
            (first, next) = (first - 1, at);
        }
        Self { first }
    }

    /// Whether a node declares the buffer.
    pub(super) fn has(&self, buffer: BufferId) -> bool {
        buffer.index() >= self.first
    }

    /// Whether the store is the declaration of its buffer: it is written by no earlier node.
    pub(super) fn declares(&self, target: Target, written: &BTreeSet<BufferId>) -> bool {
        matches!(target, Target::View(view) if self.has(view.buffer) && !written.contains(&view.buffer))
    }
}

/// Walks nodes in the order in which a spec is read.
struct Search<'p> {
    program: &'p Program,
    /// Buffers that an earlier node names, so that they must be declared before it.
    mentioned: BTreeSet<BufferId>,
    /// Buffers that a node can declare, by when it would.
    order: BTreeMap<BufferId, usize>,
}

impl Search<'_> {
    fn body(&mut self, step: &Step, nodes: &[NodeId]) {
        let mut at = 0;
        while let Some(&node) = nodes.get(at) {
            step.nodes[node].op.bodies().into_iter().for_each(|body| self.body(step, body));
            let pair = nodes.get(at + 1).and_then(|&next| then_pair(self.program, step, node, next));
            match pair {
                Some((gemm, map)) => self.pair(step, (node, gemm), (nodes[at + 1], map)),
                None => self.node(step, node),
            }
            at += if pair.is_some() { 2 } else { 1 };
        }
    }

    /// A product and the map of it, written as one node: the map's memory comes first.
    fn pair(&mut self, step: &Step, (product, gemm): (NodeId, &Gemm), (node, map): (NodeId, &Map)) {
        let own = [gemm.d.buffer];
        self.mention_reads(step, product, &[]);
        self.mention_reads(step, node, &own);
        let like = (gemm.product_shape(), self.program.buffers[gemm.a.view.buffer].dtype);
        self.offer(map.stores[0].target, like.0, like.1);
        self.offer(Target::View(gemm.d), like.0, like.1);
        self.mention_all(step, product);
        self.mention_all(step, node);
    }

    fn node(&mut self, step: &Step, node: NodeId) {
        self.mention_reads(step, node, &[]);
        match &step.nodes[node].op {
            NodeOp::Gemm(gemm) => {
                let dtype = self.program.buffers[gemm.a.view.buffer].dtype;
                self.offer(Target::View(gemm.d), gemm.product_shape(), dtype);
            }
            NodeOp::Map(map) => {
                let types = value_types(self.program, &map.expr, ValueType::F32);
                let types: Vec<_> = map.expr.roots().iter().map(|&root| types[root]).collect();
                self.stores(&map.stores, map.space, &types);
            }
            NodeOp::Reduce(reduce) => {
                let types = value_types(self.program, &reduce.expr, ValueType::F32);
                let acc = match (reduce.combiner, reduce.expr.roots()) {
                    (Combiner::Argmax, _) => ValueType::U32,
                    (_, [root, ..]) => types[*root],
                    _ => ValueType::F32,
                };
                let types = value_types(self.program, &reduce.finish, acc);
                let types: Vec<_> = reduce.finish.roots().iter().map(|&root| types[root]).collect();
                self.stores(&reduce.stores, reduce.kept(), &types);
            }
            NodeOp::Copy { from, to } => {
                self.offer(Target::View(*to), from.shape(), self.program.buffers[from.buffer].dtype);
            }
            NodeOp::Kernel(call) => self.call(call),
            NodeOp::Fill { .. } | NodeOp::If { .. } | NodeOp::Switch { .. } | NodeOp::While { .. } => {}
        }
        self.mention_all(step, node);
    }

    fn stores(&mut self, stores: &[Store], space: Shape, types: &[ValueType]) {
        for (store, value_type) in stores.iter().zip(types) {
            let dtype = match value_type {
                ValueType::F32 => DType::F32,
                ValueType::I32 => DType::I32,
                ValueType::U32 | ValueType::Bool => DType::U32,
            };
            if store.scatter.is_none() {
                self.offer(store.target, space, dtype);
            }
        }
    }

    fn call(&mut self, call: &KernelCall) {
        let params = self.program.kernels[call.kernel].params.iter().filter(|param| param.class.needs_argument());
        let args: Vec<_> = params.zip(&call.args).collect();
        let mut symbols = FxHashMap::default();
        for (param, arg) in &args {
            let extents = match arg {
                Arg::View(view) if !self.is_new(view) => view.shape().dims().to_vec(),
                Arg::Group(group) => group_elements(self.program, *group).into_iter().collect(),
                _ => continue,
            };
            for (dim, extent) in param.shape.iter().flatten().zip(extents) {
                if let Dim::Symbol(symbol) = dim {
                    symbols.entry(symbol.as_str()).or_insert(extent);
                }
            }
        }
        let extent = |dim: &Dim| match dim {
            Dim::Fixed(extent) => Some(*extent),
            Dim::Symbol(symbol) => symbols.get(symbol.as_str()).copied(),
        };
        for (param, arg) in args {
            let Some(shape) = param.shape.as_ref().filter(|_| param.class == ParamClass::Out) else { continue };
            let shape = shape.iter().map(extent).collect::<Option<Vec<_>>>().and_then(|dims| Shape::new(&dims));
            if let (Some(shape), Arg::View(view)) = (shape, arg) {
                self.offer(Target::View(*view), shape, param.dtype);
            }
        }
    }

    /// Whether a node could declare the buffer of this view here.
    fn is_new(&self, view: &View) -> bool {
        let buffer = &self.program.buffers[view.buffer];
        buffer.role == Role::Temp
            && !buffer.tap
            && !self.mentioned.contains(&view.buffer)
            && is_whole(view, &buffer.shape)
    }

    /// Notes that a node would declare its target's buffer with this shape and type.
    fn offer(&mut self, target: Target, shape: Shape, dtype: DType) {
        let Target::View(view) = target else { return };
        let buffer = &self.program.buffers[view.buffer];
        if self.is_new(&view) && buffer.shape == shape && buffer.dtype == dtype {
            let at = self.order.len();
            self.order.entry(view.buffer).or_insert(at);
        }
    }

    fn mention_reads(&mut self, step: &Step, node: NodeId, except: &[BufferId]) {
        for access in node_accesses(self.program, step, node) {
            match access.resource {
                Resource::View(view) if access.mode.reads() && !except.contains(&view.buffer) => {
                    self.mentioned.insert(view.buffer);
                }
                _ => {}
            }
        }
    }

    fn mention_all(&mut self, step: &Step, node: NodeId) {
        for access in node_accesses(self.program, step, node) {
            if let Resource::View(view) = access.resource {
                self.mentioned.insert(view.buffer);
            }
        }
    }
}

/// A product and the map that follows it, where both together are what `then` makes.
pub(super) fn then_pair<'p>(
    program: &Program,
    step: &'p Step,
    product: NodeId,
    map: NodeId,
) -> Option<(&'p Gemm, &'p Map)> {
    let (product, node) = (&step.nodes[product], &step.nodes[map]);
    let (NodeOp::Gemm(gemm), NodeOp::Map(map)) = (&product.op, &node.op) else { return None };
    let own = &program.buffers[gemm.d.buffer];
    let named = product.name == format!("{}.mm", node.name) && own.name == product.name;
    let plain = gemm.epilogue.is_none() && is_whole(&gemm.d, &own.shape) && node.after.is_empty();
    let [Store { target, scatter: None }] = &map.stores[..] else { return None };
    let space = match target {
        Target::View(view) => view.shape(),
        Target::Scalar(_) => Shape::SCALAR,
    };
    let mut loads = 0;
    for op in map.expr.ops().values() {
        let ExprOp::Load { view, index } = op else { continue };
        if view.buffer != gemm.d.buffer {
            continue;
        }
        let whole = *view == gemm.d;
        let here = crate::builder::broadcast_terms(&view.shape(), &map.space).is_some_and(|terms| terms == *index);
        if !whole || !here {
            return None;
        }
        loads += 1;
    }
    (named && plain && space == map.space && loads > 0).then_some((gemm, map))
}
