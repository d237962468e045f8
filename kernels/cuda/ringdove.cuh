// For users' kernels: put, signal and wait, from inside a kernel. No host code runs between the
// kernel that produces data and the kernel that consumes it. This header and those that it includes
// need no CUDA headers, and clang or nvcc with C++17.
//
// The host makes a handle (`Communicator::device_handle` in Rust) and passes its address to the
// kernel. *Windows* are registered buffers, numbered in the order in which the host named them; a
// kernel puts bytes from its own window into a peer's. Lanes to a peer are numbered from 0; what is
// put on one lane arrives in order, and lanes do not wait for one another.
//
//     ringdove::Device device(handle);
//     ringdove::Peer right(device, (device.rank() + 1) % device.rank_count(), 0);
//
//     ... all threads write into device.data<float>(ringdove::Window{0}) ...
//     __syncthreads();
//     if (threadIdx.x == 0) {
//         ok = right.put_with_signal(ringdove::Window{1}, to_offset, ringdove::Window{0},
//                                    from_offset, bytes);
//         ok = ok && left.wait();
//     }
//     ok = __syncthreads_and(ok);
//     ... all threads read what has arrived in device.data<float>(ringdove::Window{1}) ...
//
// Rules:
// * One thread of the grid uses a lane: it opens the Peer, and closes it at its end. What the other
//   threads of its block wrote before a barrier goes with its puts, and what has arrived is theirs
//   after a barrier behind `wait`.
// * Every signal is waited for, on the lane with the same number, before the communicator ends.
// * A window must not be overwritten while a put reads it: `flush` waits for that. When the peer
//   has read what it got, it says so with a signal of its own.
// * Where GPUs reach each other, `Device::reached` gives a peer's part of a window as an address,
//   and a kernel may store there itself. A word in a window, with one writer, then says that the
//   data is there: `store_word` and `wait_for_word` (rule R16 of src/ring/PROTOCOL.md).
// * Each call returns false once the communicator has failed; the host's `Communicator::check`
//   says why. The kernel then ends as soon as it can, without `close`.
// * All blocks that wait for one another must be resident at a time, as for a cooperative launch.
//
// example_halo.cu and example_tile.cu are complete kernels. Where windows are not to be had
// (between nodes, without peer access) kernels send messages through the slots of a lane: port.cuh.
#pragma once

#include "port.cuh"

namespace ringdove {

// A peer that there is none: nothing is put, nobody signals, and no wait waits. For the ends of a
// chain of ranks.
constexpr u32 NO_PEER = NO_RANK;

// A window, by number.
struct Window {
    u32 number;
};

// `Device::has_failed`, where the claim is set. Out of line: kernels ask at their start, and this
// is for those whose communicator has failed.
static __device__ __attribute__((noinline)) void explain_failure(u64 communicator) {
    record_stray_claim(*reinterpret_cast<const DeviceCommunicator*>(communicator),
                       launch_start(0));
}

// A rank's view of its communicator.
class Device {
public:
    // `handle`: the address that the host's DeviceHandle gives.
    RINGDOVE_INLINE explicit Device(u64 handle)
        : handle(*reinterpret_cast<const DeviceHandle*>(handle)) {}

    RINGDOVE_INLINE u32 rank() const { return device_communicator().rank; }
    RINGDOVE_INLINE u32 rank_count() const { return device_communicator().rank_count; }
    // Lanes to each peer, and as many from it.
    RINGDOVE_INLINE u32 lane_count() const { return handle.lane_count; }
    RINGDOVE_INLINE u32 window_count() const { return handle.window_count; }

    // This rank's part of a window; null where there is no such window.
    template <class T>
    RINGDOVE_INLINE T* data(Window window) const {
        return window.number < handle.window_count
                   ? reinterpret_cast<T*>(entry(window).address)
                   : nullptr;
    }

    // Bytes of a window, the same on every rank; 0 where there is no such window.
    RINGDOVE_INLINE u64 bytes(Window window) const {
        return window.number < handle.window_count ? entry(window).bytes : 0;
    }

    // The address of `peer`'s part of a window for stores of this kernel; 0 where this GPU does not
    // reach it, for which `put` is there. What `peer` gets for this rank is 0 at the same time. For
    // the rank itself it is `data`.
    RINGDOVE_INLINE u64 reached(Window window, u32 peer) const {
        if (window.number >= handle.window_count || peer >= rank_count()) {
            return 0;
        }
        const u64 index = static_cast<u64>(window.number) * rank_count() + peer;
        return *reinterpret_cast<const u64*>(handle.reached + index * sizeof(u64));
    }

    // Stores a word that announces what was stored before: by this thread, by its block before a
    // barrier, or by whom they have acquired from. One rank writes the word, and its values rise.
    RINGDOVE_INLINE void store_word(u64 address, u64 value) const {
        // With the relaxed store: a release. Pairs with `wait_for_word`, R16.
        ptx::fence_acquire_release_system();
        ptx::store_relaxed_system_u64(address, value);
    }

    // Waits until `peer` has stored `value` or more; the block reads what it announces after a
    // barrier. False: the wait has failed, and the record names the peer (R10). `sequence` is
    // anything that tells launches apart.
    RINGDOVE_INLINE bool wait_for_word(u64 address, u64 value, u32 peer, u64 sequence) const {
        u64 seen = 0;
        const WaitSite site = {WaitKind::Arrival, 0, 0, 0, NO_PORT, peer, value, sequence, 0};
        return wait_or_record(device_communicator(), address, value, site, seen);
    }

