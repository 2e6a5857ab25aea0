//! The backward pass of the network, product by product (reference README §2.5).

use stepgraph::builder::{Body, GemmBuilder, Product, Val};
use stepgraph::handle::{Scalar, Tensor};

use super::hyper::Hyper;
use super::network::{Activations, Layer, Weights};

/// What the backward pass starts from; B samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signals {
    /// The observations that went in [B, S].
    pub(crate) x: Tensor<f32>,
    /// The mask of the forward pass [L].
    pub(crate) mask: Option<Tensor<f32>>,
    /// Weight of the auxiliary loss.
    pub(crate) aux_w: Scalar<f32>,
    /// Gradient with respect to the heads' outputs [B, N (1 + ΣA)].
    pub(crate) dout: Tensor<f32>,
    /// Gradient of the auxiliary loss, not weighted, with respect to its logits [B, C].
    pub(crate) daux: Tensor<f32>,
}

/// Adds the nodes that write the gradient of every weight into `grad`.
pub(crate) fn backward(
    f: &mut Body<'_>,
    hyper: &Hyper,
    theta: &Weights,
    grad: &Weights,
    online: &Activations,
    signals: &Signals,
) {
    let mut tape = Tape { f, hyper };
    let dhidden = tape.heads(theta, grad, online, signals.dout);
    let mut dz = tape.top(theta, grad, online, signals, dhidden);
    for block in (0..hyper.blocks).rev() {
        let (Some(weights), Some(into)) = (theta.block(hyper, block), grad.block(hyper, block)) else { break };
        dz = tape.block(block, weights, into, online, signals.mask, dz);
    }
    tape.weights("trunk.in", grad.trunk, dz, signals.x);
}

struct Tape<'a, 'b, 'c> {
    f: &'a mut Body<'b>,
    hyper: &'c Hyper,
}

impl<'b> Tape<'_, 'b, '_> {
    /// The output layers of the heads; gives the gradient before the heads' hidden activation [B, (K + 1) V].
    fn heads(&mut self, theta: &Weights, grad: &Weights, online: &Activations, dout: Tensor<f32>) -> Tensor<f32> {
        let (batch, head) = (self.hyper.batch, self.hyper.head);
        let width = (self.hyper.branch_count() + 1) * head;
        let (product, dhidden) = (self.f.temp("d.hidden.mm", [batch, width]), self.f.temp("d.hidden", [batch, width]));
        for index in 0..=self.hyper.branch_count() {
            let (outputs, inputs) = (self.hyper.out_columns(index), index * head..(index + 1) * head);
            let (d, hidden) = (dout.cols(outputs.clone()), online.hidden.cols(inputs.clone()));
            let (product, dhidden) = (product.cols(inputs.clone()), dhidden.cols(inputs));
            self.gemm(&format!("d.hidden{index}.mm"), d.nn(theta.out.rows(outputs.clone()).w)).to(product);
            self.f.map_to(&format!("d.hidden{index}"), dhidden, relu_gradient(product, hidden));
            self.gemm(&format!("grad.out{index}.w"), d.tn(hidden)).to(grad.out.rows(outputs).w);
        }
        self.f.sum("grad.out.b", &[0], dout).to(grad.out.b);
        dhidden
    }

    /// The heads' hidden layers and the auxiliary head; gives the gradient before the trunk's last activation [B, H].
    fn top(
        &mut self,
        theta: &Weights,
        grad: &Weights,
        online: &Activations,
        signals: &Signals,
        dhidden: Tensor<f32>,
    ) -> Tensor<f32> {
        let &Signals { aux_w, daux, .. } = signals;
        let top = online.top();
        self.gemm("grad.aux.w", daux.tn(top)).alpha(aux_w).to(grad.aux.w);
        self.f.sum("grad.aux.b", &[0], daux).finish(|sum| sum * aux_w).to(grad.aux.b);
        self.weights("heads.fc1", grad.hidden, dhidden, top);
        let from_aux = self.gemm("d.top.aux", daux.nn(theta.aux.w)).alpha(aux_w).done();
        let name = format!("d.h{}", self.hyper.blocks);
        let dtop = self.gemm(&format!("{name}.mm"), dhidden.nn(theta.hidden.w)).add(1.0, from_aux).done();
        self.through_relu(&name, dtop, top)
    }

    /// A residual block; takes and gives the gradient before the activation at its end and at its start [B, H].
    fn block(
        &mut self,
        block: u32,
        [fc1, fc2]: [Layer; 2],
        [into1, into2]: [Layer; 2],
        online: &Activations,
        mask: Option<Tensor<f32>>,
        dz: Tensor<f32>,
    ) -> Tensor<f32> {
        let (inner, below) = (online.inner[block as usize], online.trunk[block as usize]);
        let dbranch = match mask {
            Some(mask) => self.f.map(&format!("d.b{block}"), mask.pick(0, block) * dz),
            None => dz,
        };
        self.weights(&format!("res{block}.fc2"), into2, dbranch, inner);
        let dinner = self.gemm(&format!("d.a{block}.mm"), dbranch.nn(fc2.w)).done();
        let dinner = self.through_relu(&format!("d.a{block}"), dinner, inner);
        self.weights(&format!("res{block}.fc1"), into1, dinner, below);
        let dbelow = self.gemm(&format!("d.h{block}.mm"), dinner.nn(fc1.w)).add(1.0, dz).done();
        self.through_relu(&format!("d.h{block}"), dbelow, below)
    }

    /// The gradient of a linear layer's weights and biases, from that of its outputs `d` and from its inputs `x`.
    fn weights(&mut self, name: &str, into: Layer, d: Tensor<f32>, x: Tensor<f32>) {
        self.gemm(&format!("grad.{name}.w"), d.tn(x)).to(into.w);
        self.f.sum(&format!("grad.{name}.b"), &[0], d).to(into.b);
    }

    fn through_relu(&mut self, name: &str, d: Tensor<f32>, activation: Tensor<f32>) -> Tensor<f32> {
        self.f.map(name, relu_gradient(d, activation))
    }

    fn gemm(&mut self, name: &str, product: Product<f32>) -> GemmBuilder<'_, 'b, f32> {
        self.f.gemm(name, product).compute(self.hyper.compute)
    }
}

/// `d` where the activation let something through, else 0: not a product, so that nothing becomes NaN on the way.
fn relu_gradient(d: Tensor<f32>, activation: Tensor<f32>) -> Val<f32> {
    activation.val().above(0.0f32).select(d, 0.0f32)
}
