//! Maps, reductions, copies, fills and kernels against the host executor.

use half::bf16;
use stepgraph::Builder;
use stepgraph::builder::{Val, axis, normal, philox, uniform};
use stepgraph::ir::{Init, ScatterRule};
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::Device;
use stepgraph::valid::ValidProgram;

use crate::kernels::axpy;
use crate::support::{device, named_plans, run, ulps};

/// Runs a program three times under every named plan; the host must have the same bits.
fn assert_bit_equal(device: Device, program: &ValidProgram) {
    for fusion in named_plans() {
        let host = run(Device::Host, program, "run", &fusion, 3);
        let found = run(device, program, "run", &fusion, 3);
        host.assert_same(&found, &fusion.name);
    }
}

/// Protects: every exact operation has the host's bits: arithmetic, comparison, selection, conversion, integers, gathers,
/// scatters, draws, several stores, broadcasting and `bf16`.
#[test]
fn exact_maps_have_the_bits_of_the_host() {
    let Some(device) = device() else { return };
    let mut p = Builder::new("maps");
    let (rows, columns) = (13, 37);
    let x = p.input::<f32>("x", [rows, columns]);
    let row = p.input::<f32>("row", [columns]);
    let half = p.input::<bf16>("half", [rows, columns]);
    let (i, j) = (p.input::<i32>("i", [rows, columns]), p.input::<u32>("j", [rows, columns]));
    let (rate, tick) = (p.host_scalar("rate", 0.3f32), p.device_scalar("tick", 5u32));
    let floats = ["sum", "quotient", "picked", "clipped", "root"].map(|n| p.output::<f32>(n, [rows, columns]));
    let words = ["bits", "words"].map(|n| p.output::<u32>(n, [rows, columns]));
    let signed = p.output::<i32>("signed", [rows, columns]);
    let narrow = p.output::<bf16>("narrow", [rows, columns]);
    let table = p.state::<f32>("table", [64, 2], Init::Zeros);
    p.step("run", |s| {
        s.phase("main", |f| {
            f.map_node("several")
                .store(floats[0], x * rate + row - half)
                .store(floats[1], x / (row * row + 0.125f32))
                .store(floats[4], (x * x).sqrt().floor() + x.val().abs())
                .done();
            f.map_to("pick", floats[2], table.at([j.at([axis(0), axis(1)]).into(), 1u32.into()]));
            f.map_to("clip", floats[3], x.val().below(row).select(x.val().max(-0.5f32), -x.val().min(0.25f32)));
            f.map_to(
                "bit",
                words[0],
                (j ^ (Val::index(1) << 3u32)) | (philox(tick, 7u32, Val::index(0), 2, 1) >> 9u32),
            );
            f.map_to("word", words[1], (x * 1e10f32).to_u32() + j.val() / (j % 5u32) * 3u32);
            f.map_to("sign", signed, (x * -1e10f32).to_i32() - i.val() / (i - 7i32) + (i % -3i32));
            f.map_to("thin", narrow, x * 1.01f32 + half);
            f.map_node("spread")
                .over([rows, columns])
                .scatter(table, [Val::index(0).into(), 0u32.into()], ScatterRule::SameValue, {
                    Val::index(0).to_f32() * 0.5f32
                })
                .done();
            f.set("advance", tick, tick + 1u32);
        });
    });
    assert_bit_equal(device, &p.build().expect("valid"));
}

/// Protects: transcendental functions and draws from distributions are within what CUDA documents for them.
///
/// CUDA C Programming Guide, appendix on mathematical functions, full range, without fast mathematics: expf 2 ulp, logf 1,
/// expm1f 1, log1pf 1, tanhf 2, sinf 2, cosf 2, powf 4 (8 before CUDA 12); the host's are within 1. The sigmoid adds a sum and a
/// quotient to an exponential. Box and Muller take a cosine of up to 2π, where a last place of the argument is 5e-7.
#[test]
fn transcendental_functions_are_within_their_documented_error() {
    let Some(device) = device() else { return };
    let mut p = Builder::new("functions");
    let n = 4099;
    let x = p.input::<f32>("x", [n]);
    let names = ["exp", "log", "expm1", "log1p", "tanh", "sin", "cos", "pow", "sigmoid", "uniform", "normal"];
    let out = names.map(|name| p.output::<f32>(name, [n]));
    let tick = p.device_scalar("tick", 0u32);
    p.step("run", |s| {
        s.phase("main", |f| {
            let wide = x * 20.0f32;
            f.map_to("m0", out[0], wide.exp());
            f.map_to("m1", out[1], (x.val().abs() * 1e3f32).log());
            f.map_to("m2", out[2], x.val().expm1());
            f.map_to("m3", out[3], (x.val().abs() * 3.0f32).log1p());
            f.map_to("m4", out[4], (x * 4.0f32).tanh());
            f.map_to("m5", out[5], wide.sin());
            f.map_to("m6", out[6], wide.cos());
            f.map_to("m7", out[7], (x.val().abs() + 0.1f32).pow(x * 3.0f32));
            f.map_to("m8", out[8], wide.sigmoid());
            f.map_to("m9", out[9], uniform(9u32, tick, 1));
            f.map_to("m10", out[10], normal(9u32, tick, 2));
            f.set("advance", tick, tick + 1u32);
        });
    });
    let program = p.build().expect("valid");
    let host = run(Device::Host, &program, "run", &FusionPlan::mega(), 3);
    let found = run(device, &program, "run", &FusionPlan::mega(), 3);
    for (name, allowed) in names.into_iter().zip([3, 2, 2, 2, 3, 3, 3, 9, 6, 0, 0]) {
        for (at, (&a, &b)) in host.floats(name).iter().zip(found.floats(name)).enumerate() {
            let close = if name == "normal" { (a - b).abs() <= 4e-6 * (1.0 + a.abs()) } else { ulps(a, b) <= allowed };
            // Sine and cosine near their zeros: the error is of the argument's last place.
            let small = matches!(name, "sin" | "cos") && (a - b).abs() <= 2e-7;
            assert!(close || small, "{name}[{at}]: host {a:e}, device {b:e}, {} ulp", ulps(a, b));
        }
    }
}

