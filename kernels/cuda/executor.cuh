// The executor: one block runs its program of an encoded plan (op.rs describes the encoding).
//
// Thread 0 rings and waits; all threads copy and reduce. Barriers stand where one of these needs
// them:
//   * other threads' data, before an op that reads, overwrites or announces it (`data_pending`);
//   * positions that thread 0 has advanced, before all threads use them (`ports_pending`);
//   * a wait of thread 0, before all threads act on what it saw.
#pragma once

#include "block.cuh"
#include "doorbell.cuh"
#include "reduce.cuh"
#include "signal.cuh"

namespace ringdove {

class Executor : Block {
public:
    RINGDOVE_INLINE explicit Executor(BlockState& shared) : Block(shared) {}

    RINGDOVE_INLINE void run(const LaunchArguments& arguments) {
        run_program(arguments);
        if (failed == REFUSED) {
            record_refusal();
        }
    }

private:
    // Bytes that buffer offsets are moved by in this round.
    u64 shift = 0;
    // Something may have happened that descriptors to come must be ordered after.
    bool fence_needed = true;

    RINGDOVE_INLINE void run_program(const LaunchArguments& arguments) {
        if (!load_program(arguments) || !load_ports()) {
            return;
        }
        for (segment = 0; segment < state.program.segment_count; ++segment) {
            if (!load_segment() || !run_segment()) {
                return;
            }
        }
        // Also the last look at thread 0: positions of a failed launch stay as they were.
        if (!barrier()) {
            store_positions();
        }
    }

    RINGDOVE_INLINE bool run_segment() {
        shift = 0;
        for (round = 0; round < state.segment.rounds; ++round) {
            for (op_index = 0; op_index < state.segment.op_count; ++op_index) {
                const u64 op = state.arguments.plan + state.segment.ops +
                               static_cast<u64>(op_index) * sizeof(Op);
                if (!run_op(fetch(op))) {
                    return false;
                }
            }
            shift += state.segment.round_stride;
        }
        return true;
    }

    static RINGDOVE_INLINE Operand operand(const ptx::Vector<u64>& words) {
        const u64 rest = words.words[1];
        return {words.words[0], u32(rest), u16(rest >> 32), Space(u8(rest >> 48)), 0};
    }

    static RINGDOVE_INLINE Op fetch(u64 address) {
        ptx::Vector<u64> words[5];
        ptx::load_vector<0>(address, words[0]);
        ptx::load_vector<16>(address, words[1]);
        ptx::load_vector<32>(address, words[2]);
        ptx::load_vector<48>(address, words[3]);
        ptx::load_vector<64>(address, words[4]);
        const u64 head = words[0].words[0];
        return {OpCode(u8(head)),     u8(head >> 8),      u16(head >> 16),   u32(head >> 32),
                words[0].words[1],    s64(words[1].words[0]), 0,             operand(words[2]),
                operand(words[3]),    operand(words[4])};
    }

    // Runs one op. False, for every thread alike: the block stops.
    RINGDOVE_INLINE bool run_op(const Op& op) {
        const u64 start = op.extent + shift;
        const u64 limit = state.segment.limit;
        const u64 left = start < limit ? limit - start : 0;
        const u64 length = left < op.length ? left : op.length;
        switch (op.code) {
            case OpCode::Copy:
            case OpCode::Reduce:
                return move(op, length);
            case OpCode::Put:
            case OpCode::Credit:
                return ring_doorbell(op, length);
            case OpCode::WaitSignal:
            case OpCode::WaitCompletion:
                return wait(op);
            case OpCode::Advance:
                return advance(op);
            default:
                return refuse(PlanFault::OpCode, u64(OpCode::Advance), u64(op.code));
        }
    }

    RINGDOVE_INLINE bool check_port(u32 place) {
        const u32 count = state.ports_in_use;
        return place < count ? true : refuse(PlanFault::OpPort, count, place);
    }

    // Where in its lane's slots, at either end, an operand of `length` bytes starts.
    RINGDOVE_INLINE bool slot_offset(const Operand& operand, u64 length, u64& offset) {
        const Port& port = state.ports[operand.port];
        if (port.slots == 0 || operand.offset > port.slot_bytes ||
            length > port.slot_bytes - operand.offset) {
            return refuse(PlanFault::SlotRange, port.slots == 0 ? 0 : port.slot_bytes,
                          operand.offset + length);
        }
        const u64 index = (port.position + operand.number) & port.slot_mask;
        offset = index * port.slot_bytes + operand.offset;
        return true;
    }

    // The address of an operand of a copy or reduction. Every thread calls it, and every thread
    // comes to the same result.
    RINGDOVE_INLINE bool resolve(const Operand& operand, u64 length, u64& address) {
        switch (operand.space) {
            case Space::Buffer:
                if (operand.number >= BUFFERS_MAX ||
                    state.arguments.buffers[operand.number] == 0) {
                    return refuse(PlanFault::BufferNumber, BUFFERS_MAX, operand.number);
                }
                address = state.arguments.buffers[operand.number] + operand.offset + shift;
                return true;
            case Space::Slot: {
                if (operand.port >= state.ports_in_use) {
                    return refuse(PlanFault::OpPort, state.ports_in_use, operand.port);
                }
                u64 offset = 0;
                if (!slot_offset(operand, length, offset)) {
                    return false;
                }
                address = state.ports[operand.port].slots + offset;
                return true;
            }
            case Space::Address:
                address = operand.offset + shift;
                return true;
            default:
                return refuse(PlanFault::Space, u64(Space::Address),
                                       u64(operand.space));
        }
    }

