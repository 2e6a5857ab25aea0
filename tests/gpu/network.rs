//! A small network that trains: the program that tests of replays, cost and lifetime run.

use stepgraph::Builder;
use stepgraph::handle::{Const, Scalar, Tensor};
use stepgraph::ir::{Compute, Init, Role};
use stepgraph::kernel::library::loss::softmax_xent;
use stepgraph::kernel::library::optim::adam;
use stepgraph::valid::ValidProgram;

/// The program `train` with the handles that tests use.
pub(crate) struct Network {
    pub(crate) program: ValidProgram,
    pub(crate) x: Tensor<f32>,
    pub(crate) labels: Tensor<i32>,
    pub(crate) loss: Tensor<f32>,
    pub(crate) lr: Scalar<f32>,
    pub(crate) scale: Scalar<f32>,
    pub(crate) noise: Scalar<f32>,
    pub(crate) seed: Scalar<u32>,
    pub(crate) step: Scalar<u32>,
}

/// 24 inputs, one hidden layer, 10 classes: forward with noise on the input, backward, Adam.
pub(crate) fn network(batch: u32, hidden: u32, compute: Compute) -> Network {
    let (inputs, classes) = (24, 10);
    let mut p = Builder::new("network");
    let x = p.input::<f32>("x", [batch, inputs]);
    let labels = p.input::<i32>("labels", [batch]);
    let (lr, scale) = (p.host_scalar("lr", 1e-2f32), p.host_scalar("scale", 1.0f32));
    let (noise, seed) = (p.host_scalar("noise", 0.01f32), p.host_scalar("seed", 1u32));
    let step = p.device_scalar("step", 0u32);
    let w1 = p.param::<f32>("w1", [hidden, inputs], Init::Normal { std: 0.3 });
    let b1 = p.param::<f32>("b1", [hidden], Init::Zeros);
    let w2 = p.param::<f32>("w2", [classes, hidden], Init::Normal { std: 0.2 });
    let b2 = p.param::<f32>("b2", [classes], Init::Zeros);
    let theta = p.group("theta", &[w1, b1, w2, b2]);
    let grad = p.group_like("grad", theta, Role::State);
    let (m, v) = (p.group_like("m", theta, Role::State), p.group_like("v", theta, Role::State));
    let [gw1, gb1, gw2, gb2] = ["w1", "b1", "w2", "b2"].map(|name| p.tensor::<f32>(&format!("grad.{name}")));
    let loss = p.output::<f32>("loss", [batch]);
    p.step("train", |s| {
        let (noisy, h, logits) = s.phase("forward", |f| {
            f.set("tick", step, step + 1u32);
            let noisy = f.map("noisy", x + stepgraph::builder::normal(seed, step, 0) * noise);
            let h = f.gemm("h", noisy.nt(w1)).compute(compute).then(|acc| (acc + b1).relu());
            let logits = f.gemm("logits", h.nt(w2)).compute(compute).then(|acc| acc + b2);
            (noisy, h, logits)
        });
        s.phase("backward", |f| {
            let dlogits = f.temp::<f32>("dlogits", [batch, classes]);
            f.kernel("xent", softmax_xent::Args { logits, labels, loss, dlogits });
            f.gemm("gw2", dlogits.tn(h)).alpha(scale).compute(compute).to(gw2);
            f.sum("gb2", &[0], dlogits * scale).to(gb2);
            let dh = f.gemm("dh.mm", dlogits.nn(w2)).compute(compute).done();
            let dh = f.map("dh", h.val().above(0.0f32).select(dh, 0.0f32));
            f.gemm("gw1", dh.tn(noisy)).alpha(scale).compute(compute).to(gw1);
            f.sum("gb1", &[0], dh * scale).to(gb1);
        });
        s.phase("optimiser", |f| {
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
    Network { program, x, labels, loss, lr, scale, noise, seed, step }
}
