//! Reads a recipe: declarations, steps, phases, and what may be read or written at each point.

use std::collections::BTreeMap;

use stepgraph::entity::{BufferId, GroupId, NodeId, ScalarId, StepId};
use stepgraph::ir::{
    AxisRange, Buffer, ConstValue, DType, Group, Init, Node, NodeOp, Phase, Program, Role, Scalar, Shape, Step, View,
    Writer,
};
use stepgraph::kernel::HostFns;

use super::kernels::Kernels;
use super::{NodeRecipe, PhaseRecipe, Recipe, StepRecipe};

/// Numbers of a node recipe, taken one after another; zeros once they are used up.
pub(super) struct Picks<'a> {
    left: std::slice::Iter<'a, u16>,
}

impl<'a> Picks<'a> {
    pub(super) fn new(recipe: &'a NodeRecipe) -> Self {
        Self { left: recipe.picks.iter() }
    }

    /// A number below `bound`, which is at least 1.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::from(self.left.next().copied().unwrap_or(0)) % bound
    }

    pub(super) fn extent(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(bound as usize)).expect("below a u32")
    }

    /// True once in `n` times.
    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    pub(super) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// The scalars that every program declares.
pub(super) struct Cells {
    pub(super) floats: Vec<ScalarId>,
    pub(super) switches: Vec<ScalarId>,
    pub(super) rounds: ScalarId,
    pub(super) seed: ScalarId,
    pub(super) shift: ScalarId,
    pub(super) counter: ScalarId,
}

/// The groups that every program declares: parameters, moments (State) and gradients (Temp).
pub(super) struct Groups {
    pub(super) theta: GroupId,
    pub(super) moments: GroupId,
    pub(super) grads: GroupId,
}

pub(super) struct Maker {
    pub(super) program: Program,
    pub(super) kernels: Kernels,
    pub(super) cells: Cells,
    pub(super) groups: Groups,
    pub(super) step: StepId,
    /// The variants that the present phase belongs to, one bit each.
    pub(super) mask: u64,
    /// In which variants a `Temp` or `Output` was written in full so far.
    pub(super) written: BTreeMap<BufferId, u64>,
    /// In which variants a device scalar has its writer already.
    pub(super) writers: BTreeMap<ScalarId, u64>,
    names: u32,
}

pub(super) fn build(recipe: &Recipe) -> (Program, HostFns) {
    let mut program = Program { name: "random".into(), ..Program::default() };
    let mut host_fns = HostFns::new();
    let kernels = Kernels::declare(&mut program, &mut host_fns);
    let cells = declare_cells(&mut program);
    let groups = declare_buffers(&mut program);
    let mut maker = Maker {
        program,
        kernels,
        cells,
        groups,
        step: StepId::from_u32(0),
        mask: 0,
        written: BTreeMap::new(),
        writers: BTreeMap::new(),
        names: 0,
    };
    recipe.steps.iter().for_each(|step| maker.step(step));
    (maker.program, host_fns)
}

fn declare_cells(program: &mut Program) -> Cells {
    let mut scalar = |name: &str, writer, init| program.scalars.push(Scalar { name: name.into(), writer, init });
    Cells {
        floats: vec![
            scalar("lr", Writer::Host, ConstValue::F32(0.5)),
            scalar("gain", Writer::Host, ConstValue::F32(-1.25)),
        ],
        switches: vec![
            scalar("on", Writer::Host, ConstValue::U32(1)),
            scalar("off", Writer::Host, ConstValue::U32(0)),
            scalar("pick", Writer::Host, ConstValue::U32(2)),
        ],
        rounds: scalar("rounds", Writer::Host, ConstValue::U32(2)),
        seed: scalar("seed", Writer::Host, ConstValue::U32(7)),
        shift: scalar("shift", Writer::Host, ConstValue::I32(-3)),
        counter: scalar("counter", Writer::Device, ConstValue::U32(0)),
    }
}

