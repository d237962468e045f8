// What the kernels of expert parallelism share: where messages and rows lie, and how they leave.
// They use the device handle and nothing below it. src/experts/mod.rs describes the whole; the
// layouts are those of kernels/src/experts.rs.
#pragma once

#include "arithmetic.cuh"
#include "copy.cuh"
#include "ringdove.cuh"

namespace ringdove {

// Threads of every launch.
constexpr u32 EXPERTS_THREADS = 256;
// The group's window.
constexpr Window EXPERTS_WINDOW = {0};
// An entry of a table where there is none.
constexpr u32 NO_ROW = 0xffffffffu;

// One entry of a table of 32-bit numbers.
RINGDOVE_INLINE u32 entry(u64 table, u64 index) { return ptx::load<u32>(table + index * 4); }
RINGDOVE_INLINE void set_entry(u64 table, u64 index, u32 value) {
    ptx::store<u32>(table + index * 4, value);
}

RINGDOVE_INLINE u32 round_up(u32 value, u32 unit) { return (value + unit - 1) / unit * unit; }

// This thread's warp among all of the grid.
struct GridWarp {
    u32 lane;
    u32 number;
    u32 count;

    static RINGDOVE_INLINE GridWarp here() {
        const u32 warps = ptx::thread_count() / WARP_THREADS;
        const u32 thread = ptx::thread_index();
        return {thread % WARP_THREADS, ptx::block_index() * warps + thread / WARP_THREADS,
                ptx::block_count() * warps};
    }

    // Copies by this warp alone.
    RINGDOVE_INLINE Team team() const { return {lane, WARP_THREADS}; }
};

// Rows of several ranks count as one sequence, of which each warp has every `warp.count`th: where
// each rank has fewer rows than there are warps, all warps have work all the same. Given this
// warp's next row and the rows of one rank, gives its next one of the rank that follows.
template <class Number>
RINGDOVE_INLINE Number first_behind(Number row, Number rows, const GridWarp& warp) {
    while (row < rows) {
        row += warp.count;
    }
    return row - rows;
}

// Does the calling block end last of the launch? All that the others did is then visible to all of
// its threads. Every thread of every block calls it, once.
RINGDOVE_INLINE bool is_last_block(u64 blocks_done) {
    ptx::barrier();
    u32 is_last = 0;
    if (ptx::thread_index() == 0) {
        // With the atomic: a release of what this block did, and in the last one an acquire of what
        // all did. Pairs with itself, in the other blocks (R16).
        ptx::fence_acquire_release_system();
        is_last = ptx::fetch_add_relaxed_gpu_u64(blocks_done, 1) + 1 == ptx::block_count();
        if (is_last != 0) {
            ptx::fence_acquire_release_system();
            ptx::store<u64>(blocks_done, 0);
        }
    }
    return ptx::barrier_or(is_last) != 0;
}

// One launch's view of its group.
struct Experts {
    const ExpertsCall& call;
    const ExpertsGroup& group;
    const Device device;
    const u32 rank;
    const u32 ranks;
    // This rank's part of the window.
    const u64 window;

    explicit RINGDOVE_INLINE Experts(const ExpertsCall& experts_call)
        : call(experts_call),
          group(*reinterpret_cast<const ExpertsGroup*>(experts_call.group)),
          device(group.handle),
          rank(device.rank()),
          ranks(device.rank_count()),
          window(reinterpret_cast<u64>(device.data<u8>(EXPERTS_WINDOW))) {}

    RINGDOVE_INLINE bool is_throughput() const { return group.mode == EXPERTS_THROUGHPUT; }
    // Have choices a place in a message that is not the one in their bucket?
    RINGDOVE_INLINE bool has_message_places() const { return !is_throughput() || is_relayed(); }
    // The rank that has an expert, or NO_RANK; and the first expert of a rank.
    RINGDOVE_INLINE u32 owner(u32 expert) const {
        return entry(group.owners, expert / group.local_experts);
    }
    RINGDOVE_INLINE u32 first_expert(u32 of_rank) const {
        return entry(group.first_experts, of_rank);
    }
    RINGDOVE_INLINE u64 state(u32 offset) const { return group.state + offset; }

    // A group that goes on gives up ranks that do not answer: they get nothing more, so that they
    // do the same, and what they send is not used.
    RINGDOVE_INLINE bool goes_on() const { return group.goes_on != 0; }
    RINGDOVE_INLINE bool is_given_up(u32 other) const {
        return goes_on() && entry(group.gone, other) != 0;
    }
    // Were ranks given up in an earlier step? Then no step follows in this group.
    RINGDOVE_INLINE bool is_over() const {
        return goes_on() &&
               ptx::load<u64>(state(__builtin_offsetof(ExpertsState, gone_count))) != 0;
    }
    // Does a launch end at once, because the communicator has failed?
    RINGDOVE_INLINE bool is_stopped() const { return !goes_on() && device.has_failed(); }
    // The lowest rank that was given up, as a fault of this rank; there is one.
    RINGDOVE_INLINE ExpertsFault gone_fault(u64 step) const {
        u32 lowest = 0;
        while (lowest + 1 < ranks && !is_given_up(lowest)) {
            ++lowest;
        }
        return {step, 0, s64(lowest), u32(ExpertsFaultCode::Gone), rank};
    }

