//! Resident programs as the kernel reads them (`kernels/cuda/program.cuh`): one image in device
//! memory, the state that the blocks share, and the mailbox in host memory.
//!
//! The image: a [`ProgramHeader`], then tables of [`ProgramBlock`]s, of steps (`u32`, numbers of
//! tasks, block after block), of [`ProgramTask`]s, of [`ProgramWait`]s, of instructions (`u64`, see
//! [`Instruction`]), and of [`CallArguments`](crate::launch::CallArguments). It holds addresses, so
//! the host makes it for one rank when the program starts, from a program that it has verified.

use bytemuck::{Pod, Zeroable};

/// `ProgramHeader::magic`.
pub const PROGRAM_MAGIC: u64 = 0x0001_4752_504c_5244;
/// The value of a counter's number where there is none.
pub const NO_COUNTER: u32 = u32::MAX;
/// Operands of a task.
pub const TASK_OPERANDS: usize = 5;
/// Values that an expression keeps at a time, at most.
pub const EXPRESSION_DEPTH: usize = 6;
/// Parameters of an iteration.
pub const PARAMETERS: usize = 16;
/// Iterations that the mailbox holds parameters and results of.
pub const MAILBOX_ITERATIONS: usize = 128;
/// Values that an iteration reports, at most.
pub const RESULTS: usize = 64;
/// Iterations that blocks may be in at a time: one begins when all blocks have ended the one that
/// many before.
pub const ITERATIONS_AT_ONCE: u64 = 2;
/// Iterations whose words in [`ProgramState`] are apart.
pub const STATE_ITERATIONS: usize = 4;
/// Bits of the [`TaskElement`] of one operand in [`ProgramTask::elements`].
pub const TASK_ELEMENT_BITS: u32 = 4;
/// `option` of a [`TaskKind::Matrix`] whose factors, both f16 or both bf16, tensor cores multiply
/// where the GPU has them for the type (bf16: from compute capability 8.0 on): all sizes are
/// multiples of 16, both factors begin at a multiple of 32 bytes, and their rows (or columns, of
/// one that is transposed) are a multiple of 8 elements apart. Sums of products are then added to
/// operand 3, in the order that the hardware has. 0: in the order of k, by one thread for each
/// value.
pub const MATRIX_TENSOR_CORES: u32 = 1;
/// Batches of a program: tensors whose address each iteration brings.
pub const BATCHES: usize = 8;
/// [`ProgramTask::elements`]: the bit of operand 0 that says that it lies in a batch.
pub const BATCH_OPERANDS_SHIFT: u32 = 20;
/// [`TaskOperand::address`] in a batch: the bits of the offset, below the batch's number.
pub const BATCH_NUMBER_SHIFT: u32 = 56;

