//! Single damages to a program: some leave it valid, most do not, none may make validation panic.

use proptest::array::uniform8;
use proptest::prelude::{Strategy, any};
use stepgraph::entity::{BufferId, EntityRef, GroupId, KernelId, NodeId, PhaseId, ScalarId, StepId};
use stepgraph::ir::{
    Arg, AxisRange, Combiner, ConstValue, DType, ExprBuilder, ExprOp, LoopBound, NodeOp, Program, Role, Shape, Target,
    View, Writer,
};

/// The seed form of a damage.
#[derive(Clone, Debug)]
pub(crate) struct Mutation {
    pub(crate) kind: u8,
    pub(crate) picks: [u16; 8],
}

const KINDS: u8 = 24;
/// Extents that are easily mishandled.
const EXTENTS: [u32; 6] = [0, 1, 2, 9, 1 << 31, u32::MAX];

/// Every damage.
pub(crate) fn mutations() -> impl Strategy<Value = Mutation> {
    (0..KINDS, uniform8(any::<u16>())).prop_map(|(kind, picks)| Mutation { kind, picks })
}

impl Mutation {
    fn pick(&self, at: usize, bound: usize) -> usize {
        usize::from(self.picks[at]) % bound.max(1)
    }

    /// An id that may lie past the last one.
    fn id<T: EntityRef>(&self, at: usize, count: usize) -> T {
        T::new(self.pick(at, count + 2))
    }

    fn view(&self, program: &Program) -> View {
        let buffer: BufferId = self.id(2, program.buffers.len());
        let rank = self.pick(3, 5);
        let ranges: Vec<_> = (0..rank)
            .map(|axis| AxisRange {
                start: EXTENTS[self.pick(4 + axis % 2, 6)],
                len: EXTENTS[self.pick(6 + axis % 2, 6)],
                dropped: self.pick(5, 2 + axis) == 0,
            })
            .collect();
        View::from_ranges(buffer, &ranges).expect("few axes")
    }

    fn shape(&self) -> Shape {
        let dims: Vec<_> = (0..self.pick(3, 5)).map(|axis| EXTENTS[self.pick(4 + axis, 6)]).collect();
        Shape::new(&dims).expect("few axes")
    }

    /// Damages the program.
    pub(crate) fn apply(&self, program: &mut Program) {
        match self.kind {
            0..7 => self.declaration(program),
            7..12 => self.frame(program),
            _ => self.node(program),
        }
    }

    fn declaration(&self, program: &mut Program) {
        let buffer = BufferId::new(self.pick(0, program.buffers.len()));
        let scalar = ScalarId::new(self.pick(0, program.scalars.len()));
        match self.kind {
            0 => program.buffers[buffer].shape = self.shape(),
            1 => program.buffers[buffer].dtype = DType::ALL[self.pick(1, 4)],
            2 => program.buffers[buffer].role = Role::ALL[self.pick(1, 5)],
            3 => program.buffers[buffer].name = ["", "acc", "lr", "a.b", "ü"][self.pick(1, 5)].into(),
            4 => {
                let scalar = &mut program.scalars[scalar];
                scalar.writer = if scalar.writer == Writer::Host { Writer::Device } else { Writer::Host };
                scalar.init = [ConstValue::F32(f32::NAN), ConstValue::I32(0), ConstValue::U32(0)][self.pick(1, 3)];
            }
            5 => {
                let group = GroupId::new(self.pick(0, program.groups.len()));
                let member = self.id(1, program.buffers.len());
                program.groups[group].members.push(member);
            }
            _ => self.kernel(program),
        }
    }

    fn kernel(&self, program: &mut Program) {
        let kernel = KernelId::new(self.pick(0, program.kernels.len()));
        let decl = &mut program.kernels[kernel];
        let at = self.pick(1, decl.params.len());
        // An earlier mutation may have taken all parameters away.
        let what = if decl.params.is_empty() { 3 } else { self.pick(2, 5) };
        match what {
            0 => decl.params.truncate(at),
            1 => decl.params[at].shape = None,
            2 => decl.params.swap(0, at),
            3 => decl.source.text = decl.source.text[..self.pick(3, decl.source.text.len())].into(),
            _ => decl.params[at].dtype = DType::ALL[self.pick(3, 4)],
        }
    }