    // As `wait_for_word`, for kernels that go on without a rank that does not answer: false leaves
    // no record, and the communicator as it is. It waits until the communicator's deadline; where
    // another rank has died or failed meanwhile, for `grace_ns` from then on.
    RINGDOVE_INLINE bool wait_for_word_or_go_on(u64 address, u64 value, u64 grace_ns) const {
        return wait_with_grace(device_communicator(), address, value, grace_ns);
    }

    // Has the communicator failed in an earlier launch? The kernel then ends at once: what earlier
    // launches left is not to be trusted. A claim word that no thread of ours has written is a
    // failure of its own, and leaves a record.
    RINGDOVE_INLINE bool has_failed() const {
        if (!has_failed_before(device_communicator())) {
            return false;
        }
        explain_failure(handle.communicator);
        return true;
    }

    // For OpenPort: the ports of a lane to `peer`, and of the lane with that number from it.
    RINGDOVE_INLINE LanePorts ports(u32 peer, u32 lane) const {
        if (peer >= rank_count() || lane >= handle.lane_count) {
            return {NO_PORT, NO_PORT};
        }
        const u64 index = static_cast<u64>(peer) * handle.lane_count + lane;
        return *reinterpret_cast<const LanePorts*>(handle.ports + index * sizeof(LanePorts));
    }

    // For OpenPort: the address of the DeviceCommunicator.
    RINGDOVE_INLINE u64 communicator() const { return handle.communicator; }

    // The first route from this rank's part of one window to the peers' parts of another.
    RINGDOVE_INLINE u32 first_route(Window from, Window to) const {
        const u64 index = static_cast<u64>(from.number) * handle.window_count + to.number;
        return *reinterpret_cast<const u32*>(handle.routes + index * sizeof(u32));
    }

private:
    const DeviceHandle& handle;

    RINGDOVE_INLINE const DeviceCommunicator& device_communicator() const {
        return *reinterpret_cast<const DeviceCommunicator*>(handle.communicator);
    }

    RINGDOVE_INLINE const WindowEntry& entry(Window window) const {
        return *reinterpret_cast<const WindowEntry*>(handle.windows +
                                                     window.number * sizeof(WindowEntry));
    }
};

// A lane to another rank, and the lane with the same number from it.
class Peer {
public:
    // `rank`: another rank, or NO_PEER. `sequence`: anything that tells launches apart, for the
    // record of a failed wait.
    RINGDOVE_INLINE Peer(const Device& device_of_rank, u32 rank, u32 lane, u64 sequence = 0)
        : device(device_of_rank),
          is_none(rank == NO_PEER),
          is_there(rank < device.rank_count() && rank != device.rank() &&
                   lane < device.lane_count()),
          send(device.communicator(), device.ports(rank, lane).send, sequence, is_there),
          receive(device.communicator(), device.ports(rank, lane).receive, sequence, is_there) {
        if (is_none || is_there) {
            return;
        }
        if (lane >= device.lane_count()) {
            send.refuse(PlanFault::Lane, device.lane_count(), lane);
        } else {
            send.refuse(PlanFault::Peer, device.rank_count(), rank);
        }
    }

    // Puts `bytes` from this rank's part of `from` into the peer's part of `to`; offsets in bytes
    // from their starts. Returns when the put is on its way: see `flush`.
    RINGDOVE_INLINE bool put(Window to, u64 to_offset, Window from, u64 from_offset, u64 bytes) {
        return put_raising(to, to_offset, from, from_offset, bytes, 0);
    }

    // The same, and raises the peer's signal when the data is there. With 0 bytes as `signal`.
    RINGDOVE_INLINE bool put_with_signal(Window to, u64 to_offset, Window from, u64 from_offset,
                                         u64 bytes) {
        return put_raising(to, to_offset, from, from_offset, bytes, flags::ARRIVAL);
    }

    // Raises the peer's signal once, behind all that was put on this lane before.
    RINGDOVE_INLINE bool signal() { return is_none || send.signal(); }

    // Waits until the peer has raised this rank's signal `count` more times, on the lane with this
    // number.
    RINGDOVE_INLINE bool wait(u32 count = 1) {
        if (is_none || !receive.wait(count)) {
            return is_none;
        }
        receive.advance(count, 0);
        return true;
    }

    // Waits until everything that was put on this lane has been read from its windows.
    RINGDOVE_INLINE bool flush() {
        if (is_none || !send.put_nothing(flags::COMPLETION) || !send.wait_completion(1)) {
            return is_none;
        }
        send.advance(0, 1);
        return true;
    }

    // Stores for the next launch how far this one came; once, at the end, when all is well.
    RINGDOVE_INLINE void close() {
        close_send();
        close_receive();
    }

    // One half of it, where one block puts and flushes, and another one waits.
    RINGDOVE_INLINE void close_send() { send.close(); }
    RINGDOVE_INLINE void close_receive() { receive.close(); }

private:
    const Device& device;
    const bool is_none;
    const bool is_there;
    OpenPort send;
    OpenPort receive;

    RINGDOVE_INLINE bool put_raising(Window to, u64 to_offset, Window from, u64 from_offset,
                                     u64 bytes, u8 put_flags) {
        if (is_none) {
            return true;
        }
        const u32 count = device.window_count();
        if (to.number >= count || from.number >= count) {
            return send.refuse(PlanFault::BufferNumber, count,
                               to.number >= count ? to.number : from.number);
        }
        const u32 route = send.route_of_pair(device.first_route(from, to));
        return bytes == 0 ? put_flags == 0 || send.put_nothing(put_flags)
                          : send.put(route, from_offset, to_offset, bytes, put_flags);
    }
};

}  // namespace ringdove
