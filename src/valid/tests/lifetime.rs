use super::{Base, boxed, breaks, copy, fill, full, shape};
use crate::entity::NodeId;
use crate::ir::{
    ConstValue, DType, ExprBuilder, ExprOp, IndexTerm, Map, NodeOp, Phase, Role, Scatter, ScatterRule, Store, Target,
    View,
};

/// Protects: nothing is read that the last launch left behind.
#[test]
fn reads_before_writes() {
    breaks!(Base::with([copy(full("h"), full("s")), fill(full("h"))]), ReadBeforeWrite, "`n0` reads `h`");
    breaks!(Base::with([copy(full("y"), full("s")), fill(full("y"))]), ReadBeforeWrite, "`y`");
    breaks!(Base::with([copy(full("h"), full("s"))]), NeverWritten, "`h` is never written in step `train`");
    Base::with([fill(full("h")), copy(full("h"), full("s"))]).keeps_every_rule();
}

/// Protects: boxes count one by one, and together they can be the whole.
#[test]
fn boxes_add_up() {
    let columns = |start, len| fill(boxed("h", &[(0, 4), (start, len)]));
    Base::with([columns(0, 3), columns(3, 5), copy(full("h"), full("s"))]).keeps_every_rule();
    breaks!(Base::with([columns(0, 3), columns(4, 4), copy(full("h"), full("s"))]), ReadBeforeWrite, "`h`");
    let (left, right) = (boxed("h", &[(0, 4), (0, 3)]), boxed("s", &[(0, 4), (0, 3)]));
    Base::with([columns(0, 3), copy(left, right)]).keeps_every_rule();
}

/// Protects: an output that nobody fills, such as one whose writer is misspelt and makes a temp, does not read as zeros. Any
/// step and variant may fill it; where a node is wrong, what it would write counts.
#[test]
fn outputs_have_a_writer() {
    let with_output = |op: NodeOp| {
        let mut base = Base::with([op]);
        base.buffer("z", Role::Output, DType::F32, &[4, 8]);
        base
    };
    breaks!(with_output(fill(full("s"))), UnwrittenOutput, "no node writes the output `z`");
    let whole = |base: &Base| View::full(base.id("z"), &shape(&[4, 8]));
    let mut in_a_variant = with_output(fill(full("s")));
    let write = in_a_variant.loose(fill(whole(&in_a_variant)));
    in_a_variant.step().variants = vec!["a".into(), "b".into()];
    let phase = Phase { name: "late".into(), nodes: vec![write], variants: vec!["b".into()], ..Phase::default() };
    in_a_variant.step().phases.push(phase);
    in_a_variant.keeps_every_rule();
    let mut wrong = with_output(fill(full("s")));
    let op = NodeOp::Fill { to: whole(&wrong), value: ConstValue::U32(0) };
    wrong.add(op);
    breaks!(wrong, TypeMismatch, "`n1`");
}

fn scatter_into(name: &str) -> NodeOp {
    let mut builder = ExprBuilder::new();
    let values = [builder.push(ExprOp::Const(ConstValue::F32(1.0))), builder.push(ExprOp::Index(0))];
    let expr = builder.finish(&values);
    let index = vec![IndexTerm::Value(expr.roots()[1]), IndexTerm::Axis(1)];
    let scatter = Some(Scatter { index, rule: Some(ScatterRule::Unique) });
    let stores = vec![Store { target: Target::View(full(name)), scatter }];
    NodeOp::Map(Map { space: shape(&[4, 8]), expr, stores })
}

/// Protects: an accumulator is cleared before something is added; a scattered store keeps what it does not hit.
#[test]
fn updates_before_writes() {
    breaks!(Base::with([scatter_into("h")]), UpdateBeforeWrite, "updates `h`");
    breaks!(Base::with([scatter_into("y")]), UpdateBeforeWrite, "updates `y`");
    Base::with([fill(full("h")), scatter_into("h")]).keeps_every_rule();
    Base::with([scatter_into("s")]).keeps_every_rule();
}

