// Tasks over rows: softmax, cross-entropy, norms, tables, attention. A warp has a row; its lanes
// have every 32nd column, and their values are added in a butterfly, which is the same in each run.
#pragma once

#include "task_expression.cuh"

namespace ringdove {

// `WARP_THREADS` as a name for lanes.
constexpr u32 LANES = 32;

// What `join` makes of the values of all lanes, in all of them.
template <class Join>
RINGDOVE_INLINE float across_warp(float value, Join join) {
#pragma unroll
    for (u32 lanes = LANES / 2; lanes > 0; lanes /= 2) {
        value = join(value, ptx::exchange_f32(value, lanes));
    }
    return value;
}

RINGDOVE_INLINE float warp_sum(float value) {
    return across_warp(value, [](float own, float other) RINGDOVE_INLINE_LAMBDA {
        return own + other;
    });
}

RINGDOVE_INLINE float warp_maximum(float value) {
    return across_warp(value, [](float own, float other) RINGDOVE_INLINE_LAMBDA {
        return other > own ? other : own;
    });
}

// A lane of a warp, and the rows that the warp has.
struct Lane {
    u32 number = ptx::thread_index() % LANES;
    u32 warp = ptx::thread_index() / LANES;
    u32 warps = ptx::thread_count() / LANES;

    template <class Body>
    RINGDOVE_INLINE void for_each_row(u32 rows, Body body) const {
#pragma unroll 1
        for (u32 row = warp; row < rows; row += warps) {
            body(row);
            ptx::converge_warp();
        }
    }

    template <class Body>
    RINGDOVE_INLINE void for_each_column(u32 columns, Body body) const {
#pragma unroll 1
        for (u32 column = number; column < columns; column += LANES) {
            body(column);
        }
        ptx::converge_warp();
    }

    // The sum of `term(column)` over the columns, in all lanes.
    template <class Term>
    RINGDOVE_INLINE float sum(u32 columns, Term term) const {
        float part = 0.0f;
        for_each_column(columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA { part += term(column); });
        return warp_sum(part);
    }
};

RINGDOVE_INLINE float load_at(const TaskOperand& operand, u32 row, u32 column) {
    return ptx::load<float>(element_address(operand, row, column));
}

RINGDOVE_INLINE void store_at(const TaskOperand& operand, u32 row, u32 column, float value) {
    ptx::store<float>(element_address(operand, row, column), value);
}

// The factor by which an optional operand multiplies; `otherwise` without it.
RINGDOVE_INLINE float load_or(const TaskOperand& operand, u32 row, u32 column, float otherwise) {
    return operand.address != 0 ? load_at(operand, row, column) : otherwise;
}

RINGDOVE_INLINE float row_maximum(const Lane& lane, const TaskOperand& from, u32 row,
                                  u32 columns) {
    float part = load_at(from, row, 0);
    lane.for_each_column(columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
        const float value = load_at(from, row, column);
        part = value > part ? value : part;
    });
    return warp_maximum(part);
}

RINGDOVE_INLINE void run_softmax(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const TaskOperand& to = task.operands[0];
    const TaskOperand& from = task.operands[1];
    const Lane lane;
    lane.for_each_row(task.rows, [&](u32 row) RINGDOVE_INLINE_LAMBDA {
        const float most = row_maximum(lane, from, row, task.columns);
        const float sum = lane.sum(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            return exponential(load_at(from, row, column) - most);
        });
        lane.for_each_column(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            store_at(to, row, column, exponential(load_at(from, row, column) - most) / sum);
        });
    });
}

RINGDOVE_INLINE void run_softmax_backward(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const TaskOperand& output = task.operands[1];
    const TaskOperand& delta = task.operands[2];
    const Lane lane;
    lane.for_each_row(task.rows, [&](u32 row) RINGDOVE_INLINE_LAMBDA {
        const float sum = lane.sum(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            return load_at(output, row, column) * load_at(delta, row, column);
        });
        lane.for_each_column(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            store_at(task.operands[0], row, column,
                     load_at(output, row, column) * (load_at(delta, row, column) - sum));
        });
    });
}

RINGDOVE_INLINE void run_cross_entropy(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const TaskOperand& from = task.operands[1];
    const float scale = ptx::f32_from_bits(task.value);
    const Lane lane;
    lane.for_each_row(task.rows, [&](u32 row) RINGDOVE_INLINE_LAMBDA {
        const u32 target = ptx::load<u32>(element_address(task.operands[2], row, 0));
        const float most = row_maximum(lane, from, row, task.columns);
        const float sum = lane.sum(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            return exponential(load_at(from, row, column) - most);
        });
        lane.for_each_column(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            const float share = exponential(load_at(from, row, column) - most) / sum;
            const float wanted = column == target ? 1.0f : 0.0f;
            store_at(task.operands[3], row, column, scale * (share - wanted));
        });
        // A class beyond the columns has no loss, and no share in the derivative.
        if (lane.number == 0) {
            const float own = target < task.columns ? load_at(from, row, target) : most;
            store_at(task.operands[0], row, 0, scale * (logarithm(sum) + most - own));
        }
    });
}

