// Elements of a task's operands. Tasks compute in f32: 16-bit elements are widened where they are
// read, and rounded to nearest even where they are written.
#pragma once

#include "arithmetic.cuh"

namespace ringdove {

RINGDOVE_INLINE u64 element_address(const TaskOperand& operand, u32 row, u32 column) {
    return operand.address + static_cast<u64>(row) * operand.row_bytes +
           static_cast<u64>(column) * operand.column_bytes;
}

RINGDOVE_INLINE TaskElement element_of(const ProgramTask& task, u32 number) {
    constexpr u32 MASK = (1u << TASK_ELEMENT_BITS) - 1;
    return TaskElement(task.elements >> number * TASK_ELEMENT_BITS & MASK);
}

RINGDOVE_INLINE float load_element(TaskElement element, u64 address) {
    switch (element) {
        case TaskElement::F16:
            return F16::load(address);
        case TaskElement::BF16:
            return BF16::load(address);
        default:
            return F32::load(address);
    }
}

RINGDOVE_INLINE void store_element(TaskElement element, u64 address, float value) {
    switch (element) {
        case TaskElement::F16:
            return F16::store(address, value);
        case TaskElement::BF16:
            return BF16::store(address, value);
        default:
            return F32::store(address, value);
    }
}

// An operand of a task, with the type of its elements: in registers, because the record lies in
// memory that the compiler would read again for each element.
struct Tile {
    TaskOperand operand;
    TaskElement element;

    RINGDOVE_INLINE Tile(const ProgramTask& task, u32 number)
        : operand(task.operands[number]), element(element_of(task, number)) {}

    RINGDOVE_INLINE bool is_there() const { return operand.address != 0; }

    RINGDOVE_INLINE float load(u32 row, u32 column) const {
        return load_element(element, element_address(operand, row, column));
    }

    // The element; `otherwise` of an operand that the task does not have.
    RINGDOVE_INLINE float load_or(u32 row, u32 column, float otherwise) const {
        return is_there() ? load(row, column) : otherwise;
    }

    RINGDOVE_INLINE void store(u32 row, u32 column, float value) const {
        store_element(element, element_address(operand, row, column), value);
    }
};

}  // namespace ringdove
