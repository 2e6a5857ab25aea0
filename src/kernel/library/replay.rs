//! A prioritised replay buffer on the device: drawing, gathering with hindsight relabelling, and new priorities.

crate::kernel! {
    /// Draws transitions in proportion to their priorities (Schaul et al. 2016, §3.3), one from each of b equal shares of the
    /// total: row i takes the transition at (i + uᵢ)/b of it. `sums` holds the sum of each row of `priority`.
    ///
    /// `index` counts through `priority` row-major; `share` is the probability of the transition that was drawn. A priority of 0 is
    /// never drawn; without any other the draw is even over the first `size` transitions.
    pub prioritised_draw in "kernels/replay.cu" (
        priority: In<f32>[n, c],
        sums: In<f32>[n],
        u: In<f32>[b, 1],
        size: Scalar<u32>,
        index: Out<u32>[b],
        share: Out<f32>[b],
        n: Size,
        c: Size,
        b: Size,
    )
    launch rows(u, block = 32)
    pdl(early = [])
    host prioritised_draw_host
}

crate::kernel! {
    /// Gathers drawn transitions; where `relabel` is not 0, with the action of a donor in hindsight.
    ///
    /// The columns of `facts` are reward, done, drift (the log return of the price), the exposure that the action aims at, the
    /// share of the way to it that the action goes, and the cost per unit of exposure traded. A relabelled row takes `action`,
    /// `target`, `pace` and `rate` of its donor from its own exposure, which column `exposure` of `observation` holds, on its own
    /// path of the price: after = before + pace · (target - before), reward = after · drift - rate · |after - before|, and `after`
    /// in column `exposure` of `s2`.
    pub gather_relabel in "kernels/replay.cu" (
        observation: In<f32>[n, s],
        next: In<f32>[n, s],
        action: In<i32>[n, k],
        facts: In<f32>[n, 6],
        label: In<i32>[n],
        index: In<u32>[b],
        donor: In<u32>[b],
        relabel: In<u32>[b],
        exposure: Const<u32>,
        s1: Out<f32>[b, s],
        s2: Out<f32>[b, s],
        a: Out<i32>[b, k],
        r: Out<f32>[b],
        d: Out<f32>[b],
        y: Out<i32>[b],
        n: Size,
        s: Size,
        k: Size,
        b: Size,
    )
    launch rows(s1, block = 64)
    pdl(early = [])
    host gather_relabel_host
}

crate::kernel! {
    /// Writes new priorities to drawn transitions; one that was drawn more than once gets that of its highest row.
    pub priority_update in "kernels/replay.cu" (
        index: In<u32>[b],
        value: In<f32>[b, 1],
        priority: InOut<f32>,
        b: Size,
    )
    launch rows(value, block = 32)
    pdl(early = [])
    host priority_update_host
}

/// Columns of `facts`; `kernels/replay.cu` has the same.
const REWARD: usize = 0;
const DONE: usize = 1;
const DRIFT: usize = 2;
const TARGET: usize = 3;
const PACE: usize = 4;
const RATE: usize = 5;
const FACTS: usize = 6;

/// Entries that one step of a search looks at: a warp.
const WARP: usize = 32;

/// Where the running sum first exceeds `mass`, and what is left of the mass there; see `walk` in the kernel, whose order of
/// additions this follows, so that host and device draw alike.
fn walk(x: &[f32], mass: f32) -> (usize, f32) {
    let (mut before, mut last) = (0.0f32, 0);
    for (base, part) in x.chunks(WARP).enumerate() {
        let mut own = [0.0f32; WARP];
        own[..part.len()].copy_from_slice(part);
        let mut upto = own;
        for distance in [1, 2, 4, 8, 16] {
            for lane in (distance..WARP).rev() {
                upto[lane] += upto[lane - distance];
            }
        }
        if let Some(lane) = (0..WARP).find(|&lane| own[lane] > 0.0 && before + upto[lane] > mass) {
            return (base * WARP + lane, mass - (before + (upto[lane] - own[lane])));
        }
        last = own.iter().rposition(|&x| x > 0.0).map_or(last, |lane| base * WARP + lane);
        before += upto[WARP - 1];
    }
    (last, f32::INFINITY)
}

