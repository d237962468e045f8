// Dispatch: where each token goes, the messages, and where their rows lie in the output.
#pragma once

#include "experts.cuh"
#include "experts_fp8.cuh"

namespace ringdove {

// The caller's indices, of either width.
struct Choices {
    u64 address;
    bool is_wide;

    RINGDOVE_INLINE s64 operator()(u64 index) const {
        return is_wide ? s64(ptx::load<u64>(address + index * 8))
                       : s64(s32(ptx::load<u32>(address + index * 4)));
    }
};

// Tokens that this call may look at.
RINGDOVE_INLINE u32 usable_tokens(const ExpertsCall& call) {
    return (call.flags & EXPERTS_TOO_MANY) != 0 ? 0 : call.tokens;
}

// A fault of this rank's routing; of several, the first token's counts.
RINGDOVE_INLINE void note_fault(const Experts& experts, u64 place, ExpertsFaultCode code) {
    const u64 packed = place * 8 + u64(code);
    ptx::fetch_min_relaxed_gpu_u64(experts.state(__builtin_offsetof(ExpertsState, first_fault)),
                                   packed);
}

// Checks one token's choices, and keeps them for the combine.
RINGDOVE_INLINE void check_token(const Experts& experts, const Choices& choices, u32 token) {
    const ExpertsCall& call = experts.call;
    const u32 top_k = experts.group.top_k;
    const u64 first = u64(token) * top_k;
    for (u32 k = 0; k < top_k; ++k) {
        const s64 expert = choices(first + k);
        const u64 place = u64(token) * 16 + k;
        if (expert < -1 || expert >= s64(experts.group.experts)) {
            note_fault(experts, place, ExpertsFaultCode::Index);
        }
        for (u32 earlier = 0; earlier < k && expert >= 0; ++earlier) {
            if (choices(first + earlier) == expert) {
                note_fault(experts, place, ExpertsFaultCode::Repeated);
            }
        }
        const float weight = call.weights != 0
                                 ? ptx::load<float>(call.weights + (first + k) * 4)
                                 : 1.0f;
        if (weight != weight) {
            note_fault(experts, place, ExpertsFaultCode::Weight);
        }
        set_entry(call.routing.indices, first + k, u32(s32(expert)));
        ptx::store<float>(call.routing.weights + (first + k) * 4, weight);
        if (expert < 0) {
            set_entry(call.routing.places, first + k, NO_ROW);
            if (experts.is_relayed()) {
                set_entry(call.routing.node_places, first + k, NO_ROW);
            }
        }
    }
}

// Numbers the tokens of one bucket, in their order; a warp calls. The bucket holds the tokens that
// chose one of the experts from `first` on, and a token's first such choice has its row, which the
// table `places` gets. Gives how many there are. Without `KEEPS` it only counts.
template <bool KEEPS>
RINGDOVE_INLINE u32 number_tokens(const Experts& experts, const Choices& choices, u64 places,
                                  u32 first, u32 count, u32 lane) {
    const u32 tokens = usable_tokens(experts.call);
    const u32 top_k = experts.group.top_k;
    const u32 lanes_before = (1u << lane) - 1;
    u32 numbered = 0;
    for (u32 begin = 0; begin < tokens; begin += WARP_THREADS) {
        const u32 token = begin + lane;
        const u64 row = u64(token) * top_k;
        u32 choice = NO_ROW;
        for (u32 k = 0; k < top_k && token < tokens; ++k) {
            const s64 expert = choices(row + k);
            // One comparison: what is below `first` is far above it as a number without sign.
            if (u64(expert) - first >= count) {
                continue;
            }
            if (choice == NO_ROW) {
                choice = k;
            } else if (KEEPS) {
                set_entry(places, row + k, NO_ROW);
            }
        }
        const u32 chosen = ptx::ballot(choice != NO_ROW);
        if (KEEPS && choice != NO_ROW) {
            set_entry(places, row + choice,
                      numbered + ptx::count_ones(chosen & lanes_before));
        }
        numbered += ptx::count_ones(chosen);
    }
    return numbered;
}

// The fault of this launch, if any, as messages carry it; one thread of the last block calls.
RINGDOVE_INLINE void keep_fault(const Experts& experts, const Choices& choices) {
    const ExpertsCall& call = experts.call;
    const u64 word = experts.state(__builtin_offsetof(ExpertsState, first_fault));
    const u64 packed = ptx::load<u64>(word);
    ExpertsFault fault = {};
    fault.rank = experts.rank;
    fault.step = ptx::load<u64>(experts.state(__builtin_offsetof(ExpertsState, sent)));
    if ((call.flags & EXPERTS_TOO_MANY) != 0) {
        fault.code = u32(ExpertsFaultCode::Tokens);
        fault.value = call.tokens;
    } else if (packed != EXPERTS_NO_FAULT) {
        fault.code = u32(packed & 7);
        fault.place = packed >> 3;
        const u64 index = (fault.place >> 4) * experts.group.top_k + (fault.place & 15);
        fault.value = fault.code == u32(ExpertsFaultCode::Weight)
                          ? s64(entry(call.weights, index))
                          : choices(index);
    }
    *reinterpret_cast<ExpertsFault*>(call.routing.fault) = fault;
    ptx::store<u64>(call.routing.fault + sizeof(ExpertsFault), usable_tokens(call));
    ptx::store<u64>(word, EXPERTS_NO_FAULT);
}

// Where the rows of each rank begin; the last block calls.
RINGDOVE_INLINE void lay_out(const Experts& experts, bool is_faulty) {
    const ExpertsRouting& routing = experts.call.routing;
    const ExpertsGroup& group = experts.group;
    const u32 nodes = experts.is_relayed() ? experts.node_count() : 0;
    for (u32 to = ptx::thread_index(); to < experts.ranks + nodes; to += ptx::thread_count()) {
        u32 rows = 0;
        for (u32 local = 0; local < group.local_experts && to < experts.ranks; ++local) {
            const u32 expert = experts.first_expert(to) + local;
            set_entry(routing.bases, expert, rows);
            if (is_faulty) {
                set_entry(routing.counts, expert, 0);
            } else {
                rows += entry(routing.counts, expert);
            }
        }
        if (experts.is_throughput()) {
            rows = is_faulty ? 0 : entry(routing.counts, group.experts + to);
        }
        set_entry(routing.rows, to, rows);
    }
    ptx::barrier();
    if (ptx::thread_index() == 0) {
        // The order in which rows come back: those of ranks that get a message of their own, then
        // those of other nodes. The rows of ranks there are among their node's.
        u32 rows = 0;
        for (u32 to = 0; to < experts.ranks + nodes; ++to) {
            set_entry(routing.home_bases, to, rows);
            const bool is_own = to < experts.ranks
                                    ? nodes == 0 || !experts.is_far(to)
                                    : to - experts.ranks != experts.node();
            rows += is_own ? entry(routing.rows, to) : 0;
        }
    }
}

// One bucket: an expert, then, in throughput mode, a rank, then, where rows are relayed, a node.
// Gives its count.
RINGDOVE_INLINE u32 number_bucket(const Experts& experts, const Choices& choices, u32 bucket,
                                  u32 lane) {
    const ExpertsRouting& routing = experts.call.routing;
    const u32 local = experts.group.local_experts;
    if (bucket >= experts.group.experts + experts.ranks) {
        const u32 of_node = experts.group.node_ranks * local;
        const u32 first = (bucket - experts.group.experts - experts.ranks) * of_node;
        return number_tokens<true>(experts, choices, routing.node_places, first, of_node, lane);
    }
    if (bucket >= experts.group.experts) {
        const u32 first = experts.first_expert(bucket - experts.group.experts);
        return number_tokens<true>(experts, choices, routing.places, first, local, lane);
    }
    if (experts.is_throughput()) {
        return number_tokens<false>(experts, choices, routing.places, bucket, 1, lane);
    }
    return number_tokens<true>(experts, choices, routing.places, bucket, 1, lane);
}

// Where each token goes: one warp for each bucket, and for each 32 tokens that it checks.
RINGDOVE_INLINE void experts_route(const ExpertsCall& call) {
    const Experts experts(call);
    const ExpertsGroup& group = experts.group;
    const GridWarp warp = GridWarp::here();
    const Choices choices = {call.indices, (call.flags & EXPERTS_WIDE_INDICES) != 0};
    const u32 tokens = usable_tokens(call);
    const u32 nodes = experts.is_relayed() ? experts.node_count() : 0;
    const u32 buckets = group.experts + (experts.is_throughput() ? experts.ranks + nodes : 0);
    const u32 items = buckets + (tokens + WARP_THREADS - 1) / WARP_THREADS;
    for (u32 item = warp.number; item < items; item += warp.count) {
        if (item >= buckets) {
            const u32 token = (item - buckets) * WARP_THREADS + warp.lane;
            if (token < tokens) {
                check_token(experts, choices, token);
            }
            ptx::converge_warp();
            continue;
        }
        const u32 count = number_bucket(experts, choices, item, warp.lane);
        if (warp.lane == 0) {
            set_entry(call.routing.counts, item, count);
        }
        ptx::converge_warp();
    }
    if (!is_last_block(experts.state(__builtin_offsetof(ExpertsState, blocks_done)))) {
        return;
    }
    if (ptx::thread_index() == 0) {
        keep_fault(experts, choices);
    }
    ptx::barrier();
    lay_out(experts, experts.fault_code() != 0);
}

// What a row says of itself, behind its data; a warp calls. In throughput mode it names those of
// the token's experts that are among the `count` from `first_there` on.
RINGDOVE_INLINE void describe_row(const Experts& experts, u64 at, u32 token, u32 choice,
                                  u32 first_there, u32 count, u32 lane) {
    const ExpertsRouting& routing = experts.call.routing;
    const u64 first = u64(token) * experts.group.top_k;
    if (lane == 0) {
        const ExpertsRow row = {token, choice, entry(routing.weights, first + choice), 0};
        *reinterpret_cast<ExpertsRow*>(at) = row;
    }
    if (experts.is_throughput() && lane < experts.group.top_k) {
        const u32 expert = entry(routing.indices, first + lane);
        const bool is_there = expert >= first_there && expert - first_there < count;
        const u64 indices = at + sizeof(ExpertsRow);
        set_entry(indices, lane, is_there ? expert - first_there : NO_ROW);
        set_entry(indices + choices_bytes(experts.group), lane,
                  is_there ? entry(routing.weights, first + lane) : 0);
    }
}

// The head of a message at `message`, with the counts of `count` experts from `first` on, and rows
// by their place in the handle's tables; a warp calls.
RINGDOVE_INLINE void write_head(const Experts& experts, u64 step, u64 message, u32 first, u32 count,
                                u32 destination, u32 lane) {
    const ExpertsRouting& routing = experts.call.routing;
    const bool is_empty = experts.fault_code() != 0 || experts.is_over();
    for (u32 local = lane; local < count; local += WARP_THREADS) {
        set_entry(message + sizeof(ExpertsHeader), local,
                  is_empty ? 0 : entry(routing.counts, first + local));
    }
    if (lane == 0) {
        ExpertsHeader header = {};
        header.step = step;
        header.fault = experts.is_over()
                           ? experts.gone_fault(step)
                           : *reinterpret_cast<const ExpertsFault*>(routing.fault);
        header.fault.step = step;
        header.rows = is_empty ? 0 : entry(routing.rows, destination);
        header.home_base = entry(routing.home_bases, destination);
        *reinterpret_cast<ExpertsHeader*>(message) = header;
    }
}

// The head of the message to `to`, which may be one to its node; a warp calls.
RINGDOVE_INLINE void write_header(const Experts& experts, u64 step, u32 to, u32 lane) {
    const ExpertsGroup& group = experts.group;
    const u64 message = experts.message_to(step, to);
    if (!experts.is_relayed() || !experts.is_far(to)) {
        return write_head(experts, step, message, experts.first_expert(to), group.local_experts, to,
                          lane);
    }
    const u32 node = to / group.node_ranks;
    const u32 count = group.node_ranks * group.local_experts;
    write_head(experts, step, message, node * count, count, experts.ranks + node, lane);
    const u64 rows = message + sizeof(ExpertsHeader) + u64(count) * 4;
    for (u32 place = lane; place < group.node_ranks; place += WARP_THREADS) {
        set_entry(rows, place, entry(experts.call.routing.rows, node * group.node_ranks + place));
    }
}

// Data and scales of a row; a warp calls.
RINGDOVE_INLINE void write_row(const Experts& experts, u64 at, u32 token, const GridWarp& warp) {
    const ExpertsCall& call = experts.call;
    const ExpertsGroup& group = experts.group;
    if ((call.flags & EXPERTS_QUANTISE) != 0) {
        const u64 from = call.input + u64(token) * group.return_data_bytes;
        return quantise_row(group, at, from, warp.lane);
    }
    copy_vectors(at, call.input + u64(token) * group.data_bytes, group.data_bytes, warp.team());
    if (group.scales != EXPERTS_NO_SCALES) {
        const u32 bytes = scales_bytes(group);
        copy(at + group.data_bytes, call.scales + u64(token) * bytes, bytes, warp.team());
    }
}

// One choice: its row, where it has one. A warp calls.
RINGDOVE_INLINE void send_choice(const Experts& experts, u64 step, u64 item, bool is_far,
                                 const GridWarp& warp) {
    const ExpertsCall& call = experts.call;
    const ExpertsGroup& group = experts.group;
    const u32 expert = entry(call.routing.indices, item);
    const u32 to = expert == NO_ROW ? NO_RANK : experts.owner(expert);
    if (to != NO_RANK && experts.is_far(to) != is_far) {
        return;
    }
    const bool is_relayed = to != NO_RANK && is_far && experts.is_relayed();
    const u32 place = to == NO_RANK ? NO_ROW
                                    : entry(is_relayed ? call.routing.node_places
                                                       : call.routing.places,
                                            item);
    if (place == NO_ROW) {
        if (warp.lane == 0) {
            set_entry(call.routing.homes, item, NO_ROW);
        }
        return;
    }
    const u32 token = u32(item / group.top_k);
    const u32 choice = u32(item % group.top_k);
    const u32 row = experts.is_throughput() ? place : entry(call.routing.bases, expert) + place;
    const u32 node = is_relayed ? to / group.node_ranks : 0;
    if (warp.lane == 0) {
        const u32 destination = is_relayed ? experts.ranks + node : to;
        set_entry(call.routing.homes, item, entry(call.routing.home_bases, destination) + row);
    }
    const u64 message = experts.message_to(step, to);
    if (!is_relayed) {
        const u64 at = message + group.header_bytes + u64(row) * group.row_bytes;
        write_row(experts, at, token, warp);
        return describe_row(experts, at + group.data_bytes + group.scale_bytes, token, choice,
                            experts.first_expert(to), group.local_experts, warp.lane);
    }
    const u64 at = message + group.relayed_header_bytes + u64(row) * group.relayed_row_bytes;
    const u32 count = group.node_ranks * group.local_experts;
    write_row(experts, at, token, warp);
    const u64 behind = at + group.data_bytes + group.scale_bytes;
    describe_row(experts, behind, token, choice, node * count, count, warp.lane);
    if (warp.lane < group.top_k) {
        const u64 first = u64(token) * group.top_k;
        const u64 places = behind + sizeof(ExpertsRow) + 2 * choices_bytes(group);
        set_entry(places, warp.lane, entry(call.routing.places, first + warp.lane));
    }
}

// Bytes of the message to `to`.
RINGDOVE_INLINE u64 message_length(const Experts& experts, u32 to) {
    const ExpertsGroup& group = experts.group;
    const bool is_relayed = experts.is_relayed() && experts.is_far(to);
    const u32 destination = is_relayed ? experts.ranks + to / group.node_ranks : to;
    const u32 rows =
        experts.sent_tokens() == 0 ? 0 : entry(experts.call.routing.rows, destination);
    return is_relayed ? group.relayed_header_bytes + u64(rows) * group.relayed_row_bytes
                      : group.header_bytes + u64(rows) * group.row_bytes;
}

// The messages to all ranks, whose rows are laid out already.
RINGDOVE_INLINE void experts_send(const ExpertsCall& call) {
    const Experts experts(call);
    const ExpertsGroup& group = experts.group;
    if (ptx::barrier_or(experts.is_stopped()) != 0) {
        return;
    }
    const GridWarp warp = GridWarp::here();
    const u64 sent = experts.state(__builtin_offsetof(ExpertsState, sent));
    const u64 step = ptx::load<u64>(sent);
    const u64 choices = experts.sent_tokens() * group.top_k;
    const auto write = [&](bool is_far) RINGDOVE_INLINE_LAMBDA {
        for (u64 item = warp.number; item < choices; item += warp.count) {
            send_choice(experts, step, item, is_far, warp);
        }
        for (u32 to = warp.number; to < experts.ranks; to += warp.count) {
            if (experts.is_far(to) == is_far && experts.sends_to(to)) {
                write_header(experts, step, to, warp.lane);
            }
        }
    };
    const auto announce = [&](u32 to) RINGDOVE_INLINE_LAMBDA {
        const u64 there = experts.is_relayed() && experts.is_far(to)
                              ? experts.relayed(step, experts.node())
                              : experts.received(step, experts.rank);
        experts.announce(false, step, to, there, experts.outgoing(to), message_length(experts, to));
    };
    if (experts.send_far_first(experts.has_far(), write, announce) && ptx::thread_index() == 0) {
        if (experts.is_over()) {
            // Its combine gives nothing, and marks every token.
            *reinterpret_cast<ExpertsFault*>(call.routing.fault) = experts.gone_fault(step);
        }
        ptx::store<u64>(sent, step + 1);
    }
}

// Keeps a fault for the host: of the last step that had any, that of the lowest rank. One thread
// calls, once for each rank in order.
RINGDOVE_INLINE void tell_host(const Experts& experts, const ExpertsFault& fault) {
    ExpertsFault* told = reinterpret_cast<ExpertsFault*>(
        experts.state(__builtin_offsetof(ExpertsState, fault)));
    if (fault.code != 0 && (told->code == 0 || told->step != fault.step)) {
        *told = fault;
    }
}

// Takes the counts of the message of `from`. Numbers that cannot be true become no rows and a
// fault; they lead nowhere (R8).
RINGDOVE_INLINE void take_counts(const Experts& experts, u64 step, u32 from) {
    const ExpertsRouting& routing = experts.call.routing;
    const ExpertsGroup& group = experts.group;
    if (experts.is_given_up(from)) {
        set_entry(routing.in_rows, from, 0);
        set_entry(routing.in_homes, from, 0);
        return;
    }
    const u64 message = experts.window + experts.received(step, from);
    ExpertsHeader* header = reinterpret_cast<ExpertsHeader*>(message);
    const u64 table = u64(from) * group.local_experts;
    u64 rows = 0;
    for (u32 local = 0; local < group.local_experts; ++local) {
        set_entry(routing.in_bases, table + local, u32(rows));
        rows += entry(message + sizeof(ExpertsHeader), local);
    }
    if (experts.is_throughput()) {
        rows = header->rows;
    }
    const bool is_true = header->step == step && rows == header->rows && rows <= group.rows_max &&
                         u64(header->home_base) + rows <= group.home_rows_max;
    if (!is_true) {
        header->fault = {step, 0, s64(rows), u32(ExpertsFaultCode::Message), from};
    }
    const bool is_empty = header->fault.code != 0;
    set_entry(routing.in_rows, from, is_empty ? 0 : header->rows);
    set_entry(routing.in_homes, from, is_empty ? 0 : header->home_base);
}

// Waits for all messages, and lays out their rows. One block.
RINGDOVE_INLINE void experts_await(const ExpertsCall& call) {
    const Experts experts(call);
    const ExpertsRouting& routing = call.routing;
    const ExpertsGroup& group = experts.group;
    const u64 received = experts.state(__builtin_offsetof(ExpertsState, received));
    const u64 step = ptx::load<u64>(received);
    const auto wants = [](u32) RINGDOVE_INLINE_LAMBDA { return true; };
    const bool is_well = experts.is_relayed() ? experts.wait_for_words(step)
                                              : experts.wait_for_all(false, step, wants);
    if (!is_well) {
        return;
    }
    for (u32 from = ptx::thread_index(); from < experts.ranks; from += ptx::thread_count()) {
        take_counts(experts, step, from);
    }
    ptx::barrier();
    const u64 rows_of_expert = u64(experts.ranks) * group.tokens_max;
    for (u32 local = ptx::thread_index(); local < group.local_experts;
         local += ptx::thread_count()) {
        u32 rows = 0;
        for (u32 from = 0; from < experts.ranks; ++from) {
            const u64 message = experts.window + experts.received(step, from);
            const u32 count = entry(routing.in_rows, from) == 0
                                  ? 0
                                  : entry(message + sizeof(ExpertsHeader), local);
            if (!experts.is_throughput()) {
                set_entry(routing.in_starts, u64(from) * group.local_experts + local,
                          u32(local * rows_of_expert) + rows);
            }
            rows += count;
        }
        set_entry(call.output_counts, local, round_up(rows, group.alignment));
    }
    if (ptx::thread_index() == 0) {
        u32 rows = 0;
        for (u32 from = 0; from < experts.ranks; ++from) {
            if (experts.is_throughput()) {
                set_entry(routing.in_starts, from, rows);
            }
            rows += entry(routing.in_rows, from);
            const u64 message = experts.window + experts.received(step, from);
            if (!experts.is_given_up(from)) {
                tell_host(experts, reinterpret_cast<const ExpertsHeader*>(message)->fault);
            }
        }
        if (experts.is_throughput()) {
            set_entry(call.output_counts, group.local_experts, rows);
        }
        ptx::store<u64>(received, step + 1);
    }
}

// The row of the output for row `row` of the message of `from`.
RINGDOVE_INLINE u32 output_row(const Experts& experts, u32 from, u32 row) {
    const ExpertsRouting& routing = experts.call.routing;
    if (experts.is_throughput()) {
        return entry(routing.in_starts, from) + row;
    }
    // The last expert whose rows do not begin behind it.
    const u64 table = u64(from) * experts.group.local_experts;
    u32 low = 0;
    u32 high = experts.group.local_experts;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (entry(routing.in_bases, table + middle) <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return entry(routing.in_starts, table + low) + row - entry(routing.in_bases, table + low);
}

// Moves the rows of all messages into the output: by source rank, then by token.
RINGDOVE_INLINE void experts_receive(const ExpertsCall& call) {
    const Experts experts(call);
    const ExpertsGroup& group = experts.group;
    const GridWarp warp = GridWarp::here();
    // The wait before has counted the step already.
    const u64 step = ptx::load<u64>(experts.state(__builtin_offsetof(ExpertsState, received))) - 1;
    if (experts.is_stopped()) {
        return;
    }
    const u32 choices = choices_bytes(group);
    // The rows of all ranks count as one sequence, so that all warps share them.
    u32 next = warp.number;
    for (u32 from = 0; from < experts.ranks; ++from) {
        const u32 rows = entry(call.routing.in_rows, from);
        u32 row = next;
        next = first_behind(next, rows, warp);
        if (row >= rows) {
            continue;
        }
        const u64 first = experts.window + experts.received(step, from) + group.header_bytes;
        for (; row < rows; row += warp.count) {
            const u32 to = output_row(experts, from, row);
            const u64 at = first + u64(row) * group.row_bytes;
            const u64 behind = at + group.data_bytes + group.scale_bytes;
            copy_vectors(call.output + u64(to) * group.data_bytes, at, group.data_bytes,
                         warp.team());
            if (group.scales != EXPERTS_NO_SCALES) {
                const u32 bytes = scales_bytes(group);
                copy(call.output_scales + u64(to) * bytes, at + group.data_bytes, bytes,
                     warp.team());
            }
            if (warp.lane == 0) {
                set_entry(call.routing.in_places, u64(from) * group.rows_max + row, to);
                if (call.output_sources != 0) {
                    *reinterpret_cast<ExpertsRow*>(call.output_sources +
                                                   u64(to) * sizeof(ExpertsRow)) =
                        *reinterpret_cast<const ExpertsRow*>(behind);
                }
            }
            if (experts.is_throughput() && warp.lane < group.top_k) {
                const u64 indices = behind + sizeof(ExpertsRow);
                const u64 place = u64(to) * group.top_k + warp.lane;
                if (call.output_indices != 0) {
                    const u32 local = entry(indices, warp.lane);
                    if ((call.flags & EXPERTS_WIDE_INDICES) != 0) {
                        ptx::store<u64>(call.output_indices + place * 8, u64(s64(s32(local))));
                    } else {
                        set_entry(call.output_indices, place, local);
                    }
                }
                if (call.output_weights != 0) {
                    set_entry(call.output_weights, place, entry(indices + choices, warp.lane));
                }
            }
        }
    }
}

}  // namespace ringdove
