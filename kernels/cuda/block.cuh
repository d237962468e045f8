// A block of the executor: what it caches in shared memory, what thread 0 tells the others, and how
// the block loads its program. executor.cuh runs the ops.
#pragma once

#include "fused.cuh"
#include "low_latency.cuh"

namespace ringdove {

// Where thread 0 stands in the block's program. Not in registers, which passes need.
struct Place {
    u32 segment;
    u32 round;
    // Bytes that buffer offsets are moved by in this round.
    u64 shift;
    // Addresses of the segment's first op, and behind its last.
    u64 ops;
    u64 ops_end;
};

// Why thread 0 refuses the plan, and where it stood. Kept until the block ends, so that the code
// which writes the record exists once.
struct Refusal {
    PlanFault fault;
    u32 segment;
    u32 op;
    u32 round;
    u64 limit;
    u64 seen;
};

// What all threads do after a barrier.
enum class Task : u32 {
    // Nothing: thread 0 needs the barrier, to be sure of their data.
    Settle,
    // One pass over memory: one op.
    Move,
    // The same: several ops.
    Fused,
    // Write an LL message.
    Pack,
    // Wait for LL messages, and reduce them.
    Collect,
    // Store the positions, and end.
    Finish,
};

// What thread 0 posts for all threads before a barrier. It goes on meanwhile, so whatever may
// change is said here.
struct Work {
    // `Task::Pack` reads `a`; `Task::Collect` reads `a` too, if that is a term. No destination: 0.
    Operands operands;
    // Of `Task::Move`; of `Task::Collect`, for all terms but the last.
    Pass pass;
    Task task;
    // Threads from this one on have no part in it.
    u32 threads;
    // The op behind it needs the data: all threads meet at a barrier when they have done it.
    bool settles;

    // What follows belongs to `Task::Pack` and `Task::Collect`.

    u32 flag;
    // Of `Task::Pack`: how many slots the one message is written into.
    u32 message_count;
    u64 message_slots[MESSAGES_MAX];
    // Bytes of data that a packed message carries.
    u64 packed_bytes;
    // The rest to `Task::Collect` alone: how many messages come before `a` (more than there are, if
    // `a` is no term), the number of the last term, and whose the messages are.
    u32 before;
    u32 last_term;
    u32 first_port;
    Pass last_pass;
    WaitSite site;

    // Of `Task::Move`: several ops in one pass, if there are any sources.
    Fused fused;
};

// What a block keeps in shared memory: less than 4 KiB, so that the executor fits beside a user's
// kernel.
struct BlockState {
    DeviceCommunicator communicator;
    // `LaunchArguments::sequence`.
    u64 sequence;
    // The call that runs, and its number.
    CallArguments arguments;
    u32 call;
    Port ports[BLOCK_PORTS_MAX];
    u32 port_numbers[BLOCK_PORTS_MAX];
    // `PlanHeader::size_bytes` and `block_count`.
    u64 plan_bytes;
    u32 plan_blocks;
    BlockProgram program;
    // The segment that runs.
    Segment segment;
    Place place;
    // In turns: while thread 0 posts one, others may still read the other.
    Work work[2];
    Refusal refusal;
};

class Block {
protected:
    static constexpr u32 FINE = 0;
    // A wait failed; its record is written, or another's.
    static constexpr u32 STOPPED = 1;
    // The plan cannot be run; `BlockState::refusal` says why.
    static constexpr u32 REFUSED = 2;

    BlockState& state;
    bool is_leader;
    // Thread 0: address of the op that it runs.
    u64 op = 0;
    // Not `FINE`: this thread has failed, and the block ends at its next barrier.
    u32 failed = FINE;

    // The first 16 bytes of an op, and where the rest is.
    struct Head {
        u64 address;
        OpCode code;
        u8 flags;
        u16 port;
        u32 length;
        u64 extent;
    };

    RINGDOVE_INLINE explicit Block(BlockState& shared)
        : state(shared), is_leader(ptx::thread_index() == 0) {}

    // True, for every thread alike, if any thread has failed.
    RINGDOVE_INLINE bool any_failed() {
        // Thread 0 may come here apart from its warp, and the barrier wants the warp whole.
        ptx::converge_warp();
        return ptx::barrier_or(failed) != 0;
    }

    // The op's place in its segment.
    RINGDOVE_INLINE u32 op_index() const { return u32(op - state.place.ops) / sizeof(Op); }

    RINGDOVE_INLINE WaitSite site(u32 place) const {
        const u32 number = state.port_numbers[place];
        const u32 peer = state.ports[place].peer;
        return {WaitKind::BadPlan,
                state.place.segment,
                op_index(),
                state.place.round,
                number,
                peer,
                0,
                state.sequence,
                state.call};
    }

    // A plan that cannot be run: `limit` is what was expected, `seen` what the plan says. Returns
    // false, for the caller to return. Called by thread 0 alone or by all; thread 0 remembers.
    RINGDOVE_INLINE bool refuse(PlanFault fault, u64 limit, u64 seen) {
        if (is_leader && failed == FINE) {
            const Place& here = state.place;
            state.refusal = {fault, here.segment, op_index(), here.round, limit, seen};
            failed = REFUSED;
        }
        return false;
    }

