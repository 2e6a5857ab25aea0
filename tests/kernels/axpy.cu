// y <- y + a * x over n elements; one thread per element.
extern "C" __global__ void axpy(const float* __restrict__ x, float* __restrict__ y, const float* __restrict__ a,
                                unsigned int n) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += *a * x[i];
}
