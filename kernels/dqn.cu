// Temporal-difference targets, losses and gradients of a branching dueling Q-network, and the metrics of a training step.
//
// The heads' outputs of a sample are one row: n values of the state (one per atom), then n per action, branch after branch;
// the atom runs fastest. Branch j has the actions first[j] .. first[j + 1], counted over all branches. Its head is
//
//   head_j[a][i] = value[i] + advantage_j[a][i] - mean over the branch's actions of advantage_j[.][i]
//
// `taken` is the online network at the state, `chooser` picks the next action, `evaluator` values it: in double DQN the
// chooser is the online network at the next state, in plain DQN it is the evaluator. An action outside its branch gives a
// NaN loss and gradient instead of a wild read.

namespace {

constexpr unsigned int WARP = 32u;

__device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7fc00000u); }

// Sum and maximum over a warp, for every lane.
__device__ __forceinline__ float warp_sum(float x) {
    return __shfl_sync(0xffffffffu, sg::fold_rows<WARP>(sg::Sum<float>{x}, threadIdx.x % WARP, WARP).x, 0);
}
__device__ __forceinline__ float warp_max(float x) {
    return __shfl_sync(0xffffffffu, sg::fold_rows<WARP>(sg::Max<float>{x}, threadIdx.x % WARP, WARP).x, 0);
}

// Whether `value` beats `best`: the first maximum wins, a NaN never beats a number.
__device__ __forceinline__ bool beats(float value, float best) { return value > best || (best != best && value == value); }

// x in [low, high]; NaN stays NaN, which fminf and fmaxf would drop.
__device__ __forceinline__ float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// One branch of one sample: value and advantages in a row of n (1 + actions) columns.
struct Head {
    const float* value;
    const float* advantage;
    unsigned int n, actions;

    __device__ Head(const float* row, unsigned int n, unsigned int first, unsigned int actions)
        : value(row), advantage(row + n * (1u + first)), n(n), actions(actions) {}

    __device__ float mean(unsigned int atom) const {
        float sum = 0.0f;
        for (unsigned int a = 0u; a < actions; ++a) sum += advantage[a * n + atom];
        return sum / (float)actions;
    }

    __device__ float at(unsigned int action, unsigned int atom, float mean) const {
        return value[atom] + advantage[action * n + atom] - mean;
    }

    __device__ bool has(int action) const { return action >= 0 && (unsigned int)action < actions; }
};

// The first of the best actions; `value_of` gives an action's value.
template <class ValueOf>
__device__ __forceinline__ unsigned int first_argmax(unsigned int actions, const ValueOf& value_of) {
    unsigned int best = 0u;
    float largest = value_of(0u);
    for (unsigned int a = 1u; a < actions; ++a) {
        const float value = value_of(a);
        if (beats(value, largest)) {
            largest = value;
            best = a;
        }
    }
    return best;
}

// Passes the gradient of one atom of the taken action's value on to the branch's advantages, n columns apart: all of them are
// in the mean that is taken away.
__device__ __forceinline__ void spread(
    float* __restrict__ advantages, unsigned int n, unsigned int actions, int taken, float gradient) {
    const float share = gradient / (float)actions;
    for (unsigned int a = 0u; a < actions; ++a) advantages[a * n] = ((int)a == taken ? gradient : 0.0f) - share;
}

}  // namespace

