// Operators of graphs. Each thread computes one value and adds in the order of the rows, so that
// results do not depend on the shape of the launch, nor on the rank that computes them.

#include "ptx.cuh"

namespace {

using ringdove::u32;

// Which value this thread computes. Beyond the last there is nothing to do.
RINGDOVE_INLINE u32 own_index() {
    namespace ptx = ringdove::ptx;
    return ptx::block_index() * ptx::thread_count() + ptx::thread_index();
}

constexpr float LOG2_E = 1.44269504f;

RINGDOVE_INLINE float sigmoid(float x) { return 1.0f / (1.0f + __nvvm_ex2_approx_f(-x * LOG2_E)); }

}  // namespace

// output[row][c] = bias[c] + sum of input[row][i] * weight[i][c]; a bias of null is none.
extern "C" __global__ void graph_dense(const float* input, const float* weight, const float* bias,
                                       float* output, u32 rows, u32 inner, u32 columns) {
    const u32 index = own_index();
    if (index >= rows * columns) {
        return;
    }
    const u32 column = index % columns;
    const float* value = input + index / columns * inner;
    float sum = bias == nullptr ? 0.0f : bias[column];
    for (u32 i = 0; i < inner; i++) {
        sum += value[i] * weight[i * columns + column];
    }
    output[index] = sum;
}

// 0: the sum, 1: the product.
extern "C" __global__ void graph_pairs(const float* left, const float* right, float* output,
                                       u32 count, u32 kind) {
    const u32 index = own_index();
    if (index < count) {
        const float one = left[index], other = right[index];
        output[index] = kind == 0 ? one + other : one * other;
    }
}

// 0: the larger of it and 0, 1: the hyperbolic tangent, 2: the logistic function.
extern "C" __global__ void graph_each(const float* input, float* output, u32 count, u32 kind) {
    const u32 index = own_index();
    if (index < count) {
        const float x = input[index];
        output[index] = kind == 0   ? (x > 0.0f ? x : 0.0f)
                        : kind == 1 ? 2.0f * sigmoid(2.0f * x) - 1.0f
                                    : sigmoid(x);
    }
}

// output[n] = table[numbers[n]], rows of some columns.
extern "C" __global__ void graph_gather(const float* table, const u32* numbers, float* output,
                                        u32 count, u32 columns) {
    const u32 index = own_index();
    if (index < count) {
        output[index] = table[numbers[index / columns] * columns + index % columns];
    }
}
