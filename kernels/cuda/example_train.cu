// Kernels of examples/train.rs: a fully connected layer, forwards and backwards, the loss, and a
// step of gradient descent. They show how training overlaps with collectives, not how to multiply
// matrices: each thread computes one value, and adds in the order of the samples, so that results
// do not depend on the shape of the launch.
//
// A layer of `inputs` and `outputs` has (inputs + 1) * outputs parameters: a row of weights for
// each input, and the biases behind them. Values of samples are rows.

#include "ptx.cuh"

namespace {

using ringdove::u32;

struct Shape {
    u32 samples;
    u32 inputs;
    u32 outputs;
};

// Which value this thread computes. Beyond the last there is nothing to do.
RINGDOVE_INLINE u32 own_index() {
    namespace ptx = ringdove::ptx;
    return ptx::block_index() * ptx::thread_count() + ptx::thread_index();
}

// The activation: x / (1 + |x|). Its derivative follows from its value.
RINGDOVE_INLINE float softsign(float x) { return x / (1.0f + __builtin_fabsf(x)); }

RINGDOVE_INLINE float slope_at(float value) {
    const float rest = 1.0f - __builtin_fabsf(value);
    return rest * rest;
}

}  // namespace

// output[sample][o] = activation(bias[o] + sum of input[sample][i] * weight[i][o]); without the
// activation in the last layer.
extern "C" __global__ void train_forward(const float* input, const float* parameters, float* output,
                                         Shape shape, u32 is_last) {
    const u32 index = own_index();
    if (index >= shape.samples * shape.outputs) {
        return;
    }
    const u32 sample = index / shape.outputs;
    const u32 column = index % shape.outputs;
    float sum = parameters[shape.inputs * shape.outputs + column];
    for (u32 i = 0; i < shape.inputs; i++) {
        sum += input[sample * shape.inputs + i] * parameters[i * shape.outputs + column];
    }
    output[index] = is_last ? sum : softsign(sum);
}

// The share of each sample in the loss, scale * (output - target)^2, and its derivative.
extern "C" __global__ void train_loss(const float* output, const float* target, float* losses,
                                      float* delta, u32 count, float scale) {
    const u32 index = own_index();
    if (index < count) {
        const float error = output[index] - target[index];
        losses[index] = scale * error * error;
        delta[index] = 2.0f * scale * error;
    }
}

// gradient[i][o] = sum over samples of input[sample][i] * delta[sample][o]; the input of biases
// is 1.
extern "C" __global__ void train_gradients(const float* input, const float* delta, float* gradients,
                                           Shape shape) {
    const u32 index = own_index();
    if (index >= (shape.inputs + 1) * shape.outputs) {
        return;
    }
    const u32 row = index / shape.outputs;
    const u32 column = index % shape.outputs;
    float sum = 0;
    for (u32 sample = 0; sample < shape.samples; sample++) {
        const float value = row < shape.inputs ? input[sample * shape.inputs + row] : 1.0f;
        sum += value * delta[sample * shape.outputs + column];
    }
    gradients[index] = sum;
}

// The derivatives by the sums of the layer before, whose activations are this layer's input.
extern "C" __global__ void train_backward(const float* parameters, const float* delta,
                                          const float* input, float* input_delta, Shape shape) {
    const u32 index = own_index();
    if (index >= shape.samples * shape.inputs) {
        return;
    }
    const u32 sample = index / shape.inputs;
    const u32 row = index % shape.inputs;
    float sum = 0;
    for (u32 o = 0; o < shape.outputs; o++) {
        sum += delta[sample * shape.outputs + o] * parameters[row * shape.outputs + o];
    }
    input_delta[index] = sum * slope_at(input[index]);
}

extern "C" __global__ void train_descend(float* parameters, const float* gradients, u32 count,
                                         float rate) {
    const u32 index = own_index();
    if (index < count) {
        parameters[index] -= rate * gradients[index];
    }
}
