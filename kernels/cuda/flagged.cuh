// Flagged messages (R13): data and flag travel together, so that a message needs no signal. Each 8
// bytes of its slot are a word: 4 bytes of data, and above them the message's flag.
#pragma once

#include "copy.cuh"
#include "wait.cuh"

namespace ringdove {

// A message as thread 0 describes it to the others.
struct Message {
    u64 slot;
    u64 number;
    // Bytes of data that its sender packs: whole vectors, behind the data zeros.
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
    return (length + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES;
}

// A vector of which only the first `left` bytes exist, at any address. The rest reads as zeros.
RINGDOVE_INLINE void load_part(u64 address, u64 left, ptx::Vector<u32>& value) {
    if (left >= VECTOR_BYTES && address % VECTOR_BYTES == 0) {
        ptx::load_vector<0>(address, value);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        value.words[i] = 0;
    }
#pragma unroll
    for (u32 i = 0; i < VECTOR_BYTES; ++i) {
        if (i < left) {
            value.words[i / 4] |= ptx::load_byte(address + i) << i % 4 * 8;
        }
    }
}

RINGDOVE_INLINE void store_part(u64 address, u64 left, const ptx::Vector<u32>& value) {
    if (left >= VECTOR_BYTES && address % VECTOR_BYTES == 0) {
        ptx::store_vector<0>(address, value);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < VECTOR_BYTES; ++i) {
        if (i < left) {
            ptx::store_byte(address + i, value.words[i / 4] >> i % 4 * 8);
        }
    }
}

// Writes `length` bytes at `source` into the slot of each message, with its flag. Every thread of
// the block calls it.
RINGDOVE_INLINE void pack(u64 source, u64 length, const Message* messages, u32 count, Team team) {
#pragma unroll 1
    for (u32 m = 0; m < count; ++m) {
        const u64 flag = static_cast<u64>(flag_of(messages[m].number)) << 32;
        const u64 slot = messages[m].slot;
        const u64 bytes = messages[m].bytes;
#pragma unroll 1
        for (u64 i = team.thread * VECTOR_BYTES; i < bytes; i += team.threads * VECTOR_BYTES) {
            ptx::Vector<u32> data;
            load_part(source + i, i < length ? length - i : 0, data);
            const ptx::Vector<u64> low = {{flag | data.words[0], flag | data.words[1]}};
            const ptx::Vector<u64> high = {{flag | data.words[2], flag | data.words[3]}};
            ptx::store_vector<0>(slot + 2 * i, low);
            ptx::store_vector<VECTOR_BYTES>(slot + 2 * i, high);
        }
    }
}

// Looks at the four words of a vector of data.
struct FlaggedPoll {
    u64 address;
    u32 flag;
    ptx::Vector<u32> data;
    // A flag that is not the expected one, if there is such.
    u32 seen;

    // Relaxed: a word proves itself, and its data is in it (R13). Each 8 bytes are one access to
    // the memory model, whatever becomes of the 16. Pairs with the engine's write of the slot.
    RINGDOVE_INLINE bool operator()() {
        u64 words[4];
        ptx::load_relaxed_system_2_u64(address, words[0], words[1]);
        ptx::load_relaxed_system_2_u64(address + VECTOR_BYTES, words[2], words[3]);
        seen = flag;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            data.words[i] = u32(words[i]);
            seen = u32(words[i] >> 32) == flag ? seen : u32(words[i] >> 32);
        }
        return seen == flag;
    }
};

// Waits for the vector of data that stands at `offset` of the message. Any thread calls it. False:
// the wait failed, and the record says why; `site` is complete but for what the message adds.
RINGDOVE_INLINE bool load_flagged(const DeviceCommunicator& communicator, const Message& message,
                                  u64 offset, const WaitSite& site, ptx::Vector<u32>& value) {
    FlaggedPoll poll = {message.slot + 2 * offset, flag_of(message.number), {}, 0};
    if (poll()) {
        value = poll.data;
        return true;
    }
    u64 waited_ns = 0;
    const WaitEnd end = poll_until(communicator, poll, waited_ns);
    if (end != WaitEnd::Reached) {
        WaitSite here = site;
        here.position = message.number;
        record_wait(communicator, here, end, poll.flag, poll.seen, waited_ns);
        return false;
    }
    value = poll.data;
    return true;
}

}  // namespace ringdove
