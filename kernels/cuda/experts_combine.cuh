// Combine: rows go back to where their tokens came from, and are added there.
//
// The order of additions: a token's choices in their order, from +0, in f32; each product of weight
// and value is rounded before it is added; the sum is rounded to the type of the rows. In
// throughput mode a rank's row stands at the first of the token's choices on that rank, and has no
// weight. Where rows are relayed, the sum of a node's rows stands at the first of the token's
// choices on that node: the relay adds them in the same way, and rounds the sum to the type of the
// rows, as which it travels. Rows of this rank's own node are added one by one.
#pragma once

#include "experts.cuh"

namespace ringdove {

// Where this rank writes the rows that go back to `to`.
RINGDOVE_INLINE u64 first_return(const Experts& experts, u64 home, u32 to) {
    const ExpertsGroup& group = experts.group;
    const u64 there = experts.device.reached(EXPERTS_WINDOW, to);
    if (there != 0) {
        return there + home +
               u64(entry(experts.call.routing.in_homes, to)) * group.return_row_bytes;
    }
    if (!experts.is_relayed()) {
        return experts.window + experts.returning(to);
    }
    // The relay adds them.
    const u32 relay = experts.node() * group.node_ranks + to % group.node_ranks;
    const u64 step = ptx::load<u64>(experts.state(__builtin_offsetof(ExpertsState, returns_sent)));
    const u64 row = experts.gathered_row(experts.place_in_node(), to / group.node_ranks, 0);
    return experts.device.reached(EXPERTS_WINDOW, relay) + experts.gathered(step) +
           row * group.return_row_bytes;
}

// The rows that go back to one rank, from this warp's `row` on; all warps of the grid call.
RINGDOVE_INLINE void return_rows(const Experts& experts, u64 home, u32 to, u32 row, u32 rows,
                                 const GridWarp& warp) {
    const ExpertsCall& call = experts.call;
    const ExpertsGroup& group = experts.group;
    const u64 first = first_return(experts, home, to);
    for (; row < rows; row += warp.count) {
        const u64 from = entry(call.routing.in_places, u64(to) * group.return_rows_max + row);
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
    if (ptx::barrier_or(experts.is_stopped()) != 0) {
        return;
    }
    const GridWarp warp = GridWarp::here();
    const u64 sent = experts.state(__builtin_offsetof(ExpertsState, returns_sent));
    const u64 step = ptx::load<u64>(sent);
    const u64 home = experts.returned(step);
    // Where rows are relayed, all of them are stored: to their ranks, or to relays of this node.
    const bool has_far = !experts.is_relayed() && experts.has_far();
    const auto write = [&](bool is_far) RINGDOVE_INLINE_LAMBDA {
        // The rows of all ranks count as one sequence, so that all warps share them.
        u32 row = warp.number;
        for (u32 to = 0; to < experts.ranks; ++to) {
            const u32 rows = entry(call.routing.in_returns, to);
            if (row < rows && (experts.is_relayed() || experts.is_far(to) == is_far) &&
                !experts.is_given_up(to)) {
                return_rows(experts, home, to, row, rows, warp);
            }
            row = first_behind(row, rows, warp);
        }
    };
    const auto announce = [&](u32 to) RINGDOVE_INLINE_LAMBDA {
        const u64 bytes = u64(entry(call.routing.in_returns, to)) * group.return_row_bytes;
        const u64 first = u64(entry(call.routing.in_homes, to)) * group.return_row_bytes;
        experts.announce(true, step, to, home + first, experts.returning(to), bytes);
    };
    if (experts.send_far_first(has_far, write, announce) && ptx::thread_index() == 0) {
        ptx::store<u64>(sent, step + 1);
    }
}

// `sum` and a product, which is rounded first; without weights `sum` and the value, which gives the
// same bits as a product with 1.
template <bool HAS_WEIGHT>
RINGDOVE_INLINE float add_bits(float sum, u32 bits, float weight) {
    if constexpr (HAS_WEIGHT) {
        return sum + ptx::multiply_f32_bits(bits, weight);
    } else {
        return ptx::add_f32_bits(sum, bits);
    }
}

// Values of a row, a vector of 16 bytes at a time.
struct WholeValues {
    template <bool HAS_WEIGHT>
    static RINGDOVE_INLINE void add(float (&sums)[8], const ptx::Vector<u32>& values,
                                    float weight) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            sums[i] = add_bits<HAS_WEIGHT>(sums[i], values.words[i], weight);
        }
    }

    static RINGDOVE_INLINE void round(const float (&sums)[8], ptx::Vector<u32>& values) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            values.words[i] = ptx::f32_bits(sums[i]);
        }
    }
};

