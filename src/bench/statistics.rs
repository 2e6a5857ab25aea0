//! Medians and spreads: what a sample of timings amounts to.

use serde::Serialize;

/// A sample: its middle, and how far it reaches. The unit is the sample's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The 5th percentile.
    pub low: f64,
    /// The 95th percentile.
    pub high: f64,
}

impl Spread {
    /// The spread of a sample; `None` for an empty one. Values between two ranks are interpolated linearly.
    pub fn of(sample: &[f64]) -> Option<Self> {
        let mut sorted = sample.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: percentile(&sorted, 0.5)?,
            low: percentile(&sorted, 0.05)?,
            high: percentile(&sorted, 0.95)?,
        })
    }
}

fn percentile(sorted: &[f64], at: f64) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "samples are far shorter than 2⁵²")]
    let rank = at * sorted.len().checked_sub(1)? as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank lies inside the sample")]
    let below = rank.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    Some(sorted[below] + (sorted[above] - sorted[below]) * rank.fract())
}

/// The noise floor that two samples of one thing show, relative to their medians: the larger of the difference between the
/// medians and half the wider spread.
pub fn noise_between(a: &Spread, b: &Spread) -> f64 {
    let middle = f64::midpoint(a.median, b.median);
    let reach = (a.high - a.low).max(b.high - b.low) / 2.0;
    (a.median - b.median).abs().max(reach) / middle
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: ranks between values are interpolated, order does not matter, one value is its own spread.
    #[test]
    fn percentiles_are_interpolated() {
        let spread = Spread::of(&[5.0, 1.0, 2.0, 4.0, 3.0]).expect("five values");
        assert_eq!((spread.low, spread.median, spread.high), (1.2, 3.0, 4.8));
        let even = Spread::of(&[1.0, 2.0, 3.0, 10.0]).expect("four values");
        assert_eq!(even.median, 2.5);
        let one = Spread::of(&[7.0]).expect("one value");
        assert_eq!((one.low, one.median, one.high), (7.0, 7.0, 7.0));
        assert_eq!(Spread::of(&[]), None);
    }

    /// Protects: the noise floor covers both a shift between two equal entries and their own scatter.
    #[test]
    fn noise_is_the_shift_or_the_scatter() {
        let shifted = [Spread { median: 10.0, low: 10.0, high: 10.0 }, Spread { median: 11.0, low: 11.0, high: 11.0 }];
        assert!((noise_between(&shifted[0], &shifted[1]) - 1.0 / 10.5).abs() < 1e-12);
        let scattered = [Spread { median: 10.0, low: 8.0, high: 12.0 }; 2];
        assert!((noise_between(&scattered[0], &scattered[1]) - 0.2).abs() < 1e-12);
    }
}
