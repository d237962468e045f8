// Waits that end (R10), and the record that a failed one leaves.
//
// A wait stops when its word is reached, when the deadline passes, when the host raises the abort
// word, or when another thread of this communicator has already failed. The first thread that
// fails wins the claim word and writes the one record; the claim word then stops all others, so a
// failure ends a launch within a few polls.
#pragma once

#include "layout.cuh"

namespace ringdove {

// Polls between two looks at the clock, the claim word and the abort word. The abort word is host
// memory, a microsecond away, so it is not looked at on each poll.
constexpr u32 POLLS_PER_CHECK = 16;
// The back-off starts with none: most waits of a running pipeline are short.
constexpr u32 NAP_NS_FIRST = 32;
constexpr u32 NAP_NS_MAX = 512;

enum class WaitEnd : u32 {
    Reached,
    Expired,
    Aborted,
    // Another thread failed first; the record is its own.
    Stopped,
};

struct WaitResult {
    WaitEnd end;
    u64 seen;
    u64 waited_ns;
};

// Where a wait stands, for its record.
struct WaitSite {
    WaitKind kind;
    u32 segment;
    u32 op;
    u32 round;
    u32 port;
    u32 peer;
    u64 position;
    u64 sequence;
};

// Has a counter that only rises come as far as `expected`? The difference is signed, because an
// expectation may lie before zero: a fresh lane needs no credit for its first messages.
RINGDOVE_INLINE bool reached(u64 seen, u64 expected) {
    return static_cast<s64>(seen - expected) >= 0;
}

// Waits until the word at `address` has reached `expected`. One thread calls it; whoever else reads
// the data that the word announces does so after a block barrier.
RINGDOVE_INLINE WaitResult wait_until(const DeviceCommunicator& communicator, u64 address,
                                      u64 expected) {
    // Pairs with whoever raises the word after the data (R9), or frees slots (R7).
    u64 seen = ptx::load_acquire_system_u64(address);
    if (reached(seen, expected)) {
        return {WaitEnd::Reached, seen, 0};
    }
    const u64 began_ns = ptx::global_time_ns();
    u32 nap_ns = 0;
    for (;;) {
#pragma unroll 1
        for (u32 poll = 0; poll < POLLS_PER_CHECK; ++poll) {
            seen = ptx::load_acquire_system_u64(address);
            if (reached(seen, expected)) {
                return {WaitEnd::Reached, seen, 0};
            }
            if (nap_ns != 0) {
                ptx::nanosleep(nap_ns);
            }
        }
        const u64 waited_ns = ptx::global_time_ns() - began_ns;
        if (ptx::load_relaxed_gpu_u32(communicator.record_claim) != 0) {
            return {WaitEnd::Stopped, seen, waited_ns};
        }
        if (ptx::load_relaxed_system_u32(communicator.abort) != 0) {
            return {WaitEnd::Aborted, seen, waited_ns};
        }
        if (waited_ns >= communicator.timeout_ns) {
            return {WaitEnd::Expired, seen, waited_ns};
        }
        nap_ns = nap_ns == 0 ? NAP_NS_FIRST : (nap_ns < NAP_NS_MAX ? 2 * nap_ns : NAP_NS_MAX);
    }
}

// Leaves the record of this failure, unless another thread was first.
RINGDOVE_INLINE void leave_record(const DeviceCommunicator& communicator, const WaitSite& site,
                                  u32 state, u64 expected, u64 seen, u64 waited_ns) {
    if (ptx::compare_and_swap_relaxed_gpu_u32(communicator.record_claim, 0, 1) != 0) {
        return;
    }
    const u64 record = communicator.record;
    ptx::store<u32>(record + __builtin_offsetof(WaitRecord, kind), static_cast<u32>(site.kind));
    ptx::store<u32>(record + __builtin_offsetof(WaitRecord, block), ptx::block_index());
    ptx::store<u32>(record + __builtin_offsetof(WaitRecord, segment), site.segment);
    ptx::store<u32>(record + __builtin_offsetof(WaitRecord, op), site.op);
    ptx::store<u32>(record + __builtin_offsetof(WaitRecord, round), site.round);
    ptx::store<u32>(record + __builtin_offsetof(WaitRecord, port), site.port);
    ptx::store<u32>(record + __builtin_offsetof(WaitRecord, peer), site.peer);
    ptx::store<u64>(record + __builtin_offsetof(WaitRecord, expected), expected);
    ptx::store<u64>(record + __builtin_offsetof(WaitRecord, seen), seen);
    ptx::store<u64>(record + __builtin_offsetof(WaitRecord, position), site.position);
    ptx::store<u64>(record + __builtin_offsetof(WaitRecord, sequence), site.sequence);
    ptx::store<u64>(record + __builtin_offsetof(WaitRecord, waited_ns), waited_ns);
    // Pairs with the host's acquire load of `state`, R10.
    ptx::store_release_system_u32(record + __builtin_offsetof(WaitRecord, state), state);
}

// Waits as `wait_until`; a wait that fails leaves its record and returns false.
RINGDOVE_INLINE bool wait_or_record(const DeviceCommunicator& communicator, u64 address,
                                    u64 expected, const WaitSite& site, u64& seen) {
    const WaitResult result = wait_until(communicator, address, expected);
    seen = result.seen;
    if (result.end == WaitEnd::Reached) {
        return true;
    }
    if (result.end != WaitEnd::Stopped) {
        const u32 state = result.end == WaitEnd::Expired ? RECORD_EXPIRED : RECORD_ABORTED;
        leave_record(communicator, site, state, expected, result.seen, result.waited_ns);
    }
    return false;
}

// Has an earlier launch of this communicator failed? Its positions cannot be trusted then, so a
// launch that finds it so does nothing. (The abort word is for waits alone to watch: it is host
// memory, and looking at it would delay every launch.)
RINGDOVE_INLINE bool has_failed_before(const DeviceCommunicator& communicator) {
    return ptx::load_relaxed_gpu_u32(communicator.record_claim) != 0;
}

}  // namespace ringdove
