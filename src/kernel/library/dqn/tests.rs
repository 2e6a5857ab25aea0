//! The host functions against the mathematics in f64: the loss by its formula, the gradient by central differences of that loss,
//! which share nothing with the hand-written gradient.

use super::super::draws::Draws;
use super::*;

/// A batch of random outputs, and what the kernels make of it.
#[derive(Clone)]
struct Case {
    branches: Vec<usize>,
    atoms: usize,
    taken: Vec<f32>,
    chooser: Vec<f32>,
    evaluator: Vec<f32>,
    action: Vec<i32>,
    reward: Vec<f32>,
    done: Vec<f32>,
    weight: Vec<f32>,
    gamma: f32,
    support: [f32; 2],
}

struct Found {
    dout: Vec<f32>,
    loss: Vec<f32>,
    priority: Vec<f32>,
    next_action: Vec<i32>,
    goal: Vec<f32>,
}

impl Case {
    fn random(draws: &mut Draws, batch: usize, branches: &[usize], atoms: usize) -> Self {
        let width = atoms * (1 + branches.iter().sum::<usize>());
        let mut action = Vec::new();
        for _ in 0..batch {
            action.extend(branches.iter().map(|&actions| draws.below(actions) as i32));
        }
        Self {
            branches: branches.to_vec(),
            atoms,
            taken: draws.vec(batch * width, 2.0),
            chooser: draws.vec(batch * width, 2.0),
            evaluator: draws.vec(batch * width, 2.0),
            action,
            reward: draws.vec(batch, 3.0),
            done: (0..batch).map(|i| if i % 4 == 1 { 1.0 } else { 0.0 }).collect(),
            weight: draws.vec(batch, 0.4).into_iter().map(|x| 0.6 + x).collect(),
            gamma: 0.97,
            support: [-4.0, 5.0],
        }
    }

    fn batch(&self) -> usize {
        self.reward.len()
    }

    fn width(&self) -> usize {
        self.taken.len() / self.batch()
    }

