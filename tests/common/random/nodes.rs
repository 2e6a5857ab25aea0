//! What each kind of node recipe makes.

use stepgraph::entity::{BufferId, NodeId, ScalarId};
use stepgraph::ir::{
    Arg, AxisRange, BinaryOp, Combiner, CompareOp, Compute, ConstValue, DType, Expr, ExprOp, Factor, Gemm, IndexTerm,
    KernelCall, LoopBound, Map, NodeOp, Operand, Reduce, Role, Scatter, ScatterRule, Shape, Store, Target, ValueType,
    View,
};

use super::NodeRecipe;
use super::expr::ExprMaker;
use super::maker::{Maker, Picks, boxed};

/// Extents of new index spaces; products stay small.
const EXTENTS: [u32; 6] = [4, 8, 3, 1, 2, 5];
const DTYPES: [DType; 5] = [DType::F32, DType::F32, DType::U32, DType::I32, DType::Bf16];
/// How deep conditionals may lie in each other.
const DEPTH: usize = 3;

impl Maker {
    /// The nodes of a phase or body.
    pub(super) fn body(&mut self, recipes: &[NodeRecipe], depth: usize) -> Vec<NodeId> {
        let mut list = Vec::new();
        let mut at = 0;
        while let Some(recipe) = recipes.get(at) {
            let mut picks = Picks::new(recipe);
            at += 1;
            let rest = &recipes[at..];
            if recipe.kind < 13 || rest.is_empty() || depth == DEPTH {
                self.plain(recipe.kind, &mut picks, &mut list);
                continue;
            }
            let inner = 1 + picks.below(rest.len().min(4));
            self.conditional(recipe.kind, &mut picks, &mut list, &rest[..inner], depth + 1);
            at += inner;
        }
        list
    }

    fn plain(&mut self, kind: u8, picks: &mut Picks<'_>, list: &mut Vec<NodeId>) {
        match kind {
            0 => self.fill(picks, list),
            1 | 2 => self.map(picks, list),
            3 => self.siblings(picks, list),
            4 => self.scatter(picks, list),
            5 => self.count(picks, list),
            6 | 7 => self.reduce(picks, list),
            8 => self.copy(picks, list),
            9 => self.kernel(picks, list),
            10 => self.group_kernel(picks, list),
            _ => self.gemm(picks, list),
        }
    }

    fn space(picks: &mut Picks<'_>) -> Shape {
        let rank = picks.of(&[2, 1, 2, 3, 0, 4]);
        let dims: Vec<_> = (0..rank).map(|_| picks.of(&EXTENTS)).collect();
        Shape::new(&dims).expect("few axes")
    }

    fn fill(&mut self, picks: &mut Picks<'_>, list: &mut Vec<NodeId>) {
        let dtype = picks.of(&DTYPES);
        let space = Self::space(picks);
        let to = self.target(picks, dtype, space, &[]);
        let value = match dtype {
            DType::F32 | DType::Bf16 => ConstValue::F32(0.75),
            DType::I32 => ConstValue::I32(-1),
            DType::U32 => ConstValue::U32(2),
        };
        self.node(list, picks, NodeOp::Fill { to, value });
        self.wrote(to);
    }

    /// One or two results, now and then in place.
    fn map(&mut self, picks: &mut Picks<'_>, list: &mut Vec<NodeId>) {
        let space = Self::space(picks);
        let mut targets: Vec<View> = Vec::new();
        for _ in 0..=picks.below(2) {
            let avoid: Vec<_> = targets.iter().map(|view| view.buffer).collect();
            let dtype = picks.of(&DTYPES);
            targets.push(self.target(picks, dtype, space, &avoid));
        }
        let mut expr = ExprMaker::new(self, picks, space);
        expr.avoid = targets.iter().map(|view| view.buffer).collect();
        expr.own = targets.iter().copied().filter(|view| expr.maker.is_readable(view.buffer)).collect();
        let types = targets.iter().map(|view| ValueType::of(expr.maker.program.buffers[view.buffer].dtype));
        let roots: Vec<_> = types.collect::<Vec<_>>().into_iter().map(|of| expr.value(of, 3)).collect();
        let expr = expr.builder.finish(&roots);
        let stores = targets.iter().map(|&view| store(Target::View(view))).collect();
        self.node(list, picks, NodeOp::Map(Map { space, expr, stores }));
        targets.into_iter().for_each(|view| self.wrote(view));
    }

