// A kernel that makes the calls of ringdove.cuh that a list names. For tests.

#include "ringdove.cuh"

namespace {

using ringdove::u32;
using ringdove::u64;

enum class Kind : u32 {
    Nothing = 0,
    Put = 1,
    PutWithSignal = 2,
    Signal = 3,
    Wait = 4,
    Flush = 5,
};

struct Call {
    Kind kind;
    u32 peer;
    u32 lane;
    u32 to;
    u32 from;
    u32 count;
    u64 to_offset;
    u64 from_offset;
    u64 bytes;
};

RINGDOVE_INLINE bool make(const ringdove::Device& device, const Call& call) {
    using ringdove::Window;
    if (call.kind == Kind::Nothing) {
        return true;
    }
    ringdove::Peer peer(device, call.peer, call.lane);
    const Window to{call.to};
    const Window from{call.from};
    bool fine = true;
    switch (call.kind) {
    case Kind::Nothing:
        break;
    case Kind::Put:
        return peer.put(to, call.to_offset, from, call.from_offset, call.bytes);
    case Kind::PutWithSignal:
        return peer.put_with_signal(to, call.to_offset, from, call.from_offset, call.bytes);
    case Kind::Signal:
        return peer.signal();
    case Kind::Wait:
        fine = peer.wait(call.count);
        break;
    case Kind::Flush:
        fine = peer.flush();
        break;
    }
    if (fine) {
        peer.close();
    }
    return fine;
}

}  // namespace

// Each block makes `calls_per_block` calls, those from its number times as many on, and has one
// thread.
extern "C" __global__ void test_calls(u64 handle, const Call* calls, u32 calls_per_block) {
    const ringdove::Device device(handle);
    const Call* own = calls + static_cast<u64>(ringdove::ptx::block_index()) * calls_per_block;
#pragma unroll 1
    for (u32 i = 0; i < calls_per_block; ++i) {
        if (!make(device, own[i])) {
            return;
        }
    }
}
