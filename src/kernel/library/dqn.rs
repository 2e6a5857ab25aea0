//! Temporal-difference targets, losses and gradients of a branching dueling Q-network (Wang et al. 2016, Tavakoli et al. 2018),
//! and the metrics of a training step.
//!
//! The heads' outputs of a sample are one row: n values of the state (one per atom), then n per action, branch after branch;
//! the atom runs fastest. Branch j has the actions `first[j] .. first[j + 1]`, counted over all branches. A head is
//! value + advantage - mean over the branch's actions of the advantage, atom by atom.

crate::kernel! {
    /// Squared error of plain action values (double DQN, van Hasselt et al. 2016; plain DQN with `chooser` = `evaluator`).
    ///
    /// goal = reward + γ (1 - done) · meanⱼ evaluatorⱼ\[nextⱼ\], nextⱼ the first argmax of chooserⱼ;
    /// eⱼ = takenⱼ\[actionⱼ\] - goal; loss = weight · meanⱼ eⱼ²; priority = Σⱼ |eⱼ|. `dout` is the gradient of the *mean* loss of
    /// the batch with respect to the row of `taken`. An action outside its branch gives NaN.
    pub td_scalar in "kernels/dqn.cu" (
        taken: In<f32>[b, w],
        chooser: In<f32>[b, w],
        evaluator: In<f32>[b, w],
        first: In<u32>[k1],
        action: In<i32>[b, k],
        reward: In<f32>[b],
        done: In<f32>[b],
        weight: In<f32>[b],
        gamma: Scalar<f32>,
        dout: Out<f32>[b, w],
        loss: Out<f32>[b],
        priority: Out<f32>[b],
        next_action: Out<i32>[b, k],
        goal: Out<f32>[b],
        b: Size,
        k: Size,
        w: Size,
        k1: Size,
    )
    launch rows(taken, block = 32)
    shared(0 + 20 * w)
    pdl(early = [])
    host td_scalar_host
}

crate::kernel! {
    /// Cross-entropy of categorical values (Bellemare et al. 2017) with n = kn/k atoms from `vmin` to `vmax`.
    ///
    /// nextⱼ is the first argmax of the expected value under chooserⱼ; goalⱼ the distribution of evaluatorⱼ\[nextⱼ\] moved to
    /// reward + γ (1 - done) z and projected on the support; loss = weight · meanⱼ CEⱼ; priority = Σⱼ CEⱼ. The rest as
    /// [`td_scalar`].
    pub td_categorical in "kernels/dqn.cu" (
        taken: In<f32>[b, w],
        chooser: In<f32>[b, w],
        evaluator: In<f32>[b, w],
        first: In<u32>[k1],
        action: In<i32>[b, k],
        reward: In<f32>[b],
        done: In<f32>[b],
        weight: In<f32>[b],
        gamma: Scalar<f32>,
        dout: Out<f32>[b, w],
        loss: Out<f32>[b],
        priority: Out<f32>[b],
        next_action: Out<i32>[b, k],
        goal: Out<f32>[b, kn],
        vmin: Const<f32>,
        vmax: Const<f32>,
        b: Size,
        k: Size,
        w: Size,
        k1: Size,
        kn: Size,
    )
    launch rows(taken, block = 128)
    shared(0 + 20 * w)
    pdl(early = [])
    host td_categorical_host
}

crate::kernel! {
    /// Sums a training step up in one row of [`METRICS`], and keeps the rows of the last `r` steps in a ring.
    ///
    /// `steps` counts calls; its value before the call, modulo `r`, is the ring's row.
    pub train_metrics in "kernels/dqn.cu" (
        td_loss: In<f32>[b],
        aux_loss: In<f32>[b],
        priority: In<f32>[b],
        aux_w: Scalar<f32>,
        norm: Scalar<f32>,
        clip: Scalar<f32>,
        ok: Scalar<u32>,
        t: Scalar<u32>,
        skipped: Scalar<u32>,
        nonfinite: Scalar<u32>,
        steps: ScalarInOut<u32>,
        row: Out<f32>[12],
        ring: InOut<f32>[r, 12],
        b: Size,
        r: Size,
    )
    launch fixed(grid = [1, 1, 1], block = [256, 1, 1])
    pdl(early = [])
    host train_metrics_host
}