    fn firsts(&self) -> Vec<u32> {
        let ends = self.branches.iter().scan(0u32, |end, &actions| {
            *end += actions as u32;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    fn run(&self) -> Found {
        let (batch, k, width) = (self.batch(), self.branches.len(), self.width());
        let goals = if self.atoms == 1 { 1 } else { k * self.atoms };
        let mut found = Found {
            dout: vec![0.5; batch * width],
            loss: vec![0.5; batch],
            priority: vec![0.5; batch],
            next_action: vec![-1; batch * k],
            goal: vec![0.5; batch * goals],
        };
        let (b, k, w, first) = (batch as u32, k as u32, width as u32, self.firsts());
        let (k1, kn) = (k + 1, k * self.atoms as u32);
        let [vmin, vmax] = self.support;
        macro_rules! call {
            ($kernel:ident, $run:ident $(, $more:ident)*) => {
                $run($kernel::Host {
                    taken: &self.taken,
                    chooser: &self.chooser,
                    evaluator: &self.evaluator,
                    first: &first,
                    action: &self.action,
                    reward: &self.reward,
                    done: &self.done,
                    weight: &self.weight,
                    gamma: self.gamma,
                    dout: &mut found.dout,
                    loss: &mut found.loss,
                    priority: &mut found.priority,
                    next_action: &mut found.next_action,
                    goal: &mut found.goal,
                    b,
                    k,
                    w,
                    k1,
                    $($more,)*
                })
            };
        }
        if self.atoms == 1 {
            call!(td_scalar, td_scalar_host);
        } else {
            call!(td_categorical, td_categorical_host, vmin, vmax, kn);
        }
        found
    }

    /// `[sample][branch][action][atom]` of the dueling heads, in f64.
    fn heads(&self, outputs: &[f64]) -> Vec<Vec<Vec<Vec<f64>>>> {
        let (n, firsts) = (self.atoms, self.firsts());
        let sample = |row: &[f64]| -> Vec<Vec<Vec<f64>>> {
            let branch = |(j, &actions): (usize, &usize)| -> Vec<Vec<f64>> {
                let at = |a: usize, i: usize| row[n * (1 + firsts[j] as usize + a) + i];
                let mean = |i: usize| (0..actions).map(|a| at(a, i)).sum::<f64>() / actions as f64;
                (0..actions).map(|a| (0..n).map(|i| row[i] + at(a, i) - mean(i)).collect()).collect()
            };
            self.branches.iter().enumerate().map(branch).collect()
        };
        outputs.chunks_exact(self.width()).map(sample).collect()
    }

    fn atom(&self, i: usize) -> f64 {
        let [low, high] = self.support.map(f64::from);
        low + (high - low) * i as f64 / (self.atoms - 1) as f64
    }

    /// Next actions, and per branch the distribution (or, with one atom, the goal) of a sample.
    fn goal64(&self, sample: usize) -> (Vec<usize>, Vec<Vec<f64>>) {
        let chooser = &self.heads(&wide(&self.chooser))[sample];
        let evaluator = &self.heads(&wide(&self.evaluator))[sample];
        let value = |atoms: &Vec<f64>| match self.atoms {
            1 => atoms[0],
            _ => soft(atoms).iter().enumerate().map(|(i, p)| p * self.atom(i)).sum(),
        };
        let next: Vec<usize> = chooser
            .iter()
            .map(|actions| {
                let values: Vec<f64> = actions.iter().map(value).collect();
                let largest = values.iter().copied().fold(f64::MIN, f64::max);
                values.iter().position(|&value| value == largest).expect("some action")
            })
            .collect();
        let (reward, live) = (f64::from(self.reward[sample]), 1.0 - f64::from(self.done[sample]));
        let gamma = f64::from(self.gamma) * live;
        if self.atoms == 1 {
            let boot: f64 = evaluator.iter().zip(&next).map(|(actions, &a)| actions[a][0]).sum();
            return (next, vec![vec![reward + gamma * boot / self.branches.len() as f64]]);
        }
        let [low, high] = self.support.map(f64::from);
        let goals = evaluator.iter().zip(&next).map(|(actions, &a)| {
            let mut goal = vec![0.0; self.atoms];
            for (i, p) in soft(&actions[a]).into_iter().enumerate() {
                // The textbook floor/ceil form, with its special case for integers.
                let place = ((reward + gamma * self.atom(i)).clamp(low, high) - low) / (high - low);
                let place = place * (self.atoms - 1) as f64;
                let floor = place.floor().min((self.atoms - 2) as f64);
                goal[floor as usize] += p * (floor + 1.0 - place);
                goal[floor as usize + 1] += p * (place - floor);
            }
            goal
        });
        let goals = goals.collect();
        (next, goals)
    }

    /// The error measure of each sample and branch, for given outputs of the online network: e², or the cross-entropy.
    fn errors64(&self, taken: &[f64]) -> Vec<Vec<f64>> {
        let heads = self.heads(taken);
        let sample = |(s, branches): (usize, &Vec<Vec<Vec<f64>>>)| -> Vec<f64> {
            let (_, goals) = self.goal64(s);
            let k = self.branches.len();
            let error = |j: usize| {
                let atoms = &branches[j][self.action[s * k + j] as usize];
                if self.atoms == 1 {
                    return (atoms[0] - goals[0][0]).powi(2);
                }
                goals[j].iter().zip(soft(atoms)).map(|(m, p)| -m * p.ln()).sum()
            };
            (0..k).map(error).collect()
        };
        heads.iter().enumerate().map(sample).collect()
    }

    /// The mean loss of the batch.
    fn loss64(&self, taken: &[f64]) -> f64 {
        let errors = self.errors64(taken);
        let rows = errors.iter().zip(&self.weight);
        rows.map(|(row, &weight)| f64::from(weight) * row.iter().sum::<f64>() / row.len() as f64).sum::<f64>()
            / self.batch() as f64
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

fn soft(x: &[f64]) -> Vec<f64> {
    let sum: f64 = x.iter().map(|x| x.exp()).sum();
    x.iter().map(|x| x.exp() / sum).collect()
}

fn close(found: f32, expected: f64, tolerance: f64, what: &str) {
    assert!((f64::from(found) - expected).abs() <= tolerance, "{what}: {found} is not {expected} ± {tolerance}");
}

const SHAPES: [(usize, &[usize]); 4] = [(1, &[1]), (5, &[4, 3, 2]), (3, &[7, 1]), (9, &[2, 2, 5, 3])];

/// Protects: goal, loss, priority, next action and gradient, whatever the branches, for plain and categorical values.
///
/// Outputs are below 2, heads below 6, goals below 10. A head or goal makes fewer than 20 roundings of 6e-8 relative to 10:
/// 1.2e-5; squaring and weighting multiply that by at most 2 · 20: 5e-4 of errors up to 400. A cross-entropy is a sum of N
/// terms of functions good to 1e-6 of values below 16, weighted by a distribution: 2e-5. The projection multiplies an error of
/// a place, (N - 1)/9 · 1e-5, by p. A gradient is at most twice an error of 1.2e-5 (one sample, one branch); central differences of
/// step 1e-4 of a smooth loss add 1e-7.
#[test]
fn targets_losses_and_gradients_follow_the_formulas() {
    let mut draws = Draws(4);
    for (atoms, (batch, branches)) in [1, 2, 11, 51].into_iter().flat_map(|n| SHAPES.map(|shape| (n, shape))) {
        let case = Case::random(&mut draws, batch, branches, atoms);
        let found = case.run();
        let (k, taken) = (branches.len(), wide(&case.taken));
        let errors = case.errors64(&taken);
        let tolerance = if atoms == 1 { 5e-4 } else { 5e-5 };
        for (s, errors) in errors.iter().enumerate() {
            let (next, goals) = case.goal64(s);
            let own: Vec<usize> = found.next_action[s * k..(s + 1) * k].iter().map(|&a| a as usize).collect();
            assert_eq!(own, next, "next actions of sample {s}, {atoms} atoms");
            let goals: Vec<f64> = goals.concat();
            for (i, &expected) in goals.iter().enumerate() {
                close(found.goal[s * goals.len() + i], expected, 2e-5 * atoms as f64, "goal");
            }
            let sum: f64 = errors.iter().sum();
            close(found.loss[s], f64::from(case.weight[s]) * sum / k as f64, tolerance, "loss");
            let priority = if atoms == 1 { errors.iter().map(|e| e.sqrt()).sum() } else { sum };
            close(found.priority[s], priority, k as f64 * 5e-5, "priority");
        }
        for at in 0..taken.len().min(60) {
            let at = if taken.len() <= 60 { at } else { draws.below(taken.len()) };
            let moved = |step: f64| {
                let mut moved = taken.clone();
                moved[at] += step;
                case.loss64(&moved)
            };
            let slope = (moved(1e-4) - moved(-1e-4)) / 2e-4;
            close(found.dout[at], slope, 3e-5, "gradient");
        }
    }
}

/// Protects: on a tie the first action wins, as in the reference; with the evaluator as chooser this is plain DQN.
#[test]
fn the_first_maximum_wins() {
    let case = Case {
        branches: vec![3],
        atoms: 1,
        taken: vec![0.0; 4],
        chooser: vec![1.0, 0.5, 2.0, 2.0],
        evaluator: vec![0.0, 3.0, 6.0, 9.0],
        action: vec![0],
        reward: vec![1.0],
        done: vec![0.0],
        weight: vec![1.0],
        gamma: 0.5,
        support: [0.0, 1.0],
    };
    let found = case.run();
    assert_eq!((found.next_action[0], found.goal[0]), (1, 1.0), "evaluator: 6 less the mean of 6");
    let plain = Case { chooser: case.evaluator.clone(), ..case };
    assert_eq!((plain.run().next_action[0], plain.run().goal[0]), (2, 2.5));
}

/// Protects: bad rewards and actions show in their own sample alone. An infinite reward is clipped to the support of atoms,
/// NaN is not dropped by a clamp.
#[test]
fn bad_samples_show() {
    let mut draws = Draws(5);
    for atoms in [1, 11] {
        let good = Case::random(&mut draws, 4, &[3, 2], atoms);
        let check = |case: &Case, expect_finite: bool| {
            let found = case.run();
            assert_eq!(found.loss[2].is_finite() && found.priority[2].is_finite(), expect_finite, "{atoms} atoms");
            let width = case.width();
            let own = found.dout[2 * width..3 * width].iter().all(|g| g.is_finite());
            assert_eq!(own, expect_finite, "{atoms} atoms");
            let others = [0, 1, 3].into_iter().all(|s| found.loss[s].is_finite());
            assert!(others && found.dout[..2 * width].iter().all(|g| g.is_finite()));
        };
        let mut case = good.clone();
        case.reward[2] = f32::NAN;
        check(&case, false);
        case.reward[2] = f32::INFINITY;
        check(&case, atoms > 1);
        case.reward[2] = 0.0;
        case.action[5] = 2;
        check(&case, false);
        case.action[5] = -1;
        check(&case, false);
        check(&good, true);
    }
}

/// Protects: each column holds what its name says, and the ring keeps the last rows.
#[test]
fn metrics_name_what_they_hold() {
    let mut ring = vec![0.0; 2 * METRICS.len()];
    let (mut row, mut steps) = ([0.0; METRICS.len()], 2);
    train_metrics_host(train_metrics::Host {
        td_loss: &[1.0, 2.0, 6.0],
        aux_loss: &[0.5, 0.5, 2.0],
        priority: &[1.0, f32::NAN, 4.0],
        aux_w: 0.5,
        norm: 7.0,
        clip: 0.25,
        ok: 1,
        t: 40,
        skipped: 2,
        nonfinite: 9,
        steps: &mut steps,
        row: &mut row,
        ring: &mut ring,
        b: 3,
        r: 2,
    });
    let column = |name: &str| row[METRICS.iter().position(|&known| known == name).expect("a column")];
    assert_eq!((column("loss"), column("td_loss"), column("aux_loss")), (3.5, 3.0, 1.0));
    assert_eq!((column("grad_norm"), column("clip"), column("applied"), column("adam_steps")), (7.0, 0.25, 1.0, 40.0));
    assert_eq!((column("skipped"), column("nonfinite_gradients"), column("nonfinite_samples")), (2.0, 9.0, 1.0));
    assert_eq!((column("priority_mean"), column("step"), steps), (2.5, 2.0, 3));
    assert_eq!((&ring[..12], &ring[12..]), (&row[..], &[0.0; 12][..]));
}
