// Every instruction that C++ cannot say: memory accesses with an explicit order and scope, fences,
// atomics, barriers, clocks, and special registers. This is the only file with inline assembly.
//
// Addresses are 64-bit integers, as in the layouts: device addresses in the global window (device
// memory, mapped host memory, a peer's memory). Names say order, scope and type; an access without
// an order in its name is weak. The file needs no CUDA header, so plain clang compiles it too.
#pragma once

#ifndef __device__
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#endif
#define RINGDOVE_INLINE __device__ __inline__ __attribute__((always_inline))
// The same for a lambda, behind its parameters. One that stays a function takes what it captures by
// reference through local memory: the launch's parameters, for instance, are then copied there.
#define RINGDOVE_INLINE_LAMBDA __attribute__((always_inline))

namespace ringdove {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using s32 = int;
using s64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "layouts need these");

namespace ptx {

// Does the target have bf16: conversions of one value and of pairs, and tensor cores that take it?
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
constexpr bool HAS_BF16 = true;
#else
constexpr bool HAS_BF16 = false;
#endif

// Special registers. The first two are volatile, so that what is computed from them is computed
// where it is used: the compiler would else keep dozens of products in registers across a plan.

RINGDOVE_INLINE u32 thread_index() {
    u32 value;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(value));
    return value;
}

RINGDOVE_INLINE u32 thread_count() {
    u32 value;
    asm volatile("mov.u32 %0, %%ntid.x;" : "=r"(value));
    return value;
}

RINGDOVE_INLINE u32 block_index() {
    u32 value;
    asm("mov.u32 %0, %%ctaid.x;" : "=r"(value));
    return value;
}

RINGDOVE_INLINE u32 block_count() {
    u32 value;
    asm("mov.u32 %0, %%nctaid.x;" : "=r"(value));
    return value;
}

// Time.

// Nanoseconds of a clock that all blocks share. Its step may be as coarse as a microsecond.
RINGDOVE_INLINE u64 global_time_ns() {
    u64 value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

// Gives the multiprocessor to others for about this long.
RINGDOVE_INLINE void nanosleep(u32 duration_ns) {
    asm volatile("nanosleep.u32 %0;" : : "r"(duration_ns));
}

// Barriers and fences.

// Block barrier. The warp comes to it as a whole: see `converge_warp`.
RINGDOVE_INLINE void barrier() { asm volatile("bar.sync 0;" : : : "memory"); }

// No instruction. What a compiler does on the way from a loop to common code, it does behind this.
RINGDOVE_INLINE void hand_on() { asm volatile(""); }

// Waits for the other lanes of this warp, where control flow has divided them: a block barrier
// counts whole warps.
RINGDOVE_INLINE void converge_warp() {
    asm volatile("bar.warp.sync 0xffffffff;" : : : "memory");
}

// Block barrier. Returns, to every thread alike, whether any thread brought a non-zero `flag`.
RINGDOVE_INLINE u32 barrier_or(u32 flag) {
    u32 any;
    asm volatile(
        "{\n\t"
        ".reg .pred mine, all;\n\t"
        "setp.ne.u32 mine, %1, 0;\n\t"
        "bar.red.or.pred all, 0, mine;\n\t"
        "selp.u32 %0, 1, 0, all;\n\t"
        "}"
        : "=r"(any)
        : "r"(flag)
        : "memory");
    return any;
}

// Which lanes of the warp, all of which call it, bring true.
RINGDOVE_INLINE u32 ballot(bool mine) {
    u32 lanes;
    asm volatile(
        "{\n\t"
        ".reg .pred mine;\n\t"
        "setp.ne.u32 mine, %1, 0;\n\t"
        "vote.sync.ballot.b32 %0, mine, 0xffffffff;\n\t"
        "}"
        : "=r"(lanes)
        : "r"(u32(mine))
        : "memory");
    return lanes;
}

// The value of the lane whose number differs in the bits of `lanes`; the whole warp calls it.
RINGDOVE_INLINE float exchange_f32(float mine, u32 lanes) {
    float other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                 : "=f"(other)
                 : "f"(mine), "r"(lanes)
                 : "memory");
    return other;
}

