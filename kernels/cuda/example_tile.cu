// An example of a user's kernel that computes and communicates in one launch: C = A * B, where each
// rank has some of the rows of A, all of B, and wants all of C. As soon as a block has computed a
// tile it puts it into all ranks' C, and goes on with the next one. examples/tile.rs runs it.
//
// Window 0 is C: one tile after the other, each TILE x TILE values by row. The tiles of rank r are
// those from `r * tiles` on; tile t has the rows of band t / (columns / TILE). Each block uses the
// lane with its number.

#include "ringdove.cuh"

namespace {

constexpr ringdove::u32 TILE = 16;

}  // namespace

// Each rank passes its own `tiles * TILE * TILE` values' worth of rows of A, by row; `inner` is the
// length of a row of A, a multiple of TILE; `columns` that of a row of B, likewise. Blocks of
// TILE * TILE threads, at most as many as there are lanes.
extern "C" __global__ void example_tile(ringdove::u64 handle, const float* a, const float* b,
                                        ringdove::u32 inner, ringdove::u32 columns,
                                        ringdove::u32 tiles) {
    using namespace ringdove;
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const Device device(handle);
    const Window result{0};
    const u32 lane = ptx::block_index();
    const u32 row = ptx::thread_index() / TILE;
    const u32 column = ptx::thread_index() % TILE;
    const u32 across = columns / TILE;
    const u64 tile_bytes = TILE * TILE * sizeof(float);
    bool fine = true;
    u32 mine = 0;
    for (u32 tile = lane; tile < tiles && fine; tile += ptx::block_count()) {
        const u64 first_row = static_cast<u64>(tile / across) * TILE;
        const u32 first_column = tile % across * TILE;
        float sum = 0;
        for (u32 step = 0; step < inner; step += TILE) {
            a_tile[row][column] = a[(first_row + row) * inner + step + column];
            b_tile[row][column] = b[static_cast<u64>(step + row) * columns + first_column + column];
            ptx::barrier();
            for (u32 i = 0; i < TILE; ++i) {
                sum = sum + a_tile[row][i] * b_tile[i][column];
            }
            ptx::barrier();
        }
        const u64 place = static_cast<u64>(device.rank()) * tiles + tile;
        device.data<float>(result)[place * TILE * TILE + ptx::thread_index()] = sum;
        ptx::barrier();
        if (ptx::thread_index() == 0) {
            // The nearest rank first, so that not all write to one at a time.
            for (u32 distance = 1; distance < device.rank_count() && fine; ++distance) {
                Peer peer(device, (device.rank() + distance) % device.rank_count(), lane);
                fine = peer.put_with_signal(result, place * tile_bytes, result, place * tile_bytes,
                                            tile_bytes);
            }
        }
        fine = ptx::barrier_or(fine ? 0 : 1) == 0;
        ++mine;
    }
    // The block with this number has computed as many tiles on every other rank.
    if (ptx::thread_index() == 0) {
        for (u32 distance = 1; distance < device.rank_count() && fine; ++distance) {
            Peer peer(device, (device.rank() + distance) % device.rank_count(), lane);
            // The next launch may write into the window: everybody has to have read it.
            fine = peer.wait(mine) && peer.flush();
            if (fine) {
                peer.close();
            }
        }
    }
}