/// What a task does. Sizes are `rows`, `columns` and `inner`; operand 0 is what it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum TaskKind {
    /// 0\[i\]\[j\] = expression(3\[i\]\[j\] + sum over k of 1\[i\]\[k\] * 2\[k\]\[j\]), added in
    /// the order of k. Without operand 3 the sum begins with 0; the expression finds it on its
    /// stack.
    Matrix = 1,
    /// Runs the expression for each element. What it stores goes to the operands that it names.
    Elementwise = 2,
    /// 0\[i\] = combination over k of 1\[i\]\[k\], in the order of k; `option` is a
    /// [`ReduceOp`](crate::element::ReduceOp) code: sum, product, maximum, minimum or mean.
    Reduce = 3,
    /// 0\[i\] = softmax of the row 1\[i\]: a warp for each row.
    Softmax = 4,
    /// 0\[i\] = the derivative by the softmax's input, of 1 (its output) and 2 (that derivative).
    SoftmaxBackward = 5,
    /// 0\[i\] = scale * (log of sum of exp of 1\[i\] - 1\[i\]\[2\[i\]\]); 3\[i\] = its derivative.
    /// Operand 2 holds class numbers, `u32`; the scale is `value`.
    CrossEntropy = 6,
    /// 0\[i\] = 1\[i\] normalised, times 2, plus 3 (where they are there); 4\[i\] keeps the mean
    /// and what it was multiplied by. `option` 1: by the root mean square, without the mean. The
    /// constant that keeps it finite is `value`.
    Norm = 7,
    /// 0\[i\] = the derivative by the norm's input, of 1 (the input), 2 (the factors, if any), 3
    /// (the derivative by the output) and 4 (what the norm kept).
    NormBackward = 8,
    /// 0\[i\] = the row of 1 with the number 2\[i\], `u32`; a number of `inner` or more gives
    /// zeros.
    Gather = 9,
    /// Adds the rows 1\[i\] to the rows 2\[i\] of 0, in the order of i: `inner` rows of 0, of which
    /// the task has `columns` columns. Rows of 16-bit elements are rounded once, when all that has
    /// their number was added.
    ScatterAdd = 10,
    /// Attention of a block of queries: 0\[i\] = sum over k of `w[i][k]` times 3\[k\], where `w[i]`
    /// is the softmax over k of `value` times the product of 1\[i\] and 2\[k\]. `inner` keys at
    /// most; as many as parameter `option` says, where it is not [`NO_COUNTER`].
    Attention = 11,
    /// Copies operand 1 to the results of the iteration, from place `option` on.
    Report = 12,
    /// A collective: `option` is the number of the call. It runs on every service block.
    Collective = 13,
    /// A user's device function (`kernels/cuda/task.cuh`): the one with the number that stands in
    /// `expression`. All other fields are its own.
    User = 14,
    /// After every `inner` iterations, copies operand 1 to operand 0, of which there are `option`
    /// places, taken in turn; the address of operand 2 is the distance from one to the next.
    Keep = 15,
    /// Copies operand 1, `rows` whole rows, to rank `option`, where it lies as operand 0 does in
    /// this rank's memory, and then sends that rank a message: it is the one with the number
    /// `value` of the `inner` that this rank sends it in each iteration.
    Put = 16,
    /// Sends rank `option` a message alone. `inner` and `value` are as for [`Put`](Self::Put).
    Signal = 17,
    /// Waits for a message of rank `option`: that with the number `value` of the `inner` that it
    /// sends in each iteration.
    Wait = 18,
}

/// An instruction of an expression: this code, and above it (from bit 32) a number.
///
/// The machine has a stack of [`EXPRESSION_DEPTH`] values. Binary instructions take the value below
/// as their left side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Instruction {
    /// Pushes the element of the operand with this number.
    Load = 1,
    /// Writes the top to the element of the operand with this number, and keeps it.
    Store = 2,
    /// Pushes the f32 with these bits.
    Constant = 3,
    /// Pushes the parameter of the iteration with this number.
    Parameter = 4,
    /// Pushes the top again.
    Duplicate = 5,
    /// a + b.
    Add = 6,
    /// a - b.
    Subtract = 7,
    /// a * b.
    Multiply = 8,
    /// a / b.
    Divide = 9,
    /// The larger one.
    Maximum = 10,
    /// The smaller one.
    Minimum = 11,
    /// 1 if a > b, else 0.
    Greater = 12,
    /// -a.
    Negate = 13,
    /// |a|.
    Absolute = 14,
    /// The square root, correctly rounded.
    SquareRoot = 15,
    /// e to the power of a, by the hardware's power of two.
    Exponential = 16,
    /// The natural logarithm, by the hardware's logarithm to the base of two.
    Logarithm = 17,
    /// Drops the top.
    Drop = 18,
    /// As [`Load`](Self::Load), of an operand of f16. Hosts choose these by the operand's type, so
    /// that f32 pays nothing for them.
    LoadF16 = 19,
    /// As [`Load`](Self::Load), of an operand of bf16.
    LoadBF16 = 20,
    /// As [`Store`](Self::Store), to an operand of f16: the value is rounded to nearest even. The
    /// top of the stack stays as it is.
    StoreF16 = 21,
    /// As [`Store`](Self::Store), to an operand of bf16.
    StoreBF16 = 22,
}

