// How the threads of a block wait for LL messages and reduce them (R13).
#pragma once

#include "block.cuh"

namespace ringdove {

class Collector : protected Block {
protected:
    RINGDOVE_INLINE explicit Collector(BlockState& shared) : Block(shared) {}

    // All threads: waits for messages, and reduces them with what is there. Each thread does all of
    // it for its own units, so it needs no barrier in between, and the output may be `a`. Without
    // an output it only waits.
    RINGDOVE_INLINE bool collect(const Work& work) {
        // What the loops read, read once: the assembly in them clobbers memory.
        const DataType type = DataType(state.arguments.data_type);
        const u32 ranks = state.communicator.rank_count;
        const Operands operands = work.operands;
        const u32 count = work.message_count;
        const u32 before = work.before;
        const u32 last = work.last_term;
        const u32 flag = work.flag;
        const Pass middle_pass = work.pass;
        const Pass last_pass = work.last_pass;
        const Team team = Team::here();
        const u64 stride = unit_stride(team);
#pragma unroll 1
        for (u64 i = unit_offset(team); i < operands.length; i += stride) {
            const u64 second = i + UNIT_ROW_BYTES;
            const bool is_pair = second < operands.length;
            ptx::Vector<u32> sum = {};
            u32 number = 0;
            LowLatencyPoll next = {work.message_slots[0] + 2 * i, flag, is_pair, {}};
            next.look();
#pragma unroll 1
            for (u32 term = 0; term <= last; ++term) {
                ptx::Vector<u32> value;
                if (term == before) {
                    value = vector_of(load_unit(operands.a, i, operands.length),
                                      load_unit(operands.a, second, operands.length));
                } else {
                    LowLatencyPoll poll = next;
                    number += 1;
                    // The next one's words travel while this one's are combined.
                    if (number < count) {
                        next.address = work.message_slots[number] + 2 * i;
                        next.look();
                    }
                    if (!poll.arrived() && !await_message(work, number - 1, poll)) {
                        return false;
                    }
                    value = poll.data();
                }
                if (term == 0) {
                    sum = value;
                } else {
                    combine(type, term == last ? last_pass : middle_pass, sum, value, ranks);
                }
            }
            if (operands.destination != 0) {
                store_unit(operands.destination, i, operands.length,
                           unit_of(sum.words[0], sum.words[1]));
                store_unit(operands.destination, second, operands.length,
                           unit_of(sum.words[2], sum.words[3]));
            }
        }
        return true;
    }

    // All threads: waits for the last words of each message, one thread for each, while the others
    // stand at the barrier that follows. Every word has to prove itself all the same, but mostly
    // all have come with the last, and few threads have polled. Not worth it for one warp. False,
    // for every thread alike: one of them has failed.
    RINGDOVE_INLINE bool await_messages(const Work& work) {
        if (ptx::thread_count() <= WARP_THREADS) {
            return true;
        }
        const u32 thread = ptx::thread_index();
        if (thread < work.message_count) {
            const u64 last = (work.operands.length - 1) / UNIT_BYTES * UNIT_BYTES;
            LowLatencyPoll poll = {work.message_slots[thread] + 2 * last, work.flag, false, {}};
            if (!poll() && !await_message(work, thread, poll)) {
                failed = STOPPED;
            }
        }
        return !any_failed();
    }

    // Any thread: waits for what it looks at of a message. False: the wait failed, and the record
    // says why.
    RINGDOVE_INLINE bool await_message(const Work& work, u32 number, LowLatencyPoll& poll) {
        u64 waited_ns = 0;
        const WaitEnd end = poll_until(state.communicator, poll, waited_ns);
        if (end == WaitEnd::Reached) {
            return true;
        }
        WaitSite where = work.site;
        where.port = state.port_numbers[work.first_port + number];
        where.peer = state.ports[work.first_port + number].peer;
        record_wait(state.communicator, where, end, poll.flag, poll.seen(), waited_ns);
        return false;
    }
};

}  // namespace ringdove
