// What one reduction does to one element, for every data type.
//
// 16-bit and 8-bit floats are computed in f32 and rounded once, to nearest even, when they are
// stored; an 8-bit float that is too large, or infinite, becomes the largest finite one. Integers
// wrap. For maximum and minimum of floats NaN wins, whichever side it stands on.
#pragma once

#include "layout.cuh"

namespace ringdove {

// One pass over memory. A launch's reduction and an op's flags select it (`select_pass`).
enum class Pass : u32 {
    Sum,
    Prod,
    Max,
    Min,
    // a + b * factor
    ScaledSum,
    // (a + b) / factor
    AverageEnd,
    // a * factor
    Scale,
    // a / factor
    Divide,
    // a
    Plain,
    // One of the above, which the factor names: for types whose code is not worth a copy each.
    Late,
};

template <class Value>
struct Unsigned {
    using Type = Value;
};
template <>
struct Unsigned<s32> {
    using Type = u32;
};
template <>
struct Unsigned<s64> {
    using Type = u64;
};

// One element. `Type::wrap` brings an integer that is held in a wider register back to its width
// (a no-op elsewhere); it matters only before a division, for stores drop the excess bits.
template <class Type, Pass PASS>
RINGDOVE_INLINE typename Type::Value apply(typename Type::Value a, typename Type::Value b,
                                           typename Type::Factor factor) {
    using Value = typename Type::Value;
    // Signed overflow is undefined in C++; unsigned arithmetic wraps and gives the same bits.
    using Wrapping = typename Unsigned<Value>::Type;
    if constexpr (PASS == Pass::Late) {
        return factor.run(a, b);
    } else if constexpr (PASS == Pass::Sum) {
        return Value(Wrapping(a) + Wrapping(b));
    } else if constexpr (PASS == Pass::Prod) {
        return Value(Wrapping(a) * Wrapping(b));
    } else if constexpr (PASS == Pass::Max) {
        return a > b || a != a ? a : b;
    } else if constexpr (PASS == Pass::Min) {
        return a < b || a != a ? a : b;
    } else if constexpr (PASS == Pass::ScaledSum) {
        return Value(Wrapping(a) + Wrapping(b) * Wrapping(factor));
    } else if constexpr (PASS == Pass::AverageEnd) {
        return Type::wrap(Value(Wrapping(a) + Wrapping(b))) / factor;
    } else if constexpr (PASS == Pass::Scale) {
        return Value(Wrapping(a) * Wrapping(factor));
    } else {
        return a / factor;
    }
}

// Types of which a register of a vector holds exactly one element.
template <class Word_, class Value_>
struct Whole {
    using Word = Word_;
    using Value = Value_;
    using Factor = Value;
    static constexpr u32 BYTES = sizeof(Word);
    static constexpr bool HAS_SUM = true;

    static RINGDOVE_INLINE Value wrap(Value value) { return value; }
    static RINGDOVE_INLINE Value load(u64 address) { return Value(ptx::load<Word>(address)); }
    static RINGDOVE_INLINE void store(u64 address, Value value) {
        ptx::store<Word>(address, Word(value));
    }

    template <class Type, Pass PASS>
    static RINGDOVE_INLINE Word apply_word(Word a, Word b, Value factor) {
        return Word(apply<Type, PASS>(Value(a), Value(b), factor));
    }
};

struct F32 : Whole<float, float> {
    static RINGDOVE_INLINE float factor(u64 scalar) { return ptx::f32_from_bits(u32(scalar)); }
};
struct F64 : Whole<double, double> {
    static RINGDOVE_INLINE double factor(u64 scalar) { return ptx::f64_from_bits(scalar); }
};
struct U32 : Whole<u32, u32> {
    static RINGDOVE_INLINE u32 factor(u64 scalar) { return u32(scalar); }
};
struct I32 : Whole<u32, s32> {
    static RINGDOVE_INLINE s32 factor(u64 scalar) { return s32(scalar); }
};
struct U64 : Whole<u64, u64> {
    static RINGDOVE_INLINE u64 factor(u64 scalar) { return scalar; }
};
struct I64 : Whole<u64, s64> {
    static RINGDOVE_INLINE s64 factor(u64 scalar) { return s64(scalar); }
};

// Two 16-bit floats in a 32-bit register.
template <class Format>
struct Half {
    using Word = u32;
    using Value = float;
    using Factor = float;
    static constexpr u32 BYTES = 2;
    // Does a GPU add it as it stands?
    static constexpr bool HAS_SUM = false;