struct F16Values {
    template <bool HAS_WEIGHT>
    static RINGDOVE_INLINE void add(float (&sums)[8], const ptx::Vector<u32>& values,
                                    float weight) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float low = F16Format::widen_low(values.words[i]);
            const float high = F16Format::widen_high(values.words[i]);
            sums[2 * i] = sums[2 * i] + (HAS_WEIGHT ? weight * low : low);
            sums[2 * i + 1] = sums[2 * i + 1] + (HAS_WEIGHT ? weight * high : high);
        }
    }

    static RINGDOVE_INLINE void round(const float (&sums)[8], ptx::Vector<u32>& values) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            values.words[i] = round_pair(sums[2 * i], sums[2 * i + 1]);
        }
    }

private:
    static RINGDOVE_INLINE u32 round_pair(float low, float high) {
        if constexpr (ptx::HAS_BF16) {
            return ptx::f16x2_from_f32(low, high);
        } else {
            return F16Format::round(low) | F16Format::round(high) << 16;
        }
    }
};

struct BF16Values {
    template <bool HAS_WEIGHT>
    static RINGDOVE_INLINE void add(float (&sums)[8], const ptx::Vector<u32>& values,
                                    float weight) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 word = values.words[i];
            sums[2 * i] = add_bits<HAS_WEIGHT>(sums[2 * i], word << 16, weight);
            sums[2 * i + 1] =
                add_bits<HAS_WEIGHT>(sums[2 * i + 1], word & 0xffff0000u, weight);
        }
    }

    static RINGDOVE_INLINE void round(const float (&sums)[8], ptx::Vector<u32>& values) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            values.words[i] = round_pair(sums[2 * i], sums[2 * i + 1]);
        }
    }

private:
    // Two of BF16Format::round.
    static RINGDOVE_INLINE u32 round_pair(float low, float high) {
        if constexpr (ptx::HAS_BF16) {
            return ptx::bf16x2_from_f32(low, high);
        } else {
            return ptx::high_halves(round_high(low), round_high(high));
        }
    }

    // One, in the high half of a word.
    static RINGDOVE_INLINE u32 round_high(float value) {
        const u32 bits = ptx::f32_bits(value);
        return value != value ? 0x7fff0000u : bits + ptx::bit_16(bits) + 0x7fffu;
    }
};

// A warp's part of a token: so many vectors for each lane.
constexpr u32 COMBINE_VECTORS = 4;
constexpr u32 COMBINE_BYTES = COMBINE_VECTORS * ROW_BYTES;

// Rows that are added, with their factors, by number: the rows of one token's choices, or those
// that a relay has of one row. Lane `k` of a warp has the `k`th.
struct Terms {
    u64 rows;
    // A bit for each row that there is.
    u32 present;
    u32 row;
    float factor;
    bool has_factors;

    // The tables hold a number for each of `count` choices: the row (NO_ROW where there is none)
    // and its factor; without a table of factors they are 1. A warp calls.
    static RINGDOVE_INLINE Terms of(u64 table, u64 factors, u64 rows, u32 count, u32 lane) {
        u32 row = NO_ROW;
        float factor = 1.0f;
        if (lane < count) {
            row = entry(table, lane);
            if (factors != 0) {
                factor = ptx::load<float>(factors + u64(lane) * 4);
            }
        }
        return {rows, ptx::ballot(row != NO_ROW), row, factor, factors != 0};
    }
};

// What one part of a sum reads and writes.
struct Part {
    // The first of this lane's vectors, in a row.
    u64 first;
    // Bytes of a row's data, and from one row to the next.
    u32 data_bytes;
    u32 row_bytes;

    // Does a row have this lane's `i`th vector?
    template <bool IS_WHOLE>
    RINGDOVE_INLINE bool has(u32 i) const {
        return IS_WHOLE || first + i * ROW_BYTES < data_bytes;
    }
};

// Adds one part of the `k`th row to sums, or to 0 where it is the first. A warp calls.
template <class Values, bool IS_WHOLE, bool HAS_WEIGHTS, bool IS_FIRST>
RINGDOVE_INLINE void add_row(float (&sums)[COMBINE_VECTORS][8], const Part& part,
                             const Terms& terms, u32 k) {
    const u64 from =
        terms.rows + part.first + u64(ptx::shuffle(terms.row, k)) * part.row_bytes;
    float factor = 1.0f;
    if constexpr (HAS_WEIGHTS) {
        factor = ptx::f32_from_bits(ptx::shuffle(ptx::f32_bits(terms.factor), k));
    }
#pragma unroll
    for (u32 i = 0; i < COMBINE_VECTORS; ++i) {
        if constexpr (IS_FIRST) {
#pragma unroll
            for (u32 at = 0; at < 8; ++at) {
                sums[i][at] = 0;
            }
        }
        if (part.has<IS_WHOLE>(i)) {
            ptx::Vector<u32> values;
            ptx::load_vector<0>(from + i * ROW_BYTES, values);
            Values::template add<HAS_WEIGHTS>(sums[i], values, factor);
        }
    }
}

