// A kernel whose threads push descriptors, all of them at once. For tests.

#include "ringdove.cuh"

using ringdove::u32;
using ringdove::u64;

// Each thread of each block puts `bytes` of window 0 to window 0 of rank 1, `puts` times.
extern "C" __global__ void test_push(u64 handle, u64 bytes, u32 puts) {
    const ringdove::Device device(handle);
    const ringdove::Window window{0};
#pragma unroll 1
    for (u32 i = 0; i < puts; ++i) {
        ringdove::Peer peer(device, 1, 0);
        if (!peer.put(window, 0, window, 0, bytes)) {
            return;
        }
    }
}