    // Copy and Reduce.
    RINGDOVE_INLINE bool move(const Op& op, u64 length) {
        if (length == 0) {
            return true;
        }
        if ((data_pending || ports_pending) && barrier()) {
            return false;
        }
        const bool is_reduce = op.code == OpCode::Reduce;
        const LaunchArguments& arguments = state.arguments;
        const Pass pass = select_pass(is_reduce, ReduceOp(arguments.reduce_op), op.flags);
        Operands operands = {0, 0, 0, length};
        if (!resolve(op.destination, length, operands.destination) ||
            !resolve(op.a, length, operands.a) ||
            (is_reduce && !resolve(op.b, length, operands.b))) {
            return false;
        }
        if (!is_reduce) {
            operands.b = operands.a;
        }
        data_pending = true;
        fence_needed = true;
        if (pass == Pass::Plain) {
            copy(operands.destination, operands.a, length, Team::here());
            return true;
        }
        const Team team = Team::here();
        const DataType type = DataType(arguments.data_type);
        const u64 unit = element_bytes(type);
        const u64 all = operands.destination | operands.a | operands.b | length;
        if (all % unit != 0) {
            return refuse(PlanFault::Alignment, unit, all % unit);
        }
        reduce(type, pass, operands, arguments.scalar, state.communicator.rank_count, team);
        return true;
    }

    // Put and Credit.
    RINGDOVE_INLINE bool ring_doorbell(const Op& op, u64 length) {
        if (data_pending && barrier()) {
            return false;
        }
        if (!is_leader || failed != FINE || !check_port(op.port)) {
            return true;
        }
        Request request = {};
        if (op.code == OpCode::Credit) {
            // A credit is the arrival signal of the lane that leads back.
            request.route = state.ports[op.port].route;
            request.arrival = true;
        } else {
            request.arrival = (op.flags & flags::ARRIVAL) != 0;
            request.completion = (op.flags & flags::COMPLETION) != 0;
            request.length = length;
            if (!describe_put(op, request)) {
                return true;
            }
            if (length == 0 && !request.arrival && !request.completion) {
                return true;
            }
        }
        if (!fits(request)) {
            refuse_request(request);
            return true;
        }
        if (fence_needed) {
            release_payload();
            fence_needed = false;
        }
        if (!ring(state.communicator, request, site(op.port))) {
            failed = STOPPED;
        }
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

    // Route and offsets of a put. Both operands are slots of the op's port, or both are buffers.
    RINGDOVE_INLINE bool describe_put(const Op& op, Request& request) {
        const Port& port = state.ports[op.port];
        const Operand& from = op.a;
        const Operand& to = op.destination;
        if (from.space == Space::Slot && to.space == Space::Slot) {
            if (from.port != op.port || to.port != op.port) {
                return refuse(PlanFault::SlotPort, op.port,
                              from.port != op.port ? from.port : to.port);
            }
            request.route = port.route;
            return slot_offset(from, request.length, request.source_offset) &&
                   slot_offset(to, request.length, request.destination_offset);
        }
        if (from.space != Space::Buffer || to.space != Space::Buffer) {
            return refuse(PlanFault::Space, u64(Space::Buffer),
                          u64(from.space != Space::Buffer ? from.space : to.space));
        }
        if (from.number >= BUFFERS_MAX || to.number >= BUFFERS_MAX) {
            return refuse(PlanFault::BufferNumber, BUFFERS_MAX,
                          from.number >= BUFFERS_MAX ? from.number : to.number);
        }
        const LaunchArguments& arguments = state.arguments;
        request.route =
            arguments.route_bases[from.number * BUFFERS_MAX + to.number] + port.route_index;
        request.source_offset = arguments.region_offsets[from.number] + from.offset + shift;
        request.destination_offset = arguments.region_offsets[to.number] + to.offset + shift;
        return true;
    }

    // WaitSignal and WaitCompletion.
    RINGDOVE_INLINE bool wait(const Op& op) {
        if (is_leader && failed == FINE && check_port(op.port)) {
            const Port& port = state.ports[op.port];
            const Expectation expectation = op.code == OpCode::WaitSignal
                                                ? expect_signal(port, op.value)
                                                : expect_completion(port, op.value);
            if (expectation.address == 0) {
                refuse(PlanFault::NoSignal, 1, 0);
            } else if (!wait_for(state.communicator, expectation, site(op.port))) {
                failed = STOPPED;
            }
        }
        // What has arrived may be put on at once, so the descriptor must come after it.
        fence_needed = true;
        // Carries thread 0's acquire to all threads (causality order through the barrier).
        return !barrier();
    }

    RINGDOVE_INLINE bool advance(const Op& op) {
        // Threads that still use the positions have pending data.
        if (data_pending && barrier()) {
            return false;
        }
        if (is_leader && failed == FINE && check_port(op.port)) {
            state.ports[op.port].position += static_cast<u64>(op.value);
            state.ports[op.port].completion_position += op.destination.offset;
        }
        ports_pending = true;
        return true;
    }
};

}  // namespace ringdove