    // Of this rank's routing: no token of it is sent where it has a fault.
    RINGDOVE_INLINE u32 fault_code() const {
        return ptx::load<u32>(call.routing.fault + __builtin_offsetof(ExpertsFault, code));
    }
    RINGDOVE_INLINE u64 token_count() const {
        return fault_code() != 0 ? 0 : ptx::load<u64>(call.routing.fault + sizeof(ExpertsFault));
    }

    // Tokens of a dispatch that is being sent.
    RINGDOVE_INLINE u64 sent_tokens() const { return is_over() ? 0 : token_count(); }

    // Does an engine take what this rank sends there?
    RINGDOVE_INLINE bool is_far(u32 to) const { return device.reached(EXPERTS_WINDOW, to) == 0; }
    // Are there such ranks? All threads of a block call it.
    RINGDOVE_INLINE bool has_far() const {
        bool has_any = false;
        for (u32 to = ptx::thread_index(); to < ranks; to += ptx::thread_count()) {
            has_any = has_any || is_far(to);
        }
        return ptx::barrier_or(has_any) != 0;
    }

    // Runs both parts of a send: `write(is_far)` by all threads, which writes this block's share of
    // the messages to far ranks or to the others, and then, in the block that ends last,
    // `announce(to)` by one thread for each of these ranks. Engines take the messages to far ranks
    // while the others are stored. Is this the block that has ended all?
    template <typename Write, typename Announce>
    RINGDOVE_INLINE bool send_far_first(bool any_far, Write write, Announce announce_to) const {
        bool is_last = false;
        for (u32 turn = any_far ? 0 : 1; turn < 2; ++turn) {
            const bool far = turn == 0;
            write(far);
            is_last = is_last_block(
                state(far ? u32(__builtin_offsetof(ExpertsState, blocks_done_far))
                          : u32(__builtin_offsetof(ExpertsState, blocks_done))));
            // From the next rank on, so that not all ranks send to the same one first.
            for (u32 nth = ptx::thread_index(); nth < ranks && is_last;
                 nth += ptx::thread_count()) {
                const u32 to = (rank + nth) % ranks;
                if (is_far(to) == far && sends_to(to) && !is_given_up(to)) {
                    announce_to(to);
                }
            }
        }
        return is_last;
    }

    // Throughput mode on several nodes: a row goes once to each node, to the rank there that has
    // this rank's place in its node, which stores it onwards. experts_relay.cuh has that half.
    RINGDOVE_INLINE bool is_relayed() const { return group.node_ranks != 0; }
    RINGDOVE_INLINE u32 node_count() const { return ranks / group.node_ranks; }
    RINGDOVE_INLINE u32 node() const { return rank / group.node_ranks; }
    RINGDOVE_INLINE u32 place_in_node() const { return rank % group.node_ranks; }
    // The rank of a node that exchanges messages with this one.
    RINGDOVE_INLINE u32 relay(u32 of_node) const {
        return of_node * group.node_ranks + place_in_node();
    }
    // Does this rank have a message of its own for `to`?
    RINGDOVE_INLINE bool sends_to(u32 to) const {
        return !is_far(to) || !is_relayed() || to % group.node_ranks == place_in_node();
    }

    // Offset in a relay's window of the rows that a rank of `from_node` sends through it.
    RINGDOVE_INLINE u64 relayed(u64 step, u32 from_node) const {
        return group.relayed + ((step & 1) * node_count() + from_node) * group.relayed_bytes;
    }

    // Offset in a relay's window of the rows of a combine that it adds.
    RINGDOVE_INLINE u64 gathered(u64 step) const {
        return group.gathered + (step & 1) * group.gathered_bytes;
    }

    // The row among these that a rank of this node, by its place in it, returns as the `row`th for
    // a rank of another node.
    RINGDOVE_INLINE u64 gathered_row(u32 place, u32 to_node, u32 row) const {
        return (u64(place) * node_count() + to_node) * group.rows_max + row;
    }

    // Offset in the receiver's window of what `from` sends in a dispatch.
    RINGDOVE_INLINE u64 received(u64 step, u32 from) const {
        return group.received + ((step & 1) * ranks + from) * group.message_bytes;
    }

    // Offset in this rank's window of a message that an engine takes to `to`.
    RINGDOVE_INLINE u64 outgoing(u32 to) const {
        if (is_relayed()) {
            return group.outgoing + u64(to / group.node_ranks) * group.relayed_bytes;
        }
        return group.outgoing + u64(to) * group.header_bytes +
               u64(entry(call.routing.message_bases, to)) * group.row_bytes;
    }

    // Where this rank writes its message to `to`.
    RINGDOVE_INLINE u64 message_to(u64 step, u32 to) const {
        const u64 there = device.reached(EXPERTS_WINDOW, to);
        return there != 0 ? there + received(step, rank) : window + outgoing(to);
    }

