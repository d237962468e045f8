// An example of a user's kernel: heat flows through a plate that is cut into strips, one for each
// rank. One launch makes all time steps; after each, ranks put their outermost rows into the halos
// of their neighbours, while they compute the rows between. examples/halo.rs runs it.
//
// Windows 0 and 1 hold the plate before and after a step, in turns: `rows + 2` rows of `columns`
// values, of which the first and the last are the halo. Values at the edge of the plate stay.

#include "ringdove.cuh"

namespace {

using ringdove::u32;
using ringdove::u64;
namespace ptx = ringdove::ptx;

// A barrier of all blocks, which are resident at a time. Once a thread has come with false, all
// come out with false, and the kernel ends.
class GridBarrier {
public:
    // `words`: two words of device memory that are zero when the kernel starts.
    RINGDOVE_INLINE explicit GridBarrier(u64* words)
        : arrivals(reinterpret_cast<u64>(words)), stop(arrivals + sizeof(u64)) {}

    RINGDOVE_INLINE bool wait(bool fine) {
        const bool block_is_fine = ptx::barrier_or(fine ? 0 : 1) == 0;
        expected += ptx::block_count();
        bool all_are_fine = block_is_fine;
        if (ptx::thread_index() == 0) {
            if (!block_is_fine) {
                ptx::store_release_gpu_u64(stop, 1);
            }
            // With the relaxed addition: a release of what the block wrote. Pairs with the load.
            ptx::fence_acquire_release_system();
            ptx::fetch_add_relaxed_gpu_u64(arrivals, 1);
            while (ptx::load_acquire_gpu_u64(arrivals) < expected) {
                ptx::nanosleep(32);
            }
            all_are_fine = ptx::load_acquire_gpu_u64(stop) == 0;
        }
        return ptx::barrier_or(all_are_fine ? 0 : 1) == 0;
    }

private:
    u64 arrivals;
    u64 stop;
    u64 expected = 0;
};

// One step for the rows from `first` to `last`, by all threads of the grid: each value becomes the
// mean of its four neighbours.
RINGDOVE_INLINE void relax(const float* from, float* to, u32 first, u32 last, u32 columns) {
    const u32 width = columns - 2;
    const u32 threads = ptx::block_count() * ptx::thread_count();
    const u32 cells = (last + 1 - first) * width;
    for (u32 cell = ptx::block_index() * ptx::thread_count() + ptx::thread_index(); cell < cells;
         cell += threads) {
        const u32 at = (first + cell / width) * columns + 1 + cell % width;
        const float above_and_below = from[at - columns] + from[at + columns];
        to[at] = 0.25f * (above_and_below + (from[at - 1] + from[at + 1]));
    }
}

}  // namespace

// `rows` is at least 2, `columns` at least 3. To be launched cooperatively.
extern "C" __global__ void example_halo(u64 handle, u32 rows, u32 columns, u32 steps,
                                        u64* barrier_words) {
    using namespace ringdove;
    const Device device(handle);
    const u32 rank = device.rank();
    Peer above(device, rank > 0 ? rank - 1 : NO_PEER, 0);
    Peer below(device, rank + 1 < device.rank_count() ? rank + 1 : NO_PEER, 0);
    const bool is_leader = ptx::block_index() == 0 && ptx::thread_index() == 0;
    const u64 row_bytes = columns * sizeof(float);
    GridBarrier grid(barrier_words);
    bool fine = true;
    for (u32 step = 0; step < steps && fine; ++step) {
        const Window before{step & 1};
        const Window after{1 - before.number};
        const float* from = device.data<const float>(before);
        float* to = device.data<float>(after);

        // The neighbours' halos of `after` are free: they read them in the step before this one,
        // for the rows whose arrival this rank has waited for since. And what this rank puts now it
        // overwrites two steps on, when the neighbours have answered with rows computed from it.
        relax(from, to, 1, 1, columns);
        relax(from, to, rows, rows, columns);
        fine = grid.wait(true);
        if (is_leader && fine) {
            fine = above.put_with_signal(after, (rows + 1) * row_bytes, after, row_bytes,
                                         row_bytes) &&
                   below.put_with_signal(after, 0, after, rows * row_bytes, row_bytes);
        }
        relax(from, to, 2, rows - 1, columns);
        if (is_leader && fine) {
            fine = above.wait() && below.wait();
        }
        fine = grid.wait(fine);
    }
    // The host and the next launch may write into the windows.
    if (is_leader && fine && above.flush() && below.flush()) {
        above.close();
        below.close();
    }
}
