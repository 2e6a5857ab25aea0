//! Gradient clipping, Adam and target averaging that leave everything as it was when the gradient is not finite.
//!
//! `ok` is 1 where the gradient's norm is finite. Kernels that follow return on it before they write: nothing is multiplied by
//! zero, so that no NaN survives, and what is skipped keeps its bits.

crate::kernel! {
    /// Sum of squares, and number of entries that are not finite, of each of `p` chunks of a flat gradient.
    pub square_sums in "kernels/guarded.cu" (
        grad: In<f32>[n],
        partial: Out<f32>[p, 2],
        n: Size,
        p: Size,
    )
    launch rows(partial, block = 256)
    pdl(early = [])
    host square_sums_host
}

crate::kernel! {
    /// The gradient's norm, the clip factor min(1, max_norm / (norm + 1e-6)), the flag `ok`, the counters of applied and
    /// skipped steps, and Adam's bias corrections 1 - βᵗ at the new t.
    pub clip_factor in "kernels/guarded.cu" (
        partial: In<f32>[p, 2],
        max_norm: Scalar<f32>,
        norm: ScalarOut<f32>,
        clip: ScalarOut<f32>,
        ok: ScalarOut<u32>,
        nonfinite: ScalarOut<u32>,
        t: ScalarInOut<u32>,
        skipped: ScalarInOut<u32>,
        correction1: ScalarOut<f32>,
        correction2: ScalarOut<f32>,
        beta1: Const<f32>,
        beta2: Const<f32>,
        p: Size,
    )
    launch fixed(grid = [1, 1, 1], block = [256, 1, 1])
    pdl(early = [])
    host clip_factor_host
}

crate::kernel! {
    /// Adam (Kingma & Ba 2015, algorithm 1) with the gradient scaled by `clip`, where `ok` is not 0.
    ///
    /// The bias corrections come from [`clip_factor`]. The padding of a group stays zero.
    pub adam_guarded in "kernels/guarded.cu" (
        param: InOut<f32>[n],
        grad: In<f32>[n],
        m: InOut<f32>[n],
        v: InOut<f32>[n],
        clip: Scalar<f32>,
        ok: Scalar<u32>,
        lr: Scalar<f32>,
        correction1: Scalar<f32>,
        correction2: Scalar<f32>,
        beta1: Const<f32>,
        beta2: Const<f32>,
        eps: Const<f32>,
        n: Size,
    )
    launch elements(param, block = 256, per_thread = 4)
    pdl(early = [])
    host adam_guarded_host
}

crate::kernel! {
    /// target ← target + τ (param - target), where `ok` is not 0.
    pub ema_guarded in "kernels/guarded.cu" (
        target: InOut<f32>[n],
        param: In<f32>[n],
        tau: Scalar<f32>,
        ok: Scalar<u32>,
        n: Size,
    )
    launch elements(target, block = 256, per_thread = 4)
    pdl(early = [])
    host ema_guarded_host
}

/// Lanes over which the host sums as a block does, so that sums of millions of squares keep their digits.
const LANES: usize = 256;

/// The sum of the lanes' sums, halving as a block does.
fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

fn square_sums_host(call: square_sums::Host<'_>) {
    let chunk = call.n.div_ceil(call.p) as usize;
    let mut chunks = call.grad.chunks(chunk);
    for partial in call.partial.chunks_exact_mut(2) {
        let grad = chunks.next().unwrap_or_default();
        let mut lanes = [0.0f32; LANES];
        for block in grad.chunks(LANES) {
            lanes.iter_mut().zip(block).for_each(|(sum, g)| *sum += g * g);
        }
        partial[0] = fold(lanes);
        partial[1] = grad.iter().filter(|g| !g.is_finite()).count() as f32;
    }
}

