//! The training step: its memory, and its phases from drawing a batch to the metrics. Nothing in it returns to the host.

use stepgraph::Builder;
use stepgraph::builder::{Body, IntoVal, Val, uniform};
use stepgraph::handle::{Const, Scalar, Tensor};
use stepgraph::ir::{Init, Role};
use stepgraph::kernel::library::dqn::{METRICS, td_categorical, td_scalar, train_metrics};
use stepgraph::kernel::library::guarded::{adam_guarded, clip_factor, ema_guarded, square_sums};
use stepgraph::kernel::library::loss::softmax_xent;
use stepgraph::kernel::library::spectral::{spectral_apply, spectral_project, spectral_shrink};

use super::backward::{Signals, backward};
use super::hyper::{Hyper, Mask, Source};
use super::network::{Activations, Pass, Weights, forward};
use super::replay::{Batch, Dice, Replay, stream};

/// Gradient entries of one partial sum: enough for a block, few enough that the second sum is short.
const NORM_CHUNK: u64 = 4096;

/// Rows of the ring of metrics: steps that the host may fall behind in reading.
pub(crate) const RING: u32 = 1024;

/// The training system's memory, as one program holds it.
#[derive(Clone, Debug)]
pub(crate) struct Dqn {
    /// What fixes its shape.
    pub(crate) hyper: Hyper,
    /// The trained weights.
    pub(crate) theta: Weights,
    /// Their slow copy, which values next states. Zero at first: copy `theta` before training.
    pub(crate) target: Weights,
    /// The gradient of the last step, before the clip.
    pub(crate) grad: Weights,
    /// Adam's first moments.
    pub(crate) m: Weights,
    /// Adam's second moments.
    pub(crate) v: Weights,
    /// Spectral normalisation, stack by stack in the order of [`Hyper::linears`].
    pub(crate) spectral: Vec<Spectral>,
    /// What the host sets.
    pub(crate) scalars: Scalars,
    /// What only nodes write.
    pub(crate) counters: Counters,
    /// The batch of the step: inputs, or what was drawn.
    pub(crate) batch: Batch,
    /// The replay buffer, where batches are drawn.
    pub(crate) replay: Option<Replay>,
    /// The stochastic-depth mask [L]; none without blocks.
    pub(crate) mask: Option<Tensor<f32>>,
    /// What the host may read.
    pub(crate) outputs: Outputs,
}

/// A stack of matrices under spectral normalisation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spectral {
    /// The stack's name.
    pub(crate) name: &'static str,
    /// How many matrices it holds (m).
    pub(crate) matrices: u32,
    /// Their weights, one under another [r, c].
    pub(crate) w: Tensor<f32>,
    /// The vectors of the power iteration [r].
    pub(crate) u: Tensor<f32>,
    /// The norms that the last step found, before it shrank [m].
    pub(crate) sigma: Tensor<f32>,
}

/// Quantities that the host may change at every step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalars {
    /// Weight of the auxiliary loss.
    pub(crate) aux_w: Scalar<f32>,
    /// Learning rate.
    pub(crate) lr: Scalar<f32>,
    /// How far the target follows in a step.
    pub(crate) tau: Scalar<f32>,
    /// The largest spectral norm of a hidden weight.
    pub(crate) sigma_max: Scalar<f32>,
    /// The largest norm of a gradient.
    pub(crate) max_norm: Scalar<f32>,
    /// Discount of a step.
    pub(crate) gamma: Scalar<f32>,
    /// The probability that a residual block is kept; unused where the mask is forced.
    pub(crate) keep: Scalar<f32>,
    /// The seed of all random draws.
    pub(crate) seed: Scalar<u32>,
}

/// Cells that only nodes write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters {
    /// Adam steps applied.
    pub(crate) t: Scalar<u32>,
    /// Steps whose gradient was not finite.
    pub(crate) skipped: Scalar<u32>,
    /// Steps, both kinds.
    pub(crate) steps: Scalar<u32>,
    norm: Scalar<f32>,
    clip: Scalar<f32>,
    ok: Scalar<u32>,
    nonfinite: Scalar<u32>,
    correction: [Scalar<f32>; 2],
}

/// What a step reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outputs {
    /// One row of [`METRICS`].
    pub(crate) metrics: Tensor<f32>,
    /// The rows of the last [`RING`] steps; step i is row i mod RING.
    pub(crate) ring: Tensor<f32>,
    /// Errors of the samples: Σ |e|, or Σ cross-entropy, over branches [B].
    pub(crate) priorities: Tensor<f32>,
    /// Actions that the targets chose in the next state [B, K].
    pub(crate) next_action: Tensor<i32>,
}

