// Spectral normalisation by one power iteration, for a stack of matrices of one shape.
//
// A stack of m matrices lies as w [r, c]: matrix i has the rows i r/m .. (i + 1) r/m. Three launches:
//
//   spectral_project   x = W^T u
//   spectral_apply     z = W x / max(|x|, 1e-12)
//   spectral_shrink    sigma = |z|;  u <- z / (sigma + 1e-12);  W <- W min(1, sigma_max / (sigma + 1e-12))
//
// Norms are Euclidean. Every sum has a fixed order.

// Arguments: w [r, c]; u [r]; x [m, c].
// Launch: tiles(x, tile = [1, 32], block = 256): a block takes 32 columns of one matrix, 8 lanes of rows.
extern "C" __global__ void __launch_bounds__(256) spectral_project(
    const float* __restrict__ w,
    const float* __restrict__ u,
    float* __restrict__ x,
    unsigned int r,
    unsigned int c,
    unsigned int m)
{
    constexpr unsigned int COLUMNS = 32u, LANES = 8u;
    __shared__ float partial[LANES][COLUMNS];
    pdl_wait();
    pdl_trigger();
    const unsigned int matrix = blockIdx.y, rows = r / m;
    const unsigned int column = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    float sum = 0.0f;
    if (column < c) {
        for (unsigned int row = matrix * rows + lane; row < (matrix + 1u) * rows; row += LANES) sum += w[row * c + column] * u[row];
    }
    partial[lane][threadIdx.x % COLUMNS] = sum;
    __syncthreads();
    if (lane > 0u || column >= c) return;
    for (unsigned int other = 1u; other < LANES; ++other) sum += partial[other][threadIdx.x];
    x[matrix * c + column] = sum;
}

// Arguments: w [r, c]; x [m, c]; z [r]. Launch: rows(w, block = 128): a block takes one row.
extern "C" __global__ void __launch_bounds__(128) spectral_apply(
    const float* __restrict__ w,
    const float* __restrict__ x,
    float* __restrict__ z,
    unsigned int r,
    unsigned int c,
    unsigned int m)
{
    constexpr unsigned int THREADS = 128u;
    pdl_wait();
    pdl_trigger();
    const unsigned int row = blockIdx.x, matrix = row / (r / m);
    float dot = 0.0f, square = 0.0f;
    for (unsigned int j = threadIdx.x; j < c; j += THREADS) {
        const float value = x[matrix * c + j];
        dot += w[row * c + j] * value;
        square += value * value;
    }
    dot = sg::block_sum<THREADS>(dot);
    square = sg::block_sum<THREADS>(square);
    if (threadIdx.x == 0u) z[row] = dot / sg::max(sqrtf(square), 1e-12f);
}

// Arguments: z [r]; sigma_max; w [r, c] updated; u [r]; sigma [m].
// Launch: rows(w, block = 128): a block takes one row, and finds its matrix's sigma again.
extern "C" __global__ void __launch_bounds__(128) spectral_shrink(
    const float* __restrict__ z,
    const float* __restrict__ sigma_max,
    float* __restrict__ w,
    float* __restrict__ u,
    float* __restrict__ sigma,
    unsigned int r,
    unsigned int c,
    unsigned int m)
{
    constexpr unsigned int THREADS = 128u;
    pdl_wait();
    pdl_trigger();
    const unsigned int row = blockIdx.x, rows = r / m, matrix = row / rows;
    float square = 0.0f;
    for (unsigned int i = threadIdx.x; i < rows; i += THREADS) square += z[matrix * rows + i] * z[matrix * rows + i];
    const float norm = sqrtf(sg::block_sum<THREADS>(square));
    const float factor = sg::min(1.0f, *sigma_max / (norm + 1e-12f));
    for (unsigned int j = threadIdx.x; j < c; j += THREADS) w[row * c + j] *= factor;
    if (threadIdx.x > 0u) return;
    u[row] = z[row] / (norm + 1e-12f);
    if (row % rows == 0u) sigma[matrix] = norm;
}
