//! Losses with their gradients.

crate::kernel! {
    /// Softmax cross-entropy of a batch: loss\[i\] = ln Σⱼ e^logits\[i, j\] - logits\[i, labels\[i\]\], and in `dlogits` the
    /// gradient of the *mean* loss, (softmax - one-hot) / b.
    ///
    /// A label outside `0 .. c` gives a NaN loss, and a gradient without the label's term.
    pub softmax_xent in "kernels/loss.cu" (
        logits: In<f32>[b, c],
        labels: In<i32>[b],
        loss: Out<f32>[b],
        dlogits: Out<f32>[b, c],
        b: Size,
        c: Size,
    )
    launch rows(logits, block = 128)
    host softmax_xent_host
}

fn softmax_xent_host(call: softmax_xent::Host<'_>) {
    let columns = call.c as usize;
    #[expect(clippy::cast_precision_loss, reason = "the kernel converts the same way")]
    let batch = call.b as f32;
    let rows = call.logits.chunks_exact(columns).zip(call.dlogits.chunks_exact_mut(columns));
    for ((row, gradient), (&label, loss)) in rows.zip(call.labels.iter().zip(call.loss)) {
        // A NaN stays one: it is neither above nor equal to anything.
        let largest = row.iter().fold(row[0], |a, &b| if a.is_nan() || a >= b { a } else { b });
        for (e, x) in gradient.iter_mut().zip(row) {
            *e = (x - largest).exp();
        }
        let sum: f32 = gradient.iter().sum();
        let label = usize::try_from(label).ok().filter(|&label| label < columns);
        for (j, e) in gradient.iter_mut().enumerate() {
            let target = if Some(j) == label { 1.0 } else { 0.0 };
            *e = (*e / sum - target) / batch;
        }
        *loss = label.map_or(f32::NAN, |label| sum.ln() - (row[label] - largest));
    }
}

#[cfg(test)]
mod tests {
    use super::{softmax_xent, softmax_xent_host};

    fn run(logits: &[f32], labels: &[i32], c: u32) -> (Vec<f32>, Vec<f32>) {
        let (mut loss, mut dlogits) = (vec![0.0; labels.len()], vec![0.0; logits.len()]);
        let b = u32::try_from(labels.len()).expect("small");
        softmax_xent_host(softmax_xent::Host { logits, labels, loss: &mut loss, dlogits: &mut dlogits, b, c });
        (loss, dlogits)
    }

    /// Protects: the loss and its gradient are those of the formula, also where a plain exponential overflows.
    ///
    /// The reference is f64. An exponential, a sum of three, a division and a logarithm make at most eight roundings of 6e-8
    /// relative to values of at most 1 (gradient) or |loss| + 1: 5e-7 of that.
    #[test]
    fn softmax_cross_entropy_follows_the_formula() {
        let logits = [1.0f32, 2.0, 0.5, 300.0, 299.0, -300.0];
        let labels = [1, 0];
        let (loss, dlogits) = run(&logits, &labels, 3);
        for row in 0..2 {
            let x: Vec<f64> = logits[3 * row..3 * row + 3].iter().map(|&x| f64::from(x)).collect();
            let largest = x.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = x.iter().map(|x| (x - largest).exp()).sum();
            let label = usize::try_from(labels[row]).expect("a label");
            let expected = sum.ln() + largest - x[label];
            assert!((f64::from(loss[row]) - expected).abs() <= 5e-7 * (expected + 1.0), "{} {expected}", loss[row]);
            for j in 0..3 {
                let expected = ((x[j] - largest).exp() / sum - f64::from(u8::from(j == label))) / 2.0;
                assert!((f64::from(dlogits[3 * row + j]) - expected).abs() <= 5e-7, "row {row} column {j}");
            }
        }
    }

    /// Protects: a bad label or logit shows in the loss instead of being trained on silently.
    #[test]
    fn bad_labels_and_logits_show() {
        let (loss, _) = run(&[0.0, 1.0, f32::NAN, 1.0, 0.0, 1.0], &[2, 0, -1], 2);
        assert!(loss.iter().all(|x| x.is_nan()), "{loss:?}");
    }
}