impl Dqn {
    /// Declares everything that the step keeps. `hyper` has passed [`Hyper::check`].
    pub(crate) fn declare(p: &mut Builder, hyper: &Hyper) -> Self {
        let theta = Weights::params(p, hyper);
        let [target, grad, m, v] = ["target", "grad", "m", "v"].map(|name| theta.like(p, name, Role::State));
        let replay = match hyper.source {
            Source::Inputs => None,
            Source::Replay { capacity, .. } => Some(Replay::declare(p, hyper, capacity)),
        };
        let batch = declare_batch(p, hyper);
        Self {
            hyper: hyper.clone(),
            spectral: declare_spectral(p, hyper, &theta),
            scalars: Scalars::declare(p),
            counters: Counters::declare(p),
            mask: (hyper.blocks > 0).then(|| match hyper.mask {
                Mask::Forced => p.input("mask", [hyper.blocks]),
                Mask::Drawn => p.temp("mask", [hyper.blocks]),
            }),
            outputs: Outputs {
                metrics: p.output("metrics", [METRICS.len() as u32]),
                ring: p.state("metrics.ring", [RING, METRICS.len() as u32], Init::Zeros),
                priorities: p.output("priorities", [hyper.batch]),
                next_action: p.output("next_action", [hyper.batch, hyper.branch_count()]),
            },
            theta,
            target,
            grad,
            m,
            v,
            batch,
            replay,
        }
    }

    /// Adds the step `train`, with one variant per kind of target.
    pub(crate) fn add_train(&self, p: &mut Builder) {
        let variants = self.hyper.variants();
        p.step_with_variants("train", variants, |s| {
            let drawn = self.replay.map(|replay| {
                let (batch, dice) = (&self.batch, self.dice());
                let index = s.phase("sample", |f| replay.sample(f, dice, self.hyper.batch, batch.weight));
                s.phase("gather", |f| replay.gather(f, dice, index, batch, self.exposure()));
                (replay, index)
            });
            s.phase("spectral", |f| self.spectral_norm(f));
            // Every variant leaves the same Temps behind, so that what follows is common to all of them.
            let mut signals = None;
            for &variant in variants {
                let name = if variant == "c51" { "forward".to_owned() } else { format!("forward_{variant}") };
                signals = Some(s.phase_in(&name, &[variant], |f| self.forward(f, variant)));
            }
            let Some(Forward { online, dout, td_loss }) = signals else { return };
            let (aux_loss, daux) = s.phase("aux", |f| self.aux(f, &online));
            let signals = Signals { x: self.states(), mask: self.mask, aux_w: self.scalars.aux_w, dout, daux };
            s.phase("backward", |f| backward(f, &self.hyper, &self.theta, &self.grad, &online, &signals));
            s.phase("grad_norm", |f| self.grad_norm(f));
            s.phase("adam", |f| self.adam(f));
            s.phase("target_ema", |f| self.target_ema(f));
            if let Some((replay, index)) = drawn {
                s.phase("per_update", |f| replay.rank(f, index, self.outputs.priorities));
            }
            s.phase("metrics", |f| self.metrics(f, td_loss, aux_loss));
        });
    }

    fn dice(&self) -> Dice {
        Dice { seed: self.scalars.seed, steps: self.counters.steps }
    }

    fn exposure(&self) -> u32 {
        match self.hyper.source {
            Source::Inputs => 0,
            Source::Replay { exposure, .. } => exposure,
        }
    }

    /// The batch's observations [B, S].
    fn states(&self) -> Tensor<f32> {
        self.batch.x.rows(0..self.hyper.batch)
    }

    /// One power iteration per matrix, in place (reference README §2.1).
    fn spectral_norm(&self, f: &mut Body<'_>) {
        for &Spectral { name, matrices, w, u, sigma } in &self.spectral {
            let [rows, columns] = extents(w);
            let (x, z) = (f.temp(&format!("{name}.x"), [matrices, columns]), f.temp(&format!("{name}.z"), [rows]));
            f.kernel(&format!("{name}.project"), spectral_project::Args { w, u, x });
            f.kernel(&format!("{name}.apply"), spectral_apply::Args { w, x, z });
            let sigma_max = self.scalars.sigma_max;
            f.kernel(&format!("{name}.shrink"), spectral_shrink::Args { z, sigma_max, w, u, sigma });
        }
    }

