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
    u32 call;
};

// Has a counter that only rises come as far as `expected`? The difference is signed, because an
// expectation may lie before zero: a fresh lane needs no credit for its first messages.
RINGDOVE_INLINE bool reached(u64 seen, u64 expected) {
    return static_cast<s64>(seen - expected) >= 0;
}

// How long a wait has lasted. The clock may step back; a wait that finds itself before its start
// begins anew, or the difference would look like an age, and end it at once.
RINGDOVE_INLINE u64 waited_since(u64& began_ns) {
    const u64 now_ns = ptx::global_time_ns();
    began_ns = now_ns < began_ns ? now_ns : began_ns;
    return now_ns - began_ns;
}

// Calls `poll` until it returns true: a look at memory that others write.
template <class Poll>
RINGDOVE_INLINE WaitEnd poll_until(const DeviceCommunicator& communicator, Poll& poll,
                                   u64& waited_ns) {
    u64 began_ns = ptx::global_time_ns();
    u32 nap_ns = 0;
    for (;;) {
#pragma unroll 1
        for (u32 look = 0; look < POLLS_PER_CHECK; ++look) {
            if (poll()) {
                return WaitEnd::Reached;
            }
            if (nap_ns != 0) {
                ptx::nanosleep(nap_ns);
            }
        }
        waited_ns = waited_since(began_ns);
        if (ptx::load_relaxed_gpu_u32(communicator.record_claim) != 0) {
            return WaitEnd::Stopped;
        }
        if (ptx::load_relaxed_system_u32(communicator.abort) != 0) {
            return WaitEnd::Aborted;
        }
        if (waited_ns >= communicator.timeout_ns) {
            return WaitEnd::Expired;
        }
        nap_ns = nap_ns == 0 ? NAP_NS_FIRST : (nap_ns < NAP_NS_MAX ? 2 * nap_ns : NAP_NS_MAX);
    }
}

// Looks at a counter, with relaxed loads: an acquire on each look would invalidate the first-level
// cache each time, while other blocks of the multiprocessor copy through it.
struct CounterPoll {
    u64 address;
    u64 expected;
    u64 seen;

    RINGDOVE_INLINE bool operator()() {
        seen = ptx::load_relaxed_system_u64(address);
        return reached(seen, expected);
    }
};

// Takes the right to write the record, unless another thread was first. A value that no thread
// writes does not count: else one stray store would silence every later failure.
RINGDOVE_INLINE bool claim_record(const DeviceCommunicator& communicator) {
    const u64 claim = communicator.record_claim;
    u32 seen = ptx::compare_and_swap_relaxed_gpu_u32(claim, 0, RECORD_CLAIMED);
    if (seen != 0 && seen != RECORD_CLAIMED) {
        const u32 stray = seen;
        seen = ptx::compare_and_swap_relaxed_gpu_u32(claim, stray, RECORD_CLAIMED);
        return seen == stray;
    }
    return seen == 0;
}

