// Combine: rows go back to where their tokens came from, and are added there.
//
// The order of additions: a token's choices in their order, from +0, in f32; each product of weight
// and value is rounded before it is added; the sum is rounded to the type of the rows. In
// throughput mode a rank's row stands at the first of the token's choices on that rank, and has no
// weight.
#pragma once

#include "experts.cuh"

namespace ringdove {

// The rows that go back to one rank; all warps of the grid call.
RINGDOVE_INLINE void return_rows(const Experts& experts, u64 home, u32 to, const GridWarp& warp) {
    const ExpertsCall& call = experts.call;
    const ExpertsGroup& group = experts.group;
    const u32 rows = entry(call.routing.in_rows, to);
    const u64 there = experts.device.reached(EXPERTS_WINDOW, to);
    const u64 first_home = u64(entry(call.routing.in_homes, to)) * group.return_row_bytes;
    const u64 first =
        there != 0 ? there + home + first_home : experts.window + experts.returning(to);
    for (u32 row = warp.number; row < rows; row += warp.count) {
        const u64 from = entry(call.routing.in_places, u64(to) * group.rows_max + row);
        const u64 at = first + u64(row) * group.return_row_bytes;
        copy_vectors(at, call.input + from * group.return_data_bytes, group.return_data_bytes,
                     warp.team());
        if (experts.is_throughput() && warp.lane < group.top_k) {
            const u32 weight =
                call.weights != 0 ? entry(call.weights, from * group.top_k + warp.lane) : 0;
            set_entry(at + group.return_data_bytes, warp.lane, weight);
        }
    }
}

// Sends the rows of the last dispatch with this handle back, in the order in which they came.
RINGDOVE_INLINE void experts_return(const ExpertsCall& call) {
    const Experts experts(call);
    const ExpertsGroup& group = experts.group;
    if (ptx::barrier_or(experts.device.has_failed()) != 0) {
        return;
    }
    const GridWarp warp = GridWarp::here();
    const u64 sent = experts.state(__builtin_offsetof(ExpertsState, returns_sent));
    const u64 step = ptx::load<u64>(sent);
    const u64 home = experts.returned(step);
    const auto write = [&](bool is_far) {
        for (u32 to = 0; to < experts.ranks; ++to) {
            if (experts.is_far(to) == is_far) {
                return_rows(experts, home, to, warp);
            }
        }
    };
    const auto announce = [&](u32 to) {
        const u64 bytes = u64(entry(call.routing.in_rows, to)) * group.return_row_bytes;
        const u64 first = u64(entry(call.routing.in_homes, to)) * group.return_row_bytes;
        experts.announce(true, step, to, home + first, experts.returning(to), bytes);
    };
    if (experts.send_far_first(write, announce) && ptx::thread_index() == 0) {
        ptx::store<u64>(sent, step + 1);
    }
}

// Waits until all rows are back. One block.
RINGDOVE_INLINE void experts_await_returns(const ExpertsCall& call) {
    const Experts experts(call);
    const u64 received = experts.state(__builtin_offsetof(ExpertsState, returns_received));
    const u64 step = ptx::load<u64>(received);
    if (experts.wait_for_all(true, step) && ptx::thread_index() == 0) {
        ptx::store<u64>(received, step + 1);
    }
}

// Values of a row, a vector of 16 bytes at a time.
struct WholeValues {
    static RINGDOVE_INLINE void add(float (&sums)[8], const ptx::Vector<u32>& values,
                                    float weight) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            sums[i] = sums[i] + weight * ptx::f32_from_bits(values.words[i]);
        }
    }

    static RINGDOVE_INLINE void round(const float (&sums)[8], ptx::Vector<u32>& values) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            values.words[i] = ptx::f32_bits(sums[i]);
        }
    }
};

template <class Format>
struct HalfValues {
    static RINGDOVE_INLINE void add(float (&sums)[8], const ptx::Vector<u32>& values,
                                    float weight) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            sums[2 * i] = sums[2 * i] + weight * Format::widen_low(values.words[i]);
            sums[2 * i + 1] = sums[2 * i + 1] + weight * Format::widen_high(values.words[i]);
        }
    }

    static RINGDOVE_INLINE void round(const float (&sums)[8], ptx::Vector<u32>& values) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            values.words[i] =
                Format::round(sums[2 * i]) | Format::round(sums[2 * i + 1]) << 16;
        }
    }
};