// Squared error of plain action values (n = 1):
//
//   goal = reward + gamma (1 - done) mean_j evaluator_j[next_j],   next_j = first argmax of chooser_j
//   e_j = taken_j[action_j] - goal;   loss = weight mean_j e_j^2;   priority = sum_j |e_j|
//
// and in dout the gradient of the mean loss of the batch with respect to the row of `taken`.
// Arguments: taken, chooser, evaluator [b, w]; first [k1]; action [b, k]; reward, done, weight [b]; gamma; dout [b, w];
// loss, priority [b]; next_action [b, k]; goal [b]; with w = 1 + actions, k1 = k + 1.
// Launch: rows(taken, block = 32): one warp per sample, a lane per branch. Shared memory: 20 w bytes.
extern "C" __global__ void __launch_bounds__(32) td_scalar(
    const float* __restrict__ taken,
    const float* __restrict__ chooser,
    const float* __restrict__ evaluator,
    const unsigned int* __restrict__ first,
    const int* __restrict__ action,
    const float* __restrict__ reward,
    const float* __restrict__ done,
    const float* __restrict__ weight,
    const float* __restrict__ gamma,
    float* __restrict__ dout,
    float* __restrict__ loss,
    float* __restrict__ priority,
    int* __restrict__ next_action,
    float* __restrict__ goal,
    unsigned int b,
    unsigned int k,
    unsigned int w,
    unsigned int k1)
{
    extern __shared__ float scratch[];
    float* row_taken = scratch;
    float* row_chooser = scratch + w;
    float* row_evaluator = scratch + 2u * w;
    float* next_value = scratch + 3u * w;
    float* error = scratch + 4u * w;
    pdl_wait();
    pdl_trigger();
    const unsigned int sample = blockIdx.x, lane = threadIdx.x;
    for (unsigned int i = lane; i < w; i += WARP) {
        row_taken[i] = taken[sample * w + i];
        row_chooser[i] = chooser[sample * w + i];
        row_evaluator[i] = evaluator[sample * w + i];
    }
    __syncwarp();

    for (unsigned int j = lane; j < k; j += WARP) {
        const Head choose(row_chooser, 1u, first[j], first[j + 1u] - first[j]);
        const Head value(row_evaluator, 1u, first[j], choose.actions);
        const float mean = choose.mean(0u);
        const unsigned int best = first_argmax(choose.actions, [&](unsigned int a) { return choose.at(a, 0u, mean); });
        next_action[sample * k + j] = (int)best;
        next_value[j] = value.at(best, 0u, value.mean(0u));
    }
    __syncwarp();
    float boot = 0.0f;
    for (unsigned int j = 0u; j < k; ++j) boot += next_value[j];
    const float target = reward[sample] + *gamma * (1.0f - done[sample]) * (boot / (float)k);

    const float scale = 2.0f * weight[sample] / ((float)b * (float)k);
    for (unsigned int j = lane; j < k; j += WARP) {
        const Head head(row_taken, 1u, first[j], first[j + 1u] - first[j]);
        const int chosen = action[sample * k + j];
        const float e = head.has(chosen) ? head.at((unsigned int)chosen, 0u, head.mean(0u)) - target : not_a_number();
        spread(dout + sample * w + 1u + first[j], 1u, head.actions, chosen, scale * e);
        error[j] = e;
    }
    __syncwarp();
    if (lane > 0u) return;
    float square = 0.0f, absolute = 0.0f, value_gradient = 0.0f;
    for (unsigned int j = 0u; j < k; ++j) {
        square += error[j] * error[j];
        absolute += fabsf(error[j]);
        value_gradient += scale * error[j];
    }
    dout[sample * w] = value_gradient;
    loss[sample] = weight[sample] * (square / (float)k);
    priority[sample] = absolute;
    goal[sample] = target;
}

