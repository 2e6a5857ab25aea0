//! The text of generated kernels, and how their parameters and launches are described.

use std::collections::HashSet;

use stepgraph::Builder;
use stepgraph::builder::{Bound, axis, uniform};
use stepgraph::codegen::{GeneratedKernel, Generator, ParamSource};
use stepgraph::ir::{Init, ScatterRule};
use stepgraph::valid::ValidProgram;

/// The kernels of a program's only step, in node order.
fn kernels(program: &ValidProgram) -> Vec<GeneratedKernel> {
    let (id, step) = program.program().steps.iter().next().expect("one step");
    let generator = Generator::new(program, id);
    step.nodes.keys().flat_map(|node| generator.kernels(node)).collect()
}

/// Sources with their launches and parameters, as snapshots show them.
fn text(program: &ValidProgram) -> String {
    let show = |kernel: GeneratedKernel| {
        let params: Vec<_> = kernel
            .params
            .iter()
            .map(|param| match param {
                ParamSource::Buffer(buffer) => program.program().buffers[*buffer].name.clone(),
                ParamSource::Scalar(scalar) => program.program().scalars[*scalar].name.clone(),
                other => format!("{other:?}"),
            })
            .collect();
        format!("{}// {} ({})\n", kernel.source, kernel.launch, params.join(", "))
    };
    kernels(program).into_iter().map(show).collect::<Vec<_>>().join("\n")
}

/// Protects: the generated text is readable and stable: one line per operation, the user's names, 32-bit indices.
#[test]
fn maps() {
    let mut p = Builder::new("demo");
    let seed = p.host_scalar("seed", 7u32);
    let t = p.device_scalar("t", 0u32);
    let x = p.input::<f32>("x", [64, 32]);
    let bias = p.param::<f32>("trunk.b", [32], Init::Zeros);
    let half = p.state::<half::bf16>("half", [64, 32], Init::Zeros);
    let rows = p.input::<u32>("rows", [64]);
    let table = p.state::<f32>("table", [100, 32], Init::Zeros);
    p.step("train", |s| {
        s.phase("forward", |f| {
            let h = f.map("h", (x + bias).relu());
            f.map_to("narrow", half, h * uniform(seed, t, 3));
            f.map_node("scattered")
                .over([64, 32])
                .scatter(table, [rows.at([axis(0)]).into(), axis(1)], ScatterRule::Unique, half.val())
                .done();
            f.map_to("columns", table.rows(0..64).cols(16..32), x.cols(0..16) / 3.0f32);
            f.set("tick", t, t + 1u32);
        });
    });
    insta::assert_snapshot!(text(&p.build().expect("valid")));
}

/// Protects: the three layouts of a reduction, and the second launch of a chunked one.
#[test]
fn reductions() {
    let mut p = Builder::new("demo");
    let x = p.input::<f32>("x", [64, 10]);
    let wide = p.input::<f32>("wide", [300, 4000]);
    let total = p.device_scalar("total", 0.0f32);
    p.step("train", |s| {
        s.phase("loss", |f| {
            f.log_sum_exp("rows", &[1], x).done();
            f.sum("columns", &[0], x).finish(|sum| sum / 64.0f32).done();
            f.argmax("best", 1, x).done();
            f.sum("norm", &[0, 1], wide * wide).finish(|sum| sum.sqrt()).to_scalar(total);
        });
    });
    insta::assert_snapshot!(text(&p.build().expect("valid")));
}

/// Protects: boxes that no two-dimensional node can move get a kernel, others none; setters keep the loop's contract.
#[test]
fn boxes_and_setters() {
    let mut p = Builder::new("demo");
    let cube = p.state::<f32>("cube", [4, 6, 8], Init::Zeros);
    let part = p.state::<f32>("part", [4, 2, 3], Init::Zeros);
    let bars = p.host_scalar("bars", 10u32);
    let flag = p.host_scalar("flag", 1u32);
    let at = p.device_scalar("at", 0u32);
    let done = p.device_scalar("done", 0u32);
    p.step("run", |s| {
        s.phase("main", |f| {
            f.copy("rows", cube.slice(0, 0..2), cube.slice(0, 2..4));
            f.copy("inner", cube.slice(1, 1..3).slice(2, 0..3), part);
            f.fill("clear", cube.slice(1, 1..3).slice(2, 0..3), -0.5);
            f.when("gate", flag, |body| body.fill("zero", part, 0.0));
            f.repeat("bars", Bound::Scalar(bars), Some(at), Some(done), |body| {
                body.set("end", done, flag.val());
            });
        });
    });
    insta::assert_snapshot!(text(&p.build().expect("valid")));
}

/// Protects: names that C would refuse, or that would collide once made fit for C, stay legal and unique.
#[test]
fn names_are_legal_and_unique() {
    let mut p = Builder::new("demo");
    let x = p.input::<f32>("x", [4]);
    let dotted = p.state::<f32>("float.x", [4], Init::Zeros);
    let plain = p.state::<f32>("float_x", [4], Init::Zeros);
    p.step("run", |s| {
        s.phase("main", |f| {
            f.map_node("a.b").store(dotted, x + plain).done();
            f.map_node("a_b").store(plain, x + dotted).done();
        });
    });
    let kernels = kernels(&p.build().expect("valid"));
    let names: HashSet<_> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, HashSet::from(["main__a_b", "main__a_b_2"]));
    for kernel in &kernels {
        let places = ["d_float_x,", "d_float_x_2)"].map(|place| kernel.source.matches(place).count());
        assert_eq!(places, [1, 1], "{}", kernel.source);
    }
}