    /// The three passes of a variant, and the loss of the heads with its gradient (reference README §2.2, §2.3).
    fn forward(&self, f: &mut Body<'_>, variant: &str) -> Forward {
        let (hyper, batch) = (&self.hyper, self.hyper.batch);
        let first = self.first_actions(f);
        if let (Mask::Drawn, Some(mask)) = (hyper.mask, self.mask) {
            self.draw_mask(f, mask);
        }
        // Plain DQN asks the target network alone about the next state.
        let passed = if variant == "mse" { batch } else { 2 * batch };
        let online = Pass { name: "online", rows: 2 * batch, mask: self.mask };
        let all = forward(f, hyper, &self.theta, online, self.batch.x.rows(0..passed));
        let slow = Pass { name: "slow", rows: batch, mask: self.mask };
        let evaluator = forward(f, hyper, &self.target, slow, self.batch.x.rows(batch..2 * batch)).out;
        let chooser = if variant == "mse" { evaluator } else { all.out.rows(batch..2 * batch) };
        let online = all.rows(0..batch);

        let dout = f.temp("d.out", [batch, hyper.out_width()]);
        let (td_loss, taken) = (f.temp("td.loss", [batch]), online.out);
        let Batch { action, reward, done, weight, .. } = self.batch;
        let Outputs { priorities: priority, next_action, .. } = self.outputs;
        let (gamma, loss) = (self.scalars.gamma, td_loss);
        if hyper.atoms > 1 {
            let goal = f.temp("td.goal", [batch, hyper.branch_count() * hyper.atoms]);
            let [vmin, vmax] = hyper.support.map(Const);
            let args = td_categorical::Args {
                taken,
                chooser,
                evaluator,
                first,
                action,
                reward,
                done,
                weight,
                gamma,
                dout,
                loss,
                priority,
                next_action,
                goal,
                vmin,
                vmax,
            };
            f.kernel("td", args);
        } else {
            let goal = f.temp("td.goal", [batch]);
            let args = td_scalar::Args {
                taken,
                chooser,
                evaluator,
                first,
                action,
                reward,
                done,
                weight,
                gamma,
                dout,
                loss,
                priority,
                next_action,
                goal,
            };
            f.kernel("td", args);
        }
        Forward { online, dout, td_loss }
    }

    /// The first action of each branch and the number of all [K + 1]: the program carries the layout, there is nothing to load.
    fn first_actions(&self, f: &mut Body<'_>) -> Tensor<u32> {
        let firsts = self.hyper.first_actions();
        let mut value = 0u32.into_val();
        for (k, &first) in (0u32..).zip(&firsts).skip(1) {
            value = Val::index(0).equal(k).select(first, value);
        }
        f.map_over("first_actions", [firsts.len() as u32], value)
    }

    /// Stochastic depth (Huang et al. 2016), scaled so that the expected output is that of the whole network.
    fn draw_mask(&self, f: &mut Body<'_>, mask: Tensor<f32>) {
        let Dice { seed, steps } = self.dice();
        let kept = uniform(seed, steps, stream::DEPTH).below(self.scalars.keep);
        f.map_to("mask", mask, kept.select(1.0f32 / self.scalars.keep, 0.0f32));
    }

    /// The auxiliary head on the batch's states: loss of each sample, and the gradient of the mean loss (reference README §2.4).
    fn aux(&self, f: &mut Body<'_>, online: &Activations) -> (Tensor<f32>, Tensor<f32>) {
        let (batch, classes) = (self.hyper.batch, self.hyper.classes);
        let head = self.theta.aux;
        let logits = f.gemm("aux", online.top().nt(head.w)).compute(self.hyper.compute).then(|acc| acc + head.b);
        let (loss, dlogits) = (f.temp("aux.loss", [batch]), f.temp("d.aux", [batch, classes]));
        f.kernel("xent", softmax_xent::Args { logits, labels: self.batch.class, loss, dlogits });
        (loss, dlogits)
    }

    fn grad_norm(&self, f: &mut Body<'_>) {
        let chunks = self.grad_len().div_ceil(NORM_CHUNK) as u32;
        let partial = f.temp("grad.partial", [chunks, 2]);
        f.kernel("squares", square_sums::Args { grad: self.grad.flat, partial });
        let Counters { t, skipped, norm, clip, ok, nonfinite, correction, .. } = self.counters;
        let [correction1, correction2] = correction;
        let (beta1, beta2) = (Const(self.hyper.beta1), Const(self.hyper.beta2));
        let max_norm = self.scalars.max_norm;
        let args = clip_factor::Args {
            partial,
            max_norm,
            norm,
            clip,
            ok,
            nonfinite,
            t,
            skipped,
            correction1,
            correction2,
            beta1,
            beta2,
        };
        f.kernel("clip", args);
    }

    /// Elements of the flat gradient, padding included.
    fn grad_len(&self) -> u64 {
        let padded = |tensor: Tensor<f32>| tensor.shape().map_or(0, |shape| shape.elements().next_multiple_of(4));
        self.grad.layers().map(|layer| padded(layer.w) + padded(layer.b)).sum()
    }

