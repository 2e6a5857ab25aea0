//! Expressions, ready to be evaluated: one operation at a time over a chunk of elements.

use super::error::HostError;
use super::memory::{Cell, HostMemory};
use super::ops;
use super::resolve::Resolver;
use super::walk::{Access, CHUNK, Run, Walk};
use crate::entity::EntityRef;
use crate::ir::{BinaryOp, CompareOp, Expr, ExprOp, UnaryOp, ValueType, value_types};

/// An expression over a walk. Value `v` of the expression is register `v`.
#[derive(Clone, Debug, Default)]
pub(super) struct Code {
    ops: Vec<Op>,
    types: Vec<ValueType>,
    roots: Vec<usize>,
    /// Registers that are the same for all elements: evaluated once per run.
    uniform: Vec<usize>,
    /// The others: evaluated once per chunk.
    varying: Vec<usize>,
}

#[derive(Clone, Debug)]
enum Op {
    Const(u32),
    Index(Option<usize>),
    Scalar(Cell),
    Load(Access),
    Acc,
    Unary(UnaryOp, usize),
    Binary(BinaryOp, usize, usize),
    Compare(CompareOp, usize, usize),
    Select(usize, usize, usize),
    Cast(usize),
    Philox { key: usize, counter: usize, element: usize, stream: u32, word: u8 },
}

/// Where an expression's values are while it is evaluated. Grows to the largest expression and stays.
#[derive(Clone, Debug, Default)]
pub(super) struct Registers {
    words: Vec<u32>,
    places: Vec<usize>,
    /// The present chunk.
    pub(super) runs: Vec<Run>,
}

impl Registers {
    /// The values of a register, for a chunk of `len` elements.
    pub(super) fn values(&self, register: usize, len: usize) -> &[u32] {
        &self.words[register * CHUNK..][..len]
    }
}

impl Code {
    /// Resolves an expression. Its accesses step along the axes of the index space until [`Code::onto`] is called.
    pub(super) fn new(resolver: &Resolver<'_>, expr: &Expr, acc: ValueType) -> Result<Self, HostError> {
        let types: Vec<_> = value_types(resolver.program, expr, acc).values().copied().collect();
        let ops = expr.ops().values().map(|op| resolve(resolver, op, &types)).collect::<Result<_, _>>()?;
        let roots = expr.roots().iter().map(|root| root.index()).collect();
        Ok(Self { ops, types, roots, ..Self::default() })
    }

    /// The type of a value.
    pub(super) fn type_of(&self, register: usize) -> ValueType {
        self.types[register]
    }

    /// The registers of the results.
    pub(super) fn roots(&self) -> &[usize] {
        &self.roots
    }

    /// Makes the walk over `extents` in this order of axes, for the expression and for the accesses that store its results.
    pub(super) fn onto(&mut self, extents: &[u32], order: &[usize], stores: Vec<&mut Access>) -> Walk {
        let (mut accesses, mut indices) = (stores, Vec::new());
        for op in &mut self.ops {
            match op {
                Op::Load(access) => accesses.push(access),
                Op::Index(axis) => indices.push(axis),
                _ => {}
            }
        }
        let walk = Walk::new(extents, order, &mut accesses, &mut indices);
        let mut uniform = vec![false; self.ops.len()];
        for (register, op) in self.ops.iter().enumerate() {
            uniform[register] = match op {
                Op::Const(_) | Op::Scalar(_) => true,
                Op::Index(axis) => axis.is_none(),
                Op::Acc => false,
                Op::Load(access) => {
                    access.steps.iter().all(|&step| step == 0) && access.computed.iter().all(|term| uniform[term.value])
                }
                Op::Unary(_, x) | Op::Cast(x) => uniform[*x],
                Op::Binary(_, a, b) | Op::Compare(_, a, b) => uniform[*a] && uniform[*b],
                Op::Select(condition, a, b) => uniform[*condition] && uniform[*a] && uniform[*b],
                Op::Philox { key, counter, element, .. } => uniform[*key] && uniform[*counter] && uniform[*element],
            };
        }
        (self.uniform, self.varying) = (0..self.ops.len()).partition(|&register| uniform[register]);
        walk
    }

