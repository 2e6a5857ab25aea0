use super::{Base, breaks, set_cell};
use crate::entity::NodeId;
use crate::ir::{ConstValue, LoopBound, NodeOp, Phase, Scalar, Writer};

/// Protects: a scalar has one writing node in each variant.
#[test]
fn two_writers() {
    breaks!(Base::with([set_cell("n"), set_cell("n")]), TwoWriters, "written by both `n0` and `n1`");
    let in_variants = |second: &str| {
        let mut base = Base::with([set_cell("n")]);
        base.step().variants = vec!["a".into(), "b".into()];
        base.phase(0).variants = vec!["a".into()];
        let node = base.loose(set_cell("n"));
        let nodes = vec![node];
        base.step().phases.push(Phase { name: "second".into(), variants: vec![second.into()], guard: None, nodes });
        base
    };
    in_variants("b").keeps_every_rule();
    assert!(in_variants("a").errors().iter().any(|error| error.to_string().contains("one writer in a step")));
    let mut branches = Base::new();
    let bodies = [branches.loose(set_cell("n")), branches.loose(set_cell("n"))];
    let condition = branches.cell("on");
    branches.add(NodeOp::If { condition, then_body: vec![bodies[0]], else_body: vec![bodies[1]] });
    breaks!(branches, TwoWriters, "scalar `n`");
}

/// A base with a loop; its body sets `flag` once, or more often.
fn repeat(body: &[&str], change: impl FnOnce(&mut Base, &mut NodeOp)) -> Base {
    let mut base = Base::new();
    for name in ["flag", "i"] {
        base.program.scalars.push(Scalar { name: name.into(), writer: Writer::Device, init: ConstValue::U32(0) });
    }
    let body: Vec<NodeId> = body
        .iter()
        .map(|name| {
            let cell = base.cell(name);
            base.loose(super::set(cell, ConstValue::U32(1)))
        })
        .collect();
    let until = Some(base.cell("flag"));
    let mut op = NodeOp::While { max: LoopBound::Const(4), index: Some(base.cell("i")), until, body };
    change(&mut base, &mut op);
    base.add(op);
    base
}

/// Protects: only the loop and one node of its body write the loop's cells.
#[test]
fn cells_of_loops() {
    repeat(&["flag"], |_, _| {}).keeps_every_rule();
    breaks!(repeat(&["n"], |_, _| {}), BadLoop, "nothing in its body writes its until cell `flag`");
    breaks!(repeat(&["flag", "flag"], |_, _| {}), TwoWriters, "`flag`");
    breaks!(repeat(&["flag", "i"], |_, _| {}), TwoWriters, "`i`");
    let mut behind = repeat(&["flag"], |_, _| {});
    let flag = behind.cell("flag");
    behind.add(super::set(flag, ConstValue::U32(0)));
    breaks!(behind, TwoWriters, "`flag`");
    let mut before = Base::new();
    before.program.scalars.push(Scalar { name: "i".into(), writer: Writer::Device, init: ConstValue::U32(0) });
    let i = before.cell("i");
    before.add(super::set(i, ConstValue::U32(0)));
    let body = vec![before.loose(set_cell("n"))];
    before.add(NodeOp::While { max: LoopBound::Const(1), index: Some(i), until: None, body });
    breaks!(before, TwoWriters, "`i`");
}

/// Protects: a loop ends: its bound is at least 1 and stays what it is while the loop runs.
#[test]
fn bounds_of_loops() {
    let bound = |bound: fn(&Base) -> LoopBound| {
        repeat(&["flag", "n"], |base, op| {
            let NodeOp::While { max, .. } = op else { return };
            *max = bound(base);
        })
    };
    bound(|base| LoopBound::Scalar(base.cell("on"))).keeps_every_rule();
    breaks!(bound(|_| LoopBound::Const(0)), BadLoop, "at least 1");
    breaks!(bound(|base| LoopBound::Scalar(base.cell("n"))), BadLoop, "in its body writes the bound `n`");
    breaks!(bound(|base| LoopBound::Scalar(base.cell("flag"))), BadLoop, "must be different cells");
    breaks!(bound(|base| LoopBound::Scalar(base.cell("lr"))), ConditionType, "max `lr` is f32");
    let of_host = repeat(&["flag"], |base, op| {
        let NodeOp::While { index, .. } = op else { return };
        *index = Some(base.cell("on"));
    });
    breaks!(of_host, BadLoop, "the loop writes its index `on`");
}