    fn adam(&self, f: &mut Body<'_>) {
        let Counters { clip, ok, correction: [correction1, correction2], .. } = self.counters;
        let Hyper { beta1, beta2, eps, .. } = self.hyper;
        let args = adam_guarded::Args {
            param: self.theta.flat,
            grad: self.grad.flat,
            m: self.m.flat,
            v: self.v.flat,
            clip,
            ok,
            lr: self.scalars.lr,
            correction1,
            correction2,
            beta1: Const(beta1),
            beta2: Const(beta2),
            eps: Const(eps),
        };
        f.kernel("adam", args);
    }

    fn target_ema(&self, f: &mut Body<'_>) {
        let (target, param) = (self.target.flat, self.theta.flat);
        f.kernel("ema", ema_guarded::Args { target, param, tau: self.scalars.tau, ok: self.counters.ok });
    }

    fn metrics(&self, f: &mut Body<'_>, td_loss: Tensor<f32>, aux_loss: Tensor<f32>) {
        let Counters { t, skipped, steps, norm, clip, ok, nonfinite, .. } = self.counters;
        let Outputs { metrics: row, ring, priorities: priority, .. } = self.outputs;
        let aux_w = self.scalars.aux_w;
        let args = train_metrics::Args {
            td_loss,
            aux_loss,
            priority,
            aux_w,
            norm,
            clip,
            ok,
            t,
            skipped,
            nonfinite,
            steps,
            row,
            ring,
        };
        f.kernel("metrics", args);
    }
}

/// What a forward phase leaves for the phases after it.
struct Forward {
    /// The online network on the batch's states.
    online: Activations,
    /// Gradient of the mean loss with respect to the heads' outputs [B, N (1 + ΣA)].
    dout: Tensor<f32>,
    /// Loss of each sample, weighted [B].
    td_loss: Tensor<f32>,
}

impl Scalars {
    fn declare(p: &mut Builder) -> Self {
        Self {
            aux_w: p.host_scalar("aux_w", 0.1),
            lr: p.host_scalar("lr", 3e-4),
            tau: p.host_scalar("tau", 0.005),
            sigma_max: p.host_scalar("sigma_max", 1.5),
            max_norm: p.host_scalar("max_norm", 10.0),
            gamma: p.host_scalar("gamma", 0.99),
            keep: p.host_scalar("keep", 0.9),
            seed: p.host_scalar("seed", 0),
        }
    }
}

impl Counters {
    fn declare(p: &mut Builder) -> Self {
        Self {
            t: p.device_scalar("t", 0),
            skipped: p.device_scalar("skipped", 0),
            steps: p.device_scalar("steps", 0),
            norm: p.device_scalar("grad_norm", 0.0),
            clip: p.device_scalar("clip", 1.0),
            ok: p.device_scalar("ok", 1),
            nonfinite: p.device_scalar("nonfinite", 0),
            correction: ["correction1", "correction2"].map(|name| p.device_scalar(name, 1.0)),
        }
    }
}

fn declare_batch(p: &mut Builder, hyper: &Hyper) -> Batch {
    let (batch, branches) = (hyper.batch, hyper.branch_count());
    let x = [2 * batch, hyper.observation];
    match hyper.source {
        Source::Inputs => Batch {
            x: p.input("batch.x", x),
            action: p.input("batch.action", [batch, branches]),
            reward: p.input("batch.reward", [batch]),
            done: p.input("batch.done", [batch]),
            weight: p.input("batch.weight", [batch]),
            class: p.input("batch.class", [batch]),
        },
        Source::Replay { .. } => Batch {
            x: p.temp("batch.x", x),
            action: p.temp("batch.action", [batch, branches]),
            reward: p.temp("batch.reward", [batch]),
            done: p.temp("batch.done", [batch]),
            weight: p.temp("batch.weight", [batch]),
            class: p.temp("batch.class", [batch]),
        },
    }
}

/// The vectors start as random directions; their length does not matter.
fn declare_spectral(p: &mut Builder, hyper: &Hyper, theta: &Weights) -> Vec<Spectral> {
    let res = theta.res.map(|res| ("res", 2 * hyper.blocks, res.w));
    let heads = ("heads.fc1", hyper.branch_count() + 1, theta.hidden.w);
    let stacks = [Some(("trunk.in", 1, theta.trunk.w)), res, Some(heads)];
    let declare = |(name, matrices, w): (&'static str, u32, Tensor<f32>)| {
        let [rows, _] = extents(w);
        let u = p.state(&format!("u.{name}"), [rows], Init::Normal { std: 1.0 });
        Spectral { name, matrices, w, u, sigma: p.output(&format!("sigma.{name}"), [matrices]) }
    };
    stacks.into_iter().flatten().map(declare).collect()
}

fn extents(matrix: Tensor<f32>) -> [u32; 2] {
    matrix.shape().map_or([0; 2], |shape| [shape.dims()[0], shape.dims()[1]])
}
