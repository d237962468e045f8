// Dispatch and combine of expert parallelism, for callers on the host: src/experts. A dispatch is
// experts_route and experts_send, then, when its result is wanted, experts_await and
// experts_receive; a combine is experts_return, then experts_await_returns and experts_combine.
// Between the halves nothing runs. Blocks do not wait for one another; one block waits for peers.
#include "experts_combine.cuh"
#include "experts_dispatch.cuh"

using ringdove::EXPERTS_THREADS;
using ringdove::ExpertsCall;

extern "C" __global__ void __launch_bounds__(EXPERTS_THREADS)
    experts_route(const ExpertsCall call) {
    ringdove::experts_route(call);
}

extern "C" __global__ void __launch_bounds__(EXPERTS_THREADS)
    experts_send(const ExpertsCall call) {
    ringdove::experts_send(call);
}

extern "C" __global__ void __launch_bounds__(EXPERTS_THREADS)
    experts_await(const ExpertsCall call) {
    ringdove::experts_await(call);
}

extern "C" __global__ void __launch_bounds__(EXPERTS_THREADS)
    experts_receive(const ExpertsCall call) {
    ringdove::experts_receive(call);
}

extern "C" __global__ void __launch_bounds__(EXPERTS_THREADS)
    experts_return(const ExpertsCall call) {
    ringdove::experts_return(call);
}

extern "C" __global__ void __launch_bounds__(EXPERTS_THREADS)
    experts_await_returns(const ExpertsCall call) {
    ringdove::experts_await_returns(call);
}

extern "C" __global__ void __launch_bounds__(EXPERTS_THREADS)
    experts_combine(const ExpertsCall call) {
    ringdove::experts_combine(call);
}
