//! The host executor against independent computations in float64, one test per kind of node.

use half::bf16;
use stepgraph::Builder;
use stepgraph::builder::{Bound, Ix, Val, axis, philox};
use stepgraph::handle::Tensor;
use stepgraph::host::philox4x32;
use stepgraph::ir::{Compute, Init, ScatterRule};
use stepgraph::plan::{FusionPlan, Target, Tuning};
use stepgraph::runtime::{Device, RuntimeError, Session};

/// Half the distance between 1 and the next float32: the relative error of one rounding.
const ROUNDING: f64 = 5.96e-8;

fn open(p: Builder) -> Session {
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let plan = program.plan("s", &FusionPlan::mega(), &Target::default(), &Tuning::default());
    Session::builder().poison_scratch().open(Device::Host, [plan.expect("a plan")]).expect("the host is there")
}

/// Numbers in (-1, 1) that are no round ones.
fn noise(count: usize, stream: u32) -> Vec<f32> {
    let word = |i: usize| philox4x32([i as u32, 0, 0, 0], [stream, 77])[0];
    (0..count).map(|i| word(i) as f32 / 2f32.powi(31) - 1.0).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

fn assert_near(found: &[f32], expected: &[f64], tolerance: impl Fn(usize) -> f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= tolerance(i), "element {i}: {found} is not {expected} ± {}", tolerance(i));
    }
}

/// A matrix in float64, row-major, after `round`.
struct Matrix {
    rows: usize,
    columns: usize,
    elements: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, elements: &[f32], round: impl Fn(f32) -> f32) -> Self {
        Self { rows, columns, elements: elements.iter().map(|&x| f64::from(round(x))).collect() }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.elements[row * self.columns + column]
    }

    fn transposed(&self) -> Self {
        let elements = (0..self.columns).flat_map(|c| (0..self.rows).map(move |r| (r, c))).map(|(r, c)| self.at(r, c));
        Self { rows: self.columns, columns: self.rows, elements: elements.collect() }
    }

    /// The product, and the product of absolute values, which bounds its rounding errors.
    fn times(&self, other: &Self) -> (Vec<f64>, Vec<f64>) {
        let terms = |r: usize, c: usize| (0..self.columns).map(move |k| self.at(r, k) * other.at(k, c));
        let places = || (0..self.rows).flat_map(|r| (0..other.columns).map(move |c| (r, c)));
        let sums = places().map(|(r, c)| terms(r, c).sum()).collect();
        (sums, places().map(|(r, c)| terms(r, c).map(f64::abs).sum()).collect())
    }
}

/// TF32 by arithmetic, not by bits: the significand times 2¹¹, rounded half away from zero.
fn tf32(x: f32) -> f32 {
    if x == 0.0 {
        return x;
    }
    let exponent = f64::from(x).abs().log2().floor() as i32;
    let unit = 2f64.powi(exponent - 10);
    ((f64::from(x) / unit).round() * unit) as f32
}

type Round = fn(f32) -> f32;

/// Protects: every transposition, shape and arithmetic of a product, with α, β and C, and an operation on top.
///
/// A sum of k products in float32 is within k roundings of Σ|a·b| of the exact one, whatever its order (Higham, Accuracy and
/// Stability, 3.1); α, β·C and the addition make four more of the whole.
#[test]
fn products() {
    let rounders: [(Compute, Round); 3] =
        [(Compute::F32, |x| x), (Compute::Tf32, tf32), (Compute::Bf16, |x| bf16::from_f32(x).to_f32())];
    for (compute, round) in rounders {
        for (m, n, k) in [(1, 1, 1), (5, 7, 3), (17, 1, 33), (64, 10, 128), (1, 31, 257)] {
            for transposed in [[false, false], [false, true], [true, false]] {
                product(compute, round, [m, n, k], transposed);
            }
        }
    }
}

