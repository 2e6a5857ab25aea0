// What every CUDA source of stepgraph starts from, hand-written or generated. No other header is needed or found.
//
// Functions live in namespace `sg`, but for pdl_wait and pdl_trigger. They compute exactly what the host executor computes (src/ir/expr.rs documents each
// operation) when compiled with --fmad=false, but for the transcendental functions, which differ in the last digits.
#pragma once

// bfloat16 as memory holds it; arithmetic is in float.
struct __nv_bfloat16 {
    unsigned short bits;
};

// ---- conditional nodes --------------------------------------------------------------------------------------------------

// Tells a conditional node of the running graph what to run. The driver's compiler knows it; no header is needed.
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(unsigned long long condition, unsigned int value);

// ---- programmatic dependent launch --------------------------------------------------------------------------------------

// Waits until the kernels before this one have finished and their writes are visible. Needed before any global write and
// any read of what they write; does nothing in an ordinary launch.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the kernels after this one start. Call it after pdl_wait.
__device__ __forceinline__ void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

namespace sg {

// ---- element types ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
    return __uint_as_float((unsigned int)x.bits << 16);
}

// Rounds to nearest even; a NaN stays a (quiet) NaN.
__device__ __forceinline__ __nv_bfloat16 to_bf16(float x) {
    const unsigned int bits = __float_as_uint(x);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const unsigned int rounded = nan ? (bits >> 16) | 0x0040u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return __nv_bfloat16{(unsigned short)rounded};
}

// ---- arithmetic ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ int neg(int x) { return (int)(0u - (unsigned int)x); }
__device__ __forceinline__ int abs(int x) { return x < 0 ? neg(x) : x; }

__device__ __forceinline__ float add(float a, float b) { return a + b; }
__device__ __forceinline__ unsigned int add(unsigned int a, unsigned int b) { return a + b; }
__device__ __forceinline__ int add(int a, int b) { return (int)((unsigned int)a + (unsigned int)b); }
__device__ __forceinline__ int sub(int a, int b) { return (int)((unsigned int)a - (unsigned int)b); }
__device__ __forceinline__ int mul(int a, int b) { return (int)((unsigned int)a * (unsigned int)b); }

// Integer division rounds towards zero and gives 0 where b is 0; -2^31 / -1 wraps.
__device__ __forceinline__ unsigned int div(unsigned int a, unsigned int b) { return b == 0u ? 0u : a / b; }
__device__ __forceinline__ int div(int a, int b) { return b == 0 ? 0 : b == -1 ? neg(a) : a / b; }
__device__ __forceinline__ unsigned int rem(unsigned int a, unsigned int b) { return b == 0u ? 0u : a % b; }
__device__ __forceinline__ int rem(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }

// Shifts take their distance modulo 32.
__device__ __forceinline__ unsigned int shl(unsigned int a, unsigned int b) { return a << (b & 31u); }
__device__ __forceinline__ int shl(int a, int b) { return (int)((unsigned int)a << ((unsigned int)b & 31u)); }
__device__ __forceinline__ unsigned int shr(unsigned int a, unsigned int b) { return a >> (b & 31u); }
__device__ __forceinline__ int shr(int a, int b) { return a >> ((unsigned int)b & 31u); }

// NaN where either is NaN; a where they are equal.
__device__ __forceinline__ float min(float a, float b) { return a != a || b != b ? __uint_as_float(0x7fc00000u) : b < a ? b : a; }
__device__ __forceinline__ float max(float a, float b) { return a != a || b != b ? __uint_as_float(0x7fc00000u) : b > a ? b : a; }
__device__ __forceinline__ int min(int a, int b) { return b < a ? b : a; }
__device__ __forceinline__ int max(int a, int b) { return b > a ? b : a; }
__device__ __forceinline__ unsigned int min(unsigned int a, unsigned int b) { return b < a ? b : a; }
__device__ __forceinline__ unsigned int max(unsigned int a, unsigned int b) { return b > a ? b : a; }

__device__ __forceinline__ bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// A gathered place, moved into 0 .. extent - 1.
__device__ __forceinline__ unsigned int clamp_index(unsigned int i, unsigned int extent) { return min(i, extent - 1u); }
__device__ __forceinline__ unsigned int clamp_index(int i, unsigned int extent) {
    return i < 0 ? 0u : min((unsigned int)i, extent - 1u);
}

// ---- random numbers -----------------------------------------------------------------------------------------------------

struct Philox {
    unsigned int word[4];
};

// Philox-4x32-10 (Salmon et al., SC 2011): key [key, stream], counter [element, counter, 0, 0].
__device__ __forceinline__ Philox philox(unsigned int key, unsigned int stream, unsigned int element, unsigned int counter) {
    Philox x = {{element, counter, 0u, 0u}};
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned int high0 = __umulhi(0xd2511f53u, x.word[0]), low0 = 0xd2511f53u * x.word[0];
        const unsigned int high1 = __umulhi(0xcd9e8d57u, x.word[2]), low1 = 0xcd9e8d57u * x.word[2];
        x = {{high1 ^ x.word[1] ^ key, low1, high0 ^ x.word[3] ^ stream, low0}};
        key += 0x9e3779b9u;
        stream += 0xbb67ae85u;
    }
    return x;
}

// ---- reductions ---------------------------------------------------------------------------------------------------------
// The order is that of `ReduceSchedule` (src/codegen/schedule.rs), so that the host gets the same bits.

