// Where each token goes: experts_route, which comes before the send half of a dispatch.
#pragma once

#include "experts.cuh"

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

// The tokens that a warp checks at a time: a lane has one choice.
RINGDOVE_INLINE u32 checked_tokens(const ExpertsGroup& group) { return WARP_THREADS / group.top_k; }

// Checks the choices of some tokens, and keeps them for the combine; a warp calls. In throughput
// mode it counts them by expert: sums of numbers, which do not depend on who adds first.
RINGDOVE_INLINE void check_tokens(const Experts& experts, const Choices& choices, u32 first_token,
                                  u32 lane) {
    const ExpertsCall& call = experts.call;
    const ExpertsGroup& group = experts.group;
    const u32 top_k = group.top_k;
    const u32 choice = lane % top_k;
    const u32 token = first_token + lane / top_k;
    const u64 item = u64(token) * top_k + choice;
    const bool has_choice =
        lane < checked_tokens(group) * top_k && token < usable_tokens(call);
    const s64 index = has_choice ? choices(item) : -1;
    const bool is_expert = index >= 0 && index < s64(group.experts);
    const u32 expert = is_expert ? u32(index) : NO_ROW;
    // Lanes of the same token before this one.
    const u32 earlier = ((1u << choice) - 1) << (lane - choice);
    const bool is_repeated = (ptx::lanes_with(expert) & earlier) != 0 && is_expert;
    if (!has_choice) {
        return;
    }
    const float weight = call.weights != 0 ? ptx::load<float>(call.weights + item * 4) : 1.0f;
    const u64 place = u64(token) * 16 + choice;
    if (index < -1 || index >= s64(group.experts)) {
        note_fault(experts, place, ExpertsFaultCode::Index);
    } else if (is_repeated) {
        note_fault(experts, place, ExpertsFaultCode::Repeated);
    } else if (weight != weight) {
        note_fault(experts, place, ExpertsFaultCode::Weight);
    }
    set_entry(call.routing.indices, item, u32(s32(index)));
    ptx::store<float>(call.routing.weights + item * 4, weight);
    if (!is_expert) {
        set_entry(call.routing.places, item, NO_ROW);
        if (experts.has_message_places()) {
            set_entry(call.routing.message_places, item, NO_ROW);
        }
    } else if (experts.is_throughput()) {
        // Pairs with `take_count` in the last block, by `is_last_block` (R16).
        ptx::fetch_add_relaxed_gpu_u64(group.histogram + u64(expert) * 8, 1);
    }
}

// Choices that each lane looks at together.
constexpr u32 NUMBERED_TOGETHER = 4;

// Numbers the choices of one expert, in the order of their tokens; a warp calls. Gives how many
// there are.
RINGDOVE_INLINE u32 number_choices(const Experts& experts, const Choices& choices, u32 expert,
                                   u32 lane) {
    const u64 places = experts.call.routing.places;
    const u64 items = u64(usable_tokens(experts.call)) * experts.group.top_k;
    const u32 lanes_before = (1u << lane) - 1;
    u32 numbered = 0;
    for (u64 begin = 0; begin < items; begin += NUMBERED_TOGETHER * WARP_THREADS) {
        // All loads first: they do not wait for one another.
        s64 seen[NUMBERED_TOGETHER];
#pragma unroll
        for (u32 i = 0; i < NUMBERED_TOGETHER; ++i) {
            const u64 item = begin + i * WARP_THREADS + lane;
            seen[i] = item < items ? choices(item) : -1;
        }
#pragma unroll
        for (u32 i = 0; i < NUMBERED_TOGETHER; ++i) {
            const bool is_chosen = seen[i] == s64(expert);
            const u32 chosen = ptx::ballot(is_chosen);
            if (is_chosen) {
                set_entry(places, begin + i * WARP_THREADS + lane,
                          numbered + ptx::count_ones(chosen & lanes_before));
            }
            numbered += ptx::count_ones(chosen);
        }
    }
    return numbered;
}

