//! Moves a bias and an activation into the matrix product before them.

use rustc_hash::FxHashMap;

use super::edit::{Fate, Rewrite, fates, without};
use crate::entity::{BufferId, NodeId, ScalarId, SecondaryMap, StepId, ValueId};
use crate::ir::{
    BinaryOp, Expr, ExprBuilder, ExprOp, Factor, Gemm, IndexTerm, Map, NodeOp, Program, Resource, Role, Step, Target,
    UnaryOp, View, node_accesses,
};

/// Fuses `D = product; Y = map(D)` into one product that writes Y, where the map is `relu(D + bias)`, `D + bias` or `relu(D)`
/// with one bias per column, and nothing else uses D. The product moves to the map's place in the order and takes its name.
pub(super) fn epilogue(program: &Program, step: StepId) -> Option<Rewrite> {
    let edited = &program.steps[step];
    let uses = Uses::new(program, edited);
    let mut gone = fates(edited);
    let mut fused = Vec::new();
    for (id, node) in edited.nodes.iter() {
        let NodeOp::Gemm(gemm) = &node.op else { continue };
        let Some((reader, map)) = uses.only_reader(id, gemm) else { continue };
        let Some(target) = uses.fusable(id, gemm, reader, map) else { continue };
        let Some(expr) = epilogue_of(program, &map.expr, &gemm.d) else { continue };
        gone[id] = Fate::Becomes(reader);
        fused.push((id, reader, Gemm { d: target, epilogue: Some(expr), ..gemm.clone() }));
    }
    if fused.is_empty() {
        return None;
    }
    let mut program = program.clone();
    for (gemm, reader, op) in fused {
        let nodes = &mut program.steps[step].nodes;
        let after = nodes[gemm].after.clone();
        nodes[reader].op = NodeOp::Gemm(op);
        nodes[reader].after.extend(after);
    }
    Some(without(&program, step, &gone))
}

/// Who touches what in a step, and in which order nodes stand.
struct Uses<'a> {
    program: &'a Program,
    step: &'a Step,
    users: FxHashMap<BufferId, Vec<NodeId>>,
    buffer_writers: FxHashMap<BufferId, Vec<NodeId>>,
    scalar_writers: FxHashMap<ScalarId, Vec<NodeId>>,
    followers: FxHashMap<NodeId, Vec<NodeId>>,
    places: SecondaryMap<NodeId, Place>,
}

/// Where a node stands: its list of nodes, and its number in a walk over all of them.
#[derive(Clone, Copy, Default, PartialEq)]
struct Place {
    list: usize,
    at: usize,
}

impl<'a> Uses<'a> {
    fn new(program: &'a Program, step: &'a Step) -> Self {
        let mut uses = Self {
            program,
            step,
            users: FxHashMap::default(),
            buffer_writers: FxHashMap::default(),
            scalar_writers: FxHashMap::default(),
            followers: FxHashMap::default(),
            places: SecondaryMap::with_capacity(step.nodes.len()),
        };
        let mut lists: Vec<&[NodeId]> = step.phases.values().map(|phase| phase.nodes.as_slice()).collect();
        let order: Vec<NodeId> = lists.iter().flat_map(|list| step.walk(list)).collect();
        lists.extend(step.nodes.values().flat_map(|node| node.op.bodies()));
        order.iter().enumerate().for_each(|(at, &node)| uses.places[node].at = at);
        for (list, nodes) in lists.into_iter().enumerate() {
            nodes.iter().for_each(|&node| uses.places[node].list = list);
        }
        order.into_iter().for_each(|node| uses.add(node));
        uses
    }

    fn add(&mut self, node: NodeId) {
        for access in node_accesses(self.program, self.step, node) {
            match access.resource {
                Resource::View(view) => {
                    let users = self.users.entry(view.buffer).or_default();
                    if users.last() != Some(&node) {
                        users.push(node);
                    }
                    if access.mode.writes() {
                        self.buffer_writers.entry(view.buffer).or_default().push(node);
                    }
                }
                Resource::Scalar(scalar) if access.mode.writes() => {
                    self.scalar_writers.entry(scalar).or_default().push(node);
                }
                Resource::Scalar(_) => {}
            }
        }
        for &earlier in &self.step.nodes[node].after {
            self.followers.entry(earlier).or_default().push(node);
        }
    }

