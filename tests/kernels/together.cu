// Adds 1 to each of n elements; a cooperative kernel in clusters of two blocks, with 64 KiB of dynamic shared memory.
extern "C" __global__ void together(float* __restrict__ x, unsigned int n) {
    extern __shared__ float scratch[];
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    scratch[threadIdx.x] = 1.0f;
    __syncthreads();
    if (i < n) x[i] += scratch[threadIdx.x];
}
