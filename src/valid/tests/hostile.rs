use std::time::{Duration, Instant};

use super::{Base, boxed, copy, fill, full, set_cell};
use crate::entity::{BufferId, NodeId};
use crate::ir::{Arg, ConstValue, DType, Group, KernelCall, NodeOp, Phase, Role, View};

/// How long a program of 100,000 nodes may take in a test build on a busy machine; anything quadratic takes minutes.
const LIMIT: Duration = Duration::from_secs(30);
const MANY: u32 = 100_000;

#[track_caller]
fn in_time(base: Base) -> usize {
    let start = Instant::now();
    let errors = base.errors().len();
    assert!(start.elapsed() < LIMIT, "took {:?}", start.elapsed());
    errors
}

/// Protects: validation stays linear on long chains, on many boxes of one buffer, and on bodies that write one buffer.
#[test]
fn long_programs_take_linear_time() {
    let chain = Base::with(
        (0..MANY).map(|at| if at % 2 == 0 { copy(full("s"), full("h")) } else { copy(full("h"), full("s")) }),
    );
    assert_eq!(in_time(chain), 0);

    let mut rows = Base::new();
    let id = rows.buffer("tall", Role::Temp, DType::F32, &[MANY, 2]);
    let row = |at: u32, column: u32| {
        let range = |start, len| crate::ir::AxisRange { start, len, dropped: false };
        View::from_ranges(id, &[range(at, 1), range(column, 1)]).expect("few axes")
    };
    for at in 0..MANY / 2 {
        rows.add(fill(row(at * 2, 0)));
        rows.add(fill(row(at, 1)));
    }
    rows.add(copy(row(7, 0), row(9, 0)));
    in_time(rows);

    let mut bodies = Base::with([fill(full("h"))]);
    let condition = bodies.cell("on");
    for at in 0..MANY / 2 {
        let body = vec![bodies.loose(fill(boxed("h", &[(at % 4, 1), (at % 8, 1)])))];
        bodies.add(NodeOp::If { condition, then_body: body, else_body: vec![] });
    }
    assert_eq!(in_time(bodies), 0);
}

/// Protects: many variants, large groups and wide nodes do not multiply.
#[test]
fn wide_programs_take_linear_time() {
    let mut variants = Base::new();
    variants.step().variants = (0..64).map(|at| format!("v{at}")).collect();
    for at in 0..2000 {
        let node = variants.loose(fill(full("h")));
        let phase =
            Phase { name: format!("p{at}"), variants: vec![format!("v{}", at % 64)], guard: None, nodes: vec![node] };
        variants.step().phases.push(phase);
    }
    let node = variants.loose(set_cell("n"));
    variants.phase(0).nodes.push(node);
    variants.phase(0).variants.clear();
    assert_eq!(in_time(variants), 0);

    let mut group = Base::with([fill(full("h"))]);
    let members: Vec<BufferId> =
        (0..MANY).map(|at| group.buffer(&format!("m{at}"), Role::State, DType::F32, &[1])).collect();
    group.program.groups.push(Group { name: "g".into(), members });
    assert_eq!(in_time(group), 0);

    for role in [Role::Temp, Role::Input] {
        let mut base = Base::new();
        let kernel = super::kernels::declare(&mut base);
        let members: Vec<BufferId> =
            (0..MANY).map(|at| base.buffer(&format!("m{at}"), role, DType::F32, &[1])).collect();
        let g = base.program.groups.push(Group { name: "g".into(), members });
        base.program.kernels.values_mut().for_each(super::kernels::flatten);
        let (lr, c) = (Arg::Scalar(base.cell("lr")), Arg::Const(ConstValue::U32(0)));
        let other = base.buffer("flat", Role::State, DType::F32, &[MANY * 4]);
        let flat = Arg::View(View::full(other, &super::shape(&[MANY * 4])));
        let args = if role == Role::Temp { vec![Arg::Group(g), flat, lr, c] } else { vec![flat, Arg::Group(g), lr, c] };
        base.add(NodeOp::Kernel(KernelCall { kernel, args }));
        assert_eq!(in_time(base), 8, "one node says one thing a few times, not for each member");
    }

    let writers = Base::with((0..MANY).map(|_| set_cell("n")));
    assert_eq!(in_time(writers), MANY as usize - 1);
}

/// Protects: depth costs no stack, and nonsense ends in errors.
#[test]
fn deep_and_recursive_programs_end_in_errors() {
    let mut nested = Base::new();
    let condition = nested.cell("on");
    let mut node = nested.loose(set_cell("n"));
    for _ in 0..MANY {
        node = nested.loose(NodeOp::If { condition, then_body: vec![node], else_body: vec![] });
    }
    nested.phase(0).nodes.push(node);
    assert!(in_time(nested) > 0);

    let mut ring = Base::new();
    for at in 0..MANY {
        let next = NodeId::from_u32((at + 1) % MANY);
        ring.loose(NodeOp::If { condition, then_body: vec![next], else_body: vec![next] });
    }
    assert!(in_time(ring) > 0);

    let mut shared = Base::new();
    for _ in 0..MANY {
        shared.loose(NodeOp::If {
            condition,
            then_body: vec![NodeId::from_u32(0)],
            else_body: vec![NodeId::from_u32(MANY + 3)],
        });
    }
    assert!(in_time(shared) > 0);
}
