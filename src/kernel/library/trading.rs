//! A market of daily closes, traded by many accounts at once: `kernels/trading.cu` and what it computes on the host.
//!
//! An account holds a share of its wealth, from -1 to 1, in one stock. Everything that it sees of the market is a price of its
//! present day or an earlier one. `docs/dqn_market.md` gives the formulas and the reasons for them.

/// Days before the present one that an observation looks back on; earlier days must exist.
pub const LOOKBACK: u32 = 120;

/// Columns of an observation before the single past returns begin.
pub const FIXED_FEATURES: u32 = 12;

/// The widths that an observation can have: at least one past return, at most as many as the lookback holds.
pub const WIDTHS: std::ops::RangeInclusive<u32> = FIXED_FEATURES + 1..=FIXED_FEATURES + LOOKBACK;

/// Every feature lies within ± this.
pub const FEATURE_LIMIT: f32 = 5.0;

/// The share of the way to its target that an account trades in one bar, by urgency.
pub const PACES: [f32; 3] = [0.25, 0.5, 1.0];

/// Order types, in the order of their branch.
pub const ORDERS: [&str; 3] = ["market", "limit", "average"];

/// What [`market_trade`] writes of each bar, in order: the reward, 1 where the account was ruined, the log return of the price,
/// the exposure that the action aims at, its pace, and what certain execution of such an order costs per unit of exposure traded.
///
/// The last three are for hindsight: where the action leads from another exposure, and at what cost. So a limit order counts as
/// a market order there; its price improvement belongs to the bars on which it was filled.
pub const FACTS: [&str; 6] = ["reward", "ruined", "growth", "target", "pace", "rate"];

/// The smallest volatility and spread that anything is divided by.
const TINY: f32 = 1e-5;

crate::kernel! {
    /// What each account sees at its day's close.
    ///
    /// `prices` [days, stocks]; `obs` [e, s] with s in [`WIDTHS`]. Days and stocks past the end are taken as the last.
    pub market_observe in "kernels/trading.cu" (
        prices: In<f32>[days, stocks], stock: In<u32>[e], day: In<u32>[e], exposure: In<f32>[e], equity: In<f32>[e],
        obs: Out<f32>[e, s], days: Size, stocks: Size, s: Size,
    )
    launch rows(obs, block = 32)
    pdl(early = [])
    host observe_host
}

crate::kernel! {
    /// Which level of each of three branches a row takes: a random one with probability ε, else the first best.
    ///
    /// `heads` [rows, atoms (1 + a0 + a1 + a2)]: the value's atoms, then per branch its actions, atoms fastest; a branch's
    /// action values are value + advantage - mean advantage (Wang et al. 2016; Tavakoli et al. 2018), or, with several atoms,
    /// the mean of the softmax of that over the support from `vmin` to `vmax` (Bellemare et al. 2017).
    /// `dice` [rows, 6]: two uniform numbers per branch.
    pub branch_select in "kernels/trading.cu" (
        heads: In<f32>[rows, width], dice: In<f32>[rows, 6], epsilon: Scalar<f32>, a0: Const<u32>, a1: Const<u32>,
        a2: Const<u32>, atoms: Const<u32>, vmin: Const<f32>, vmax: Const<f32>, action: Out<i32>[rows, 3],
        rows: Size, width: Size,
    )
    launch elements(action, block = 128, per_thread = 1)
    pdl(early = [])
    host select_host
}

crate::kernel! {
    /// One bar: orders are executed, positions earn the return to the next close, days move on.
    ///
    /// `action` [e, 3]: exposure level of 0 to `levels` - 1 (at least 2), order type, urgency. `equity` is the sum of an
    /// account's rewards, `ruin` where it is closed; a closed account earns nothing. `facts` [e, 6]: see [`FACTS`]; rewards,
    /// returns and rates are multiplied by `unit`.
    pub market_trade in "kernels/trading.cu" (
        prices: In<f32>[days, stocks], action: In<i32>[e, 3], stock: In<u32>[e], day: InOut<u32>[e],
        exposure: InOut<f32>[e], equity: InOut<f32>[e], commission: Scalar<f32>, slippage: Scalar<f32>,
        limit_offset: Scalar<f32>, ruin: Scalar<f32>, label_band: Scalar<f32>, last_day: Scalar<u32>,
        levels: Const<u32>, unit: Const<f32>, facts: Out<f32>[e, 6], ended: Out<u32>[e], label: Out<i32>[e],
        days: Size, stocks: Size, e: Size,
    )
    launch elements(ended, block = 128, per_thread = 1)
    pdl(early = [])
    host trade_host
}

