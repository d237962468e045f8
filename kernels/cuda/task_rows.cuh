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

RINGDOVE_INLINE float row_maximum(const Lane& lane, const Tile& from, u32 row, u32 columns) {
    float part = from.load(row, 0);
    lane.for_each_column(columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
        const float value = from.load(row, column);
        part = value > part ? value : part;
    });
    return warp_maximum(part);
}

RINGDOVE_INLINE void run_softmax(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const Tile to(task, 0);
    const Tile from(task, 1);
    const Lane lane;
    lane.for_each_row(task.rows, [&](u32 row) RINGDOVE_INLINE_LAMBDA {
        const float most = row_maximum(lane, from, row, task.columns);
        const float sum = lane.sum(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            return exponential(from.load(row, column) - most);
        });
        lane.for_each_column(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            to.store(row, column, exponential(from.load(row, column) - most) / sum);
        });
    });
}

RINGDOVE_INLINE void run_softmax_backward(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const Tile to(task, 0);
    const Tile output(task, 1);
    const Tile delta(task, 2);
    const Lane lane;
    lane.for_each_row(task.rows, [&](u32 row) RINGDOVE_INLINE_LAMBDA {
        const float sum = lane.sum(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            return output.load(row, column) * delta.load(row, column);
        });
        lane.for_each_column(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            to.store(row, column, output.load(row, column) * (delta.load(row, column) - sum));
        });
    });
}

RINGDOVE_INLINE void run_cross_entropy(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const Tile losses(task, 0);
    const Tile from(task, 1);
    const Tile derivatives(task, 3);
    const float scale = ptx::f32_from_bits(task.value);
    const Lane lane;
    lane.for_each_row(task.rows, [&](u32 row) RINGDOVE_INLINE_LAMBDA {
        const u32 target = ptx::load<u32>(element_address(task.operands[2], row, 0));
        const float most = row_maximum(lane, from, row, task.columns);
        const float sum = lane.sum(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            return exponential(from.load(row, column) - most);
        });
        lane.for_each_column(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            const float share = exponential(from.load(row, column) - most) / sum;
            const float wanted = column == target ? 1.0f : 0.0f;
            derivatives.store(row, column, scale * (share - wanted));
        });
        // A class beyond the columns has no loss, and no share in the derivative.
        if (lane.number == 0) {
            const float own = target < task.columns ? from.load(row, target) : most;
            losses.store(row, 0, scale * (logarithm(sum) + most - own));
        }
    });
}

RINGDOVE_INLINE void run_norm(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const Tile to(task, 0);
    const Tile from(task, 1);
    const Tile factors(task, 2);
    const Tile summands(task, 3);
    const bool has_mean = task.option == 0;
    const float count = static_cast<float>(task.columns);
    const Lane lane;
    lane.for_each_row(task.rows, [&](u32 row) RINGDOVE_INLINE_LAMBDA {
        float mean = 0.0f;
        if (has_mean) {
            mean = lane.sum(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
                return from.load(row, column);
            }) / count;
        }
        const float square = lane.sum(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            const float away = from.load(row, column) - mean;
            return away * away;
        }) / count;
        const float factor =
            1.0f / ptx::square_root_f32(square + ptx::f32_from_bits(task.value));
        lane.for_each_column(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            const float value = (from.load(row, column) - mean) * factor;
            const float scaled = value * factors.load_or(row, column, 1.0f);
            to.store(row, column, scaled + summands.load_or(row, column, 0.0f));
        });
        if (lane.number == 0) {
            const Tile kept(task, 4);
            kept.store(row, 0, mean);
            kept.store(row, 1, factor);
        }
    });
}

