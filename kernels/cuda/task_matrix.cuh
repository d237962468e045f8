// Tasks that add in a fixed order: matrix products and reductions. One thread computes one value,
// so that results do not depend on the shape of tiles or blocks. Sums are f32, whatever is added.
#pragma once

#include "task_expression.cuh"

namespace ringdove {

// A row of the left factor and a column of the right one.
struct Factors {
    u64 left;
    u64 right;
    u32 left_step;
    u32 right_step;
    u32 count;

    // The sum with their products, where `load` gives the elements at two addresses.
    template <class Left, class Right>
    RINGDOVE_INLINE float add_to(float sum, Left load_left, Right load_right) const {
        u64 a = left;
        u64 b = right;
#pragma unroll 1
        for (u32 k = 0; k < count; ++k) {
            sum += load_left(a) * load_right(b);
            a += left_step;
            b += right_step;
        }
        return sum;
    }

    // The same, of factors of one type: each has a loop of its own.
    template <class Type>
    RINGDOVE_INLINE float add_to(float sum) const {
        return add_to(sum, Type::load, Type::load);
    }
};

RINGDOVE_INLINE float add_products(const ProgramTask& task, u32 row, u32 column) {
    const TaskOperand& left = task.operands[1];
    const TaskOperand& right = task.operands[2];
    const TaskElement types[2] = {element_of(task, 1), element_of(task, 2)};
    const float sum = Tile(task, 3).load_or(row, column, 0.0f);
    const Factors factors = {element_address(left, row, 0), element_address(right, 0, column),
                             left.column_bytes, right.row_bytes, task.inner};
    if (types[0] != types[1]) {
        return factors.add_to(
            sum,
            [&](u64 at) RINGDOVE_INLINE_LAMBDA { return load_element(types[0], at); },
            [&](u64 at) RINGDOVE_INLINE_LAMBDA { return load_element(types[1], at); });
    }
    switch (types[0]) {
        case TaskElement::F16:
            return factors.add_to<F16>(sum);
        case TaskElement::BF16:
            return factors.add_to<BF16>(sum);
        default:
            return factors.add_to<F32>(sum);
    }
}

RINGDOVE_INLINE void run_matrix(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const Tile to(task, 0);
    for_each_element(task, [&](u32 row, u32 column) RINGDOVE_INLINE_LAMBDA {
        Stack stack;
        stack.push(add_products(task, row, column));
        evaluate(context, row, column, stack);
        to.store(row, column, stack.top());
    });
}

RINGDOVE_INLINE float reduce_row(const ProgramTask& task, const Tile& from, u32 row) {
    const ReduceOp op = ReduceOp(task.option);
    float value = op == ReduceOp::Prod ? 1.0f : 0.0f;
    if (op == ReduceOp::Max || op == ReduceOp::Min) {
        value = from.load(row, 0);
    }
#pragma unroll 1
    for (u32 k = 0; k < task.inner; ++k) {
        const float next = from.load(row, k);
        value = op == ReduceOp::Prod  ? value * next
                : op == ReduceOp::Max ? (next > value ? next : value)
                : op == ReduceOp::Min ? (next < value ? next : value)
                                      : value + next;
    }
    return op == ReduceOp::Avg ? value / static_cast<float>(task.inner) : value;
}

RINGDOVE_INLINE void run_reduce(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const Tile to(task, 0);
    const Tile from(task, 1);
    const u32 threads = ptx::thread_count();
#pragma unroll 1
    for (u32 row = ptx::thread_index(); row < task.rows; row += threads) {
        Stack stack;
        stack.push(reduce_row(task, from, row));
        evaluate(context, row, 0, stack);
        to.store(row, 0, stack.top());
    }
}

}  // namespace ringdove