RINGDOVE_INLINE void run_norm(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const TaskOperand& from = task.operands[1];
    const bool has_mean = task.option == 0;
    const float count = static_cast<float>(task.columns);
    const Lane lane;
    lane.for_each_row(task.rows, [&](u32 row) RINGDOVE_INLINE_LAMBDA {
        float mean = 0.0f;
        if (has_mean) {
            mean = lane.sum(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
                return load_at(from, row, column);
            }) / count;
        }
        const float square = lane.sum(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            const float away = load_at(from, row, column) - mean;
            return away * away;
        }) / count;
        const float factor =
            1.0f / ptx::square_root_f32(square + ptx::f32_from_bits(task.value));
        lane.for_each_column(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            const float value = (load_at(from, row, column) - mean) * factor;
            const float scaled = value * load_or(task.operands[2], row, column, 1.0f);
            store_at(task.operands[0], row, column,
                     scaled + load_or(task.operands[3], row, column, 0.0f));
        });
        if (lane.number == 0) {
            store_at(task.operands[4], row, 0, mean);
            store_at(task.operands[4], row, 1, factor);
        }
    });
}

RINGDOVE_INLINE void run_norm_backward(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const TaskOperand& input = task.operands[1];
    const TaskOperand& factors = task.operands[2];
    const TaskOperand& delta = task.operands[3];
    const bool has_mean = task.option == 0;
    const float count = static_cast<float>(task.columns);
    const Lane lane;
    lane.for_each_row(task.rows, [&](u32 row) RINGDOVE_INLINE_LAMBDA {
        const float mean = load_at(task.operands[4], row, 0);
        const float factor = load_at(task.operands[4], row, 1);
        const auto weighed = [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            return load_at(delta, row, column) * load_or(factors, row, column, 1.0f);
        };
        const auto normal = [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            return (load_at(input, row, column) - mean) * factor;
        };
        const float along = lane.sum(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            return weighed(column) * normal(column);
        }) / count;
        const float all = has_mean ? lane.sum(task.columns, weighed) / count : 0.0f;
        lane.for_each_column(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            const float away = weighed(column) - all - normal(column) * along;
            store_at(task.operands[0], row, column, away * factor);
        });
    });
}

RINGDOVE_INLINE void run_gather(const TaskContext& context) {
    const ProgramTask& task = context.task;
    for_each_element(task, [&](u32 row, u32 column) RINGDOVE_INLINE_LAMBDA {
        const u32 number = ptx::load<u32>(element_address(task.operands[2], row, 0));
        const float value =
            number < task.inner ? load_at(task.operands[1], number, column) : 0.0f;
        store_at(task.operands[0], row, column, value);
    });
}

// A thread has a column, and adds the rows in their order: two rows may have one number.
RINGDOVE_INLINE void run_scatter_add(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const u32 threads = ptx::thread_count();
#pragma unroll 1
    for (u32 column = ptx::thread_index(); column < task.columns; column += threads) {
#pragma unroll 1
        for (u32 row = 0; row < task.rows; ++row) {
            const u32 number = ptx::load<u32>(element_address(task.operands[2], row, 0));
            if (number < task.inner) {
                const float sum = load_at(task.operands[0], number, column) +
                                  load_at(task.operands[1], row, column);
                store_at(task.operands[0], number, column, sum);
            }
        }
    }
}

// The results of an iteration lie in host memory, which the host reads when the iteration is done.
RINGDOVE_INLINE void run_report(const TaskContext& context) {
    const ProgramTask& task = context.task;
    for_each_element(task, [&](u32 row, u32 column) RINGDOVE_INLINE_LAMBDA {
        const u32 place = task.option + row * task.columns + column;
        ptx::store<float>(context.results + place * sizeof(float),
                          load_at(task.operands[1], row, column));
    });
}

// Every few iterations. The bits are copied, whatever they mean.
RINGDOVE_INLINE void run_keep(const TaskContext& context, u64 iteration) {
    const ProgramTask& task = context.task;
    const u64 done = iteration + 1;
    if (done % task.inner != 0) {
        return;
    }
    const TaskOperand from = task.operands[1];
    TaskOperand to = task.operands[0];
    to.address += done / task.inner % task.option * task.operands[2].address;
    for_each_element(task, [&](u32 row, u32 column) RINGDOVE_INLINE_LAMBDA {
        ptx::store<u32>(element_address(to, row, column),
                        ptx::load<u32>(element_address(from, row, column)));
    });
}

}  // namespace ringdove
