use super::{Base, boxed, breaks, copy, fill, full, set_cell};
use crate::entity::{NodeId, PhaseId};
use crate::ir::{MAX_NESTING, MAX_VARIANTS, NodeOp, Phase, ProgramError, Step};

fn three() -> Base {
    Base::with([fill(full("h")), fill(full("y")), set_cell("n")])
}

fn after(base: &mut Base, node: u32, earlier: u32) {
    base.step().nodes[NodeId::from_u32(node)].after.push(NodeId::from_u32(earlier));
}

/// Protects: nothing is declared empty by mistake.
#[test]
fn empty_parts() {
    let mut phase = three();
    phase.step().phases.push(Phase { name: "second".into(), ..Phase::default() });
    breaks!(phase, Empty, "phase `second` is empty");
    let mut step = three();
    step.program.steps.push(Step { name: "act".into(), ..Step::default() });
    breaks!(step, Empty, "step `act` is empty");
    let mut variant = three();
    variant.step().variants = vec!["a".into(), "b".into()];
    variant.phase(0).variants = vec!["a".into()];
    breaks!(variant, Empty, "variant `b` of step `train` is empty");
    let on = Base::new().cell("on");
    let body = NodeOp::If { condition: on, then_body: vec![], else_body: vec![] };
    breaks!(Base::with([body]), Empty, "a body of `n0` is empty");
    breaks!(Base::with([NodeOp::Switch { selector: on, bodies: vec![] }]), Empty, "a body of `n0`");
}

/// Protects: phases belong to variants that exist, and variants fit in a set of bits.
#[test]
fn variants() {
    let mut unknown = three();
    unknown.step().variants = vec!["a".into()];
    unknown.phase(0).variants = vec!["a".into(), "c".into()];
    breaks!(unknown, UnknownVariant, "variant `c`, which step `train` does not declare");
    let many = |count: usize| {
        let mut base = three();
        base.step().variants = (0..count).map(|at| format!("v{at}")).collect();
        base
    };
    many(MAX_VARIANTS).keeps_every_rule();
    breaks!(many(MAX_VARIANTS + 1), TooManyVariants, "65 variants");
}

/// Protects: every node runs at one point of the program.
#[test]
fn nodes_in_one_place() {
    let mut nowhere = three();
    nowhere.loose(set_cell("f"));
    breaks!(nowhere, NodePlacement, "node `n3` is in 0 phases");
    let mut twice = three();
    twice.phase(0).nodes.push(NodeId::from_u32(1));
    breaks!(twice, NodePlacement, "node `n1` is in 2 phases");
}

/// Protects: a body cannot hold its own node, through however many others.
#[test]
fn bodies_inside_themselves() {
    let on = Base::new().cell("on");
    let holder = |inner: u32| NodeOp::If { condition: on, then_body: vec![NodeId::from_u32(inner)], else_body: vec![] };
    let mut own = three();
    own.loose(holder(3));
    breaks!(own, RecursiveBody, "`n3` is inside a body of its own");
    let mut pair = three();
    pair.loose(holder(4));
    pair.loose(holder(3));
    assert!(matches!(&pair.errors()[..], [ProgramError::RecursiveBody { .. }, ProgramError::RecursiveBody { .. }]));
    let mut below = three();
    let orphan = below.loose(set_cell("f"));
    let holder_of_orphan = below.loose(holder(orphan.as_u32()));
    below.loose(holder(holder_of_orphan.as_u32()));
    breaks!(below, NodePlacement, "node `n5` is in 0 phases");
}

/// Protects: later stages can walk bodies by recursion.
#[test]
fn conditionals_in_conditionals() {
    let nested = |depth: usize| {
        let mut base = Base::new();
        let condition = base.cell("on");
        let mut node = base.loose(set_cell("n"));
        for _ in 0..depth {
            node = base.loose(NodeOp::If { condition, then_body: vec![node], else_body: vec![] });
        }
        base.phase(0).nodes.push(node);
        base
    };
    nested(MAX_NESTING).keeps_every_rule();
    breaks!(nested(MAX_NESTING + 1), NestingTooDeep, "33 conditionals deep");
    let mut guarded = nested(MAX_NESTING);
    guarded.phase(0).guard = Some(Base::new().cell("on"));
    breaks!(guarded, NestingTooDeep, "33 conditionals deep");
}

/// Protects: `after` points back, inside one list.
#[test]
fn after_points_back() {
    let mut back = three();
    after(&mut back, 2, 0);
    back.keeps_every_rule();
    let mut forward = three();
    after(&mut forward, 0, 2);
    breaks!(forward, Cycle, "n0 → n2 → n0");
    let mut own = three();
    after(&mut own, 1, 1);
    breaks!(own, Cycle, "n1 → n1");
    let mut elsewhere = three();
    let node = elsewhere.loose(set_cell("f"));
    elsewhere.step().phases.push(Phase { name: "second".into(), nodes: vec![node], ..Phase::default() });
    after(&mut elsewhere, 3, 0);
    breaks!(elsewhere, BadAfter, "`n3` is `after` `n0`");
    let mut into_body = three();
    let inner = into_body.loose(set_cell("f"));
    let condition = into_body.cell("on");
    let holder = into_body.add(NodeOp::If { condition, then_body: vec![inner], else_body: vec![] });
    after(&mut into_body, holder.as_u32(), inner.as_u32());
    breaks!(into_body, BadAfter, "`n4` is `after` `n3`");
}

/// Protects: what decides is an integer.
#[test]
fn conditions_are_u32() {
    let mut base = Base::new();
    let (lr, inner) = (base.cell("lr"), base.loose(set_cell("n")));
    base.add(NodeOp::If { condition: lr, then_body: vec![inner], else_body: vec![] });
    breaks!(base, ConditionType, "condition `lr` is f32");
    let mut base = Base::new();
    let inner = base.loose(set_cell("n"));
    base.add(NodeOp::Switch { selector: lr, bodies: vec![vec![inner]] });
    breaks!(base, ConditionType, "selector `lr` is f32");
    let mut guard = three();
    guard.phase(0).guard = Some(lr);
    breaks!(guard, ConditionType, "node `main`: the guard `lr` is f32");
}

/// Protects: everything wrong is said at once, in program order.
#[test]
fn errors_come_together_in_order() {
    let mut base = Base::with([copy(full("s"), full("x")), set_cell("on"), fill(boxed("s", &[(0, 9), (0, 8)]))]);
    base.program.buffers[crate::entity::BufferId::from_u32(5)].name = "no name".into();
    base.step().phases[PhaseId::from_u32(0)].guard = Some(Base::new().cell("lr"));
    let names = base.errors();
    let kinds: Vec<_> = names.iter().map(|error| format!("{error:?}")).collect();
    let kinds: Vec<_> = kinds.iter().map(|text| text.split(' ').next().unwrap_or_default()).collect();
    assert_eq!(kinds, ["BadName", "ConditionType", "WritesInput", "WritesHostScalar", "ViewOutOfBounds"]);
}
