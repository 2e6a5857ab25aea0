//! Matrix products against float64, in every form that the library takes.

use half::bf16;
use stepgraph::Builder;
use stepgraph::handle::Tensor;
use stepgraph::ir::{Compute, Init};
use stepgraph::plan::{Fuse, FusionPlan};

use crate::support::{Memory, device, run};

/// Rows, columns and inner extents: one, odd, around tile sizes, and larger than a tile.
const SHAPES: [[u32; 3]; 7] =
    [[1, 1, 1], [3, 5, 7], [17, 33, 65], [64, 10, 128], [128, 256, 64], [257, 129, 191], [2, 1000, 3]];

/// The unit roundoff of operands, pessimistic: truncation instead of rounding is allowed.
fn operand_error(compute: Compute) -> f64 {
    match compute {
        Compute::F32 => 0.0,
        Compute::Tf32 => 2f64.powi(-10),
        Compute::Bf16 => 2f64.powi(-7),
    }
}

/// The most that a product of length `k` may be off, per Σ|a||b|: two rounded operands, and one rounding (of 2⁻²³: tensor
/// cores truncate) per addition and product, in whatever order.
fn bound(compute: Compute, k: u32) -> f64 {
    let u = operand_error(compute);
    2.0 * u + u * u + f64::from(k + 2) * 2f64.powi(-23)
}

/// A row-major matrix on the host.
struct Matrix<'a> {
    values: &'a [f32],
    columns: usize,
    transposed: bool,
}

impl Matrix<'_> {
    fn at(&self, row: usize, column: usize) -> f64 {
        let (row, column) = if self.transposed { (column, row) } else { (row, column) };
        f64::from(self.values[row * self.columns + column])
    }
}

/// Every element of op(A)·op(B) with Σ|a||b|.
fn product(a: &Matrix<'_>, b: &Matrix<'_>, [m, n, k]: [u32; 3]) -> Vec<(f64, f64)> {
    let [m, n, k] = [m, n, k].map(|extent| extent as usize);
    let element = |at: usize| {
        let terms = (0..k).map(|i| a.at(at / n, i) * b.at(i, at % n));
        terms.fold((0.0, 0.0), |(sum, size): (f64, f64), term| (sum + term, size + term.abs()))
    };
    (0..m * n).map(element).collect()
}

#[track_caller]
fn assert_close(context: &str, found: &[f32], expected: impl Iterator<Item = (f64, f64)>) {
    let mut count = 0;
    for (at, (&found, (expected, allowed))) in found.iter().zip(expected).enumerate() {
        // One more rounding when the result is stored.
        let allowed = allowed + expected.abs() * 2f64.powi(-23) + 1e-37;
        assert!(
            (f64::from(found) - expected).abs() <= allowed,
            "{context}: element {at} is {found}, expected {expected}"
        );
        count += 1;
    }
    assert_eq!(count, found.len(), "{context}");
}

/// Protects: row-major operands, transposed or not, reach the column-major library the right way round, at every shape and
/// in every arithmetic.
#[test]
fn products_are_right_in_every_arithmetic_and_transposition() {
    let Some(device) = device() else { return };
    for compute in Compute::ALL {
        for [m, n, k] in SHAPES {
            let mut p = Builder::new("products");
            let (a, at) = (p.input::<f32>("a", [m, k]), p.input::<f32>("at", [k, m]));
            let (b, bt) = (p.input::<f32>("b", [k, n]), p.input::<f32>("bt", [n, k]));
            let results = ["nn", "nt", "tn"].map(|name| p.state::<f32>(name, [m, n], Init::Zeros));
            p.step("run", |s| {
                s.phase("main", |f| {
                    f.gemm("mm_nn", a.nn(b)).compute(compute).to(results[0]);
                    f.gemm("mm_nt", a.nt(bt)).compute(compute).to(results[1]);
                    f.gemm("mm_tn", at.tn(b)).compute(compute).to(results[2]);
                });
            });
            let program = p.build().expect("valid");
            let memory = run(device, &program, "run", &FusionPlan::mega(), 1);
            let matrix = |name: &str, columns: u32, transposed| Matrix {
                values: memory.floats(name),
                columns: columns as usize,
                transposed,
            };
            let (a, at) = (matrix("a", k, false), matrix("at", m, true));
            let (b, bt) = (matrix("b", n, false), matrix("bt", k, true));
            for (name, left, right) in [("nn", &a, &b), ("nt", &a, &bt), ("tn", &at, &b)] {
                let expected = product(left, right, [m, n, k]).into_iter();
                let expected = expected.map(|(sum, size)| (sum, bound(compute, k) * size));
                assert_close(&format!("{} {name} {m}×{n}×{k}", compute.name()), memory.floats(name), expected);
            }
        }
    }
}

