// The executor: one block runs its program of an encoded plan (op.rs describes the encoding).
//
// Thread 0 walks the program alone: it reads ops, waits, rings and advances. All other threads
// stand at a barrier. For a copy or a reduction thread 0 posts the work and joins the barrier;
// behind it everyone takes part, and all but thread 0 go to the next barrier. Thread 0 goes on with
// the program meanwhile, but joins a barrier before an op that needs the data of others complete:
// right behind the work (`Work::settles`) if that op is the next one, else later (`Task::Settle`).
// Each barrier therefore parts
//   * the accesses of all threads before it from the descriptors that thread 0 rings after it;
//   * what thread 0 has waited for from the accesses that all threads make after it;
//   * the accesses of one piece of work from those of the next.
#pragma once

#include "doorbell.cuh"
#include "move.cuh"
#include "signal.cuh"

namespace ringdove {

class Executor : protected Mover {
public:
    RINGDOVE_INLINE explicit Executor(BlockState& shared) : Mover(shared) {}

    RINGDOVE_INLINE void run(const LaunchArguments& arguments) {
        if (is_leader) {
            load_launch(arguments);
        }
        u32 call = 0;
        do {
            if (!load_program(arguments.calls[call], call) || !load_ports()) {
                break;
            }
            run_program();
            call += 1;
            // Thread 0 goes on to the next call when the others have stored their positions.
        } while (call < arguments.call_count && !any_failed());
        if (failed == REFUSED) {
            record_refusal();
        }
        if (is_leader) {
            report_end();
        }
    }

protected:
    // What thread 0 alone keeps.

    // Something may have happened that descriptors to come must be ordered after.
    bool fence_needed = true;
    // Work was posted, and since then thread 0 has joined no barrier.
    bool data_pending = false;

    RINGDOVE_INLINE void run_program() {
        if (is_leader) {
            start_program();
        }
#pragma unroll 1
        for (u32 turn = 0;; turn ^= 1) {
            Work& work = state.work[turn];
            if (is_leader) {
                work.task = next_task(work);
            }
            // Thread 0 may have refused the plan, and any thread may have failed to collect.
            // Positions of a failed launch stay as they were.
            if (any_failed()) {
                return;
            }
            const Task task = work.task;
            if (task == Task::Finish) {
                return store_positions();
            }
            if (task == Task::Collect && !await_messages(work)) {
                return;
            }
            if (task != Task::Settle && ptx::thread_index() < work.threads) {
                run_work(work);
            }
            // A turn of its own would take every warp through all of the above.
            if (work.settles) {
                ptx::converge_warp();
                ptx::barrier();
            }
        }
    }

    // All threads.
    RINGDOVE_INLINE void run_work(const Work& work) {
        switch (work.task) {
            case Task::Pack:
                return pack(work.operands.a, work.operands.length, work.message_slots,
                            work.message_count, work.packed_bytes, work.flag, Team::here());
            case Task::Collect:
                if (!collect(work)) {
                    failed = STOPPED;
                }
                return;
            case Task::Fused:
                run_fused(DataType(state.arguments.data_type), work.fused, Team::here());
                // All loops end here, and what follows is common to all work: values that are
                // handed on to it are moved here, and not in each loop.
                ptx::hand_on();
                return;
            default:
                return move(work);
        }
    }

    // All threads: one pass over memory.
    RINGDOVE_INLINE void move(const Work& work) {
        const Operands operands = work.operands;
        const Pass pass = work.pass;
        const Team team = Team::here();
        if (pass == Pass::Plain) {
            copy(operands.destination, operands.a, operands.length, team);
        } else {
            const CallArguments& arguments = state.arguments;
            reduce(DataType(arguments.data_type), pass, operands, arguments.scalar,
                   state.communicator.rank_count, team);
        }
    }

    // From here on, thread 0 alone.