    /// Two maps that write the left and the right columns of one new buffer.
    fn siblings(&mut self, picks: &mut Picks<'_>, list: &mut Vec<NodeId>) {
        let (rows, columns) = (picks.of(&EXTENTS), 2 + picks.extent(5));
        let shape = Shape::new(&[rows, columns]).expect("two axes");
        let buffer = self.new_buffer(picks, DType::F32, shape);
        let cut = 1 + picks.extent(columns - 1);
        for (start, len) in [(0, cut), (cut, columns - cut)] {
            let columns = AxisRange { start, len, dropped: false };
            let ranges = [AxisRange { start: 0, len: rows, dropped: false }, columns];
            let view = View::from_ranges(buffer, &ranges).expect("two axes");
            let space = view.shape();
            let mut expr = ExprMaker::new(self, picks, space);
            expr.avoid = vec![buffer];
            let root = expr.value(ValueType::F32, 2);
            let expr = expr.builder.finish(&[root]);
            self.node(list, picks, NodeOp::Map(Map { space, expr, stores: vec![store(Target::View(view))] }));
        }
        self.wrote(View::full(buffer, &shape));
    }

    /// A rotation (`unique`), or equal values at clashing places (`same_value`).
    fn scatter(&mut self, picks: &mut Picks<'_>, list: &mut Vec<NodeId>) {
        let targets = self.readable(|_, buffer| {
            buffer.shape.rank() == 1 && buffer.role != Role::Input && buffer.dtype == DType::F32
                || buffer.name == "counts"
        });
        let buffer = picks.of(&targets);
        let (shape, dtype) = (self.shape(buffer), self.program.buffers[buffer].dtype);
        let unique = picks.one_in(2);
        let space = if unique { shape } else { Shape::new(&[picks.of(&EXTENTS)]).expect("one axis") };
        let mut expr = ExprMaker::new(self, picks, space);
        expr.avoid = vec![buffer];
        let (value, place) = if unique {
            let value = expr.value(ValueType::of(dtype), 2);
            let index = expr.builder.push(ExprOp::Index(0));
            let by = expr.constant(ConstValue::U32(shape.dims()[0] / 2 + 1));
            let moved = expr.builder.push(ExprOp::Binary(BinaryOp::Add, index, by));
            let extent = expr.constant(ConstValue::U32(shape.dims()[0]));
            (value, expr.builder.push(ExprOp::Binary(BinaryOp::Rem, moved, extent)))
        } else {
            let value = match dtype {
                DType::U32 => expr.constant(ConstValue::U32(9)),
                _ => expr.builder.push(ExprOp::Scalar(expr.maker.cells.floats[0])),
            };
            (value, expr.value(ValueType::I32, 2))
        };
        let expr = expr.builder.finish(&[value, place]);
        let place = expr.roots()[1];
        let rule = Some(if unique { ScatterRule::Unique } else { ScatterRule::SameValue });
        let scatter = Some(Scatter { index: vec![IndexTerm::Value(place)], rule });
        let stores = vec![Store { target: Target::View(View::full(buffer, &shape)), scatter }];
        self.node(list, picks, NodeOp::Map(Map { space, expr, stores }));
    }

    /// A device counter that a map moves on.
    fn count(&mut self, picks: &mut Picks<'_>, list: &mut Vec<NodeId>) {
        let cell = self.writable_cell(self.cells.counter);
        let mut expr = ExprMaker::new(self, picks, Shape::SCALAR);
        let old = expr.builder.push(ExprOp::Scalar(cell));
        let one = expr.constant(ConstValue::U32(1));
        let new = expr.builder.push(ExprOp::Binary(BinaryOp::Add, old, one));
        let expr = expr.builder.finish(&[new]);
        let stores = vec![store(Target::Scalar(cell))];
        self.node(list, picks, NodeOp::Map(Map { space: Shape::SCALAR, expr, stores }));
    }

