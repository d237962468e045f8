// Tasks that add in a fixed order: matrix products and reductions. One thread computes a value from
// beginning to end, so that results do not depend on the shape of tiles or blocks. Sums are f32,
// whatever is added.
#pragma once

#include "task_expression.cuh"

namespace ringdove {

// Elements of one type, known when this is compiled.
template <class Type>
struct OneType {
    RINGDOVE_INLINE float left(u64 address) const { return Type::load(address); }
    RINGDOVE_INLINE float right(u64 address) const { return Type::load(address); }
};

// Elements of two types.
struct TwoTypes {
    TaskElement left_type;
    TaskElement right_type;

    RINGDOVE_INLINE float left(u64 address) const { return load_element(left_type, address); }
    RINGDOVE_INLINE float right(u64 address) const { return load_element(right_type, address); }
};

// Values of the tallest patch.
constexpr u32 HEIGHT_MAX = 8;

// A thread's values of a tile: `height` of them, below one another, so that one element of the
// right factor serves all. Neighbours have neighbouring columns: they load neighbouring elements of
// the right factor, and the same ones of the left.
class Patch {
public:
    // Those of a tile.
    static RINGDOVE_INLINE u32 count(const ProgramTask& task, u32 height) {
        return (task.rows + height - 1) / height * task.columns;
    }

    RINGDOVE_INLINE Patch(const ProgramTask& task, u32 patch_height, u32 number)
        : first_row(number / task.columns * patch_height), column(number % task.columns) {
        const u32 left = task.rows - first_row;
        rows = left < patch_height ? left : patch_height;
    }

    // What the sums begin with.
    RINGDOVE_INLINE void begin(const ProgramTask& task) {
        const Tile from(task, 3);
#pragma unroll 1
        for (u32 i = 0; i < rows; ++i) {
            values[i] = from.load_or(first_row + i, column, 0.0f);
        }
    }

    // Adds the products of a row of the left factor and a column of the right one to each value.
    // Values below the tile get those of its last row, and are not stored.
    template <u32 HEIGHT, class Elements>
    RINGDOVE_INLINE void add_products(const ProgramTask& task, const Elements& elements) {
        const TaskOperand left = task.operands[1];
        const TaskOperand right = task.operands[2];
        u64 from_left[HEIGHT];
        u64 from_right = element_address(right, 0, column);
        float sums[HEIGHT];
#pragma unroll
        for (u32 i = 0; i < HEIGHT; ++i) {
            const u32 row = first_row + (i < rows ? i : rows - 1);
            from_left[i] = element_address(left, row, 0);
            sums[i] = i < rows ? values[i] : 0.0f;
        }
        const u32 inner = task.inner;
#pragma unroll 1
        for (u32 k = 0; k < inner; ++k) {
            const float b = elements.right(from_right);
            from_right += right.row_bytes;
#pragma unroll
            for (u32 i = 0; i < HEIGHT; ++i) {
                sums[i] += elements.left(from_left[i]) * b;
                from_left[i] += left.column_bytes;
            }
        }
#pragma unroll
        for (u32 i = 0; i < HEIGHT; ++i) {
            values[i] = sums[i];
        }
    }

    RINGDOVE_INLINE void store(const TaskContext& context, const Tile& to) const {
#pragma unroll 1
        for (u32 i = 0; i < rows; ++i) {
            Stack stack;
            stack.push(values[i]);
            evaluate(context, first_row + i, column, stack);
            to.store(first_row + i, column, stack.top());
        }
    }

private:
    u32 first_row;
    u32 column;
    // Those of its values that lie in the tile.
    u32 rows;
    // In memory of the thread's own, since they are begun and stored one by one.
    float values[HEIGHT_MAX];
};

template <class Elements>
RINGDOVE_INLINE void add_products(const ProgramTask& task, u32 height, Patch& patch,
                                  const Elements& elements) {
    switch (height) {
        case 8:
            return patch.add_products<8>(task, elements);
        case 4:
            return patch.add_products<4>(task, elements);
        case 2:
            return patch.add_products<2>(task, elements);
        default:
            return patch.add_products<1>(task, elements);
    }
}

RINGDOVE_INLINE void add_products(const ProgramTask& task, u32 height, Patch& patch) {
    const TaskElement left = element_of(task, 1);
    const TaskElement right = element_of(task, 2);
    if (left != right) {
        return patch.add_products<1>(task, TwoTypes{left, right});
    }
    switch (left) {
        case TaskElement::F16:
            return add_products(task, height, patch, OneType<F16>());
        case TaskElement::BF16:
            return add_products(task, height, patch, OneType<BF16>());
        default:
            return add_products(task, height, patch, OneType<F32>());
    }
}

// The tallest patches that leave no thread without work.
RINGDOVE_INLINE u32 patch_height(const ProgramTask& task, u32 threads) {
    u32 height = element_of(task, 1) == element_of(task, 2) ? HEIGHT_MAX : 1;
#pragma unroll 1
    while (height > 1 && Patch::count(task, height) < threads) {
        height /= 2;
    }
    return height;
}

RINGDOVE_INLINE void run_matrix(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const Tile to(task, 0);
    const u32 threads = ptx::thread_count();
    const u32 height = patch_height(task, threads);
    const u32 count = Patch::count(task, height);
#pragma unroll 1
    for (u32 number = ptx::thread_index(); number < count; number += threads) {
        Patch patch(task, height, number);
        patch.begin(task);
        add_products(task, height, patch);
        patch.store(context, to);
    }
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