    // Runs ops up to the next one that takes all threads, and fills in its work. Returns early
    // where the block has failed; the task means nothing then.
    RINGDOVE_INLINE Task next_task(Work& work) {
#pragma unroll 1
        while (failed == FINE && (op != state.place.ops_end || begin_round())) {
            const Head head = fetch(op);
            if (announces_data(head) && data_pending) {
                data_pending = false;
                work.settles = false;
                return Task::Settle;
            }
            if (!is_work(head)) {
                run_op(head);
                if (failed == FINE) {
                    op += sizeof(Op);
                }
                continue;
            }
            const bool is_posted = describe(head, work);
            if (failed == FINE) {
                op += sizeof(Op);
            }
            if (is_posted) {
                work.settles = failed == FINE && op != state.place.ops_end &&
                               announces_data(fetch(op));
                data_pending = !work.settles;
                fence_needed = true;
                return head.code == OpCode::Pack      ? Task::Pack
                       : head.code == OpCode::Collect ? Task::Collect
                       : work.fused.source_count != 0 ? Task::Fused
                                                      : Task::Move;
            }
        }
        return Task::Finish;
    }

    // Before the first segment, as if the last round of another had just ended.
    RINGDOVE_INLINE void start_program() {
        state.place.segment = 0u - 1;
        state.segment.rounds = 0;
        op = state.place.ops_end;
        fence_needed = true;
        data_pending = false;
    }

    // Goes on to the next round, or to the next segment that has any. False: there is none.
    RINGDOVE_INLINE bool begin_round() {
        Place& place = state.place;
        place.round += 1;
        place.shift += state.segment.round_stride;
        op = place.ops;
#pragma unroll 1
        while (place.round >= state.segment.rounds || op == place.ops_end) {
            place.segment += 1;
            place.round = 0;
            place.shift = 0;
            if (place.segment >= state.program.segment_count || !load_segment()) {
                return false;
            }
        }
        return true;
    }

    // Does this op tell a peer that data is complete, or that it has been read?
    RINGDOVE_INLINE bool announces_data(const Head& head) const {
        return (head.code == OpCode::Put && !is_stored(head)) || head.code == OpCode::Credit ||
               head.code == OpCode::Grant;
    }

    // Is this the put of an LL message that was packed into the peer's slot? Then all is done.
    RINGDOVE_INLINE bool is_stored(const Head& head) const {
        return (head.flags & flags::LOW_LATENCY) != 0 && head.port < state.program.port_count &&
               state.ports[head.port].peer_slots != 0;
    }

    // Does this op take all threads?
    static RINGDOVE_INLINE bool is_work(const Head& head) {
        return head.code == OpCode::Copy || head.code == OpCode::Reduce ||
               head.code == OpCode::Pack || head.code == OpCode::Collect;
    }

    // Fills in the work of an op. False: there is none.
    RINGDOVE_INLINE bool describe(const Head& head, Work& work) {
        return head.code == OpCode::Pack      ? describe_pack(head, work)
               : head.code == OpCode::Collect ? describe_collect(head, work)
                                              : describe_move(head, work);
    }

    // Runs an op that thread 0 does alone.
    RINGDOVE_INLINE void run_op(const Head& head) {
        switch (head.code) {
            case OpCode::Put:
            case OpCode::Credit:
                if (!is_stored(head) && check_port(head.port)) {
                    ring_doorbell(head);
                }
                return;
            case OpCode::WaitSignal:
            case OpCode::WaitCompletion:
                if (check_port(head.port)) {
                    wait(head);
                }
                return;
            case OpCode::Advance:
                if (check_port(head.port)) {
                    advance(head);
                }
                return;
            case OpCode::Grant:
                if (check_port(head.port)) {
                    grant(head);
                }
                return;
            default:
                refuse(PlanFault::OpCode, u64(OpCode::Grant), u64(head.code));
        }
    }