/// What [`train_metrics`] writes, column by column. Counters are exact up to 2²⁴.
pub const METRICS: [&str; 12] = [
    "loss",
    "td_loss",
    "aux_loss",
    "grad_norm",
    "clip",
    "applied",
    "adam_steps",
    "skipped",
    "nonfinite_gradients",
    "nonfinite_samples",
    "priority_mean",
    "step",
];

/// One branch of one sample.
#[derive(Clone, Copy)]
struct Head<'a> {
    value: &'a [f32],
    advantage: &'a [f32],
}

impl<'a> Head<'a> {
    fn new(row: &'a [f32], n: usize, first: usize, end: usize) -> Self {
        Self { value: &row[..n], advantage: &row[n * (1 + first)..n * (1 + end)] }
    }

    fn actions(&self) -> usize {
        self.advantage.len() / self.value.len()
    }

    fn mean(&self, atom: usize) -> f32 {
        let own = self.advantage.iter().skip(atom).step_by(self.value.len());
        own.sum::<f32>() / self.actions() as f32
    }

    /// The atoms of one action.
    fn atoms(&self, action: usize) -> Vec<f32> {
        let n = self.value.len();
        (0..n).map(|atom| self.value[atom] + self.advantage[action * n + atom] - self.mean(atom)).collect()
    }
}

/// The first maximum; a NaN never beats a number.
fn first_argmax(values: impl IntoIterator<Item = f32>) -> usize {
    let (mut best, mut largest) = (0, f32::NAN);
    for (i, value) in values.into_iter().enumerate() {
        if value > largest || (largest.is_nan() && !value.is_nan()) {
            (best, largest) = (i, value);
        }
    }
    best
}

/// The chosen action, where it is one of the branch.
fn known(action: i32, actions: usize) -> Option<usize> {
    usize::try_from(action).ok().filter(|&action| action < actions)
}

/// Passes the gradient of one atom of the chosen action's value on to the branch's advantages: all of them are in the mean that is taken
/// away.
fn spread<'a>(advantages: impl Iterator<Item = &'a mut f32>, actions: usize, chosen: Option<usize>, gradient: f32) {
    let share = gradient / actions as f32;
    for (a, out) in advantages.take(actions).enumerate() {
        *out = if Some(a) == chosen { gradient } else { 0.0 } - share;
    }
}

fn td_scalar_host(call: td_scalar::Host<'_>) {
    let (k, w) = (call.k as usize, call.w as usize);
    let (batch, branches) = (call.b as f32, call.k as f32);
    for sample in 0..call.b as usize {
        let row = sample * w..(sample + 1) * w;
        let head = |outputs: &'_ [f32], j: usize| -> Vec<f32> {
            let head = Head::new(&outputs[row.clone()], 1, call.first[j] as usize, call.first[j + 1] as usize);
            let mean = head.mean(0);
            head.advantage.iter().map(|advantage| head.value[0] + advantage - mean).collect()
        };
        let mut boot = 0.0;
        for j in 0..k {
            let best = first_argmax(head(call.chooser, j));
            call.next_action[sample * k + j] = best as i32;
            boot += head(call.evaluator, j)[best];
        }
        let goal = call.reward[sample] + call.gamma * (1.0 - call.done[sample]) * (boot / branches);
        let scale = 2.0 * call.weight[sample] / (batch * branches);
        let dout = &mut call.dout[row.clone()];
        let (mut square, mut absolute) = (0.0, 0.0);
        dout[0] = 0.0;
        for j in 0..k {
            let q = head(call.taken, j);
            let chosen = known(call.action[sample * k + j], q.len());
            let e = chosen.map_or(f32::NAN, |chosen| q[chosen] - goal);
            let advantages = &mut dout[1 + call.first[j] as usize..][..q.len()];
            spread(advantages.iter_mut(), q.len(), chosen, scale * e);
            dout[0] += scale * e;
            square += e * e;
            absolute += e.abs();
        }
        call.loss[sample] = call.weight[sample] * (square / branches);
        call.priority[sample] = absolute;
        call.goal[sample] = goal;
    }
}

