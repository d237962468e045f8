// A port of a lane, opened by a user's kernel: messages through the lane's slots, on the machinery
// that ringdove's own collectives use. ringdove.cuh gives the numbers of ports (`Device::ports`);
// example_exchange.cu is a complete kernel.
//
//     ringdove::OpenPort port(communicator, number, sequence);
//
// Every thread may open the port, to learn slot addresses; one thread of one block puts, signals
// and waits on it. The division of labour in a block is always the same:
//
//     ... all threads write the payload ...
//     __syncthreads();
//     if (threadIdx.x == 0) ok = port.put_slot(0, bytes, ringdove::flags::ARRIVAL);
//
//     if (threadIdx.x == 0) ok = port.wait(1);
//     __syncthreads();
//     ... all threads read what has arrived ...
//
// The calls order memory by themselves: what the block wrote before the barrier is visible before
// the transfer reads it (R5), and what a signal announced is visible after `wait` and a barrier
// (R9). Each call returns false once the communicator has failed, and the record says why (R10);
// the kernel then ends as soon as it can, without `close`.
#pragma once

#include "doorbell.cuh"
#include "signal.cuh"

namespace ringdove {

class OpenPort {
public:
    // `communicator`: device address of the DeviceCommunicator. `number`: the port's index in its
    // table. `sequence`: anything that tells launches apart, for the record of a failed wait.
    // Without `exists` it is no port at all, and every call returns false.
    RINGDOVE_INLINE OpenPort(u64 communicator_address, u32 port_number, u64 launch_sequence,
                             bool exists = true)
        : communicator(*reinterpret_cast<const DeviceCommunicator*>(communicator_address)),
          number(port_number),
          sequence(launch_sequence) {
        if (!exists) {
            port = {};
            is_usable = false;
        } else if (number < communicator.port_count) {
            port = *reinterpret_cast<const Port*>(communicator.ports + number * sizeof(Port));
        } else {
            port = {};
            refuse(PlanFault::PortNumber, communicator.port_count, number);
        }
    }

    // The address of this end's slot for the message `message` after those already passed.
    RINGDOVE_INLINE u64 slot(u32 message) const {
        return port.slots + slot_index(message) * port.slot_bytes;
    }

    RINGDOVE_INLINE u64 slot_bytes() const { return port.slot_bytes; }

    // Send port: waits until the slot of that message may be written.
    RINGDOVE_INLINE bool wait_for_slot(u32 message) {
        return wait(static_cast<s64>(message) - static_cast<s64>(port.slot_mask));
    }

    // Send port: moves the first `length` bytes of the message's slot to the peer's slot. A length
    // above the slot's size is refused. `put_flags`: flags::ARRIVAL, flags::COMPLETION, or both.
    RINGDOVE_INLINE bool put_slot(u32 message, u64 length, u8 put_flags) {
        if (length > port.slot_bytes) {
            return refuse(PlanFault::SlotRange, port.slot_bytes, length);
        }
        const u64 offset = slot_index(message) * port.slot_bytes;
        const u64 source_offset = port.slots - staging_of(communicator, port) + offset;
        return put(port.route, source_offset, offset, length, put_flags);
    }

    // Moves `length` bytes along `route`, a registered source and destination; offsets are from
    // their starts. Longer transfers than one descriptor carries go in pieces; the signals come
    // with the last one. With `length` 0 only the signals go.
    RINGDOVE_INLINE bool put(u32 route, u64 source_offset, u64 destination_offset, u64 length,
                             u8 put_flags) {
        if (!is_usable || (length == 0 && (put_flags & SIGNALS) == 0)) {
            return is_usable;
        }
        release_payload();
        while (length > LENGTH_BYTES_MAX) {
            const Request piece = {route, source_offset, destination_offset, LENGTH_BYTES_MAX,
                                   false, false};
            if (!ring_checked(piece)) {
                return false;
            }
            source_offset += LENGTH_BYTES_MAX;
            destination_offset += LENGTH_BYTES_MAX;
            length -= LENGTH_BYTES_MAX;
        }
        return ring_checked({route, source_offset, destination_offset, length,
                             (put_flags & flags::ARRIVAL) != 0,
                             (put_flags & flags::COMPLETION) != 0});
    }