fn product(compute: Compute, round: Round, [m, n, k]: [usize; 3], [ta, tb]: [bool; 2]) {
    let (alpha, beta) = (0.75f32, -1.5f32);
    let shape = |rows: usize, columns: usize, turned: bool| {
        let (rows, columns) = if turned { (columns, rows) } else { (rows, columns) };
        [rows as u32, columns as u32]
    };
    let mut p = Builder::new("gemm");
    let a = p.input::<f32>("a", shape(m, k, ta));
    let b = p.input::<f32>("b", shape(k, n, tb));
    let c = p.input::<f32>("c", [m as u32, n as u32]);
    let d = p.output::<f32>("d", [m as u32, n as u32]);
    let scale = p.host_scalar("scale", alpha);
    p.step("s", |s| {
        s.phase("p", |f| {
            let product = match (ta, tb) {
                (false, false) => a.nn(b),
                (false, true) => a.nt(b),
                _ => a.tn(b),
            };
            f.gemm("d", product).alpha(scale).add(beta, c).compute(compute).then_to(d, |acc| acc.abs());
        });
    });
    let mut session = open(p);
    let (av, bv, cv) = (noise(m * k, 1), noise(k * n, 2), noise(m * n, 3));
    session.write_input(a, &av).expect("a");
    session.write_input(b, &bv).expect("b");
    session.write_input(c, &cv).expect("c");
    session.launch("s").expect("it runs");
    let turned = |rows, columns, values: &[f32], turned| {
        if turned {
            Matrix::new(columns, rows, values, round).transposed()
        } else {
            Matrix::new(rows, columns, values, round)
        }
    };
    let (sums, bounds) = turned(m, k, &av, ta).times(&turned(k, n, &bv, tb));
    let with_c = sums.iter().zip(&cv).map(|(sum, &c)| f64::from(alpha) * sum + f64::from(beta) * f64::from(c));
    let expected: Vec<f64> = with_c.map(f64::abs).collect();
    let found = session.read(d).expect("d");
    assert_near(&found, &expected, |i| (k as f64 + 4.0) * ROUNDING * (bounds[i] + f64::from(beta.abs())));
}

/// Protects: operands and results that are boxes of larger buffers, bf16 operands, and a bf16 result.
///
/// Small integers are exact in bf16, and so are their products' sums in float32: the result is exact but for its own rounding.
#[test]
fn products_of_boxes() {
    let mut p = Builder::new("boxes");
    let a = p.input::<bf16>("a", [6, 9]);
    let b = p.input::<bf16>("b", [9, 8]);
    let d = p.output::<bf16>("d", [5, 12]);
    p.step("s", |s| {
        s.phase("p", |f| {
            f.fill("clear", d, -1.0);
            f.gemm("d", a.rows(1..5).cols(2..7).nn(b.rows(3..8).cols(1..4))).to(d.rows(1..5).cols(6..9));
        });
    });
    let mut session = open(p);
    let whole = |rows: usize, columns: usize, step: usize| -> Vec<f32> {
        (0..rows * columns).map(|i| (i * step % 13) as f32 - 6.0).collect()
    };
    let (av, bv) = (whole(6, 9, 5), whole(9, 8, 7));
    let narrow = |values: &[f32]| values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
    session.write_input(a, &narrow(&av)).expect("a");
    session.write_input(b, &narrow(&bv)).expect("b");
    session.launch("s").expect("it runs");
    let found = session.read(d).expect("d");
    for (place, found) in found.into_iter().enumerate() {
        let (row, column) = (place / 12, place % 12);
        let inside = (1..5).contains(&row) && (6..9).contains(&column);
        let sum = || (0..5).map(|k| av[row * 9 + 2 + k] * bv[(3 + k) * 8 + 1 + column - 6]).sum::<f32>();
        assert_eq!(found, bf16::from_f32(if inside { sum() } else { -1.0 }), "row {row} column {column}");
    }
    let part = session.read(d.rows(1..5).cols(6..9)).expect("a box");
    assert_eq!((part.len(), part[0]), (12, session.read(d).expect("d")[18]));
}

