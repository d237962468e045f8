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
    // All threads copy words from a window of this rank into another one, or into a peer's part of
    // it, as far as stores reach it.
    Copy = 6,
    CopyToPeer = 7,
    // A word in a window, of the peer or of this rank (R16).
    StoreWord = 8,
    WaitForWord = 9,
    WaitForWordOrGoOn = 10,
    // Nothing more is done once an earlier launch has failed.
    CheckFailed = 11,
};

// For how long a word is awaited after an abort, by WaitForWordOrGoOn.
constexpr u64 GRACE_NS = 64;

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

// The whole block copies.
RINGDOVE_INLINE void copy_words(const ringdove::Device& device, const Call& call) {
    using ringdove::Window;
    namespace ptx = ringdove::ptx;
    const u64 there = call.kind == Kind::Copy ? u64(device.data<u32>(Window{call.to}))
                                              : device.reached(Window{call.to}, call.peer);
    const u64 to = there + call.to_offset;
    const u64 from = u64(device.data<u32>(Window{call.from})) + call.from_offset;
    for (u64 at = 4 * ptx::thread_index(); at < call.bytes; at += 4 * ptx::thread_count()) {
        ptx::store<u32>(to + at, ptx::load<u32>(from + at));
    }
}

// One thread makes all other calls. False: the block ends.
RINGDOVE_INLINE bool make(const ringdove::Device& device, const Call& call) {
    using ringdove::Window;
    const u64 own = u64(device.data<u64>(Window{call.to})) + call.to_offset;
    switch (call.kind) {
    case Kind::Nothing:
    case Kind::Copy:
    case Kind::CopyToPeer:
        return true;
    case Kind::CheckFailed:
        return !device.has_failed();
    case Kind::StoreWord:
        device.store_word(device.reached(Window{call.to}, call.peer) + call.to_offset, call.count);
        return true;
    case Kind::WaitForWord:
        return device.wait_for_word(own, call.count, call.peer, 0);
    case Kind::WaitForWordOrGoOn:
        return device.wait_for_word_or_go_on(own, call.count, GRACE_NS);
    default:
        break;
    }
    ringdove::Peer peer(device, call.peer, call.lane);
    const Window to{call.to};
    const Window from{call.from};
    bool fine = true;
    switch (call.kind) {
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
    default:
        break;
    }
    if (fine) {
        peer.close();
    }
    return fine;
}

}  // namespace

// Each block makes `calls_per_block` calls, those from its number times as many on. What its
// threads copied before a call goes with it, and what has come with a wait is there for all of
// them.
extern "C" __global__ void test_calls(u64 handle, const Call* calls, u32 calls_per_block) {
    namespace ptx = ringdove::ptx;
    const ringdove::Device device(handle);
    const Call* own = calls + static_cast<u64>(ptx::block_index()) * calls_per_block;
#pragma unroll 1
    for (u32 i = 0; i < calls_per_block; ++i) {
        if (own[i].kind == Kind::Copy || own[i].kind == Kind::CopyToPeer) {
            copy_words(device, own[i]);
            ptx::barrier();
            continue;
        }
        const bool is_over = ptx::thread_index() == 0 && !make(device, own[i]);
        if (ptx::barrier_or(is_over) != 0) {
            return;
        }
    }
}
