// Kernels of `examples/gpu_report.rs`, which measures a GPU: pushes of descriptors, messages to and
// fro between two kernels, one step of a program that the host drives, and a matrix product. Times
// are those of the clock that all blocks share, in nanoseconds.

#include "ringdove.cuh"

namespace {

using ringdove::u32;
using ringdove::u64;
namespace ptx = ringdove::ptx;

constexpr u32 TILE = 16;

RINGDOVE_INLINE void store_at(u64* array, u64 index, u64 value) {
    ptx::store<u64>(reinterpret_cast<u64>(array) + index * sizeof(u64), value);
}

}  // namespace

// The first thread of each block does `count` times what no push can do without, a fence at system
// scope and an atomic (R4, R5), on `word`. `times` has a place for each block.
extern "C" __global__ void report_atomic(u64* word, u32 count, u64* times) {
    if (ptx::thread_index() != 0) {
        return;
    }
    const u64 began = ptx::global_time_ns();
    u64 sum = 0;
#pragma unroll 1
    for (u32 i = 0; i < count; ++i) {
        ptx::fence_acquire_release_system();
        sum += ptx::fetch_add_relaxed_gpu_u64(reinterpret_cast<u64>(word), 1);
    }
    // The sum is stored so that each atomic's result is waited for.
    store_at(times, ptx::block_count() + ptx::block_index(), sum);
    store_at(times, ptx::block_index(), ptx::global_time_ns() - began);
}

// The first thread of each block puts `bytes` of window 0 to window 0 of the next rank, `count`
// times, without signals; of these the first block's thread waits until all that came before has
// been read. `times`, for each block: its pushes; behind them: all pushes with that wait, and how
// many pushes the blocks have made.
extern "C" __global__ void report_push(u64 handle, u64 bytes, u32 count, u64* times) {
    using namespace ringdove;
    if (ptx::thread_index() != 0) {
        return;
    }
    const Device device(handle);
    const Window window{0};
    Peer peer(device, (device.rank() + 1) % device.rank_count(), 0);
    const u64 began = ptx::global_time_ns();
    bool fine = true;
    u64 pushed = 0;
#pragma unroll 1
    while (fine && pushed < count) {
        fine = peer.put(window, 0, window, 0, bytes);
        pushed += fine ? 1 : 0;
    }
    const u32 blocks = ptx::block_count();
    store_at(times, ptx::block_index(), ptx::global_time_ns() - began);
    const u64 total = reinterpret_cast<u64>(times) + (blocks + 1) * sizeof(u64);
    ptx::fetch_add_relaxed_gpu_u64(total, pushed);
    if (ptx::block_index() == 0 && fine && peer.flush()) {
        store_at(times, blocks, ptx::global_time_ns() - began);
        peer.close();
    }
}

// Two ranks hand a message of 8 bytes to and fro, `rounds` times, one thread each: by puts with a
// signal, or, `by_stores`, by words that they store into each other's window, whose values go on
// from `before`. `times`: the time of all rounds, and the rounds that were made.
extern "C" __global__ void report_trip(u64 handle, u32 rounds, u32 by_stores, u64 before,
                                       u64* times) {
    using namespace ringdove;
    const Device device(handle);
    const Window window{0};
    const u32 rank = device.rank();
    const u32 other = 1 - rank;
    const bool begins = rank == 0;
    // A line of its own for each direction.
    const u64 mine = rank * 128;
    const u64 theirs = other * 128;
    const u64 there = device.reached(window, other);
    const u64 here = reinterpret_cast<u64>(device.data<u64>(window));
    Peer peer(device, other, 0);
    bool fine = !by_stores || (there != 0 && here != 0);
    const u64 began = ptx::global_time_ns();
    u64 round = 0;
#pragma unroll 1
    while (fine && round < rounds) {
        // Two halves of a round: who begins sends first.
#pragma unroll 1
        for (u32 half = 0; half < 2 && fine; ++half) {
            const bool sends = (half == 0) == begins;
            if (by_stores && sends) {
                device.store_word(there + mine, before + round + 1);
            } else if (by_stores) {
                fine = device.wait_for_word(here + theirs, before + round + 1, other, round);
            } else {
                fine = sends ? peer.put_with_signal(window, mine, window, mine, sizeof(u64))
                             : peer.wait();
            }
        }
        round += fine ? 1 : 0;
    }
    store_at(times, 0, ptx::global_time_ns() - began);
    store_at(times, 1, round);
    if (fine && (by_stores || peer.flush())) {
        peer.close();
    }
}

// One step of a program that the host drives: the word goes up by one.
extern "C" __global__ void report_step(u64* word) {
    const u64 address = reinterpret_cast<u64>(word);
    ptx::store<u64>(address, ptx::load<u64>(address) + 1);
}

// C = A * B, square, by row, `size` a multiple of TILE; blocks of TILE * TILE threads, one for each
// tile of C.
extern "C" __global__ void report_product(const float* a, const float* b, float* c, u32 size) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const u32 row = ptx::thread_index() / TILE;
    const u32 column = ptx::thread_index() % TILE;
    const u32 across = size / TILE;
    const u32 first_row = ptx::block_index() / across * TILE;
    const u32 first_column = ptx::block_index() % across * TILE;
    float sum = 0;
    for (u32 step = 0; step < size; step += TILE) {
        a_tile[row][column] = a[static_cast<u64>(first_row + row) * size + step + column];
        b_tile[row][column] = b[static_cast<u64>(step + row) * size + first_column + column];
        ptx::barrier();
        for (u32 i = 0; i < TILE; ++i) {
            sum = sum + a_tile[row][i] * b_tile[i][column];
        }
        ptx::barrier();
    }
    c[static_cast<u64>(first_row + row) * size + first_column + column] = sum;
}
