// The one kernel that runs every plan. Launch it with the plan's `block_count` and `thread_count`.

#include "executor.cuh"

// At most 1024 threads: the plan chooses, and a bound lets the compiler keep to 64 registers.
extern "C" __global__ void __launch_bounds__(1024)
    ringdove_execute(const ringdove::LaunchArguments arguments) {
    __shared__ ringdove::BlockState state;
    ringdove::Executor(state).run(arguments);
}