fn conditional(body: Vec<NodeId>, else_body: Vec<NodeId>) -> NodeOp {
    NodeOp::If { condition: Base::new().cell("on"), then_body: body, else_body }
}

/// Protects: a body may not run, so that what it writes counts only inside; what stood before counts in it too.
#[test]
fn bodies_may_not_run() {
    let mut inside = Base::new();
    let body = vec![inside.loose(fill(full("h"))), inside.loose(copy(full("h"), full("s")))];
    inside.add(conditional(body, vec![]));
    inside.keeps_every_rule();

    let mut behind = Base::new();
    let bodies = [behind.loose(fill(full("h"))), behind.loose(fill(full("h")))];
    behind.add(conditional(vec![bodies[0]], vec![bodies[1]]));
    behind.add(copy(full("h"), full("s")));
    breaks!(behind, ReadBeforeWrite, "`h`");

    let mut other_branch = Base::new();
    let bodies = [other_branch.loose(fill(full("h"))), other_branch.loose(copy(full("h"), full("s")))];
    other_branch.add(conditional(vec![bodies[0]], vec![bodies[1]]));
    breaks!(
        other_branch,
        ReadBeforeWrite,
        "`h`, which may hold nothing yet in this launch: write all of it first (what a branch,"
    );

    let mut before = Base::with([fill(full("h"))]);
    let body = vec![before.loose(copy(full("h"), full("s"))), before.loose(fill(boxed("h", &[(0, 1), (0, 8)])))];
    before.add(conditional(body, vec![]));
    before.add(copy(full("h"), full("s")));
    before.keeps_every_rule();
}

/// Protects: the first iteration of a loop finds nothing of a later one.
#[test]
fn loops_run_in_order() {
    let mut base = Base::new();
    let body = vec![base.loose(copy(full("h"), full("s"))), base.loose(fill(full("h")))];
    base.add(NodeOp::While { max: crate::ir::LoopBound::Const(3), index: None, until: None, body });
    breaks!(base, ReadBeforeWrite, "`h`");
}

/// Protects: a guarded phase may not run either.
#[test]
fn guarded_phases_may_not_run() {
    let two_phases = |guarded: bool| {
        let mut base = Base::with([fill(full("h"))]);
        let read = base.loose(copy(full("h"), full("s")));
        base.step().phases.push(Phase { name: "second".into(), nodes: vec![read], ..Phase::default() });
        let on = base.cell("on");
        base.phase(0).guard = guarded.then_some(on);
        base
    };
    two_phases(false).keeps_every_rule();
    breaks!(two_phases(true), ReadBeforeWrite, "`h`");
}

/// Protects: each variant stands for itself.
#[test]
fn variants_stand_for_themselves() {
    let base = |readers: &[&str]| {
        let mut base = Base::with([fill(full("h"))]);
        base.step().variants = vec!["a".into(), "b".into()];
        base.phase(0).variants = vec!["a".into()];
        let read = base.loose(copy(full("h"), full("s")));
        let variants = readers.iter().map(|&name| name.into()).collect();
        base.step().phases.push(Phase { name: "second".into(), nodes: vec![read], variants, guard: None });
        base
    };
    let other = |readers: &[&str]| {
        let mut base = base(readers);
        let node = base.loose(fill(full("y")));
        let variants = vec!["b".into()];
        base.step().phases.push(Phase { name: "third".into(), nodes: vec![node], variants, guard: None });
        base
    };
    other(&["a"]).keeps_every_rule();
    breaks!(base(&["a", "b"]), ReadBeforeWrite, "`h`");
    breaks!(base(&[]), ReadBeforeWrite, "`h`");
}

/// Protects: a node with an error of its own does not make the nodes behind it look wrong.
#[test]
fn broken_writers_count_as_writers() {
    let wrong = NodeOp::Fill { to: full("h"), value: ConstValue::U32(0) };
    breaks!(Base::with([wrong, copy(full("h"), full("s"))]), TypeMismatch, "the value is u32");
}
