// Messages between ranks as tasks: put, signal and wait. They go over lane 0 of the device handle
// (ringdove.cuh), or, where this GPU's stores reach the peer, by stores and a word in its window
// (rule R16 of src/ring/PROTOCOL.md). Tasks of one lane run one after the other: the planner's
// waits see to that, and the verifier proves it.
#pragma once

#include "copy.cuh"
#include "ringdove.cuh"
#include "task.cuh"

namespace ringdove {

// The lane of messages, and the window that has the tensors.
constexpr u32 MESSAGE_LANE = 0;
constexpr Window TENSORS = {0};

// A task that has to do with another rank.
class Message {
public:
    RINGDOVE_INLINE Message(const ProgramHeader& program_header, const ProgramTask& task_of_block,
                            u64 iteration_of_task, u64 launch_sequence)
        : task(task_of_block),
          device(program_header.handle),
          words(program_header.words),
          iteration(iteration_of_task),
          sequence(launch_sequence) {}

    // All threads. False, for thread 0 alone: the message was not sent, and the record says why.
    RINGDOVE_INLINE bool put() {
        const u64 reached = device.reached(TENSORS, peer());
        if (reached == 0) {
            return ptx::thread_index() != 0 || ring(bytes());
        }
        copy(reached + offset(task.operands[0]), task.operands[1].address, bytes(), Team::here());
        // The copies of all threads come before the word.
        ptx::barrier();
        if (ptx::thread_index() == 0) {
            store_word(reached);
        }
        return true;
    }

    // From here on, thread 0 alone.

    RINGDOVE_INLINE bool signal() {
        const u64 reached = device.reached(TENSORS, peer());
        if (reached == 0) {
            return ring(0);
        }
        store_word(reached);
        return true;
    }

    // Waits; `site` says for whom.
    RINGDOVE_INLINE bool wait(const DeviceCommunicator& communicator, WaitSite site) {
        site.peer = peer();
        u64 seen = 0;
        if (device.reached(TENSORS, peer()) != 0) {
            // Pairs with `store_word` of the peer.
            const u64 word = window() + words + static_cast<u64>(peer()) * sizeof(u64);
            return wait_or_record(communicator, word, number(), site, seen);
        }
        const u32 place = device.ports(peer(), MESSAGE_LANE).receive;
        if (place >= communicator.port_count) {
            return OpenPort(device.communicator(), place, sequence).wait(1);
        }
        Port* port = reinterpret_cast<Port*>(communicator.ports + place * sizeof(Port));
        const u64 expected = port->position + 1;
        if (!wait_or_record(communicator, port->signal, expected, site, seen)) {
            return false;
        }
        port->position = expected;
        return true;
    }

private:
    const ProgramTask& task;
    const Device device;
    u64 words;
    u64 iteration;
    u64 sequence;

    RINGDOVE_INLINE u32 peer() const { return task.option; }
    RINGDOVE_INLINE u64 window() const {
        return reinterpret_cast<u64>(device.data<unsigned char>(TENSORS));
    }
    // The same on all ranks.
    RINGDOVE_INLINE u64 offset(const TaskOperand& operand) const {
        return operand.address - window();
    }
    RINGDOVE_INLINE u64 bytes() const {
        return static_cast<u64>(task.rows) * task.operands[1].row_bytes;
    }
    // Counted from the first iteration on.
    RINGDOVE_INLINE u64 number() const {
        return iteration * task.inner + task.value + 1;
    }

    RINGDOVE_INLINE void store_word(u64 reached) const {
        const u64 word = reached + words + static_cast<u64>(device.rank()) * sizeof(u64);
        device.store_word(word, number());
    }

    // By the engine: data, if any, and the signal behind it. Returns when the data was read.
    RINGDOVE_INLINE bool ring(u64 length) const {
        OpenPort port(device.communicator(), device.ports(peer(), MESSAGE_LANE).send, sequence);
        if (length == 0) {
            return port.signal();
        }
        const u32 route = port.route_of_pair(device.first_route(TENSORS, TENSORS));
        if (!port.put(route, offset(task.operands[1]), offset(task.operands[0]), length,
                      flags::ARRIVAL | flags::COMPLETION) ||
            !port.wait_completion(1)) {
            return false;
        }
        port.advance(0, 1);
        port.close();
        return true;
    }
};

}  // namespace ringdove
