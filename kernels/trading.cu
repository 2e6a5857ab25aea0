// A market of daily closes, traded by many accounts at once: what an account sees, which action it takes, what it earns.
// docs/dqn_market.md gives every formula and its reason; src/kernel/library/trading.rs computes the same on the host.

namespace {

// Days before the present one that features look back on.
constexpr unsigned int LOOKBACK = 120u;
// Columns of an observation before the single past returns begin.
constexpr unsigned int FIXED_FEATURES = 12u;
// The smallest volatility and spread that anything is divided by: a tenth of a basis point.
constexpr float TINY = 1e-5f;

__device__ __forceinline__ float clip(float x) { return sg::max(sg::min(x, 5.0f), -5.0f); }

// Root mean square of the last n daily log returns; back[j] is the log price j days ago.
__device__ float volatility(const float* back, unsigned int n) {
    float sum = 0.0f;
    for (unsigned int j = 0u; j < n; ++j) {
        const float r = back[j] - back[j + 1u];
        sum += r * r;
    }
    return sg::max(sqrtf(sum / (float)n), TINY);
}

// How many standard deviations the present log price lies above the mean of the last n.
__device__ float score(const float* back, unsigned int n) {
    float mean = 0.0f;
    for (unsigned int j = 0u; j < n; ++j) mean += back[j];
    mean /= (float)n;
    float square = 0.0f;
    for (unsigned int j = 0u; j < n; ++j) square += (back[j] - mean) * (back[j] - mean);
    return (back[0] - mean) / sg::max(sqrtf(square / (float)n), TINY);
}

__device__ float momentum(const float* back, unsigned int n, float vol) {
    return (back[0] - back[n]) / (vol * sqrtf((float)n));
}

__device__ float feature(const float* back, float exposure, float equity, unsigned int column) {
    const float vol = volatility(back, 20u);
    switch (column) {
        case 0u: return exposure;
        case 1u: return 5.0f * equity;
        case 2u: return logf(vol / 0.01f);
        case 3u: return logf(vol / volatility(back, LOOKBACK));
        case 4u: return score(back, 20u);
        case 5u: return score(back, 60u);
        case 6u: return score(back, LOOKBACK);
        case 7u: return momentum(back, 5u, vol);
        case 8u: return momentum(back, 10u, vol);
        case 9u: return momentum(back, 20u, vol);
        case 10u: return momentum(back, 60u, vol);
        case 11u: return momentum(back, LOOKBACK, vol);
        default: {
            const unsigned int lag = column - FIXED_FEATURES;
            return (back[lag] - back[lag + 1u]) / vol;
        }
    }
}

// The mean over the atoms of one action's distribution, logits = value + advantage - mean advantage; or, with one atom, that
// sum.
__device__ float action_value(const float* value, const float* advantage, unsigned int actions, unsigned int atoms,
                              unsigned int action, float vmin, float vmax) {
    float largest = 0.0f, weight = 0.0f, mean = 0.0f;
    // The first pass finds the largest logit, the second sums.
    for (unsigned int pass = 0u; pass < 2u; ++pass) {
        for (unsigned int i = 0u; i < atoms; ++i) {
            float average = 0.0f;
            for (unsigned int a = 0u; a < actions; ++a) average += advantage[a * atoms + i];
            const float logit = value[i] + advantage[action * atoms + i] - average / (float)actions;
            if (atoms == 1u) return logit;
            if (pass == 0u) {
                largest = i == 0u ? logit : sg::max(largest, logit);
            } else {
                const float p = expf(logit - largest);
                weight += p;
                mean += p * (vmin + (float)i * ((vmax - vmin) / (float)(atoms - 1u)));
            }
        }
    }
    return mean / weight;
}

}  // namespace

// What each account sees at its day's close: features of past prices and of its own position.
//
// prices [days, stocks]; stock, day [e]; exposure, equity [e]; obs [e, s], 13 <= s <= 132.
// Launch: one warp per account. Each lane computes whole columns in a fixed order, so results do not depend on the grouping.
extern "C" __global__ void market_observe(const float* __restrict__ prices, const unsigned int* __restrict__ stock,
                                          const unsigned int* __restrict__ day, const float* __restrict__ exposure,
                                          const float* __restrict__ equity, float* __restrict__ obs, unsigned int days,
                                          unsigned int stocks, unsigned int s) {
    pdl_wait();
    pdl_trigger();
    __shared__ float back[LOOKBACK + 1u];
    const unsigned int account = blockIdx.x;
    const unsigned int today = min(day[account], days - 1u);
    const unsigned int column = min(stock[account], stocks - 1u);
    const float now = prices[today * stocks + column];
    for (unsigned int j = threadIdx.x; j <= LOOKBACK; j += blockDim.x) {
        const unsigned int then = today >= j ? today - j : 0u;
        back[j] = logf(prices[then * stocks + column] / now);
    }
    __syncthreads();
    for (unsigned int f = threadIdx.x; f < s; f += blockDim.x) {
        obs[account * s + f] = clip(feature(back, exposure[account], equity[account], f));
    }
}

