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

// Of an output: the elements of each dimension, and how far apart these are in each of two inputs.
struct Strides {
    static constexpr u32 DIMENSIONS = 8;
    u32 extents[DIMENSIONS];
    u32 left[DIMENSIONS];
    u32 right[DIMENSIONS];

    // Where the element `index` of the output comes from.
    RINGDOVE_INLINE void find(u32 index, u32& in_left, u32& in_right) const {
        in_left = in_right = 0;
#pragma unroll
        for (int at = DIMENSIONS - 1; at >= 0; at--) {
            const u32 own = index % extents[at];
            index /= extents[at];
            in_left += own * left[at];
            in_right += own * right[at];
        }
    }
};

// A window that slides over images of two dimensions.
struct Sliding {
    u32 channels, height, width;
    u32 kernels, rows, columns;
    u32 kernel_height, kernel_width;
    u32 stride_height, stride_width;
    u32 dilation_height, dilation_width;
    u32 before_height, before_width;
    u32 after_height, after_width;
    u32 groups, counts_edges;
};

// Takes the sum, the product, the difference or the quotient.
RINGDOVE_INLINE float combine(float one, float other, u32 kind) {
    return kind == 0   ? one + other
           : kind == 1 ? one * other
           : kind == 2 ? one - other
                       : one / other;
}

constexpr float LOG2_E = 1.44269504f;

RINGDOVE_INLINE float sigmoid(float x) { return 1.0f / (1.0f + __nvvm_ex2_approx_f(-x * LOG2_E)); }

}  // namespace

// output[row][c] = bias[c] + sum of input[row][i] * weight[i][c]; a bias of null is none. Every
// `matrix_rows` rows have the next weight.
extern "C" __global__ void graph_dense(const float* input, const float* weight, const float* bias,
                                       float* output, u32 rows, u32 inner, u32 columns,
                                       u32 matrix_rows) {
    const u32 index = own_index();
    if (index >= rows * columns) {
        return;
    }
    const u32 column = index % columns, row = index / columns;
    const float* value = input + row * inner;
    weight += row / matrix_rows * inner * columns;
    float sum = bias == nullptr ? 0.0f : bias[column];
    for (u32 i = 0; i < inner; i++) {
        sum += value[i] * weight[i * columns + column];
    }
    output[index] = sum;
}

