// A prioritised replay buffer on the device: drawing, gathering with hindsight relabelling, and new priorities.

namespace {

constexpr unsigned int WARP = 32u, ALL = 0xffffffffu;

// Columns of the facts of a transition (examples/dqn/replay.rs says what they mean).
constexpr unsigned int REWARD = 0u, DONE = 1u, DRIFT = 2u, TARGET = 3u, PACE = 4u, RATE = 5u, FACTS = 6u;

// The place where the running sum of x[0 .. n] first exceeds `mass`, and what is left of the mass there. Entries of 0 are
// never taken; mass beyond the end takes the last entry that is not 0. One warp walks 32 entries at a time.
struct Place {
    unsigned int index;
    float rest;
};

__device__ Place walk(const float* x, unsigned int n, float mass) {
    const unsigned int lane = threadIdx.x % WARP;
    float before = 0.0f;
    unsigned int last = 0u;
    for (unsigned int base = 0u; base < n; base += WARP) {
        const float own = base + lane < n ? x[base + lane] : 0.0f;
        float upto = own;
#pragma unroll
        for (unsigned int distance = 1u; distance < WARP; distance *= 2u) {
            const float lower = __shfl_up_sync(ALL, upto, distance);
            if (lane >= distance) upto += lower;
        }
        const unsigned int hits = __ballot_sync(ALL, own > 0.0f && before + upto > mass);
        if (hits != 0u) {
            const unsigned int first = __ffs(hits) - 1u;
            const float start = before + __shfl_sync(ALL, upto - own, first);
            return {base + first, mass - start};
        }
        const unsigned int filled = __ballot_sync(ALL, own > 0.0f);
        if (filled != 0u) last = base + WARP - 1u - __clz(filled);
        before += __shfl_sync(ALL, upto, WARP - 1u);
    }
    return {last, __uint_as_float(0x7f800000u)};
}

}  // namespace

// Draws transitions in proportion to their priorities (Schaul et al. 2016, section 3.3), one from each of b equal shares of
// the total mass: row i takes the transition at (i + u[i]) / b of it. Chunks are searched by their sums, then one chunk.
// Without any mass it draws evenly from the first `size` transitions.
// Arguments: priority [n, c]; sums [n], of each chunk; u [b, 1] in [0, 1); size; index [b]; share [b], the probability of the
// transition drawn. Launch: rows(u, block = 32): one warp per draw.
extern "C" __global__ void __launch_bounds__(32) prioritised_draw(
    const float* __restrict__ priority,
    const float* __restrict__ sums,
    const float* __restrict__ u,
    const unsigned int* __restrict__ size,
    unsigned int* __restrict__ index,
    float* __restrict__ share,
    unsigned int n,
    unsigned int c,
    unsigned int b)
{
    pdl_wait();
    pdl_trigger();
    const unsigned int row = blockIdx.x, lane = threadIdx.x;
    float total = 0.0f;
    for (unsigned int i = lane; i < n; i += WARP) total += sums[i];
    total = __shfl_sync(ALL, sg::fold_rows<WARP>(sg::Sum<float>{total}, lane, WARP).x, 0);
    const float quantile = ((float)row + u[row]) / (float)b;
    unsigned int found;
    float probability;
    if (total > 0.0f) {
        const Place chunk = walk(sums, n, quantile * total);
        const Place entry = walk(priority + chunk.index * c, c, chunk.rest);
        found = chunk.index * c + entry.index;
        probability = priority[found] / total;
    } else {
        const unsigned int held = sg::max(*size, 1u);
        found = sg::min((unsigned int)(quantile * (float)held), held - 1u);
        probability = 1.0f / (float)held;
    }
    if (lane > 0u) return;
    index[row] = found;
    share[row] = probability;
}

// Gathers drawn transitions. Where relabel is not 0 the row gets, in hindsight, the action of another transition, its donor, on
// this row's own path of the price. The price does not depend on what a small trader does, so that all else follows: the donor's
// action moves this row's exposure `before` by the share `pace` of the way to `target`, the reward is
// after drift - rate |after - before|, and the exposure column of the next observation becomes `after`.
// Arguments: observation, next [n, s]; action [n, k]; facts [n, 6]; class [n]; index, donor, relabel [b]; exposure, the column
// (baked); s1, s2 [b, s]; a [b, k]; r, d [b]; y [b]. Launch: rows(s1, block = 64): one block per row.
extern "C" __global__ void __launch_bounds__(64) gather_relabel(
    const float* __restrict__ observation,
    const float* __restrict__ next,
    const int* __restrict__ action,
    const float* __restrict__ facts,
    const int* __restrict__ label,
    const unsigned int* __restrict__ index,
    const unsigned int* __restrict__ donor,
    const unsigned int* __restrict__ relabel,
    unsigned int exposure,
    float* __restrict__ s1,
    float* __restrict__ s2,
    int* __restrict__ a,
    float* __restrict__ r,
    float* __restrict__ d,
    int* __restrict__ y,
    unsigned int n,
    unsigned int s,
    unsigned int k,
    unsigned int b)
{
    constexpr unsigned int THREADS = 64u;
    pdl_wait();
    pdl_trigger();
    const unsigned int row = blockIdx.x, own = sg::min(index[row], n - 1u);
    const bool swapped = relabel[row] != 0u;
    const unsigned int giver = swapped ? sg::min(donor[row], n - 1u) : own;
    const float* given = facts + giver * FACTS;
    const float before = observation[own * s + exposure];
    const float after = before + given[PACE] * (given[TARGET] - before);
    for (unsigned int i = threadIdx.x; i < s; i += THREADS) {
        s1[row * s + i] = observation[own * s + i];
        s2[row * s + i] = swapped && i == exposure ? after : next[own * s + i];
    }
    for (unsigned int i = threadIdx.x; i < k; i += THREADS) a[row * k + i] = action[giver * k + i];
    if (threadIdx.x > 0u) return;
    const float* fact = facts + own * FACTS;
    const float cost = given[RATE] * fabsf(after - before);
    r[row] = swapped ? after * fact[DRIFT] - cost : fact[REWARD];
    d[row] = fact[DONE];
    y[row] = label[own];
}

// Writes new priorities to drawn transitions. A transition that was drawn more than once gets that of its highest row.
// Arguments: index [b]; value [b, 1]; priority, any shape, updated at index. Launch: rows(value, block = 32): a warp per row.
extern "C" __global__ void __launch_bounds__(32) priority_update(
    const unsigned int* __restrict__ index,
    const float* __restrict__ value,
    float* __restrict__ priority,
    unsigned int b)
{
    pdl_wait();
    pdl_trigger();
    const unsigned int row = blockIdx.x, mine = index[row];
    bool again = false;
    for (unsigned int other = row + 1u + threadIdx.x; other < b; other += WARP) again |= index[other] == mine;
    if (!__any_sync(ALL, again) && threadIdx.x == 0u) priority[mine] = value[row];
}
