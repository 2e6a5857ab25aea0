//! Random numbers for orders and inputs of a comparison.

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator with this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// A float in [-1, 1).
    pub fn float(&mut self) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "24 bits fit")]
        let unit = (self.bits() >> 40) as f32 / 16_777_216.0;
        2.0 * unit - 1.0
    }

    /// Puts a list in random order (Fisher and Yates).
    pub(super) fn shuffle(&mut self, order: &mut [usize]) {
        for last in (1..order.len()).rev() {
            let other = usize::try_from(self.bits() % (last as u64 + 1)).unwrap_or(0);
            order.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: the generator is the published one (its first output for seed 0), floats stay in range, nothing gets lost.
    #[test]
    fn numbers_are_the_published_ones() {
        assert_eq!(Random::new(0).bits(), 0xE220_A839_7B1D_CDAF);
        let mut random = Random::new(3);
        assert!((0..1000).all(|_| (-1.0..1.0).contains(&random.float())));
        let mut order: Vec<_> = (0..20).collect();
        random.shuffle(&mut order);
        assert_ne!(order, (0..20).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..20).collect::<Vec<_>>());
    }
}
