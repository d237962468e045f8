// Rows of 8-bit floats: e4m3 with a scale for each 128 elements, made here or by the caller.
#pragma once

#include "experts.cuh"

namespace ringdove {

constexpr float E4M3_LARGEST = 448.0f;
// Blocks of smaller values are scaled as if this were their largest: no scale is zero.
constexpr float LARGEST_MIN = 1e-4f;
// Elements of a block that each lane takes.
constexpr u32 LANE_ELEMENTS = EXPERTS_SCALE_ELEMENTS / WARP_THREADS;
static_assert(LANE_ELEMENTS == 4, "a lane's bytes are one word");

// Scales of a row. The last one may be of fewer elements.
RINGDOVE_INLINE u32 scale_blocks(const ExpertsGroup& group) {
    return (group.hidden + EXPERTS_SCALE_ELEMENTS - 1) / EXPERTS_SCALE_ELEMENTS;
}

// Bytes of a row's scales, as callers hold them.
RINGDOVE_INLINE u32 scales_bytes(const ExpertsGroup& group) {
    const u32 blocks = scale_blocks(group);
    return group.scales == EXPERTS_F32_SCALES ? 4 * blocks : blocks;
}

// Four elements from `address` on.
RINGDOVE_INLINE void load_elements(DataType type, u64 address, float (&values)[4]) {
    if (type == DataType::F32) {
        ptx::Vector<u32> words;
        ptx::load_vector<0>(address, words);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            values[i] = ptx::f32_from_bits(words.words[i]);
        }
        return;
    }
    const u64 bits = ptx::load<u64>(address);
    const u32 words[2] = {u32(bits), u32(bits >> 32)};
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        if (type == DataType::F16) {
            values[2 * i] = F16Format::widen_low(words[i]);
            values[2 * i + 1] = F16Format::widen_high(words[i]);
        } else {
            values[2 * i] = BF16Format::widen_low(words[i]);
            values[2 * i + 1] = BF16Format::widen_high(words[i]);
        }
    }
}

// Quantises one token; a warp calls. The scale is the largest magnitude over 448; UE8M0 takes
// the next power of two. A value is divided by the scale in f32, and rounded to nearest even.
RINGDOVE_INLINE void quantise_row(const ExpertsGroup& group, u64 at, u64 token, u32 lane) {
    const DataType type = static_cast<DataType>(group.data_type);
    const u32 element = type == DataType::F32 ? 4 : 2;
    const u32 blocks = scale_blocks(group);
#pragma unroll 1
    for (u32 block = 0; block < blocks; ++block) {
        const u32 first = block * EXPERTS_SCALE_ELEMENTS + lane * LANE_ELEMENTS;
        // A row is a multiple of 16 elements: a lane has all of its four, or none.
        const bool has_elements = first < group.hidden;
        float values[4] = {0, 0, 0, 0};
        if (has_elements) {
            load_elements(type, token + u64(first) * element, values);
        }
        float largest = LARGEST_MIN;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float magnitude = values[i] < 0 ? -values[i] : values[i];
            largest = magnitude > largest ? magnitude : largest;
        }
#pragma unroll
        for (u32 lanes = WARP_THREADS / 2; lanes > 0; lanes /= 2) {
            const float other = ptx::exchange_f32(largest, lanes);
            largest = other > largest ? other : largest;
        }
        float scale = largest / E4M3_LARGEST;
        const u64 scales = at + group.data_bytes;
        if (group.scales == EXPERTS_UE8M0_SCALES) {
            const u32 exponent = (ptx::f32_bits(scale) + 0x7fffffu) >> 23;
            scale = ptx::f32_from_bits(exponent << 23);
            if (lane == 0) {
                ptx::store_byte(scales + block, exponent);
            }
        } else if (lane == 0) {
            ptx::store<float>(scales + block * 4, scale);
        }
        u32 word = 0;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            word |= E4M3Format::round(values[i] / scale) << (8 * i);
        }
        if (has_elements) {
            ptx::store<u32>(at + first, word);
        }
    }
}

}  // namespace ringdove