    fn reduce(&mut self, picks: &mut Picks<'_>, list: &mut Vec<NodeId>) {
        let space = {
            let space = Self::space(picks);
            if space.rank() == 0 { Shape::new(&[6]).expect("one axis") } else { space }
        };
        let combiner = picks.of(&Combiner::ALL);
        let axes: Vec<u8> = if combiner == Combiner::Argmax {
            vec![u8::try_from(picks.below(space.rank())).expect("few axes")]
        } else {
            let set = 1 + picks.below((1 << space.rank()) - 1);
            (0..u8::try_from(space.rank()).expect("few axes")).filter(|axis| set >> axis & 1 == 1).collect()
        };
        let of = match combiner {
            Combiner::LogSumExp => ValueType::F32,
            _ => picks.of(&[ValueType::F32, ValueType::I32, ValueType::U32]),
        };
        let kept = space.without(|axis| axes.iter().any(|&reduced| usize::from(reduced) == axis));
        let acc = if combiner == Combiner::Argmax { ValueType::U32 } else { of };
        let dtype = match acc {
            ValueType::F32 => picks.of(&[DType::F32, DType::Bf16]),
            ValueType::I32 => DType::I32,
            _ => DType::U32,
        };
        let to_cell = kept.rank() == 0 && dtype != DType::Bf16 && picks.one_in(2);
        let target = if to_cell {
            let init = ConstValue::from_bits(dtype, 0).expect("not bf16");
            let cell = self.new_cell(init);
            Target::Scalar(self.writable_cell(cell))
        } else {
            Target::View(self.target(picks, dtype, kept, &[]))
        };
        let own = match target {
            Target::View(view) => vec![view],
            Target::Scalar(_) => vec![],
        };
        let expr = self.reduced(picks, space, of, &own);
        let finish = self.finished(picks, kept, acc, &own);
        let stores = vec![store(target)];
        self.node(list, picks, NodeOp::Reduce(Reduce { space, axes, combiner, expr, finish, stores }));
        own.into_iter().for_each(|view| self.wrote(view));
    }

    fn reduced(&self, picks: &mut Picks<'_>, space: Shape, of: ValueType, own: &[View]) -> Expr {
        let mut expr = ExprMaker::new(self, picks, space);
        expr.avoid = own.iter().map(|view| view.buffer).collect();
        let root = expr.value(of, 2);
        expr.builder.finish(&[root])
    }

    fn finished(&self, picks: &mut Picks<'_>, kept: Shape, acc: ValueType, own: &[View]) -> Expr {
        let mut expr = ExprMaker::new(self, picks, kept);
        expr.acc = Some(acc);
        expr.avoid = own.iter().map(|view| view.buffer).collect();
        expr.own = own.iter().copied().filter(|view| self.is_readable(view.buffer)).collect();
        let root = if expr.picks.one_in(2) { expr.value(acc, 2) } else { expr.builder.push(ExprOp::Acc) };
        expr.builder.finish(&[root])
    }

    fn copy(&mut self, picks: &mut Picks<'_>, list: &mut Vec<NodeId>) {
        let buffer = picks.of(&self.readable(|_, _| true));
        let shape = self.shape(buffer);
        let dims: Vec<_> = shape.dims().iter().map(|&dim| dim - picks.extent(dim)).collect();
        let smaller = Shape::new(&dims).expect("few axes");
        let from = boxed(picks, buffer, &shape, &smaller).expect("a smaller box fits");
        let to = self.target(picks, self.program.buffers[buffer].dtype, from.shape(), &[buffer]);
        self.node(list, picks, NodeOp::Copy { from, to });
        self.wrote(to);
    }