fn observe_host(call: market_observe::Host<'_>) {
    let (days, stocks, width) = (call.days as usize, call.stocks as usize, call.s as usize);
    let mut back = [0.0; LOOKBACK as usize + 1];
    for (account, obs) in call.obs.chunks_exact_mut(width).enumerate() {
        let today = (call.day[account] as usize).min(days - 1);
        let stock = (call.stock[account] as usize).min(stocks - 1);
        let now = call.prices[today * stocks + stock];
        for (lag, back) in back.iter_mut().enumerate() {
            *back = (call.prices[today.saturating_sub(lag) * stocks + stock] / now).ln();
        }
        features(&back, call.exposure[account], call.equity[account], obs);
    }
}

/// The columns of one observation; `back[j]` is the log price j days ago, relative to the present one.
fn features(back: &[f32], exposure: f32, equity: f32, obs: &mut [f32]) {
    const LONG: usize = LOOKBACK as usize;
    let vol = volatility(back, 20);
    let fixed: [f32; FIXED_FEATURES as usize] = [
        exposure,
        5.0 * equity,
        (vol / 0.01).ln(),
        (vol / volatility(back, LONG)).ln(),
        score(back, 20),
        score(back, 60),
        score(back, LONG),
        momentum(back, 5, vol),
        momentum(back, 10, vol),
        momentum(back, 20, vol),
        momentum(back, 60, vol),
        momentum(back, LONG, vol),
    ];
    let returns = back.windows(2).map(|pair| (pair[0] - pair[1]) / vol);
    for (obs, feature) in obs.iter_mut().zip(fixed.into_iter().chain(returns)) {
        *obs = feature.clamp(-FEATURE_LIMIT, FEATURE_LIMIT);
    }
}

/// Root mean square of the last `n` daily log returns.
fn volatility(back: &[f32], n: usize) -> f32 {
    let square: f32 = back[..=n].windows(2).map(|pair| (pair[0] - pair[1]) * (pair[0] - pair[1])).sum();
    (square / n as f32).sqrt().max(TINY)
}

/// How many standard deviations the present log price lies above the mean of the last `n`.
fn score(back: &[f32], n: usize) -> f32 {
    let mean = back[..n].iter().sum::<f32>() / n as f32;
    let square: f32 = back[..n].iter().map(|x| (x - mean) * (x - mean)).sum();
    (back[0] - mean) / (square / n as f32).sqrt().max(TINY)
}

/// The log return of the last `n` days in standard deviations of a random walk.
fn momentum(back: &[f32], n: usize, vol: f32) -> f32 {
    (back[0] - back[n]) / (vol * (n as f32).sqrt())
}

fn select_host(call: branch_select::Host<'_>) {
    let atoms = call.atoms as usize;
    let rows = call.heads.chunks_exact(call.width as usize).zip(call.dice.chunks_exact(6));
    for ((heads, dice), action) in rows.zip(call.action.chunks_exact_mut(3)) {
        let (value, mut rest) = heads.split_at(atoms);
        let branches = [call.a0, call.a1, call.a2].into_iter().zip(dice.chunks_exact(2));
        for ((actions, dice), action) in branches.zip(action) {
            let (advantage, others) = rest.split_at(actions as usize * atoms);
            rest = others;
            let drawn = ((dice[1] * actions as f32) as u32).min(actions - 1);
            let taken = if dice[0] < call.epsilon { drawn } else { first_best(value, advantage, call.vmin, call.vmax) };
            *action = taken.cast_signed();
        }
    }
}

