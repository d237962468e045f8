// Users' own tasks (task.cuh), for tests.

#include "task.cuh"
#include "task_rows.cuh"

namespace {

namespace ptx = ringdove::ptx;
using ringdove::u32;
using ringdove::u64;

}  // namespace

// 0[i] = the column of the largest value of the row 1[i], as u32; the first of equal ones. A warp
// has a row.
RINGDOVE_TASK(test_largest) {
    (void)iteration;
    (void)parameters;
    const ringdove::Lane lane;
    const ringdove::Tile from(*task, 1);
    lane.for_each_row(task->rows, [&](u32 row) RINGDOVE_INLINE_LAMBDA {
        const float most = ringdove::row_maximum(lane, from, row, task->inner);
        u32 first = task->inner;
        lane.for_each_column(task->inner, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            const bool is_most = from.load(row, column) == most;
            first = is_most && column < first ? column : first;
        });
        // Columns are exact as f32: tables have fewer than 2^24.
        const float least = ringdove::across_warp(
            float(first), [](float own, float other) RINGDOVE_INLINE_LAMBDA {
                return other < own ? other : own;
            });
        if (lane.number == 0) {
            ptx::store<u32>(ringdove::element_address(task->operands[0], row, 0), u32(least));
        }
    });
}

// Copies operand 1 to operand 0 when so many seconds are over as the bits of `value` say.
RINGDOVE_TASK(test_late) {
    (void)iteration;
    (void)parameters;
    const u64 began_ns = ptx::global_time_ns();
    const u64 late_ns = u64(task->value * 1e9f);
    while (ptx::global_time_ns() - began_ns < late_ns) {
        ptx::nanosleep(1000);
    }
    const ringdove::Tile to(*task, 0);
    const ringdove::Tile from(*task, 1);
    ringdove::for_each_element(*task, [&](u32 row, u32 column) RINGDOVE_INLINE_LAMBDA {
        to.store(row, column, from.load(row, column));
    });
}