fn declare_buffers(program: &mut Program) -> Groups {
    let mut buffer = |name: &str, role, dtype, dims: &[u32], init| {
        let shape = Shape::new(dims).expect("few axes");
        program.buffers.push(Buffer { name: name.into(), dtype, shape, role, init, tap: false })
    };
    let normal = Init::Normal { std: 0.5 };
    buffer("x", Role::Input, DType::F32, &[4, 8], Init::Zeros);
    buffer("places", Role::Input, DType::I32, &[8], Init::Zeros);
    buffer("marks", Role::Input, DType::U32, &[5, 3], Init::Zeros);
    let dims: [(&str, &[u32]); 3] = [("w", &[8, 8]), ("b", &[8]), ("u", &[3])];
    let theta = dims.map(|(name, dims)| buffer(name, Role::Param, DType::F32, dims, normal));
    let moments = dims.map(|(name, dims)| buffer(&format!("m.{name}"), Role::State, DType::F32, dims, Init::Zeros));
    let grads = dims.map(|(name, dims)| buffer(&format!("g.{name}"), Role::Temp, DType::F32, dims, Init::Zeros));
    buffer("s", Role::State, DType::F32, &[8, 4], Init::Uniform { bound: 1.0 });
    buffer("table", Role::State, DType::Bf16, &[16, 8], normal);
    buffer("counts", Role::State, DType::U32, &[16], Init::Constant(3.0));
    buffer("cube", Role::State, DType::F32, &[2, 3, 4], Init::Constant(0.25));
    buffer("deep", Role::State, DType::I32, &[2, 1, 3, 2], Init::Constant(-2.0));
    buffer("one", Role::State, DType::F32, &[], Init::Constant(1.5));
    let mut group = |name: &str, members: [BufferId; 3]| {
        program.groups.push(Group { name: name.into(), members: members.to_vec() })
    };
    Groups { theta: group("theta", theta), moments: group("moments", moments), grads: group("grads", grads) }
}

impl Maker {
    fn step(&mut self, recipe: &StepRecipe) {
        let count = if recipe.variants < 2 { 0 } else { recipe.variants };
        let variants: Vec<_> = (0..count).map(|variant| format!("v{variant}")).collect();
        let name = format!("step{}", self.program.steps.len());
        self.step = self.program.steps.push(Step { name, variants, ..Step::default() });
        self.written.clear();
        self.writers.clear();
        let all = (1 << count) - 1;
        let mut used = 0;
        for (at, phase) in recipe.phases.iter().enumerate() {
            let wish = u64::from(phase.variants) & all;
            // The last phase serves the variants that would have none.
            let own = if at + 1 == recipe.phases.len() && (used | wish) != all { 0 } else { wish };
            used |= if own == 0 { all } else { own };
            self.phase(phase, own, all);
        }
    }

    fn phase(&mut self, recipe: &PhaseRecipe, own: u64, all: u64) {
        self.mask = if own == 0 { all.max(1) } else { own };
        let declared = &self.program.steps[self.step].variants;
        let variants = if own == 0 {
            vec![]
        } else {
            declared.iter().enumerate().filter(|(at, _)| own >> at & 1 == 1).map(|(_, name)| name.clone()).collect()
        };
        let before = self.written.clone();
        let nodes = self.body(&recipe.nodes, 0);
        if recipe.guarded {
            self.written = before;
        }
        let guard = recipe.guarded.then_some(self.cells.switches[nodes.len() % 2]);
        let step = &mut self.program.steps[self.step];
        let name = format!("phase{}", step.phases.len());
        step.phases.push(Phase { name, variants, guard, nodes });
    }

    /// Adds a node behind those of `list`; now and then it waits for one of them.
    pub(super) fn node(&mut self, list: &mut Vec<NodeId>, picks: &mut Picks<'_>, op: NodeOp) -> NodeId {
        let after = if !list.is_empty() && picks.one_in(8) { vec![picks.of(list)] } else { vec![] };
        let name = self.fresh("n");
        let id = self.program.steps[self.step].nodes.push(Node { name, op, after });
        list.push(id);
        id
    }