// 0: the sum, 1: the product, 2: the difference, 3: the quotient.
extern "C" __global__ void graph_pairs(const float* left, const float* right, float* output,
                                       u32 count, u32 kind) {
    const u32 index = own_index();
    if (index < count) {
        output[index] = combine(left[index], right[index], kind);
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

// The same where one of both has fewer elements.
extern "C" __global__ void graph_spread(const float* left, const float* right, float* output,
                                        Strides strides, u32 count, u32 kind) {
    const u32 index = own_index();
    if (index < count) {
        u32 in_left, in_right;
        strides.find(index, in_left, in_right);
        output[index] = combine(left[in_left], right[in_right], kind);
    }
}

// The same values, in another order.
extern "C" __global__ void graph_transpose(const float* input, float* output, Strides strides,
                                           u32 count) {
    const u32 index = own_index();
    if (index < count) {
        u32 from, unused;
        strides.find(index, from, unused);
        output[index] = input[from];
    }
}

// A tensor's part of what several become: runs of `own` elements, at `start` of runs of `whole`.
extern "C" __global__ void graph_concatenate(const float* input, float* output, u32 count, u32 own,
                                             u32 whole, u32 start) {
    const u32 index = own_index();
    if (index < count) {
        output[index / own * whole + start + index % own] = input[index];
    }
}

// Adds to the bias, in the order of channels, rows and columns; a bias of null is none.
extern "C" __global__ void graph_convolve(const float* input, const float* filters,
                                          const float* bias, float* output, Sliding window,
                                          u32 count) {
    const u32 index = own_index();
    if (index >= count) {
        return;
    }
    const u32 column = index % window.columns, row = index / window.columns % window.rows;
    const u32 plane = index / (window.columns * window.rows);
    const u32 kernel = plane % window.kernels, image = plane / window.kernels;
    const u32 depth = window.channels / window.groups;
    const u32 group = kernel / (window.kernels / window.groups);
    const float* value =
        input + (image * window.channels + group * depth) * window.height * window.width;
    const float* weight = filters + kernel * depth * window.kernel_height * window.kernel_width;
    float sum = bias == nullptr ? 0.0f : bias[kernel];
    for (u32 channel = 0; channel < depth; channel++) {
        for (u32 i = 0; i < window.kernel_height; i++) {
            // Below zero it is beyond the image, too.
            const u32 y = row * window.stride_height + i * window.dilation_height -
                          window.before_height;
            for (u32 j = 0; j < window.kernel_width; j++) {
                const u32 x = column * window.stride_width + j * window.dilation_width -
                              window.before_width;
                if (y < window.height && x < window.width) {
                    sum += value[y * window.width + x] *
                           weight[i * window.kernel_width + j];
                }
            }
        }
        value += window.height * window.width;
        weight += window.kernel_height * window.kernel_width;
    }
    output[index] = sum;
}

// 0: the largest under the window, 1: the mean, added in the order of rows and columns.
extern "C" __global__ void graph_pool(const float* input, float* output, Sliding window, u32 count,
                                      u32 kind) {
    const u32 index = own_index();
    if (index >= count) {
        return;
    }
    const u32 column = index % window.columns, row = index / window.columns % window.rows;
    const float* value =
        input + index / (window.columns * window.rows) * window.height * window.width;
    float sum = 0.0f, largest = -__builtin_inff();
    u32 seen = 0;
    for (u32 i = 0; i < window.kernel_height; i++) {
        const u32 below = row * window.stride_height + i * window.dilation_height;
        const u32 y = below - window.before_height;
        for (u32 j = 0; j < window.kernel_width; j++) {
            const u32 beside = column * window.stride_width + j * window.dilation_width;
            const u32 x = beside - window.before_width;
            if (y < window.height && x < window.width) {
                const float own = value[y * window.width + x];
                sum += own;
                largest = own > largest ? own : largest;
                seen++;
            } else if (window.counts_edges != 0 &&
                       below < window.before_height + window.height + window.after_height &&
                       beside < window.before_width + window.width + window.after_width) {
                seen++;
            }
        }
    }
    output[index] = kind == 0 ? largest : sum / static_cast<float>(seen);
}

// Each thread has a line of `extent` elements that are `apart` from one another.
extern "C" __global__ void graph_softmax(const float* input, float* output, u32 lines, u32 extent,
                                         u32 apart) {
    const u32 line = own_index();
    if (line >= lines) {
        return;
    }
    const u32 start = line / apart * extent * apart + line % apart;
    float largest = input[start], sum = 0.0f;
    for (u32 i = 1; i < extent; i++) {
        const float own = input[start + i * apart];
        largest = own > largest ? own : largest;
    }
    for (u32 i = 0; i < extent; i++) {
        const u32 at = start + i * apart;
        const float own = __nvvm_ex2_approx_f((input[at] - largest) * LOG2_E);
        output[at] = own;
        sum += own;
    }
    for (u32 i = 0; i < extent; i++) {
        output[start + i * apart] /= sum;
    }
}

// Each thread has an element; `inner` of one channel are behind one another.
extern "C" __global__ void graph_normalize_batch(const float* input, const float* scale,
                                                 const float* bias, const float* mean,
                                                 const float* variance, float* output, u32 count,
                                                 u32 channels, u32 inner, u32 epsilon) {
    const u32 index = own_index();
    if (index < count) {
        const u32 channel = index / inner % channels;
        const float deviation =
            __nvvm_sqrt_rn_f(variance[channel] + __builtin_bit_cast(float, epsilon));
        output[index] =
            (input[index] - mean[channel]) / deviation * scale[channel] + bias[channel];
    }
}

// Each thread has a row; a bias of null is none.
extern "C" __global__ void graph_normalize_layer(const float* input, const float* scale,
                                                 const float* bias, float* output, u32 rows,
                                                 u32 columns, u32 epsilon) {
    const u32 row = own_index();
    if (row >= rows) {
        return;
    }
    const float* value = input + row * columns;
    float* result = output + row * columns;
    float sum = 0.0f, squares = 0.0f;
    for (u32 i = 0; i < columns; i++) {
        sum += value[i];
    }
    const float mean = sum / static_cast<float>(columns);
    for (u32 i = 0; i < columns; i++) {
        squares += (value[i] - mean) * (value[i] - mean);
    }
    const float variance = squares / static_cast<float>(columns);
    const float deviation = __nvvm_sqrt_rn_f(variance + __builtin_bit_cast(float, epsilon));
    for (u32 i = 0; i < columns; i++) {
        const float own = (value[i] - mean) / deviation * scale[i];
        result[i] = bias == nullptr ? own : own + bias[i];
    }
}