/// Protects: α and β as constants, as cells, and one of each; C apart from D and in place; and that β = 0 does not read D.
#[test]
fn factors_come_from_constants_and_cells() {
    let Some(device) = device() else { return };
    let [m, n, k] = [33, 17, 29];
    let mut p = Builder::new("factors");
    let (a, b, c) = (p.input::<f32>("a", [m, k]), p.input::<f32>("b", [k, n]), p.input::<f32>("c", [m, n]));
    let (alpha, beta) = (p.host_scalar("alpha", 0.75f32), p.device_scalar("beta", -1.5f32));
    let names = ["baked", "cells", "mixed", "scaled", "kept"];
    let out = names.map(|name| p.state::<f32>(name, [m, n], Init::Zeros));
    p.step("run", |s| {
        s.phase("main", |f| {
            f.gemm("mm0", a.nn(b)).alpha(0.5).add(2.0, c).to(out[0]);
            f.gemm("mm1", a.nn(b)).alpha(alpha).add(beta, c).to(out[1]);
            f.gemm("mm2", a.nn(b)).alpha(alpha).add(1.0, c).to(out[2]);
            f.gemm("mm3", a.nn(b)).alpha(alpha).to(out[3]);
            f.copy("start", c, out[4]);
            f.gemm("mm4", a.nn(b)).add(beta, out[4]).to(out[4]);
        });
    });
    let program = p.build().expect("valid");
    for fusion in [FusionPlan::debug(), FusionPlan::mega()] {
        let mut session =
            stepgraph::runtime::Session::open(device, [crate::support::plan(&program, "run", &fusion)]).expect("opens");
        crate::support::fill(&mut session, program.program(), 1);
        // The unwritten results hold NaN, which a product that reads them would keep.
        for (&tensor, name) in out.iter().zip(names) {
            let nan = vec![f32::NAN; (m * n) as usize];
            session.load(tensor, &nan).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        session.launch("run").expect("launches");
        session.wait().expect("runs");
        let memory = Memory::of(&mut session, program.program());
        let left = Matrix { values: memory.floats("a"), columns: k as usize, transposed: false };
        let right = Matrix { values: memory.floats("b"), columns: n as usize, transposed: false };
        let products = product(&left, &right, [m, n, k]);
        let added = memory.floats("c");
        for (name, alpha, beta) in [
            ("baked", 0.5, 2.0),
            ("cells", 0.75, -1.5),
            ("mixed", 0.75, 1.0),
            ("scaled", 0.75, 0.0),
            ("kept", 1.0, -1.5),
        ] {
            let expected = products.iter().zip(added).map(|(&(sum, size), &c)| {
                let size: f64 = size + f64::from(c).abs();
                (alpha * sum + beta * f64::from(c), 2.0 * bound(Compute::F32, k) * size)
            });
            assert_close(&format!("{} {name}", fusion.name), memory.floats(name), expected);
        }
    }
}

/// Protects: views with a row stride and an offset, sibling weights in one matrix, and bf16 operands and results.
#[test]
fn views_and_bfloat16_are_taken_as_they_lie() {
    let Some(device) = device() else { return };
    let [m, n, k] = [19, 12, 24];
    let mut p = Builder::new("views");
    let wide = p.input::<f32>("wide", [m, k + 6]);
    let stacked = p.input::<f32>("stacked", [3 * n, k]);
    let half_a = p.input::<bf16>("half_a", [m, k]);
    let half_b = p.input::<bf16>("half_b", [k, n]);
    let box_of = p.state::<f32>("box", [m + 2, 3 * n], Init::Zeros);
    let half_d = p.state::<bf16>("half_d", [m, n], Init::Zeros);
    let left: Tensor<f32> = wide.cols(3..3 + k);
    p.step("run", |s| {
        s.phase("main", |f| {
            f.gemm("mm0", left.nt(stacked.rows(n..2 * n))).to(box_of.rows(1..1 + m).cols(n..2 * n));
            f.gemm("mm1", half_a.nn(half_b)).to(half_d);
        });
    });
    let program = p.build().expect("valid");
    for fusion in [FusionPlan::debug(), FusionPlan::mega()] {
        let mut session =
            stepgraph::runtime::Session::open(device, [crate::support::plan(&program, "run", &fusion)]).expect("opens");
        crate::support::fill(&mut session, program.program(), 1);
        session.load(box_of, &vec![0.0; ((m + 2) * 3 * n) as usize]).expect("state");
        session.launch("run").expect("launches");
        session.wait().expect("runs");
        let memory = Memory::of(&mut session, program.program());
        let (rows, columns) = (m as usize, n as usize);
        let left: Vec<f32> =
            memory.floats("wide").chunks((k + 6) as usize).flat_map(|row| row[3..3 + k as usize].to_vec()).collect();
        let left = Matrix { values: &left, columns: k as usize, transposed: false };
        let right = &memory.floats("stacked")[(n * k) as usize..(2 * n * k) as usize];
        let right = Matrix { values: right, columns: k as usize, transposed: true };
        let expected = product(&left, &right, [m, n, k]).into_iter();
        let stored = memory.floats("box");
        let inside: Vec<f32> =
            (0..rows * columns).map(|at| stored[(at / columns + 1) * 3 * columns + columns + at % columns]).collect();
        let expected = expected.map(|(sum, size)| (sum, bound(Compute::F32, k) * size));
        assert_close(&format!("{} box", fusion.name), &inside, expected);
        let outside = stored.len() - stored.iter().filter(|&&x| x == 0.0).count();
        assert!(outside <= inside.len(), "{}: the product wrote outside its view", fusion.name);

        let left = Matrix { values: memory.floats("half_a"), columns: k as usize, transposed: false };
        let right = Matrix { values: memory.floats("half_b"), columns, transposed: false };
        // Products of bf16 are exact in float; only the result is rounded, to 8 bits.
        let expected = product(&left, &right, [m, n, k]).into_iter();
        let expected = expected.map(|(sum, size)| (sum, bound(Compute::F32, k) * size + sum.abs() * 2f64.powi(-8)));
        assert_close(&format!("{} bf16", fusion.name), memory.floats("half_d"), expected);
    }
}

/// Protects: bias and activation inside the product give what a map behind it gives, NaN included, and are used at all.
#[test]
fn epilogues_equal_maps() {
    let Some(device) = device() else { return };
    let [m, n, k] = [37, 50, 21];
    let mut p = Builder::new("epilogues");
    let (x, w) = (p.input::<f32>("x", [m, k]), p.input::<f32>("w", [n, k]));
    let b = p.param::<f32>("b", [n], Init::Zeros);
    let out = ["bias", "relu", "both"].map(|name| p.state::<f32>(name, [m, n], Init::Zeros));
    p.step("run", |s| {
        s.phase("main", |f| {
            f.gemm("g0", x.nt(w)).then_to(out[0], |acc| acc + b);
            f.gemm("g1", x.nt(w)).then_to(out[1], |acc| acc.relu());
            f.gemm("g2", x.nt(w)).then_to(out[2], |acc| (acc + b).relu());
        });
    });
    let program = p.build().expect("valid");
    // One row is NaN: a bias and relu keep it.
    let mut rows = crate::support::Numbers(9).floats((m * k) as usize);
    rows[2 * k as usize] = f32::NAN;
    let run_with = |fusion: &FusionPlan| {
        let plan = crate::support::plan(&program, "run", fusion);
        let units = plan.units().len();
        let mut session = stepgraph::runtime::Session::open(device, [plan]).expect("opens");
        crate::support::fill(&mut session, program.program(), 1);
        session.write_input(x, &rows).expect("an input");
        session.launch("run").expect("launches");
        session.wait().expect("runs");
        (Memory::of(&mut session, program.program()), units)
    };
    let (plain, _) = run_with(&FusionPlan::mega());
    let (fused, units) = run_with(&FusionPlan { fuse: Fuse::All, ..FusionPlan::mega() });
    assert_eq!(units, 3, "every map became an epilogue");
    assert!(plain.floats("bias")[2 * n as usize].is_nan() && plain.floats("relu")[2 * n as usize].is_nan());
    // Both round the product and the sum; another algorithm may add in another order.
    let size = f64::from(k) + 1.0;
    let allowed = 2.0 * bound(Compute::F32, k) * size;
    plain.assert_agrees(&fused, "epilogues", |a, b| f64::from((a - b).abs()) <= allowed);
}