// The value of lane `from`; the whole warp calls it.
RINGDOVE_INLINE u32 shuffle(u32 mine, u32 from) {
    u32 value;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                 : "=r"(value)
                 : "r"(mine), "r"(from));
    return value;
}
RINGDOVE_INLINE u64 shuffle(u64 mine, u32 from) {
    const u32 low = shuffle(static_cast<u32>(mine), from);
    return static_cast<u64>(shuffle(static_cast<u32>(mine >> 32), from)) << 32 | low;
}

// The lanes whose value is that of this one; the whole warp calls it.
RINGDOVE_INLINE u32 lanes_with(u32 mine) {
    u32 lanes;
    asm volatile("match.any.sync.b32 %0, %1, 0xffffffff;" : "=r"(lanes) : "r"(mine));
    return lanes;
}

// The number of the lowest bit that is set; one is.
RINGDOVE_INLINE u32 lowest_one(u32 bits) { return __builtin_ctz(bits); }

RINGDOVE_INLINE u32 count_ones(u32 bits) {
    u32 count;
    asm("popc.b32 %0, %1;" : "=r"(count) : "r"(bits));
    return count;
}

RINGDOVE_INLINE void fence_acquire_release_system() {
    asm volatile("fence.acq_rel.sys;" : : : "memory");
}

// Strong loads and stores.

RINGDOVE_INLINE u64 load_relaxed_system_u64(u64 address) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

RINGDOVE_INLINE u64 load_acquire_gpu_u64(u64 address) {
    u64 value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

RINGDOVE_INLINE u32 load_relaxed_system_u32(u64 address) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

RINGDOVE_INLINE u32 load_relaxed_gpu_u32(u64 address) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

// Two words in one instruction. To the memory model these are two relaxed loads in unspecified
// order.
RINGDOVE_INLINE void load_relaxed_system_2_u64(u64 address, u64& word_0, u64& word_1) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(word_0), "=l"(word_1)
                 : "l"(address)
                 : "memory");
}

RINGDOVE_INLINE void store_relaxed_system_u64(u64 address, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

RINGDOVE_INLINE void store_release_gpu_u64(u64 address, u64 value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

RINGDOVE_INLINE void store_release_system_u32(u64 address, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(address), "r"(value) : "memory");
}

// Two words in one instruction. To the memory model these are two relaxed stores in unspecified
// order; on the bus it is usually one 16-byte write.
RINGDOVE_INLINE void store_relaxed_system_2_u64(u64 address, u64 word_0, u64 word_1) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
                 :
                 : "l"(address), "l"(word_0), "l"(word_1)
                 : "memory");
}

// Atomics. They order nothing by themselves.

RINGDOVE_INLINE u64 fetch_add_relaxed_gpu_u64(u64 address, u64 value) {
    u64 old;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(address), "l"(value)
                 : "memory");
    return old;
}

RINGDOVE_INLINE u64 fetch_min_relaxed_gpu_u64(u64 address, u64 value) {
    u64 old;
    asm volatile("atom.relaxed.gpu.global.min.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(address), "l"(value)
                 : "memory");
    return old;
}

RINGDOVE_INLINE u32 compare_and_swap_relaxed_gpu_u32(u64 address, u32 expected, u32 value) {
    u32 old;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "l"(address), "r"(expected), "r"(value)
                 : "memory");
    return old;
}

// Weak accesses of one element. `volatile` keeps them in program order in the compiler's eyes, so
// operands may alias.

template <class T>
RINGDOVE_INLINE T load(u64 address);
template <class T>
RINGDOVE_INLINE void store(u64 address, T value);

