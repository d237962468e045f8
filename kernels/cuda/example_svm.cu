// Kernels of examples/svm.rs: sequential minimal optimisation of a support vector machine whose
// samples lie on several GPUs. Each GPU has the samples from `first` on, in sparse rows.
//
// gamma_i = sum over j of alpha_j y_j K(x_i, x_j) - y_i. The two samples to change are the one with
// the least gamma among those whose alpha y may grow ("up"), and the one with the greatest among
// those whose alpha y may fall ("low"). An all-reduce of keys finds them, an all-reduce of slots,
// to which only their owners add anything but zeros, publishes them.
//
// All sums have one order that does not depend on the number of GPUs, so the model does not either.

#include "ptx.cuh"

namespace {

namespace ptx = ringdove::ptx;
using ringdove::s64;
using ringdove::u32;
using ringdove::u64;

// Sparse rows: row i has entries offsets[i] to offsets[i + 1], with ascending columns.
struct Rows {
    const u32* offsets;
    const u32* columns;
    const double* values;
    // Of each row: the sum of its squares.
    const double* squares;
    u32 count;
    // The number of row 0 among the samples of all GPUs.
    u32 first;
};

struct Kernel {
    // Not 0: radial basis functions, exp(-width |a - b|^2); 0: products.
    u32 is_radial;
    u32 unused;
    double width;
};

struct Limits {
    // The most that an alpha may be.
    double cost;
    // Done when no pair is further apart.
    double tolerance;
};

// What a sample is in the exchange: this, then `columns_max` columns, then as many values.
struct Slot {
    double alpha;
    double gamma;
    double label;
    double square;
    u32 count;
    // Not 0: there is a sample.
    u32 is_there;
};

// What the host reads now and then.
struct Progress {
    double up;
    double low;
    u32 steps;
    u32 is_done;
};

constexpr u64 NO_KEY = ~0ull;

RINGDOVE_INLINE u32 own_index() {
    return ptx::block_index() * ptx::thread_count() + ptx::thread_index();
}

RINGDOVE_INLINE u32 all_threads() { return ptx::block_count() * ptx::thread_count(); }

RINGDOVE_INLINE bool may_grow(double label, double alpha, double cost) {
    return label > 0 ? alpha < cost : alpha > 0;
}

RINGDOVE_INLINE bool may_fall(double label, double alpha, double cost) {
    return label > 0 ? alpha > 0 : alpha < cost;
}

// Bits that are ordered as the values are. Rounded: which of two close samples is taken does not
// matter, as long as all GPUs take the same.
RINGDOVE_INLINE u32 ordered(double value) {
    const u32 bits = ptx::f32_bits(float(value));
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// exp(x) for x <= 0, to about the precision of a double: 2^k times a Taylor polynomial of the rest.
RINGDOVE_INLINE double exponential(double x) {
    if (!(x > -700)) {
        return 0;
    }
    constexpr double SHIFT = 6755399441055744.0;  // 1.5 * 2^52: the sum's last bit is 1.
    const double k = (x * 1.4426950408889634 + SHIFT) - SHIFT;
    const double r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    double sum = 1.0 / 6227020800.0;
    sum = sum * r + 1.0 / 479001600.0;
    sum = sum * r + 1.0 / 39916800.0;
    sum = sum * r + 1.0 / 3628800.0;
    sum = sum * r + 1.0 / 362880.0;
    sum = sum * r + 1.0 / 40320.0;
    sum = sum * r + 1.0 / 5040.0;
    sum = sum * r + 1.0 / 720.0;
    sum = sum * r + 1.0 / 120.0;
    sum = sum * r + 1.0 / 24.0;
    sum = sum * r + 1.0 / 6.0;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    return sum * ptx::f64_from_bits(u64(s64(k) + 1023) << 52);
}

RINGDOVE_INLINE double kernel_of(const Kernel& kernel, double product, double a, double b) {
    if (kernel.is_radial == 0) {
        return product;
    }
    // Rounding may leave a little less than nothing of two equal rows.
    const double apart = a + b - 2 * product;
    return exponential(-kernel.width * (apart > 0 ? apart : 0));
}

// The product of a row with one that is spread out by column.
RINGDOVE_INLINE double product_with(const Rows& rows, u32 row, const double* spread) {
    double sum = 0;
    for (u32 at = rows.offsets[row]; at < rows.offsets[row + 1]; at++) {
        sum += rows.values[at] * spread[rows.columns[at]];
    }
    return sum;
}

// The product of two sparse rows.
RINGDOVE_INLINE double product_of(const Rows& a, u32 i, const Rows& b, u32 j) {
    double sum = 0;
    u32 at = a.offsets[i], other = b.offsets[j];
    const u32 end = a.offsets[i + 1], other_end = b.offsets[j + 1];
    while (at < end && other < other_end) {
        const u32 column = a.columns[at], other_column = b.columns[other];
        if (column == other_column) {
            sum += a.values[at] * b.values[other];
        }
        at += column <= other_column ? 1 : 0;
        other += other_column <= column ? 1 : 0;
    }
    return sum;
}

RINGDOVE_INLINE const u32* columns_of(const Slot* slot) {
    return reinterpret_cast<const u32*>(slot + 1);
}

RINGDOVE_INLINE const double* values_of(const Slot* slot, u32 columns_max) {
    return reinterpret_cast<const double*>(columns_of(slot) + columns_max);
}

RINGDOVE_INLINE const Slot* slot_at(const u32* slots, u32 which, u32 slot_words) {
    return reinterpret_cast<const Slot*>(slots + which * slot_words);
}

}  // namespace

// keys[0] = the least key of a sample that may grow, keys[1] = that of one that may fall: the
// sample's place in the order of gamma, then its number. Both are NO_KEY before, see `svm_step`.
extern "C" __global__ void svm_extremes(const u32* active, u32 active_count, const double* labels,
                                        const double* alphas, const double* gammas, u32 first,
                                        Limits limits, u64* keys) {
    u64 up = NO_KEY, low = NO_KEY;
    for (u32 at = own_index(); at < active_count; at += all_threads()) {
        const u32 i = active[at];
        const u64 number = first + i;
        const u64 place = ordered(gammas[i]);
        const u64 grows = place << 32 | number, falls = (place ^ 0xffffffffull) << 32 | number;
        if (may_grow(labels[i], alphas[i], limits.cost)) {
            up = grows < up ? grows : up;
        }
        if (may_fall(labels[i], alphas[i], limits.cost)) {
            low = falls < low ? falls : low;
        }
    }
    if (up != NO_KEY) {
        ptx::fetch_min_relaxed_gpu_u64(reinterpret_cast<u64>(&keys[0]), up);
    }
    if (low != NO_KEY) {
        ptx::fetch_min_relaxed_gpu_u64(reinterpret_cast<u64>(&keys[1]), low);
    }
}

// Block 0 and block 1 fill a slot each: with the sample that the keys of all GPUs name, if it is
// here, else with zeros. And they clear `spread`, two rows by column, of the pair before.
extern "C" __global__ void svm_publish(const u64* keys, Rows rows, const double* labels,
                                       const double* alphas, const double* gammas, u32* slots,
                                       u32 slot_words, u32 columns_max, const u32* pair,
                                       double* spread, u32 columns) {
    const u32 which = ptx::block_index();
    const Slot* before = slot_at(pair, which, slot_words);
    for (u32 at = ptx::thread_index(); at < before->count; at += ptx::thread_count()) {
        spread[which * columns + columns_of(before)[at]] = 0;
    }
    u32* words = slots + which * slot_words;
    for (u32 at = ptx::thread_index(); at < slot_words; at += ptx::thread_count()) {
        words[at] = 0;
    }
    ptx::barrier();
    const u64 key = keys[which];
    const u32 row = u32(key) - rows.first;
    if (key == NO_KEY || u32(key) < rows.first || row >= rows.count) {
        return;
    }
    Slot* slot = reinterpret_cast<Slot*>(words);
    const u32 start = rows.offsets[row], count = rows.offsets[row + 1] - start;
    if (ptx::thread_index() == 0) {
        *slot = {alphas[row], gammas[row], labels[row], rows.squares[row], count, 1};
    }
    u32* slot_columns = reinterpret_cast<u32*>(slot + 1);
    double* slot_values = reinterpret_cast<double*>(slot_columns + columns_max);
    for (u32 at = ptx::thread_index(); at < count; at += ptx::thread_count()) {
        slot_columns[at] = rows.columns[start + at];
        slot_values[at] = rows.values[start + at];
    }
}

// Block 0 and block 1 spread a row of the pair each.
extern "C" __global__ void svm_spread(const u32* pair, u32 slot_words, u32 columns_max,
                                      double* spread, u32 columns) {
    const u32 which = ptx::block_index();
    const Slot* slot = slot_at(pair, which, slot_words);
    for (u32 at = ptx::thread_index(); at < slot->count; at += ptx::thread_count()) {
        spread[which * columns + columns_of(slot)[at]] = values_of(slot, columns_max)[at];
    }
}

// Changes the pair as far as it goes, and the gammas with it. Does nothing once all is done.
extern "C" __global__ void svm_step(const u32* pair, u32 slot_words, u32 columns_max,
                                    const u64* found, Rows rows, const u32* active,
                                    u32 active_count, double* alphas, double* gammas,
                                    const double* spread, u32 columns, Kernel kernel,
                                    Limits limits, u64* keys, Progress* progress) {
    __shared__ double moved;
    const Slot* up = slot_at(pair, 0, slot_words);
    const Slot* low = slot_at(pair, 1, slot_words);
    const double* spread_low = spread + columns;
    if (ptx::thread_index() == 0) {
        const bool is_first = ptx::block_index() == 0;
        const bool is_pair = up->is_there != 0 && low->is_there != 0;
        const double gap = is_pair ? low->gamma - up->gamma : 0;
        double step = 0;
        if (gap > limits.tolerance) {
            double product = 0;
            for (u32 at = 0; at < up->count; at++) {
                product += values_of(up, columns_max)[at] * spread_low[columns_of(up)[at]];
            }
            const double curve = kernel_of(kernel, up->square, up->square, up->square) +
                                 kernel_of(kernel, low->square, low->square, low->square) -
                                 2 * kernel_of(kernel, product, up->square, low->square);
            // Two samples that the kernel cannot tell apart go as far as they may.
            step = gap / (curve > 1e-12 ? curve : 1e-12);
            const double up_room = up->label > 0 ? limits.cost - up->alpha : up->alpha;
            const double low_room = low->label > 0 ? low->alpha : limits.cost - low->alpha;
            const double room = up_room < low_room ? up_room : low_room;
            step = step < room ? step : room;
            const u32 up_row = u32(found[0]) - rows.first, low_row = u32(found[1]) - rows.first;
            if (is_first && up_row < rows.count) {
                const double end = up->label > 0 ? limits.cost : 0;
                const double change = up->label > 0 ? step : -step;
                alphas[up_row] = step == up_room ? end : up->alpha + change;
            }
            if (is_first && low_row < rows.count) {
                const double end = low->label > 0 ? 0 : limits.cost;
                const double change = low->label > 0 ? -step : step;
                alphas[low_row] = step == low_room ? end : low->alpha + change;
            }
        }
        moved = step;
        if (is_first) {
            keys[0] = NO_KEY;
            keys[1] = NO_KEY;
            if (is_pair) {
                progress->up = up->gamma;
                progress->low = low->gamma;
            }
            progress->steps += step > 0 ? 1 : 0;
            progress->is_done = step > 0 ? 0 : 1;
        }
    }
    ptx::barrier();
    const double step = moved;
    if (!(step > 0)) {
        return;
    }
    for (u32 at = own_index(); at < active_count; at += all_threads()) {
        const u32 i = active[at];
        const double square = rows.squares[i];
        const double with_up = kernel_of(kernel, product_with(rows, i, spread), square, up->square);
        const double with_low =
            kernel_of(kernel, product_with(rows, i, spread_low), square, low->square);
        gammas[i] += step * (with_up - with_low);
    }
}

// gamma of the samples `which`, as if no other had an alpha.
extern "C" __global__ void svm_restart(const u32* which, u32 count, const double* labels,
                                       double* gammas) {
    const u32 at = own_index();
    if (at < count) {
        gammas[which[at]] = -labels[which[at]];
    }
}

// Adds to the gammas of the samples `which` what the support vectors of one GPU bring.
// weights[j] = alpha_j y_j.
extern "C" __global__ void svm_rebuild(const u32* which, u32 count, Rows rows, double* gammas,
                                       Rows vectors, const double* weights, Kernel kernel) {
    const u32 at = own_index();
    if (at >= count) {
        return;
    }
    const u32 i = which[at];
    double gamma = gammas[i];
    for (u32 j = 0; j < vectors.count; j++) {
        const double product = product_of(rows, i, vectors, j);
        gamma += weights[j] * kernel_of(kernel, product, rows.squares[i], vectors.squares[j]);
    }
    gammas[i] = gamma;
}