/// Protects: broadcasting, gathers with clamping, selection, coordinates, several results, and results in boxes.
#[test]
fn maps() {
    let mut p = Builder::new("maps");
    let x = p.input::<f32>("x", [3, 1, 5]);
    let row = p.input::<f32>("row", [5]);
    let pick = p.input::<u32>("pick", [4]);
    let signed = p.input::<i32>("signed", [4]);
    let rate = p.host_scalar("rate", 2f32);
    let sum = p.output::<f32>("sum", [3, 4, 5]);
    let gathered = p.output::<f32>("gathered", [3, 4]);
    let last = p.output::<i32>("last", [2, 4, 2]);
    p.step("s", |s| {
        s.phase("p", |f| {
            f.map_to("sum", sum, (x * rate + row) / (Val::index(1).to_f32() + 1.0f32));
            let place = pick.at([axis(1)]);
            let value = x.at([axis(0), Ix::Fixed(0), Ix::Value(place)]);
            f.map_to("gathered", gathered, value.above(0.0f32).select(value.clone(), -7.0f32));
            let low = signed.at([axis(0)]);
            f.map_node("pair")
                .store(last.pick(2, 0).pick(0, 1), low.clone() * -3)
                .store(last.pick(2, 1).pick(0, 1), low.below(0).select(low.clone() / 2, low.clone() % 3))
                .done();
        });
    });
    let mut session = open(p);
    let (xv, rowv) = (noise(15, 4), noise(5, 5));
    session.write_input(x, &xv).expect("x");
    session.write_input(row, &rowv).expect("row");
    session.write_input(pick, &[0, 4, 5, u32::MAX]).expect("pick");
    session.write_input(signed, &[-7, 8, i32::MIN, 5]).expect("signed");
    session.launch("s").expect("it runs");

    let sums = session.read(sum).expect("sum");
    for (i, found) in sums.into_iter().enumerate() {
        let (a, b, c) = (i / 20, i / 5 % 4, i % 5);
        // The same float32 operations in the same order: equal to the bit.
        assert_eq!(found, (xv[a * 5 + c] * 2.0 + rowv[c]) / (b as f32 + 1.0));
    }
    for (i, found) in session.read(gathered).expect("gathered").into_iter().enumerate() {
        let value = xv[i / 4 * 5 + [0, 4, 4, 4][i % 4]];
        assert_eq!(found, if value > 0.0 { value } else { -7.0 });
    }
    let last = session.read(last).expect("last");
    assert_eq!(last[..8], [0; 8], "the other half is not touched");
    assert_eq!(last[8..], [21, -3, -24, 2, i32::MIN.wrapping_mul(-3), i32::MIN / 2, -15, 2]);
}

/// Protects: the transcendental functions are those of their names.
///
/// Rust's float32 functions are good to one unit in the last place, two roundings; `sigmoid` makes four operations.
#[test]
fn functions() {
    let mut p = Builder::new("functions");
    let x = p.input::<f32>("x", [1000]);
    let y = p.output::<f32>("y", [11, 1000]);
    p.step("s", |s| {
        s.phase("p", |f| {
            let (v, positive) = (x.val(), x.val().abs() + 0.001f32);
            f.map_node("all")
                .store(y.pick(0, 0), v.exp())
                .store(y.pick(0, 1), positive.log())
                .store(y.pick(0, 2), v.expm1())
                .store(y.pick(0, 3), positive.log1p())
                .store(y.pick(0, 4), positive.sqrt())
                .store(y.pick(0, 5), v.tanh())
                .store(y.pick(0, 6), v.sigmoid())
                .store(y.pick(0, 7), v.sin())
                .store(y.pick(0, 8), v.cos())
                .store(y.pick(0, 9), positive.pow(v.clone()))
                .store(y.pick(0, 10), v.floor())
                .done();
        });
    });
    let mut session = open(p);
    let xv: Vec<f32> = noise(1000, 6).into_iter().map(|x| 3.0 * x).collect();
    session.write_input(x, &xv).expect("x");
    session.launch("s").expect("it runs");
    let found = session.read(y).expect("y");
    let positive = |x: f64| f64::from(x.abs() as f32 + 0.001);
    let functions: [&dyn Fn(f64) -> f64; 11] = [
        &f64::exp,
        &|x| positive(x).ln(),
        &f64::exp_m1,
        &|x| positive(x).ln_1p(),
        &|x| positive(x).sqrt(),
        &f64::tanh,
        &|x| 1.0 / (1.0 + (-x).exp()),
        &f64::sin,
        &f64::cos,
        &|x| positive(x).powf(x),
        &f64::floor,
    ];
    for (number, function) in functions.iter().enumerate() {
        let expected: Vec<f64> = xv.iter().map(|&x| function(f64::from(x))).collect();
        assert_near(&found[number * 1000..][..1000], &expected, |i| 4.0 * ROUNDING * expected[i].abs().max(1e-30));
    }
}

