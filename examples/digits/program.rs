//! The program: a 64-256-128-10 network, its training step, its test, and the report of an epoch.

use stepgraph::builder::{Body, Ix, Val, axis, philox};
use stepgraph::handle::{Const, Scalar, Tensor};
use stepgraph::ir::{Diagnostics, Init, Role};
use stepgraph::kernel::library::{loss::softmax_xent, optim::adam};
use stepgraph::{Builder, valid::ValidProgram};

/// Pixels of an image, hidden units of the two layers, classes.
const WIDTHS: [u32; 4] = [64, 256, 128, 10];
/// Images of a mini-batch.
pub(crate) const BATCH: u32 = 64;
/// Images to train on.
pub(crate) const TRAIN: u32 = 1437;
/// Images to test on.
pub(crate) const TEST: u32 = 360;

/// The program and what the host touches of it.
#[derive(Debug)]
pub(crate) struct Digits {
    pub(crate) program: ValidProgram,
    pub(crate) rate: Scalar<f32>,
    pub(crate) seed: Scalar<u32>,
    pub(crate) train_images: Tensor<f32>,
    pub(crate) train_labels: Tensor<i32>,
    pub(crate) test_images: Tensor<f32>,
    pub(crate) test_labels: Tensor<i32>,
    /// The mean loss of the last mini-batch.
    pub(crate) batch_loss: Tensor<f32>,
    /// The mean loss since the last report.
    pub(crate) epoch_loss: Tensor<f32>,
    /// How many test images are recognised.
    pub(crate) correct: Tensor<u32>,
}

/// A fully connected layer: y = x · wᵀ + b.
#[derive(Clone, Copy)]
struct Layer {
    name: &'static str,
    w: Tensor<f32>,
    b: Tensor<f32>,
}

/// Declares the program. Steps: `train` (one mini-batch), `report` (an epoch's mean loss), `test`.
///
/// # Errors
/// None, unless this crate's rules change.
pub(crate) fn digits() -> Result<Digits, Diagnostics> {
    let mut p = Builder::new("digits");
    let rate = p.host_scalar("rate", 1e-3f32);
    let seed = p.host_scalar("seed", 0u32);
    let t = p.device_scalar("t", 0u32);
    let loss_sum = p.device_scalar("loss_sum", 0f32);
    let loss_count = p.device_scalar("loss_count", 0u32);

    let layers = layers(&mut p);
    let train_images = p.state::<f32>("train.images", [TRAIN, WIDTHS[0]], Init::Zeros);
    let train_labels = p.state::<i32>("train.labels", [TRAIN], Init::Zeros);
    let test_images = p.state::<f32>("test.images", [TEST, WIDTHS[0]], Init::Zeros);
    let test_labels = p.state::<i32>("test.labels", [TEST], Init::Zeros);
    let batch_loss = p.output::<f32>("batch_loss", []);
    let epoch_loss = p.output::<f32>("epoch_loss", []);
    let correct = p.output::<u32>("correct", []);
    let theta = p.group("theta", &layers.map(|layer| [layer.w, layer.b]).concat());
    let m = p.group_like("m", theta, Role::State);
    let v = p.group_like("v", theta, Role::State);
    let gradient = p.group_like("grad", theta, Role::Temp);

    p.step("train", |step| {
        let (images, labels) = step.phase("draw", |f| {
            f.set("tick", t, t + 1u32);
            let drawn = philox(seed, t, Val::index(0), 0, 0) % TRAIN;
            let rows = f.map_over::<u32>("rows", [BATCH], drawn);
            let row = rows.at([axis(0)]);
            let images = f.map_over::<f32>("images", [BATCH, WIDTHS[0]], train_images.at([Ix::from(&row), axis(1)]));
            let labels = f.map_over::<i32>("labels", [BATCH], train_labels.at([Ix::from(&row)]));
            (images, labels)
        });
        let activations = step.phase("forward", |f| forward(f, "", &layers, images));
        let dlogits = step.phase("loss", |f| {
            let logits = activations[3];
            let loss = f.temp::<f32>("loss", [BATCH]);
            let dlogits = f.temp::<f32>("dlogits", [BATCH, WIDTHS[3]]);
            f.kernel("xent", softmax_xent::Args { logits, labels, loss, dlogits });
            f.sum::<f32>("mean", &[0], loss).finish(|sum| sum / BATCH as f32).to(batch_loss);
            dlogits
        });
        step.phase("backward", |f| backward(f, &layers, &activations, dlogits));
        step.phase("update", |f| {
            let (beta1, beta2, eps) = (Const(0.9), Const(0.999), Const(1e-8));
            f.kernel("adam", adam::Args { param: theta, grad: gradient, m, v, step: t, lr: rate, beta1, beta2, eps });
            f.set("add_loss", loss_sum, loss_sum + batch_loss);
            f.set("count", loss_count, loss_count + 1u32);
        });
    });
    p.step("report", |step| {
        step.phase("epoch", |f| {
            f.map_to("divide", epoch_loss, loss_sum / loss_count.val().to_f32());
            f.set("clear_sum", loss_sum, 0.0f32);
            f.set("clear_count", loss_count, 0u32);
        });
    });
    p.step("test", |step| {
        let activations = step.phase("forward", |f| forward(f, "test.", &layers, test_images));
        step.phase("count", |f| {
            let guess = f.argmax("guess", 1, activations[3]).done();
            let is_right = guess.val().to_i32().equal(test_labels);
            f.sum("right", &[0], is_right.to_u32()).to(correct);
        });
    });
    let program = p.build()?;
    Ok(Digits {
        program,
        rate,
        seed,
        train_images,
        train_labels,
        test_images,
        test_labels,
        batch_loss,
        epoch_loss,
        correct,
    })
}

