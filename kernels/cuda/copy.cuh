// Copies by all threads of a block, and how a block divides a range among its threads.
#pragma once

#include "ptx.cuh"

namespace ringdove {

constexpr u32 WARP_THREADS = 32;
constexpr u32 VECTOR_BYTES = 16;
// A warp's tile: four vectors for each lane, the lanes side by side. A lane's four vectors then lie
// at constant distances, so one address register serves them all.
constexpr u32 ROW_BYTES = WARP_THREADS * VECTOR_BYTES;
constexpr u32 TILE_BYTES = 4 * ROW_BYTES;

// This thread's place in its block.
struct Team {
    u32 thread;
    u32 threads;

    static RINGDOVE_INLINE Team here() { return {ptx::thread_index(), ptx::thread_count()}; }

    // Where this thread starts in its warp's first tile, and how far apart a warp's tiles are.
    RINGDOVE_INLINE u64 tile_offset() const {
        return thread / WARP_THREADS * TILE_BYTES + thread % WARP_THREADS * VECTOR_BYTES;
    }
    RINGDOVE_INLINE u64 tile_stride() const { return threads / WARP_THREADS * TILE_BYTES; }
};

// Copies whole units of `Unit` at `unit` bytes each, element by element.
template <class Unit>
RINGDOVE_INLINE void copy_units(u64 destination, u64 source, u64 length, Team team) {
#pragma unroll 1
    for (u64 i = team.thread * sizeof(Unit); i < length; i += team.threads * sizeof(Unit)) {
        ptx::store<Unit>(destination + i, ptx::load<Unit>(source + i));
    }
}

RINGDOVE_INLINE void copy_bytes(u64 destination, u64 source, u64 length, Team team) {
#pragma unroll 1
    for (u64 i = team.thread; i < length; i += team.threads) {
        ptx::store_byte(destination + i, ptx::load_byte(source + i));
    }
}

// Copies a multiple of 16 bytes between addresses that are multiples of 16.
RINGDOVE_INLINE void copy_vectors(u64 destination, u64 source, u64 length, Team team) {
    const u64 tiled = length / TILE_BYTES * TILE_BYTES;
    const u64 stride = team.tile_stride();
    u64 to = destination + team.tile_offset();
    u64 from = source + team.tile_offset();
    // A lane's offset in its tile is less than a tile, so this compares whole tiles.
    const u64 end = destination + tiled;
#pragma unroll 1
    for (; to < end; to += stride, from += stride) {
        ptx::Vector<u32> rows[4];
        ptx::load_vector<0 * ROW_BYTES>(from, rows[0]);
        ptx::load_vector<1 * ROW_BYTES>(from, rows[1]);
        ptx::load_vector<2 * ROW_BYTES>(from, rows[2]);
        ptx::load_vector<3 * ROW_BYTES>(from, rows[3]);
        ptx::store_vector<0 * ROW_BYTES>(to, rows[0]);
        ptx::store_vector<1 * ROW_BYTES>(to, rows[1]);
        ptx::store_vector<2 * ROW_BYTES>(to, rows[2]);
        ptx::store_vector<3 * ROW_BYTES>(to, rows[3]);
    }
#pragma unroll 1
    for (u64 i = tiled + team.thread * VECTOR_BYTES; i < length;
         i += team.threads * VECTOR_BYTES) {
        ptx::Vector<u32> vector;
        ptx::load_vector<0>(source + i, vector);
        ptx::store_vector<0>(destination + i, vector);
    }
}

// Copies `length` bytes. Every thread of the block calls it. Ranges do not overlap.
RINGDOVE_INLINE void copy(u64 destination, u64 source, u64 length, Team team) {
    // The widest unit at which both addresses are aligned decides; what is left over is less than
    // one unit, and goes byte by byte.
    const u64 misalignment = (destination | source) % VECTOR_BYTES;
    u64 done = 0;
    if (misalignment == 0) {
        done = length / VECTOR_BYTES * VECTOR_BYTES;
        copy_vectors(destination, source, done, team);
    } else if (misalignment % 8 == 0) {
        done = length / 8 * 8;
        copy_units<u64>(destination, source, done, team);
    } else if (misalignment % 4 == 0) {
        done = length / 4 * 4;
        copy_units<u32>(destination, source, done, team);
    } else if (misalignment % 2 == 0) {
        done = length / 2 * 2;
        copy_units<u16>(destination, source, done, team);
    }
    copy_bytes(destination + done, source + done, length - done, team);
}

}  // namespace ringdove