// A warp's part of a token: so many vectors for each lane.
constexpr u32 COMBINE_VECTORS = 4;
constexpr u32 COMBINE_BYTES = COMBINE_VECTORS * ROW_BYTES;

// Adds one part of one token.
template <class Values>
RINGDOVE_INLINE void combine_part(const Experts& experts, u64 rows, u64 token, u64 begin,
                                  u32 lane) {
    const ExpertsCall& call = experts.call;
    const ExpertsGroup& group = experts.group;
    const u64 first = begin + u64(lane) * VECTOR_BYTES;
    float sums[COMBINE_VECTORS][8] = {};
#pragma unroll 1
    for (u32 k = 0; k < group.top_k; ++k) {
        const u64 place = token * group.top_k + k;
        const u32 row = entry(call.routing.homes, place);
        if (row == NO_ROW) {
            continue;
        }
        const float weight = experts.is_throughput()
                                 ? 1.0f
                                 : ptx::load<float>(call.routing.weights + place * 4);
        const u64 from = rows + u64(row) * group.return_row_bytes + first;
#pragma unroll
        for (u32 i = 0; i < COMBINE_VECTORS; ++i) {
            if (first + i * ROW_BYTES < group.return_data_bytes) {
                ptx::Vector<u32> values;
                ptx::load_vector<0>(from + i * ROW_BYTES, values);
                Values::add(sums[i], values, weight);
            }
        }
    }
    const u64 to = call.output + token * group.return_data_bytes + first;
#pragma unroll
    for (u32 i = 0; i < COMBINE_VECTORS; ++i) {
        if (first + i * ROW_BYTES < group.return_data_bytes) {
            ptx::Vector<u32> values;
            Values::round(sums[i], values);
            ptx::store_vector<0>(to + i * ROW_BYTES, values);
        }
    }
}

// The sums of the weights that came back with a token's rows, in the order of the rows.
RINGDOVE_INLINE void combine_weights(const Experts& experts, u64 rows, u64 token, u32 lane) {
    const ExpertsCall& call = experts.call;
    const ExpertsGroup& group = experts.group;
    if (lane >= group.top_k) {
        return;
    }
    float sum = 0;
    for (u32 k = 0; k < group.top_k; ++k) {
        const u32 row = entry(call.routing.homes, token * group.top_k + k);
        if (row != NO_ROW) {
            const u64 weights =
                rows + u64(row) * group.return_row_bytes + group.return_data_bytes;
            sum = sum + ptx::load<float>(weights + lane * 4);
        }
    }
    ptx::store<float>(call.output_weights + (token * group.top_k + lane) * 4, sum);
}

// Adds the rows of all tokens.
RINGDOVE_INLINE void experts_combine(const ExpertsCall& call) {
    const Experts experts(call);
    const ExpertsGroup& group = experts.group;
    const GridWarp warp = GridWarp::here();
    if (experts.device.has_failed()) {
        return;
    }
    const u64 returned = experts.state(__builtin_offsetof(ExpertsState, returns_received));
    const u64 rows = experts.window + experts.returned(ptx::load<u64>(returned) - 1);
    const u32 parts = (group.return_data_bytes + COMBINE_BYTES - 1) / COMBINE_BYTES;
    // Of a faulty routing nothing was sent, and nothing is added.
    const u64 items = experts.token_count() * parts;
    for (u64 item = warp.number; item < items; item += warp.count) {
        const u64 token = item / parts;
        const u64 begin = item % parts * COMBINE_BYTES;
        switch (static_cast<DataType>(group.data_type)) {
            case DataType::F16:
                combine_part<HalfValues<F16Format>>(experts, rows, token, begin, warp.lane);
                break;
            case DataType::BF16:
                combine_part<HalfValues<BF16Format>>(experts, rows, token, begin, warp.lane);
                break;
            default:
                combine_part<WholeValues>(experts, rows, token, begin, warp.lane);
        }
        if (begin == 0 && experts.is_throughput() && call.output_weights != 0) {
            combine_weights(experts, rows, token, warp.lane);
        }
    }
}

}  // namespace ringdove
