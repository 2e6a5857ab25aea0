//! Spectral normalisation by one power iteration (Miyato et al. 2018), for a stack of matrices of one shape.
//!
//! m matrices lie as `w` [r, c], r/m rows each. The three launches give, for each matrix: x = Wᵀu; z = W x / max(|x|, 1e-12);
//! σ = |z|, u ← z / (σ + 1e-12), W ← W · min(1, σ_max / (σ + 1e-12)).

crate::kernel! {
    /// First launch: x = Wᵀu of each matrix.
    pub spectral_project in "kernels/spectral.cu" (
        w: In<f32>[r, c],
        u: In<f32>[r],
        x: Out<f32>[m, c],
        r: Size,
        c: Size,
        m: Size,
    )
    launch tiles(x, tile = [1, 32], block = 256)
    pdl(early = [])
    host spectral_project_host
}

crate::kernel! {
    /// Second launch: z = W x / max(|x|, 1e-12) of each matrix.
    pub spectral_apply in "kernels/spectral.cu" (
        w: In<f32>[r, c],
        x: In<f32>[m, c],
        z: Out<f32>[r],
        r: Size,
        c: Size,
        m: Size,
    )
    launch rows(w, block = 128)
    pdl(early = [])
    host spectral_apply_host
}

crate::kernel! {
    /// Third launch: σ = |z| of each matrix, the new u, and W shrunk to σ_max where σ is above it.
    pub spectral_shrink in "kernels/spectral.cu" (
        z: In<f32>[r],
        sigma_max: Scalar<f32>,
        w: InOut<f32>[r, c],
        u: Out<f32>[r],
        sigma: Out<f32>[m],
        r: Size,
        c: Size,
        m: Size,
    )
    launch rows(w, block = 128)
    pdl(early = [])
    host spectral_shrink_host
}

fn spectral_project_host(call: spectral_project::Host<'_>) {
    let (rows, columns) = ((call.r / call.m) as usize, call.c as usize);
    let matrices = call.w.chunks_exact(rows * columns).zip(call.u.chunks_exact(rows));
    for ((w, u), x) in matrices.zip(call.x.chunks_exact_mut(columns)) {
        x.fill(0.0);
        for (row, factor) in w.chunks_exact(columns).zip(u) {
            x.iter_mut().zip(row).for_each(|(sum, w)| *sum += w * factor);
        }
    }
}

fn spectral_apply_host(call: spectral_apply::Host<'_>) {
    let (rows, columns) = ((call.r / call.m) as usize, call.c as usize);
    for (matrix, x) in call.x.chunks_exact(columns).enumerate() {
        let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
        let floor = if norm < 1e-12 { 1e-12 } else { norm };
        for row in matrix * rows..(matrix + 1) * rows {
            let weights = &call.w[row * columns..(row + 1) * columns];
            call.z[row] = weights.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() / floor;
        }
    }
}

fn spectral_shrink_host(call: spectral_shrink::Host<'_>) {
    let (rows, columns) = ((call.r / call.m) as usize, call.c as usize);
    let stacks = call.w.chunks_exact_mut(rows * columns).zip(call.u.chunks_exact_mut(rows));
    for ((z, (w, u)), sigma) in call.z.chunks_exact(rows).zip(stacks).zip(call.sigma) {
        *sigma = z.iter().map(|z| z * z).sum::<f32>().sqrt();
        let shrink = call.sigma_max / (*sigma + 1e-12);
        let factor = if shrink > 1.0 { 1.0 } else { shrink };
        w.iter_mut().for_each(|w| *w *= factor);
        u.iter_mut().zip(z).for_each(|(u, z)| *u = z / (*sigma + 1e-12));
    }
}

#[cfg(test)]
mod tests {
    use super::super::draws::Draws;
    use super::*;