fn clip_factor_host(call: clip_factor::Host<'_>) {
    let (mut lanes, mut nonfinite) = ([0.0f32; LANES], 0.0f32);
    for (i, partial) in call.partial.chunks_exact(2).enumerate() {
        lanes[i % LANES] += partial[0];
        nonfinite += partial[1];
    }
    let norm = fold(lanes).sqrt();
    let clip = call.max_norm / (norm + 1e-6);
    *call.norm = norm;
    *call.clip = if clip > 1.0 { 1.0 } else { clip };
    *call.ok = u32::from(norm.is_finite());
    *call.nonfinite = nonfinite as u32;
    *call.t += *call.ok;
    *call.skipped += 1 - *call.ok;
    let correction = |beta: f32| -(f64::from(*call.t) * f64::from(beta).ln()).exp_m1() as f32;
    *call.correction1 = correction(call.beta1);
    *call.correction2 = correction(call.beta2);
}

fn adam_guarded_host(call: adam_guarded::Host<'_>) {
    if call.ok == 0 {
        return;
    }
    let moments = call.m.iter_mut().zip(call.v.iter_mut());
    for ((param, grad), (m, v)) in call.param.iter_mut().zip(call.grad).zip(moments) {
        let g = call.clip * grad;
        *m = call.beta1 * *m + (1.0 - call.beta1) * g;
        *v = call.beta2 * *v + (1.0 - call.beta2) * (g * g);
        *param -= call.lr * (*m / call.correction1) / ((*v / call.correction2).sqrt() + call.eps);
    }
}

fn ema_guarded_host(call: ema_guarded::Host<'_>) {
    if call.ok == 0 {
        return;
    }
    for (target, param) in call.target.iter_mut().zip(call.param) {
        *target += call.tau * (param - *target);
    }
}

#[cfg(test)]
mod tests {
    use super::super::draws::Draws;
    use super::*;

    const BETAS: [f32; 2] = [0.9, 0.999];

    /// What `clip_factor` leaves behind.
    #[derive(Clone, Copy, Debug, Default)]
    struct Guard {
        norm: f32,
        clip: f32,
        ok: u32,
        nonfinite: u32,
        t: u32,
        skipped: u32,
        correction: [f32; 2],
    }

    fn guard(grad: &[f32], chunks: u32, max_norm: f32, before: Guard) -> Guard {
        let mut partial = vec![f32::NAN; 2 * chunks as usize];
        let n = u32::try_from(grad.len()).expect("small");
        square_sums_host(square_sums::Host { grad, partial: &mut partial, n, p: chunks });
        let mut after = before;
        let [correction1, correction2] = &mut after.correction;
        clip_factor_host(clip_factor::Host {
            partial: &partial,
            max_norm,
            norm: &mut after.norm,
            clip: &mut after.clip,
            ok: &mut after.ok,
            nonfinite: &mut after.nonfinite,
            t: &mut after.t,
            skipped: &mut after.skipped,
            correction1,
            correction2,
            beta1: BETAS[0],
            beta2: BETAS[1],
            p: chunks,
        });
        after
    }

    /// Protects: norm and clip factor for odd lengths, more chunks than entries included, and bias corrections at small t.
    ///
    /// A square is good to 6e-8, and so is each of the about ⌈n/256⌉ + 16 additions of positive numbers: with n ≤ 5000, 4e-6 of
    /// the sum, half of it for the root. A correction is one rounding of an f64.
    #[test]
    fn norm_and_clip_follow_the_formula() {
        let mut draws = Draws(2);
        for (n, chunks) in [(1, 1), (3, 5), (257, 2), (5000, 3), (4096, 16)] {
            let grad = draws.vec(n, 3.0);
            let expected = grad.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
            let found = guard(&grad, chunks, 2.0, Guard { t: 6, ..Guard::default() });
            assert!((f64::from(found.norm) - expected).abs() <= 2e-6 * expected, "{} is not {expected}", found.norm);
            let clip = (2.0 / (expected + 1e-6)).min(1.0);
            assert!((f64::from(found.clip) - clip).abs() <= 3e-6 * clip, "{} is not {clip}", found.clip);
            assert_eq!((found.ok, found.nonfinite, found.t, found.skipped), (1, 0, 7, 0));
            for (found, beta) in found.correction.into_iter().zip(BETAS) {
                let expected = 1.0 - f64::from(beta).powi(7);
                assert!((f64::from(found) - expected).abs() <= 6e-8 * expected, "{found} is not {expected}");
            }
        }
    }