/// Protects: reductions add in the documented order, over every layout, so that sums have the host's bits.
#[test]
fn reductions_have_the_bits_of_the_host() {
    let Some(device) = device() else { return };
    for dims in [[1, 1, 1], [2, 3, 5], [7, 33, 31], [5, 1, 700], [3, 1030, 9], [1, 257, 4099], [40, 2, 300]] {
        let [a, b, c] = dims;
        let mut p = Builder::new("reductions");
        let x = p.input::<f32>("x", dims);
        let i = p.input::<i32>("i", dims);
        let rows = p.output::<f32>("rows", [a, b]);
        let columns = p.output::<f32>("columns", [b, c]);
        let middle = p.output::<f32>("middle", [a, c]);
        let outer = p.output::<f32>("outer", [b]);
        let counts = p.output::<i32>("counts", [c]);
        let (largest, place) = (p.output::<f32>("largest", [a, b]), p.output::<u32>("place", [a, b]));
        let narrow = p.output::<bf16>("narrow", [a]);
        let total = p.device_scalar("total", 0.0f32);
        p.step("run", |s| {
            s.phase("main", |f| {
                f.sum("s0", &[2], x * 1.5f32).to(rows);
                f.sum("s1", &[0], x.val()).finish(|acc| acc * 0.5f32 + 1.0f32).to(columns);
                f.sum("s2", &[1], x.val().abs()).to(middle);
                f.sum("s3", &[0, 2], x.val()).to(outer);
                f.sum("s4", &[0, 1], i.val()).to(counts);
                f.largest("l", &[2], x.val()).to(largest);
                f.argmax("a", 2, x.val()).to(place);
                f.sum("s5", &[1, 2], x.val()).to(narrow);
                f.sum("s6", &[0, 1, 2], x * x).to_scalar(total);
            });
        });
        assert_bit_equal(device, &p.build().expect("valid"));
    }
}

/// Protects: a log-sum-exp is within the error of its exponentials: each step multiplies by one of them (2 ulp) and adds,
/// which for `n` values along a tree of at most 64 sequential and 20 pairwise steps is below 300 roundings of 6e-8.
#[test]
fn log_sum_exp_is_close() {
    let Some(device) = device() else { return };
    let mut p = Builder::new("logsumexp");
    let x = p.input::<f32>("x", [9, 5000]);
    let (rows, all) = (p.output::<f32>("rows", [9]), p.device_scalar("all", 0.0f32));
    p.step("run", |s| {
        s.phase("main", |f| {
            f.log_sum_exp("r", &[1], x * 30.0f32).to(rows);
            f.log_sum_exp("a", &[0, 1], x * 30.0f32).to_scalar(all);
        });
    });
    let program = p.build().expect("valid");
    let host = run(Device::Host, &program, "run", &FusionPlan::mega(), 1);
    let found = run(device, &program, "run", &FusionPlan::mega(), 1);
    host.assert_agrees(&found, "log-sum-exp", |a, b| (a - b).abs() <= 2e-5 * a.abs().max(1.0));
}