    static RINGDOVE_INLINE float wrap(float value) { return value; }
    static RINGDOVE_INLINE float factor(u64 scalar) { return ptx::f32_from_bits(u32(scalar)); }
    static RINGDOVE_INLINE float load(u64 address) {
        return Format::widen_low(ptx::load<u16>(address));
    }
    static RINGDOVE_INLINE void store(u64 address, float value) {
        ptx::store<u16>(address, u16(Format::round(value)));
    }

    template <class Type, Pass PASS>
    static RINGDOVE_INLINE u32 apply_word(u32 a, u32 b, float factor) {
        const float low =
            apply<Type, PASS>(Format::widen_low(a), Format::widen_low(b), factor);
        const float high =
            apply<Type, PASS>(Format::widen_high(a), Format::widen_high(b), factor);
        return Format::round(low) | Format::round(high) << 16;
    }
};

struct F16Format {
    static RINGDOVE_INLINE float widen_low(u32 word) { return ptx::f32_from_f16(u16(word)); }
    static RINGDOVE_INLINE float widen_high(u32 word) {
        return ptx::f32_from_f16(u16(word >> 16));
    }
    static RINGDOVE_INLINE u32 round(float value) { return ptx::f16_from_f32(value); }
};

struct BF16Format {
    static RINGDOVE_INLINE float widen_low(u32 word) { return ptx::f32_from_bits(word << 16); }
    static RINGDOVE_INLINE float widen_high(u32 word) {
        return ptx::f32_from_bits(word & 0xffff0000u);
    }
    static RINGDOVE_INLINE u32 round(float value) {
        if constexpr (ptx::HAS_BF16) {
            return ptx::bf16_from_f32(value);
        } else {
            return round_in_integers(value);
        }
    }

private:
    static RINGDOVE_INLINE u32 round_in_integers(float value) {
        const u32 bits = ptx::f32_bits(value);
        // Half of the last kept place, less one, plus that place's own bit: ties go to even.
        const u32 rounded = bits + 0x7fffu + (bits >> 16 & 1);
        // The carry could turn a NaN into infinity or zero; 0x7fff is the canonical NaN.
        return value != value ? 0x7fffu : rounded >> 16;
    }
};

struct F16 : Half<F16Format> {
    static constexpr bool HAS_SUM = true;

    template <class Type, Pass PASS>
    static RINGDOVE_INLINE u32 apply_word(u32 a, u32 b, float factor) {
        if constexpr (PASS == Pass::Sum) {
            // Bit for bit the sum in f32, rounded: f32 has more than twice the digits of f16 and
            // two more, so rounding twice cannot differ from rounding once.
            return ptx::add_f16x2(a, b);
        } else {
            return Half<F16Format>::apply_word<Type, PASS>(a, b, factor);
        }
    }
};
struct BF16 : Half<BF16Format> {};

// Four bytes in a 32-bit register.
template <class Sign>
struct Bytes {
    using Word = u32;
    using Value = typename Sign::Value;
    using Factor = Value;
    static constexpr u32 BYTES = 1;

    static RINGDOVE_INLINE Value wrap(Value value) { return Sign::extend(u32(value)); }
    static RINGDOVE_INLINE Value factor(u64 scalar) { return Value(scalar); }
    static RINGDOVE_INLINE Value load(u64 address) {
        return Sign::extend(ptx::load_byte(address));
    }
    static RINGDOVE_INLINE void store(u64 address, Value value) {
        ptx::store_byte(address, u32(value));
    }

    template <class Type, Pass PASS>
    static RINGDOVE_INLINE u32 apply_word(u32 a, u32 b, Value factor) {
        u32 word = 0;
#pragma unroll
        for (u32 shift = 0; shift < 32; shift += 8) {
            const Value result = apply<Type, PASS>(Sign::extend(a >> shift),
                                                   Sign::extend(b >> shift), factor);
            word |= (u32(result) & 0xff) << shift;
        }
        return word;
    }
};

struct UnsignedByte {
    using Value = u32;
    static RINGDOVE_INLINE u32 extend(u32 bits) { return bits & 0xff; }
};
struct SignedByte {
    using Value = s32;
    static RINGDOVE_INLINE s32 extend(u32 bits) { return s32(bits << 24) >> 24; }
};

struct U8 : Bytes<UnsignedByte> {};
struct I8 : Bytes<SignedByte> {};

// What an 8-bit float is computed with: a pass, and the factors of all passes.
struct LateFactor {
    Pass pass;
    float scalar;
    float rank_count;