// Numbers the tokens that chose one of the `count` experts from `first` on, in their order; a warp
// calls. A token's first such choice has its row, which the table `places` gets. Gives how many
// there are.
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
            } else {
                set_entry(places, row + k, NO_ROW);
            }
        }
        const u32 chosen = ptx::ballot(choice != NO_ROW);
        if (choice != NO_ROW) {
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

// How many chose an expert; the last block takes the number, once.
RINGDOVE_INLINE u32 take_count(const Experts& experts, u32 expert) {
    if (!experts.is_throughput()) {
        return entry(experts.call.routing.counts, expert);
    }
    const u64 counted = experts.group.histogram + u64(expert) * 8;
    const u32 count = u32(ptx::load<u64>(counted));
    ptx::store<u64>(counted, 0);
    return count;
}

// Where the rows of each rank begin; the last block calls.
RINGDOVE_INLINE void lay_out(const Experts& experts, bool is_faulty) {
    const ExpertsRouting& routing = experts.call.routing;
    const ExpertsGroup& group = experts.group;
    const u32 nodes = experts.is_relayed() ? experts.node_count() : 0;
    for (u32 expert = ptx::thread_index(); expert < group.experts; expert += ptx::thread_count()) {
        const u32 count = take_count(experts, expert);
        set_entry(routing.counts, expert, is_faulty ? 0 : count);
    }
    ptx::barrier();
    for (u32 to = ptx::thread_index(); to < experts.ranks + nodes; to += ptx::thread_count()) {
        const u32 rows = is_faulty ? 0 : entry(routing.counts, group.experts + to);
        u32 choices = 0;
        for (u32 local = 0; local < group.local_experts && to < experts.ranks; ++local) {
            const u32 expert = experts.first_expert(to) + local;
            set_entry(routing.bases, expert, choices);
            choices += entry(routing.counts, expert);
        }
        set_entry(routing.rows, to, rows);
        // Their number; the first of them takes its place below.
        set_entry(routing.home_bases, to, experts.is_throughput() ? rows : choices);
    }
    ptx::barrier();
    if (ptx::thread_index() == 0) {
        // The order in which rows come back: those of ranks that get a message of their own, then
        // those of other nodes. The rows of ranks there are among their node's.
        u32 homes = 0;
        u32 messages = 0;
        for (u32 to = 0; to < experts.ranks + nodes; ++to) {
            const u32 back = entry(routing.home_bases, to);
            set_entry(routing.home_bases, to, homes);
            set_entry(routing.message_bases, to, messages);
            const bool is_own = to < experts.ranks
                                    ? nodes == 0 || !experts.is_far(to)
                                    : to - experts.ranks != experts.node();
            homes += is_own ? back : 0;
            messages += is_own ? entry(routing.rows, to) : 0;
        }
    }
}

// One bucket: an expert, then a rank, then, where rows are relayed, a node. Gives its count.
RINGDOVE_INLINE u32 number_bucket(const Experts& experts, const Choices& choices, u32 bucket,
                                  u32 lane) {
    const ExpertsRouting& routing = experts.call.routing;
    const u32 local = experts.group.local_experts;
    if (bucket < experts.group.experts) {
        return number_choices(experts, choices, bucket, lane);
    }
    const u32 nth = bucket - experts.group.experts;
    const bool is_rank = nth < experts.ranks;
    const u32 count = is_rank ? local : experts.group.node_ranks * local;
    const u32 first = is_rank ? experts.first_expert(nth) : (nth - experts.ranks) * count;
    const bool is_own = is_rank && experts.is_throughput();
    const u64 places = is_own ? routing.places : routing.message_places;
    return number_tokens(experts, choices, places, first, count, lane);
}

// Where each token goes: one warp for each bucket, and for each few tokens that it checks. In
// throughput mode experts are no buckets: their choices are counted, and not numbered.
RINGDOVE_INLINE void experts_route(const ExpertsCall& call) {
    const Experts experts(call);
    const ExpertsGroup& group = experts.group;
    const GridWarp warp = GridWarp::here();
    const Choices choices = {call.indices, (call.flags & EXPERTS_WIDE_INDICES) != 0};
    const u32 tokens = usable_tokens(call);
    const u32 nodes = experts.is_relayed() ? experts.node_count() : 0;
    const u32 first_bucket = experts.is_throughput() ? group.experts : 0;
    const u32 buckets = group.experts + experts.ranks + nodes - first_bucket;
    const u32 together = checked_tokens(group);
    const u32 items = buckets + (tokens + together - 1) / together;
    for (u32 item = warp.number; item < items; item += warp.count) {
        if (item >= buckets) {
            check_tokens(experts, choices, (item - buckets) * together, warp.lane);
        } else {
            const u32 bucket = first_bucket + item;
            const u32 count = number_bucket(experts, choices, bucket, warp.lane);
            if (warp.lane == 0) {
                set_entry(call.routing.counts, bucket, count);
            }
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

}  // namespace ringdove