fn prioritised_draw_host(call: prioritised_draw::Host<'_>) {
    let mut lanes = [0.0f32; WARP];
    for part in call.sums.chunks(WARP) {
        lanes.iter_mut().zip(part).for_each(|(lane, sum)| *lane += sum);
    }
    for half in [16, 8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    let (total, chunk_len) = (lanes[0], call.c as usize);
    for (row, u) in call.u.iter().enumerate() {
        let quantile = (row as f32 + u) / call.b as f32;
        (call.index[row], call.share[row]) = if total > 0.0 {
            let (chunk, rest) = walk(call.sums, quantile * total);
            let start = chunk * chunk_len;
            let (entry, _) = walk(&call.priority[start..start + chunk_len], rest);
            ((start + entry) as u32, call.priority[start + entry] / total)
        } else {
            let held = call.size.max(1);
            (((quantile * held as f32) as u32).min(held - 1), 1.0 / held as f32)
        };
    }
}

fn gather_relabel_host(call: gather_relabel::Host<'_>) {
    let (s, k, last) = (call.s as usize, call.k as usize, call.n as usize - 1);
    for row in 0..call.b as usize {
        let own = (call.index[row] as usize).min(last);
        let swapped = call.relabel[row] != 0;
        let giver = if swapped { (call.donor[row] as usize).min(last) } else { own };
        call.s1[row * s..][..s].copy_from_slice(&call.observation[own * s..][..s]);
        call.s2[row * s..][..s].copy_from_slice(&call.next[own * s..][..s]);
        call.a[row * k..][..k].copy_from_slice(&call.action[giver * k..][..k]);
        let (fact, given) = (&call.facts[own * FACTS..][..FACTS], &call.facts[giver * FACTS..][..FACTS]);
        call.r[row] = fact[REWARD];
        call.d[row] = fact[DONE];
        call.y[row] = call.label[own];
        if !swapped {
            continue;
        }
        let before = call.observation[own * s..][..s].get(call.exposure as usize).copied().unwrap_or_default();
        let after = before + given[PACE] * (given[TARGET] - before);
        call.r[row] = after * fact[DRIFT] - given[RATE] * (after - before).abs();
        if let Some(exposure) = call.s2[row * s..][..s].get_mut(call.exposure as usize) {
            *exposure = after;
        }
    }
}

/// Rows in order: the highest row writes last.
fn priority_update_host(call: priority_update::Host<'_>) {
    for (&index, &value) in call.index.iter().zip(call.value) {
        call.priority[index as usize] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::super::draws::Draws;
    use super::*;

    fn draw(priority: &[f32], c: u32, u: &[f32], size: u32) -> (Vec<u32>, Vec<f32>) {
        let sums: Vec<f32> = priority.chunks(c as usize).map(|chunk| chunk.iter().sum()).collect();
        let (mut index, mut share) = (vec![u32::MAX; u.len()], vec![f32::NAN; u.len()]);
        let (n, b) = (sums.len() as u32, u.len() as u32);
        prioritised_draw_host(prioritised_draw::Host {
            priority,
            sums: &sums,
            u,
            size,
            index: &mut index,
            share: &mut share,
            n,
            c,
            b,
        });
        (index, share)
    }

    /// Protects: each row draws the transition that the running sum of all priorities has at its quantile, over odd numbers of
    /// chunks and with priorities of 0 in between.
    ///
    /// The reference is one running sum in f64. A float here ends a chain of at most 300 additions of positive numbers: 2e-5 of the total;
    /// a quantile so close to a boundary may fall on either side.
    #[test]
    fn draws_are_proportional() {
        let mut draws = Draws(6);
        for (chunks, c) in [(1, 32), (3, 32), (35, 64), (2, 96), (70, 32)] {
            let n = chunks * c as usize;
            let mut priority: Vec<f32> = draws.vec(n, 1.0).into_iter().map(|x| x.max(0.0)).collect();
            priority[n - 1] = 0.0;
            let u: Vec<f32> = draws.vec(41, 0.5).into_iter().map(|x| x + 0.5).collect();
            let (index, share) = draw(&priority, c, &u, n as u32);
            let total: f64 = priority.iter().map(|&p| f64::from(p)).sum();
            for (row, (&index, &share)) in index.iter().zip(&share).enumerate() {
                let index = index as usize;
                let mass = (row as f64 + f64::from(u[row])) / 41.0 * total;
                let before: f64 = priority[..index].iter().map(|&p| f64::from(p)).sum();
                let (own, slack) = (f64::from(priority[index]), 2e-5 * total);
                assert!(own > 0.0, "row {row} drew a transition without priority");
                assert!(before - slack <= mass && mass <= before + own + slack, "row {row}: {mass} at {index}");
                assert!((f64::from(share) - own / total).abs() <= 2e-5 * own / total);
            }
        }
    }

    /// Protects: an empty buffer, or one whose priorities are all 0, is drawn from evenly and never out of bounds; mass that
    /// rounding puts past the end takes the last transition that has any.
    #[test]
    fn draws_stay_inside() {
        let u = [0.0, 0.5, 0.999_999_94];
        assert_eq!(draw(&[0.0; 64], 32, &u, 0), (vec![0, 0, 0], vec![1.0; 3]));
        assert_eq!(draw(&[0.0; 64], 32, &u, 6).0, [0, 3, 5]);
        let mut priority = [0.0; 96];
        priority[40] = 1e-30;
        assert_eq!(draw(&priority, 32, &u, 96).0, [40; 3]);
        assert_eq!(walk(&[1.0, 2.0, 0.0], f32::INFINITY), (1, f32::INFINITY));
    }

    /// Protects: a plain row is a copy; a relabelled one gets its donor's action on its own price path.
    #[test]
    fn relabelling_follows_the_price() {
        let facts = [
            [0.5f32, 0.0, 0.01, 1.0, 0.5, 0.002],  // what is drawn
            [-1.0, 1.0, -0.5, -0.75, 0.25, 0.004], // the donor
        ];
        // Its exposure is 0.25 before: a quarter of the way to -0.75 leads to 0.
        let (observation, next) = ([1.0f32, 2.0, 0.25, 4.0, 5.0, 6.0], [10.0f32, 20.0, 30.0, 40.0, 50.0, 60.0]);
        let (mut s1, mut s2, mut a) = ([0.0; 6], [0.0; 6], [0; 4]);
        let (mut r, mut d, mut y) = ([0.0; 2], [9.0; 2], [9; 2]);
        gather_relabel_host(gather_relabel::Host {
            observation: &observation,
            next: &next,
            action: &[7, 8, 5, 6],
            facts: facts.as_flattened(),
            label: &[2, 1],
            index: &[0, 0],
            donor: &[1, 1],
            relabel: &[0, 1],
            exposure: 2,
            s1: &mut s1,
            s2: &mut s2,
            a: &mut a,
            r: &mut r,
            d: &mut d,
            y: &mut y,
            n: 2,
            s: 3,
            k: 2,
            b: 2,
        });
        assert_eq!((s1, s2), ([1.0, 2.0, 0.25, 1.0, 2.0, 0.25], [10.0, 20.0, 30.0, 10.0, 20.0, 0.0]));
        assert_eq!((a, d, y), ([7, 8, 5, 6], [0.0, 0.0], [2, 2]));
        assert_eq!(r[0], 0.5);
        let expected = -0.004 * 0.25;
        assert!((f64::from(r[1]) - expected).abs() < 1e-8, "{} is not {expected}", r[1]);
    }

    /// Protects: of two rows that drew one transition, the higher one decides.
    #[test]
    fn the_highest_row_wins() {
        let mut priority = [0.0f32; 5];
        priority_update_host(priority_update::Host {
            index: &[3, 1, 3, 0],
            value: &[1.0, 2.0, 3.0, 4.0],
            priority: &mut priority,
            b: 4,
        });
        assert_eq!(priority, [4.0, 2.0, 0.0, 3.0, 0.0]);
    }
}
