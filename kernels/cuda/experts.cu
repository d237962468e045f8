// Dispatch and combine of expert parallelism, for callers on the host: src/experts. A dispatch is
// experts_route and experts_send, then, when its result is wanted, experts_await and
// experts_receive; a combine is experts_return, then experts_await_returns and experts_combine.
// Where rows are relayed, experts_await_relayed and experts_relay come before experts_await, and
// experts_await_gathered and experts_gather before experts_await_returns.
// Between the halves nothing runs. Blocks do not wait for one another; one block waits for peers.
#include "experts_relay.cuh"

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

extern "C" __global__ void __launch_bounds__(EXPERTS_THREADS)
    experts_await_relayed(const ExpertsCall call) {
    ringdove::experts_await_relayed(call);
}

extern "C" __global__ void __launch_bounds__(EXPERTS_THREADS)
    experts_relay(const ExpertsCall call) {
    ringdove::experts_relay(call);
}

extern "C" __global__ void __launch_bounds__(EXPERTS_THREADS)
    experts_await_gathered(const ExpertsCall call) {
    ringdove::experts_await_gathered(call);
}

extern "C" __global__ void __launch_bounds__(EXPERTS_THREADS)
    experts_gather(const ExpertsCall call) {
    ringdove::experts_gather(call);
}
