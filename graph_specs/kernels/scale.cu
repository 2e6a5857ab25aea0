// Multiplies every row of a matrix by a scalar cell.
//
// Arguments: x [r, c] in; y [r, c] out; factor, a scalar cell; r and c, the extents.
// Launch: one block per row of x, any number of threads. Shared memory: none.
extern "C" __global__ void scale(
    const float* __restrict__ x, float* __restrict__ y, const float* __restrict__ factor, unsigned int r,
    unsigned int c) {
    for (unsigned int i = threadIdx.x; i < c; i += blockDim.x) {
        y[blockIdx.x * c + i] = *factor * x[blockIdx.x * c + i];
    }
}
