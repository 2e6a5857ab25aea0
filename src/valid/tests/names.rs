use super::{Base, breaks, fill, full, set_cell};
use crate::entity::{BufferId, GroupId, ScalarId};
use crate::ir::{Group, ProgramError};

fn base() -> Base {
    Base::with([fill(full("h"))])
}

/// Protects: names can be written in specs and dumps.
#[test]
fn ill_formed_names() {
    for name in ["", "1x", "a b", "a..b", ".a", "a.", "ünder", "a-b", "x'"] {
        let mut base = base();
        base.program.buffers[BufferId::from_u32(1)].name = name.into();
        breaks!(base, BadName, "is not a name");
    }
    for name in ["a.b.c", "_x1", "h0.mm"] {
        let mut base = base();
        base.program.buffers[BufferId::from_u32(1)].name = name.into();
        base.keeps_every_rule();
    }
    let mut step = base();
    step.step().name = "no good".into();
    breaks!(step, BadName, "no good");
    let mut node = base();
    node.step().nodes[crate::entity::NodeId::from_u32(0)].name = "µ".into();
    breaks!(node, BadName, "µ");
}

/// Protects: buffers, groups and scalars share one space of names; steps, variants and kernels have their own.
#[test]
fn taken_names() {
    let mut scalar = base();
    scalar.program.scalars[ScalarId::from_u32(0)].name = "x".into();
    breaks!(scalar, DuplicateName, "scalar name `x` is taken");
    let mut group = base();
    let member = group.id("w");
    group.program.groups.push(Group { name: "h".into(), members: vec![member] });
    breaks!(group, DuplicateName, "group name `h` is taken");
    let mut step = base();
    let copy = step.step().clone();
    step.program.steps.push(copy);
    breaks!(step, DuplicateName, "step name `train` is taken");
    let mut variant = base();
    variant.step().variants = vec!["a".into(), "a".into()];
    assert!(variant.errors().iter().any(|error| error.to_string().contains("variant name `a` is taken")));
}

/// Protects: nodes and phases may share a name exactly where no variant has both.
#[test]
fn names_are_unique_per_variant() {
    let two_phases = |first: &[&str], second: &[&str]| {
        let mut base = base();
        base.step().variants = vec!["a".into(), "b".into()];
        base.phase(0).variants = first.iter().map(|&name| name.into()).collect();
        let node = base.loose(fill(full("y")));
        base.step().nodes[node].name = "n0".into();
        let phase = crate::ir::Phase {
            name: "main".into(),
            variants: second.iter().map(|&name| name.into()).collect(),
            guard: None,
            nodes: vec![node],
        };
        base.step().phases.push(phase);
        base
    };
    two_phases(&["a"], &["b"]).keeps_every_rule();
    let errors = two_phases(&["a"], &[]).errors();
    let kinds = errors.iter().map(|error| match error {
        ProgramError::DuplicateName { kind, .. } => *kind,
        other => panic!("{other}"),
    });
    assert_eq!(kinds.collect::<Vec<_>>(), ["phase", "node"]);
}

/// Protects: an id that names nothing is an error wherever it stands.
#[test]
fn ids_that_name_nothing() {
    let mut buffer = full("h");
    buffer.buffer = BufferId::from_u32(99);
    breaks!(Base::with([fill(buffer)]), UnknownName, "no buffer `buffer99`");
    let mut after = Base::with([fill(full("h")), set_cell("n")]);
    after.step().nodes[crate::entity::NodeId::from_u32(1)].after.push(crate::entity::NodeId::from_u32(7));
    breaks!(after, UnknownName, "no node `node7`");
    let mut listed = base();
    listed.phase(0).nodes.push(crate::entity::NodeId::from_u32(8));
    breaks!(listed, UnknownName, "no node `node8`");
    let mut guard = base();
    guard.phase(0).guard = Some(ScalarId::from_u32(50));
    breaks!(guard, UnknownName, "no scalar `scalar50`");
    let mut member = base();
    member.program.groups.push(Group { name: "g".into(), members: vec![BufferId::from_u32(70)] });
    breaks!(member, BadGroup, "is not declared");
    let mut group = base();
    let kernel = super::kernels::declare(&mut group);
    let args = vec![
        crate::ir::Arg::Group(GroupId::from_u32(5)),
        crate::ir::Arg::View(full("w")),
        crate::ir::Arg::Scalar(group.cell("lr")),
        crate::ir::Arg::Const(crate::ir::ConstValue::U32(1)),
    ];
    group.add(crate::ir::NodeOp::Kernel(crate::ir::KernelCall { kernel, args }));
    breaks!(group, UnknownName, "no group `group5`");
}
