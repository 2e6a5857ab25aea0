// A device on the CPU, just enough for generated kernels: blocks run one after another, and the threads of a block are
// fibers that stop at every barrier and shuffle. Included before the prelude, which it gives the words that NVRTC knows.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __cudart_builtin__
#define __launch_bounds__(threads)
#define __restrict__

struct Extents {
    unsigned int x, y, z;
};
static Extents threadIdx, blockIdx, blockDim, gridDim;

struct Fiber {
    ucontext_t context;
    bool done;
};
static const size_t STACK = 64 * 1024;
static std::vector<Fiber> fibers(1024);
static std::vector<char> stacks(1024 * STACK);
static unsigned int words[1024];
static ucontext_t scheduler;
static unsigned int current;
static std::function<void()> work;

static void start() {
    work();
    fibers[current].done = true;
    swapcontext(&fibers[current].context, &scheduler);
}

// Lets all other threads of the block come as far as this one.
static void __syncthreads() { swapcontext(&fibers[current].context, &scheduler); }

static void run_block(unsigned int threads) {
    for (unsigned int t = 0; t < threads; ++t) {
        getcontext(&fibers[t].context);
        fibers[t].context.uc_stack.ss_sp = &stacks[t * STACK];
        fibers[t].context.uc_stack.ss_size = STACK;
        fibers[t].done = false;
        makecontext(&fibers[t].context, start, 0);
    }
    for (unsigned int left = threads; left > 0;) {
        for (unsigned int t = 0; t < threads; ++t) {
            if (fibers[t].done) continue;
            current = t;
            threadIdx = {t % blockDim.x, t / blockDim.x, 0};
            swapcontext(&scheduler, &fibers[t].context);
            left -= fibers[t].done;
        }
    }
}

static void launch(Extents grid, Extents block, std::function<void()> kernel) {
    gridDim = grid;
    blockDim = block;
    work = kernel;
    for (unsigned int y = 0; y < grid.y; ++y) {
        for (unsigned int x = 0; x < grid.x; ++x) {
            blockIdx = {x, y, 0};
            run_block(block.x * block.y);
        }
    }
}

template <class T>
static T __shfl_down_sync(unsigned int, T mine, unsigned int distance, unsigned int width) {
    const unsigned int thread = threadIdx.y * blockDim.x + threadIdx.x;
    memcpy(&words[thread], &mine, 4);
    __syncthreads();
    T theirs;
    const unsigned int from = thread % width + distance < width ? thread + distance : thread;
    memcpy(&theirs, &words[from], 4);
    __syncthreads();
    return theirs;
}

static float __uint_as_float(unsigned int bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static unsigned int __float_as_uint(float x) {
    unsigned int bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned int)((unsigned long long)a * b >> 32); }
static int __float2int_rz(float x) {
    if (x != x) return 0;
    return x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : (int)x;
}
static unsigned int __float2uint_rz(float x) {
    if (x != x || x <= 0.0f) return 0u;
    return x >= 4294967296.0f ? 4294967295u : (unsigned int)x;
}
static float __int2float_rn(int x) { return (float)x; }
static float __uint2float_rn(unsigned int x) { return (float)x; }

// A pointer of whatever type the parameter has.
struct Address {
    void* at;
    template <class T>
    operator T*() const {
        return (T*)at;
    }
};

// What setters have set, by the number of the conditional.
static unsigned int* condition_values;

// Memory between guards that nothing may write.
struct Guarded {
    static const size_t GUARD = 256;
    std::vector<unsigned char> bytes;
    size_t size;

    explicit Guarded(size_t size) : bytes(size + 2 * GUARD, 0xa5), size(size) {}
    unsigned char* data() { return &bytes[GUARD]; }
    void check(const char* what) const {
        for (size_t at = 0; at < bytes.size(); ++at) {
            const bool inside = at >= GUARD && at < GUARD + size;
            if (!inside && bytes[at] != 0xa5) {
                fprintf(stderr, "%s: a write outside memory, at byte %ld of %zu\n", what, (long)at - (long)GUARD, size);
                exit(1);
            }
        }
    }
};