/// Protects: every combiner along every choice of axes, also where one chunk does not hold all values.
///
/// A sum of n values is within n roundings of Σ|x|; log-sum-exp adds, per combination, an exponential, a product and a sum.
#[test]
fn reductions() {
    for (shape, axes) in [
        ([3, 5, 7], vec![2]),
        ([3, 5, 7], vec![0]),
        ([3, 5, 7], vec![1]),
        ([3, 5, 7], vec![0, 2]),
        ([3, 5, 7], vec![0, 1, 2]),
        ([1, 1, 70_001], vec![2]),
        ([9_001, 1, 3], vec![0]),
        ([2, 300, 129], vec![1, 2]),
    ] {
        reduction(shape, &axes);
    }
}

fn reduction(shape: [u32; 3], axes: &[u8]) {
    let kept: Vec<u32> = (0..3u8).filter(|axis| !axes.contains(axis)).map(|axis| shape[usize::from(axis)]).collect();
    let mut p = Builder::new("reductions");
    let x = p.input::<f32>("x", shape);
    let sum = p.output::<f32>("sum", kept.as_slice());
    let largest = p.output::<f32>("largest", kept.as_slice());
    let lse = p.output::<f32>("lse", kept.as_slice());
    let count = p.output::<u32>("count", kept.as_slice());
    let best = p.output::<u32>("best", kept.as_slice());
    p.step("s", |s| {
        s.phase("p", |f| {
            f.sum::<f32>("sum", axes, x).finish(|acc| acc * 2.0f32).to(sum);
            f.largest::<f32>("largest", axes, x).to(largest);
            f.log_sum_exp("lse", axes, x).to(lse);
            f.sum::<u32>("count", axes, x.val().above(0.0f32).to_u32()).to(count);
            if axes.len() == 1 {
                f.argmax("best", axes[0], x).to(best);
            } else {
                f.fill("best", best, 0);
            }
        });
    });
    let mut session = open(p);
    let xv = noise(shape.iter().product::<u32>() as usize, 7);
    session.write_input(x, &xv).expect("x");
    session.launch("s").expect("it runs");

    let results = kept.iter().product::<u32>().max(1) as usize;
    let mut values: Vec<Vec<f32>> = vec![Vec::new(); results];
    for (i, &value) in xv.iter().enumerate() {
        let mut rest = i as u32;
        let mut coordinates = [0; 3];
        for axis in (0..3).rev() {
            (coordinates[axis], rest) = (rest % shape[axis], rest / shape[axis]);
        }
        let result = (0..3).filter(|&axis| !axes.contains(&(axis as u8)));
        let result = result.fold(0, |place, axis| place * shape[axis] + coordinates[axis]);
        values[result as usize].push(value);
    }
    let n = values[0].len() as f64;
    let of = |f: &dyn Fn(&[f32]) -> f64| values.iter().map(|values| f(values)).collect::<Vec<f64>>();
    let total = of(&|values| wide(values).iter().map(|x| x.abs()).sum());
    let expected = of(&|values| 2.0 * wide(values).iter().sum::<f64>());
    assert_near(&session.read(sum).expect("sum"), &expected, |i| n * ROUNDING * 2.0 * total[i]);
    let expected = of(&|values| wide(values).into_iter().fold(f64::MIN, f64::max));
    assert_near(&session.read(largest).expect("largest"), &expected, |_| 0.0);
    let expected = of(&|values| wide(values).iter().map(|x| x.exp()).sum::<f64>().ln());
    assert_near(&session.read(lse).expect("lse"), &expected, |i| ROUNDING * (4.0 * n + 4.0 * expected[i].abs() + 4.0));
    let expected = of(&|values| values.iter().filter(|&&x| x > 0.0).count() as f64);
    assert_eq!(session.read(count).expect("count"), expected.iter().map(|&x| x as u32).collect::<Vec<_>>());
    if axes.len() == 1 {
        let expected = of(&|values| {
            let largest = values.iter().copied().fold(f32::MIN, f32::max);
            values.iter().position(|&x| x == largest).expect("the largest is there") as f64
        });
        assert_eq!(session.read(best).expect("best"), expected.iter().map(|&x| x as u32).collect::<Vec<_>>());
    }
}

