// Gradient clipping, Adam and target averaging that leave everything as it was when the gradient is not finite.
//
// The decision is one device flag, `ok`; kernels return on it before they write, so that no NaN is multiplied by 0.

// Sum of squares, and the number of entries that are not finite, of each of p chunks of a flat gradient.
// Arguments: grad [n]; partial [p, 2]. Launch: rows(partial, block = 256): a block takes one chunk of ceil(n / p) entries.
extern "C" __global__ void __launch_bounds__(256) square_sums(
    const float* __restrict__ grad,
    float* __restrict__ partial,
    unsigned int n,
    unsigned int p)
{
    constexpr unsigned int THREADS = 256u;
    pdl_wait();
    pdl_trigger();
    const unsigned int chunk = (n - 1u) / p + 1u, first = blockIdx.x * chunk, end = sg::min(n, first + chunk);
    float square = 0.0f, bad = 0.0f;
    for (unsigned int i = first + threadIdx.x; i < end; i += THREADS) {
        const float g = grad[i];
        square += g * g;
        bad += sg::is_finite(g) ? 0.0f : 1.0f;
    }
    square = sg::block_sum<THREADS>(square);
    bad = sg::block_sum<THREADS>(bad);
    if (threadIdx.x > 0u) return;
    partial[2u * blockIdx.x] = square;
    partial[2u * blockIdx.x + 1u] = bad;
}

// From the partial sums: the gradient's norm, clip = min(1, max_norm / (norm + 1e-6)), whether the norm is finite, and what
// follows from that: t counts the steps that are applied, skipped the others. Also Adam's bias corrections 1 - beta^t at the
// new t, in double, because the plain float form loses digits to cancellation while t is small.
// Arguments: partial [p, 2]; max_norm; norm, clip, ok, nonfinite, correction1, correction2 written; t, skipped updated;
// beta1, beta2 baked. Launch: one block of 256.
extern "C" __global__ void __launch_bounds__(256) clip_factor(
    const float* __restrict__ partial,
    const float* __restrict__ max_norm,
    float* __restrict__ norm,
    float* __restrict__ clip,
    unsigned int* __restrict__ ok,
    unsigned int* __restrict__ nonfinite,
    unsigned int* __restrict__ t,
    unsigned int* __restrict__ skipped,
    float* __restrict__ correction1,
    float* __restrict__ correction2,
    float beta1,
    float beta2,
    unsigned int p)
{
    constexpr unsigned int THREADS = 256u;
    pdl_wait();
    pdl_trigger();
    float square = 0.0f, bad = 0.0f;
    for (unsigned int i = threadIdx.x; i < p; i += THREADS) {
        square += partial[2u * i];
        bad += partial[2u * i + 1u];
    }
    square = sg::block_sum<THREADS>(square);
    bad = sg::block_sum<THREADS>(bad);
    if (threadIdx.x > 0u) return;
    const float length = sqrtf(square);
    const bool finite = sg::is_finite(length);
    const unsigned int step = *t + (finite ? 1u : 0u);
    *norm = length;
    *clip = sg::min(1.0f, *max_norm / (length + 1e-6f));
    *ok = finite ? 1u : 0u;
    *nonfinite = (unsigned int)bad;
    *t = step;
    *skipped += finite ? 0u : 1u;
    *correction1 = (float)-expm1((double)step * log((double)beta1));
    *correction2 = (float)-expm1((double)step * log((double)beta2));
}

// Adam (Kingma & Ba 2015, algorithm 1) with the gradient scaled by clip, where ok is not 0:
//
//   g <- clip grad;  m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
//   p <- p - lr (m / correction1) / (sqrt(v / correction2) + eps)
//
// Arguments: param, m, v [n] updated; grad [n]; clip, ok, lr, correction1, correction2; beta1, beta2, eps baked.
// Launch: elements(param, block = 256, per_thread = 4).
extern "C" __global__ void __launch_bounds__(256) adam_guarded(
    float* __restrict__ param,
    const float* __restrict__ grad,
    float* __restrict__ m,
    float* __restrict__ v,
    const float* __restrict__ clip,
    const unsigned int* __restrict__ ok,
    const float* __restrict__ lr,
    const float* __restrict__ correction1,
    const float* __restrict__ correction2,
    float beta1,
    float beta2,
    float eps,
    unsigned int n)
{
    pdl_wait();
    pdl_trigger();
    if (*ok == 0u) return;
    const float factor = *clip, rate = *lr, scale1 = *correction1, scale2 = *correction2;
    const unsigned int first = blockIdx.x * (4u * blockDim.x) + threadIdx.x;
#pragma unroll
    for (unsigned int k = 0u; k < 4u; ++k) {
        const unsigned int i = first + k * blockDim.x;
        if (i >= n) return;
        const float g = factor * grad[i];
        const float m_new = beta1 * m[i] + (1.0f - beta1) * g;
        const float v_new = beta2 * v[i] + (1.0f - beta2) * (g * g);
        m[i] = m_new;
        v[i] = v_new;
        param[i] -= rate * (m_new / scale1) / (sqrtf(v_new / scale2) + eps);
    }
}

// target <- target + tau (param - target), where ok is not 0.
// Arguments: target [n] updated; param [n]; tau, ok. Launch: elements(target, block = 256, per_thread = 4).
extern "C" __global__ void __launch_bounds__(256) ema_guarded(
    float* __restrict__ target,
    const float* __restrict__ param,
    const float* __restrict__ tau,
    const unsigned int* __restrict__ ok,
    unsigned int n)
{
    pdl_wait();
    pdl_trigger();
    if (*ok == 0u) return;
    const float share = *tau;
    const unsigned int first = blockIdx.x * (4u * blockDim.x) + threadIdx.x;
#pragma unroll
    for (unsigned int k = 0u; k < 4u; ++k) {
        const unsigned int i = first + k * blockDim.x;
        if (i >= n) return;
        target[i] += share * (param[i] - target[i]);
    }
}