    // Pack and Collect: `count` messages of one number, at consecutive ports.
    RINGDOVE_INLINE bool describe_messages(const Head& head, u64 count, u32 message, u64 length,
                                           Work& work) {
        if (count == 0 || count > MESSAGES_MAX) {
            return refuse(PlanFault::MessageCount, MESSAGES_MAX, count);
        }
        if (head.port + count > state.program.port_count) {
            return refuse(PlanFault::OpPort, state.program.port_count, head.port + count - 1);
        }
        const u64 number = state.ports[head.port].position + message;
        work.message_count = u32(count);
        work.flag = flag_of(number);
        work.site.position = number;
#pragma unroll 1
        for (u32 i = 0; i < count; ++i) {
            const Port& port = state.ports[head.port + i];
            if (port.position + message != number) {
                return refuse(PlanFault::MessageNumber, number, port.position + message);
            }
            if (port.slots == 0 || length > port.slot_bytes / 2) {
                return refuse(PlanFault::SlotRange, port.slot_bytes / 2, length);
            }
            work.message_slots[i] = port.slots + (number & port.slot_mask) * port.slot_bytes;
        }
        work.threads = ~0u;
        return true;
    }

    RINGDOVE_INLINE bool describe_pack(const Head& head, Work& work) {
        const u64 length = clipped_length(head);
        const Operand to = fetch_operand<__builtin_offsetof(Op, destination)>(head);
        const Operand from = fetch_operand<__builtin_offsetof(Op, a)>(head);
        const bool has_data = from.space != Space::None;
        if (length == 0 || (has_data && !resolve(from, length, work.operands.a)) ||
            !describe_messages(head, 1, to.number, length, work) ||
            !describe_destinations(head, to.number, work)) {
            return false;
        }
        // Without data all of the message is padding.
        work.operands.length = has_data ? length : 0;
        work.packed_bytes = packed_bytes(state.ports[head.port], work.site.position, length);
        return true;
    }

    // Pack: the message goes into the slot of each peer to which it is put on a lane of stores, and
    // into the one described before, for engines, if it is put on another lane. False: on none.
    RINGDOVE_INLINE bool describe_destinations(const Head& head, u32 message, Work& work) {
        const u64 puts = u64(fetch_value(head));
        const u64 own = work.message_slots[0];
        const u64 number = work.site.position;
        const u32 slot_bytes = state.ports[head.port].slot_bytes;
        const u32 ports = state.program.port_count;
        if (puts >> ports != 0) {
            return refuse(PlanFault::OpPort, ports, puts);
        }
        bool is_rung = false;
        work.message_count = 0;
#pragma unroll 1
        for (u32 place = 0; puts >> place != 0; ++place) {
            if ((puts >> place & 1) == 0) {
                continue;
            }
            const Port& port = state.ports[place];
            if (port.peer_slots == 0) {
                is_rung = true;
                continue;
            }
            if (port.position + message != number) {
                return refuse(PlanFault::MessageNumber, number, port.position + message);
            }
            if (port.slot_bytes != slot_bytes) {
                return refuse(PlanFault::SlotRange, slot_bytes, port.slot_bytes);
            }
            if (!add_destination(port.peer_slots + (number & port.slot_mask) * slot_bytes, work)) {
                return false;
            }
        }
        return (!is_rung || add_destination(own, work)) && work.message_count != 0;
    }

    RINGDOVE_INLINE bool add_destination(u64 slot, Work& work) {
        if (work.message_count == MESSAGES_MAX) {
            return refuse(PlanFault::MessageCount, MESSAGES_MAX, MESSAGES_MAX + 1);
        }
        work.message_slots[work.message_count] = slot;
        work.message_count += 1;
        return true;
    }

    RINGDOVE_INLINE bool describe_collect(const Head& head, Work& work) {
        const u64 length = clipped_length(head);
        const Operand to = fetch_operand<__builtin_offsetof(Op, destination)>(head);
        const Operand own = fetch_operand<__builtin_offsetof(Op, a)>(head);
        const Operand messages = fetch_operand<__builtin_offsetof(Op, b)>(head);
        const bool has_own = own.space != Space::None;
        Operands& operands = work.operands;
        operands.destination = 0;
        operands.a = 0;
        if (length == 0 ||
            (to.space != Space::None && !resolve(to, length, operands.destination)) ||
            (has_own && !resolve(own, length, operands.a)) ||
            !describe_messages(head, u64(fetch_value(head)), messages.number, length, work)) {
            return false;
        }
        operands.length = length;
        work.last_term = has_own ? work.message_count : work.message_count - 1;
        const u64 unit = element_bytes(DataType(state.arguments.data_type));
        const u64 all = operands.destination | operands.a | length;
        // One message alone is copied, whatever its elements are.
        if (work.last_term != 0 && operands.destination != 0 && all % unit != 0) {
            return refuse(PlanFault::Alignment, unit, all % unit);
        }
        const ReduceOp reduce_op = ReduceOp(state.arguments.reduce_op);
        // Terms come scaled, each by its own rank's scalar.
        work.pass = select_pass(true, reduce_op, 0);
        work.last_pass = select_pass(true, reduce_op, head.flags & flags::FINISH);
        const u64 before = ptx::load<u64>(head.address + __builtin_offsetof(Op, before));
        work.before = has_own ? u32(before) : ~0u;
        work.first_port = head.port;
        const u64 number = work.site.position;
        work.site = site(head.port);
        work.site.kind = WaitKind::Arrival;
        work.site.position = number;
        return true;
    }