    /// Protects: a gradient that is not finite, or whose squares overflow, is counted, applied to nothing, and forgotten.
    #[test]
    fn nothing_moves_on_a_bad_gradient() {
        let before = Guard { t: 3, skipped: 1, ..Guard::default() };
        for (bad, count) in [(f32::NAN, 1), (f32::INFINITY, 1), (f32::MAX, 0)] {
            let found = guard(&[1.0, bad, 0.5], 2, 1.0, before);
            assert_eq!((found.ok, found.t, found.skipped, found.nonfinite), (0, 3, 2, count), "{bad}");
            let (mut param, mut m, mut v) = ([1.0f32, -0.0, 3.0], [0.5f32; 3], [0.25f32; 3]);
            adam(&mut param, &[1.0, bad, 0.5], &mut m, &mut v, found);
            let mut target = [7.0f32, 8.0, 9.0];
            ema_guarded_host(ema_guarded::Host { target: &mut target, param: &param, tau: 0.5, ok: found.ok, n: 3 });
            assert_eq!(param.map(f32::to_bits), [1.0f32, -0.0, 3.0].map(f32::to_bits));
            assert_eq!((m, v, target), ([0.5; 3], [0.25; 3], [7.0, 8.0, 9.0]));
        }
    }

    fn adam(param: &mut [f32], grad: &[f32], m: &mut [f32], v: &mut [f32], guard: Guard) {
        let n = u32::try_from(grad.len()).expect("small");
        let Guard { clip, ok, correction: [correction1, correction2], .. } = guard;
        let [beta1, beta2] = BETAS;
        let (lr, eps) = (1e-2, 1e-8);
        adam_guarded_host(adam_guarded::Host {
            param,
            grad,
            m,
            v,
            clip,
            ok,
            lr,
            correction1,
            correction2,
            beta1,
            beta2,
            eps,
            n,
        });
    }

    /// Protects: Adam with bias correction and ε outside the root, on the clipped gradient, and the average that follows.
    ///
    /// Tolerance as in `optim`: per step about 1e-6 · lr and one rounding of p, with 4e-6 more of the update for the clip factor.
    #[test]
    fn adam_and_average_follow_the_formula() {
        let mut draws = Draws(3);
        let n = 37;
        let mut param = draws.vec(n, 1.0);
        let (mut m, mut v, mut target) = (vec![0.0; n], vec![0.0; n], draws.vec(n, 1.0));
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let (mut p64, mut m64, mut v64, mut t64) = (wide(&param), wide(&m), wide(&v), wide(&target));
        let (mut state, max_norm, tau) = (Guard::default(), 1.0f32, 0.25f32);
        let [b1, b2] = BETAS.map(f64::from);
        for step in 1..=10 {
            let grad = draws.vec(n, 1.0);
            state = guard(&grad, 2, max_norm, state);
            adam(&mut param, &grad, &mut m, &mut v, state);
            ema_guarded_host(ema_guarded::Host { target: &mut target, param: &param, tau, ok: state.ok, n: 37 });
            let norm = grad.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
            let clip = (f64::from(max_norm) / (norm + 1e-6)).min(1.0);
            for i in 0..n {
                let g = clip * f64::from(grad[i]);
                m64[i] = b1 * m64[i] + (1.0 - b1) * g;
                v64[i] = b2 * v64[i] + (1.0 - b2) * g * g;
                let (m_hat, v_hat) = (m64[i] / (1.0 - b1.powi(step)), v64[i] / (1.0 - b2.powi(step)));
                p64[i] -= f64::from(1e-2f32) * m_hat / (v_hat.sqrt() + f64::from(1e-8f32));
                t64[i] += f64::from(tau) * (p64[i] - t64[i]);
            }
        }
        for i in 0..n {
            let tolerance = 10.0 * (5e-6 * 1e-2 + 6e-8 * 2.0);
            assert!((f64::from(param[i]) - p64[i]).abs() <= tolerance, "p {i}: {} is not {}", param[i], p64[i]);
            assert!((f64::from(target[i]) - t64[i]).abs() <= tolerance, "target {i}: {} is not {}", target[i], t64[i]);
        }
    }
}