    /// Protects: one power iteration as Miyato et al. write it, for stacks of odd shapes, shrinking only what is too large.
    ///
    /// The reference is f64. A float sum of n products, naive order, errs by at most n · 6e-8 of the sum of their magnitudes.
    /// Entries and vectors are below 1, so x errs by at most r² 6e-8, and with |x| of the order of √c the error of z and of
    /// σ stays below (r + c)² · 6e-8; everything else adds a few roundings.
    #[test]
    fn power_iteration_follows_the_formula() {
        let mut draws = Draws(1);
        for (matrices, rows, columns) in [(1, 1, 1), (1, 3, 7), (4, 5, 5), (3, 33, 17), (2, 40, 65)] {
            let (r, c, m) = (matrices * rows, columns, matrices);
            let (mut w, mut u) = (draws.vec(r * c, 1.0), draws.vec(r, 1.0));
            let (w0, u0, sigma_max) = (w.clone(), u.clone(), 1.5f32);
            let (mut x, mut z, mut sigma) = (vec![0.0; m * c], vec![0.0; r], vec![0.0; m]);
            let sizes = [r, c, m].map(|size| u32::try_from(size).expect("small"));
            let [r_, c_, m_] = sizes;
            spectral_project_host(spectral_project::Host { w: &w, u: &u, x: &mut x, r: r_, c: c_, m: m_ });
            spectral_apply_host(spectral_apply::Host { w: &w, x: &x, z: &mut z, r: r_, c: c_, m: m_ });
            spectral_shrink_host(spectral_shrink::Host {
                z: &z,
                sigma_max,
                w: &mut w,
                u: &mut u,
                sigma: &mut sigma,
                r: r_,
                c: c_,
                m: m_,
            });
            let tolerance = ((rows + columns) as f64).powi(2) * 6e-8 + 1e-6;
            for matrix in 0..m {
                let at = |i: usize, j: usize| f64::from(w0[(matrix * rows + i) * c + j]);
                let mut v: Vec<f64> =
                    (0..c).map(|j| (0..rows).map(|i| at(i, j) * f64::from(u0[matrix * rows + i])).sum()).collect();
                let length = v.iter().map(|v| v * v).sum::<f64>().sqrt().max(1e-12);
                v.iter_mut().for_each(|v| *v /= length);
                let product: Vec<f64> = (0..rows).map(|i| (0..c).map(|j| at(i, j) * v[j]).sum()).collect();
                let norm = product.iter().map(|x| x * x).sum::<f64>().sqrt();
                assert!((f64::from(sigma[matrix]) - norm).abs() <= tolerance, "σ {} is not {norm}", sigma[matrix]);
                let factor = (f64::from(sigma_max) / (norm + 1e-12)).min(1.0);
                for i in 0..rows {
                    let found = f64::from(u[matrix * rows + i]);
                    assert!((found - product[i] / norm).abs() <= tolerance / norm.min(1.0), "u {i} is {found}");
                    for j in 0..c {
                        let (found, expected) = (f64::from(w[(matrix * rows + i) * c + j]), at(i, j) * factor);
                        assert!((found - expected).abs() <= tolerance, "W {i} {j} is {found}, not {expected}");
                    }
                }
            }
        }
    }

    /// Protects: a matrix below the limit keeps its bits.
    #[test]
    fn small_matrices_are_left_alone() {
        let (mut w, mut u, mut sigma) = ([0.25f32, -0.5], [0.0f32; 2], [0.0f32]);
        spectral_shrink_host(spectral_shrink::Host {
            z: &[0.3, 0.4],
            sigma_max: 0.75,
            w: &mut w,
            u: &mut u,
            sigma: &mut sigma,
            r: 2,
            c: 1,
            m: 1,
        });
        assert_eq!((w, sigma), ([0.25, -0.5], [0.5]));
        assert!((u[0] - 0.6).abs() < 1e-6 && (u[1] - 0.8).abs() < 1e-6, "{u:?}");
    }
}
