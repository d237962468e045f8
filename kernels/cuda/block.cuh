// A block of the executor: what it caches in shared memory, how it agrees on failure, and how it
// loads its program. executor.cuh runs the ops.
//
// Control flow is uniform over the block: it depends only on the plan, on the launch's arguments
// and on what a barrier has agreed upon. A failure of thread 0 alone (an expired wait) therefore
// takes effect at the next barrier, which tells everyone; until then thread 0 neither rings nor
// waits.
#pragma once

#include "copy.cuh"
#include "wait.cuh"

namespace ringdove {

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

// What a block keeps in shared memory: less than 2.5 KiB, so that the executor fits beside a
// user's kernel.
struct BlockState {
    DeviceCommunicator communicator;
    LaunchArguments arguments;
    Port ports[BLOCK_PORTS_MAX];
    u32 port_numbers[BLOCK_PORTS_MAX];
    // How many ports are cached.
    u32 ports_in_use;
    // `PlanHeader::size_bytes`.
    u64 plan_bytes;
    BlockProgram program;
    // The segment that runs.
    Segment segment;
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
    // Where the block stands in its program.
    u32 segment = 0;
    u32 op_index = 0;
    u32 round = 0;
    // Not `FINE`: this thread has failed and only follows to the next barrier.
    u32 failed = FINE;
    // Since the last barrier, threads have moved data; some may not have finished.
    bool data_pending = false;
    // Since the last barrier, thread 0 has advanced positions.
    bool ports_pending = false;

    RINGDOVE_INLINE explicit Block(BlockState& shared)
        : state(shared), is_leader(ptx::thread_index() == 0) {}

    // True, for every thread alike, if any thread has failed.
    RINGDOVE_INLINE bool barrier() {
        data_pending = false;
        ports_pending = false;
        return ptx::barrier_or(failed) != 0;
    }

    RINGDOVE_INLINE WaitSite site(u32 place) const {
        const u32 number = state.port_numbers[place];
        const u32 peer = state.ports[place].peer;
        return {WaitKind::BadPlan, segment, op_index, round, number, peer, 0,
                state.arguments.sequence};
    }

    // A plan that cannot be run: `limit` is what was expected, `seen` what the plan says. Returns
    // false, for the caller to return. Called by thread 0 alone or by all; thread 0 remembers.
    RINGDOVE_INLINE bool refuse(PlanFault fault, u64 limit, u64 seen) {
        if (is_leader && failed == FINE) {
            state.refusal = {fault, segment, op_index, round, limit, seen};
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
                                state.arguments.sequence};
        leave_record(state.communicator, where, RECORD_EXPIRED, refusal.limit, refusal.seen, 0);
    }

    // Not an assignment of the whole: the compiler would make it a loop over bytes.
    RINGDOVE_INLINE void save_arguments(const LaunchArguments& arguments) {
        LaunchArguments& saved = state.arguments;
        saved.communicator = arguments.communicator;
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
        saved.sequence = arguments.sequence;
        saved.scalar = arguments.scalar;
        saved.data_type = arguments.data_type;
        saved.reduce_op = arguments.reduce_op;
    }

    // Copies 64-bit words from device to shared memory, the block's threads side by side.
    RINGDOVE_INLINE void load_words(void* destination, u64 source, u32 length) {
        const Team team = Team::here();
        for (u32 i = team.thread; i < length / 8; i += team.threads) {
            const u64 word = ptx::load<u64>(source + static_cast<u64>(i) * 8);
            // Not an assignment: the words are not u64 objects.
            __builtin_memcpy(static_cast<u64*>(destination) + i, &word, sizeof(word));
        }
    }

    // Do `count` records of `bytes` each, at `offset`, lie inside the plan, at their alignment?
    RINGDOVE_INLINE bool check_range(u32 offset, u32 count, u32 bytes, u32 alignment) {
        const u64 end = offset + static_cast<u64>(count) * bytes;
        if (offset % alignment != 0 || end > state.plan_bytes) {
            return refuse(PlanFault::Range, state.plan_bytes, end);
        }
        return true;
    }

