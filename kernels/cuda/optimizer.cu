// Applies gradients to parameters in the memory of a GPU, for `ringdove::serve`: each thread takes
// its parameters through all gradients that wait, in their order, while they are in registers. The
// same operations in the same order as on the host (src/serve/optimizer.rs), each rounded by
// itself, so that the bits are the same.

#include "layout.cuh"
#include "ptx.cuh"

namespace {

using ringdove::u32;
using ringdove::u64;

RINGDOVE_INLINE float& number(u64 address, u64 index) {
    return reinterpret_cast<float*>(address)[index];
}

} // namespace

extern "C" __global__ void ringdove_optimizer(ringdove::OptimizerCall call) {
    using namespace ringdove;
    const u64 threads = u64(ptx::block_count()) * ptx::thread_count();
    const u64 own = u64(ptx::block_index()) * ptx::thread_count() + ptx::thread_index();
    for (u64 index = own; index < call.count; index += threads) {
        float parameter = number(call.from, index);
        float first = 0.0f;
        float second = 0.0f;
        if (call.kind != OPTIMIZER_SGD) {
            first = number(call.from + call.state_bytes, index);
        }
        if (call.kind == OPTIMIZER_ADAM) {
            second = number(call.from + 2 * call.state_bytes, index);
        }
        for (u32 turn = 0; turn < call.gradient_count; ++turn) {
            const float gradient = number(call.gradients[turn], index);
            switch (call.kind) {
            case OPTIMIZER_SGD:
                parameter -= call.rate * gradient;
                break;
            case OPTIMIZER_MOMENTUM:
                first = call.first * first + gradient;
                parameter -= call.rate * first;
                break;
            default: {
                first = call.first * first + (1.0f - call.first) * gradient;
                second = call.second * second + (1.0f - call.second) * gradient * gradient;
                const float mean = first / call.corrections[turn][0];
                const float square = second / call.corrections[turn][1];
                const float deviation = ptx::square_root_f32(square);
                parameter -= call.rate * mean / (deviation + call.epsilon);
            }
            }
        }
        number(call.to, index) = parameter;
        if (call.kind != OPTIMIZER_SGD) {
            number(call.to + call.state_bytes, index) = first;
        }
        if (call.kind == OPTIMIZER_ADAM) {
            number(call.to + 2 * call.state_bytes, index) = second;
        }
    }
}