    fn kernel(&mut self, picks: &mut Picks<'_>, list: &mut Vec<NodeId>) {
        let floats =
            |rank: usize| self.readable(move |_, buffer| buffer.shape.rank() == rank && buffer.dtype == DType::F32);
        let (vectors, matrices) = (floats(1), floats(2));
        let kernels = self.kernels;
        let (kernel, args, written) = match picks.below(4) {
            0 => {
                let x = picks.of(&vectors);
                let shape = self.shape(x);
                let y = View::full(self.new_buffer(picks, DType::F32, shape), &shape);
                let x = Arg::View(View::full(x, &shape));
                (kernels.scale, vec![x, Arg::View(y), Arg::Scalar(self.cells.floats[1])], vec![y])
            }
            1 => {
                let x = picks.of(&matrices);
                let shape = self.shape(x);
                let y_shape = shape.without(|axis| axis == 1);
                let y = View::full(self.new_buffer(picks, DType::F32, y_shape), &y_shape);
                (kernels.row_sum, vec![Arg::View(View::full(x, &shape)), Arg::View(y)], vec![y])
            }
            2 => {
                let x = picks.of(&matrices);
                let shape = self.shape(x);
                let turned = Shape::new(&[shape.dims()[1], shape.dims()[0]]).expect("two axes");
                let y = View::full(self.new_buffer(picks, DType::F32, turned), &turned);
                (kernels.transpose, vec![Arg::View(View::full(x, &shape)), Arg::View(y)], vec![y])
            }
            _ => {
                let t = self.writable_cell(self.cells.counter);
                let last = self.new_cell(ConstValue::U32(0));
                let last = self.writable_cell(last);
                let by = Arg::Const(ConstValue::U32(3));
                (kernels.tick, vec![Arg::Scalar(t), Arg::Scalar(last), by], vec![])
            }
        };
        self.node(list, picks, NodeOp::Kernel(KernelCall { kernel, args }));
        written.into_iter().for_each(|view| self.wrote(view));
    }

    /// Clears the gradients that nothing has written, then moves parameters or moments along them.
    fn group_kernel(&mut self, picks: &mut Picks<'_>, list: &mut Vec<NodeId>) {
        for member in self.program.groups[self.groups.grads].members.clone() {
            if !self.is_readable(member) {
                let to = View::full(member, &self.shape(member));
                self.node(list, picks, NodeOp::Fill { to, value: ConstValue::F32(0.125) });
                self.wrote(to);
            }
        }
        let (theta, moments, grads) = (self.groups.theta, self.groups.moments, self.groups.grads);
        let (p, g) = picks.of(&[(moments, grads), (theta, moments), (theta, grads), (grads, theta)]);
        let args = vec![Arg::Group(p), Arg::Group(g), Arg::Const(ConstValue::F32(-0.5))];
        self.node(list, picks, NodeOp::Kernel(KernelCall { kernel: self.kernels.axpy, args }));
    }