// Leaves the record of this failure, unless another thread was first.
RINGDOVE_INLINE void leave_record(const DeviceCommunicator& communicator, const WaitSite& site,
                                  u32 state, u64 expected, u64 seen, u64 waited_ns) {
    if (!claim_record(communicator)) {
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
    ptx::store<u64>(record + __builtin_offsetof(WaitRecord, call), site.call);
    // Pairs with the host's acquire load of `state`, R10.
    ptx::store_release_system_u32(record + __builtin_offsetof(WaitRecord, state), state);
}

// Where a launch stands that has done nothing yet.
RINGDOVE_INLINE WaitSite launch_start(u64 sequence) {
    return {WaitKind::StrayClaim, 0, 0, 0, NO_PORT, NO_RANK, 0, sequence, 0};
}

// The claim stopped this launch as if a failure had been recorded before. If it holds a value that
// no thread writes, none was: then the value itself is the failure, and is recorded.
RINGDOVE_INLINE void record_stray_claim(const DeviceCommunicator& communicator, WaitSite site) {
    const u32 seen = ptx::load_relaxed_gpu_u32(communicator.record_claim);
    if (seen != 0 && seen != RECORD_CLAIMED) {
        site.kind = WaitKind::StrayClaim;
        leave_record(communicator, site, RECORD_EXPIRED, RECORD_CLAIMED, seen, 0);
    }
}

// Leaves the record of a wait that ended like this, if it has to.
RINGDOVE_INLINE void record_wait(const DeviceCommunicator& communicator, const WaitSite& site,
                                 WaitEnd end, u64 expected, u64 seen, u64 waited_ns) {
    if (end == WaitEnd::Stopped) {
        record_stray_claim(communicator, site);
    } else {
        const u32 state = end == WaitEnd::Expired ? RECORD_EXPIRED : RECORD_ABORTED;
        leave_record(communicator, site, state, expected, seen, waited_ns);
    }
}

// Waits until the word at `address` has reached `expected`. One thread calls it; whoever else reads
// the data that the word announces does so after a block barrier. A wait that fails leaves its
// record and returns false.
RINGDOVE_INLINE bool wait_or_record(const DeviceCommunicator& communicator, u64 address,
                                    u64 expected, const WaitSite& site, u64& seen) {
    CounterPoll poll = {address, expected, 0};
    u64 waited_ns = 0;
    WaitEnd end = WaitEnd::Reached;
    if (!poll()) {
        end = poll_until(communicator, poll, waited_ns);
    }
    seen = poll.seen;
    if (end == WaitEnd::Reached) {
        // With the relaxed load that saw the value: an acquire. Pairs with whoever raises the word
        // after the data (R9), or frees slots (R7).
        ptx::fence_acquire_release_system();
        return true;
    }
    record_wait(communicator, site, end, expected, seen, waited_ns);
    return false;
}

// As `wait_or_record`, for callers that go on without what does not come: it leaves no record, and
// another thread's failure does not end it. Once the abort word is raised, because a rank has died
// or failed, the word is awaited for `grace_ns` more, and never beyond the deadline (R10).
RINGDOVE_INLINE bool wait_with_grace(const DeviceCommunicator& communicator, u64 address,
                                     u64 expected, u64 grace_ns) {
    CounterPoll poll = {address, expected, 0};
    u64 began_ns = ptx::global_time_ns();
    u64 limit_ns = communicator.timeout_ns;
    bool is_aborted = false;
    u32 nap_ns = 0;
    for (;;) {
#pragma unroll 1
        for (u32 look = 0; look < POLLS_PER_CHECK; ++look) {
            if (poll()) {
                // With the relaxed load that saw the value: an acquire, as in `wait_or_record`.
                ptx::fence_acquire_release_system();
                return true;
            }
            if (nap_ns != 0) {
                ptx::nanosleep(nap_ns);
            }
        }
        const u64 waited_ns = waited_since(began_ns);
        if (!is_aborted && ptx::load_relaxed_system_u32(communicator.abort) != 0) {
            is_aborted = true;
            const u64 end_ns = waited_ns + grace_ns;
            limit_ns = end_ns < limit_ns ? end_ns : limit_ns;
        }
        if (waited_ns >= limit_ns) {
            return false;
        }
        nap_ns = nap_ns == 0 ? NAP_NS_FIRST : (nap_ns < NAP_NS_MAX ? 2 * nap_ns : NAP_NS_MAX);
    }
}

// Has an earlier launch of this communicator failed? Its positions cannot be trusted then, so a
// launch that finds it so does nothing. (The abort word is for waits alone to watch: it is host
// memory, and looking at it would delay every launch.)
RINGDOVE_INLINE bool has_failed_before(const DeviceCommunicator& communicator) {
    return ptx::load_relaxed_gpu_u32(communicator.record_claim) != 0;
}

}  // namespace ringdove
