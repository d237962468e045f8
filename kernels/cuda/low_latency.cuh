// Low-latency (LL) messages (R13): data and flag travel together, so no signal is needed. Each 8
// bytes of a message's slot are a word: 4 bytes of data, and above them the message's flag.
#pragma once

#include "copy.cuh"
#include "wait.cuh"

namespace ringdove {

// The data of two words that stand side by side: what one access of 16 bytes brings.
constexpr u32 UNIT_BYTES = 8;
// A warp handles two rows of units at a time, the lanes side by side in each.
constexpr u32 UNIT_ROW_BYTES = WARP_THREADS * UNIT_BYTES;
constexpr u32 UNIT_TILE_BYTES = 2 * UNIT_ROW_BYTES;

// Zero is a slot that was never written, and no message has that flag before the 2^32nd.
RINGDOVE_INLINE u32 flag_of(u64 number) { return u32(number) + 1; }

// Bytes of data that message `number` carries. Now and then one fills its slot: else a word that
// only long messages reach could keep its flag until 2^32 messages later the same is expected.
RINGDOVE_INLINE u64 packed_bytes(const Port& port, u64 number, u64 length) {
    if (number % WHOLE_SLOT_PERIOD <= port.slot_mask) {
        return port.slot_bytes / 2;
    }
    return (length + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
}

// Where this thread's first unit stands, and how far apart its pairs of units are.
RINGDOVE_INLINE u64 unit_offset(Team team) {
    return team.thread / WARP_THREADS * UNIT_TILE_BYTES + team.thread % WARP_THREADS * UNIT_BYTES;
}
RINGDOVE_INLINE u64 unit_stride(Team team) {
    return team.threads / WARP_THREADS * UNIT_TILE_BYTES;
}

// The first `left` bytes of a unit at any address, the others zero. Its own function, because
// it is rarely needed: at the end of data, and for addresses that are not aligned.
static __device__ __attribute__((noinline)) u64 load_bytes(u64 address, u64 left) {
    u64 unit = 0;
#pragma unroll 1
    for (u32 i = 0; i < UNIT_BYTES && i < left; ++i) {
        unit |= static_cast<u64>(ptx::load_byte(address + i)) << i * 8;
    }
    return unit;
}

static __device__ __attribute__((noinline)) void store_bytes(u64 address, u64 left, u64 unit) {
#pragma unroll 1
    for (u32 i = 0; i < UNIT_BYTES && i < left; ++i) {
        ptx::store_byte(address + i, u32(unit >> i * 8));
    }
}

// Loads the unit at `offset` of `length` bytes at any address. What is behind the end is zero.
RINGDOVE_INLINE u64 load_unit(u64 address, u64 offset, u64 length) {
    const u64 left = offset < length ? length - offset : 0;
    const u64 from = address + offset;
    return left >= UNIT_BYTES && from % UNIT_BYTES == 0 ? ptx::load<u64>(from)
                                                        : load_bytes(from, left);
}

RINGDOVE_INLINE void store_unit(u64 address, u64 offset, u64 length, u64 unit) {
    const u64 left = offset < length ? length - offset : 0;
    const u64 to = address + offset;
    if (left >= UNIT_BYTES && to % UNIT_BYTES == 0) {
        ptx::store<u64>(to, unit);
    } else {
        store_bytes(to, left, unit);
    }
}

RINGDOVE_INLINE u64 unit_of(u32 low, u32 high) { return low | static_cast<u64>(high) << 32; }

// Two units, as the vector that a pass takes.
RINGDOVE_INLINE ptx::Vector<u32> vector_of(u64 first, u64 second) {
    return {{u32(first), u32(first >> 32), u32(second), u32(second >> 32)}};
}

// Writes a unit with its flags. Relaxed, because a peer may poll the words where they are written:
// each 8 bytes are one access to the memory model. Pairs with `LowLatencyPoll::look`, R13.
RINGDOVE_INLINE void store_low_latency(u64 slot, u64 offset, u32 flag, u64 unit) {
    ptx::store_relaxed_system_2_u64(slot + 2 * offset, unit_of(u32(unit), flag),
                                    unit_of(u32(unit >> 32), flag));
}

// Writes `length` bytes at `source` into each of `count` slots, padded with zeros to `bytes`. The
// source is read once. Every thread of the block calls it.
RINGDOVE_INLINE void pack(u64 source, u64 length, const u64* slots, u32 count, u64 bytes, u32 flag,
                          Team team) {
    const u64 stride = unit_stride(team);
#pragma unroll 1
    for (u64 i = unit_offset(team); i < bytes; i += stride) {
        const u64 second = i + UNIT_ROW_BYTES;
        const u64 first_unit = load_unit(source, i, length);
        const u64 second_unit = load_unit(source, second, length);
#pragma unroll 1
        for (u32 number = 0; number < count; ++number) {
            const u64 slot = slots[number];
            store_low_latency(slot, i, flag, first_unit);
            if (second < bytes) {
                store_low_latency(slot, second, flag, second_unit);
            }
        }
    }
}

// Looks at the words of up to two units of a message, one row apart.
struct LowLatencyPoll {
    // Of the first unit's words.
    u64 address;
    u32 flag;
    // Is there a second? Where there is none, its words count as arrived.
    bool is_pair;
    u64 words[4];

    // Relaxed: a word proves itself, and its data is in it (R13). Each 8 bytes are one access to
    // the memory model, whatever becomes of the 16. Pairs with the engine's write of the slot, or
    // with `store_low_latency`.
    RINGDOVE_INLINE void look() {
        ptx::load_relaxed_system_2_u64(address, words[0], words[1]);
        words[2] = words[3] = unit_of(0, flag);
        if (is_pair) {
            ptx::load_relaxed_system_2_u64(address + 2 * UNIT_ROW_BYTES, words[2], words[3]);
        }
    }

    // A flag that is not the expected one, if there is such among what was seen last.
    RINGDOVE_INLINE u32 seen() const {
        u32 seen = flag;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 here = u32(words[i] >> 32);
            seen = here == flag ? seen : here;
        }
        return seen;
    }

    RINGDOVE_INLINE bool arrived() const {
        const u64 wanted = unit_of(0, flag);
        const u64 differ = (words[0] ^ wanted) | (words[1] ^ wanted) | (words[2] ^ wanted) |
                           (words[3] ^ wanted);
        return differ >> 32 == 0;
    }

    RINGDOVE_INLINE bool operator()() {
        look();
        return arrived();
    }

    RINGDOVE_INLINE ptx::Vector<u32> data() const {
        return {{u32(words[0]), u32(words[1]), u32(words[2]), u32(words[3])}};
    }
};

}  // namespace ringdove