    RINGDOVE_INLINE void record_refusal() {
        const Refusal refusal = state.refusal;
        const WaitSite where = {WaitKind::BadPlan,
                                refusal.segment,
                                refusal.op,
                                refusal.round,
                                NO_PORT,
                                NO_RANK,
                                static_cast<u64>(refusal.fault),
                                state.sequence,
                                state.call};
        leave_record(state.communicator, where, RECORD_EXPIRED, refusal.limit, refusal.seen, 0);
    }

    // Not an assignment of the whole: the compiler would make it a loop over bytes.
    RINGDOVE_INLINE void save_arguments(const CallArguments& arguments) {
        CallArguments& saved = state.arguments;
        saved.plan = arguments.plan;
#pragma unroll
        for (u32 i = 0; i < BUFFERS_MAX; ++i) {
            saved.buffers[i] = arguments.buffers[i];
            saved.region_offsets[i] = arguments.region_offsets[i];
        }
#pragma unroll
        for (u32 i = 0; i < BUFFERS_MAX * BUFFERS_MAX; ++i) {
            saved.route_bases[i] = arguments.route_bases[i];
        }
        saved.scalar = arguments.scalar;
        saved.data_type = arguments.data_type;
        saved.reduce_op = arguments.reduce_op;
        saved.addresses = arguments.addresses;
        saved.address_count = arguments.address_count;
        saved.source = arguments.source;
    }

    // Copies a record from device to shared memory; one thread calls it.
    template <class Record>
    static RINGDOVE_INLINE void load_record(Record& destination, u64 source) {
        constexpr u32 WORDS = sizeof(Record) / 8;
        u64 words[WORDS];
#pragma unroll
        for (u32 i = 0; i < WORDS; ++i) {
            words[i] = ptx::load<u64>(source + i * 8);
        }
        // Not an assignment: the words are not u64 objects.
        __builtin_memcpy(&destination, words, sizeof(Record));
    }

    // Do `count` records of `bytes` each, at `offset`, lie inside the plan, at their alignment?
    RINGDOVE_INLINE bool check_range(u32 offset, u32 count, u32 bytes, u32 alignment) {
        const u64 end = offset + static_cast<u64>(count) * bytes;
        if (offset % alignment != 0 || end > state.plan_bytes) {
            return refuse(PlanFault::Range, state.plan_bytes, end);
        }
        return true;
    }

    // Thread 0: what all calls of the launch share.
    RINGDOVE_INLINE void load_launch(const LaunchArguments& arguments) {
        // What is refused at once is refused at its start.
        state.place = {0, 0, 0, 0, 0};
        load_record(state.communicator, arguments.communicator);
        state.sequence = arguments.sequence;
        state.call = 0;
        const u32 count = arguments.call_count;
        if (count - 1 >= LAUNCH_CALLS_MAX) {
            refuse(PlanFault::CallCount, LAUNCH_CALLS_MAX, count);
        } else if (has_failed_before(state.communicator)) {
            record_stray_claim(state.communicator, launch_start(state.sequence));
            failed = STOPPED;
        }
    }

    // Fills the shared state up to the program of one call. False, for every thread alike: the
    // block stops.
    RINGDOVE_INLINE bool load_program(const CallArguments& arguments, u32 call) {
        if (is_leader && failed == FINE) {
            state.place = {0, 0, 0, 0, 0};
            state.call = call;
            save_arguments(arguments);
            if (check_header(arguments)) {
                load_block_program();
            }
        }
        return !any_failed();
    }

    // Thread 0: does this launch fit the call's plan?
    RINGDOVE_INLINE bool check_header(const CallArguments& arguments) {
        const u64 plan = arguments.plan;
        ptx::Vector<u64> words;
        ptx::load_vector<0>(plan, words);
        const u32 threads = ptx::load<u32>(plan + __builtin_offsetof(PlanHeader, thread_count));
        const u64 magic = words.words[0];
        const u32 blocks = u32(words.words[1] >> 32);
        state.plan_blocks = blocks;
        state.plan_bytes = u32(words.words[1]);
        if (magic != PLAN_MAGIC) {
            return refuse(PlanFault::Magic, PLAN_MAGIC, magic);
        }
        if (blocks > ptx::block_count()) {
            return refuse(PlanFault::BlockCount, ptx::block_count(), blocks);
        }
        if (threads > ptx::thread_count() || ptx::thread_count() % WARP_THREADS != 0) {
            return refuse(PlanFault::ThreadCount, ptx::thread_count(), threads);
        }
        if (arguments.data_type >= DATA_TYPE_COUNT) {
            return refuse(PlanFault::DataType, DATA_TYPE_COUNT - 1, arguments.data_type);
        }
        if (arguments.reduce_op >= REDUCE_OP_COUNT) {
            return refuse(PlanFault::ReduceOp, REDUCE_OP_COUNT - 1, arguments.reduce_op);
        }
        return true;
    }