/// The softmax of logits, and its logarithm.
fn softmax(logits: &[f32]) -> (Vec<f32>, Vec<f32>) {
    // A NaN stays one: it is neither above nor equal to anything.
    let largest = logits.iter().fold(logits[0], |a, &b| if a.is_nan() || a >= b { a } else { b });
    let powers: Vec<f32> = logits.iter().map(|x| (x - largest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    let logs = logits.iter().map(|x| x - largest - sum.ln()).collect();
    (powers.into_iter().map(|e| e / sum).collect(), logs)
}

/// `x` in `[low, high]`; NaN stays NaN.
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

fn td_categorical_host(call: td_categorical::Host<'_>) {
    let (k, w, n) = (call.k as usize, call.w as usize, (call.kn / call.k) as usize);
    let (batch, branches) = (call.b as f32, call.k as f32);
    let dz = (call.vmax - call.vmin) / (n - 1) as f32;
    let atoms: Vec<f32> = (0..n).map(|i| call.vmin + i as f32 * dz).collect();
    for sample in 0..call.b as usize {
        let row = sample * w..(sample + 1) * w;
        let discount = call.gamma * (1.0 - call.done[sample]);
        let moved = atoms.iter().map(|z| clamp(call.reward[sample] + discount * z, call.vmin, call.vmax));
        let places: Vec<f32> = moved.map(|moved| clamp((moved - call.vmin) / dz, 0.0, (n - 1) as f32)).collect();
        let dout = &mut call.dout[row.clone()];
        dout[..n].fill(0.0);
        let mut entropies = 0.0;
        for j in 0..k {
            let (first, end) = (call.first[j] as usize, call.first[j + 1] as usize);
            let [taken, chooser, evaluator] =
                [call.taken, call.chooser, call.evaluator].map(|rows| Head::new(&rows[row.clone()], n, first, end));
            let best = first_argmax((0..chooser.actions()).map(|a| {
                let (p, _) = softmax(&chooser.atoms(a));
                p.iter().zip(&atoms).map(|(p, z)| p * z).sum()
            }));
            call.next_action[sample * k + j] = best as i32;
            let (p, _) = softmax(&evaluator.atoms(best));
            let goal = &mut call.goal[(sample * k + j) * n..(sample * k + j + 1) * n];
            project(&p, &places, goal);

            let chosen = known(call.action[sample * k + j], taken.actions());
            let (q, log_q) = softmax(&taken.atoms(chosen.unwrap_or(0)));
            let cross: f32 = goal.iter().zip(&log_q).map(|(m, log_q)| m * log_q).sum();
            entropies += chosen.map_or(f32::NAN, |_| -cross);
            let mass: f32 = goal.iter().sum();
            let scale = chosen.map_or(f32::NAN, |_| call.weight[sample] / (batch * branches));
            for i in 0..n {
                let gradient = scale * (q[i] * mass - goal[i]);
                dout[i] += gradient;
                let advantages = dout[(1 + first) * n + i..].iter_mut().step_by(n);
                spread(advantages, taken.actions(), chosen, gradient);
            }
        }
        call.loss[sample] = call.weight[sample] * (entropies / branches);
        call.priority[sample] = entropies;
    }
}

/// The mass of `p`, each entry moved to its (fractional) place and split between the two neighbours.
fn project(p: &[f32], places: &[f32], goal: &mut [f32]) {
    for (l, goal) in goal.iter_mut().enumerate() {
        let near = p.iter().zip(places).map(|(p, place)| {
            let height = 1.0 - (place - l as f32).abs();
            // Not `max`, which would drop a NaN.
            if height < 0.0 { 0.0 } else { p * height }
        });
        *goal = near.sum();
    }
}

fn train_metrics_host(call: train_metrics::Host<'_>) {
    let batch = call.b as f32;
    let td = call.td_loss.iter().sum::<f32>() / batch;
    let aux = call.aux_loss.iter().sum::<f32>() / batch;
    let finite: Vec<f32> = call.priority.iter().copied().filter(|priority| priority.is_finite()).collect();
    let mean = if finite.is_empty() { 0.0 } else { finite.iter().sum::<f32>() / finite.len() as f32 };
    call.row.copy_from_slice(&[
        td + call.aux_w * aux,
        td,
        aux,
        call.norm,
        call.clip,
        call.ok as f32,
        call.t as f32,
        call.skipped as f32,
        call.nonfinite as f32,
        batch - finite.len() as f32,
        mean,
        *call.steps as f32,
    ]);
    let place = (*call.steps % call.r) as usize * METRICS.len();
    call.ring[place..place + METRICS.len()].copy_from_slice(call.row);
    *call.steps = call.steps.wrapping_add(1);
}

#[cfg(test)]
mod tests;
