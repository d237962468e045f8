// The layouts that device code shares with hosts and engines: the mirror of kernels/src/*.rs,
// where every field is described. `layout_check.inc` is written by Rust (tests/layout.rs) and
// asserts here what Rust holds to be true, so neither side can drift alone.
#pragma once

#include "experts_layout.cuh"
#include "program_layout.cuh"
#include "ptx.cuh"

namespace ringdove {

// descriptor.rs

constexpr u64 DESCRIPTOR_BYTES = 16;
constexpr u64 OFFSET_MAX = (1ull << 40) - 1;
constexpr u64 LENGTH_BYTES_MAX = 1ull << 22;
constexpr u32 ROUTE_MAX = (1u << 20) - 1;
constexpr u64 LAP_BIT = 1ull << 63;
constexpr u32 LENGTH_SHIFT = 40;
constexpr u32 ROUTE_SHIFT = 40;
constexpr u64 ARRIVAL_BIT = 1ull << 60;
constexpr u64 COMPLETION_BIT = 1ull << 61;
constexpr u64 NO_DATA_BIT = 1ull << 62;

// element.rs

enum class DataType : u32 {
    I8 = 0,
    U8 = 1,
    I32 = 2,
    U32 = 3,
    I64 = 4,
    U64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    BF16 = 9,
    F8E4M3 = 10,
    F8E5M2 = 11,
};
constexpr u32 DATA_TYPE_COUNT = 12;

enum class ReduceOp : u32 {
    Sum = 0,
    Prod = 1,
    Max = 2,
    Min = 3,
    Avg = 4,
    PreMulSum = 5,
};
constexpr u32 REDUCE_OP_COUNT = 6;

// op.rs

constexpr u64 PLAN_MAGIC = 0x00014e414c504452ull;
constexpr u32 BLOCK_PORTS_MAX = 32;
constexpr u32 THREADS_MAX = 640;
constexpr u32 BUFFERS_MAX = 4;
constexpr u32 MESSAGES_MAX = 15;
constexpr u64 WHOLE_SLOT_PERIOD = 1ull << 30;

struct PlanHeader {
    u64 magic;
    u32 size_bytes;
    u32 block_count;
    u32 thread_count;
    u32 reserved[3];
};

struct BlockProgram {
    u32 segments;
    u32 segment_count;
    u32 ports;
    u32 port_count;
};

struct Segment {
    u32 ops;
    u32 op_count;
    u32 rounds;
    u32 reserved;
    u64 round_stride;
    u64 limit;
};

enum class OpCode : u8 {
    Copy = 1,
    Reduce = 2,
    Put = 3,
    Credit = 4,
    WaitSignal = 5,
    WaitCompletion = 6,
    Advance = 7,
    Pack = 8,
    Collect = 9,
    Grant = 10,
};

namespace flags {
constexpr u8 ARRIVAL = 1;
constexpr u8 COMPLETION = 2;
constexpr u8 SCALE = 4;
constexpr u8 FINISH = 8;
constexpr u8 LOW_LATENCY = 16;
}  // namespace flags

enum class Space : u8 {
    None = 0,
    Buffer = 1,
    Slot = 2,
    Address = 3,
    Granted = 4,
    Peer = 5,
};

struct Operand {
    u64 offset;
    u32 number;
    u16 port;
    Space space;
    u8 reserved;
};

struct Op {
    OpCode code;
    u8 flags;
    u16 port;
    u32 length;
    u64 extent;
    s64 value;
    u64 before;
    Operand destination;
    Operand a;
    Operand b;
};

// port.rs

struct Port {
    u64 signal;
    u64 position;
    u64 completion;
    u64 completion_position;
    u64 slots;
    u32 slot_bytes;
    u32 slot_mask;
    u32 route;
    u32 route_index;
    u32 peer;
    u32 in_host;
    u64 peer_slots;
    u64 peer_signal;
};

// launch.rs

struct DeviceCommunicator {
    u64 ring_slots;
    u64 ring_head;
    u64 ring_tail;
    u64 ring_tail_cache;
    u32 ring_log2;
    u32 rank;
    u32 rank_count;
    u32 port_count;
    u64 ports;
    u64 abort;
    u64 record_claim;
    u64 record;
    u64 timeout_ns;
    u64 staging;
    u64 host_staging;
    u64 shared_staging;
    u64 blocks_ended;
    u64 launches_ended;
    u64 sources;
};

namespace place {
constexpr u32 OFFSET_BITS = 40;
constexpr u32 GENERATION_SHIFT = 52;
constexpr u32 SOURCES_MAX = 64;
constexpr u32 GRANTS_MAX = 256;
constexpr u32 ENTRY_GENERATION_SHIFT = 20;
}  // namespace place

// What a put from a slot of this port counts its source's offset from.
RINGDOVE_INLINE u64 staging_of(const DeviceCommunicator& communicator, const Port& port) {
    switch (port.in_host) {
        case 0:
            return communicator.staging;
        case 1:
            return communicator.host_staging;
        default:
            return communicator.shared_staging;
    }
}

constexpr u32 LAUNCH_CALLS_MAX = 8;

struct CallArguments {
    u64 plan;
    u64 buffers[BUFFERS_MAX];
    u64 region_offsets[BUFFERS_MAX];
    u32 route_bases[BUFFERS_MAX * BUFFERS_MAX];
    u64 scalar;
    u32 data_type;
    u32 reduce_op;
    u64 addresses;
    u32 address_count;
    u32 source;
};

struct LaunchArguments {
    u64 communicator;
    u64 sequence;
    u32 call_count;
    u32 reserved;
    CallArguments calls[LAUNCH_CALLS_MAX];
};

enum class WaitKind : u32 {
    Arrival = 1,
    Credit = 2,
    Completion = 3,
    RingSpace = 4,
    BadPlan = 5,
    StrayClaim = 6,
    BadCall = 7,
    Counter = 8,
};

// `WaitRecord::state`.
constexpr u32 RECORD_EXPIRED = 1;
constexpr u32 RECORD_ABORTED = 2;
// `DeviceCommunicator::record_claim` once a thread has taken the record.
constexpr u32 RECORD_CLAIMED = 0x4b41454c;
// `WaitRecord::peer` and `port` where there is none.
constexpr u32 NO_RANK = 0xffffffffu;
constexpr u32 NO_PORT = 0xffffffffu;

// What users' kernels are given.
struct DeviceHandle {
    u64 communicator;
    u64 ports;
    u64 windows;
    u64 routes;
    u32 lane_count;
    u32 window_count;
    u64 reached;
};

struct LanePorts {
    u32 send;
    u32 receive;
};

struct WindowEntry {
    u64 address;
    u64 bytes;
};

// What the kernel that watches an adapter's writes is given.
constexpr u64 WORDS_BYTES_PER_THREAD = 16;
struct WordsCall {
    u64 words;
    u64 stop;
    u64 tally;
    u64 timeout_ns;
};

// What the kernel that tries queues is given: the mirror of mark.rs.
struct MarkCall {
    u64 mark;
    u64 gate;
    u64 timeout_ns;
};

// What the kernels of one-sided transfers are given: the mirror of window.rs.
constexpr u32 WINDOW_MOVE = 1;
constexpr u32 WINDOW_SIGNAL = 2;
constexpr u32 WINDOW_WAIT = 3;
struct WindowCall {
    u64 communicator;
    u64 sequence;
    u64 source;
    u64 destination;
    u64 bytes;
    u32 kind;
    u32 value;
    u32 port;
    u32 signal;
};

// What the kernel that applies gradients is given.
constexpr u32 OPTIMIZER_GRADIENTS = 16;
constexpr u32 OPTIMIZER_SGD = 1;
constexpr u32 OPTIMIZER_MOMENTUM = 2;
constexpr u32 OPTIMIZER_ADAM = 3;
struct OptimizerCall {
    u64 from;
    u64 to;
    u64 state_bytes;
    u64 count;
    u64 gradients[OPTIMIZER_GRADIENTS];
    float corrections[OPTIMIZER_GRADIENTS][2];
    u32 kind;
    u32 gradient_count;
    float rate;
    float first;
    float second;
    float epsilon;
};

// What is wrong with a plan, or with a call of a user's kernel; in `WaitRecord::position` of a
// `BadPlan` or `BadCall` record.
enum class PlanFault : u32 {
    Magic = 1,
    BlockCount = 2,
    ThreadCount = 3,
    Range = 4,
    PortCount = 5,
    PortNumber = 6,
    OpCode = 7,
    OpPort = 8,
    Space = 9,
    BufferNumber = 10,
    SlotRange = 11,
    PutLength = 12,
    DescriptorOffset = 13,
    Route = 14,
    Alignment = 15,
    DataType = 16,
    ReduceOp = 17,
    NoSignal = 18,
    SlotPort = 19,
    MessageCount = 20,
    MessageNumber = 21,
    Peer = 22,
    Lane = 23,
    CallCount = 24,
    Place = 25,
};

struct WaitRecord {
    u32 state;
    u32 kind;
    u32 block;
    u32 segment;
    u32 op;
    u32 round;
    u32 port;
    u32 peer;
    u64 expected;
    u64 seen;
    u64 position;
    u64 sequence;
    u64 waited_ns;
    u64 call;
    u64 reserved[2];
};

#include "layout_check.inc"

}  // namespace ringdove
