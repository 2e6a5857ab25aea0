//! Series: inputs of which each step of a run reads a part of its own, at a place that it computes.
//!
//! All steps of one launch see the same inputs. What makes their places differ is memory that one step leaves for the next, such
//! as a counter: it varies, and so does all that is computed from it. A place that does not vary is the same in every step.

use rustc_hash::{FxBuildHasher, FxHashSet};

use crate::entity::{BufferId, NodeId, ScalarId, SecondaryMap, ValueId};
use crate::ir::{Access, Expr, ExprOp, IndexTerm, NodeOp, Program, Resource, Role, Step, node_accesses};

/// What differs from one step to the next where a step runs again and again on the same inputs.
pub struct Varying<'a> {
    program: &'a Program,
    step: &'a Step,
    cells: FxHashSet<Cell>,
}

/// A buffer or a scalar as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Cell {
    Buffer(BufferId),
    Scalar(ScalarId),
}

/// A node with what it touches, and the conditional, among the nodes before it, in whose body it is.
struct Visit {
    reads: Vec<Cell>,
    writes: Vec<Cell>,
    owner: Option<usize>,
    /// A loop sets its own cells in the same way in every step.
    is_loop: bool,
}

impl<'a> Varying<'a> {
    /// Looks at a step of these nodes, in program order, and of those in their bodies.
    pub fn of(program: &'a Program, step: &'a Step, nodes: &[NodeId]) -> Self {
        let mut visits = Vec::new();
        visit(program, step, nodes, None, &mut visits);
        let mut cells = carried(program, &visits);
        // Bodies of loops come back to what stands earlier: until nothing more is found.
        while spread(&visits, &mut cells) {}
        Self { program, step, cells }
    }

    /// An input of which the node, without its bodies, reads the same part in every step.
    pub fn fixed_input(&self, node: NodeId) -> Option<BufferId> {
        match &self.step.nodes[node].op {
            NodeOp::Map(map) => self.fixed_load(&map.expr),
            NodeOp::Reduce(reduce) => self.fixed_load(&reduce.expr).or_else(|| self.fixed_load(&reduce.finish)),
            _ => node_accesses(self.program, self.step, node).into_iter().find_map(|access| match access.resource {
                Resource::View(view) => Some(view.buffer).filter(|&buffer| self.is_input(buffer)),
                Resource::Scalar(_) => None,
            }),
        }
    }

    fn fixed_load(&self, expr: &Expr) -> Option<BufferId> {
        let mut varies: SecondaryMap<ValueId, bool> = SecondaryMap::with_capacity(expr.ops().len());
        for (value, op) in expr.ops().iter() {
            let mut own = match op {
                ExprOp::Scalar(scalar) => self.cells.contains(&Cell::Scalar(*scalar)),
                ExprOp::Load { view, .. } => self.cells.contains(&Cell::Buffer(view.buffer)),
                _ => false,
            };
            op.operands(|operand| own |= varies[operand]);
            varies[value] = own;
        }
        expr.ops().values().find_map(|op| {
            let ExprOp::Load { view, index } = op else { return None };
            let is_picked = index.iter().any(|term| matches!(term, IndexTerm::Value(place) if varies[*place]));
            (self.is_input(view.buffer) && !is_picked).then_some(view.buffer)
        })
    }

    fn is_input(&self, buffer: BufferId) -> bool {
        self.program.buffers[buffer].role == Role::Input
    }
}

fn cell(access: &Access) -> Cell {
    match access.resource {
        Resource::View(view) => Cell::Buffer(view.buffer),
        Resource::Scalar(scalar) => Cell::Scalar(scalar),
    }
}

/// Lists nodes and those of their bodies. Validation bounds how deep bodies nest.
fn visit(program: &Program, step: &Step, nodes: &[NodeId], owner: Option<usize>, found: &mut Vec<Visit>) {
    for &node in nodes {
        let (accesses, op) = (node_accesses(program, step, node), &step.nodes[node].op);
        let cells = |is: fn(&Access) -> bool| accesses.iter().filter(|&access| is(access)).map(cell).collect();
        let (reads, writes) = (cells(|access| access.mode.reads()), cells(|access| access.mode.writes()));
        found.push(Visit { reads, writes, owner, is_loop: matches!(op, NodeOp::While { .. }) });
        let own = found.len() - 1;
        op.bodies().into_iter().for_each(|body| visit(program, step, body, Some(own), found));
    }
}

/// What a step leaves for the next: it writes it, and reads the old contents. A write in a body may not happen, but that of a
/// loop's own cells does before its body runs.
fn carried(program: &Program, visits: &[Visit]) -> FxHashSet<Cell> {
    let is_kept = |cell: &Cell| match *cell {
        Cell::Buffer(buffer) => matches!(program.buffers[buffer].role, Role::Param | Role::State),
        Cell::Scalar(_) => true,
    };
    let [mut replaced, mut read, mut written] = [const { FxHashSet::<Cell>::with_hasher(FxBuildHasher) }; 3];
    for visit in visits {
        read.extend(visit.reads.iter().filter(|cell| is_kept(cell) && !replaced.contains(*cell)));
        written.extend(&visit.writes);
        if visit.owner.is_none() || visit.is_loop {
            replaced.extend(visit.writes.iter().filter(|cell| matches!(cell, Cell::Scalar(_))));
        }
    }
    read.retain(|cell| written.contains(cell));
    read
}

/// Adds what is computed from something that varies, or where that decides; says whether anything was new.
fn spread(visits: &[Visit], cells: &mut FxHashSet<Cell>) -> bool {
    let before = cells.len();
    let mut decided = Vec::with_capacity(visits.len());
    for visit in visits {
        let is_decided = visit.owner.is_some_and(|owner| decided[owner]);
        let reads_it = visit.reads.iter().any(|cell| cells.contains(cell));
        if is_decided || (reads_it && !visit.is_loop) {
            cells.extend(&visit.writes);
        }
        let ends_it = visit.is_loop && visit.writes.iter().any(|cell| cells.contains(cell));
        decided.push(is_decided || reads_it || ends_it);
    }
    cells.len() > before
}
