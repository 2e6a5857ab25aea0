//! The Rust API: what it builds, and what it reports.

#[path = "kernels/axpy.rs"]
mod kernels;

use kernels::axpy;
use stepgraph::Builder;
use stepgraph::builder::{IntoVal, Val, axis, uniform};
use stepgraph::handle::Tensor;
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

/// The errors of a program over an 8 × 8 matrix.
fn errors_of(fill: impl FnOnce(&mut Builder, Tensor<f32>)) -> Vec<ProgramError> {
    let mut p = Builder::new("demo");
    let x = p.state::<f32>("x", [8, 8], Init::Zeros);
    fill(&mut p, x);
    p.build().map_or_else(|errors| errors.0.into_iter().map(|found| found.error).collect(), |_| Vec::new())
}

/// Protects: a box never reaches past the tensor that it is taken from, although the buffer goes on there, and an axis that is
/// not there is no wish to be forgotten.
#[test]
fn boxes_stay_inside_their_tensors() {
    let wrong: [fn(Tensor<f32>) -> Tensor<f32>; 6] = [
        |x| x.rows(0..2).rows(1..3),
        |x| x.cols(4..6).cols(2..3),
        |x| x.slice(2, 0..1),
        |x| x.pick(0, 1).slice(1, 0..1),
        |x| x.pick(0, 1).pick(0, 1).pick(0, 0),
        |x| x.pick(0, u32::MAX),
    ];
    for (at, take) in wrong.into_iter().enumerate() {
        let errors = errors_of(|p, x| p.step("run", |s| s.phase("main", |f| f.fill("f", take(x), 0.0))));
        assert!(matches!(errors[..], [ProgramError::ViewOutOfBounds { .. }]), "{at}: {errors:?}");
        assert!(errors[0].to_string().contains("takes [outside] of `x`"), "{}", errors[0]);
    }
    let reversed = std::ops::Range { start: 5, end: 2 };
    let errors = errors_of(|p, x| p.step("run", |s| s.phase("main", |f| f.fill("f", x.rows(reversed), 0.0))));
    assert!(matches!(errors[..], [ProgramError::ViewOutOfBounds { .. }]), "{errors:?}");
    let right = errors_of(|p, x| p.step("run", |s| s.phase("main", |f| f.fill("f", x.rows(2..6).rows(3..4), 0.0))));
    assert_eq!(right, []);
}

/// Protects: a name that is not there is one error, whatever is done with what was asked for, in a program without buffers too.
#[test]
fn an_unknown_name_is_one_error() {
    let mut p = Builder::new("demo");
    let x = p.tensor::<f32>("nothing");
    p.tap(x);
    p.group("g", &[x]);
    p.group_like("h", x, Role::State);
    p.step("run", |s| {
        s.phase("main", |f| {
            let y = f.map("m", x + 1.0f32);
            f.gemm("g", x.nt(y)).done();
            f.copy("c", x, y);
        });
    });
    let errors = p.build().expect_err("there is no such buffer").0;
    assert!(
        matches!(&errors[..], [only] if matches!(&only.error, ProgramError::UnknownName { name, .. } if name == "nothing")),
        "{errors:#?}"
    );
}

/// Protects: an expression that a loop made too deep is an error of its node; building, printing and dropping it takes no stack.
#[test]
fn deep_expressions_are_errors() {
    let chain = |length: u32| (0..length).fold(1.0f32.into_val(), |sum: Val<f32>, _| sum + 1.0f32);
    let used = |value: Val<f32>| {
        errors_of(|p, _| {
            p.step("run", |s| {
                s.phase("main", |f| {
                    f.map_over("m", [4], value);
                })
            })
        })
    };
    assert_eq!(used(chain(1000)), []);
    for length in [1001, 1_000_000] {
        let errors = used(chain(length));
        assert!(matches!(errors[..], [ProgramError::ExprTooDeep { found, .. }] if found == length), "{errors:?}");
    }
    assert!(!format!("{:?}", chain(1_000_000)).is_empty());
    let nested = |length: u32| {
        errors_of(|p, x| {
            let index = (0..length).fold(0u32.into_val(), |at: Val<u32>, _| x.at([at.into(), axis(0)]).to_u32());
            p.step("run", |s| {
                s.phase("main", |f| {
                    f.map_over("m", [4], index.to_f32());
                })
            });
        })
    };
    assert!(matches!(nested(100_000)[..], [ProgramError::ExprTooDeep { .. }]));
}

/// Protects: tapping a group taps its members, and tapping what is kept anyway changes nothing.
#[test]
fn groups_are_tapped_whole() {
    let mut p = Builder::new("demo");
    let x = p.state::<f32>("x", [4], Init::Zeros);
    let (a, b) = (p.temp::<f32>("a", [4]), p.temp::<f32>("b", [4]));
    let both = p.group("both", &[a, b]);
    p.tap(both);
    p.tap(x);
    p.step("run", |s| {
        s.phase("main", |f| {
            f.copy("c", x, a);
            f.copy("d", a, b);
        });
    });
    let program = p.build().expect("valid");
    let tapped = program.program().buffers.values().map(|buffer| buffer.tap);
    assert_eq!(tapped.collect::<Vec<_>>(), [false, true, true]);
}
