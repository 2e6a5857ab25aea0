// Conditional nodes in the body of a WHILE node, side by side or one after the other, in plain CUDA: does the device come back?
// docs/plans.md says what came out.
//
//     nvcc -arch=native -o side_by_side tests/gpu/side_by_side.cu
//     ./side_by_side side 2 1 5000        two IF nodes and a kernel that nothing orders, 5,000 iterations
//     ./side_by_side after 2 1 5000       the same, but the second IF node follows the first
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <unistd.h>

#define CHECK(call)                                                          \
    do {                                                                     \
        cudaError_t error = (call);                                          \
        if (error != cudaSuccess) {                                          \
            printf("%s: %s\n", #call, cudaGetErrorString(error));            \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

constexpr int MOST = 32;

__global__ void enter(cudaGraphConditionalHandle loop, unsigned *count) {
    *count = 0;
    cudaGraphSetConditional(loop, 1);
}

__global__ void choose(cudaGraphConditionalHandle branch) { cudaGraphSetConditional(branch, 1); }

__global__ void add(unsigned *cell) { *cell += 1; }

__global__ void next(cudaGraphConditionalHandle loop, unsigned *count, unsigned iterations) {
    *count += 1;
    cudaGraphSetConditional(loop, *count < iterations);
}

static cudaGraphNode_t kernel(cudaGraph_t graph, void *function, void **args, const cudaGraphNode_t *after, size_t count) {
    cudaKernelNodeParams params = {};
    params.func = function;
    params.gridDim = params.blockDim = dim3(1);
    params.kernelParams = args;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, after, count, &params));
    return node;
}

/// Adds a conditional node behind its setter; gives its body.
static cudaGraph_t conditional(cudaGraph_t graph, cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type,
                               cudaGraphNode_t setter, cudaGraphNode_t *node) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = 1;
    CHECK(cudaGraphAddNode(node, graph, &setter, nullptr, 1, &params));
    return params.conditional.phGraph_out[0];
}

int main(int argc, char **argv) {
    if (argc != 5 || atoi(argv[2]) + atoi(argv[3]) > MOST || atoi(argv[2]) < 1) {
        printf("usage: side_by_side side|after IFS KERNELS ITERATIONS\n");
        return 2;
    }
    bool side_by_side = !strcmp(argv[1], "side");
    int ifs = atoi(argv[2]), kernels = atoi(argv[3]);
    unsigned iterations = atoi(argv[4]);

    unsigned *cells; // the loop's counter, then one for each IF node and kernel
    CHECK(cudaMalloc(&cells, (1 + MOST) * sizeof *cells));
    CHECK(cudaMemset(cells, 0, (1 + MOST) * sizeof *cells));
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle loop;
    CHECK(cudaGraphConditionalHandleCreate(&loop, graph, 0, 0));
    void *enter_args[] = {&loop, &cells};
    cudaGraphNode_t entered = kernel(graph, (void *)enter, enter_args, nullptr, 0), loop_node;
    cudaGraph_t body = conditional(graph, loop, cudaGraphCondTypeWhile, entered, &loop_node);

    cudaGraphNode_t last[MOST];
    for (int i = 0; i < ifs; i++) {
        cudaGraphConditionalHandle branch;
        CHECK(cudaGraphConditionalHandleCreate(&branch, body, 0, 0));
        void *choose_args[] = {&branch};
        bool waits = !side_by_side && i > 0;
        cudaGraphNode_t chosen = kernel(body, (void *)choose, choose_args, waits ? &last[i - 1] : nullptr, waits);
        cudaGraph_t inner = conditional(body, branch, cudaGraphCondTypeIf, chosen, &last[i]);
        unsigned *cell = cells + 1 + i;
        void *add_args[] = {&cell};
        kernel(inner, (void *)add, add_args, nullptr, 0);
    }
    for (int i = ifs; i < ifs + kernels; i++) {
        unsigned *cell = cells + 1 + i;
        void *add_args[] = {&cell};
        last[i] = kernel(body, (void *)add, add_args, nullptr, 0);
    }
    void *next_args[] = {&loop, &cells, &iterations};
    kernel(body, (void *)next, next_args, last, ifs + kernels);

    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    auto begun = std::chrono::steady_clock::now();
    for (int launch = 0; launch < 2; launch++) CHECK(cudaGraphLaunch(exec, stream));
    while (cudaStreamQuery(stream) == cudaErrorNotReady) {
        if (std::chrono::steady_clock::now() - begun > std::chrono::seconds(5)) {
            printf("did not end within 5 s\n");
            fflush(stdout);
            _exit(3);
        }
    }
    unsigned found[1 + MOST];
    CHECK(cudaMemcpy(found, cells, sizeof found, cudaMemcpyDeviceToHost));
    printf("ended after %u iterations; the first branch ran %u times in two launches\n", found[0], found[1]);
}
