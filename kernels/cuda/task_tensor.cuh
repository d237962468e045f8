// Matrix products of f16 or bf16 on tensor cores, where the host says so (`option`): it has made
// sure that both factors are of one type, that the tile's sides and its inner dimension are
// multiples of 16, and that addresses and strides are as fragments need them. Sums are f32; their
// order is the hardware's, and the same in each run on one kind of GPU. Where the GPU has no tensor
// cores for bf16, threads add its products in the order of k.
#pragma once

#include "task_rows.cuh"

namespace ringdove {

constexpr u32 FRAGMENT_SIDE = 16;
constexpr u32 FRAGMENT_VALUES = FRAGMENT_SIDE * FRAGMENT_SIDE;
// Warps of a block that take part: each has a fragment in shared memory.
constexpr u32 FRAGMENT_WARPS = 8;

// Where elements of a factor lie: by rows, or by columns.
struct Lines {
    u64 address;
    u32 row_bytes;
    u32 column_bytes;

    RINGDOVE_INLINE explicit Lines(const TaskOperand& operand)
        : address(operand.address),
          row_bytes(operand.row_bytes),
          column_bytes(operand.column_bytes) {}

    RINGDOVE_INLINE bool are_rows() const { return column_bytes == sizeof(u16); }
    RINGDOVE_INLINE u32 stride() const {
        return (are_rows() ? row_bytes : column_bytes) / sizeof(u16);
    }
    RINGDOVE_INLINE u64 at(u32 row, u32 column) const {
        return address + static_cast<u64>(row) * row_bytes +
               static_cast<u64>(column) * column_bytes;
    }
};

// Do this GPU's tensor cores compute the task?
RINGDOVE_INLINE bool suits_tensor_cores(const ProgramTask& task) {
    return task.option == MATRIX_TENSOR_CORES &&
           (ptx::HAS_BF16 || element_of(task, 1) == TaskElement::F16);
}

// One loop for each two layouts.
template <class Fragment, bool LEFT_ROWS, bool RIGHT_ROWS>
RINGDOVE_INLINE void multiply_lines(const Lines& left, const Lines& right, u32 row, u32 column,
                                    u32 inner, ptx::FloatFragment& sum) {
#pragma unroll 1
    for (u32 k = 0; k < inner; k += FRAGMENT_SIDE) {
        Fragment a, b;
        if constexpr (LEFT_ROWS) {
            ptx::load_left_by_rows(left.at(row, k), left.stride(), a);
        } else {
            ptx::load_left_by_columns(left.at(row, k), left.stride(), a);
        }
        if constexpr (RIGHT_ROWS) {
            ptx::load_right_by_rows(right.at(k, column), right.stride(), b);
        } else {
            ptx::load_right_by_columns(right.at(k, column), right.stride(), b);
        }
        if constexpr (LEFT_ROWS && RIGHT_ROWS) {
            ptx::multiply_by_rows_and_rows(sum, a, b);
        } else if constexpr (LEFT_ROWS) {
            ptx::multiply_by_rows_and_columns(sum, a, b);
        } else if constexpr (RIGHT_ROWS) {
            ptx::multiply_by_columns_and_rows(sum, a, b);
        } else {
            ptx::multiply_by_columns_and_columns(sum, a, b);
        }
    }
}

template <class Fragment>
RINGDOVE_INLINE void multiply_lines(const Lines& left, const Lines& right, u32 row, u32 column,
                                    u32 inner, ptx::FloatFragment& sum) {
    if (left.are_rows()) {
        if (right.are_rows()) {
            return multiply_lines<Fragment, true, true>(left, right, row, column, inner, sum);
        }
        return multiply_lines<Fragment, true, false>(left, right, row, column, inner, sum);
    }
    if (right.are_rows()) {
        return multiply_lines<Fragment, false, true>(left, right, row, column, inner, sum);
    }
    return multiply_lines<Fragment, false, false>(left, right, row, column, inner, sum);
}

// `fragments`: `FRAGMENT_WARPS` of them, in shared memory. A warp has 16 x 16 values at a time; its
// lanes do the rest of the task for them when they lie in shared memory.
RINGDOVE_INLINE void run_matrix_on_tensor_cores(const TaskContext& context, float* fragments) {
    const ProgramTask& task = context.task;
    const Lane lane;
    const u32 warps = lane.warps < FRAGMENT_WARPS ? lane.warps : FRAGMENT_WARPS;
    if (lane.warp >= warps) {
        return;
    }
    float* values = fragments + lane.warp * FRAGMENT_VALUES;
    const Lines left(task.operands[1]);
    const Lines right(task.operands[2]);
    const bool is_brain = element_of(task, 1) == TaskElement::BF16;
    const Tile begin(task, 3);
    const Tile to(task, 0);
    const u32 across = task.columns / FRAGMENT_SIDE;
    const u32 count = task.rows / FRAGMENT_SIDE * across;
#pragma unroll 1
    for (u32 part = lane.warp; part < count; part += warps) {
        const u32 first_row = part / across * FRAGMENT_SIDE;
        const u32 first_column = part % across * FRAGMENT_SIDE;
        ptx::FloatFragment sum = {};
        if (ptx::HAS_BF16 && is_brain) {
            multiply_lines<ptx::BrainFragment>(left, right, first_row, first_column, task.inner,
                                               sum);
        } else {
            multiply_lines<ptx::HalfFragment>(left, right, first_row, first_column, task.inner,
                                              sum);
        }
        ptx::store_fragment(values, sum);
        // The warp's other lanes read it.
        ptx::converge_warp();
#pragma unroll 1
        for (u32 place = lane.number; place < FRAGMENT_VALUES; place += LANES) {
            const u32 row = first_row + place / FRAGMENT_SIDE;
            const u32 column = first_column + place % FRAGMENT_SIDE;
            Stack stack;
            stack.push(begin.load_or(row, column, 0.0f) + values[place]);
            evaluate(context, row, column, stack);
            to.store(row, column, stack.top());
        }
        // They have read it.
        ptx::converge_warp();
    }
}

}  // namespace ringdove
