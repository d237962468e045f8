// What the kernels of expert parallelism are given: the mirror of kernels/src/experts.rs, where
// every field is described. layout.cuh includes this file, and asserts it with the rest.
#pragma once

#include "ptx.cuh"

namespace ringdove {

constexpr u32 EXPERTS_LOW_LATENCY = 0;
constexpr u32 EXPERTS_THROUGHPUT = 1;
constexpr u64 EXPERTS_WORD_STRIDE = 32;
constexpr u32 EXPERTS_WIDE_INDICES = 1;
constexpr u32 EXPERTS_TOO_MANY = 2;
constexpr u32 EXPERTS_WEIGHTS = 4;
constexpr u32 EXPERTS_QUANTISE = 8;
constexpr u32 EXPERTS_NO_SCALES = 0;
constexpr u32 EXPERTS_F32_SCALES = 1;
constexpr u32 EXPERTS_UE8M0_SCALES = 2;
constexpr u32 EXPERTS_SCALE_ELEMENTS = 128;
constexpr u64 EXPERTS_NO_FAULT = 0xffffffffffffffffull;

enum class ExpertsFaultCode : u32 {
    Index = 1,
    Repeated = 2,
    Weight = 3,
    Tokens = 4,
    Message = 5,
    Gone = 6,
};

struct ExpertsGroup {
    u64 handle;
    u64 state;
    u64 arrivals;
    u64 received;
    u64 message_bytes;
    u64 returned;
    u64 returned_bytes;
    u64 outgoing;
    u64 returning;
    u64 relayed;
    u64 relayed_bytes;
    u64 gathered;
    u64 gathered_bytes;
    u64 owners;
    u64 first_experts;
    u64 gone;
    u64 grace_ns;
    u64 histogram;
    u32 experts;
    u32 local_experts;
    u32 top_k;
    u32 tokens_max;
    u32 rows_max;
    u32 home_rows_max;
    u32 header_bytes;
    u32 data_bytes;
    u32 scale_bytes;
    u32 row_bytes;
    u32 return_data_bytes;
    u32 return_row_bytes;
    u32 mode;
    u32 data_type;
    u32 lane;
    u32 alignment;
    u32 scales;
    u32 hidden;
    u32 node_ranks;
    u32 relayed_header_bytes;
    u32 relayed_row_bytes;
    u32 goes_on;
    u32 return_rows_max;
    u32 choices_bytes;
};

struct ExpertsFault {
    u64 step;
    u64 place;
    s64 value;
    u32 code;
    u32 rank;
};

struct ExpertsState {
    u64 sent;
    u64 received;
    u64 returns_sent;
    u64 returns_received;
    u64 blocks_done;
    u64 blocks_done_far;
    u64 first_fault;
    u64 gone_count;
    ExpertsFault fault;
};

struct ExpertsHeader {
    u64 step;
    u32 rows;
    u32 home_base;
    ExpertsFault fault;
};

struct ExpertsRow {
    u32 token;
    u32 choice;
    u32 weight;
    u32 reserved;
};

struct ExpertsRouting {
    u64 indices;
    u64 weights;
    u64 places;
    u64 homes;
    u64 counts;
    u64 bases;
    u64 rows;
    u64 home_bases;
    u64 message_bases;
    u64 fault;
    u64 in_rows;
    u64 in_returns;
    u64 in_homes;
    u64 in_bases;
    u64 in_starts;
    u64 in_places;
    u64 message_places;
    u64 relay_rows;
    u64 relay_homes;
    u64 relay_choices;
    u64 missing;
};

struct ExpertsCall {
    u64 group;
    ExpertsRouting routing;
    u64 input;
    u64 scales;
    u64 indices;
    u64 weights;
    u64 output;
    u64 output_scales;
    u64 output_counts;
    u64 output_indices;
    u64 output_weights;
    u64 output_sources;
    u64 output_missing;
    u32 tokens;
    u32 flags;
};

}  // namespace ringdove