    // Thread 0: loads the block's program, which is empty where another call of the launch needs
    // more blocks.
    RINGDOVE_INLINE bool load_block_program() {
        if (ptx::block_index() >= state.plan_blocks) {
            state.program = {0, 0, 0, 0};
            return true;
        }
        const u32 offset = sizeof(PlanHeader) + ptx::block_index() * sizeof(BlockProgram);
        if (!check_range(offset, 1, sizeof(BlockProgram), 16)) {
            return false;
        }
        load_record(state.program, state.arguments.plan + offset);
        const BlockProgram program = state.program;
        if (program.port_count > BLOCK_PORTS_MAX) {
            return refuse(PlanFault::PortCount, BLOCK_PORTS_MAX, program.port_count);
        }
        return check_range(program.segments, program.segment_count, sizeof(Segment), 16) &&
               check_range(program.ports, program.port_count, sizeof(u32), 4);
    }

    // Caches the block's ports: a thread for each of their words.
    RINGDOVE_INLINE bool load_ports() {
        constexpr u32 WORDS = sizeof(Port) / 8;
        const u32 count = state.program.port_count;
        const u64 numbers = state.arguments.plan + state.program.ports;
        const Team team = Team::here();
        for (u32 i = team.thread; i < count * WORDS; i += team.threads) {
            const u32 place = i / WORDS;
            const u32 number = ptx::load<u32>(numbers + place * 4);
            if (number < state.communicator.port_count) {
                const u64 port =
                    state.communicator.ports + static_cast<u64>(number) * sizeof(Port);
                const u64 word = ptx::load<u64>(port + i % WORDS * 8);
                __builtin_memcpy(reinterpret_cast<u64*>(state.ports) + i, &word, sizeof(word));
            } else {
                failed = REFUSED;
            }
            state.port_numbers[place] = number;
        }
        return any_failed() ? refuse_port(count) : true;
    }

    // One of the numbers is wrong: finds out which.
    RINGDOVE_INLINE bool refuse_port(u32 count) {
        const u32 limit = state.communicator.port_count;
        failed = FINE;
        for (u32 i = 0; i < count; ++i) {
            if (state.port_numbers[i] >= limit) {
                refuse(PlanFault::PortNumber, limit, state.port_numbers[i]);
            }
        }
        return false;
    }

    // Thread 0, at its end, however that came: the last block says that the launch has ended. An
    // engine that reads it rests until the next launch; nothing else is read on its strength, so it
    // orders nothing. Launches of a communicator do not overlap.
    RINGDOVE_INLINE void report_end() {
        const u64 launches = state.communicator.launches_ended;
        if (launches == 0) {
            return;
        }
        const u64 blocks = state.communicator.blocks_ended;
        if (ptx::fetch_add_relaxed_gpu_u64(blocks, 1) + 1 == ptx::block_count()) {
            ptx::store<u64>(blocks, 0);
            ptx::store_relaxed_system_u64(launches, state.sequence + 1);
        }
    }

    RINGDOVE_INLINE void store_positions() {
        const Team team = Team::here();
        for (u32 i = team.thread; i < state.program.port_count; i += team.threads) {
            const u64 port = state.communicator.ports +
                             static_cast<u64>(state.port_numbers[i]) * sizeof(Port);
            ptx::store<u64>(port + __builtin_offsetof(Port, position), state.ports[i].position);
            ptx::store<u64>(port + __builtin_offsetof(Port, completion_position),
                            state.ports[i].completion_position);
        }
    }

    // Thread 0: loads the segment that it stands at, and goes to its first op.
    RINGDOVE_INLINE bool load_segment() {
        const u64 plan = state.arguments.plan;
        const u64 offset = static_cast<u64>(state.place.segment) * sizeof(Segment);
        Segment& segment = state.segment;
        load_record(segment, plan + state.program.segments + offset);
        op = plan + segment.ops;
        state.place.ops = op;
        state.place.ops_end = op + static_cast<u64>(segment.op_count) * sizeof(Op);
        return check_range(segment.ops, segment.op_count, sizeof(Op), 16);
    }

    static RINGDOVE_INLINE Head fetch(u64 address) {
        ptx::Vector<u64> words;
        ptx::load_vector<0>(address, words);
        const u64 head = words.words[0];
        return {address,          OpCode(u8(head)), u8(head >> 8),
                u16(head >> 16),  u32(head >> 32),  words.words[1]};
    }

    static RINGDOVE_INLINE s64 fetch_value(const Head& head) {
        return s64(ptx::load<u64>(head.address + __builtin_offsetof(Op, value)));
    }

    // The operand at byte `OFFSET` of the op.
    template <u32 OFFSET>
    static RINGDOVE_INLINE Operand fetch_operand(const Head& head) {
        ptx::Vector<u64> words;
        ptx::load_vector<OFFSET>(head.address, words);
        const u64 rest = words.words[1];
        return {words.words[0], u32(rest), u16(rest >> 32), Space(u8(rest >> 48)), 0};
    }
};

}  // namespace ringdove