// Cross-entropy of categorical values (Bellemare et al. 2017), n atoms z_i = vmin + i dz, dz = (vmax - vmin) / (n - 1):
//
//   next_j = first argmax over a of sum_i z_i softmax(chooser_j[a])_i;   p = softmax(evaluator_j[next_j])
//   b_i = (clamp(reward + gamma (1 - done) z_i, vmin, vmax) - vmin) / dz, clamped to 0 .. n - 1
//   goal_j[l] = sum_i p_i max(0, 1 - |b_i - l|);   CE_j = - sum_l goal_j[l] log softmax(taken_j[action_j])_l
//   loss = weight mean_j CE_j;   priority = sum_j CE_j
//
// and in dout the gradient of the mean loss of the batch with respect to the row of `taken`. The triangle form of the
// projection keeps all mass where b_i is an integer, and is continuous in b_i.
// Arguments: as td_scalar, with w = n (1 + actions) and goal [b, kn], kn = k n; vmin, vmax baked.
// Launch: rows(taken, block = 128): one block per sample. Shared memory: 20 w bytes, of which 7 n + actions floats are used.
extern "C" __global__ void __launch_bounds__(128) td_categorical(
    const float* __restrict__ taken,
    const float* __restrict__ chooser,
    const float* __restrict__ evaluator,
    const unsigned int* __restrict__ first,
    const int* __restrict__ action,
    const float* __restrict__ reward,
    const float* __restrict__ done,
    const float* __restrict__ weight,
    const float* __restrict__ gamma,
    float* __restrict__ dout,
    float* __restrict__ loss,
    float* __restrict__ priority,
    int* __restrict__ next_action,
    float* __restrict__ goal,
    float vmin,
    float vmax,
    unsigned int b,
    unsigned int k,
    unsigned int w,
    unsigned int k1,
    unsigned int kn)
{
    constexpr unsigned int THREADS = 128u;
    extern __shared__ float scratch[];
    __shared__ float entropy, mass;
    const unsigned int n = kn / k;
    float* mean_chooser = scratch;
    float* mean_evaluator = scratch + n;
    float* mean_taken = scratch + 2u * n;
    float* p = scratch + 3u * n;
    float* projected = scratch + 4u * n;
    float* log_p = scratch + 5u * n;
    float* value_gradient = scratch + 6u * n;
    float* q = scratch + 7u * n;
    float* place = mean_chooser;  // the means are done with when places are written
    pdl_wait();
    pdl_trigger();
    const unsigned int sample = blockIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const float dz = (vmax - vmin) / (float)(n - 1u);
    const float discount = *gamma * (1.0f - done[sample]);
    float entropies = 0.0f;

    for (unsigned int j = 0u; j < k; ++j) {
        const unsigned int actions = first[j + 1u] - first[j];
        const Head choose(chooser + sample * w, n, first[j], actions);
        const Head value(evaluator + sample * w, n, first[j], actions);
        const Head head(taken + sample * w, n, first[j], actions);
        for (unsigned int i = threadIdx.x; i < n; i += THREADS) {
            mean_chooser[i] = choose.mean(i);
            mean_evaluator[i] = value.mean(i);
            mean_taken[i] = head.mean(i);
        }
        __syncthreads();

        // The expected value of each action, a warp per action.
        for (unsigned int a = warp; a < actions; a += THREADS / WARP) {
            float largest = choose.at(a, 0u, mean_chooser[0]);
            for (unsigned int i = lane; i < n; i += WARP) largest = sg::max(largest, choose.at(a, i, mean_chooser[i]));
            largest = warp_max(largest);
            float sum = 0.0f, moment = 0.0f;
            for (unsigned int i = lane; i < n; i += WARP) {
                const float e = expf(choose.at(a, i, mean_chooser[i]) - largest);
                sum += e;
                moment += e * (vmin + (float)i * dz);
            }
            sum = warp_sum(sum);
            moment = warp_sum(moment);
            if (lane == 0u) q[a] = moment / sum;
        }
        __syncthreads();
        const unsigned int best = first_argmax(actions, [&](unsigned int a) { return q[a]; });
        const int chosen = action[sample * k + j];
        const bool known = head.has(chosen);
        const float importance = known ? weight[sample] : not_a_number();

        // p on warp 0, log p of the taken action on warp 1, the places of the shifted atoms on the others.
        if (warp < 2u) {
            const Head& own = warp == 0u ? value : head;
            const float* mean = warp == 0u ? mean_evaluator : mean_taken;
            const unsigned int a = warp == 0u ? best : known ? (unsigned int)chosen : 0u;
            float largest = own.at(a, 0u, mean[0]);
            for (unsigned int i = lane; i < n; i += WARP) largest = sg::max(largest, own.at(a, i, mean[i]));
            largest = warp_max(largest);
            float sum = 0.0f;
            for (unsigned int i = lane; i < n; i += WARP) sum += expf(own.at(a, i, mean[i]) - largest);
            sum = warp_sum(sum);
            for (unsigned int i = lane; i < n; i += WARP) {
                const float shifted = own.at(a, i, mean[i]) - largest;
                if (warp == 0u) p[i] = expf(shifted) / sum;
                else log_p[i] = shifted - logf(sum);
            }
        } else {
            for (unsigned int i = threadIdx.x - 2u * WARP; i < n; i += THREADS - 2u * WARP) {
                const float moved = clamp(reward[sample] + discount * (vmin + (float)i * dz), vmin, vmax);
                place[i] = clamp((moved - vmin) / dz, 0.0f, (float)(n - 1u));
            }
        }
        __syncthreads();

        for (unsigned int l = threadIdx.x; l < n; l += THREADS) {
            float sum = 0.0f;
            for (unsigned int i = 0u; i < n; ++i) sum += p[i] * sg::max(0.0f, 1.0f - fabsf(place[i] - (float)l));
            projected[l] = sum;
            goal[sample * kn + j * n + l] = sum;
        }
        __syncthreads();
        if (warp == 0u) {
            float cross = 0.0f, all = 0.0f;
            for (unsigned int l = lane; l < n; l += WARP) {
                cross += projected[l] * log_p[l];
                all += projected[l];
            }
            cross = warp_sum(cross);
            all = warp_sum(all);
            if (lane == 0u) {
                entropy = known ? -cross : not_a_number();
                mass = all;
                next_action[sample * k + j] = (int)best;
            }
        }
        __syncthreads();
        entropies += entropy;
        const float scale = importance / ((float)b * (float)k);
        for (unsigned int i = threadIdx.x; i < n; i += THREADS) {
            const float gradient = scale * (expf(log_p[i]) * mass - projected[i]);
            value_gradient[i] = (j == 0u ? 0.0f : value_gradient[i]) + gradient;
            spread(dout + sample * w + (1u + first[j]) * n + i, n, actions, chosen, gradient);
        }
        __syncthreads();
    }

    for (unsigned int i = threadIdx.x; i < n; i += THREADS) dout[sample * w + i] = value_gradient[i];
    if (threadIdx.x > 0u) return;
    loss[sample] = weight[sample] * (entropies / (float)k);
    priority[sample] = entropies;
}