    RINGDOVE_INLINE float run(float a, float b) const {
        switch (pass) {
            case Pass::Sum:
                return apply<F32, Pass::Sum>(a, b, scalar);
            case Pass::Prod:
                return apply<F32, Pass::Prod>(a, b, scalar);
            case Pass::Max:
                return apply<F32, Pass::Max>(a, b, scalar);
            case Pass::Min:
                return apply<F32, Pass::Min>(a, b, scalar);
            case Pass::ScaledSum:
                return apply<F32, Pass::ScaledSum>(a, b, scalar);
            case Pass::AverageEnd:
                return apply<F32, Pass::AverageEnd>(a, b, rank_count);
            case Pass::Scale:
                return apply<F32, Pass::Scale>(a, b, scalar);
            default:
                return apply<F32, Pass::Divide>(a, b, rank_count);
        }
    }
};

// Four 8-bit floats in a 32-bit register.
template <class Format>
struct Quarter {
    using Word = u32;
    using Value = float;
    using Factor = LateFactor;
    static constexpr u32 BYTES = 1;

    static RINGDOVE_INLINE float load(u64 address) {
        return Format::widen(ptx::load_byte(address) & 0xff);
    }
    static RINGDOVE_INLINE void store(u64 address, float value) {
        ptx::store_byte(address, Format::round(value));
    }

    template <class Type, Pass PASS>
    static RINGDOVE_INLINE u32 apply_word(u32 a, u32 b, Factor factor) {
        u32 word = 0;
#pragma unroll 1
        for (u32 shift = 0; shift < 32; shift += 8) {
            const float result = apply<Type, PASS>(Format::widen(a >> shift & 0xff),
                                                   Format::widen(b >> shift & 0xff), factor);
            word |= Format::round(result) << shift;
        }
        return word;
    }
};

// Rounds to a float of a sign, an exponent and `MANTISSA` bits. `LARGEST` is the largest finite
// one, as bits of an f32. In integers: only the newest GPUs have these conversions.
template <u32 MANTISSA, u32 BIAS, u32 LARGEST>
RINGDOVE_INLINE u32 round_to_byte(float value) {
    constexpr u32 DROPPED = 23 - MANTISSA;
    constexpr u32 SMALLEST_NORMAL = (127 + 1 - BIAS) << 23;
    // A number whose last place is the smallest subnormal: what is added to it is rounded there.
    constexpr u32 ANCHOR = SMALLEST_NORMAL + (DROPPED << 23);
    const u32 bits = ptx::f32_bits(value);
    const u32 exact = bits & 0x7fffffffu;
    const u32 magnitude = exact < LARGEST ? exact : LARGEST;
    // Half of the last kept place, less one, plus that place's own bit: ties go to even.
    const u32 half = (1u << (DROPPED - 1)) - 1 + (magnitude >> DROPPED & 1);
    const u32 normal = ((magnitude + half) >> DROPPED) - ((127 - BIAS) << MANTISSA);
    const u32 subnormal =
        ptx::f32_bits(ptx::f32_from_bits(magnitude) + ptx::f32_from_bits(ANCHOR)) - ANCHOR;
    const u32 rounded = magnitude < SMALLEST_NORMAL ? subnormal : normal;
    return value != value ? 0x7fu : rounded | (bits >> 24 & 0x80);
}

// No infinity; all ones is NaN; at most 448.
struct E4M3Format {
    static RINGDOVE_INLINE float widen(u32 byte) {
        // The fields of an f16, whose exponents are 8 lower.
        const u32 half = (byte & 0x80) << 8 | (byte & 0x7f) << 7;
        const float value = ptx::f32_from_f16(u16(half)) * 256.0f;
        return (byte & 0x7f) == 0x7f ? ptx::f32_from_bits(0x7fc00000u) : value;
    }
    static RINGDOVE_INLINE u32 round(float value) {
        return round_to_byte<3, 7, 0x43e00000u>(value);
    }
};

// The upper half of an f16; at most 57344.
struct E5M2Format {
    static RINGDOVE_INLINE float widen(u32 byte) { return ptx::f32_from_f16(u16(byte << 8)); }
    static RINGDOVE_INLINE u32 round(float value) {
        return round_to_byte<2, 15, 0x47600000u>(value);
    }
};

struct F8E4M3 : Quarter<E4M3Format> {};
struct F8E5M2 : Quarter<E5M2Format> {};

}  // namespace ringdove