/// The action of the largest value, the first one on a tie.
fn first_best(value: &[f32], advantage: &[f32], vmin: f32, vmax: f32) -> u32 {
    let atoms = value.len();
    let actions = advantage.len() / atoms;
    let average: Vec<f32> =
        (0..atoms).map(|atom| advantage.iter().skip(atom).step_by(atoms).sum::<f32>() / actions as f32).collect();
    let mut logits = vec![0.0; atoms];
    let mut q = |own: &[f32]| {
        for (atom, logit) in logits.iter_mut().enumerate() {
            *logit = value[atom] + own[atom] - average[atom];
        }
        if atoms == 1 { logits[0] } else { support_mean(&logits, vmin, vmax) }
    };
    let mut best = (0, q(&advantage[..atoms]));
    for (action, own) in (0u32..).zip(advantage.chunks_exact(atoms)).skip(1) {
        let value = q(own);
        if value > best.1 {
            best = (action, value);
        }
    }
    best.0
}

/// The mean of the softmax of `logits` over an even support from `vmin` to `vmax`.
fn support_mean(logits: &[f32], vmin: f32, vmax: f32) -> f32 {
    let spacing = (vmax - vmin) / (logits.len() - 1) as f32;
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (mut weight, mut mean) = (0.0f32, 0.0f32);
    for (atom, logit) in logits.iter().enumerate() {
        let p = (logit - largest).exp();
        weight += p;
        mean += p * (vmin + atom as f32 * spacing);
    }
    mean / weight
}

fn trade_host(call: market_trade::Host<'_>) {
    let (days, stocks) = (call.days as usize, call.stocks as usize);
    for account in 0..call.e as usize {
        let today = (call.day[account] as usize).min(days - 1);
        let tomorrow = (today + 1).min(days - 1);
        let stock = (call.stock[account] as usize).min(stocks - 1);
        let g = (call.prices[tomorrow * stocks + stock] / call.prices[today * stocks + stock]).ln();
        let (held, before) = (call.exposure[account], call.equity[account]);

        let action = &call.action[account * 3..][..3];
        let target = 2.0 * action[0] as f32 / (call.levels - 1) as f32 - 1.0;
        let pace = pace(action[2]);
        let fill = fill(&call, action[1], pace, pace * (target - held), g);
        let earned = if before > call.ruin { held * g + fill.gain - fill.cost } else { 0.0 };
        let total = before + earned;
        let ruined = total <= call.ruin;

        call.equity[account] = total;
        call.exposure[account] = if ruined { 0.0 } else { held + fill.traded };
        call.day[account] = tomorrow as u32;
        let facts = [call.unit * earned, f32::from(ruined), call.unit * g, target, pace, call.unit * fill.rate];
        call.facts[account * facts.len()..][..facts.len()].copy_from_slice(&facts);
        call.ended[account] = u32::from(ruined || tomorrow >= call.last_day as usize);
        call.label[account] = 1 + i32::from(g > call.label_band) - i32::from(g < -call.label_band);
    }
}

/// What became of one order.
struct Fill {
    /// The change of exposure.
    traded: f32,
    /// What the change earned until the next close.
    gain: f32,
    /// What it cost.
    cost: f32,
    /// What certain execution costs per unit of exposure.
    rate: f32,
}

/// The share of the way to its target that an order of this urgency goes.
const fn pace(urgency: i32) -> f32 {
    match urgency {
        0 => PACES[0],
        1 => PACES[1],
        _ => PACES[2],
    }
}

fn fill(call: &market_trade::Host<'_>, order: i32, pace: f32, wanted: f32, g: f32) -> Fill {
    let rate = call.commission + call.slippage * pace;
    match order {
        1 => {
            let filled = if wanted > 0.0 { g <= -call.limit_offset } else { g >= call.limit_offset };
            let traded = if filled { wanted } else { 0.0 };
            let cost = (call.commission - call.limit_offset) * traded.abs();
            Fill { traded, gain: traded * g, cost, rate }
        }
        2 => {
            let rate = call.commission + 0.5 * call.slippage * pace;
            Fill { traded: wanted, gain: 0.5 * wanted * g, cost: rate * wanted.abs(), rate }
        }
        _ => Fill { traded: wanted, gain: wanted * g, cost: rate * wanted.abs(), rate },
    }
}
