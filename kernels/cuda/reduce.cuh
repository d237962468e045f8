// Reductions by all threads of a block: one pass over two operands (or one), for every data type.
#pragma once

#include "arithmetic.cuh"
#include "copy.cuh"

namespace ringdove {

// The operands of a pass; where it reads `a` only, `b` is `a`. `destination` may be the
// same address as `a` or `b`; otherwise ranges do not overlap. Addresses and length are multiples
// of the element's size.
struct Operands {
    u64 destination;
    u64 a;
    u64 b;
    u64 length;
};

// How a range divides: whole tiles in [begin, tiled), vectors in [tiled, end), elements around.
struct Split {
    u64 begin;
    u64 tiled;
    u64 end;
};

// Vectors serve where all operands are misaligned alike, from the first multiple of 16 on.
RINGDOVE_INLINE Split split_range(const Operands& operands) {
    const u64 differ =
        (operands.destination ^ operands.a) | (operands.destination ^ operands.b);
    if (differ % VECTOR_BYTES != 0) {
        return {0, 0, 0};
    }
    const u64 head = (0 - operands.destination) % VECTOR_BYTES;
    const u64 begin = head < operands.length ? head : operands.length;
    const u64 body = operands.length - begin;
    return {begin, begin + body / TILE_BYTES * TILE_BYTES,
            begin + body / VECTOR_BYTES * VECTOR_BYTES};
}

template <class Type, Pass PASS>
struct Transform {
    using Word = typename Type::Word;
    using Value = typename Type::Value;
    using Factor = typename Type::Factor;
    using Vector = ptx::Vector<Word>;

    // Does the pass read `a` only?
    static constexpr bool IS_UNARY = PASS == Pass::Scale || PASS == Pass::Divide;

    // How many vectors a thread keeps in flight. The passes that carry training get four; for the
    // rest the code would only grow.
    static constexpr bool IS_TILED =
        PASS == Pass::Sum ? Type::BYTES >= 2
                          : (PASS == Pass::Max || PASS == Pass::Min) && Type::BYTES >= 4;

    static RINGDOVE_INLINE void combine(Vector& a, const Vector& b, Factor factor) {
#pragma unroll
        for (u32 i = 0; i < Vector::WORDS; ++i) {
            a.words[i] =
                Type::template apply_word<Type, PASS>(a.words[i], b.words[i], factor);
        }
    }

    // The same for a vector that carries no type yet.
    static RINGDOVE_INLINE void combine_bits(ptx::Vector<u32>& a, const ptx::Vector<u32>& b,
                                             Factor factor) {
        Vector left;
        Vector right;
        __builtin_memcpy(&left, &a, sizeof(left));
        __builtin_memcpy(&right, &b, sizeof(right));
        combine(left, right, factor);
        __builtin_memcpy(&a, &left, sizeof(left));
    }

    static RINGDOVE_INLINE void tiles(const Operands& operands, u64 begin, u64 end, Factor factor,
                                      Team team) {
        const u64 stride = team.tile_stride();
        const u64 first = begin + team.tile_offset();
        u64 to = operands.destination + first;
        u64 a = operands.a + first;
        u64 b = operands.b + first;
        const u64 stop = operands.destination + end;
#pragma unroll 1
        for (; to < stop; to += stride, a += stride, b += stride) {
            Vector left[4];
            Vector right[4];
            ptx::load_vector<0 * ROW_BYTES>(a, left[0]);
            ptx::load_vector<1 * ROW_BYTES>(a, left[1]);
            ptx::load_vector<2 * ROW_BYTES>(a, left[2]);
            ptx::load_vector<3 * ROW_BYTES>(a, left[3]);
            ptx::load_vector<0 * ROW_BYTES>(b, right[0]);
            ptx::load_vector<1 * ROW_BYTES>(b, right[1]);
            ptx::load_vector<2 * ROW_BYTES>(b, right[2]);
            ptx::load_vector<3 * ROW_BYTES>(b, right[3]);
#pragma unroll
            for (u32 row = 0; row < 4; ++row) {
                combine(left[row], right[row], factor);
            }
            ptx::store_vector<0 * ROW_BYTES>(to, left[0]);
            ptx::store_vector<1 * ROW_BYTES>(to, left[1]);
            ptx::store_vector<2 * ROW_BYTES>(to, left[2]);
            ptx::store_vector<3 * ROW_BYTES>(to, left[3]);
        }
    }