/// A program that scatters `value[i]` to `place[i]` of a state of ten.
fn scatter(rule: ScatterRule) -> (Session, Tensor<i32>, Tensor<f32>, Tensor<f32>) {
    let mut p = Builder::new("scatter");
    let place = p.input::<i32>("place", [4]);
    let value = p.input::<f32>("value", [4]);
    let table = p.state::<f32>("table", [10], Init::Constant(-1.0));
    p.step("s", |s| {
        s.phase("p", |f| {
            let place = Ix::Value(place.val().to_u32());
            f.map_node("put").over([4]).scatter(table, [place], rule, value).done();
        });
    });
    (open(p), place, value, table)
}

/// Protects: scattered values land, places outside are skipped, and a broken promise is an error that names node and place.
#[test]
fn scattered_stores() {
    let (mut session, place, value, table) = scatter(ScatterRule::Unique);
    session.write_input(place, &[3, 0, 12, 9]).expect("place");
    session.write_input(value, &[1.0, 2.0, 3.0, 4.0]).expect("value");
    session.launch("s").expect("no two meet");
    let expected = [2.0, -1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 4.0];
    assert_eq!(session.read(table).expect("table"), expected);

    session.write_input(place, &[3, 5, 7, 5]).expect("place");
    let error = session.launch("s").expect_err("two meet").to_string();
    assert!(error.contains("p.put") && error.contains("element 5 of `table`"), "{error}");

    let (mut session, place, value, table) = scatter(ScatterRule::SameValue);
    session.write_input(place, &[3, 5, 7, 5]).expect("place");
    session.write_input(value, &[1.0, 2.0, 3.0, 2.0]).expect("value");
    session.launch("s").expect("those that meet agree");
    assert_eq!(session.read(table).expect("table")[5], 2.0);
    session.write_input(value, &[1.0, 2.0, 3.0, 2.5]).expect("value");
    assert!(matches!(session.launch("s"), Err(RuntimeError::Host(_))));
}

/// Protects: copies between boxes, in every type, leave the rest alone.
#[test]
fn copies() {
    let mut p = Builder::new("copies");
    let from = p.input::<bf16>("from", [4, 6]);
    let to = p.output::<bf16>("to", [3, 3]);
    p.step("s", |s| {
        s.phase("p", |f| {
            f.fill("clear", to, 9.0);
            f.copy("box", from.rows(1..3).cols(4..6), to.rows(1..3).cols(0..2));
        });
    });
    let mut session = open(p);
    let values: Vec<bf16> = (0..24).map(|i| bf16::from_f32(i as f32)).collect();
    session.write_input(from, &values).expect("from");
    session.launch("s").expect("it runs");
    let found: Vec<f32> = session.read(to).expect("to").into_iter().map(bf16::to_f32).collect();
    assert_eq!(found, [9.0, 9.0, 9.0, 10.0, 11.0, 9.0, 16.0, 17.0, 9.0]);
}

/// Protects: draws are the published generator's words for the documented key and counter.
#[test]
fn random_numbers() {
    let mut p = Builder::new("random");
    let key = p.host_scalar("key", 123u32);
    let counter = p.device_scalar("counter", 0u32);
    let out = p.output::<u32>("out", [300]);
    p.step("s", |s| {
        s.phase("p", |f| {
            f.set("tick", counter, counter + 1u32);
            f.map_to("draw", out, philox(key, counter, Val::index(0), 5, 2));
        });
    });
    let mut session = open(p);
    for launch in 1..=3 {
        session.launch("s").expect("it runs");
        let expected: Vec<u32> = (0..300).map(|i| philox4x32([i, launch, 0, 0], [123, 5])[2]).collect();
        assert_eq!(session.read(out).expect("out"), expected);
    }
}

