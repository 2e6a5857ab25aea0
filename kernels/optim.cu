// Optimisers: one update of a flat group of parameters per launch.

// Adam (Kingma & Ba 2015, algorithm 1), element by element:
//
//   m <- beta1 m + (1 - beta1) g        v <- beta2 v + (1 - beta2) g^2
//   p <- p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// Arguments: param, m, v [n] updated; grad [n] read; step: t, counted from 1 and already incremented; lr; beta1, beta2, eps
// baked. Launch: elements(param, block = 256, per_thread = 4). Shared memory: none.
// A zero gradient on a zero weight leaves all four at zero, so the padding of a group stays zero.
extern "C" __global__ void __launch_bounds__(256) adam(
    float* __restrict__ param,
    const float* __restrict__ grad,
    float* __restrict__ m,
    float* __restrict__ v,
    const unsigned int* __restrict__ step,
    const float* __restrict__ lr,
    float beta1,
    float beta2,
    float eps,
    unsigned int n)
{
    // 1 - beta^t by expm1 and log1p: the plain form loses digits to cancellation while t is small.
    const float t = (float)*step;
    const float correction1 = -expm1f(t * log1pf(beta1 - 1.0f));
    const float correction2 = -expm1f(t * log1pf(beta2 - 1.0f));
    const float rate = *lr;
    const unsigned int first = blockIdx.x * (4u * blockDim.x) + threadIdx.x;
#pragma unroll
    for (unsigned int k = 0u; k < 4u; ++k) {
        const unsigned int i = first + k * blockDim.x;
        if (i >= n) return;
        const float g = grad[i];
        const float m_new = beta1 * m[i] + (1.0f - beta1) * g;
        const float v_new = beta2 * v[i] + (1.0f - beta2) * (g * g);
        m[i] = m_new;
        v[i] = v_new;
        param[i] -= rate * (m_new / correction1) / (sqrtf(v_new / correction2) + eps);
    }
}