RINGDOVE_INLINE void run_norm_backward(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const Tile to(task, 0);
    const Tile input(task, 1);
    const Tile factors(task, 2);
    const Tile delta(task, 3);
    const Tile kept(task, 4);
    const bool has_mean = task.option == 0;
    const float count = static_cast<float>(task.columns);
    const Lane lane;
    lane.for_each_row(task.rows, [&](u32 row) RINGDOVE_INLINE_LAMBDA {
        const float mean = kept.load(row, 0);
        const float factor = kept.load(row, 1);
        const auto weighed = [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            return delta.load(row, column) * factors.load_or(row, column, 1.0f);
        };
        const auto normal = [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            return (input.load(row, column) - mean) * factor;
        };
        const float along = lane.sum(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            return weighed(column) * normal(column);
        }) / count;
        const float all = has_mean ? lane.sum(task.columns, weighed) / count : 0.0f;
        lane.for_each_column(task.columns, [&](u32 column) RINGDOVE_INLINE_LAMBDA {
            const float away = weighed(column) - all - normal(column) * along;
            to.store(row, column, away * factor);
        });
    });
}

RINGDOVE_INLINE void run_gather(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const Tile to(task, 0);
    const Tile table(task, 1);
    for_each_element(task, [&](u32 row, u32 column) RINGDOVE_INLINE_LAMBDA {
        const u32 number = ptx::load<u32>(element_address(task.operands[2], row, 0));
        to.store(row, column, number < task.inner ? table.load(number, column) : 0.0f);
    });
}

// One column of rows that are added to a table by number.
struct ScatterColumn {
    const ProgramTask& task;
    Tile table = Tile(task, 0);
    Tile from = Tile(task, 1);

    RINGDOVE_INLINE u32 number(u32 row) const {
        return ptx::load<u32>(element_address(task.operands[2], row, 0));
    }

    RINGDOVE_INLINE bool is_repeated(u32 row) const {
        const u32 own = number(row);
        bool found = false;
#pragma unroll 1
        for (u32 before = 0; before < row; ++before) {
            found = found || number(before) == own;
        }
        return found;
    }

    // In the order of rows. Two of them may have one number.
    RINGDOVE_INLINE void add(u32 column) const {
#pragma unroll 1
        for (u32 row = 0; row < task.rows; ++row) {
            if (number(row) < task.inner) {
                const float sum = table.load(number(row), column) + from.load(row, column);
                table.store(number(row), column, sum);
            }
        }
    }

    // The same, where a sum of 16 bits would lose what it is to keep: all rows of one number are
    // added before it is rounded.
    RINGDOVE_INLINE void add_and_round(u32 column) const {
#pragma unroll 1
        for (u32 first = 0; first < task.rows; ++first) {
            const u32 own = number(first);
            if (own >= task.inner || is_repeated(first)) {
                continue;
            }
            float sum = table.load(own, column);
#pragma unroll 1
            for (u32 row = first; row < task.rows; ++row) {
                if (number(row) == own) {
                    sum += from.load(row, column);
                }
            }
            table.store(own, column, sum);
        }
    }
};

// A thread has a column.
RINGDOVE_INLINE void run_scatter_add(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const ScatterColumn scatter = {task};
    const u32 threads = ptx::thread_count();
#pragma unroll 1
    for (u32 column = ptx::thread_index(); column < task.columns; column += threads) {
        if (scatter.table.element == TaskElement::Word) {
            scatter.add(column);
        } else {
            scatter.add_and_round(column);
        }
    }
}

// The results of an iteration lie in host memory, which the host reads when the iteration is done.
RINGDOVE_INLINE void run_report(const TaskContext& context) {
    const ProgramTask& task = context.task;
    const Tile from(task, 1);
    for_each_element(task, [&](u32 row, u32 column) RINGDOVE_INLINE_LAMBDA {
        const u32 place = task.option + row * task.columns + column;
        ptx::store<float>(context.results + place * sizeof(float), from.load(row, column));
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
    const bool is_word = element_of(task, 1) == TaskElement::Word;
    for_each_element(task, [&](u32 row, u32 column) RINGDOVE_INLINE_LAMBDA {
        const u64 source = element_address(from, row, column);
        const u64 destination = element_address(to, row, column);
        if (is_word) {
            ptx::store<u32>(destination, ptx::load<u32>(source));
        } else {
            ptx::store<u16>(destination, ptx::load<u16>(source));
        }
    });
}

}  // namespace ringdove