// Adds one part of some rows into `to`; a warp calls. Lanes of a whole part have all of their
// vectors.
template <class Values, bool IS_WHOLE, bool HAS_WEIGHTS>
RINGDOVE_INLINE void add_part(const Part& part, const Terms& terms, u64 to) {
    if (terms.present == 0) {
#pragma unroll
        for (u32 i = 0; i < COMBINE_VECTORS; ++i) {
            if (part.has<IS_WHOLE>(i)) {
                ptx::store_vector<0>(to + part.first + i * ROW_BYTES, ptx::Vector<u32>{});
            }
        }
        return;
    }
    // The first row apart, so that no sums are set to 0 one by one.
    float sums[COMBINE_VECTORS][8];
    add_row<Values, IS_WHOLE, HAS_WEIGHTS, true>(sums, part, terms,
                                                 ptx::lowest_one(terms.present));
#pragma unroll 1
    for (u32 left = terms.present & (terms.present - 1); left != 0; left &= left - 1) {
        add_row<Values, IS_WHOLE, HAS_WEIGHTS, false>(sums, part, terms, ptx::lowest_one(left));
    }
#pragma unroll
    for (u32 i = 0; i < COMBINE_VECTORS; ++i) {
        if (part.has<IS_WHOLE>(i)) {
            ptx::Vector<u32> values;
            Values::round(sums[i], values);
            ptx::store_vector<0>(to + part.first + i * ROW_BYTES, values);
        }
    }
}

// A warp's parts, one after the other, of rows of `parts` parts each that all warps share.
struct PartOfRow {
    u64 row;
    u32 part;
    u32 parts;
    // From one to the next.
    u32 rows_apart;
    u32 parts_apart;

    RINGDOVE_INLINE PartOfRow(const GridWarp& warp, u32 parts_of_row)
        : row(warp.number / parts_of_row),
          part(warp.number % parts_of_row),
          parts(parts_of_row),
          rows_apart(warp.count / parts_of_row),
          parts_apart(warp.count % parts_of_row) {}

    RINGDOVE_INLINE u64 begin() const { return u64(part) * COMBINE_BYTES; }

    RINGDOVE_INLINE void next() {
        row += rows_apart;
        part += parts_apart;
        if (part >= parts) {
            part -= parts;
            ++row;
        }
    }
};

template <class Values>
RINGDOVE_INLINE void add_any_parts(const ExpertsGroup& group, const Terms& terms, u64 to,
                                   u64 begin, u64 end, u32 lane) {
    // Kept here: behind a load of a row the group would be read again.
    const u32 data_bytes = group.return_data_bytes;
    const u32 row_bytes = group.return_row_bytes;
#pragma unroll 1
    for (; begin < end; begin += COMBINE_BYTES) {
        const Part part = {begin + u64(lane) * VECTOR_BYTES, data_bytes, row_bytes};
        if (begin + COMBINE_BYTES > data_bytes) {
            add_part<Values, false, true>(part, terms, to);
        } else if (terms.has_factors) {
            add_part<Values, true, true>(part, terms, to);
        } else {
            add_part<Values, true, false>(part, terms, to);
        }
    }
}

// Adds the parts of some rows from byte `begin` on to byte `end` into `to`; a warp calls.
RINGDOVE_INLINE void add_parts(const ExpertsGroup& group, const Terms& terms, u64 to, u64 begin,
                               u64 end, u32 lane) {
    switch (static_cast<DataType>(group.data_type)) {
        case DataType::F16:
            return add_any_parts<F16Values>(group, terms, to, begin, end, lane);
        case DataType::BF16:
            return add_any_parts<BF16Values>(group, terms, to, begin, end, lane);
        default:
            return add_any_parts<WholeValues>(group, terms, to, begin, end, lane);
    }
}

// The sums of the weights that came with some rows, in the order of the rows, into `to`; a warp
// calls.
RINGDOVE_INLINE void add_weights(const ExpertsGroup& group, const Terms& terms, u64 to, u32 lane) {
    const bool is_choice = lane < group.top_k;
    const u64 weights = terms.rows + group.return_data_bytes + lane * 4;
    float sum = 0;
    for (u32 left = terms.present; left != 0; left &= left - 1) {
        const u32 row = ptx::shuffle(terms.row, ptx::lowest_one(left));
        if (is_choice) {
            sum = sum + ptx::load<float>(weights + u64(row) * group.return_row_bytes);
        }
    }
    if (is_choice) {
        ptx::store<float>(to + lane * 4, sum);
    }
}