    // Offset in the receiver's window of its rows of a combine.
    RINGDOVE_INLINE u64 returned(u64 step) const {
        return group.returned + (step & 1) * group.returned_bytes;
    }

    // Offset in this rank's window of rows that an engine takes back to `to`.
    RINGDOVE_INLINE u64 returning(u32 to) const {
        const u64 nth = is_relayed() ? to / group.node_ranks : to;
        return group.returning + nth * group.return_rows_max * group.return_row_bytes;
    }

    // Offset of the word that `from` raises in another rank's window.
    RINGDOVE_INLINE u64 word(bool is_combine, u32 from) const {
        return group.arrivals + (u64(is_combine) * ranks + from) * EXPERTS_WORD_STRIDE;
    }

    // Ends this rank's part of a step towards `to`: an engine takes `bytes` from one offset of the
    // window to another; where stores have put them there, a word says so. One thread for each rank
    // calls it, in the last block.
    RINGDOVE_INLINE void announce(bool is_combine, u64 step, u32 to, u64 to_offset,
                                  u64 from_offset, u64 bytes) const {
        const u64 there = device.reached(EXPERTS_WINDOW, to);
        if (there != 0) {
            device.store_word(there + word(is_combine, rank), step + 1);
            return;
        }
        OpenPort port(device.communicator(), ports(is_combine, to).send, step);
        const u32 route =
            port.route_of_pair(device.first_route(EXPERTS_WINDOW, EXPERTS_WINDOW));
        // A failure is in the communicator's record.
        port.put(route, from_offset, to_offset, bytes, flags::ARRIVAL | flags::COMPLETION);
    }

    // Waits for the word of `from`, in a group that goes on or not.
    RINGDOVE_INLINE bool wait_for_word(bool is_combine, u64 step, u32 from) const {
        const u64 at = window + word(is_combine, from);
        return goes_on() ? device.wait_for_word_or_go_on(at, step + 1, group.grace_ns)
                         : device.wait_for_word(at, step + 1, from, step);
    }

    // Waits until what `from` has announced is here, and what this rank sent it has been read from
    // the window.
    RINGDOVE_INLINE bool wait_for(bool is_combine, u64 step, u32 from) const {
        if (device.reached(EXPERTS_WINDOW, from) != 0) {
            return wait_for_word(is_combine, step, from);
        }
        const LanePorts lane = ports(is_combine, from);
        OpenPort receive(device.communicator(), lane.receive, step);
        OpenPort send(device.communicator(), lane.send, step);
        const u64 grace_ns = group.grace_ns;
        const bool is_well =
            goes_on()
                ? receive.wait_or_go_on(1, grace_ns) && send.wait_completion_or_go_on(1, grace_ns)
                : receive.wait(1) && send.wait_completion(1);
        if (!is_well) {
            return false;
        }
        receive.advance(1, 0);
        send.advance(0, 1);
        receive.close();
        send.close();
        return true;
    }

    // As `wait_for`; a group that goes on gives up who does not answer, and all is well.
    RINGDOVE_INLINE bool wait_or_give_up(bool is_combine, u64 step, u32 from) const {
        if (!goes_on()) {
            return wait_for(is_combine, step, from);
        }
        if (!is_given_up(from) && !wait_for(is_combine, step, from)) {
            set_entry(group.gone, from, 1);
        }
        return true;
    }

    // Waits for all ranks that `wants(from)`; all threads of the only block call it.
    template <typename Wants>
    RINGDOVE_INLINE bool wait_for_all(bool is_combine, u64 step, Wants wants) const {
        bool is_well = !is_stopped();
        for (u32 from = ptx::thread_index(); from < ranks && is_well;
             from += ptx::thread_count()) {
            is_well = !wants(from) || wait_or_give_up(is_combine, step, from);
        }
        const bool all_well = ptx::barrier_or(!is_well) == 0;
        if (goes_on()) {
            if (ptx::thread_index() == 0) {
                u64 count = 0;
                for (u32 other = 0; other < ranks; ++other) {
                    count += entry(group.gone, other);
                }
                ptx::store<u64>(state(__builtin_offsetof(ExpertsState, gone_count)), count);
            }
            // All threads of the block may ask `is_over` next.
            ptx::barrier();
        }
        return all_well;
    }

    // Waits for the words of all ranks: where rows are relayed, also of those of other nodes, whose
    // words their relays store. All threads of the only block call it.
    RINGDOVE_INLINE bool wait_for_words(u64 step) const {
        bool is_well = !is_stopped();
        for (u32 from = ptx::thread_index(); from < ranks && is_well;
             from += ptx::thread_count()) {
            is_well = wait_for_word(false, step, from);
        }
        return ptx::barrier_or(!is_well) == 0;
    }

private:
    RINGDOVE_INLINE LanePorts ports(bool is_combine, u32 peer) const {
        return device.ports(peer, group.lane + u32(is_combine));
    }
};

}  // namespace ringdove
