//! The Rust API: what it builds, and what it reports.

#[path = "kernels/axpy.rs"]
mod kernels;

use kernels::axpy;
use stepgraph::Builder;
use stepgraph::builder::{Val, axis, uniform};
use stepgraph::ir::{ExprOp, IndexTerm, Init, NodeOp, Origin, ProgramError, Role, ScatterRule};

/// Protects: every mistake is reported in one go, each with the line that made it.
#[test]
fn all_errors_come_at_once_with_their_lines() {
    let mut other = Builder::new("other");
    let foreign = other.input::<f32>("x", [4]);
    let foreign_scalar = other.host_scalar("a", 1.0f32);

    let mut p = Builder::new("demo");
    let x = p.input::<f32>("x", [4]);
    let matrix = p.input::<f32>("m", [3, 5]);
    let y = p.state::<f32>("y", [4], Init::Zeros);
    let first_line = line!() + 3;
    p.step("run", |s| {
        s.phase("main", |f| {
            f.kernel("axpy", axpy::Args { x: foreign, y, a: foreign_scalar });
            f.map("sum", x + foreign);
            f.map("stretched", x * matrix);
            f.after("nobody", &["axpy"]);
        });
    });
    let errors = p.build().expect_err("four lines are wrong").0;
    let lines: Vec<_> = errors
        .iter()
        .map(|diagnostic| match diagnostic.origin {
            Origin::Code(location) => location.line() - first_line,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lines, [0, 0, 1, 2, 3], "{errors:#?}");
    assert!(matches!(errors[0].error, ProgramError::ForeignHandle { .. }));
    assert!(matches!(errors[3].error, ProgramError::ShapeMismatch { .. }));
    assert!(matches!(errors[4].error, ProgramError::UnknownName { .. }));
}

/// Protects: broadcasting is NumPy's: right-aligned, extents of 1 stretch, and a view's dropped axes do not count.
#[test]
fn tensors_broadcast_like_numpy() {
    let mut p = Builder::new("demo");
    let x = p.input::<f32>("x", [2, 3, 4]);
    let column = p.input::<f32>("column", [3, 1]);
    let row = p.input::<f32>("row", [5, 4]);
    p.step("run", |s| s.phase("main", |f| f.map("h", x + column * row.pick(0, 2))));
    let program = p.build().expect("valid");
    let step = &program.program().steps.values().next().expect("one step");
    let NodeOp::Map(map) = &step.nodes.values().next().expect("one node").op else { panic!("a map") };
    assert_eq!(map.space.dims(), [2, 3, 4]);
    let loads: Vec<_> = map
        .expr
        .ops()
        .values()
        .filter_map(|op| match op {
            ExprOp::Load { index, .. } => Some(index.clone()),
            _ => None,
        })
        .collect();
    let (a, fixed) = (IndexTerm::Axis, IndexTerm::Fixed);
    assert_eq!(loads, [vec![a(0), a(1), a(2)], vec![a(1), fixed(0)], vec![a(2)]]);
}

/// Protects: a gather's index, a scatter's place and a random draw become part of one expression, with the scatter's
/// place as a further root.
#[test]
fn gathers_scatters_and_draws_are_expressions() {
    let mut p = Builder::new("demo");
    let seed = p.host_scalar("seed", 7u32);
    let t = p.device_scalar("t", 0u32);
    let table = p.state::<f32>("table", [10, 4], Init::Zeros);
    p.step("run", |s| {
        s.phase("main", |f| {
            let rows = f.map_over("rows", [6], (uniform(seed, t, 0) * 10.0f32).to_u32());
            let picked = f.map_over("picked", [6, 4], table.at([rows.at([axis(0)]).into(), axis(1)]));
            f.map_node("back")
                .over([6, 4])
                .scatter(table, [rows.at([axis(0)]).into(), axis(1)], ScatterRule::SameValue, picked * 0.5f32)
                .done();
            f.set("tick", t, t + 1u32);
        });
    });
    let program = p.build().expect("valid");
    let step = program.program().steps.values().next().expect("one step");
    let back = step.nodes.values().find(|node| node.name == "back").expect("there");
    let NodeOp::Map(map) = &back.op else { panic!("a map") };
    assert_eq!((map.stores.len(), map.expr.roots().len()), (1, 2));
    let scatter = map.stores[0].scatter.as_ref().expect("scattered");
    assert_eq!(scatter.index, [IndexTerm::Value(map.expr.roots()[1]), IndexTerm::Axis(1)]);
}

/// Protects: steps and variants can name their temporaries alike and then share them; another shape under a taken name is
/// an error.
#[test]
fn temporaries_of_one_name_are_shared() {
    let mut p = Builder::new("demo");
    let x = p.input::<f32>("x", [4]);
    let wide = p.input::<f32>("wide", [2, 4]);
    for step in ["train", "evaluate"] {
        p.step(step, |s| s.phase("main", |f| f.map("h", x * 2.0f32)));
    }
    let (program, ..) = p.into_parts();
    assert_eq!(program.buffers_of(Role::Temp).count(), 1);

    let mut p = Builder::new("demo");
    let x = p.input::<f32>("x", [4]);
    let other = p.input::<f32>("other", [2, 4]);
    p.step("train", |s| s.phase("main", |f| f.map("h", x * 2.0f32)));
    p.step("evaluate", |s| s.phase("main", |f| f.map("h", other * 2.0f32)));
    let errors = p.build().expect_err("two shapes").0;
    assert!(matches!(&errors[0].error, ProgramError::DuplicateName { name, .. } if name == "h"), "{errors:#?}");
    let _ = wide;
}

/// Protects: a declaration of a kernel carries its source, its shapes and its host function.
#[test]
fn a_kernel_declaration_carries_everything() {
    use stepgraph::ir::{Dim, LaunchRule, ParamClass};
    use stepgraph::kernel::{HostArg, HostArgs, KernelArgs};

    let def = axpy::Args::def();
    let classes: Vec<_> = def.decl.params.iter().map(|param| param.class.clone()).collect();
    assert_eq!(classes, [ParamClass::In, ParamClass::InOut, ParamClass::Scalar, ParamClass::Size]);
    assert_eq!(def.decl.params[0].shape, Some(vec![Dim::Symbol("n".into())]));
    assert_eq!(def.decl.launch, LaunchRule::Elements { of: "x".into(), block: 256, per_thread: 1 });
    assert!(def.decl.source.text.contains("axpy"));

    let (x, mut y) = ([1.0f32, 2.0], [10.0f32, 20.0]);
    let args = vec![
        HostArg::In(bytemuck::cast_slice(&x)),
        HostArg::Out(bytemuck::cast_slice_mut(&mut y)),
        HostArg::Scalar(3.0f32.to_bits()),
        HostArg::Size(2),
    ];
    (def.host.expect("declared").0)(&mut HostArgs::new(args));
    assert_eq!(y, [13.0, 26.0]);
}

/// Protects: an expression that uses one value twice stores it once.
#[test]
fn shared_values_are_lowered_once() {
    let mut p = Builder::new("demo");
    let x = p.input::<f32>("x", [4]);
    p.step("run", |s| {
        s.phase("main", |f| {
            let square: Val<f32> = x * x;
            f.map("h", &square + &square)
        })
    });
    let program = p.build().expect("valid");
    let step = program.program().steps.values().next().expect("one step");
    let NodeOp::Map(map) = &step.nodes.values().next().expect("one node").op else { panic!("a map") };
    assert_eq!(map.expr.ops().len(), 3);
}
