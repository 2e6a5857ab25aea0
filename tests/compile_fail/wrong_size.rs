use stepgraph::Builder;
use stepgraph::handle::{Const, Scalar, Tensor};
use stepgraph::ir::Init;
use stepgraph::kernel::library::optim::adam;

fn main() {
    let mut p = Builder::new("demo");
    let param: Tensor<f32> = p.param("w", [100], Init::Zeros);
    let labels: Tensor<i32> = p.input("labels", [100]);
    let step: Scalar<u32> = p.device_scalar("t", 1);
    let lr: Scalar<f32> = p.host_scalar("lr", 1e-3);
    let (grad, m, v) = (param, param, param);
    let (beta1, beta2, eps) = (Const(0.9), Const(0.999), Const(1e-8));
    let _ = (labels, step, lr);
    let _ = adam::Args { param, grad, m, v, step, lr, beta1, beta2, eps, n: 100 };
}
