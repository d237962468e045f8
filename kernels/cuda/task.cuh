// Users' own tasks of resident programs: device functions that a program's blocks call, tile by
// tile, between its other tasks.
//
// A function has this signature, in whatever language; it is compiled to PTX, with its name
// visible, and linked into the kernel by `ringdove::program::Function`:
//
//     void name(const ProgramTask* task, u64 iteration, const float* parameters)
//     .visible .func name(.param .b64 task, .param .b64 iteration, .param .b64 parameters)
//
// * All threads of a block call it together, with the same arguments: a one-dimensional block of
//   whole warps. They may meet at barrier 0, and all of them return.
// * `task` is a generic address (it lies in shared memory) of the tile's record, which it must not
//   change. What counts in it, by offset in bytes: 16 `rows`, 20 `columns`, 24 `inner`, 28
//   `option` (u32 each, as the graph was told), 32 + 16 n operand n (u64 `address` of its first
//   element in global memory, u32 `row_bytes`, u32 `column_bytes`), 120 `value` (f32; its
//   bits in the C++ record), 124 `elements` (u32: bits 4 n to 4 n + 3 are 0 where operand n has
//   f32 or u32, 1 where it has f16, 2 where it has bf16). An operand that the tile does not have
//   has address 0. Element (row, column) is at address + row * row_bytes + column *
//   column_bytes.
// * `parameters` are those of the iteration, 16 of them, in global memory.
// * It reads and writes the operands as the graph was told, and no other memory that tasks use:
//   the verifier believes what the graph says.
// * Its own shared memory, if any, is static, and counts where blocks must find room on the GPU.
// * Memory needs no fence: what it has written is there for the tasks that wait for it.
//
// C++ may include this file, which has the record, and `task_rows.cuh` for walks over tiles and
// `Tile`, an operand that is read and written as f32, whatever its type.
#pragma once

#include "program_layout.cuh"

// Begins the definition of a user's task.
#define RINGDOVE_TASK(NAME)                                                                 \
    extern "C" __device__ __attribute__((used)) void NAME(const ringdove::ProgramTask* task, \
                                                          ringdove::u64 iteration,           \
                                                          const float* parameters)
