// Tasks that add in a fixed order: matrix products and reductions. One thread computes one value,
// so that results do not depend on the shape of tiles or blocks.
#pragma once

#include "task_expression.cuh"

namespace ringdove {

RINGDOVE_INLINE float add_products(const ProgramTask& task, u32 row, u32 column) {
    const TaskOperand& left = task.operands[1];
    const TaskOperand& right = task.operands[2];
    const TaskOperand& begin = task.operands[3];
    float sum =
        begin.address != 0 ? ptx::load<float>(element_address(begin, row, column)) : 0.0f;
    u64 a = element_address(left, row, 0);
    u64 b = element_address(right, 0, column);
    const u32 left_step = left.column_bytes;
    const u32 right_step = right.row_bytes;
#pragma unroll 1
    for (u32 k = 0; k < task.inner; ++k) {
        sum += ptx::load<float>(a) * ptx::load<float>(b);
        a += left_step;
        b += right_step;
    }
    return sum;
}

RINGDOVE_INLINE void run_matrix(const TaskContext& context) {
    const ProgramTask& task = context.task;
    for_each_element(task, [&](u32 row, u32 column) RINGDOVE_INLINE_LAMBDA {
        Stack stack;
        stack.push(add_products(task, row, column));
        evaluate(context, row, column, stack);
        ptx::store<float>(element_address(task.operands[0], row, column), stack.top());
    });
}

RINGDOVE_INLINE float reduce_row(const ProgramTask& task, u32 row) {
    const ReduceOp op = ReduceOp(task.option);
    const TaskOperand& from = task.operands[1];
    u64 address = element_address(from, row, 0);
    float value = op == ReduceOp::Prod ? 1.0f : 0.0f;
    if (op == ReduceOp::Max || op == ReduceOp::Min) {
        value = ptx::load<float>(address);
    }
#pragma unroll 1
    for (u32 k = 0; k < task.inner; ++k, address += from.column_bytes) {
        const float next = ptx::load<float>(address);
        value = op == ReduceOp::Prod  ? value * next
                : op == ReduceOp::Max ? (next > value ? next : value)
                : op == ReduceOp::Min ? (next < value ? next : value)
                                      : value + next;
    }
    return op == ReduceOp::Avg ? value / static_cast<float>(task.inner) : value;
}

RINGDOVE_INLINE void run_reduce(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const u32 threads = ptx::thread_count();
#pragma unroll 1
    for (u32 row = ptx::thread_index(); row < task.rows; row += threads) {
        Stack stack;
        stack.push(reduce_row(task, row));
        evaluate(context, row, 0, stack);
        ptx::store<float>(element_address(task.operands[0], row, 0), stack.top());
    }
}

}  // namespace ringdove