/// Protects: copies and fills of every form of box: contiguous, rows with a pitch, and boxes that need a kernel; from and to
/// mapped outputs and inputs.
#[test]
fn copies_and_fills_move_exactly_their_boxes() {
    let Some(device) = device() else { return };
    let mut p = Builder::new("boxes");
    let cube = p.input::<f32>("cube", [6, 7, 8]);
    let thin = p.input::<bf16>("thin", [9, 11]);
    let numbers = p.input::<i32>("numbers", [40]);
    let whole = p.output::<f32>("whole", [6, 7, 8]);
    let inner = p.state::<f32>("inner", [4, 3, 5], Init::Zeros);
    let flat = p.state::<f32>("flat", [5, 7, 8], Init::Zeros);
    let half = p.output::<bf16>("half", [9, 11]);
    let filled = p.state::<f32>("filled", [6, 7, 8], Init::Zeros);
    let words = p.output::<i32>("words", [50]);
    p.step("run", |s| {
        s.phase("main", |f| {
            f.fill("clear", whole, -2.5f32);
            f.copy("slab", cube.slice(0, 1..4), whole.slice(0, 2..5));
            f.copy("box", cube.slice(0, 1..5).slice(1, 2..5).slice(2, 3..8), inner);
            f.copy("rows", cube.slice(1, 0..7).slice(0, 0..5).slice(2, 0..8), flat);
            f.copy("column", cube.slice(2, 3..4), filled.slice(2, 5..6));
            f.fill("half_clear", half, 1.01f32);
            f.copy("half_rows", thin.cols(2..9).rows(1..8), half.cols(4..11).rows(2..9));
            f.fill("slice", filled.slice(1, 2..4).slice(2, 0..3), 7.0f32);
            f.fill("plane", filled.pick(0, 3), 0.125f32);
            f.fill("words_clear", words, -3i32);
            f.copy("words_copy", numbers, words.slice(0, 5..45));
        });
    });
    assert_bit_equal(device, &p.build().expect("valid"));
}

/// Protects: hand-written kernels get every class of argument in its place, groups and odd sizes included, and agree with
/// their host functions.
///
/// `axpy` multiplies and adds: one of both may be contracted on neither side, so bits are equal. Adam and the loss have a dozen
/// roundings and exponentials of 2 ulp each: 1e-5 of the largest value is 80 roundings.
#[test]
fn hand_written_kernels_agree_with_their_host_functions() {
    use stepgraph::handle::Const;
    use stepgraph::ir::Role;
    use stepgraph::kernel::library::loss::softmax_xent;
    use stepgraph::kernel::library::optim::adam;
    let Some(device) = device() else { return };
    for n in [1, 31, 257, 5003] {
        let mut p = Builder::new("kernels");
        let x = p.input::<f32>("x", [n]);
        let y = p.state::<f32>("y", [n], Init::Zeros);
        let rate = p.host_scalar("rate", 0.25f32);
        p.step("run", |s| s.phase("main", |f| f.kernel("axpy", axpy::Args { x, y, a: rate })));
        assert_bit_equal(device, &p.build().expect("valid"));
    }
    for [batch, classes] in [[1, 2], [33, 10], [64, 129], [5, 1000]] {
        let mut p = Builder::new("training");
        let logits = p.param::<f32>("logits", [batch, classes], Init::Zeros);
        let bias = p.param::<f32>("bias", [3], Init::Zeros);
        let labels = p.input::<i32>("labels", [batch]);
        let theta = p.group("theta", &[logits, bias]);
        let grad = p.group_like("grad", theta, Role::State);
        let (m, v) = (p.group_like("m", theta, Role::State), p.group_like("v", theta, Role::State));
        let (step, lr) = (p.device_scalar("step", 0u32), p.host_scalar("lr", 1e-2f32));
        let loss = p.output::<f32>("loss", [batch]);
        let dlogits = p.tensor::<f32>("grad.logits");
        p.step("run", |s| {
            s.phase("main", |f| {
                f.set("tick", step, step + 1u32);
                f.kernel("loss", softmax_xent::Args { logits, labels, loss, dlogits });
                f.kernel(
                    "adam",
                    adam::Args {
                        param: theta,
                        grad,
                        m,
                        v,
                        step,
                        lr,
                        beta1: Const(0.9),
                        beta2: Const(0.999),
                        eps: Const(1e-8),
                    },
                );
            });
        });
        let program = p.build().expect("valid");
        let run_on = |device| {
            let plan = crate::support::plan(&program, "run", &FusionPlan::mega());
            let mut session = stepgraph::runtime::Session::open(device, [plan]).expect("opens");
            let mut numbers = crate::support::Numbers(3);
            session.load(logits, &numbers.floats((batch * classes) as usize)).expect("a parameter");
            let labels_of: Vec<i32> = (0..batch).map(|_| (numbers.next() % classes).cast_signed()).collect();
            session.write_input(labels, &labels_of).expect("an input");
            for _ in 0..5 {
                session.launch("run").expect("launches");
            }
            session.wait().expect("runs");
            crate::support::Memory::of(&mut session, program.program())
        };
        let (host, found) = (run_on(Device::Host), run_on(device));
        host.assert_agrees(&found, &format!("{batch}×{classes}"), |a, b| (a - b).abs() <= 1e-5 * (1.0 + a.abs()));
    }
}