    // Raises the peer's signal once, without data. On a receive port this returns one credit: all
    // reads of the slot must have happened, so a barrier stands between them and this call.
    RINGDOVE_INLINE bool signal() { return put_nothing(flags::ARRIVAL); }

    // Raises signals without data, behind all that was put on the lane before.
    RINGDOVE_INLINE bool put_nothing(u8 put_flags) { return put(port.route, 0, 0, 0, put_flags); }

    // Waits until `count` signals have come since the position: arrivals at a receive port,
    // credits at a send port.
    RINGDOVE_INLINE bool wait(s64 count) { return wait_on(expect_signal(port, count)); }

    // Send port: waits until `count` puts with flags::COMPLETION have been read from their source.
    RINGDOVE_INLINE bool wait_completion(s64 count) {
        return wait_on(expect_completion(port, count));
    }

    // As `wait` and `wait_completion`, for kernels that go on without a rank that does not answer:
    // Device::wait_for_word_or_go_on says how long they wait.
    RINGDOVE_INLINE bool wait_or_go_on(s64 count, u64 grace_ns) {
        return wait_on_or_go_on(expect_signal(port, count), grace_ns);
    }
    RINGDOVE_INLINE bool wait_completion_or_go_on(s64 count, u64 grace_ns) {
        return wait_on_or_go_on(expect_completion(port, count), grace_ns);
    }

    // Passes `messages` and `completions`: later counts start behind them. Threads that use
    // `slot` all do this alike.
    RINGDOVE_INLINE void advance(u64 messages, u64 completions) {
        port.position += messages;
        port.completion_position += completions;
    }

    // Stores the positions for the next launch; one thread, once, at the end, when every thread of
    // the grid has opened its ports. Messages sent and received must balance at both ends.
    RINGDOVE_INLINE void close() {
        if (is_usable) {
            Port* stored =
                reinterpret_cast<Port*>(communicator.ports + number * sizeof(Port));
            stored->position = port.position;
            stored->completion_position = port.completion_position;
        }
    }

    // The route of the put from one registered buffer to another whose first route is `base`.
    RINGDOVE_INLINE u32 route_of_pair(u32 base) const { return base + port.route_index; }

    // Ends the communicator with a record that says what was refused. Always false.
    RINGDOVE_INLINE bool refuse(PlanFault fault, u64 limit, u64 seen) {
        WaitSite here = site();
        here.position = static_cast<u64>(fault);
        leave_record(communicator, here, RECORD_EXPIRED, limit, seen, 0);
        is_usable = false;
        return false;
    }

private:
    static constexpr u8 SIGNALS = flags::ARRIVAL | flags::COMPLETION;

    const DeviceCommunicator& communicator;
    Port port;
    u32 number;
    u64 sequence;
    bool is_usable = true;

    RINGDOVE_INLINE u64 slot_index(u32 message) const {
        return (port.position + message) & port.slot_mask;
    }

    RINGDOVE_INLINE WaitSite site() const {
        return {WaitKind::BadCall, 0, 0, 0, number, port.peer, 0, sequence, 0};
    }

    RINGDOVE_INLINE bool ring_checked(const Request& request) {
        if (!fits(request)) {
            return request.route > ROUTE_MAX
                       ? refuse(PlanFault::Route, ROUTE_MAX, request.route)
                       : refuse(PlanFault::DescriptorOffset, OFFSET_MAX,
                                request.source_offset > request.destination_offset
                                    ? request.source_offset
                                    : request.destination_offset);
        }
        is_usable = ring(communicator, request, site());
        return is_usable;
    }

    RINGDOVE_INLINE bool wait_on_or_go_on(const Expectation& expectation, u64 grace_ns) const {
        return is_usable && expectation.address != 0 &&
               wait_with_grace(communicator, expectation.address,
                               expectation.expected, grace_ns);
    }

    RINGDOVE_INLINE bool wait_on(const Expectation& expectation) {
        if (!is_usable) {
            return false;
        }
        if (expectation.address == 0) {
            return refuse(PlanFault::NoSignal, 1, 0);
        }
        is_usable = wait_for(communicator, expectation, site());
        return is_usable;
    }
};

}  // namespace ringdove