    fn fresh(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    /// A new buffer that nothing has written: a `Temp`, or now and then an `Output`.
    pub(super) fn new_buffer(&mut self, picks: &mut Picks<'_>, dtype: DType, shape: Shape) -> BufferId {
        let role = if picks.one_in(6) { Role::Output } else { Role::Temp };
        let tap = role == Role::Temp && picks.one_in(8);
        let name = self.fresh(if role == Role::Output { "out" } else { "h" });
        self.program.buffers.push(Buffer { name, dtype, shape, role, init: Init::Zeros, tap })
    }

    /// A new device scalar without a writer.
    pub(super) fn new_cell(&mut self, init: ConstValue) -> ScalarId {
        let name = self.fresh("cell");
        self.program.scalars.push(Scalar { name, writer: Writer::Device, init })
    }

    /// Claims the device scalar for a writing node of the present phase, or a new one where it has a writer.
    pub(super) fn writable_cell(&mut self, wish: ScalarId) -> ScalarId {
        let taken = self.writers.get(&wish).is_some_and(|mask| mask & self.mask != 0);
        let cell = if taken { self.new_cell(self.program.scalars[wish].init) } else { wish };
        *self.writers.entry(cell).or_default() |= self.mask;
        cell
    }

    pub(super) fn shape(&self, buffer: BufferId) -> Shape {
        self.program.buffers[buffer].shape
    }

    pub(super) fn is_readable(&self, buffer: BufferId) -> bool {
        match self.program.buffers[buffer].role {
            Role::Input | Role::Param | Role::State => true,
            Role::Temp | Role::Output => self.written.get(&buffer).is_some_and(|mask| self.mask & !mask == 0),
        }
    }

    /// The buffers that may be read now and that `keep` keeps, in declared order.
    pub(super) fn readable(&self, keep: impl Fn(BufferId, &Buffer) -> bool) -> Vec<BufferId> {
        let buffers = self.program.buffers.iter();
        buffers.filter(|&(id, buffer)| self.is_readable(id) && keep(id, buffer)).map(|(id, _)| id).collect()
    }

    /// Notes that the present phase wrote the whole buffer.
    pub(super) fn wrote(&mut self, view: View) {
        if view.is_full(&self.shape(view.buffer)) {
            *self.written.entry(view.buffer).or_default() |= self.mask;
        }
    }

    /// Where a result of this type and shape goes: a new buffer, or a box of one that holds something and is not `avoided`.
    pub(super) fn target(&mut self, picks: &mut Picks<'_>, dtype: DType, shape: Shape, avoid: &[BufferId]) -> View {
        if picks.one_in(3) {
            let fits = self.readable(|id, buffer| {
                buffer.role != Role::Input
                    && buffer.dtype == dtype
                    && !avoid.contains(&id)
                    && buffer.shape.rank() >= shape.rank()
            });
            if !fits.is_empty() {
                let buffer = picks.of(&fits);
                if let Some(view) = boxed(picks, buffer, &self.shape(buffer), &shape) {
                    return view;
                }
            }
        }
        View::full(self.new_buffer(picks, dtype, shape), &shape)
    }
}

/// A box of a buffer of shape `from` that has the shape `wanted`, where there is one.
pub(super) fn boxed(picks: &mut Picks<'_>, buffer: BufferId, from: &Shape, wanted: &Shape) -> Option<View> {
    let mut extents = wanted.dims().iter();
    let mut spare = from.rank().checked_sub(wanted.rank())?;
    let mut ranges = Vec::new();
    for &dim in from.dims() {
        if spare > 0 && (extents.len() == 0 || picks.one_in(2)) {
            spare -= 1;
            ranges.push(AxisRange { start: picks.extent(dim), len: 1, dropped: true });
            continue;
        }
        let &len = extents.next()?;
        let start = picks.extent(dim.checked_sub(len)? + 1);
        ranges.push(AxisRange { start, len, dropped: false });
    }
    (extents.len() == 0).then(|| View::from_ranges(buffer, &ranges)).flatten()
}
