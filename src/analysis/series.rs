//! Series: inputs of which each step of a run reads a part of its own, at a place that it computes.
//!
//! All steps of one launch see the same inputs. What makes their places differ is memory that steps go on from, such as a
//! counter: it varies, and so does all that is computed from it. A place that does not vary is the same in every step.
//!
//! The step is followed in program order: what a node writes in full holds what it wrote from then on. Where it is not known
//! which of two contents holds, as behind a branch, memory varies if either does.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::entity::{BufferId, NodeId, ScalarId, SecondaryMap, ValueId};
use crate::ir::{
    Access, AccessMode, Expr, ExprOp, IndexTerm, LoopBound, NodeOp, Program, Resource, Role, Step, Store, Target,
    node_accesses,
};

/// What differs from one step to the next where a step runs again and again on the same inputs.
pub struct Varying {
    /// An input of which a node, without its bodies, reads the same part in every step.
    fixed: FxHashMap<NodeId, BufferId>,
}

impl Varying {
    /// Looks at a step of these nodes, in program order, and of those in their bodies.
    pub fn of(program: &Program, step: &Step, nodes: &[NodeId]) -> Self {
        let mut walk = Walk { program, step, fixed: FxHashMap::default(), made: Cells::default() };
        let is_kept = |cell: &Cell| match *cell {
            Cell::Buffer(buffer) => matches!(program.buffers[buffer].role, Role::Param | Role::State),
            Cell::Scalar(_) => true,
        };
        // What a step leaves varies as long as it follows from what the step before left, and so on without an end.
        let mut left: Cells = walk.written(nodes).into_iter().filter(is_kept).collect();
        loop {
            walk.made.clear();
            let mut now = Now { cells: left.clone(), log: Vec::new() };
            walk.body(nodes, &mut now, Writes::Replace);
            let before = left.len();
            left.retain(|&cell| now.contains(cell) && walk.made.contains(&cell));
            if left.len() == before {
                return Self { fixed: walk.fixed };
            }
        }
    }

    /// An input of which the node, without its bodies, reads the same part in every step.
    pub fn fixed_input(&self, node: NodeId) -> Option<BufferId> {
        self.fixed.get(&node).copied()
    }
}

/// A buffer or a scalar as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Cell {
    Buffer(BufferId),
    Scalar(ScalarId),
}

impl Cell {
    const fn of(resource: Resource) -> Self {
        match resource {
            Resource::View(view) => Self::Buffer(view.buffer),
            Resource::Scalar(scalar) => Self::Scalar(scalar),
        }
    }
}

type Cells = FxHashSet<Cell>;

/// What varies, with the changes that led to it: a body costs what it changes, not what there is.
struct Now {
    cells: Cells,
    /// Each change, with whether the cell varied before it.
    log: Vec<(Cell, bool)>,
}

impl Now {
    fn contains(&self, cell: Cell) -> bool {
        self.cells.contains(&cell)
    }

    fn set(&mut self, cell: Cell, varies: bool) {
        let is_new = if varies { self.cells.insert(cell) } else { self.cells.remove(&cell) };
        if is_new {
            self.log.push((cell, !varies));
        }
    }

    /// Takes back the changes since the log had this length; gives the cells that end otherwise for them, and how.
    fn take_back(&mut self, length: usize) -> FxHashMap<Cell, bool> {
        let cells = self.log[length..].iter().map(|&(cell, _)| (cell, self.contains(cell)));
        let mut changed: FxHashMap<Cell, bool> = cells.collect();
        while self.log.len() > length {
            let Some((cell, varied)) = self.log.pop() else { break };
            if varied {
                self.cells.insert(cell)
            } else {
                self.cells.remove(&cell)
            };
        }
        changed.retain(|&cell, varies| self.contains(cell) != *varies);
        changed
    }
}

/// What becomes of a cell that varied when all of it is written with what does not vary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    /// It varies no more.
    Replace,
    /// It may vary as before: the order of things is not looked at.
    Add,
}