    static RINGDOVE_INLINE void vectors(const Operands& operands, u64 begin, u64 end, Factor factor,
                                        Team team) {
#pragma unroll 1
        for (u64 i = begin + team.thread * VECTOR_BYTES; i < end;
             i += team.threads * VECTOR_BYTES) {
            Vector left;
            Vector right;
            ptx::load_vector<0>(operands.a + i, left);
            if constexpr (IS_UNARY) {
                right = left;
            } else {
                ptx::load_vector<0>(operands.b + i, right);
            }
            combine(left, right, factor);
            ptx::store_vector<0>(operands.destination + i, left);
        }
    }

    // Everything but [begin, end), element by element.
    static RINGDOVE_INLINE void elements(const Operands& operands, u64 begin, u64 end,
                                         Factor factor, Team team) {
        const u64 around = operands.length - (end - begin);
#pragma unroll 1
        for (u64 i = team.thread * Type::BYTES; i < around; i += team.threads * Type::BYTES) {
            const u64 at = i < begin ? i : i + (end - begin);
            const Value a = Type::load(operands.a + at);
            const Value b = IS_UNARY ? a : Type::load(operands.b + at);
            Type::store(operands.destination + at, apply<Type, PASS>(a, b, factor));
        }
    }

    static RINGDOVE_INLINE void run(const Operands& operands, const Split& split, Factor factor,
                                    Team team) {
        u64 begin = split.begin;
        if constexpr (IS_TILED) {
            begin = split.tiled;
            tiles(operands, split.begin, begin, factor, team);
        }
        vectors(operands, begin, split.end, factor, team);
        elements(operands, split.begin, split.end, factor, team);
    }
};

// Passes in which signed and unsigned integers do the same go through `Wrapping`, the unsigned
// type, so that the code exists once.
template <class Type, class Wrapping>
RINGDOVE_INLINE void run_pass(Pass pass, const Operands& operands, u64 scalar, u32 rank_count,
                              Team team) {
    const Split split = split_range(operands);
    const auto factor = Wrapping::factor(scalar);
    const auto divisor = typename Type::Value(rank_count);
    switch (pass) {
        case Pass::Sum:
            return Transform<Wrapping, Pass::Sum>::run(operands, split, factor, team);
        case Pass::Prod:
            return Transform<Wrapping, Pass::Prod>::run(operands, split, factor, team);
        case Pass::Max:
            return Transform<Type, Pass::Max>::run(operands, split, divisor, team);
        case Pass::Min:
            return Transform<Type, Pass::Min>::run(operands, split, divisor, team);
        case Pass::ScaledSum:
            return Transform<Wrapping, Pass::ScaledSum>::run(operands, split, factor, team);
        case Pass::AverageEnd:
            return Transform<Type, Pass::AverageEnd>::run(operands, split, divisor, team);
        case Pass::Scale:
            return Transform<Wrapping, Pass::Scale>::run(operands, split, factor, team);
        case Pass::Divide:
            return Transform<Type, Pass::Divide>::run(operands, split, divisor, team);
        case Pass::Plain:
        case Pass::Late:
            return;
    }
}

// All passes of an 8-bit float, in one piece of code.
template <class Type>
RINGDOVE_INLINE void run_late(Pass pass, const Operands& operands, u64 scalar, u32 rank_count,
                              Team team) {
    if (pass == Pass::Plain) {
        return;
    }
    const LateFactor factor = {pass, ptx::f32_from_bits(u32(scalar)), float(rank_count)};
    Transform<Type, Pass::Late>::run(operands, split_range(operands), factor, team);
}

// Which pass an op asks for.
RINGDOVE_INLINE Pass select_pass(bool is_reduce, ReduceOp reduce_op, u8 op_flags) {
    const bool is_scaled = reduce_op == ReduceOp::PreMulSum && (op_flags & flags::SCALE) != 0;
    const bool is_averaged = reduce_op == ReduceOp::Avg && (op_flags & flags::FINISH) != 0;
    if (!is_reduce) {
        return is_scaled ? Pass::Scale : is_averaged ? Pass::Divide : Pass::Plain;
    }
    switch (reduce_op) {
        case ReduceOp::Prod:
            return Pass::Prod;
        case ReduceOp::Max:
            return Pass::Max;
        case ReduceOp::Min:
            return Pass::Min;
        default:
            return is_scaled ? Pass::ScaledSum : is_averaged ? Pass::AverageEnd : Pass::Sum;
    }
}

// Bytes of one element.
RINGDOVE_INLINE u32 element_bytes(DataType type) {
    switch (type) {
        case DataType::I8:
        case DataType::U8:
        case DataType::F8E4M3:
        case DataType::F8E5M2:
            return 1;
        case DataType::F16:
        case DataType::BF16:
            return 2;
        case DataType::I32:
        case DataType::U32:
        case DataType::F32:
            return 4;
        default:
            return 8;
    }
}

// Applies a pass to a vector in registers: `a` becomes `a (op) b`. For terms that come scaled.
template <class Type, class Wrapping>
RINGDOVE_INLINE void combine_pass(Pass pass, ptx::Vector<u32>& a, const ptx::Vector<u32>& b,
                                  u32 rank_count) {
    const auto divisor = typename Type::Value(rank_count);
    switch (pass) {
        case Pass::Sum:
            return Transform<Wrapping, Pass::Sum>::combine_bits(a, b, divisor);
        case Pass::Prod:
            return Transform<Wrapping, Pass::Prod>::combine_bits(a, b, divisor);
        case Pass::Max:
            return Transform<Type, Pass::Max>::combine_bits(a, b, divisor);
        case Pass::Min:
            return Transform<Type, Pass::Min>::combine_bits(a, b, divisor);
        case Pass::AverageEnd:
            return Transform<Type, Pass::AverageEnd>::combine_bits(a, b, divisor);
        default:
            return;
    }
}

template <class Type>
RINGDOVE_INLINE void combine_late(Pass pass, ptx::Vector<u32>& a, const ptx::Vector<u32>& b,
                                  u32 rank_count) {
    if (pass != Pass::Plain) {
        const LateFactor factor = {pass, 1.0f, float(rank_count)};
        Transform<Type, Pass::Late>::combine_bits(a, b, factor);
    }
}

// The same for any type. The switch stands inside of the loop over terms here, because the loop
// waits for each of them: a copy of it for every type and pass would double the device code.
RINGDOVE_INLINE void combine(DataType type, Pass pass, ptx::Vector<u32>& a,
                             const ptx::Vector<u32>& b, u32 rank_count) {
    switch (type) {
        case DataType::I8:
            return combine_pass<I8, U8>(pass, a, b, rank_count);
        case DataType::U8:
            return combine_pass<U8, U8>(pass, a, b, rank_count);
        case DataType::I32:
            return combine_pass<I32, U32>(pass, a, b, rank_count);
        case DataType::U32:
            return combine_pass<U32, U32>(pass, a, b, rank_count);
        case DataType::I64:
            return combine_pass<I64, U64>(pass, a, b, rank_count);
        case DataType::U64:
            return combine_pass<U64, U64>(pass, a, b, rank_count);
        case DataType::F16:
            return combine_pass<F16, F16>(pass, a, b, rank_count);
        case DataType::F32:
            return combine_pass<F32, F32>(pass, a, b, rank_count);
        case DataType::F64:
            return combine_pass<F64, F64>(pass, a, b, rank_count);
        case DataType::BF16:
            return combine_pass<BF16, BF16>(pass, a, b, rank_count);
        case DataType::F8E4M3:
            return combine_late<F8E4M3>(pass, a, b, rank_count);
        case DataType::F8E5M2:
            return combine_late<F8E5M2>(pass, a, b, rank_count);
    }
}

// Runs one pass. Every thread of the block calls it.
RINGDOVE_INLINE void reduce(DataType type, Pass pass, const Operands& operands, u64 scalar,
                            u32 rank_count, Team team) {
    switch (type) {
        case DataType::I8:
            return run_pass<I8, U8>(pass, operands, scalar, rank_count, team);
        case DataType::U8:
            return run_pass<U8, U8>(pass, operands, scalar, rank_count, team);
        case DataType::I32:
            return run_pass<I32, U32>(pass, operands, scalar, rank_count, team);
        case DataType::U32:
            return run_pass<U32, U32>(pass, operands, scalar, rank_count, team);
        case DataType::I64:
            return run_pass<I64, U64>(pass, operands, scalar, rank_count, team);
        case DataType::U64:
            return run_pass<U64, U64>(pass, operands, scalar, rank_count, team);
        case DataType::F16:
            return run_pass<F16, F16>(pass, operands, scalar, rank_count, team);
        case DataType::F32:
            return run_pass<F32, F32>(pass, operands, scalar, rank_count, team);
        case DataType::F64:
            return run_pass<F64, F64>(pass, operands, scalar, rank_count, team);
        case DataType::BF16:
            return run_pass<BF16, BF16>(pass, operands, scalar, rank_count, team);
        case DataType::F8E4M3:
            return run_late<F8E4M3>(pass, operands, scalar, rank_count, team);
        case DataType::F8E5M2:
            return run_late<F8E5M2>(pass, operands, scalar, rank_count, team);
    }
}

}  // namespace ringdove
