// One-sided transfers between windows, for `ringdove::window`: a grid copies where stores and loads
// of this GPU reach both ends, and one thread asks an engine elsewhere. Launches of one rank follow
// one another (`Launcher::launch_other`), so one thread at a time uses the lane.

#include "copy.cuh"
#include "port.cuh"

namespace {

using ringdove::u32;
using ringdove::u64;

// Each block's part begins at a multiple of it, so that whole vectors stay whole.
constexpr u64 kPartBytes = 512;

} // namespace

// Copies; each block takes a part. What is stored is visible to other agents once the launch behind
// this one has raised a signal (R5: its fence is the signal's).
extern "C" __global__ void window_copy(ringdove::WindowCall call) {
    using namespace ringdove;
    const auto& communicator = *reinterpret_cast<const DeviceCommunicator*>(call.communicator);
    if (has_failed_before(communicator)) {
        return;
    }
    const u64 parts = (call.bytes + kPartBytes - 1) / kPartBytes;
    const u64 blocks = ptx::block_count();
    const u64 each = (parts + blocks - 1) / blocks * kPartBytes;
    const u64 from = each * ptx::block_index();
    if (from >= call.bytes) {
        return;
    }
    const u64 length = call.bytes - from < each ? call.bytes - from : each;
    copy(call.destination + from, call.source + from, length, Team::here());
    // Stores to memory of another GPU: they are there before the launch ends.
    ptx::fence_acquire_release_system();
}

// Asks an engine, and waits until it has done so; or waits for signals.
extern "C" __global__ void window_call(ringdove::WindowCall call) {
    using namespace ringdove;
    const auto& communicator = *reinterpret_cast<const DeviceCommunicator*>(call.communicator);
    if (has_failed_before(communicator)) {
        return;
    }
    OpenPort port(call.communicator, call.port, call.sequence);
    bool fine = true;
    switch (call.kind) {
    case WINDOW_MOVE: {
        const u8 wanted = call.signal != 0 ? u8(flags::ARRIVAL | flags::COMPLETION)
                                           : u8(flags::COMPLETION);
        fine = port.put(call.value, call.source, call.destination, call.bytes, wanted) &&
               port.wait_completion(1);
        port.advance(0, 1);
        break;
    }
    case WINDOW_SIGNAL:
        fine = port.signal();
        break;
    case WINDOW_WAIT:
        fine = port.wait(call.value);
        port.advance(call.value, 0);
        break;
    default:
        fine = port.refuse(PlanFault::OpCode, WINDOW_WAIT, call.kind);
        break;
    }
    if (fine) {
        port.close();
    }
}
