// The doorbell ring, producer's side: src/ring/PROTOCOL.md, rules R1 to R5.
#pragma once

#include "wait.cuh"

namespace ringdove {

// One transfer, as descriptor.rs describes it. `length` 0 asks for signals only.
struct Request {
    u32 route;
    u64 source_offset;
    u64 destination_offset;
    u64 length;
    bool arrival;
    bool completion;
};

// Does each field fit the descriptor?
RINGDOVE_INLINE bool fits(const Request& request) {
    return request.route <= ROUTE_MAX && request.source_offset <= OFFSET_MAX &&
           request.destination_offset <= OFFSET_MAX && request.length <= LENGTH_BYTES_MAX;
}

struct DescriptorWords {
    u64 words[2];
};

// The two words, with lap bits still clear.
RINGDOVE_INLINE DescriptorWords encode(const Request& request) {
    u64 first = 0;
    u64 second = static_cast<u64>(request.route) << ROUTE_SHIFT;
    if (request.length == 0) {
        second |= NO_DATA_BIT;
    } else {
        first = request.source_offset | (request.length - 1) << LENGTH_SHIFT;
        second |= request.destination_offset;
    }
    second |= request.arrival ? ARRIVAL_BIT : 0;
    second |= request.completion ? COMPLETION_BIT : 0;
    return {{first, second}};
}

// R5: what this thread did, and what it saw others do before the last barrier or acquire, comes
// before every descriptor that it rings from here on. One fence serves several descriptors.
RINGDOVE_INLINE void release_payload() {
    // With the relaxed stores of `ring`: a release. Pairs with the engine's acquire loads, R6.
    ptx::fence_acquire_release_system();
}

// Takes a position and publishes the request there. `site` says where we are; its kind, position
// and peer are set here. False: the ring stayed full too long, and the record says so.
//
// A producer that gives up leaves a hole at its position, at which the engine stops for good. That
// is harmless: its communicator is dead by then.
RINGDOVE_INLINE bool ring(const DeviceCommunicator& communicator, const Request& request,
                          WaitSite site) {
    // R4. Relaxed suffices: the position is unique whatever else is ordered how.
    const u64 position = ptx::fetch_add_relaxed_gpu_u64(communicator.ring_head, 1);
    const u64 capacity = 1ull << communicator.ring_log2;
    const u64 tail_needed = position + 1 - capacity;
    // Pairs with the store below by another producer, R4. The cached tail may lag and even step
    // back when two producers store in turn; an old tail is still a true lower bound.
    const u64 tail_cached = ptx::load_acquire_gpu_u64(communicator.ring_tail_cache);
    if (!reached(tail_cached, tail_needed)) {
        site.kind = WaitKind::RingSpace;
        site.position = position;
        site.peer = NO_RANK;
        u64 tail = 0;
        // Pairs with the engine's release of `tail`, R7: its reads of the slot come before our
        // writes.
        if (!wait_or_record(communicator, communicator.ring_tail, tail_needed, site, tail)) {
            return false;
        }
        // Release hands on what the acquire of `tail` has told us. Pairs with the load above.
        ptx::store_release_gpu_u64(communicator.ring_tail_cache, tail);
    }
    // R2: lap 0 writes ones, so that a zero-filled ring is empty (R1).
    const u64 lap_bit = (position >> communicator.ring_log2 & 1) == 0 ? LAP_BIT : 0;
    const u64 slot = communicator.ring_slots + (position & (capacity - 1)) * DESCRIPTOR_BYTES;
    const DescriptorWords descriptor = encode(request);
    // R3: each word carries the lap bit, and each store comes after the fence of R5. Nothing
    // depends on the order of the two.
    ptx::store_relaxed_system_2_u64(slot, descriptor.words[0] | lap_bit,
                                    descriptor.words[1] | lap_bit);
    return true;
}

}  // namespace ringdove
