// Expressions of tasks: a few instructions on a small stack (program.rs), run for each element. All
// threads of a block run the same ones, so that their switch does not divide warps.
#pragma once

#include "task_element.cuh"

namespace ringdove {

// What a task reads beside its record.
struct TaskContext {
    // The record, in shared memory.
    const ProgramTask& task;
    // Device addresses: the program's instructions, the iteration's parameters and its results.
    u64 instructions;
    u64 parameters;
    u64 results;
};

RINGDOVE_INLINE float load_parameter(const TaskContext& context, u32 number) {
    return ptx::load<float>(context.parameters + number * sizeof(float));
}

constexpr float LOGARITHM_TO_2_OF_E = 1.44269504f;
constexpr float LOGARITHM_OF_2 = 0.693147181f;

RINGDOVE_INLINE float exponential(float x) {
    return ptx::power_of_2_f32(x * LOGARITHM_TO_2_OF_E);
}

RINGDOVE_INLINE float logarithm(float x) { return ptx::logarithm_to_2_f32(x) * LOGARITHM_OF_2; }

// The values of one thread. They stay in registers: each push moves all of them.
class Stack {
public:
    RINGDOVE_INLINE void push(float value) {
#pragma unroll
        for (u32 i = EXPRESSION_DEPTH - 1; i > 0; --i) {
            values[i] = values[i - 1];
        }
        values[0] = value;
    }

    RINGDOVE_INLINE float pop() {
        const float value = values[0];
#pragma unroll
        for (u32 i = 0; i + 1 < EXPRESSION_DEPTH; ++i) {
            values[i] = values[i + 1];
        }
        return value;
    }

    RINGDOVE_INLINE float& top() { return values[0]; }

private:
    float values[EXPRESSION_DEPTH] = {};
};

// Replaces the two topmost values by one. The result of a product is rounded before it is used, as
// everywhere.
RINGDOVE_INLINE float combine(Instruction instruction, float a, float b) {
    switch (instruction) {
        case Instruction::Add:
            return a + b;
        case Instruction::Subtract:
            return a - b;
        case Instruction::Multiply:
            return a * b;
        case Instruction::Divide:
            return a / b;
        case Instruction::Maximum:
            return a > b ? a : b;
        case Instruction::Minimum:
            return a < b ? a : b;
        default:
            return a > b ? 1.0f : 0.0f;
    }
}

RINGDOVE_INLINE float transform(Instruction instruction, float a) {
    switch (instruction) {
        case Instruction::Negate:
            return -a;
        case Instruction::Absolute:
            return __builtin_fabsf(a);
        case Instruction::SquareRoot:
            return ptx::square_root_f32(a);
        case Instruction::Exponential:
            return exponential(a);
        default:
            return logarithm(a);
    }
}

// Runs the task's expression for one element. `stack` holds what the task has computed so far.
RINGDOVE_INLINE void evaluate(const TaskContext& context, u32 row, u32 column, Stack& stack) {
    const ProgramTask& task = context.task;
    u64 address = context.instructions + static_cast<u64>(task.expression) * sizeof(u64);
    const u64 end = address + static_cast<u64>(task.expression_length) * sizeof(u64);
#pragma unroll 1
    for (; address != end; address += sizeof(u64)) {
        const u64 word = ptx::load<u64>(address);
        const Instruction instruction = Instruction(u32(word));
        const u32 number = u32(word >> 32);
        switch (instruction) {
            case Instruction::Load:
                stack.push(F32::load(element_address(task.operands[number], row, column)));
                break;
            case Instruction::LoadF16:
                stack.push(F16::load(element_address(task.operands[number], row, column)));
                break;
            case Instruction::LoadBF16:
                stack.push(BF16::load(element_address(task.operands[number], row, column)));
                break;
            case Instruction::Store:
                F32::store(element_address(task.operands[number], row, column), stack.top());
                break;
            case Instruction::StoreF16:
                F16::store(element_address(task.operands[number], row, column), stack.top());
                break;
            case Instruction::StoreBF16:
                BF16::store(element_address(task.operands[number], row, column), stack.top());
                break;
            case Instruction::Constant:
                stack.push(ptx::f32_from_bits(number));
                break;
            case Instruction::Parameter:
                stack.push(load_parameter(context, number));
                break;
            case Instruction::Duplicate:
                stack.push(stack.top());
                break;
            case Instruction::Drop:
                stack.pop();
                break;
            case Instruction::Add:
            case Instruction::Subtract:
            case Instruction::Multiply:
            case Instruction::Divide:
            case Instruction::Maximum:
            case Instruction::Minimum:
            case Instruction::Greater: {
                const float b = stack.pop();
                stack.top() = combine(instruction, stack.top(), b);
                break;
            }
            default:
                stack.top() = transform(instruction, stack.top());
        }
    }
}

// Calls `body(row, column)` for each element of the tile, shared out among the block's threads.
template <class Body>
RINGDOVE_INLINE void for_each_element(const ProgramTask& task, Body body) {
    const u32 count = task.rows * task.columns;
    const u32 threads = ptx::thread_count();
#pragma unroll 1
    for (u32 element = ptx::thread_index(); element < count; element += threads) {
        body(element / task.columns, element % task.columns);
    }
}

RINGDOVE_INLINE void run_elementwise(const TaskContext& context) {
    for_each_element(context.task, [&](u32 row, u32 column) RINGDOVE_INLINE_LAMBDA {
        Stack stack;
        evaluate(context, row, column, stack);
    });
}

}  // namespace ringdove