    // Put and Credit on a lane of stores: the signal at the other end. The data is there already.
    RINGDOVE_INLINE void raise_signal(const Head& head) {
        Port& port = state.ports[head.port];
        u64 count = 0;
        if (head.code == OpCode::Credit) {
            port.completion_position += u64(fetch_value(head));
            count = port.completion_position;
        } else {
            // Each message raises one arrival.
            const Operand to = fetch_operand<__builtin_offsetof(Op, destination)>(head);
            count = port.position + to.number + 1;
        }
        fence_payload();
        raise_at_peer(port, count);
    }

    RINGDOVE_INLINE void fence_payload() {
        if (fence_needed) {
            release_payload();
            fence_needed = false;
        }
    }

    // Put and Credit.
    RINGDOVE_INLINE void ring_doorbell(const Head& head) {
        if (state.ports[head.port].peer_signal != 0) {
            return raise_signal(head);
        }
        Request request = {};
        if (head.code == OpCode::Credit) {
            // A credit is the arrival signal of the lane that leads back.
            request.route = state.ports[head.port].route;
            request.arrival = true;
        } else {
            request.arrival = (head.flags & flags::ARRIVAL) != 0;
            request.completion = (head.flags & flags::COMPLETION) != 0;
            request.length = clipped_length(head);
            const bool is_ll = (head.flags & flags::LOW_LATENCY) != 0 && request.length != 0;
            if ((is_ll && !describe_low_latency(head, request)) ||
                !describe_put(head, request) ||
                (request.length == 0 && !request.arrival && !request.completion)) {
                return;
            }
        }
        ring_request(head, request);
    }

    RINGDOVE_INLINE void ring_request(const Head& head, const Request& request) {
        if (!fits(request)) {
            refuse_request(request);
            return;
        }
        fence_payload();
        if (!ring(state.communicator, request, site(head.port))) {
            failed = STOPPED;
        }
    }

    // A put of an LL message moves what its slot holds. The message may have been packed for
    // another port, so its flag must be the one that is next here too.
    RINGDOVE_INLINE bool describe_low_latency(const Head& head, Request& request) {
        const Operand from = fetch_operand<__builtin_offsetof(Op, a)>(head);
        const Operand to = fetch_operand<__builtin_offsetof(Op, destination)>(head);
        if (from.port >= state.program.port_count) {
            return refuse(PlanFault::OpPort, state.program.port_count, from.port);
        }
        const Port& source = state.ports[from.port];
        const u64 number = state.ports[head.port].position + to.number;
        if (source.position + from.number != number) {
            return refuse(PlanFault::MessageNumber, number, source.position + from.number);
        }
        request.length = 2 * packed_bytes(source, number, request.length);
        return true;
    }

    RINGDOVE_INLINE void refuse_request(const Request& request) {
        if (request.length > LENGTH_BYTES_MAX) {
            refuse(PlanFault::PutLength, LENGTH_BYTES_MAX, request.length);
        } else if (request.route > ROUTE_MAX) {
            refuse(PlanFault::Route, ROUTE_MAX, request.route);
        } else {
            const bool is_source = request.source_offset > OFFSET_MAX;
            refuse(PlanFault::DescriptorOffset, OFFSET_MAX,
                   is_source ? request.source_offset : request.destination_offset);
        }
    }

