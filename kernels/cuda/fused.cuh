// Several copies and sums of one range in one pass over memory: each source is read once, each
// destination written once, and what lies between stays in registers. Every thread keeps to its own
// elements: it reads them in all sources before it writes any.
#pragma once

#include "reduce.cuh"

namespace ringdove {

constexpr u32 FUSED_MAX = 4;

// All addresses, and the length, are multiples of 16. No range overlaps another, but two may be the
// same one.
struct Fused {
    u64 sources[FUSED_MAX];
    u64 destinations[FUSED_MAX];
    u64 length;
    u32 source_count;
    u32 destination_count;
};

// Has a sum of this type code of its own here? Rare ones take a pass for each two operands.
RINGDOVE_INLINE bool has_fused_sum(DataType type) {
    switch (type) {
        case DataType::I8:
        case DataType::U8:
        case DataType::F8E4M3:
        case DataType::F8E5M2:
            return false;
        default:
            return true;
    }
}

// How many of the destinations the one pass writes that is there for so many sources.
RINGDOVE_INLINE u32 fused_destinations(u32 sources, u32 destinations) {
    return sources == 1 ? destinations : destinations < sources ? 1 : sources;
}

template <class Type, u32 SOURCES, u32 DESTINATIONS>
struct FusedPass {
    using Vector = ptx::Vector<typename Type::Word>;
    using Sum = Transform<Type, Pass::Sum>;

    // A bf16 sum is computed in integers, a hundred instructions for each vector: one at a time.
    static constexpr bool IS_TILED = SOURCES == 1 || Type::HAS_SUM;

    template <u32 ROWS, u32 ROW = 0>
    static RINGDOVE_INLINE void load(u64 address, Vector (&rows)[ROWS]) {
        ptx::load_vector<ROW * ROW_BYTES>(address, rows[ROW]);
        if constexpr (ROW + 1 < ROWS) {
            load<ROWS, ROW + 1>(address, rows);
        }
    }

    template <u32 ROWS, u32 ROW = 0>
    static RINGDOVE_INLINE void store(u64 address, const Vector (&rows)[ROWS]) {
        ptx::store_vector<ROW * ROW_BYTES>(address, rows[ROW]);
        if constexpr (ROW + 1 < ROWS) {
            store<ROWS, ROW + 1>(address, rows);
        }
    }

    // Vectors that stand `ROW_BYTES` apart, from `first` on, every `stride` bytes up to `end`.
    template <u32 ROWS>
    static RINGDOVE_INLINE void sweep(const Fused& fused, u64 first, u64 end, u64 stride) {
        u64 from[SOURCES];
        u64 to[DESTINATIONS];
#pragma unroll
        for (u32 i = 0; i < SOURCES; ++i) {
            from[i] = fused.sources[i] + first;
        }
#pragma unroll
        for (u32 i = 0; i < DESTINATIONS; ++i) {
            to[i] = fused.destinations[i] + first;
        }
        const u64 stop = fused.destinations[0] + end;
#pragma unroll 1
        while (to[0] < stop) {
            Vector terms[SOURCES][ROWS];
#pragma unroll
            for (u32 i = 0; i < SOURCES; ++i) {
                load<ROWS>(from[i], terms[i]);
                from[i] += stride;
            }
#pragma unroll
            for (u32 i = 1; i < SOURCES; ++i) {
#pragma unroll
                for (u32 row = 0; row < ROWS; ++row) {
                    Sum::combine(terms[0][row], terms[i][row], {});
                }
            }
#pragma unroll
            for (u32 i = 0; i < DESTINATIONS; ++i) {
                store<ROWS>(to[i], terms[0]);
                to[i] += stride;
            }
        }
    }

    static RINGDOVE_INLINE void run(const Fused& fused, Team team) {
        u64 tiled = 0;
        if constexpr (IS_TILED) {
            // Four sources have as many vectors in flight with two rows as two have with four, and
            // registers enough.
            constexpr u32 ROWS = SOURCES == 4 ? 2 : 4;
            constexpr u64 TILE = ROWS * ROW_BYTES;
            const u32 warp = team.thread / WARP_THREADS;
            tiled = fused.length / TILE * TILE;
            sweep<ROWS>(fused, warp * TILE + team.thread % WARP_THREADS * VECTOR_BYTES, tiled,
                        team.threads / WARP_THREADS * TILE);
        }
        sweep<1>(fused, tiled + team.thread * VECTOR_BYTES, fused.length,
                 team.threads * VECTOR_BYTES);
    }
};

template <class Type>
RINGDOVE_INLINE void run_fused_sum(const Fused& fused, Team team) {
    const bool to_all = fused.destination_count != 1;
    switch (fused.source_count) {
        case 2:
            return FusedPass<Type, 2, 2>::run(fused, team);
        case 3:
            return to_all ? FusedPass<Type, 3, 3>::run(fused, team)
                          : FusedPass<Type, 3, 1>::run(fused, team);
        default:
            return to_all ? FusedPass<Type, 4, 4>::run(fused, team)
                          : FusedPass<Type, 4, 1>::run(fused, team);
    }
}

// Every thread of the block calls it. Not for one source and one destination, nor for two and one.
RINGDOVE_INLINE void run_fused(DataType type, const Fused& fused, Team team) {
    if (fused.source_count == 1) {
        switch (fused.destination_count) {
            case 2:
                return FusedPass<U32, 1, 2>::run(fused, team);
            case 3:
                return FusedPass<U32, 1, 3>::run(fused, team);
            default:
                return FusedPass<U32, 1, 4>::run(fused, team);
        }
    }
    switch (type) {
        case DataType::I32:
        case DataType::U32:
            return run_fused_sum<U32>(fused, team);
        case DataType::I64:
        case DataType::U64:
            return run_fused_sum<U64>(fused, team);
        case DataType::F16:
            return run_fused_sum<F16>(fused, team);
        case DataType::BF16:
            return run_fused_sum<BF16>(fused, team);
        case DataType::F32:
            return run_fused_sum<F32>(fused, team);
        default:
            return run_fused_sum<F64>(fused, team);
    }
}

}  // namespace ringdove
