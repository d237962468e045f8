// The one kernel that runs every plan. Launch it with the plan's `block_count` and `thread_count`.

#include "executor.cuh"

// The plan chooses the number of threads. With this bound a thread has 96 registers, which suffice:
// with 64, for 1,024 threads, ptxas spills.
extern "C" __global__ void __launch_bounds__(ringdove::THREADS_MAX)
    ringdove_execute(const ringdove::LaunchArguments arguments) {
    __shared__ ringdove::BlockState state;
    ringdove::Executor(state).run(arguments);
}