/// The elements of an operand. Tasks compute in f32: 16-bit elements are widened where they are
/// read, and rounded to nearest even where they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum TaskElement {
    /// Four bytes: f32, or u32 where the kind says so.
    #[default]
    Word = 0,
    /// IEEE 754 binary16.
    F16 = 1,
    /// bfloat16.
    BF16 = 2,
}

/// Where a tile of a tensor lies: element (row, column) is at `address + row * row_bytes +
/// column * column_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TaskOperand {
    /// Device address; 0 where the task has no such operand.
    pub address: u64,
    /// From one row to the next.
    pub row_bytes: u32,
    /// From one column to the next.
    pub column_bytes: u32,
}

/// One task: a tile of an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ProgramTask {
    /// A [`TaskKind`].
    pub kind: u32,
    /// Counter that the task raises by one when it has ended; [`NO_COUNTER`]: none.
    pub raises: u32,
    /// Number of the first of its waits.
    pub waits: u32,
    /// How many there are.
    pub wait_count: u32,
    /// Rows of the tile.
    pub rows: u32,
    /// Columns of the tile.
    pub columns: u32,
    /// Terms of each sum, and what else the kind says.
    pub inner: u32,
    /// As the kind says.
    pub option: u32,
    /// By number.
    pub operands: [TaskOperand; TASK_OPERANDS],
    /// Number of the first instruction of its expression; of a user's task, of its function.
    pub expression: u32,
    /// Instructions of it; 0: the value as it is.
    pub expression_length: u32,
    /// Bits of an f32, as the kind says.
    pub value: u32,
    /// The [`TaskElement`] of operand n, in the [`TASK_ELEMENT_BITS`] bits from bit 4 n on. Bit
    /// [`BATCH_OPERANDS_SHIFT`] + n: the operand lies in a batch, and its address is the offset
    /// there, with the number of the batch above [`BATCH_NUMBER_SHIFT`] bits.
    pub elements: u32,
}

/// A wait of a task: for counter `counter` to have come to `raises * (iteration - lag) + count`.
/// The target grows with the iteration, so no counter is ever reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ProgramWait {
    /// Which one.
    pub counter: u32,
    /// How often it is raised in each iteration.
    pub raises: u32,
    /// How often in this one, before the task begins.
    pub count: u32,
    /// 0: in the iteration of the task; 1: in the one before.
    pub lag: u32,
}

/// The steps of a block, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ProgramBlock {
    /// Number of the first step.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

/// Head of an image. Tables are named by their device addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ProgramHeader {
    /// [`PROGRAM_MAGIC`].
    pub magic: u64,
    /// Blocks of the resident launch.
    pub block_count: u32,
    /// The first of them, which run collectives.
    pub service_blocks: u32,
    /// Number of tasks.
    pub task_count: u32,
    /// Values that an iteration reports.
    pub result_count: u32,
    /// Of [`ProgramBlock`]s.
    pub blocks: u64,
    /// Of steps.
    pub steps: u64,
    /// Of [`ProgramTask`]s.
    pub tasks: u64,
    /// Of [`ProgramWait`]s.
    pub waits: u64,
    /// Of instructions.
    pub instructions: u64,
    /// Of [`CallArguments`](crate::launch::CallArguments).
    pub calls: u64,
    /// Of counters (`u64`, zero before the first launch).
    pub counters: u64,
    /// Of the [`ProgramState`].
    pub state: u64,
    /// Device address of the [`Mailbox`].
    pub mailbox: u64,
    /// Of the [`ProgramStamp`]s: a ring for each block, one behind the other; 0: none are taken.
    pub stamps: u64,
    /// Stamps of each ring.
    pub stamp_capacity: u32,
    /// Addresses that each iteration brings.
    pub batch_count: u32,
    /// Of the [`DeviceHandle`](crate::user::DeviceHandle), whose window 0 is the memory of tensors
    /// and, behind them, the words of messages; 0 where no task has to do with other ranks.
    pub handle: u64,
    /// Offset in window 0 of the words of messages (`u64`, zero before the first launch), by the
    /// rank that sends them: how many have come. They serve the ranks that this one's stores reach.
    pub words: u64,
}