    // Fills the shared state up to the program. False, for every thread alike: the block stops.
    RINGDOVE_INLINE bool load_program(const LaunchArguments& arguments) {
        // These loads are under way while the arguments are saved.
        const u64 plan = arguments.plan;
        ptx::Vector<u64> words;
        ptx::load_vector<0>(plan, words);
        const u32 threads = ptx::load<u32>(plan + __builtin_offsetof(PlanHeader, thread_count));
        const u64 magic = words.words[0];
        const u32 blocks = u32(words.words[1] >> 32);
        load_words(&state.communicator, arguments.communicator, sizeof(DeviceCommunicator));
        if (is_leader) {
            save_arguments(arguments);
            state.plan_bytes = u32(words.words[1]);
        }
        if (barrier()) {
            return false;
        }
        if (is_leader && has_failed_before(state.communicator)) {
            failed = STOPPED;
        }
        if (magic != PLAN_MAGIC) {
            return refuse(PlanFault::Magic, PLAN_MAGIC, magic);
        }
        if (blocks != ptx::block_count()) {
            return refuse(PlanFault::BlockCount, ptx::block_count(), blocks);
        }
        if (threads != ptx::thread_count() || threads % WARP_THREADS != 0) {
            return refuse(PlanFault::ThreadCount, ptx::thread_count(), threads);
        }
        if (arguments.data_type >= DATA_TYPE_COUNT) {
            return refuse(PlanFault::DataType, DATA_TYPE_COUNT - 1, arguments.data_type);
        }
        if (arguments.reduce_op >= REDUCE_OP_COUNT) {
            return refuse(PlanFault::ReduceOp, REDUCE_OP_COUNT - 1, arguments.reduce_op);
        }
        const u32 offset = sizeof(PlanHeader) + ptx::block_index() * sizeof(BlockProgram);
        if (!check_range(offset, 1, sizeof(BlockProgram), 16)) {
            return false;
        }
        load_words(&state.program, plan + offset, sizeof(BlockProgram));
        if (barrier()) {
            return false;
        }
        const BlockProgram program = state.program;
        return check_range(program.segments, program.segment_count, sizeof(Segment), 16) &&
               check_range(program.ports, program.port_count, sizeof(u32), 4);
    }

    // Caches the block's ports: eight threads for the eight words of each.
    RINGDOVE_INLINE bool load_ports() {
        constexpr u32 WORDS = sizeof(Port) / 8;
        const u32 count = state.program.port_count;
        if (count > BLOCK_PORTS_MAX) {
            return refuse(PlanFault::PortCount, BLOCK_PORTS_MAX, count);
        }
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
        if (is_leader) {
            state.ports_in_use = count;
        }
        return barrier() ? refuse_port(count) : true;
    }

    // One of the numbers is wrong, or thread 0 found the communicator dead.
    RINGDOVE_INLINE bool refuse_port(u32 count) {
        const u32 limit = state.communicator.port_count;
        if (failed == REFUSED) {
            failed = FINE;
        }
        for (u32 i = 0; i < count; ++i) {
            if (state.port_numbers[i] >= limit) {
                refuse(PlanFault::PortNumber, limit, state.port_numbers[i]);
            }
        }
        return false;
    }

    RINGDOVE_INLINE void store_positions() {
        const Team team = Team::here();
        for (u32 i = team.thread; i < state.ports_in_use; i += team.threads) {
            const u64 port = state.communicator.ports +
                             static_cast<u64>(state.port_numbers[i]) * sizeof(Port);
            ptx::store<u64>(port + __builtin_offsetof(Port, position), state.ports[i].position);
            ptx::store<u64>(port + __builtin_offsetof(Port, completion_position),
                            state.ports[i].completion_position);
        }
    }

    // Caches segment number `segment`; nobody still uses the one before it after this barrier.
    RINGDOVE_INLINE bool load_segment() {
        if (segment > 0 && barrier()) {
            return false;
        }
        const u64 address = state.arguments.plan + state.program.segments +
                            static_cast<u64>(segment) * sizeof(Segment);
        load_words(&state.segment, address, sizeof(Segment));
        if (barrier()) {
            return false;
        }
        return check_range(state.segment.ops, state.segment.op_count, sizeof(Op), 16);
    }
};

}  // namespace ringdove
