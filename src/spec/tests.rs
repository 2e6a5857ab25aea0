//! Tests of what a spec means; the grammar's errors are tested by `tests/invalid_specs.rs`.

use super::{ParsedSpec, SpecOptions, parse};
use crate::entity::EntityRef;
use crate::ir::{Arg, BinaryOp, ConstValue, ExprOp, IndexTerm, Init, NodeOp, Role};
use crate::spec::SpecErrors;

fn read(body: &str) -> Result<ParsedSpec, SpecErrors> {
    parse(&format!("program = \"t\"\n{body}"), &SpecOptions::default())
}

/// The operations of the map of this name.
fn ops(spec: &ParsedSpec, node: &str) -> Vec<ExprOp> {
    let step = spec.program.steps.values().next().expect("a step");
    let node = step.nodes.values().find(|found| found.name == node).expect("the node");
    match &node.op {
        NodeOp::Map(map) => map.expr.ops().values().cloned().collect(),
        other => panic!("a {}", other.kind()),
    }
}

/// Protects: buffers keep the order of their text, nested tables give dotted names, and arithmetic uses dimensions.
#[test]
fn declarations_keep_their_order() -> Result<(), SpecErrors> {
    let spec = read(
        "dims = { B = 4, V = 3 }
         [param]
         heads = { z = [\"4*V\", 2], a = { shape = [\"(B + 2) / 3\"], init = { normal = 0.5 } } }
         [input]
         x = { shape = [\"B\"], type = \"i32\" }
         [param.late]
         w = [1]",
    )?;
    let named: Vec<_> = spec.program.buffers.values().map(|buffer| (&*buffer.name, buffer.role)).collect();
    assert_eq!(
        named,
        [("heads.z", Role::Param), ("heads.a", Role::Param), ("late.w", Role::Param), ("x", Role::Input)]
    );
    let a = &spec.program.buffers[crate::entity::BufferId::new(1)];
    assert_eq!((a.shape.dims(), a.init), (&[2][..], Init::Normal { std: 0.5 }));
    Ok(())
}

/// Protects: the precedence that docs promise, and that a minus before a literal is part of it.
#[test]
fn operators_bind_as_documented() -> Result<(), SpecErrors> {
    let spec = read(
        "[input]
         x = [4]
         [s.p]
         a = { map = \"x - 2 * x < -1 && x > 0\" }
         b = { map = \"(x - 2.0 * x < -1.0) && (0.0 < x)\" }
         c = { map = \"x - x - x\" }
         d = { map = \"(x - x) - x\" }",
    )?;
    assert!(ops(&spec, "a").contains(&ExprOp::Const(ConstValue::F32(-1.0))));
    assert_eq!(ops(&spec, "a").len(), ops(&spec, "b").len());
    assert_eq!(ops(&spec, "c"), ops(&spec, "d"));
    Ok(())
}

/// Protects: the difference between slices, which are views, and indices, which are computed.
#[test]
fn slices_are_views_and_values_are_indices() -> Result<(), SpecErrors> {
    let spec = read(
        "dims = { K = 2 }
         [input]
         w = [6, 4]
         idx = { shape = [3], type = \"i32\" }
         [s.p]
         row = { map = \"w[K]\" }
         box = { map = \"w[1:1+K, :]\" }
         pick = { map = \"w[1:5, :][idx[i0], i1] + w[2, (i1)]\", over = [3, 4] }",
    )?;
    let views = |node| {
        let mut found = Vec::new();
        for op in ops(&spec, node) {
            if let ExprOp::Load { view, index } = op {
                found.push((view.shape().dims().to_vec(), index));
            }
        }
        found
    };
    assert_eq!(views("row"), [(vec![4], vec![IndexTerm::Axis(0)])]);
    assert_eq!(views("box"), [(vec![2, 4], vec![IndexTerm::Axis(0), IndexTerm::Axis(1)])]);
    let pick = views("pick");
    assert_eq!(pick[1].0, [4, 4]);
    assert!(matches!(pick[1].1[..], [IndexTerm::Value(_), IndexTerm::Axis(1)]));
    assert!(matches!(pick[2].1[..], [IndexTerm::Fixed(2), IndexTerm::Value(_)]));
    Ok(())
}

/// Protects: `=name` declares an output with the shape that the kernel's declaration gives it, and a group is one flat array.
#[test]
fn kernel_outputs_take_their_shapes_from_the_declaration() -> Result<(), SpecErrors> {
    let spec = read(
        "[input]
         logits = [8, 10]
         labels = { shape = [8], type = \"i32\" }
         [s.p]
         loss = { kernel = \"softmax_xent\", logits = \"logits\", labels = \"labels\", loss = \"=rows\", dlogits = \"=dl\" }",
    );
    let spec = spec?;
    let shape = |name| spec.program.buffer(name).map(|id| spec.program.buffers[id].shape.dims().to_vec());
    assert_eq!(shape("rows"), Some(vec![8]));
    assert_eq!(shape("dl"), Some(vec![8, 10]));
    let step = spec.program.steps.values().next().expect("a step");
    let NodeOp::Kernel(call) = &step.nodes[crate::entity::NodeId::new(0)].op else { panic!("no call") };
    assert!(call.args.iter().all(|arg| matches!(arg, Arg::View(_))));
    Ok(())
}

/// Protects: one name may stand for phases of different variants, interleaved with others, in the order of the text.
#[test]
fn phases_of_variants_share_a_name() -> Result<(), SpecErrors> {
    let spec = read(
        "[input]
         x = [4]
         [train]
         variants = [\"a\", \"b\"]
         [[train.forward]]
         variants = [\"a\"]
         y = { map = \"x * 2\" }
         [train.middle]
         z = { map = \"y\" }
         [[train.forward]]
         variants = [\"b\"]
         y2 = { map = \"x\" }",
    )?;
    let step = spec.program.steps.values().next().expect("a step");
    let phases: Vec<_> = step.phases.values().map(|phase| (&*phase.name, phase.variants.join(","))).collect();
    assert_eq!(phases, [("forward", "a".into()), ("middle", String::new()), ("forward", "b".into())]);
    Ok(())
}

/// Protects: shared values are computed once, however they are written.
#[test]
fn let_names_a_value() -> Result<(), SpecErrors> {
    let spec = read(
        "[input]
         x = [4]
         [s.p]
         a = { map = \"let d = x * x; d + d\" }
         b = { map = \"x * x + x * x\" }",
    )?;
    assert_eq!(ops(&spec, "a"), ops(&spec, "b"));
    assert!(matches!(ops(&spec, "a")[..], [_, ExprOp::Binary(BinaryOp::Mul, ..), ExprOp::Binary(BinaryOp::Add, ..)]));
    Ok(())
}

/// Protects: an unknown name of a megabyte is an error at once: nobody compares it with names that are there.
#[test]
fn long_names_are_not_compared() {
    let long = "y".repeat(1_000_000);
    let errors = read(&format!("[input]\n{long} = [4]\n[s.p]\na = {{ map = \"{long}x\" }}")).expect_err("unknown");
    assert!(errors.to_string().contains("there is no buffer or scalar"), "{}", &errors.to_string()[..200]);
}