    /// The map that alone uses the whole result of a product without an epilogue, in the same list and behind it.
    fn only_reader(&self, id: NodeId, gemm: &Gemm) -> Option<(NodeId, &'a Map)> {
        let result = &self.program.buffers[gemm.d.buffer];
        let private = result.role == Role::Temp && !result.tap && gemm.d.is_full(&result.shape);
        let &[first, second] = self.users.get(&gemm.d.buffer)?.as_slice() else { return None };
        let reader = if first == id { second } else { first };
        let (own, other) = (self.places[id], self.places[reader]);
        if !private || gemm.epilogue.is_some() || own.list != other.list || own.at > other.at {
            return None;
        }
        match &self.step.nodes[reader].op {
            NodeOp::Map(map) => Some((reader, map)),
            _ => None,
        }
    }

    /// The view that the fused product writes, if it may stand at the map's place.
    fn fusable(&self, id: NodeId, gemm: &Gemm, reader: NodeId, map: &Map) -> Option<View> {
        let [store] = map.stores.as_slice() else { return None };
        let (Target::View(target), None) = (store.target, &store.scatter) else { return None };
        let buffers = &self.program.buffers;
        let shape = &buffers[target.buffer].shape;
        let same_type = buffers[target.buffer].dtype == buffers[gemm.d.buffer].dtype;
        let has_rows = target.shape() == map.space && target.strides(shape)[1] == 1;
        let apart = !target.overlaps(&gemm.a.view) && !target.overlaps(&gemm.b.view);
        let in_place = gemm.add.is_none_or(|(_, c)| c == target || !c.overlaps(&target));
        let ok = same_type && has_rows && map.space == gemm.d.shape() && apart && in_place;
        (ok && self.may_move(id, gemm, reader)).then_some(target)
    }

    /// Whether nothing between the product and the map changes what the product reads, or waits for it.
    fn may_move(&self, id: NodeId, gemm: &Gemm, reader: NodeId) -> bool {
        let between = |node: &NodeId| (self.places[id].at + 1..self.places[reader].at).contains(&self.places[*node].at);
        let views = [Some(gemm.a.view), Some(gemm.b.view), gemm.add.map(|(_, c)| c)];
        let factors = [Some(gemm.alpha), gemm.add.map(|(beta, _)| beta)];
        let mut buffer_writers =
            views.iter().flatten().filter_map(|view| self.buffer_writers.get(&view.buffer)).flatten();
        let mut scalar_writers = factors.iter().flatten().filter_map(|factor| match factor {
            Factor::Scalar(scalar) => self.scalar_writers.get(scalar),
            Factor::Const(_) => None,
        });
        let mut followers = self.followers.get(&id).into_iter().flatten();
        !buffer_writers.any(between) && !scalar_writers.any(|list| list.iter().any(between)) && !followers.any(between)
    }
}

/// The map's expression over the product instead of `d`, if it is one that products support.
fn epilogue_of(program: &Program, expr: &Expr, d: &View) -> Option<Expr> {
    let &[root] = expr.roots() else { return None };
    let ops = expr.ops();
    let (inner, relu) = match ops[root] {
        ExprOp::Unary(UnaryOp::Relu, inner) => (inner, true),
        _ => (root, false),
    };
    let is_bias = |op: &ExprOp| is_bias(program, op, d);
    let bias = match ops[inner] {
        ExprOp::Binary(BinaryOp::Add, a, b) if is_product(&ops[a], d) && is_bias(&ops[b]) => Some(b),
        ExprOp::Binary(BinaryOp::Add, a, b) if is_product(&ops[b], d) && is_bias(&ops[a]) => Some(a),
        _ if relu && is_product(&ops[inner], d) => None,
        _ => return None,
    };
    Some(fused(bias.map(|bias: ValueId| ops[bias].clone()), relu))
}

fn fused(bias: Option<ExprOp>, relu: bool) -> Expr {
    let mut builder = ExprBuilder::new();
    let mut value = builder.push(ExprOp::Acc);
    if let Some(bias) = bias {
        let bias = builder.push(bias);
        value = builder.push(ExprOp::Binary(BinaryOp::Add, value, bias));
    }
    if relu {
        value = builder.push(ExprOp::Unary(UnaryOp::Relu, value));
    }
    builder.finish(&[value])
}

fn is_product(op: &ExprOp, d: &View) -> bool {
    matches!(op, ExprOp::Load { view, index } if view == d && *index == [IndexTerm::Axis(0), IndexTerm::Axis(1)])
}

/// One value per column, side by side, of the product's type.
fn is_bias(program: &Program, op: &ExprOp, d: &View) -> bool {
    let ExprOp::Load { view, index } = op else { return false };
    let buffer = &program.buffers[view.buffer];
    let per_column = *index == [IndexTerm::Axis(1)] || *index == [IndexTerm::Fixed(0), IndexTerm::Axis(1)];
    per_column && view.is_contiguous(&buffer.shape) && buffer.dtype == program.buffers[d.buffer].dtype
}