template <class T>
struct Sum {
    T x;
};
template <class T>
struct Max {
    T x;
};
template <class T>
struct Argmax {
    T x;
    unsigned int i;
};
// The sum of e^(x - m), and m, the largest x.
struct LogSumExp {
    float m, s;
};

template <class T>
__device__ __forceinline__ Sum<T> combine(Sum<T> a, Sum<T> b) {
    return {add(a.x, b.x)};
}

template <class T>
__device__ __forceinline__ Max<T> combine(Max<T> a, Max<T> b) {
    return {max(a.x, b.x)};
}

// The larger one, the first one on a tie; NaN (which is not equal to itself) never wins over a number.
template <class T>
__device__ __forceinline__ Argmax<T> combine(Argmax<T> a, Argmax<T> b) {
    const bool later = b.i >= a.i;
    const bool b_wins = b.x > a.x || (b.x == a.x && !later) || (a.x != a.x && (b.x == b.x || !later));
    return b_wins ? b : a;
}

__device__ __forceinline__ LogSumExp combine(LogSumExp a, LogSumExp b) {
    if (a.m == b.m) return {a.m, a.s + b.s};
    if (a.m > b.m) return {a.m, a.s + b.s * expf(b.m - a.m)};
    return {b.m, b.s + a.s * expf(a.m - b.m)};
}

template <class T>
__device__ __forceinline__ T result(Sum<T> state) {
    return state.x;
}
template <class T>
__device__ __forceinline__ T result(Max<T> state) {
    return state.x;
}
template <class T>
__device__ __forceinline__ unsigned int result(Argmax<T> state) {
    return state.i;
}
__device__ __forceinline__ float result(LogSumExp state) { return state.m + logf(state.s); }

// The state of the lane `distance` further up in a group of `width` lanes of one warp.
template <class T>
__device__ __forceinline__ T from_lane_above(T x, unsigned int distance, unsigned int width) {
    return __shfl_down_sync(0xffffffffu, x, distance, width);
}
template <class T>
__device__ __forceinline__ Sum<T> from_lane_above(Sum<T> state, unsigned int distance, unsigned int width) {
    return {from_lane_above(state.x, distance, width)};
}
template <class T>
__device__ __forceinline__ Max<T> from_lane_above(Max<T> state, unsigned int distance, unsigned int width) {
    return {from_lane_above(state.x, distance, width)};
}
template <class T>
__device__ __forceinline__ Argmax<T> from_lane_above(Argmax<T> state, unsigned int distance, unsigned int width) {
    return {from_lane_above(state.x, distance, width), from_lane_above(state.i, distance, width)};
}
__device__ __forceinline__ LogSumExp from_lane_above(LogSumExp state, unsigned int distance, unsigned int width) {
    return {from_lane_above(state.m, distance, width), from_lane_above(state.s, distance, width)};
}

// Folds the LANES lanes along x of a block into lane 0; only the first n lanes hold a value. All threads of the block call
// it; a block is whole warps, and with more than 32 lanes it is one group of lanes.
template <unsigned int LANES, class State>
__device__ __forceinline__ State fold_rows(State mine, unsigned int lane, unsigned int n) {
    constexpr unsigned int WIDTH = LANES < 32u ? LANES : 32u;
    if constexpr (LANES > 32u) {
        __shared__ State upper[LANES / 2u];
        for (unsigned int s = LANES / 2u; s >= 32u; s /= 2u) {
            if (lane >= s && lane < 2u * s) upper[lane - s] = mine;
            __syncthreads();
            if (lane < s && lane + s < n) mine = combine(mine, upper[lane]);
            __syncthreads();
        }
    }
#pragma unroll
    for (unsigned int s = WIDTH / 2u; s > 0u; s /= 2u) {
        const State above = from_lane_above(mine, s, WIDTH);
        if (lane < s && lane + s < n) mine = combine(mine, above);
    }
    return mine;
}

// Folds the LANES lanes along y of a block of COLUMNS columns into lane 0; only the first n lanes hold a value. All threads
// of the block call it.
template <unsigned int LANES, unsigned int COLUMNS, class State>
__device__ __forceinline__ State fold_columns(State mine, unsigned int lane, unsigned int n) {
    __shared__ State upper[LANES / 2u * COLUMNS];
    for (unsigned int s = LANES / 2u; s > 0u; s /= 2u) {
        if (lane >= s && lane < 2u * s) upper[(lane - s) * COLUMNS + threadIdx.x] = mine;
        __syncthreads();
        if (lane < s && lane + s < n) mine = combine(mine, upper[lane * COLUMNS + threadIdx.x]);
        __syncthreads();
    }
    return mine;
}

// Sum over a block of THREADS threads along x (a power of two); every thread gets it.
template <unsigned int THREADS>
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float total;
    const float sum = fold_rows<THREADS>(Sum<float>{x}, threadIdx.x, THREADS).x;
    if (threadIdx.x == 0u) total = sum;
    __syncthreads();
    const float result = total;
    __syncthreads();
    return result;
}

// The largest value over a block of THREADS threads along x (a power of two), NaN if any is NaN; every thread gets it.
template <unsigned int THREADS>
__device__ __forceinline__ float block_max(float x) {
    __shared__ float total;
    const float largest = fold_rows<THREADS>(Max<float>{x}, threadIdx.x, THREADS).x;
    if (threadIdx.x == 0u) total = largest;
    __syncthreads();
    const float result = total;
    __syncthreads();
    return result;
}

}  // namespace sg
