// Dispatch: the messages, and where their rows lie in the output. experts_route.cuh says before
// where each token goes.
#pragma once

#include "experts_fp8.cuh"
#include "experts_route.cuh"

namespace ringdove {

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

// What one lane knows of one choice of a token.
struct SentChoice {
    // The rank that gets a message with it; of rows that are relayed, as a number behind those of
    // all ranks, the node. NO_RANK: none.
    u32 destination;
    // The expert's number among those of the destination, and the choice's place among those of
    // its bucket.
    u32 local;
    u32 place;
    u32 weight;
    // Where its row lies in the message, or 0: another choice of the token has the row, or the
    // message is of another turn.
    u64 at;
};

// The lane's choice of a token. It keeps where its result comes back, if `keeps_home`.
RINGDOVE_INLINE SentChoice sent_choice(const Experts& experts, u64 step, u32 token, bool is_far,
                                       bool keeps_home, u32 lane) {
    const ExpertsRouting& routing = experts.call.routing;
    const ExpertsGroup& group = experts.group;
    SentChoice choice = {NO_RANK, 0, NO_ROW, 0, 0};
    if (lane >= group.top_k) {
        return choice;
    }
    const u64 item = u64(token) * group.top_k + lane;
    const u32 expert = entry(routing.indices, item);
    const u32 to = expert == NO_ROW ? NO_RANK : experts.owner(expert);
    if (to == NO_RANK) {
        if (keeps_home) {
            set_entry(routing.homes, item, NO_ROW);
        }
        return choice;
    }
    choice.destination = to;
    if (experts.is_far(to) != is_far) {
        return choice;
    }
    const bool is_relayed = is_far && experts.is_relayed();
    u32 first_there = experts.first_expert(to);
    if (is_relayed) {
        const u32 node = to / group.node_ranks;
        choice.destination = experts.ranks + node;
        first_there = node * group.node_ranks * group.local_experts;
    }
    choice.local = expert - first_there;
    choice.place = entry(routing.places, item);
    choice.weight = entry(routing.weights, item);
    const bool is_shared = is_relayed || !experts.is_throughput();
    const u32 row = is_shared ? entry(routing.message_places, item) : choice.place;
    if (keeps_home) {
        const u32 nth =
            experts.is_throughput() ? row : entry(routing.bases, expert) + choice.place;
        const u32 first = entry(routing.home_bases, choice.destination);
        set_entry(routing.homes, item, nth == NO_ROW ? NO_ROW : first + nth);
    }
    if (row != NO_ROW) {
        choice.at = experts.message_to(step, to) +
                    (is_relayed ? group.relayed_header_bytes + u64(row) * group.relayed_row_bytes
                                : group.header_bytes + u64(row) * group.row_bytes);
    }
    return choice;
}

// The rows of one token; a warp calls. Where there are few tokens, `shares` warps have every
// `shares`th of its rows.
RINGDOVE_INLINE void send_token(const Experts& experts, u64 step, u32 token, u32 share, u32 shares,
                                bool is_far, const GridWarp& warp) {
    const ExpertsGroup& group = experts.group;
    const u32 top_k = group.top_k;
    const u32 choices = group.choices_bytes;
    const u32 described = group.data_bytes + group.scale_bytes;
    const SentChoice mine =
        sent_choice(experts, step, token, is_far, share == 0, warp.lane);
    const bool has_places = !experts.is_throughput() || (is_far && experts.is_relayed());
    u32 left = ptx::ballot(mine.at != 0);
    for (u32 skipped = share; left != 0; left &= left - 1) {
        if (skipped != 0) {
            --skipped;
            continue;
        }
        skipped = shares - 1;
        const u32 choice = ptx::lowest_one(left);
        const u64 at = ptx::shuffle(mine.at, choice);
        const bool is_there = ptx::shuffle(mine.destination, choice) == mine.destination;
        const u32 weight = ptx::shuffle(mine.weight, choice);
        write_row(experts, at, token, warp);
        const u64 behind = at + described;
        if (warp.lane == 0) {
            ptx::store_vector<0>(behind, ptx::Vector<u32>{{token, choice, weight, 0}});
        }
        if (warp.lane < top_k) {
            const u64 numbers = behind + sizeof(ExpertsRow) + warp.lane * 4;
            ptx::store<u32>(numbers, is_there ? mine.local : NO_ROW);
            ptx::store<u32>(numbers + choices, is_there ? mine.weight : 0);
            if (has_places) {
                ptx::store<u32>(numbers + 2 * choices, mine.place);
            }
        }
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
    const u64 tokens = experts.sent_tokens();
    // Where warps are left over, several share the rows of one token.
    const u32 warps = tokens == 0 ? 1 : warp.count / u32(tokens);
    const u32 shares = warps < 1 ? 1 : warps < group.top_k ? warps : group.top_k;
    const auto write = [&](bool is_far) RINGDOVE_INLINE_LAMBDA {
        for (u64 item = warp.number; item < tokens * shares; item += warp.count) {
            const u32 token = u32(item) / shares;
            send_token(experts, step, token, u32(item) % shares, shares, is_far, warp);
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
        set_entry(routing.in_returns, from, 0);
        set_entry(routing.in_homes, from, 0);
        return;
    }
    const u64 message = experts.window + experts.received(step, from);
    ExpertsHeader* header = reinterpret_cast<ExpertsHeader*>(message);
    const u64 table = u64(from) * group.local_experts;
    const u32 rows = header->rows;
    u64 returns = 0;
    u32 largest = 0;
    for (u32 local = 0; local < group.local_experts; ++local) {
        set_entry(routing.in_bases, table + local, u32(returns));
        const u32 count = entry(message + sizeof(ExpertsHeader), local);
        returns += count;
        largest = count > largest ? count : largest;
    }
    // A row for each token that has a choice here.
    bool is_true = header->step == step && rows <= group.rows_max && largest <= rows;
    if (experts.is_throughput()) {
        returns = rows;
    }
    is_true = is_true && rows <= returns && returns <= group.return_rows_max &&
              u64(header->home_base) + returns <= group.home_rows_max;
    if (!is_true) {
        header->fault = {step, 0, s64(rows), u32(ExpertsFaultCode::Message), from};
    }
    const bool is_empty = header->fault.code != 0;
    set_entry(routing.in_rows, from, is_empty ? 0 : rows);
    set_entry(routing.in_returns, from, is_empty ? 0 : u32(returns));
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

// What rows of one message have in common.
struct ReceivedMessage {
    u32 from;
    // Counts of its rows, by local expert.
    u64 counts;
    u64 first_row;
    // Where its rows go back in `in_places`.
    u64 returns;
};

// Data and scales of a row, into row `to` of the output; a warp calls.
RINGDOVE_INLINE void take_row(const Experts& experts, u64 at, u32 to, const GridWarp& warp) {
    const ExpertsCall& call = experts.call;
    const ExpertsGroup& group = experts.group;
    copy_vectors(call.output + u64(to) * group.data_bytes, at, group.data_bytes, warp.team());
    if (group.scales != EXPERTS_NO_SCALES) {
        const u32 bytes = scales_bytes(group);
        copy(call.output_scales + u64(to) * bytes, at + group.data_bytes, bytes, warp.team());
    }
}

// What a row of the output stands for, where the caller asks.
RINGDOVE_INLINE void tell_source(const ExpertsCall& call, u32 to, u32 token, u32 choice,
                                 u32 weight) {
    if (call.output_sources != 0) {
        ptx::store_vector<0>(call.output_sources + u64(to) * sizeof(ExpertsRow),
                             ptx::Vector<u32>{{token, choice, weight, 0}});
    }
}

// Low latency: a row of a message for each of its choices here; a warp calls.
RINGDOVE_INLINE void receive_choices(const Experts& experts, const ReceivedMessage& message,
                                     u64 at, const GridWarp& warp) {
    const ExpertsCall& call = experts.call;
    const ExpertsGroup& group = experts.group;
    const u64 behind = at + group.data_bytes + group.scale_bytes;
    u32 to = 0;
    bool is_here = false;
    if (warp.lane < group.top_k) {
        const u64 numbers = behind + sizeof(ExpertsRow) + warp.lane * 4;
        const u32 local = ptx::load<u32>(numbers);
        const u32 place = ptx::load<u32>(numbers + 2 * group.choices_bytes);
        // Numbers of a peer: checked before they lead anywhere (R8).
        is_here = local < group.local_experts && place < entry(message.counts, local);
        if (is_here) {
            const u64 item = u64(message.from) * group.local_experts + local;
            to = entry(call.routing.in_starts, item) + place;
            set_entry(message.returns, entry(call.routing.in_bases, item) + place, to);
            tell_source(call, to, ptx::load<u32>(behind), warp.lane,
                        ptx::load<u32>(numbers + group.choices_bytes));
        }
    }
    for (u32 left = ptx::ballot(is_here); left != 0; left &= left - 1) {
        take_row(experts, at, ptx::shuffle(to, ptx::lowest_one(left)), warp);
    }
}

// Throughput: a row of a message as row `to` of the output; a warp calls.
RINGDOVE_INLINE void receive_token(const Experts& experts, const ReceivedMessage& message, u64 at,
                                   u32 row, const GridWarp& warp) {
    const ExpertsCall& call = experts.call;
    const ExpertsGroup& group = experts.group;
    const u64 behind = at + group.data_bytes + group.scale_bytes;
    const u32 choices = group.choices_bytes;
    const u32 top_k = group.top_k;
    const u32 to = entry(call.routing.in_starts, message.from) + row;
    take_row(experts, at, to, warp);
    if (warp.lane == 0) {
        set_entry(message.returns, row, to);
        tell_source(call, to, ptx::load<u32>(behind), ptx::load<u32>(behind + 4),
                    ptx::load<u32>(behind + 8));
    }
    if (warp.lane >= top_k) {
        return;
    }
    const u64 numbers = behind + sizeof(ExpertsRow) + warp.lane * 4;
    const u64 place = u64(to) * top_k + warp.lane;
    if (call.output_indices != 0) {
        const u32 local = ptx::load<u32>(numbers);
        if ((call.flags & EXPERTS_WIDE_INDICES) != 0) {
            ptx::store<u64>(call.output_indices + place * 8, u64(s64(s32(local))));
        } else {
            set_entry(call.output_indices, place, local);
        }
    }
    if (call.output_weights != 0) {
        set_entry(call.output_weights, place, ptx::load<u32>(numbers + choices));
    }
}

// Moves the rows of all messages into the output: by source rank, then by token.
RINGDOVE_INLINE void experts_receive(const ExpertsCall& call) {
    const Experts experts(call);
    const ExpertsGroup& group = experts.group;
    const GridWarp warp = GridWarp::here();
    // The wait before has counted the step already.
    const u64 step = ptx::load<u64>(experts.state(__builtin_offsetof(ExpertsState, received))) - 1;
    // All threads decide alike: lanes of a warp ask one another where rows go.
    if (ptx::barrier_or(experts.is_stopped()) != 0) {
        return;
    }
    const u32 row_bytes = group.row_bytes;
    const bool is_throughput = experts.is_throughput();
    // The rows of all ranks count as one sequence, so that all warps share them.
    u32 next = warp.number;
    for (u32 from = 0; from < experts.ranks; ++from) {
        const u32 rows = entry(call.routing.in_rows, from);
        u32 row = next;
        next = first_behind(next, rows, warp);
        if (row >= rows) {
            continue;
        }
        const u64 first = experts.window + experts.received(step, from);
        const ReceivedMessage message = {
            from, first + sizeof(ExpertsHeader), first + group.header_bytes,
            call.routing.in_places + u64(from) * group.return_rows_max * 4};
        for (; row < rows; row += warp.count) {
            const u64 at = message.first_row + u64(row) * row_bytes;
            if (is_throughput) {
                receive_token(experts, message, at, row, warp);
            } else {
                receive_choices(experts, message, at, warp);
            }
        }
    }
}

}  // namespace ringdove
