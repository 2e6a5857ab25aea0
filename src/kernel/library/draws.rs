//! Random test data: small, seeded, the same everywhere.

/// SplitMix64 (Steele et al. 2014).
pub(super) struct Draws(pub(super) u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 33) as usize % end
    }

    /// Uniform in [-1, 1).
    pub(super) fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / f32::from_bits(0x4b00_0000) - 1.0
    }

    /// So many values of [`Draws::signed`], times `scale`.
    pub(super) fn vec(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| scale * self.signed()).collect()
    }
}