    fn gemm(&mut self, picks: &mut Picks<'_>, list: &mut Vec<NodeId>) {
        let matrices = self.readable(|_, buffer| buffer.shape.rank() == 2 && buffer.dtype == DType::F32);
        let (a, b) = (picks.of(&matrices), picks.of(&matrices));
        let (a_shape, b_shape) = (self.shape(a), self.shape(b));
        let (a_turned, b_turned) = (picks.one_in(3), picks.one_in(2));
        let k = a_shape.dims()[usize::from(!a_turned)].min(b_shape.dims()[usize::from(b_turned)]);
        let (m, n) = (a_shape.dims()[usize::from(a_turned)], b_shape.dims()[usize::from(!b_turned)]);
        let mut operand = |buffer: BufferId, shape: &Shape, dims: [u32; 2], transposed: bool| {
            let dims = if transposed { [dims[1], dims[0]] } else { dims };
            let wanted = Shape::new(&dims).expect("two axes");
            Operand { view: boxed(picks, buffer, shape, &wanted).expect("k is the smaller extent"), transposed }
        };
        let (a, b) = (operand(a, &a_shape, [m, k], a_turned), operand(b, &b_shape, [k, n], b_turned));
        let space = Shape::new(&[m, n]).expect("two axes");
        let d = self.target(picks, DType::F32, space, &[a.view.buffer, b.view.buffer]);
        let d = if row_major(&d) { d } else { View::full(self.new_buffer(picks, DType::F32, space), &space) };
        let factor = |picks: &mut Picks<'_>, cells: &[ScalarId]| match picks.one_in(3) {
            true => Factor::Scalar(cells[1]),
            false => Factor::Const(1.0),
        };
        let alpha = factor(picks, &self.cells.floats);
        let in_place = self.is_readable(d.buffer) && picks.one_in(2);
        let add = in_place.then(|| (factor(picks, &self.cells.floats), d));
        let epilogue = picks.one_in(3).then(|| {
            let mut expr = ExprMaker::new(self, picks, space);
            expr.acc = Some(ValueType::F32);
            expr.avoid = vec![d.buffer];
            let root = expr.value(ValueType::F32, 2);
            expr.builder.finish(&[root])
        });
        let compute = picks.of(&Compute::ALL);
        self.node(list, picks, NodeOp::Gemm(Gemm { a, b, d, alpha, add, compute, epilogue }));
        self.wrote(d);
    }

    fn conditional(
        &mut self,
        kind: u8,
        picks: &mut Picks<'_>,
        list: &mut Vec<NodeId>,
        inner: &[NodeRecipe],
        depth: usize,
    ) {
        let cell = picks.of(&self.cells.switches);
        let (first, second) = inner.split_at(inner.len().div_ceil(2));
        let op = match kind {
            13 => NodeOp::If {
                condition: cell,
                then_body: self.inner(first, depth),
                else_body: self.inner(second, depth),
            },
            14 => {
                let mut bodies = vec![self.inner(first, depth), self.inner(second, depth)];
                bodies.retain(|body| !body.is_empty());
                NodeOp::Switch { selector: cell, bodies }
            }
            _ => self.repeat(picks, inner, depth),
        };
        self.node(list, picks, op);
    }

    /// The nodes of a body. What it writes counts only inside: it may not run.
    fn inner(&mut self, recipes: &[NodeRecipe], depth: usize) -> Vec<NodeId> {
        let before = self.written.clone();
        let body = self.body(recipes, depth);
        self.written = before;
        body
    }

    /// A loop of at most three rounds; now and then a flag in its body ends it.
    fn repeat(&mut self, picks: &mut Picks<'_>, recipes: &[NodeRecipe], depth: usize) -> NodeOp {
        let max = match picks.below(3) {
            0 => LoopBound::Scalar(self.cells.rounds),
            rounds => LoopBound::Const(u32::try_from(rounds).expect("below 3") + 1),
        };
        let mut cell = || {
            let cell = self.new_cell(ConstValue::U32(0));
            self.writable_cell(cell)
        };
        let with_until = picks.one_in(2);
        let index = (with_until || picks.one_in(2)).then(&mut cell);
        let until = with_until.then(&mut cell);
        let mut body = self.inner(recipes, depth);
        if let (Some(index), Some(until)) = (index, until) {
            let mut expr = ExprMaker::new(self, picks, Shape::SCALAR);
            let now = expr.builder.push(ExprOp::Scalar(index));
            let last = expr.constant(ConstValue::U32(1));
            let reached = expr.builder.push(ExprOp::Compare(CompareOp::Ge, now, last));
            let flag = expr.builder.push(ExprOp::Cast(ValueType::U32, reached));
            let expr = expr.builder.finish(&[flag]);
            let stores = vec![store(Target::Scalar(until))];
            self.node(&mut body, picks, NodeOp::Map(Map { space: Shape::SCALAR, expr, stores }));
        }
        NodeOp::While { max, index, until, body }
    }
}

fn store(target: Target) -> Store {
    Store { target, scatter: None }
}

/// Whether the elements of a row lie side by side: the last axis of the buffer is kept.
fn row_major(view: &View) -> bool {
    view.ranges().last().is_some_and(|range| !range.dropped)
}
