// Losses with their gradients.

// Softmax cross-entropy of a batch:
//
//   loss[i] = log sum_j e^logits[i][j] - logits[i][labels[i]]
//   dlogits[i][j] = (softmax(logits[i])[j] - (j == labels[i])) / b
//
// so that dlogits is the gradient of the mean loss. Arguments: logits [b, c]; labels [b], each in 0 .. c - 1 (another label
// gives a NaN loss, and a gradient without the label's term); loss [b]; dlogits [b, c].
// Launch: rows(logits, block = 128). Shared memory: static only.
extern "C" __global__ void __launch_bounds__(128) softmax_xent(
    const float* __restrict__ logits,
    const int* __restrict__ labels,
    float* __restrict__ loss,
    float* __restrict__ dlogits,
    unsigned int b,
    unsigned int c)
{
    constexpr unsigned int THREADS = 128u;
    const unsigned int row = blockIdx.x;
    const float* x = logits + row * c;
    float* dx = dlogits + row * c;

    float largest = x[0];
    for (unsigned int j = threadIdx.x; j < c; j += THREADS) largest = sg::max(largest, x[j]);
    largest = sg::block_max<THREADS>(largest);
    float sum = 0.0f;
    for (unsigned int j = threadIdx.x; j < c; j += THREADS) sum += expf(x[j] - largest);
    sum = sg::block_sum<THREADS>(sum);

    const int label = labels[row];
    const float batch = (float)b;
    for (unsigned int j = threadIdx.x; j < c; j += THREADS) {
        const float target = (int)j == label ? 1.0f : 0.0f;
        dx[j] = (expf(x[j] - largest) / sum - target) / batch;
    }
    if (threadIdx.x == 0u) {
        const bool known = label >= 0 && (unsigned int)label < c;
        loss[row] = known ? logf(sum) - (x[label] - largest) : __uint_as_float(0x7fc00000u);
    }
}