#define RINGDOVE_SCALAR(TYPE, SUFFIX, CONSTRAINT)                                                 \
    template <>                                                                                   \
    RINGDOVE_INLINE TYPE load<TYPE>(u64 address) {                                                \
        TYPE value;                                                                               \
        asm volatile("ld.global." SUFFIX " %0, [%1];"                                             \
                     : "=" CONSTRAINT(value)                                                      \
                     : "l"(address)                                                               \
                     : "memory");                                                                 \
        return value;                                                                             \
    }                                                                                             \
    template <>                                                                                   \
    RINGDOVE_INLINE void store<TYPE>(u64 address, TYPE value) {                                   \
        asm volatile("st.global." SUFFIX " [%0], %1;"                                             \
                     :                                                                            \
                     : "l"(address), CONSTRAINT(value)                                            \
                     : "memory");                                                                 \
    }

RINGDOVE_SCALAR(u16, "u16", "h")
RINGDOVE_SCALAR(u32, "u32", "r")
RINGDOVE_SCALAR(u64, "u64", "l")
RINGDOVE_SCALAR(float, "f32", "f")
RINGDOVE_SCALAR(double, "f64", "d")
#undef RINGDOVE_SCALAR

// A byte travels in a 32-bit register, zero-extended: PTX has no 8-bit ones.
RINGDOVE_INLINE u32 load_byte(u64 address) {
    u32 value;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

RINGDOVE_INLINE void store_byte(u64 address, u32 value) {
    asm volatile("st.global.u8 [%0], %1;" : : "l"(address), "r"(value) : "memory");
}

// Weak accesses of 16 bytes at `address + OFFSET`, typed so that no value changes register class.

template <class Word>
struct Vector {
    static constexpr u32 WORDS = 16 / sizeof(Word);
    Word words[WORDS];
};

#define RINGDOVE_VECTOR_4(TYPE, SUFFIX, CONSTRAINT)                                               \
    template <u32 OFFSET>                                                                         \
    RINGDOVE_INLINE void load_vector(u64 address, Vector<TYPE>& value) {                          \
        asm volatile("ld.global.v4." SUFFIX " {%0, %1, %2, %3}, [%4+%5];"                         \
                     : "=" CONSTRAINT(value.words[0]), "=" CONSTRAINT(value.words[1]),            \
                       "=" CONSTRAINT(value.words[2]), "=" CONSTRAINT(value.words[3])             \
                     : "l"(address), "n"(OFFSET)                                                  \
                     : "memory");                                                                 \
    }                                                                                             \
    template <u32 OFFSET>                                                                         \
    RINGDOVE_INLINE void store_vector(u64 address, const Vector<TYPE>& value) {                   \
        asm volatile("st.global.v4." SUFFIX " [%0+%5], {%1, %2, %3, %4};"                         \
                     :                                                                            \
                     : "l"(address), CONSTRAINT(value.words[0]), CONSTRAINT(value.words[1]),      \
                       CONSTRAINT(value.words[2]), CONSTRAINT(value.words[3]), "n"(OFFSET)        \
                     : "memory");                                                                 \
    }

#define RINGDOVE_VECTOR_2(TYPE, SUFFIX, CONSTRAINT)                                               \
    template <u32 OFFSET>                                                                         \
    RINGDOVE_INLINE void load_vector(u64 address, Vector<TYPE>& value) {                          \
        asm volatile("ld.global.v2." SUFFIX " {%0, %1}, [%2+%3];"                                 \
                     : "=" CONSTRAINT(value.words[0]), "=" CONSTRAINT(value.words[1])             \
                     : "l"(address), "n"(OFFSET)                                                  \
                     : "memory");                                                                 \
    }                                                                                             \
    template <u32 OFFSET>                                                                         \
    RINGDOVE_INLINE void store_vector(u64 address, const Vector<TYPE>& value) {                   \
        asm volatile("st.global.v2." SUFFIX " [%0+%3], {%1, %2};"                                 \
                     :                                                                            \
                     : "l"(address), CONSTRAINT(value.words[0]), CONSTRAINT(value.words[1]),      \
                       "n"(OFFSET)                                                                \
                     : "memory");                                                                 \
    }

RINGDOVE_VECTOR_4(u32, "u32", "r")
RINGDOVE_VECTOR_4(float, "f32", "f")
RINGDOVE_VECTOR_2(u64, "u64", "l")
RINGDOVE_VECTOR_2(double, "f64", "d")
#undef RINGDOVE_VECTOR_4
#undef RINGDOVE_VECTOR_2

// Half precision.

RINGDOVE_INLINE float f32_from_f16(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

RINGDOVE_INLINE u16 f16_from_f32(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Conversions that came with bf16. A NaN becomes 0x7fff, and what is too large infinity.

RINGDOVE_INLINE u16 bf16_from_f32(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

RINGDOVE_INLINE u32 bf16x2_from_f32(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

RINGDOVE_INLINE u32 f16x2_from_f32(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

RINGDOVE_INLINE u32 add_f16x2(u32 a, u32 b) {
    u32 sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

RINGDOVE_INLINE u32 f32_bits(float value) {
    u32 bits;
    asm("mov.b32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// `sum` and a value, or a product, which is rounded first. The value is one in a register without
// type: in PTX, one of f32 takes a move.
RINGDOVE_INLINE float add_f32_bits(float sum, u32 bits) {
    float result;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(sum), "r"(bits));
    return result;
}

RINGDOVE_INLINE float multiply_f32_bits(u32 bits, float factor) {
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "r"(bits), "f"(factor));
    return product;
}

// Bit 16.
RINGDOVE_INLINE u32 bit_16(u32 word) {
    u32 bit;
    asm("bfe.u32 %0, %1, 16, 1;" : "=r"(bit) : "r"(word));
    return bit;
}

// The high halves of both words, that of `low` below.
RINGDOVE_INLINE u32 high_halves(u32 low, u32 high) {
    u32 halves;
    asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(halves) : "r"(low), "r"(high));
    return halves;
}

RINGDOVE_INLINE float f32_from_bits(u32 bits) {
    float value;
    asm("mov.b32 %0, %1;" : "=f"(value) : "r"(bits));
    return value;
}

RINGDOVE_INLINE double f64_from_bits(u64 bits) {
    double value;
    asm("mov.b64 %0, %1;" : "=d"(value) : "l"(bits));
    return value;
}

// Tensor cores: products of 16 x 16 matrices of f16, or of bf16 where the target has it, added to
// one of f32. The warp has them together; which lane has which element is nobody's business. Rows,
// or columns of a matrix that lies by columns, are `stride` elements apart; addresses are multiples
// of 32 bytes, and strides of 8 elements.

// Of f16.
struct HalfFragment {
    u32 words[8];
};

// Of bf16.
struct BrainFragment {
    u32 words[4];
};

struct FloatFragment {
    float values[8];
};

#define RINGDOVE_FRAGMENT_WORDS(KIND, A)                                                          \
    KIND(A[0]), KIND(A[1]), KIND(A[2]), KIND(A[3]), KIND(A[4]), KIND(A[5]), KIND(A[6]), KIND(A[7])

#define RINGDOVE_BRAIN_WORDS(KIND, A) KIND(A[0]), KIND(A[1]), KIND(A[2]), KIND(A[3])

#define RINGDOVE_LOAD_FRAGMENT(NAME, SIDE, LAYOUT)                                                \
    RINGDOVE_INLINE void NAME(u64 address, u32 stride, HalfFragment& to) {                        \
        asm volatile("wmma.load." SIDE ".sync.aligned." LAYOUT ".m16n16k16.global.f16 "           \
                     "{%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"                                \
                     : RINGDOVE_FRAGMENT_WORDS("=r", to.words)                                    \
                     : "l"(address), "r"(stride)                                                  \
                     : "memory");                                                                 \
    }                                                                                             \
    RINGDOVE_INLINE void NAME(u64 address, u32 stride, BrainFragment& to) {                       \
        asm volatile("wmma.load." SIDE ".sync.aligned." LAYOUT ".m16n16k16.global.bf16 "          \
                     "{%0, %1, %2, %3}, [%4], %5;"                                                \
                     : RINGDOVE_BRAIN_WORDS("=r", to.words)                                       \
                     : "l"(address), "r"(stride)                                                  \
                     : "memory");                                                                 \
    }

RINGDOVE_LOAD_FRAGMENT(load_left_by_rows, "a", "row")
RINGDOVE_LOAD_FRAGMENT(load_left_by_columns, "a", "col")
RINGDOVE_LOAD_FRAGMENT(load_right_by_rows, "b", "row")
RINGDOVE_LOAD_FRAGMENT(load_right_by_columns, "b", "col")
#undef RINGDOVE_LOAD_FRAGMENT

#define RINGDOVE_MULTIPLY_FRAGMENTS(NAME, LAYOUTS)                                                \
    RINGDOVE_INLINE void NAME(FloatFragment& sum, const HalfFragment& left,                       \
                              const HalfFragment& right) {                                        \
        asm volatile("wmma.mma.sync.aligned." LAYOUTS ".m16n16k16.f32.f32 "                       \
                     "{%0, %1, %2, %3, %4, %5, %6, %7}, "                                         \
                     "{%8, %9, %10, %11, %12, %13, %14, %15}, "                                   \
                     "{%16, %17, %18, %19, %20, %21, %22, %23}, "                                 \
                     "{%0, %1, %2, %3, %4, %5, %6, %7};"                                          \
                     : RINGDOVE_FRAGMENT_WORDS("+f", sum.values)                                  \
                     : RINGDOVE_FRAGMENT_WORDS("r", left.words),                                  \
                       RINGDOVE_FRAGMENT_WORDS("r", right.words));                                \
    }                                                                                             \
    RINGDOVE_INLINE void NAME(FloatFragment& sum, const BrainFragment& left,                      \
                              const BrainFragment& right) {                                       \
        asm volatile("wmma.mma.sync.aligned." LAYOUTS ".m16n16k16.f32.bf16.bf16.f32 "             \
                     "{%0, %1, %2, %3, %4, %5, %6, %7}, "                                         \
                     "{%8, %9, %10, %11}, {%12, %13, %14, %15}, "                                 \
                     "{%0, %1, %2, %3, %4, %5, %6, %7};"                                          \
                     : RINGDOVE_FRAGMENT_WORDS("+f", sum.values)                                  \
                     : RINGDOVE_BRAIN_WORDS("r", left.words),                                     \
                       RINGDOVE_BRAIN_WORDS("r", right.words));                                   \
    }

RINGDOVE_MULTIPLY_FRAGMENTS(multiply_by_rows_and_rows, "row.row")
RINGDOVE_MULTIPLY_FRAGMENTS(multiply_by_rows_and_columns, "row.col")
RINGDOVE_MULTIPLY_FRAGMENTS(multiply_by_columns_and_rows, "col.row")
RINGDOVE_MULTIPLY_FRAGMENTS(multiply_by_columns_and_columns, "col.col")
#undef RINGDOVE_MULTIPLY_FRAGMENTS

// To 256 values in any memory of the block, row by row.
RINGDOVE_INLINE void store_fragment(float* to, const FloatFragment& from) {
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.f32 [%0], "
                 "{%1, %2, %3, %4, %5, %6, %7, %8}, 16;"
                 :
                 : "l"(to), RINGDOVE_FRAGMENT_WORDS("f", from.values)
                 : "memory");
}
#undef RINGDOVE_FRAGMENT_WORDS
#undef RINGDOVE_BRAIN_WORDS

// Functions of one f32. The first is rounded correctly; the others are the hardware's, to two units
// in the last place or so, and the same on all GPUs of one kind.

RINGDOVE_INLINE float square_root_f32(float value) {
    float root;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(root) : "f"(value));
    return root;
}

RINGDOVE_INLINE float power_of_2_f32(float exponent) {
    float power;
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
}

RINGDOVE_INLINE float logarithm_to_2_f32(float value) {
    float logarithm;
    asm("lg2.approx.f32 %0, %1;" : "=f"(logarithm) : "f"(value));
    return logarithm;
}

}  // namespace ptx
}  // namespace ringdove
