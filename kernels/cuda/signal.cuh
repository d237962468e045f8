// What to wait for on the signals of a port (R9): port.rs says who raises which.
#pragma once

#include "wait.cuh"

namespace ringdove {

// A signal word, and the value that it shall reach.
struct Expectation {
    WaitKind kind;
    u64 address;
    u64 expected;
    // What the expectation was counted from.
    u64 position;
};

// The port's signal at `position + value`. A port with a completion signal is a send port, and
// its other signal carries credits.
RINGDOVE_INLINE Expectation expect_signal(const Port& port, s64 value) {
    return {port.completion != 0 ? WaitKind::Credit : WaitKind::Arrival, port.signal,
            port.position + static_cast<u64>(value), port.position};
}

// The port's completion signal at `completion_position + value`.
RINGDOVE_INLINE Expectation expect_completion(const Port& port, s64 value) {
    return {WaitKind::Completion, port.completion,
            port.completion_position + static_cast<u64>(value), port.completion_position};
}

// Raises the signal at the other end of a lane of stores; one thread calls. With the fence before
// it (`release_payload`) it is a release of what the block has stored or read: pairs with
// `wait_for`, R9. It has one writer, so it only rises.
RINGDOVE_INLINE void raise_at_peer(const Port& port, u64 count) {
    ptx::store_relaxed_system_u64(port.peer_signal, count);
}

// Waits for it; one thread calls. `site` says where we are; its kind and position are set here.
// False: the wait failed, and the record says why.
RINGDOVE_INLINE bool wait_for(const DeviceCommunicator& communicator,
                              const Expectation& expectation, WaitSite site) {
    site.kind = expectation.kind;
    site.position = expectation.position;
    u64 seen = 0;
    return wait_or_record(communicator, expectation.address, expectation.expected, site, seen);
}

}  // namespace ringdove
