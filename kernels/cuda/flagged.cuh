// Flagged messages (R13): data and flag travel together, so that a message needs no signal. Each 8
// bytes of its slot are a word: 4 bytes of data, and above them the message's flag.
#pragma once

#include "copy.cuh"
#include "wait.cuh"

namespace ringdove {

// The data of two words that stand side by side: what one access of 16 bytes brings.
constexpr u32 UNIT_BYTES = 8;
// A warp handles two rows of units at a time, the lanes side by side in each.
constexpr u32 UNIT_ROW_BYTES = WARP_THREADS * UNIT_BYTES;
constexpr u32 UNIT_TILE_BYTES = 2 * UNIT_ROW_BYTES;

// A message as thread 0 describes it to the others.
struct Message {
    u64 slot;
    u64 number;
    // Bytes of data that its sender packs: whole units, behind the data zeros.
    u64 bytes;
};

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

// Loads the unit at `offset` of `length` bytes at any address. What is behind the end is zero.
RINGDOVE_INLINE void load_unit(u64 address, u64 offset, u64 length, u32* words) {
    words[0] = 0;
    words[1] = 0;
    const u64 from = address + offset;
    if (offset + UNIT_BYTES <= length && from % UNIT_BYTES == 0) {
        const u64 both = ptx::load<u64>(from);
        words[0] = u32(both);
        words[1] = u32(both >> 32);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < UNIT_BYTES; ++i) {
        if (offset + i < length) {
            words[i / 4] |= ptx::load_byte(from + i) << i % 4 * 8;
        }
    }
}

RINGDOVE_INLINE void store_unit(u64 address, u64 offset, u64 length, const u32* words) {
    const u64 to = address + offset;
    if (offset + UNIT_BYTES <= length && to % UNIT_BYTES == 0) {
        ptx::store<u64>(to, words[0] | static_cast<u64>(words[1]) << 32);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < UNIT_BYTES; ++i) {
        if (offset + i < length) {
            ptx::store_byte(to + i, words[i / 4] >> i % 4 * 8);
        }
    }
}

// Writes a unit with its flags, unless it is behind the message's end.
RINGDOVE_INLINE void store_flagged(const Message& message, u64 offset, const u32* data) {
    if (offset < message.bytes) {
        const u64 flag = static_cast<u64>(flag_of(message.number)) << 32;
        const ptx::Vector<u64> words = {{flag | data[0], flag | data[1]}};
        ptx::store_vector<0>(message.slot + 2 * offset, words);
    }
}

// Writes `length` bytes at `source` into the slots of `count` messages, of which the longest has
// `bytes`. Every thread of the block calls it.
RINGDOVE_INLINE void pack(u64 source, u64 length, const Message* messages, u32 count, u64 bytes,
                          Team team) {
#pragma unroll 1
    for (u64 i = unit_offset(team); i < bytes; i += unit_stride(team)) {
        ptx::Vector<u32> data;
        load_unit(source, i, length, data.words);
        load_unit(source, i + UNIT_ROW_BYTES, length, data.words + 2);
#pragma unroll 1
        for (u32 m = 0; m < count; ++m) {
            store_flagged(messages[m], i, data.words);
            store_flagged(messages[m], i + UNIT_ROW_BYTES, data.words + 2);
        }
    }
}

// Looks at the words of up to two units of a message. Those behind its end count as arrived.
struct FlaggedPoll {
    // Of the first unit's words, and the distance to the second's; 0 if there is no second.
    u64 address;
    u32 second;
    u32 flag;
    ptx::Vector<u32> data;
    // A flag that is not the expected one, if there is such.
    u32 seen;

    // Relaxed: a word proves itself, and its data is in it (R13). Each 8 bytes are one access to
    // the memory model, whatever becomes of the 16. Pairs with the engine's write of the slot.
    RINGDOVE_INLINE bool operator()() {
        u64 words[4];
        ptx::load_relaxed_system_2_u64(address, words[0], words[1]);
        words[2] = words[3] = static_cast<u64>(flag) << 32;
        if (second != 0) {
            ptx::load_relaxed_system_2_u64(address + second, words[2], words[3]);
        }
        u32 differ = 0;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            data.words[i] = u32(words[i]);
            differ |= u32(words[i] >> 32) ^ flag;
        }
        if (differ == 0) {
            return true;
        }
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            seen = u32(words[i] >> 32) == flag ? seen : u32(words[i] >> 32);
        }
        return false;
    }
};

// Waits for the units at `offset` and one row behind, as far as the message has `length` bytes.
// Any thread calls it. False: the wait failed, and the record says why.
RINGDOVE_INLINE bool load_flagged(const DeviceCommunicator& communicator, const Message& message,
                                  u64 offset, u64 length, const WaitSite& site,
                                  ptx::Vector<u32>& value) {
    const u32 second = offset + UNIT_ROW_BYTES < length ? 2 * UNIT_ROW_BYTES : 0;
    FlaggedPoll poll = {message.slot + 2 * offset, second, flag_of(message.number), {}, 0};
    if (!poll()) {
        u64 waited_ns = 0;
        const WaitEnd end = poll_until(communicator, poll, waited_ns);
        if (end != WaitEnd::Reached) {
            record_wait(communicator, site, end, poll.flag, poll.seen, waited_ns);
            return false;
        }
    }
    value = poll.data;
    return true;
}

}  // namespace ringdove
