// The calls of ringdove.cuh as functions for kernels that other languages compile: Triton takes
// them as LLVM bitcode (bitcode/functions.bc), Numba as PTX (ptx/functions.ptx). The Python
// package wraps both (`ringdove.triton`, `ringdove.numba`).
//
// All threads of a block make each call alike, and all get its result. What any of them wrote
// before goes with a put; what has arrived is theirs after `wait`. Blocks have whole warps.
//
// Nothing is kept from one call to the next: a call opens its lane, and stores how far it came. So
// any number of blocks may put and signal on one lane. One block at a time waits on a lane, and
// one flushes it. A window, lane or peer that does not exist ends the communicator, and the host
// says why; peer -1 (NO_PEER) is nobody.

#include "ringdove.cuh"

namespace {

using ringdove::Device;
using ringdove::Peer;
using ringdove::s32;
using ringdove::s64;
using ringdove::u32;
using ringdove::u64;
using ringdove::Window;
namespace ptx = ringdove::ptx;

// Between barriers, thread 0 does `call` with the lane to and from `peer`. Whether all is well, to
// every thread.
template <class Call>
RINGDOVE_INLINE s32 by_one(u64 handle, s32 peer, s32 lane, Call call) {
    ptx::barrier();
    u32 failed = 0;
    if (ptx::thread_index() == 0) {
        const Device device(handle);
        Peer other(device, static_cast<u32>(peer), static_cast<u32>(lane));
        failed = call(other) ? 0 : 1;
    }
    // The barrier wants the warp whole.
    ptx::converge_warp();
    return ptx::barrier_or(failed) == 0 ? 1 : 0;
}

RINGDOVE_INLINE Window window(s32 number) { return Window{static_cast<u32>(number)}; }

// Once for both kinds of put: it is long.
__device__ __attribute__((noinline)) s32 put(u64 handle, s32 peer, s32 to, s64 to_offset, s32 from,
                                             s64 from_offset, s64 bytes, s32 lane, bool signals) {
    return by_one(handle, peer, lane, [&](Peer& other) {
        const u64 there = static_cast<u64>(to_offset);
        const u64 here = static_cast<u64>(from_offset);
        const u64 length = static_cast<u64>(bytes);
        return signals ? other.put_with_signal(window(to), there, window(from), here, length)
                       : other.put(window(to), there, window(from), here, length);
    });
}

}  // namespace

extern "C" {

// This rank, and how many there are.
__device__ s32 ringdove_rank(u64 handle) { return static_cast<s32>(Device(handle).rank()); }

__device__ s32 ringdove_rank_count(u64 handle) {
    return static_cast<s32>(Device(handle).rank_count());
}

// Lanes to each peer.
__device__ s32 ringdove_lane_count(u64 handle) {
    return static_cast<s32>(Device(handle).lane_count());
}

// Address and bytes of this rank's part of a window; 0 where there is no such window.
__device__ u64 ringdove_window(u64 handle, s32 number) {
    return reinterpret_cast<u64>(Device(handle).data<char>(window(number)));
}

__device__ s64 ringdove_window_bytes(u64 handle, s32 number) {
    return static_cast<s64>(Device(handle).bytes(window(number)));
}

// 1, or 0 once the communicator has failed; so all that follow.
__device__ s32 ringdove_put(u64 handle, s32 peer, s32 to, s64 to_offset, s32 from, s64 from_offset,
                            s64 bytes, s32 lane) {
    return put(handle, peer, to, to_offset, from, from_offset, bytes, lane, false);
}

__device__ s32 ringdove_put_with_signal(u64 handle, s32 peer, s32 to, s64 to_offset, s32 from,
                                        s64 from_offset, s64 bytes, s32 lane) {
    return put(handle, peer, to, to_offset, from, from_offset, bytes, lane, true);
}

__device__ s32 ringdove_signal(u64 handle, s32 peer, s32 lane) {
    return by_one(handle, peer, lane, [](Peer& other) { return other.signal(); });
}

__device__ s32 ringdove_wait(u64 handle, s32 peer, s32 count, s32 lane) {
    return by_one(handle, peer, lane, [&](Peer& other) {
        const bool fine = count <= 0 || other.wait(static_cast<u32>(count));
        if (fine) {
            other.close_receive();
        }
        return fine;
    });
}

__device__ s32 ringdove_flush(u64 handle, s32 peer, s32 lane) {
    return by_one(handle, peer, lane, [](Peer& other) {
        const bool fine = other.flush();
        if (fine) {
            other.close_send();
        }
        return fine;
    });
}

// The same as Numba calls functions: the result through a pointer, and 0 for no exception.

__device__ int ringdove_numba_rank(s32* result, u64 handle) {
    *result = ringdove_rank(handle);
    return 0;
}

__device__ int ringdove_numba_rank_count(s32* result, u64 handle) {
    *result = ringdove_rank_count(handle);
    return 0;
}

__device__ int ringdove_numba_lane_count(s32* result, u64 handle) {
    *result = ringdove_lane_count(handle);
    return 0;
}

__device__ int ringdove_numba_put(s32* result, u64 handle, s32 peer, s32 to, s64 to_offset,
                                  s32 from, s64 from_offset, s64 bytes, s32 lane) {
    *result = ringdove_put(handle, peer, to, to_offset, from, from_offset, bytes, lane);
    return 0;
}

__device__ int ringdove_numba_put_with_signal(s32* result, u64 handle, s32 peer, s32 to,
                                              s64 to_offset, s32 from, s64 from_offset, s64 bytes,
                                              s32 lane) {
    *result = ringdove_put_with_signal(handle, peer, to, to_offset, from, from_offset, bytes, lane);
    return 0;
}

__device__ int ringdove_numba_signal(s32* result, u64 handle, s32 peer, s32 lane) {
    *result = ringdove_signal(handle, peer, lane);
    return 0;
}

__device__ int ringdove_numba_wait(s32* result, u64 handle, s32 peer, s32 count, s32 lane) {
    *result = ringdove_wait(handle, peer, count, lane);
    return 0;
}

__device__ int ringdove_numba_flush(s32* result, u64 handle, s32 peer, s32 lane) {
    *result = ringdove_flush(handle, peer, lane);
    return 0;
}

}  // extern "C"