    /// Evaluates what is the same for all elements. To be called before the first chunk of each run.
    pub(super) fn begin(&self, walk: &Walk, memory: &HostMemory, registers: &mut Registers) {
        let words = self.ops.len() * CHUNK;
        if registers.words.len() < words {
            registers.words.resize(words, 0);
        }
        let len = CHUNK.min(walk.elements());
        walk.runs(0, len, &mut registers.runs);
        for &register in &self.uniform {
            self.evaluate(register, walk, memory, len, &[], registers);
        }
    }

    /// Evaluates `len` elements from `start` on; `acc` holds their accumulators, where the expression has any.
    pub(super) fn chunk(
        &self,
        walk: &Walk,
        memory: &HostMemory,
        (start, len): (usize, usize),
        acc: &[u32],
        registers: &mut Registers,
    ) {
        walk.runs(start, len, &mut registers.runs);
        for &register in &self.varying {
            self.evaluate(register, walk, memory, len, acc, registers);
        }
    }

    fn evaluate(
        &self,
        register: usize,
        walk: &Walk,
        memory: &HostMemory,
        len: usize,
        acc: &[u32],
        registers: &mut Registers,
    ) {
        let Registers { words, places, runs } = registers;
        let (before, out) = words.split_at_mut(register * CHUNK);
        let out = &mut out[..len];
        let values = |register: usize| &before[register * CHUNK..][..len];
        match self.ops[register] {
            Op::Const(bits) => out.fill(bits),
            Op::Index(None) => out.fill(0),
            Op::Index(Some(axis)) => walk.coordinates(axis, runs, out),
            Op::Scalar(cell) => out.fill(memory.cell(cell)),
            Op::Load(ref access) if access.computed.is_empty() => walk.load(memory, access, runs, out),
            Op::Load(ref access) => {
                places.resize(len, 0);
                walk.places(access, runs, places);
                for term in &access.computed {
                    let along = places.iter_mut().zip(values(term.value));
                    along.for_each(|(place, &bits)| *place += term.clamped(bits));
                }
                out.iter_mut().zip(places).for_each(|(slot, place)| *slot = access.get(memory, *place));
            }
            Op::Acc => out.copy_from_slice(acc),
            Op::Unary(op, x) => ops::unary(op, self.types[x], values(x), out),
            Op::Binary(op, a, b) => ops::binary(op, self.types[a], values(a), values(b), out),
            Op::Compare(op, a, b) => ops::compare(op, self.types[a], values(a), values(b), out),
            Op::Select(condition, a, b) => ops::select(values(condition), values(a), values(b), out),
            Op::Cast(x) => ops::cast(self.types[x], self.types[register], values(x), out),
            Op::Philox { key, counter, element, stream, word } => {
                let (key, counter, element) = (values(key), values(counter), values(element));
                ops::philox(&ops::PhiloxArgs { key, counter, element, stream, word }, out);
            }
        }
    }
}

fn resolve(resolver: &Resolver<'_>, op: &ExprOp, types: &[ValueType]) -> Result<Op, HostError> {
    Ok(match *op {
        ExprOp::Const(value) => Op::Const(value.bits()),
        ExprOp::Index(axis) => Op::Index(Some(usize::from(axis))),
        ExprOp::Scalar(scalar) => Op::Scalar(resolver.cell(scalar)?),
        ExprOp::Load { ref view, ref index } => {
            Op::Load(resolver.access(view, index, |value| types[value] == ValueType::I32)?)
        }
        ExprOp::Acc => Op::Acc,
        ExprOp::Unary(op, x) => Op::Unary(op, x.index()),
        ExprOp::Binary(op, a, b) => Op::Binary(op, a.index(), b.index()),
        ExprOp::Compare(op, a, b) => Op::Compare(op, a.index(), b.index()),
        ExprOp::Select { condition, if_true, if_false } => {
            Op::Select(condition.index(), if_true.index(), if_false.index())
        }
        ExprOp::Cast(_, x) => Op::Cast(x.index()),
        ExprOp::Philox { key, counter, element, stream, word } => {
            Op::Philox { key: key.index(), counter: counter.index(), element: element.index(), stream, word }
        }
    })
}
