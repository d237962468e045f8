// Polls words of 8 bytes that an RDMA adapter writes, with the loads of low-latency messages (R13),
// and counts words that are half old and half new. For `ringdove doctor --adapter-words`.

#include "wait.cuh"

namespace {

using ringdove::u32;
using ringdove::u64;

// Loads between two looks at the word that ends the kernel.
constexpr u32 kLoads = 64;

RINGDOVE_INLINE bool is_torn(u64 word) { return u32(word) != u32(word >> 32); }

} // namespace

extern "C" __global__ void ringdove_words(ringdove::WordsCall call) {
    using namespace ringdove;
    using namespace ringdove::ptx;
    const u64 thread = u64(block_index()) * thread_count() + thread_index();
    const u64 address = call.words + WORDS_BYTES_PER_THREAD * thread;
    u64 began_ns = global_time_ns();
    u64 last_0 = 0;
    u64 last_1 = 0;
    u64 changes = 0;
    u64 torn = 0;
    while (load_relaxed_system_u32(call.stop) == 0 && waited_since(began_ns) < call.timeout_ns) {
        for (u32 load = 0; load < kLoads; ++load) {
            u64 word_0;
            u64 word_1;
            load_relaxed_system_2_u64(address, word_0, word_1);
            changes += u64(word_0 != last_0) + u64(word_1 != last_1);
            torn += u64(is_torn(word_0)) + u64(is_torn(word_1));
            last_0 = word_0;
            last_1 = word_1;
        }
    }
    fetch_add_relaxed_gpu_u64(call.tally, changes);
    fetch_add_relaxed_gpu_u64(call.tally + 8, torn);
}
