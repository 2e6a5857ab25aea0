//! Optimisers.

crate::kernel! {
    /// Adam (Kingma & Ba 2015, algorithm 1) over flat arrays: m ← β₁m + (1 - β₁)g, v ← β₂v + (1 - β₂)g²,
    /// p ← p - lr · (m / (1 - β₁ᵗ)) / (√(v / (1 - β₂ᵗ)) + ε).
    ///
    /// `step` is t: at least 1, incremented before the call. All buffers have `n` elements; groups are flat, and their padding
    /// stays zero.
    pub adam in "kernels/optim.cu" (
        param: InOut<f32>[n],
        grad: In<f32>[n],
        m: InOut<f32>[n],
        v: InOut<f32>[n],
        step: Scalar<u32>,
        lr: Scalar<f32>,
        beta1: Const<f32>,
        beta2: Const<f32>,
        eps: Const<f32>,
        n: Size,
    )
    launch elements(param, block = 256, per_thread = 4)
    host adam_host
}

fn adam_host(call: adam::Host<'_>) {
    #[expect(
        clippy::cast_precision_loss,
        reason = "the kernel converts the same way; exact for the first 16 million steps"
    )]
    let t = call.step as f32;
    let correction = |beta: f32| -(t * (beta - 1.0).ln_1p()).exp_m1();
    let (correction1, correction2) = (correction(call.beta1), correction(call.beta2));
    let moments = call.m.iter_mut().zip(call.v.iter_mut());
    for ((param, g), (m, v)) in call.param.iter_mut().zip(call.grad).zip(moments) {
        *m = call.beta1 * *m + (1.0 - call.beta1) * g;
        *v = call.beta2 * *v + (1.0 - call.beta2) * (g * g);
        *param -= call.lr * (*m / correction1) / ((*v / correction2).sqrt() + call.eps);
    }
}

#[cfg(test)]
mod tests {
    use super::{adam, adam_host};

    /// Protects: the update follows the paper's formula, in particular its bias correction at small t and ε outside the root.
    ///
    /// The reference is the formula in f64 from the same f32 inputs. Per step the f32 update makes about ten roundings and
    /// four function values good to 2 units, each 6e-8 relative to a term of at most the update's own size (about lr): 1e-6 · lr
    /// per step, plus one rounding of p. Ten steps stay below 10 · (1e-6 · lr + 6e-8 · |p|).
    #[test]
    fn adam_follows_the_paper() {
        let (beta1, beta2, eps, lr) = (0.9f32, 0.999f32, 1e-8f32, 1e-2f32);
        let mut param = [0.5f32, -1.25, 3.0, 0.0];
        let (mut m, mut v) = ([0.0f32; 4], [0.0f32; 4]);
        let (mut param64, mut m64, mut v64) = (param.map(f64::from), [0.0f64; 4], [0.0f64; 4]);
        let (b1, b2) = (f64::from(beta1), f64::from(beta2));
        for step in 1..=10u32 {
            let grad = [1.0f32, -0.5, 1e-3, 0.0].map(|g| g * (1.0 + step as f32 / 7.0));
            adam_host(adam::Host {
                param: &mut param,
                grad: &grad,
                m: &mut m,
                v: &mut v,
                step,
                lr,
                beta1,
                beta2,
                eps,
                n: 4,
            });
            let t = i32::try_from(step).expect("small");
            for i in 0..4 {
                let g = f64::from(grad[i]);
                m64[i] = b1 * m64[i] + (1.0 - b1) * g;
                v64[i] = b2 * v64[i] + (1.0 - b2) * g * g;
                let (m_hat, v_hat) = (m64[i] / (1.0 - b1.powi(t)), v64[i] / (1.0 - b2.powi(t)));
                param64[i] -= f64::from(lr) * m_hat / (v_hat.sqrt() + f64::from(eps));
            }
        }
        for (found, expected) in param.into_iter().zip(param64) {
            let tolerance = 10.0 * (1e-6 * f64::from(lr) + 6e-8 * expected.abs());
            assert!((f64::from(found) - expected).abs() <= tolerance, "{found} is not {expected} ± {tolerance}");
        }
        assert_eq!((param[3], m[3], v[3]), (0.0, 0.0, 0.0), "a zero gradient on a zero weight moves nothing");
    }
}
