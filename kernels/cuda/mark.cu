// Marks that a launch runs, and holds its stream until it is let go: so the library tries how many
// streams of a context run beside each other, and how many commands its driver takes.

#include "wait.cuh"

namespace {

using ringdove::u32;

// The host looks at the mark every 50 us.
constexpr u32 kNapNs = 1000;

} // namespace

extern "C" __global__ void ringdove_mark(ringdove::MarkCall call) {
    using namespace ringdove;
    using namespace ringdove::ptx;
    u64 began_ns = global_time_ns();
    // Relaxed: nobody reads other memory because of it.
    store_relaxed_system_u64(call.mark, 1);
    while (load_relaxed_system_u32(call.gate) == 0 && waited_since(began_ns) < call.timeout_ns) {
        nanosleep(kNapNs);
    }
}