// Sums a step up in one row of 12 numbers, and keeps the rows of the last r steps in a ring.
//
//   0 loss = 1 + aux_w 2   1 TD loss   2 auxiliary loss   3 gradient norm   4 clip factor   5 whether it was applied
//   6 t, steps applied   7 steps skipped   8 gradient entries that are not finite   9 samples whose priority is not finite
//   10 mean of the other priorities   11 this step's number, from 0
//
// Counters are exact up to 2^24. Arguments: td_loss, aux_loss, priority [b]; aux_w, norm, clip, ok, t, skipped, nonfinite;
// steps updated: the ring's row is steps mod r; row [12]; ring [r, 12]. Launch: one block of 256.
extern "C" __global__ void __launch_bounds__(256) train_metrics(
    const float* __restrict__ td_loss,
    const float* __restrict__ aux_loss,
    const float* __restrict__ priority,
    const float* __restrict__ aux_w,
    const float* __restrict__ norm,
    const float* __restrict__ clip,
    const unsigned int* __restrict__ ok,
    const unsigned int* __restrict__ t,
    const unsigned int* __restrict__ skipped,
    const unsigned int* __restrict__ nonfinite,
    unsigned int* __restrict__ steps,
    float* __restrict__ row,
    float* __restrict__ ring,
    unsigned int b,
    unsigned int r)
{
    constexpr unsigned int THREADS = 256u, COLUMNS = 12u;
    pdl_wait();
    pdl_trigger();
    float td = 0.0f, aux = 0.0f, rank = 0.0f, finite = 0.0f;
    for (unsigned int i = threadIdx.x; i < b; i += THREADS) {
        td += td_loss[i];
        aux += aux_loss[i];
        const bool good = sg::is_finite(priority[i]);
        rank += good ? priority[i] : 0.0f;
        finite += good ? 1.0f : 0.0f;
    }
    td = sg::block_sum<THREADS>(td);
    aux = sg::block_sum<THREADS>(aux);
    rank = sg::block_sum<THREADS>(rank);
    finite = sg::block_sum<THREADS>(finite);
    if (threadIdx.x > 0u) return;
    const unsigned int step = *steps;
    const float batch = (float)b;
    td = td / batch;
    aux = aux / batch;
    const float found[COLUMNS] = {
        td + *aux_w * aux, td, aux, *norm, *clip, (float)*ok, (float)*t, (float)*skipped, (float)*nonfinite, batch - finite,
        finite > 0.0f ? rank / finite : 0.0f, (float)step};
    for (unsigned int i = 0u; i < COLUMNS; ++i) {
        row[i] = found[i];
        ring[(step % r) * COLUMNS + i] = found[i];
    }
    *steps = step + 1u;
}