/// Follows a step; `now`, in its methods, is what varies when a node runs.
struct Walk<'a> {
    program: &'a Program,
    step: &'a Step,
    /// As in [`Varying`], by what varied when a node was last visited.
    fixed: FxHashMap<NodeId, BufferId>,
    /// What was written with something that varies.
    made: Cells,
}

impl Walk<'_> {
    /// Validation bounds how deep bodies nest.
    fn body(&mut self, nodes: &[NodeId], now: &mut Now, writes: Writes) {
        nodes.iter().for_each(|&node| self.node(node, now, writes));
    }

    fn node(&mut self, node: NodeId, now: &mut Now, writes: Writes) {
        let step = self.step;
        let fixed = match &step.nodes[node].op {
            NodeOp::If { condition, then_body, else_body } => {
                self.branches(*condition, &[then_body, else_body], now, writes);
                return;
            }
            NodeOp::Switch { selector, bodies, .. } => {
                // Past the last body none runs.
                let bodies: Vec<&[NodeId]> = bodies.iter().map(Vec::as_slice).chain([&[][..]]).collect();
                self.branches(*selector, &bodies, now, writes);
                return;
            }
            NodeOp::While { max, index, until, body } => {
                self.repeated(node, (*max, *index, *until), body, now, writes);
                return;
            }
            NodeOp::Map(map) => {
                let varies = values(&map.expr, false, now);
                let fixed = self.fixed_load(&map.expr, &varies);
                self.stores(&map.expr, &map.stores, &varies, now, writes);
                fixed
            }
            NodeOp::Reduce(reduce) => {
                let combined = values(&reduce.expr, false, now);
                let acc = reduce.expr.roots().iter().any(|&root| combined[root]);
                let finished = values(&reduce.finish, acc, now);
                let fixed = self.fixed_load(&reduce.expr, &combined);
                let fixed = fixed.or_else(|| self.fixed_load(&reduce.finish, &finished));
                self.stores(&reduce.finish, &reduce.stores, &finished, now, writes);
                fixed
            }
            _ => self.whole(node, now, writes),
        };
        match fixed {
            Some(input) => self.fixed.insert(node, input),
            None => self.fixed.remove(&node),
        };
    }

    /// A node that reads all of its views: whatever varies in them may be in whatever it writes.
    fn whole(&mut self, node: NodeId, now: &mut Now, writes: Writes) -> Option<BufferId> {
        let accesses = node_accesses(self.program, self.step, node);
        let mut reads = accesses.iter().filter(|access| access.mode.reads()).map(|access| Cell::of(access.resource));
        let varies = reads.any(|cell| now.contains(cell));
        for access in accesses.iter().filter(|access| access.mode.writes()) {
            self.write(*access, varies, now, writes);
        }
        accesses.iter().find_map(|access| match access.resource {
            Resource::View(view) => Some(view.buffer).filter(|&buffer| self.is_input(buffer)),
            Resource::Scalar(_) => None,
        })
    }

    fn stores(
        &mut self,
        expr: &Expr,
        stores: &[Store],
        varies: &SecondaryMap<ValueId, bool>,
        now: &mut Now,
        writes: Writes,
    ) {
        for (store, &root) in stores.iter().zip(expr.roots()) {
            let resource = match store.target {
                Target::View(view) => Resource::View(view),
                Target::Scalar(scalar) => Resource::Scalar(scalar),
            };
            let places = store.scatter.iter().flat_map(|scatter| &scatter.index);
            let moves = places.into_iter().any(|term| is_moving(term, varies));
            let mode = if store.scatter.is_some() { AccessMode::Update } else { AccessMode::Write };
            self.write(Access { resource, mode }, varies[root] || moves, now, writes);
        }
    }

    fn write(&mut self, access: Access, varies: bool, now: &mut Now, writes: Writes) {
        let cell = Cell::of(access.resource);
        if varies {
            now.set(cell, true);
            self.made.insert(cell);
        } else if writes == Writes::Replace && self.is_all(&access) {
            now.set(cell, false);
        }
    }

    /// Whether nothing of the old contents is left.
    fn is_all(&self, access: &Access) -> bool {
        access.mode == AccessMode::Write
            && match access.resource {
                Resource::View(view) => view.is_full(&self.program.buffers[view.buffer].shape),
                Resource::Scalar(_) => true,
            }
    }

    /// One of these bodies runs.
    fn branches(&mut self, selector: ScalarId, bodies: &[&[NodeId]], now: &mut Now, writes: Writes) {
        let is_decided = now.contains(Cell::Scalar(selector));
        let (length, mut ends) = (now.log.len(), FxHashMap::<Cell, usize>::default());
        for body in bodies {
            self.body(body, now, writes);
            for (cell, varies) in now.take_back(length) {
                // A cell that did not vary does where it may; one that did does not where no body leaves it so.
                *ends.entry(cell).or_default() += if varies { bodies.len() } else { 1 };
            }
        }
        for (cell, count) in ends {
            if count >= bodies.len() {
                now.set(cell, !now.contains(cell));
            }
        }
        if is_decided {
            bodies.iter().for_each(|body| self.decided(body, now));
        }
    }

    fn repeated(
        &mut self,
        node: NodeId,
        (max, index, until): (LoopBound, Option<ScalarId>, Option<ScalarId>),
        body: &[NodeId],
        now: &mut Now,
        writes: Writes,
    ) {
        let is_long = matches!(max, LoopBound::Scalar(max) if now.contains(Cell::Scalar(max)));
        let is_set = |now: &Now| until.is_some_and(|until| now.contains(Cell::Scalar(until)));
        if writes == Writes::Add {
            // Who asked for this comes back until nothing is added.
            self.body(body, now, writes);
        } else {
            index.iter().chain(&until).for_each(|&own| now.set(Cell::Scalar(own), false));
            let length = now.log.len();
            while {
                let before = now.cells.len();
                self.body(body, now, Writes::Add);
                now.cells.len() > before
            } {}
            self.body(body, now, writes);
            // It may not run: what varied before does.
            for (cell, varies) in now.take_back(length) {
                if varies {
                    now.set(cell, true);
                }
            }
        }
        if is_long || is_set(now) {
            self.decided(&[node], now);
        }
    }

    /// Something that varies decides whether, or how often, these nodes run.
    fn decided(&mut self, nodes: &[NodeId], now: &mut Now) {
        let written = self.written(nodes);
        self.made.extend(&written);
        written.into_iter().for_each(|cell| now.set(cell, true));
    }

    /// What nodes and those of their bodies write.
    fn written(&self, nodes: &[NodeId]) -> Vec<Cell> {
        let nodes = self.step.walk(nodes).into_iter();
        let accesses = nodes.flat_map(|node| node_accesses(self.program, self.step, node));
        accesses.filter(|access| access.mode.writes()).map(|access| Cell::of(access.resource)).collect()
    }

    fn fixed_load(&self, expr: &Expr, varies: &SecondaryMap<ValueId, bool>) -> Option<BufferId> {
        expr.ops().values().find_map(|op| {
            let ExprOp::Load { view, index } = op else { return None };
            let is_picked = index.iter().any(|term| is_moving(term, varies));
            (self.is_input(view.buffer) && !is_picked).then_some(view.buffer)
        })
    }

    fn is_input(&self, buffer: BufferId) -> bool {
        self.program.buffers[buffer].role == Role::Input
    }
}

/// Which values of an expression vary; `acc` says whether the combined value does.
fn values(expr: &Expr, acc: bool, now: &Now) -> SecondaryMap<ValueId, bool> {
    let mut varies: SecondaryMap<ValueId, bool> = SecondaryMap::with_capacity(expr.ops().len());
    for (value, op) in expr.ops().iter() {
        let mut own = match op {
            ExprOp::Scalar(scalar) => now.contains(Cell::Scalar(*scalar)),
            ExprOp::Load { view, .. } => now.contains(Cell::Buffer(view.buffer)),
            ExprOp::Acc => acc,
            _ => false,
        };
        op.operands(|operand| own |= varies[operand]);
        varies[value] = own;
    }
    varies
}

fn is_moving(term: &IndexTerm, varies: &SecondaryMap<ValueId, bool>) -> bool {
    matches!(term, IndexTerm::Value(place) if varies[*place])
}
