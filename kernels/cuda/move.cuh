// Copies and reductions: what thread 0 posts of an op, and which of the ops behind it share its
// pass over memory. Thread 0 alone.
#pragma once

#include "operand.cuh"

namespace ringdove {

class Mover : protected Resolver {
protected:
    RINGDOVE_INLINE explicit Mover(BlockState& shared) : Resolver(shared) {}

    // The op's length in this round.
    RINGDOVE_INLINE u64 clipped_length(const Head& head) const {
        const u64 start = head.extent + state.place.shift;
        const u64 limit = state.segment.limit;
        const u64 left = start < limit ? limit - start : 0;
        return left < head.length ? left : head.length;
    }

    // How many threads a pass keeps busy, at most. On aligned operands each has a vector, and the
    // first warp does the rest, which is less than one.
    static RINGDOVE_INLINE u32 threads_for(const Operands& operands) {
        if ((operands.destination | operands.a | operands.b) % VECTOR_BYTES != 0) {
            return ~0u;
        }
        const u32 vectors = u32(operands.length / VECTOR_BYTES);
        return vectors > WARP_THREADS ? vectors : WARP_THREADS;
    }

    // Copy and Reduce.
    RINGDOVE_INLINE bool describe_move(const Head& head, Work& work) {
        const u64 length = clipped_length(head);
        if (length == 0) {
            return false;
        }
        const bool is_reduce = head.code == OpCode::Reduce;
        const CallArguments& arguments = state.arguments;
        const Pass pass = select_pass(is_reduce, ReduceOp(arguments.reduce_op), head.flags);
        Operands operands = {0, 0, 0, length};
        if (!resolve(fetch_operand<__builtin_offsetof(Op, destination)>(head), length,
                     operands.destination) ||
            !resolve(fetch_operand<__builtin_offsetof(Op, a)>(head), length, operands.a)) {
            return false;
        }
        operands.b = operands.a;
        if (is_reduce &&
            !resolve(fetch_operand<__builtin_offsetof(Op, b)>(head), length, operands.b)) {
            return false;
        }
        if (pass != Pass::Plain) {
            const u64 unit = element_bytes(DataType(arguments.data_type));
            const u64 all = operands.destination | operands.a | operands.b | length;
            if (all % unit != 0) {
                return refuse(PlanFault::Alignment, unit, all % unit);
            }
        }
        work.operands = operands;
        work.pass = pass;
        work.threads = threads_for(operands);
        work.fused.source_count = 0;
        const u64 more = u64(fetch_value(head));
        return more == 0 || fuse(more, work);
    }

    // Takes what it can of the `more` ops behind this one into its pass. Their results are those
    // that they would have one by one: the encoder has looked at which places they name (fuse.rs).
    RINGDOVE_INLINE bool fuse(u64 more, Work& work) {
        const u64 behind = (state.place.ops_end - op) / sizeof(Op) - 1;
        if (more > behind) {
            return refuse(PlanFault::Range, behind, more);
        }
        const Operands& first = work.operands;
        const bool is_sum = work.pass == Pass::Sum;
        if (!(is_sum ? has_fused_sum(DataType(state.arguments.data_type))
                     : work.pass == Pass::Plain) ||
            (first.destination | first.a | first.b | first.length) % VECTOR_BYTES != 0) {
            return true;
        }
        Fused& fused = work.fused;
        fused.sources[0] = first.a;
        fused.sources[1] = first.b;
        fused.destinations[0] = first.destination;
        fused.length = first.length;
        // Counted in shared memory: registers are for passes.
        fused.source_count = is_sum ? 2 : 1;
        fused.destination_count = 1;
        u32 left = u32(more);
#pragma unroll 1
        while (left != 0 && fuse_one(fetch(op + sizeof(Op)), fused)) {
            op += sizeof(Op);
            left -= 1;
        }
        // Those destinations wait for a pass of their own for which there is none here.
        const u32 kept = fused_destinations(fused.source_count, fused.destination_count);
        op -= (fused.destination_count - kept) * sizeof(Op);
        fused.destination_count = kept;
        if (fused.source_count <= 2 && kept == 1) {
            fused.source_count = 0;
        }
        return failed == FINE;
    }

    // One more source of the sum, or one more destination. False: it has a pass of its own.
    RINGDOVE_INLINE bool fuse_one(Head next, Fused& fused) {
        const bool adds = next.code == OpCode::Reduce;
        if (!adds && next.code != OpCode::Copy) {
            return refuse(PlanFault::OpCode, u64(OpCode::Copy), u64(next.code));
        }
        const Pass pass = select_pass(adds, ReduceOp(state.arguments.reduce_op), next.flags);
        u32& count = adds ? fused.source_count : fused.destination_count;
        const bool is_late = adds && (fused.source_count == 1 || fused.destination_count != 1);
        if (pass != (adds ? Pass::Sum : Pass::Plain) || is_late || count == FUSED_MAX) {
            return false;
        }
        next.address += adds ? __builtin_offsetof(Op, a) : __builtin_offsetof(Op, destination);
        u64 address = 0;
        if (!resolve(fetch_operand<0>(next), fused.length, address) ||
            address % VECTOR_BYTES != 0) {
            return false;
        }
        (adds ? fused.sources : fused.destinations)[count] = address;
        count += 1;
        return true;
    }
};

}  // namespace ringdove