/// When a block ran a task, by the clock that all blocks of a GPU share. A block's step `s` of
/// iteration `i` is at `(i * steps + s)` modulo the capacity of its ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ProgramStamp {
    /// Its number.
    pub task: u32,
    /// Zero.
    pub reserved: u32,
    /// Of this iteration.
    pub iteration: u64,
    /// The block came to it, and began to wait.
    pub came_ns: u64,
    /// It began: its counters were complete.
    pub began_ns: u64,
    /// It ended, and had raised its counter. 0: no stamp, or not yet.
    pub ended_ns: u64,
}

/// What the blocks share, in device memory; zero before the first launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ProgramState {
    /// Iterations and ends that block 0 has released; of ordinary launches, iterations that have
    /// ended.
    pub released: u64,
    /// The release that is the end of the launch; 0 before any.
    pub stop_at: u64,
    /// For each of the iterations under way: blocks that have ended it, over all iterations.
    pub ended: [u64; STATE_ITERATIONS],
    /// Parameters of the iterations under way, bits of f32.
    pub parameters: [[u32; PARAMETERS]; STATE_ITERATIONS],
    /// Addresses of their batches.
    pub batches: [[u64; BATCHES]; STATE_ITERATIONS],
}

/// What host and blocks tell each other, in pinned host memory; zero before the first launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Mailbox {
    /// Iterations that the host has granted; it only rises.
    pub granted: u64,
    /// Not 0: when they are done, the launch ends.
    pub stop: u64,
    /// Iterations that all blocks have ended; written by the GPU.
    pub done: u64,
    /// Zero.
    pub reserved: [u64; 5],
    /// Parameters of iteration i at i modulo [`MAILBOX_ITERATIONS`].
    pub parameters: [[u32; PARAMETERS]; MAILBOX_ITERATIONS],
    /// Its results, at the same place; written by the GPU.
    pub results: [[u32; RESULTS]; MAILBOX_ITERATIONS],
    /// Addresses of its batches, at the same place.
    pub batches: [[u64; BATCHES]; MAILBOX_ITERATIONS],
}

/// What a launch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ProgramMode {
    /// All iterations that are granted, until the host says stop.
    Resident = 1,
    /// Begins an iteration.
    Begin = 2,
    /// Tasks of an iteration, one in each block, from `first_task` on, without waits.
    Tasks = 3,
    /// Ends an iteration.
    End = 4,
}

/// The parameter of the entry `ringdove_program`, by value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ProgramArguments {
    /// Device address of the [`ProgramHeader`].
    pub program: u64,
    /// Device address of the [`DeviceCommunicator`](crate::launch::DeviceCommunicator).
    pub communicator: u64,
    /// The first iteration, of [`ProgramMode::Resident`]. Other launches find theirs in the
    /// [`ProgramState`], so that graphs of them can be launched again.
    pub iteration: u64,
    /// Resident launches of this program before this one.
    pub stops: u64,
    /// Counts the launches of the communicator; reported in the record of an expired wait.
    pub sequence: u64,
    /// A [`ProgramMode`].
    pub mode: u32,
    /// The first task, of [`ProgramMode::Tasks`].
    pub first_task: u32,
}

const _: () = {
    assert!(size_of::<ProgramTask>() == 128);
    assert!(size_of::<ProgramWait>() == 16);
    assert!(size_of::<ProgramStamp>() == 40);
    assert!(size_of::<ProgramState>().is_multiple_of(8));
};