// In a group that goes on: which results of a token are missing, a bit for each choice. Rows that
// did not come are left out of its sum. A warp calls, before it adds. A choice is missing if
// its expert has no rank, if its rank was given up, or if the token was not sent at all.
RINGDOVE_INLINE void mark_missing(const Experts& experts, u64 token, bool is_unsent, u32 lane) {
    const ExpertsCall& call = experts.call;
    const u64 first = token * experts.group.top_k;
    bool is_missing = false;
    if (lane < experts.group.top_k) {
        const u32 expert = entry(call.routing.indices, first + lane);
        if (expert != NO_ROW) {
            const u32 owner = is_unsent ? NO_RANK : experts.owner(expert);
            is_missing = owner == NO_RANK || experts.is_given_up(owner);
        }
    }
    const u32 missing = ptx::ballot(is_missing);
    if (lane == 0) {
        set_entry(call.routing.missing, token, missing);
        if (call.output_missing != 0) {
            set_entry(call.output_missing, token, missing);
        }
    }
}

// The rows of all tokens, in a group that goes on: those of ranks that were given up do not count.
// The only block of the launch calls it, behind the wait.
RINGDOVE_INLINE void leave_out(const Experts& experts) {
    const ExpertsCall& call = experts.call;
    const u64 choices = experts.token_count() * experts.group.top_k;
    for (u64 item = ptx::thread_index(); item < choices; item += ptx::thread_count()) {
        const u32 expert = entry(call.routing.indices, item);
        const u32 owner = expert == NO_ROW ? NO_RANK : experts.owner(expert);
        if (owner != NO_RANK && experts.is_given_up(owner)) {
            set_entry(call.routing.homes, item, NO_ROW);
        }
    }
}

// Waits until all rows are back. One block.
RINGDOVE_INLINE void experts_await_returns(const ExpertsCall& call) {
    const Experts experts(call);
    const u64 received = experts.state(__builtin_offsetof(ExpertsState, returns_received));
    const u64 step = ptx::load<u64>(received);
    const auto wants = [&](u32 from) RINGDOVE_INLINE_LAMBDA { return experts.sends_to(from); };
    if (!experts.wait_for_all(true, step, wants)) {
        return;
    }
    if (experts.is_over()) {
        leave_out(experts);
    }
    if (ptx::thread_index() == 0) {
        ptx::store<u64>(received, step + 1);
    }
}

// Adds the rows of all tokens.
RINGDOVE_INLINE void experts_combine(const ExpertsCall& call) {
    const Experts experts(call);
    const ExpertsGroup& group = experts.group;
    const GridWarp warp = GridWarp::here();
    // All threads decide alike: lanes of a warp ask one another for rows.
    if (ptx::barrier_or(experts.is_stopped()) != 0) {
        return;
    }
    const u64 returned = experts.state(__builtin_offsetof(ExpertsState, returns_received));
    const u64 rows = experts.window + experts.returned(ptx::load<u64>(returned) - 1);
    const u32 parts = (group.return_data_bytes + COMBINE_BYTES - 1) / COMBINE_BYTES;
    // Of a faulty routing nothing was sent, and nothing is added; a group that goes on gives zeros,
    // and marks them.
    const bool is_unsent = experts.goes_on() && experts.fault_code() != 0;
    const u64 tokens = is_unsent ? u64(call.tokens) : experts.token_count();
    const u64 weights = call.weights != 0 ? call.weights : call.routing.weights;
    const u32 top_k = group.top_k;
    const u32 count = is_unsent ? 0 : top_k;
    const bool has_factors = !experts.is_throughput();
    const u32 data_bytes = group.return_data_bytes;
    // Parts of tokens, one behind the other: a warp adds rows from one end to the other where there
    // are enough of them, and only parts of rows where that leaves warps without work.
    const u64 items = tokens * parts;
    u64 item = items * warp.number / warp.count;
    const u64 end = items * (warp.number + 1) / warp.count;
    u64 token = item / parts;
    u32 part = u32(item % parts);
    for (; item < end; item += parts - part, part = 0, ++token) {
        const u64 first = token * top_k;
        const Terms terms = Terms::of(call.routing.homes + first * 4,
                                      has_factors ? weights + first * 4 : 0, rows, count,
                                      warp.lane);
        const u64 to = call.output + token * data_bytes;
        const u64 behind = part + (end - item);
        add_parts(group, terms, to, u64(part) * COMBINE_BYTES,
                  (behind < parts ? behind : parts) * COMBINE_BYTES, warp.lane);
        if (part != 0) {
            continue;
        }
        if (experts.is_throughput() && call.output_weights != 0) {
            add_weights(group, terms, call.output_weights + first * 4, warp.lane);
        }
        if (experts.goes_on()) {
            mark_missing(experts, token, is_unsent, warp.lane);
        }
    }
}

}  // namespace ringdove
