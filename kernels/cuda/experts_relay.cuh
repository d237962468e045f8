// Relays: throughput mode on several nodes. A token crosses to each other node once, to the rank
// there that has its sender's place in the node. That rank, the relay, stores the row into the
// messages of all chosen ranks of its node. In a combine they store their results at the relay,
// which adds them, and the sum crosses back.
//
// Reuse of what a relay holds (R16, 4): a rank sends step `s` to a relay after it has received step
// `s - 1` of it, which the relay sent after it had passed on all of step `s - 2`. A relay passes
// step `s` on to a rank of its node after that rank's own message of step `s - 1` has come, which
// was sent after the rank had read step `s - 2`. The same holds of combines, in the other
// direction.
#pragma once

#include "experts_combine.cuh"
#include "experts_dispatch.cuh"

namespace ringdove {

// Is `from` the rank of another node that exchanges messages with this one?
RINGDOVE_INLINE bool is_other_relay(const Experts& experts, u32 from) {
    return experts.is_far(from) && experts.sends_to(from);
}

// The message that a rank of node `from` sends through this rank.
RINGDOVE_INLINE u64 relayed_message(const Experts& experts, u64 step, u32 from) {
    return experts.window + experts.relayed(step, from);
}

// Where that message says how many rows it has for each rank of this node.
RINGDOVE_INLINE u64 rows_of_ranks(const Experts& experts, u64 message) {
    return message + sizeof(ExpertsHeader) +
           u64(experts.group.node_ranks) * experts.group.local_experts * 4;
}

// Takes the numbers of the message from `node`. Those that cannot be true become no rows and a
// fault; they lead nowhere (R8). One thread calls.
RINGDOVE_INLINE void take_relayed_counts(const Experts& experts, u64 step, u32 node) {
    const ExpertsGroup& group = experts.group;
    const ExpertsRouting& routing = experts.call.routing;
    const u64 message = relayed_message(experts, step, node);
    ExpertsHeader* header = reinterpret_cast<ExpertsHeader*>(message);
    bool is_true = header->step == step && header->rows <= group.rows_max &&
                   u64(header->home_base) + header->rows <= group.home_rows_max;
    for (u32 place = 0; place < group.node_ranks; ++place) {
        const u32 rows = entry(rows_of_ranks(experts, message), place);
        is_true = is_true && (rows <= header->rows || header->fault.code != 0);
    }
    if (!is_true) {
        header->fault = {step, 0, s64(header->rows), u32(ExpertsFaultCode::Message),
                         experts.relay(node)};
    }
    const bool is_empty = header->fault.code != 0;
    set_entry(routing.relay_rows, node, is_empty ? 0 : header->rows);
    set_entry(routing.relay_homes, node, is_empty ? 0 : header->home_base);
}

// Waits for the messages that this rank passes on. One block.
RINGDOVE_INLINE void experts_await_relayed(const ExpertsCall& call) {
    const Experts experts(call);
    const u64 received = experts.state(__builtin_offsetof(ExpertsState, received));
    const u64 step = ptx::load<u64>(received);
    const auto wants = [&](u32 from) RINGDOVE_INLINE_LAMBDA {
        return is_other_relay(experts, from);
    };
    if (!experts.wait_for_all(false, step, wants)) {
        return;
    }
    for (u32 node = ptx::thread_index(); node < experts.node_count();
         node += ptx::thread_count()) {
        if (node == experts.node()) {
            set_entry(call.routing.relay_rows, node, 0);
        } else {
            take_relayed_counts(experts, step, node);
        }
    }
}

// The head of the message from the relay's partner in `node` to one rank of this node; a warp
// calls.
RINGDOVE_INLINE void pass_header(const Experts& experts, u64 step, u32 node, u32 place, u32 lane) {
    const u32 local_experts = experts.group.local_experts;
    const u64 message = relayed_message(experts, step, node);
    const ExpertsHeader* told = reinterpret_cast<const ExpertsHeader*>(message);
    const u32 to = experts.node() * experts.group.node_ranks + place;
    const u64 at = experts.device.reached(EXPERTS_WINDOW, to) +
                   experts.received(step, experts.relay(node));
    const bool is_empty = told->fault.code != 0;
    const u64 counts = message + sizeof(ExpertsHeader) + u64(place) * local_experts * 4;
    for (u32 local = lane; local < local_experts; local += WARP_THREADS) {
        set_entry(at + sizeof(ExpertsHeader), local, is_empty ? 0 : entry(counts, local));
    }
    if (lane == 0) {
        ExpertsHeader header = {};
        header.step = step;
        header.fault = told->fault;
        header.rows = is_empty ? 0 : entry(rows_of_ranks(experts, message), place);
        *reinterpret_cast<ExpertsHeader*>(at) = header;
    }
}

// One row for one rank of this node, of which the row's choice `choice` is the first; a warp calls.
RINGDOVE_INLINE void pass_row(const Experts& experts, u64 from, u64 to, u32 choice, u32 place,
                              const GridWarp& warp) {
    const ExpertsGroup& group = experts.group;
    const u32 bytes = group.data_bytes + group.scale_bytes;
    copy_vectors(to, from, bytes, warp.team());
    const u64 behind = from + bytes + sizeof(ExpertsRow);
    const u64 there = to + bytes + sizeof(ExpertsRow);
    const u64 weights = group.choices_bytes;
    if (warp.lane == 0) {
        const u32 token = reinterpret_cast<const ExpertsRow*>(from + bytes)->token;
        const ExpertsRow row = {token, choice, entry(behind + weights, choice), 0};
        *reinterpret_cast<ExpertsRow*>(to + bytes) = row;
    }
    if (warp.lane < group.top_k) {
        const u32 expert = entry(behind, warp.lane);
        const bool is_there = expert != NO_ROW && expert / group.local_experts == place;
        set_entry(there, warp.lane, is_there ? expert % group.local_experts : NO_ROW);
        set_entry(there + weights, warp.lane, is_there ? entry(behind + weights, warp.lane) : 0);
    }
}

// One row for all ranks of this node that it names; a warp calls.
RINGDOVE_INLINE void relay_row(const Experts& experts, u64 step, u32 node, u32 row,
                               const GridWarp& warp) {
    const ExpertsGroup& group = experts.group;
    const u64 message = relayed_message(experts, step, node);
    const u64 from = message + group.relayed_header_bytes + u64(row) * group.relayed_row_bytes;
    const u64 indices = from + group.data_bytes + group.scale_bytes + sizeof(ExpertsRow);
    const u64 places = indices + 2 * group.choices_bytes;
    const u64 kept = (u64(node) * group.rows_max + row) * group.top_k;
    for (u32 choice = 0; choice < group.top_k; ++choice) {
        const u32 expert = entry(indices, choice);
        const u32 row_there = entry(places, choice);
        const u32 place = expert / group.local_experts;
        // Numbers of a peer: checked before they lead anywhere (R8).
        const bool is_passed =
            expert != NO_ROW && place < group.node_ranks && row_there < group.rows_max;
        if (is_passed) {
            const u32 rank = experts.node() * group.node_ranks + place;
            const u64 to = experts.device.reached(EXPERTS_WINDOW, rank) +
                           experts.received(step, experts.relay(node)) + group.header_bytes +
                           u64(row_there) * group.row_bytes;
            pass_row(experts, from, to, choice, place, warp);
        }
        if (warp.lane == 0) {
            const u64 gathered = experts.gathered_row(place, node, row_there);
            set_entry(experts.call.routing.relay_choices, kept + choice,
                      is_passed ? u32(gathered) : NO_ROW);
        }
    }
}

// Passes all rows on to the ranks of this node.
RINGDOVE_INLINE void experts_relay(const ExpertsCall& call) {
    const Experts experts(call);
    const ExpertsGroup& group = experts.group;
    if (ptx::barrier_or(experts.is_stopped()) != 0) {
        return;
    }
    const GridWarp warp = GridWarp::here();
    const u64 step = ptx::load<u64>(experts.state(__builtin_offsetof(ExpertsState, received)));
    const u32 nodes = experts.node_count();
    // The rows of all nodes count as one sequence, so that all warps share them.
    u32 next = warp.number;
    for (u32 node = 0; node < nodes; ++node) {
        const u32 rows = entry(call.routing.relay_rows, node);
        for (u32 row = next; row < rows; row += warp.count) {
            relay_row(experts, step, node, row, warp);
        }
        next = first_behind(next, rows, warp);
    }
    for (u32 nth = warp.number; nth < nodes * group.node_ranks; nth += warp.count) {
        if (nth / group.node_ranks != experts.node()) {
            pass_header(experts, step, nth / group.node_ranks, nth % group.node_ranks, warp.lane);
        }
    }
    if (!is_last_block(experts.state(__builtin_offsetof(ExpertsState, blocks_done)))) {
        return;
    }
    for (u32 nth = ptx::thread_index(); nth < nodes * group.node_ranks;
         nth += ptx::thread_count()) {
        const u32 node = nth / group.node_ranks;
        if (node != experts.node()) {
            // The word of the rank that the rows are from, which this rank alone writes.
            const u32 to = experts.node() * group.node_ranks + nth % group.node_ranks;
            const u64 at = experts.device.reached(EXPERTS_WINDOW, to) +
                           experts.word(false, experts.relay(node));
            experts.device.store_word(at, step + 1);
        }
    }
}

// Waits until the ranks of this node have returned their rows, also those that this rank adds. One
// block.
RINGDOVE_INLINE void experts_await_gathered(const ExpertsCall& call) {
    const Experts experts(call);
    const u64 step =
        ptx::load<u64>(experts.state(__builtin_offsetof(ExpertsState, returns_received)));
    const auto wants = [&](u32 from) RINGDOVE_INLINE_LAMBDA { return !experts.is_far(from); };
    experts.wait_for_all(true, step, wants);
}

// Adds the rows that this rank has passed on, and sends the sums back.
RINGDOVE_INLINE void experts_gather(const ExpertsCall& call) {
    const Experts experts(call);
    const ExpertsGroup& group = experts.group;
    if (ptx::barrier_or(experts.is_stopped()) != 0) {
        return;
    }
    const GridWarp warp = GridWarp::here();
    const u64 step =
        ptx::load<u64>(experts.state(__builtin_offsetof(ExpertsState, returns_received)));
    const u64 rows = experts.window + experts.gathered(step);
    const u32 parts = (group.return_data_bytes + COMBINE_BYTES - 1) / COMBINE_BYTES;
    // The parts of all nodes' rows count as one sequence, so that all warps share them.
    PartOfRow it(warp, parts);
    for (u32 node = 0; node < experts.node_count(); ++node) {
        const u64 to = experts.window + experts.returning(experts.relay(node));
        const u32 count = entry(call.routing.relay_rows, node);
        for (; it.row < count; it.next()) {
            const u64 begin = it.begin();
            const u64 kept = (u64(node) * group.rows_max + it.row) * group.top_k;
            const Terms terms = Terms::of(call.routing.relay_choices + kept * 4, 0, rows,
                                          group.top_k, warp.lane);
            const u64 at = to + it.row * group.return_row_bytes;
            add_parts(group, terms, at, begin, begin + COMBINE_BYTES, warp.lane);
            if (begin == 0) {
                add_weights(group, terms, at + group.return_data_bytes, warp.lane);
            }
        }
        it.row -= count;
    }
    if (!is_last_block(experts.state(__builtin_offsetof(ExpertsState, blocks_done)))) {
        return;
    }
    for (u32 node = ptx::thread_index(); node < experts.node_count();
         node += ptx::thread_count()) {
        if (node == experts.node()) {
            continue;
        }
        const u32 to = experts.relay(node);
        const u64 bytes = u64(entry(call.routing.relay_rows, node)) * group.return_row_bytes;
        const u64 home = u64(entry(call.routing.relay_homes, node)) * group.return_row_bytes;
        experts.announce(true, step, to, experts.returned(step) + home, experts.returning(to),
                         bytes);
    }
}

}  // namespace ringdove
