//! Validation: turns a program into one that later stages can rely on, or says everything that is wrong with it.
//!
//! It never changes a program, and it takes any: ids that name nothing, shapes of zero, bodies inside themselves. Each family of
//! rules has a file; `docs/ir.md` lists the rules.

mod access;
mod calls;
mod control;
mod expr;
mod gemm;
mod kernels;
mod lifetime;
mod maps;
mod names;
mod region;
mod report;
mod scalars;
mod shapes;
#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashSet;

use crate::entity::{BufferId, EntityRef, KernelId, NodeId, PrimaryMap, SecondaryMap, StepId, ValueId};
use crate::ir::{Diagnostics, NodeOp, Origins, Program, ValueType};
use crate::kernel::HostFns;
use kernels::Symbols;
use lifetime::Touched;
use report::{Report, Site};

/// A program that keeps every rule of `docs/ir.md`. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ValidProgram {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    program: Program,
    origins: Origins,
    host_fns: HostFns,
    facts: Facts,
    /// The program that passes made this one from.
    declared: Option<ValidProgram>,
}

/// What validation found out about each node, and each kernel's symbols.
#[derive(Debug, Default)]
struct Facts {
    types: PrimaryMap<StepId, SecondaryMap<NodeId, Option<Box<NodeTypes>>>>,
    extents: PrimaryMap<StepId, SecondaryMap<NodeId, Vec<u32>>>,
    symbols: Symbols,
}

/// The type of each value of a node's expressions.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct NodeTypes {
    /// Of a map's or reduction's `expr`, or a product's epilogue.
    pub expr: PrimaryMap<ValueId, ValueType>,
    /// Of a reduction's `finish`.
    pub finish: PrimaryMap<ValueId, ValueType>,
}

static NO_TYPES: LazyLock<NodeTypes> = LazyLock::new(NodeTypes::default);

impl ValidProgram {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.inner.program
    }

    /// The program as it was declared, before any pass.
    pub fn declared(&self) -> &Self {
        self.inner.declared.as_ref().unwrap_or(self)
    }

    /// Where its parts were written.
    pub fn origins(&self) -> &Origins {
        &self.inner.origins
    }

    /// The host functions of its kernels.
    pub fn host_fns(&self) -> &HostFns {
        &self.inner.host_fns
    }

    /// The type of each value of a node's expressions; empty for a node without any.
    pub fn types(&self, step: StepId, node: NodeId) -> &NodeTypes {
        self.inner.facts.types[step][node].as_deref().unwrap_or(&NO_TYPES)
    }

    /// Each symbol of a called kernel's shapes with its extent, in the order in which the declaration names them; nothing for
    /// other nodes.
    pub fn sizes(&self, step: StepId, node: NodeId) -> impl Iterator<Item = (&str, u32)> {
        let names = match &self.inner.program.steps[step].nodes[node].op {
            NodeOp::Kernel(call) => self.symbols(call.kernel),
            _ => &[],
        };
        names.iter().map(String::as_str).zip(self.inner.facts.extents[step][node].iter().copied())
    }

    /// The extent that a symbol of a called kernel's shapes stands for.
    pub fn size(&self, step: StepId, node: NodeId, symbol: &str) -> Option<u32> {
        self.sizes(step, node).find(|(name, _)| *name == symbol).map(|(_, extent)| extent)
    }

    fn symbols(&self, kernel: KernelId) -> &[String] {
        &self.inner.facts.symbols[kernel]
    }
}

/// Checks every rule. Takes time in proportion to the program's size.
///
/// # Errors
/// All broken rules at once, in program order. A node that breaks a rule is taken to write what it would, so that one error does
/// not cause others.
pub fn validate(program: Program, origins: Origins, host_fns: HostFns) -> Result<ValidProgram, Diagnostics> {
    check(program, origins, host_fns, None)
}

/// Checks a program that was made from a valid one, which it remembers.
///
/// # Errors
/// As [`validate`].
pub fn validate_rewrite(program: Program, origins: Origins, of: &ValidProgram) -> Result<ValidProgram, Diagnostics> {
    check(program, origins, of.host_fns().clone(), Some(of.declared().clone()))
}

fn check(
    program: Program,
    origins: Origins,
    host_fns: HostFns,
    declared: Option<ValidProgram>,
) -> Result<ValidProgram, Diagnostics> {
    let mut report = Report::new(&origins);
    names::check(&program, &mut report);
    shapes::check(&program, &mut report);
    let mut facts = Facts { symbols: kernels::check(&program, &mut report), ..Facts::default() };
    let mut written = Some(FxHashSet::default());
    for step in program.steps.keys() {
        let by_step = check_step(&program, step, &mut facts, &mut report);
        written = written.zip(by_step).map(|(written, by_step)| &written | &by_step);
    }
    // A pass may leave a step one of its variants: what the others write is written as declared.
    if let (Some(written), None) = (&written, &declared) {
        lifetime::check_outputs(&program, written, &mut report);
    }
    match report.finish() {
        Some(diagnostics) => Err(diagnostics),
        None => Ok(ValidProgram { inner: Arc::new(Inner { program, origins, host_fns, facts, declared }) }),
    }
}

/// Gives the buffers that the step writes, where its order and its ids mean something.
fn check_step<'a>(
    program: &'a Program,
    step: StepId,
    facts: &mut Facts,
    report: &mut Report<'a>,
) -> Option<FxHashSet<BufferId>> {
    let layout = control::check(program, step, report);
    let nodes = &program.steps[step].nodes;
    let mut types = SecondaryMap::with_capacity(nodes.len());
    let mut extents = SecondaryMap::new();
    let mut touched = Touched { accesses: Vec::with_capacity(nodes.len()), broken: vec![false; nodes.len()] };
    let mut is_dangling = false;
    for (node, op) in nodes.iter().map(|(id, node)| (id, &node.op)) {
        let mut site = Site::new(program, step, node, report);
        check_node(&mut site, op, &facts.symbols, &mut types, &mut extents);
        let accesses = if access::resolves(program, op) {
            access::check(&mut site)
        } else {
            is_dangling = true;
            Vec::new()
        };
        touched.broken[node.index()] = site.broken;
        touched.accesses.push(accesses);
    }
    // Where the order or an id means nothing, what follows from them would only repeat it.
    let is_meaningful = layout.is_sound && !is_dangling;
    if is_meaningful {
        lifetime::check(program, step, &layout, &touched, report);
        scalars::check(program, step, &layout, &touched, report);
    }
    facts.types.push(types);
    facts.extents.push(extents);
    is_meaningful.then(|| lifetime::written_ever(&touched))
}

fn check_node(
    site: &mut Site<'_, '_>,
    op: &NodeOp,
    symbols: &Symbols,
    types: &mut SecondaryMap<NodeId, Option<Box<NodeTypes>>>,
    extents: &mut SecondaryMap<NodeId, Vec<u32>>,
) {
    let node = site.node;
    match op {
        NodeOp::Map(map) => types[node] = maps::map(site, map).map(Box::new),
        NodeOp::Reduce(reduce) => types[node] = maps::reduce(site, reduce).map(Box::new),
        NodeOp::Gemm(gemm) => types[node] = gemm::check(site, gemm).map(Box::new),
        NodeOp::Kernel(call) => extents[node] = calls::check(site, call, symbols).unwrap_or_default(),
        NodeOp::Copy { from, to } => shapes::copy(site, *from, *to),
        NodeOp::Fill { to, value } => shapes::fill(site, *to, *value),
        NodeOp::If { .. } | NodeOp::Switch { .. } | NodeOp::While { .. } => control::conditional(site, op),
    }
}