    fn frame(&self, program: &mut Program) {
        let step = StepId::new(self.pick(0, program.steps.len()));
        let nodes = program.steps[step].nodes.len();
        let (scalars, node) = (program.scalars.len(), self.id::<NodeId>(2, nodes));
        let step = &mut program.steps[step];
        let phase = PhaseId::new(self.pick(1, step.phases.len()));
        match self.kind {
            7 => step.phases[phase].nodes.push(node),
            8 => drop(step.phases[phase].nodes.pop()),
            9 => step.phases[phase].guard = Some(self.id(3, scalars)),
            10 => step.phases[phase].variants.push(["v0", "v9"][self.pick(3, 2)].into()),
            _ => {
                let at = NodeId::new(self.pick(3, nodes));
                step.nodes[at].after.push(node);
            }
        }
    }

    fn node(&self, program: &mut Program) {
        let step = StepId::new(self.pick(0, program.steps.len()));
        let at = NodeId::new(self.pick(1, program.steps[step].nodes.len()));
        let (view, shape) = (self.view(program), self.shape());
        let (scalar, nodes) = (self.id::<ScalarId>(2, program.scalars.len()), program.steps[step].nodes.len());
        let (group, kernel) = (self.id(3, program.groups.len()), self.id(3, program.kernels.len()));
        let inner: NodeId = self.id(4, nodes);
        match &mut program.steps[step].nodes[at].op {
            NodeOp::Kernel(call) => match self.kind % 4 {
                0 => call.kernel = kernel,
                1 => drop(call.args.pop()),
                2 => call.args.push(Arg::View(view)),
                _ => {
                    let args =
                        [Arg::View(view), Arg::Group(group), Arg::Scalar(scalar), Arg::Const(ConstValue::F32(1.0))];
                    // An earlier mutation may have taken the last argument away.
                    let given = self.pick(5, call.args.len());
                    if let Some(arg) = call.args.get_mut(given) {
                        *arg = args[self.pick(6, 4)];
                    }
                }
            },
            NodeOp::Gemm(gemm) => match self.kind % 5 {
                0 => gemm.a.transposed = !gemm.a.transposed,
                1 => gemm.b.view = view,
                2 => gemm.d = gemm.a.view,
                3 => gemm.d = view,
                _ => gemm.epilogue = Some(loading(view)),
            },
            NodeOp::Map(map) => match self.kind % 4 {
                0 => map.space = shape,
                1 => map.expr = loading(view),
                2 => drop(map.stores.pop()),
                _ => map.stores.iter_mut().for_each(|store| store.target = Target::View(view)),
            },
            NodeOp::Reduce(reduce) => match self.kind % 5 {
                0 => reduce.space = shape,
                1 => reduce.axes = vec![9, 0],
                2 => reduce.combiner = Combiner::ALL[self.pick(3, 4)],
                3 => reduce.finish = loading(view),
                _ => reduce.stores.iter_mut().for_each(|store| store.target = Target::Scalar(scalar)),
            },
            NodeOp::Copy { from, to } => *if self.kind.is_multiple_of(2) { from } else { to } = view,
            NodeOp::Fill { to, value } => {
                *to = view;
                *value = ConstValue::I32(0);
            }
            NodeOp::If { condition, then_body, .. } => {
                *condition = scalar;
                then_body.push(inner);
            }
            NodeOp::Switch { bodies, .. } => bodies.push(vec![inner]),
            NodeOp::While { max, index, until, body } => match self.kind % 4 {
                0 => *max = LoopBound::Scalar(scalar),
                1 => *index = Some(scalar),
                2 => *until = Some(scalar),
                _ => body.push(inner),
            },
        }
    }
}

/// An expression of one load without index terms.
fn loading(view: View) -> stepgraph::ir::Expr {
    let mut builder = ExprBuilder::new();
    let root = builder.push(ExprOp::Load { view, index: vec![] });
    builder.finish(&[root])
}