    // Grant: the place, and then a credit, both in one transfer.
    RINGDOVE_INLINE void grant(const Head& head) {
        const Port& port = state.ports[head.port];
        const Operand at = fetch_operand<__builtin_offsetof(Op, a)>(head);
        u64 granted = 0;
        if (at.space == Space::Address && !load_entry(at.number, granted)) {
            return;
        }
        if (port.slots == 0 || port.peer_signal != 0) {
            refuse(PlanFault::SlotRange, 0, 0);
            return;
        }
        const u64 word = grant_word(port);
        ptx::store_relaxed_system_u64(word, granted == 0 ? 0 : granted + at.offset);
        fence_needed = true;
        const Request request = {port.route, word - staging_of(state.communicator, port), 0,
                                 sizeof(u64), true, false};
        ring_request(head, request);
    }

    // Route and offsets of a put. Both operands are slots, the destination one of the op's port, or
    // both are buffers; or else see above.
    RINGDOVE_INLINE bool describe_put(const Head& head, Request& request) {
        const Port& port = state.ports[head.port];
        const Operand from = fetch_operand<__builtin_offsetof(Op, a)>(head);
        const Operand to = fetch_operand<__builtin_offsetof(Op, destination)>(head);
        const bool is_local = from.space == Space::Slot || from.space == Space::Address ||
                              (from.space == Space::Buffer && from.number == 0);
        if (is_local && (to.space == Space::Granted ||
                         (to.space == Space::Slot && from.space != Space::Slot))) {
            return describe_place(head, from, to, request);
        }
        if (from.space == Space::Slot && to.space == Space::Slot) {
            if (to.port != head.port) {
                return refuse(PlanFault::SlotPort, head.port, to.port);
            }
            u64 source = 0;
            if (!resolve(from, request.length, source) ||
                !slot_offset(to, request.length, request.destination_offset)) {
                return false;
            }
            // A route has one source. What arrived in memory of another kind goes on by another.
            const Port& origin = state.ports[from.port];
            request.route = origin.in_host == port.in_host ? port.route : port.route_index;
            request.source_offset = source - staging_of(state.communicator, origin);
            return true;
        }
        if (from.space != Space::Buffer || to.space != Space::Buffer) {
            return refuse(PlanFault::Space, u64(Space::Buffer),
                          u64(from.space != Space::Buffer ? from.space : to.space));
        }
        if (from.number >= BUFFERS_MAX || to.number >= BUFFERS_MAX) {
            return refuse(PlanFault::BufferNumber, BUFFERS_MAX,
                          from.number >= BUFFERS_MAX ? from.number : to.number);
        }
        const CallArguments& arguments = state.arguments;
        request.route =
            arguments.route_bases[from.number * BUFFERS_MAX + to.number] + port.route_index;
        request.source_offset = arguments.region_offsets[from.number] + shifted(from);
        request.destination_offset = arguments.region_offsets[to.number] + shifted(to);
        return true;
    }

    // WaitSignal and WaitCompletion. The next barrier carries the acquire to all threads.
    RINGDOVE_INLINE void wait(const Head& head) {
        const Port& port = state.ports[head.port];
        const s64 value = fetch_value(head);
        const Expectation expectation = head.code == OpCode::WaitSignal
                                            ? expect_signal(port, value)
                                            : expect_completion(port, value);
        if (expectation.address == 0) {
            refuse(PlanFault::NoSignal, 1, 0);
        } else if (!wait_for(state.communicator, expectation, site(head.port))) {
            failed = STOPPED;
        }
        // What has arrived may be put on at once, so the descriptor must come after it.
        fence_needed = true;
    }

    // Addresses that were posted before were computed from the old positions.
    RINGDOVE_INLINE void advance(const Head& head) {
        Port& port = state.ports[head.port];
        port.position += static_cast<u64>(fetch_value(head));
        port.completion_position += ptx::load<u64>(
            head.address + __builtin_offsetof(Op, destination) +
            __builtin_offsetof(Operand, offset));
    }
};

}  // namespace ringdove
