//! A market that can be learned: mean-reverting prices with a known good rule.
//!
//! Each stock's log price is an Ornstein–Uhlenbeck process sampled once a day around a fixed level:
//! x' = x - κ (x - level) + σ ε (Uhlenbeck and Ornstein, 1930; in discrete time an AR(1) process). The expected next log return
//! is -κ (x - level), so the sign of the deviation says which side to take. The rule knows the level; a trader must infer it
//! from past prices.

use super::market::Prices;

/// How a synthetic market moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reversion {
    /// The share of the deviation that vanishes each day in expectation.
    pub(crate) kappa: f64,
    /// The standard deviation of a day's noise, in log return.
    pub(crate) sigma: f64,
}

/// Half of a deviation is gone after about two days, and noise per day is that of a volatile stock: the edge of the rule is
/// about a third of the noise, so it shows in weeks and not in decades.
impl Default for Reversion {
    fn default() -> Self {
        Self { kappa: 0.3, sigma: 0.02 }
    }
}

/// The price that every stock reverts to.
pub(crate) const LEVEL: f64 = 100.0;

/// Rates at which trades cost, per unit of exposure traded: what [`super::environment`] charges for orders at full pace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RuleCosts {
    /// Commission.
    pub(crate) commission: f64,
    /// Slippage of a market order at full pace.
    pub(crate) slippage: f64,
}

/// A seeded history of mean-reverting stocks. The same arguments give the same prices on every machine.
pub(crate) fn prices(days: usize, stocks: usize, reversion: Reversion, seed: u64) -> Prices {
    let mut noise = Noise::new(seed);
    let Reversion { kappa, sigma } = reversion;
    let spread = sigma / (1.0 - (1.0 - kappa).powi(2)).sqrt();
    let mut deviation: Vec<f64> = (0..stocks).map(|_| spread * noise.normal()).collect();
    let mut closes = Vec::with_capacity(days * stocks);
    for _ in 0..days {
        closes.extend(deviation.iter().map(|deviation| (LEVEL * deviation.exp()) as f32));
        for deviation in &mut deviation {
            *deviation += sigma * noise.normal() - kappa * *deviation;
        }
    }
    Prices {
        dates: (0..days).map(|day| format!("day {day}")).collect(),
        stocks: (0..stocks).map(|stock| format!("OU{stock:02}")).collect(),
        closes,
    }
}

/// What the known rule earns over the bars `begin .. end - 1`, in log return summed over bars and averaged over stocks: at each
/// close it holds -sign(log(price / level)) until the next, by market orders at full pace.
pub(crate) fn rule_reward(prices: &Prices, begin: usize, end: usize, costs: RuleCosts) -> f64 {
    let log_price = |day, stock| (f64::from(prices.close(day, stock)) / LEVEL).ln();
    let mut total = 0.0;
    for stock in 0..prices.stock_count() {
        let mut held = 0.0;
        for day in begin..end - 1 {
            let target = -log_price(day, stock).signum();
            let cost = (target - held).abs() * (costs.commission + costs.slippage);
            total += target * (log_price(day + 1, stock) - log_price(day, stock)) - cost;
            held = target;
        }
    }
    total / prices.stock_count() as f64
}

/// Standard normal numbers from SplitMix64 (Steele, Lea, Flood 2014) by Box and Muller (1958).
struct Noise {
    state: u64,
}

impl Noise {
    const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}
