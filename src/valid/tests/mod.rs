//! One broken program per rule, made from one that keeps them all.

mod access;
mod control;
mod expr;
mod gemm;
mod hostile;
mod kernels;
mod lifetime;
mod maps;
mod names;
mod scalars;
mod shapes;

use super::validate;
use crate::entity::{BufferId, EntityRef, NodeId, ScalarId, StepId};
use crate::ir::{
    AxisRange, Buffer, ConstValue, DType, Expr, ExprBuilder, ExprOp, IndexTerm, Init, Map, Node, NodeOp, Origins,
    Phase, Program, ProgramError, Role, Scalar, Shape, Step, Store, Target, View, Writer,
};
use crate::kernel::HostFns;

/// Programs with one step `train` of one phase `main`, and what its nodes use. A second step, `report`, writes the output.
struct Base {
    program: Program,
}

/// The base's step `train`.
fn first_step() -> StepId {
    StepId::new(0)
}

impl Base {
    /// Buffers `x` (input), `w` (param), `s` (state), `h` (temp), `y` (output), all f32 [4, 8]; `places` (u32 state, [4]);
    /// scalars `lr` and `on` of the host (f32, u32), `n` and `f` of the device (u32, f32).
    fn new() -> Self {
        let mut base = Self { program: Program { name: "base".into(), ..Program::default() } };
        for (name, role) in
            [("x", Role::Input), ("w", Role::Param), ("s", Role::State), ("h", Role::Temp), ("y", Role::Output)]
        {
            base.buffer(name, role, DType::F32, &[4, 8]);
        }
        base.buffer("places", Role::State, DType::U32, &[4]);
        for (name, writer, init) in [
            ("lr", Writer::Host, ConstValue::F32(0.1)),
            ("on", Writer::Host, ConstValue::U32(1)),
            ("n", Writer::Device, ConstValue::U32(0)),
            ("f", Writer::Device, ConstValue::F32(0.0)),
        ] {
            base.program.scalars.push(Scalar { name: name.into(), writer, init });
        }
        let mut step = Step { name: "train".into(), ..Step::default() };
        step.phases.push(Phase { name: "main".into(), ..Phase::default() });
        base.program.steps.push(step);
        base.program.steps.push(report(base.id("y")));
        base
    }

    /// The base with nodes `n0`, `n1`, … in its phase.
    fn with(ops: impl IntoIterator<Item = NodeOp>) -> Self {
        let mut base = Self::new();
        ops.into_iter().for_each(|op| {
            base.add(op);
        });
        base
    }

    fn buffer(&mut self, name: &str, role: Role, dtype: DType, dims: &[u32]) -> BufferId {
        let shape = Shape::new(dims).expect("few axes");
        self.program.buffers.push(Buffer { name: name.into(), dtype, shape, role, init: Init::Zeros, tap: false })
    }

    /// Adds a node to no phase.
    fn loose(&mut self, op: NodeOp) -> NodeId {
        let step = &mut self.program.steps[first_step()];
        step.nodes.push(Node { name: format!("n{}", step.nodes.len()), op, after: vec![] })
    }

    fn add(&mut self, op: NodeOp) -> NodeId {
        let id = self.loose(op);
        self.phase(0).nodes.push(id);
        id
    }

    fn phase(&mut self, at: u32) -> &mut Phase {
        &mut self.step().phases[crate::entity::PhaseId::from_u32(at)]
    }

    fn step(&mut self) -> &mut Step {
        &mut self.program.steps[first_step()]
    }

    fn id(&self, name: &str) -> BufferId {
        self.program.buffer(name).expect("declared")
    }

    fn cell(&self, name: &str) -> ScalarId {
        self.program.scalar(name).expect("declared")
    }

    fn errors(self) -> Vec<ProgramError> {
        match validate(self.program, Origins::default(), HostFns::new()) {
            Ok(_) => vec![],
            Err(diagnostics) => diagnostics.0.into_iter().map(|diagnostic| diagnostic.error).collect(),
        }
    }