/// The layers, weights drawn as He et al. (2015) propose for rectified units: variance 2 / inputs.
fn layers(p: &mut Builder) -> [Layer; 3] {
    [("fc1", 0), ("fc2", 1), ("fc3", 2)].map(|(name, at)| {
        let (inputs, outputs) = (WIDTHS[at], WIDTHS[at + 1]);
        let std = (2.0 / inputs as f32).sqrt();
        let w = p.param(&format!("{name}.w"), [outputs, inputs], Init::Normal { std });
        let b = p.param(&format!("{name}.b"), [outputs], Init::Zeros);
        Layer { name, w, b }
    })
}

/// The input and what each layer makes of it, under names with a prefix; the last layer is not rectified.
fn forward(f: &mut Body<'_>, prefix: &str, layers: &[Layer; 3], images: Tensor<f32>) -> [Tensor<f32>; 4] {
    let [first, second, third] = *layers;
    let name = |name: &str| format!("{prefix}{name}");
    let h1 = f.gemm(&name("h1"), images.nt(first.w)).then(|acc| (acc + first.b).relu());
    let h2 = f.gemm(&name("h2"), h1.nt(second.w)).then(|acc| (acc + second.b).relu());
    let logits = f.gemm(&name("logits"), h2.nt(third.w)).then(|acc| acc + third.b);
    [images, h1, h2, logits]
}

/// Gradients, last layer first. A rectified unit passes its gradient on where it is positive.
fn backward(f: &mut Body<'_>, layers: &[Layer; 3], activations: &[Tensor<f32>; 4], dlogits: Tensor<f32>) {
    let mut d = dlogits;
    for (at, layer) in layers.iter().enumerate().rev() {
        let (w, b) =
            (f.tensor::<f32>(&format!("grad.{}.w", layer.name)), f.tensor::<f32>(&format!("grad.{}.b", layer.name)));
        f.gemm(&format!("dw{}", at + 1), d.tn(activations[at])).to(w);
        f.sum::<f32>(&format!("db{}", at + 1), &[0], d).to(b);
        if at > 0 {
            let h = activations[at];
            d = f.gemm(&format!("dh{at}"), d.nn(layer.w)).then(|acc| h.val().above(0.0f32).select(acc, 0.0f32));
        }
    }
}
