//! Vector registers (`.reg .v4 .f32 %v`): several plain registers, named `%v.x` to `%v.w`. A
//! register of 128 bits is one of two times 64.

use super::function::{FunctionDecoder, RegisterDeclaration};
use crate::ast::{Instruction, Operand, ScalarType as T};

impl RegisterDeclaration {
    /// As it was written; 128 bits become two halves.
    pub fn new(count: Option<u32>, scalar: T, vector: u8) -> Self {
        match scalar {
            T::B128 => Self { count, scalar: T::B64, vector: 2 },
            _ => Self { count, scalar, vector },
        }
    }
}

/// The number of a component: `x` and `r` are 0; digits stand for themselves, in names that this
/// module makes.
pub fn component(name: &str) -> Option<u8> {
    Some(match name {
        "x" | "r" => 0,
        "y" | "g" => 1,
        "z" | "b" => 2,
        "w" | "a" => 3,
        _ => name.parse().ok()?,
    })
}

impl FunctionDecoder<'_, '_> {
    /// The instruction with vector registers as lists of their parts, if it names one.
    pub(super) fn with_parts(&self, instruction: &Instruction) -> Option<Instruction> {
        if !self.has_vectors
            || !instruction.operands.iter().any(|operand| self.parts_of(operand).is_some())
        {
            return None;
        }
        let mut instruction = instruction.clone();
        for operand in &mut instruction.operands {
            if let Some(parts) = self.parts_of(operand) {
                *operand = Operand::Vector(parts);
            }
        }
        Some(instruction)
    }

    /// The parts of a vector register.
    pub(super) fn parts_of(&self, operand: &Operand) -> Option<Vec<Operand>> {
        let Operand::Name(name) = operand else { return None };
        let vector = self.declaration(name)?.vector;
        let part = |number: u8| Operand::Name(format!("{name}.{number}"));
        (vector > 1).then(|| (0..vector).map(part).collect())
    }
}
