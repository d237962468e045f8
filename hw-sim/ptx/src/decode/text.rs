//! Instructions as text again, for faults and errors.

use crate::ast::{Instruction, Operand};

/// One operand.
pub fn operand(operand: &Operand) -> String {
    let list = |items: &[Operand]| items.iter().map(self::operand).collect::<Vec<_>>().join(", ");
    let signed = |offset: i64| match offset {
        0 => String::new(),
        offset => format!("{offset:+}"),
    };
    match operand {
        Operand::Name(name) => name.clone(),
        Operand::Negated(name) => format!("!{name}"),
        Operand::Integer(value) => value.to_string(),
        Operand::Float(value) => format!("{value:?}"),
        Operand::FloatBits32(bits) => format!("0f{bits:08X}"),
        Operand::NameOffset(name, offset) => format!("{name}{}", signed(*offset)),
        Operand::Address { base: Some(base), offset } => format!("[{base}{}]", signed(*offset)),
        Operand::Address { base: None, offset } => format!("[{offset}]"),
        Operand::Tensor { base, offset, coordinates } => {
            format!("[{base}{}, {{{}}}]", signed(*offset), list(coordinates))
        }
        Operand::Vector(items) => format!("{{{}}}", list(items)),
        Operand::Pair(first, second) => {
            format!("{}|{}", self::operand(first), self::operand(second))
        }
        Operand::List(items) => format!("({})", list(items)),
        Operand::Sink => "_".to_owned(),
    }
}

/// Opcode and modifiers.
pub fn opcode(instruction: &Instruction) -> String {
    let mut text = instruction.opcode.clone();
    for modifier in &instruction.modifiers {
        text.push('.');
        text.push_str(modifier);
    }
    text
}

/// A whole instruction.
pub fn instruction(instruction: &Instruction) -> String {
    let mut text = String::new();
    if let Some(guard) = &instruction.guard {
        let negation = if guard.negated { "!" } else { "" };
        text = format!("@{negation}{} ", guard.register);
    }
    text.push_str(&opcode(instruction));
    for (number, operand) in instruction.operands.iter().enumerate() {
        text.push_str(if number == 0 { " " } else { ", " });
        text.push_str(&self::operand(operand));
    }
    text
}