/// Protects: branches take the body that their cell names, loops end on bound, flag and stop, and count as documented.
#[test]
fn conditionals() {
    let mut p = Builder::new("conditionals");
    let flag = p.host_scalar("flag", 0u32);
    let pick = p.host_scalar("pick", 0u32);
    let bound = p.host_scalar("bound", 10u32);
    let limit = p.host_scalar("limit", 100u32);
    let (index, done) = (p.device_scalar("index", 0u32), p.device_scalar("done", 0u32));
    let sum = p.output::<u32>("sum", []);
    let branch = p.output::<u32>("branch", []);
    let switched = p.output::<u32>("switched", []);
    p.step("s", |s| {
        s.phase("p", |f| {
            f.when_else("if", flag, |f| _ = f.map_to("yes", branch, 1u32), |f| _ = f.map_to("no", branch, 2u32));
            f.map_to("none", switched, 9u32);
            f.switch(
                "switch",
                pick,
                &mut [&mut |f| _ = f.map_to("zero", switched, 0u32), &mut |f| _ = f.map_to("one", switched, 1u32)],
            );
            f.fill("clear", sum, 0u32);
            f.repeat("loop", Bound::Scalar(bound), Some(index), Some(done), |f| {
                f.map_to("add", sum, sum + index);
                f.set("check", done, sum.val().above(limit).to_u32());
            });
        });
    });
    let mut session = open(p);
    let mut run = |values: [u32; 4]| {
        for (cell, value) in [flag, pick, bound, limit].into_iter().zip(values) {
            session.set(cell, value).expect("a host scalar");
        }
        session.launch("s").expect("it runs");
        let read = |session: &mut Session, tensor| session.read(tensor).expect("an output")[0];
        let [index, done] = [index, done].map(|cell| session.read_scalar(cell).expect("a device scalar"));
        let sum = read(&mut session, sum);
        ([read(&mut session, branch), read(&mut session, switched)], [sum, index, done])
    };
    assert_eq!(run([0, 0, 10, 100]), ([2, 0], [45, 10, 0]));
    assert_eq!(run([7, 1, 3, 100]), ([1, 1], [3, 3, 0]));
    assert_eq!(run([1, 2, 10, 5]), ([1, 9], [6, 4, 1]), "the flag ends the loop after its iteration");
    assert_eq!(run([0, 0, 0, 100]), ([2, 0], [0, 0, 0]), "no iteration, and a cleared flag");

    let stop = session.stop_handle();
    stop.stop();
    session.set(bound, 10).expect("a host scalar");
    session.launch("s").expect("it runs");
    assert_eq!(session.read_scalar(index).expect("a device scalar"), 0, "a stopped session starts no iteration");
    stop.clear();
    session.launch("s").expect("it runs");
    assert_eq!(session.read_scalar(index).expect("a device scalar"), 10);
}

/// Protects: an endless loop on another thread ends once it is stopped.
#[test]
fn a_running_loop_can_be_stopped() {
    let mut p = Builder::new("endless");
    let index = p.device_scalar("index", 0u32);
    let sum = p.device_scalar("sum", 0u32);
    p.step("s", |s| {
        s.phase("p", |f| {
            f.repeat("loop", Bound::Const(u32::MAX), Some(index), None, |f| f.set("add", sum, sum + 1u32));
        });
    });
    let mut session = open(p);
    let stop = session.stop_handle();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        stop.stop();
    });
    session.launch("s").expect("it ends");
    stopper.join().expect("the other thread ends");
    let found = session.read_scalar(index).expect("a device scalar");
    assert!(found > 0 && found < u32::MAX, "{found} iterations");
    assert_eq!(session.read_scalar(sum).expect("a device scalar"), found);
}
