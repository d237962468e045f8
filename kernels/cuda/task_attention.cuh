// Attention of a block of queries over keys and values of one head, in one pass: keys are taken 32
// at a time, and what was added so far is scaled when a larger score comes.
#pragma once

#include "task_rows.cuh"

namespace ringdove {

// Columns of a lane: heads have up to 128 columns.
constexpr u32 HEAD_COLUMNS_OF_LANE = 4;

// One query row, on one warp.
class AttentionRow {
public:
    RINGDOVE_INLINE AttentionRow(const ProgramTask& task_of_block, const Lane& own_lane,
                                 float* warp_shares)
        : task(task_of_block),
          lane(own_lane),
          shares(warp_shares),
          queries(task_of_block, 1),
          keys_of(task_of_block, 2),
          values(task_of_block, 3) {}

    RINGDOVE_INLINE void run(u32 row, u32 keys) {
        for (u32 first = 0; first < keys; first += LANES) {
            add_keys(row, first, keys);
        }
        const Tile to(task, 0);
#pragma unroll
        for (u32 i = 0; i < HEAD_COLUMNS_OF_LANE; ++i) {
            const u32 column = lane.number + i * LANES;
            if (column < task.columns) {
                to.store(row, column, sums[i] / weight);
            }
        }
    }

private:
    const ProgramTask& task;
    const Lane& lane;
    // The warp's, one for each key of a step.
    float* shares;
    Tile queries;
    Tile keys_of;
    Tile values;
    float most = -__builtin_inff();
    float weight = 0.0f;
    float sums[HEAD_COLUMNS_OF_LANE] = {};

    RINGDOVE_INLINE float score(u32 row, u32 key, u32 keys) const {
        if (key >= keys) {
            return -__builtin_inff();
        }
        float sum = 0.0f;
#pragma unroll 1
        for (u32 column = 0; column < task.columns; ++column) {
            sum += queries.load(row, column) * keys_of.load(key, column);
        }
        return sum * ptx::f32_from_bits(task.value);
    }

    RINGDOVE_INLINE void add_keys(u32 row, u32 first, u32 keys) {
        const float own = score(row, first + lane.number, keys);
        ptx::converge_warp();
        const float highest = warp_maximum(own);
        const float before = most;
        most = highest > most ? highest : most;
        const float scale = exponential(before - most);
        const float share = exponential(own - most);
        weight = weight * scale + warp_sum(share);
        shares[lane.number] = share;
        // The warp's other lanes read it.
        ptx::converge_warp();
        const u32 count = keys - first < LANES ? keys - first : LANES;
#pragma unroll
        for (u32 i = 0; i < HEAD_COLUMNS_OF_LANE; ++i) {
            const u32 column = lane.number + i * LANES;
            if (column < task.columns) {
                float sum = sums[i] * scale;
#pragma unroll 1
                for (u32 key = 0; key < count; ++key) {
                    sum += shares[key] * values.load(first + key, column);
                }
                sums[i] = sum;
            }
        }
        ptx::converge_warp();
    }
};

// `shares`: as many values as the block has threads, in shared memory.
RINGDOVE_INLINE void run_attention(const TaskContext& context, float* shares) {
    const ProgramTask& task = context.task;
    u32 keys = task.inner;
    if (task.option != NO_COUNTER) {
        // The host has checked it against its bound; it is the host's memory, so once more.
        const float wanted = load_parameter(context, task.option);
        keys = wanted >= 1.0f && wanted <= static_cast<float>(keys) ? u32(wanted) : keys;
    }
    const Lane lane;
    lane.for_each_row(task.rows, [&](u32 row) RINGDOVE_INLINE_LAMBDA {
        AttentionRow(task, lane, shares + lane.warp * LANES).run(row, keys);
    });
}

}  // namespace ringdove