// Which level of each of three branches an account takes: a random one with probability epsilon, else the first best.
//
// heads [rows, width]: atoms of the value, then per branch its actions, atoms fastest; width = atoms (1 + a0 + a1 + a2).
// dice [rows, 6]: per branch two uniform numbers, the first decides whether, the second which. action [rows, 3].
// Launch: one thread per element of action.
extern "C" __global__ void branch_select(const float* __restrict__ heads, const float* __restrict__ dice,
                                         const float* __restrict__ epsilon, unsigned int a0, unsigned int a1,
                                         unsigned int a2, unsigned int atoms, float vmin, float vmax,
                                         int* __restrict__ action, unsigned int rows, unsigned int width) {
    pdl_wait();
    pdl_trigger();
    const unsigned int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= rows * 3u) return;
    const unsigned int row = at / 3u, branch = at % 3u;
    const unsigned int actions = branch == 0u ? a0 : branch == 1u ? a1 : a2;
    const unsigned int before = branch == 0u ? 0u : branch == 1u ? a0 : a0 + a1;
    const float* value = heads + row * width;
    const float* advantage = value + atoms * (1u + before);
    unsigned int best = 0u;
    float highest = action_value(value, advantage, actions, atoms, 0u, vmin, vmax);
    for (unsigned int a = 1u; a < actions; ++a) {
        const float q = action_value(value, advantage, actions, atoms, a, vmin, vmax);
        if (q > highest) {
            highest = q;
            best = a;
        }
    }
    const float* own = dice + row * 6u + branch * 2u;
    const unsigned int drawn = min((unsigned int)(own[1] * (float)actions), actions - 1u);
    action[at] = (int)(own[0] < *epsilon ? drawn : best);
}

// One bar: each account's order is executed, its position earns the return to the next close, and its day moves on.
//
// prices [days, stocks]; action [e, 3] (exposure level of 0 .. levels - 1, order type, urgency); stock [e]; day, exposure,
// equity [e] (equity: sum of rewards since the account opened); scalars: commission, slippage, limit_offset (log price),
// ruin (equity at or below which the account is closed), label_band (log return), last_day (the account's last close).
// Out: facts [e, 6] (reward, ruined, log return of the bar, exposure aimed at, pace, cost of certain execution per
// exposure traded; rewards, returns and costs in `unit`s), ended (no further bar), label (0 down, 1 flat, 2 up) [e].
// Launch: one thread per account.
extern "C" __global__ void market_trade(
    const float* __restrict__ prices, const int* __restrict__ action, const unsigned int* __restrict__ stock,
    unsigned int* __restrict__ day, float* __restrict__ exposure, float* __restrict__ equity,
    const float* __restrict__ commission, const float* __restrict__ slippage, const float* __restrict__ limit_offset,
    const float* __restrict__ ruin, const float* __restrict__ label_band, const unsigned int* __restrict__ last_day,
    unsigned int levels, float unit, float* __restrict__ facts, unsigned int* __restrict__ ended, int* __restrict__ label,
    unsigned int days, unsigned int stocks, unsigned int e) {
    pdl_wait();
    pdl_trigger();
    const unsigned int account = blockIdx.x * blockDim.x + threadIdx.x;
    if (account >= e) return;
    const unsigned int today = min(day[account], days - 1u), tomorrow = min(today + 1u, days - 1u);
    const unsigned int column = min(stock[account], stocks - 1u);
    const float g = logf(prices[tomorrow * stocks + column] / prices[today * stocks + column]);
    const float held = exposure[account], before = equity[account];

    const float target = 2.0f * (float)action[account * 3u] / (float)(levels - 1u) - 1.0f;
    const int order = action[account * 3u + 1u], urgency = action[account * 3u + 2u];
    const float pace = urgency == 0 ? 0.25f : urgency == 1 ? 0.5f : 1.0f;
    const float wanted = pace * (target - held);
    float traded = wanted, gain = wanted * g, rate = *commission + *slippage * pace, cost = rate * fabsf(wanted);
    if (order == 1) {
        const bool filled = wanted > 0.0f ? g <= -*limit_offset : g >= *limit_offset;
        traded = filled ? wanted : 0.0f;
        gain = traded * g;
        cost = (*commission - *limit_offset) * fabsf(traded);
    } else if (order == 2) {
        rate = *commission + 0.5f * *slippage * pace;
        gain = 0.5f * wanted * g;
        cost = rate * fabsf(wanted);
    }

    const float earned = before > *ruin ? held * g + gain - cost : 0.0f;
    const float total = before + earned;
    const bool ruined = total <= *ruin;
    equity[account] = total;
    exposure[account] = ruined ? 0.0f : held + traded;
    day[account] = tomorrow;
    float* own = facts + account * 6u;
    own[0] = unit * earned;
    own[1] = ruined ? 1.0f : 0.0f;
    own[2] = unit * g;
    own[3] = target;
    own[4] = pace;
    own[5] = unit * rate;
    ended[account] = ruined || tomorrow >= *last_day ? 1u : 0u;
    label[account] = g > *label_band ? 2 : g < -*label_band ? 0 : 1;
}
