// Layouts of resident programs: the mirror of program.rs, where every field is described.
#pragma once

#include "ptx.cuh"

namespace ringdove {

constexpr u64 PROGRAM_MAGIC = 0x00014752504c5244ull;
constexpr u32 NO_COUNTER = 0xffffffffu;
constexpr u32 TASK_OPERANDS = 5;
constexpr u32 EXPRESSION_DEPTH = 6;
constexpr u32 PARAMETERS = 16;
constexpr u32 MAILBOX_ITERATIONS = 128;
constexpr u32 RESULTS = 64;
constexpr u64 ITERATIONS_AT_ONCE = 2;
constexpr u32 STATE_ITERATIONS = 4;
constexpr u32 TASK_ELEMENT_BITS = 4;
constexpr u32 MATRIX_TENSOR_CORES = 1;
constexpr u32 BATCHES = 8;
constexpr u32 BATCH_OPERANDS_SHIFT = 20;
constexpr u32 BATCH_NUMBER_SHIFT = 56;

enum class TaskKind : u32 {
    Matrix = 1,
    Elementwise = 2,
    Reduce = 3,
    Softmax = 4,
    SoftmaxBackward = 5,
    CrossEntropy = 6,
    Norm = 7,
    NormBackward = 8,
    Gather = 9,
    ScatterAdd = 10,
    Attention = 11,
    Report = 12,
    Collective = 13,
    User = 14,
    Keep = 15,
    Put = 16,
    Signal = 17,
    Wait = 18,
};

enum class Instruction : u32 {
    Load = 1,
    Store = 2,
    Constant = 3,
    Parameter = 4,
    Duplicate = 5,
    Add = 6,
    Subtract = 7,
    Multiply = 8,
    Divide = 9,
    Maximum = 10,
    Minimum = 11,
    Greater = 12,
    Negate = 13,
    Absolute = 14,
    SquareRoot = 15,
    Exponential = 16,
    Logarithm = 17,
    Drop = 18,
    LoadF16 = 19,
    LoadBF16 = 20,
    StoreF16 = 21,
    StoreBF16 = 22,
};

enum class TaskElement : u32 {
    Word = 0,
    F16 = 1,
    BF16 = 2,
};

enum class ProgramMode : u32 {
    Resident = 1,
    Begin = 2,
    Tasks = 3,
    End = 4,
};

struct TaskOperand {
    u64 address;
    u32 row_bytes;
    u32 column_bytes;
};

struct ProgramTask {
    u32 kind;
    u32 raises;
    u32 waits;
    u32 wait_count;
    u32 rows;
    u32 columns;
    u32 inner;
    u32 option;
    TaskOperand operands[TASK_OPERANDS];
    u32 expression;
    u32 expression_length;
    u32 value;
    u32 elements;
};

struct ProgramWait {
    u32 counter;
    u32 raises;
    u32 count;
    u32 lag;
};

struct ProgramBlock {
    u32 first;
    u32 count;
};

struct ProgramHeader {
    u64 magic;
    u32 block_count;
    u32 service_blocks;
    u32 task_count;
    u32 result_count;
    u64 blocks;
    u64 steps;
    u64 tasks;
    u64 waits;
    u64 instructions;
    u64 calls;
    u64 counters;
    u64 state;
    u64 mailbox;
    u64 stamps;
    u32 stamp_capacity;
    u32 batch_count;
    u64 handle;
    u64 words;
};

struct ProgramStamp {
    u32 task;
    u32 reserved;
    u64 iteration;
    u64 came_ns;
    u64 began_ns;
    u64 ended_ns;
};

struct ProgramState {
    u64 released;
    u64 stop_at;
    u64 ended[STATE_ITERATIONS];
    float parameters[STATE_ITERATIONS][PARAMETERS];
    u64 batches[STATE_ITERATIONS][BATCHES];
};

struct Mailbox {
    u64 granted;
    u64 stop;
    u64 done;
    u64 reserved[5];
    u32 parameters[MAILBOX_ITERATIONS][PARAMETERS];
    u32 results[MAILBOX_ITERATIONS][RESULTS];
    u64 batches[MAILBOX_ITERATIONS][BATCHES];
};

struct ProgramArguments {
    u64 program;
    u64 communicator;
    u64 iteration;
    u64 stops;
    u64 sequence;
    u32 mode;
    u32 first_task;
};

}  // namespace ringdove
