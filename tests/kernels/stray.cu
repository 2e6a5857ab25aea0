// Writes far outside of x, on purpose; one thread per element.
extern "C" __global__ void stray(float* __restrict__ x, unsigned int n) {
    unsigned long long far = 1ull << 44;
    x[far + blockIdx.x * blockDim.x + threadIdx.x] = (float)n;
}
