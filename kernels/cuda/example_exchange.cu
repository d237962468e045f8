// An example of a user's kernel: compute, exchange and compute again, in one launch.
//
// Each rank squares its `count` values, sends the squares to the rank `to`, receives those of the
// rank `from`, and adds them: output[i] = input[i]^2 + received[i]. One block; `count * 4` is at
// most a slot. Messages go through slots, which any machine has: between nodes, without peer
// access.

#include "ringdove.cuh"

namespace {

// The barrier that every phase ends with; it also spreads thread 0's verdict. True: all is well.
RINGDOVE_INLINE bool all_fine(bool fine) { return ringdove::ptx::barrier_or(fine ? 0 : 1) == 0; }

}  // namespace

extern "C" __global__ void example_exchange(ringdove::u64 handle, ringdove::u64 sequence,
                                            ringdove::u32 to, ringdove::u32 from,
                                            const float* input, float* output,
                                            ringdove::u32 count) {
    using namespace ringdove;
    const u32 thread = ptx::thread_index();
    const u32 threads = ptx::thread_count();
    const Device device(handle);
    OpenPort send(device.communicator(), device.ports(to, 0).send, sequence);
    OpenPort receive(device.communicator(), device.ports(from, 0).receive, sequence);

    // The slot may still hold a message of an earlier launch.
    if (!all_fine(thread != 0 || send.wait_for_slot(0))) {
        return;
    }
    float* outgoing = reinterpret_cast<float*>(send.slot(0));
    for (u32 i = thread; i < count; i += threads) {
        outgoing[i] = input[i] * input[i];
    }
    bool fine = all_fine(true);
    if (thread == 0) {
        fine = send.put_slot(0, count * sizeof(float), flags::ARRIVAL) && receive.wait(1);
    }
    if (!all_fine(fine)) {
        return;
    }
    const float* incoming = reinterpret_cast<const float*>(receive.slot(0));
    for (u32 i = thread; i < count; i += threads) {
        output[i] = outgoing[i] + incoming[i];
    }
    // Everyone has read the slot: give it back, and remember where both lanes stand.
    fine = all_fine(true);
    if (thread == 0 && receive.signal()) {
        send.advance(1, 0);
        receive.advance(1, 0);
        send.close();
        receive.close();
    }
}
