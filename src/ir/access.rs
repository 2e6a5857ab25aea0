//! What a node reads and writes: the one place that turns operations into memory accesses.

use rustc_hash::FxHashSet;

use super::expr::{Expr, ExprOp};
use super::node::{Arg, Factor, Gemm, KernelCall, LoopBound, NodeOp, Store, Target};
use super::program::{Program, Step};
use super::shape::View;
use crate::entity::{NodeId, ScalarId};

/// The most views and scalars that a generated kernel can take: 4 KiB of arguments, less what the launch itself needs.
pub const MAX_OPERANDS: usize = 500;

/// A piece of memory that an access touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// A box of a buffer.
    View(View),
    /// A scalar cell.
    Scalar(ScalarId),
}

impl Resource {
    /// Whether both share memory.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::View(a), Self::View(b)) => a.overlaps(b),
            (Self::Scalar(a), Self::Scalar(b)) => a == b,
            _ => false,
        }
    }
}

/// How memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// Read only.
    Read,
    /// Every element is written, none is read.
    Write,
    /// Read and written, or written in part.
    Update,
}

impl AccessMode {
    /// Whether the memory's old contents matter.
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Update)
    }

    /// Whether the memory's contents change.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Update)
    }
}

/// One access of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The memory.
    pub resource: Resource,
    /// How it is touched.
    pub mode: AccessMode,
}

/// What a node touches, in the order of its parts. A conditional node touches its own cells; [`subtree_accesses`] adds what
/// its bodies touch.
///
/// A scattered store is an update of the whole target view: what is not hit keeps its value. A view may appear more than
/// once when a node reads and writes it. Arguments that do not fit their declaration are left out; validation reports them.
pub fn node_accesses(program: &Program, step: &Step, node: NodeId) -> Vec<Access> {
    let mut found = Accesses::default();
    match &step.nodes[node].op {
        NodeOp::Kernel(call) => found.kernel(program, call),
        NodeOp::Gemm(gemm) => found.gemm(gemm),
        NodeOp::Map(map) => {
            found.expr(&map.expr);
            found.stores(&map.stores);
        }
        NodeOp::Reduce(reduce) => {
            found.expr(&reduce.expr);
            found.expr(&reduce.finish);
            found.stores(&reduce.stores);
        }
        NodeOp::Copy { from, to } => {
            found.view(*from, AccessMode::Read);
            found.view(*to, AccessMode::Write);
        }
        NodeOp::Fill { to, .. } => found.view(*to, AccessMode::Write),
        NodeOp::If { condition, .. } => found.scalar(*condition, AccessMode::Read),
        NodeOp::Switch { selector, .. } => found.scalar(*selector, AccessMode::Read),
        NodeOp::While { max, index, until, .. } => {
            if let LoopBound::Scalar(scalar) = max {
                found.scalar(*scalar, AccessMode::Read);
            }
            index.iter().for_each(|&scalar| found.scalar(scalar, AccessMode::Write));
            until.iter().for_each(|&scalar| found.scalar(scalar, AccessMode::Write));
        }
    }
    found.list
}

/// What a node and the nodes of its bodies touch. Writes inside a body count as updates: the body may not run.
pub fn subtree_accesses(program: &Program, step: &Step, node: NodeId) -> Vec<Access> {
    let mut found = node_accesses(program, step, node);
    for body in step.nodes[node].op.bodies() {
        for inner in step.walk(body) {
            found.extend(node_accesses(program, step, inner).into_iter().map(|access| match access.mode {
                AccessMode::Write => Access { mode: AccessMode::Update, ..access },
                _ => access,
            }));
        }
    }
    found
}

/// So few accesses are compared one by one.
const FEW: usize = 16;

/// Accesses in the order in which they were added, each once.
#[derive(Default)]
struct Accesses {
    list: Vec<Access>,
    /// The same, once there are more than a few.
    known: FxHashSet<Access>,
}

impl Accesses {
    fn view(&mut self, view: View, mode: AccessMode) {
        self.add(Resource::View(view), mode);
    }

    fn scalar(&mut self, scalar: ScalarId, mode: AccessMode) {
        self.add(Resource::Scalar(scalar), mode);
    }

    fn add(&mut self, resource: Resource, mode: AccessMode) {
        let access = Access { resource, mode };
        if self.list.len() < FEW {
            if !self.list.contains(&access) {
                self.list.push(access);
            }
            return;
        }
        if self.known.is_empty() {
            self.known.extend(&self.list);
        }
        if self.known.insert(access) {
            self.list.push(access);
        }
    }

    fn expr(&mut self, expr: &Expr) {
        for op in expr.ops().values() {
            match op {
                ExprOp::Load { view, .. } => self.view(*view, AccessMode::Read),
                ExprOp::Scalar(scalar) => self.scalar(*scalar, AccessMode::Read),
                _ => {}
            }
        }
    }

    fn stores(&mut self, stores: &[Store]) {
        for store in stores {
            let mode = if store.scatter.is_some() { AccessMode::Update } else { AccessMode::Write };
            match store.target {
                Target::View(view) => self.view(view, mode),
                Target::Scalar(scalar) => self.scalar(scalar, mode),
            }
        }
    }

    fn factor(&mut self, factor: Factor) {
        if let Factor::Scalar(scalar) = factor {
            self.scalar(scalar, AccessMode::Read);
        }
    }

    fn gemm(&mut self, gemm: &Gemm) {
        self.view(gemm.a.view, AccessMode::Read);
        self.view(gemm.b.view, AccessMode::Read);
        self.factor(gemm.alpha);
        if let Some((beta, c)) = gemm.add {
            self.factor(beta);
            self.view(c, AccessMode::Read);
        }
        gemm.epilogue.iter().for_each(|epilogue| self.expr(epilogue));
        self.view(gemm.d, AccessMode::Write);
    }

    fn kernel(&mut self, program: &Program, call: &KernelCall) {
        let supplied = program.kernels[call.kernel].params.iter().filter(|param| param.class.needs_argument());
        for (param, &arg) in supplied.zip(&call.args) {
            let mode = match (param.class.reads(), param.class.writes()) {
                (true, true) => AccessMode::Update,
                (false, true) => AccessMode::Write,
                _ => AccessMode::Read,
            };
            match arg {
                Arg::View(view) if param.class.is_buffer() => self.view(view, mode),
                Arg::Group(group) if param.class.is_buffer() => {
                    for &member in &program.groups[group].members {
                        self.view(View::full(member, &program.buffers[member].shape), mode);
                    }
                }
                Arg::Scalar(scalar) if param.class.is_scalar() => self.scalar(scalar, mode),
                _ => {}
            }
        }
    }
}