    #[track_caller]
    fn keeps_every_rule(self) {
        assert_eq!(self.errors(), []);
    }

    /// The one broken rule; a second report would be noise.
    #[track_caller]
    fn one_error(self) -> ProgramError {
        let mut errors = self.errors();
        assert_eq!(errors.len(), 1, "{errors:#?}");
        errors.remove(0)
    }
}

/// A step that fills the output, so that others need not.
fn report(output: BufferId) -> Step {
    let mut step = Step { name: "report".into(), ..Step::default() };
    let op = fill(View::full(output, &shape(&[4, 8])));
    let node = step.nodes.push(Node { name: "fill".into(), op, after: vec![] });
    step.phases.push(Phase { name: "main".into(), nodes: vec![node], ..Phase::default() });
    step
}

/// Asserts that a program breaks exactly one rule, and that the message has a text.
macro_rules! breaks {
    ($base:expr, $variant:ident, $text:literal) => {
        let error = $base.one_error();
        assert!(matches!(error, $crate::ir::ProgramError::$variant { .. }), "{error:?}");
        assert!(error.to_string().contains($text), "{error}");
    };
}
use breaks;

/// All of a base buffer.
fn full(name: &str) -> View {
    let base = Base::new();
    let id = base.id(name);
    View::full(id, &base.program.buffers[id].shape)
}

/// A box of a base buffer, by start and length along each axis.
fn boxed(name: &str, ranges: &[(u32, u32)]) -> View {
    let ranges: Vec<_> = ranges.iter().map(|&(start, len)| AxisRange { start, len, dropped: false }).collect();
    View::from_ranges(Base::new().id(name), &ranges).expect("few axes")
}

fn shape(dims: &[u32]) -> Shape {
    Shape::new(dims).expect("few axes")
}

fn fill(to: View) -> NodeOp {
    NodeOp::Fill { to, value: ConstValue::F32(0.0) }
}

fn copy(from: View, to: View) -> NodeOp {
    NodeOp::Copy { from, to }
}

/// The load of every element at its own place.
fn load(view: View) -> ExprOp {
    let axes = u8::try_from(view.shape().rank()).expect("few axes");
    ExprOp::Load { view, index: (0..axes).map(IndexTerm::Axis).collect() }
}

/// An expression whose operations are its values in order, the last one being its result.
fn expr(ops: impl IntoIterator<Item = ExprOp>) -> Expr {
    let mut builder = ExprBuilder::new();
    let values: Vec<_> = ops.into_iter().map(|op| builder.push(op)).collect();
    builder.finish(&[*values.last().expect("an operation")])
}

fn store(to: View) -> Store {
    Store { target: Target::View(to), scatter: None }
}

/// A map of an expression into a view.
fn map(to: View, ops: impl IntoIterator<Item = ExprOp>) -> NodeOp {
    NodeOp::Map(Map { space: to.shape(), expr: expr(ops), stores: vec![store(to)] })
}

/// A map that stores a constant in a scalar.
fn set(cell: ScalarId, value: ConstValue) -> NodeOp {
    let stores = vec![Store { target: Target::Scalar(cell), scatter: None }];
    NodeOp::Map(Map { space: Shape::SCALAR, expr: expr([ExprOp::Const(value)]), stores })
}

/// Sets a base cell to 1.
fn set_cell(name: &str) -> NodeOp {
    let base = Base::new();
    let cell = base.cell(name);
    set(cell, ConstValue::from_bits(base.program.scalars[cell].init.dtype(), 1).expect("not bf16"))
}

fn value(index: usize) -> crate::entity::ValueId {
    crate::entity::ValueId::new(index)
}

/// Protects: the base that all other tests damage is itself valid.
#[test]
fn the_base_keeps_every_rule() {
    Base::with([fill(full("h")), copy(full("h"), full("y")), set_cell("n")]).keeps_every_rule();
}
