// The kernel of resident programs, and of the same programs as ordinary launches.

#include "program.cuh"

extern "C" __device__ __attribute__((weak, noinline)) ringdove::u32 ringdove_user_task(
    ringdove::u32, const ringdove::ProgramTask*, ringdove::u64, const float*) {
    return 0;
}

extern "C" __global__ void __launch_bounds__(ringdove::THREADS_MAX)
    ringdove_program(const ringdove::ProgramArguments arguments) {
    __shared__ ringdove::BlockState state;
    __shared__ ringdove::ProgramShared shared;
    ringdove::ProgramBlockRunner(state, shared).run(arguments);
}
