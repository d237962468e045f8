//! Video instructions: `vadd`, `vshr`, `vabsdiff4` and their kin.

use super::DecodeError;
use super::function::{FunctionDecoder, describe};
use super::select::Words;
use crate::ast::{Instruction, Operand, ScalarType as T};
use crate::exec::program::{Constant, Op};
use crate::exec::registers::Args;
use crate::exec::video::{Operation, Part, Second, Video, run};

/// The operation of an opcode, and how many parts of a word it works on; `vset` has its own words.
fn operation(opcode: &str) -> Option<(Option<Operation>, u32)> {
    let name = opcode.strip_prefix('v')?;
    let (name, lanes) = match (name.strip_suffix('2'), name.strip_suffix('4')) {
        (Some(name), _) => (name, 2),
        (_, Some(name)) => (name, 4),
        _ => (name, 1),
    };
    let operation = match name {
        "add" => Operation::Add,
        "sub" => Operation::Sub,
        "absdiff" => Operation::AbsoluteDifference,
        "avrg" if lanes > 1 => Operation::Average,
        "min" => Operation::Min,
        "max" => Operation::Max,
        "shl" if lanes == 1 => Operation::ShiftLeft,
        "shr" if lanes == 1 => Operation::ShiftRight,
        "set" => return Some((None, lanes)),
        _ => return None,
    };
    Some((Some(operation), lanes))
}

/// Is it one of these?
pub fn is_video(opcode: &str) -> bool {
    operation(opcode).is_some()
}

/// The comparison of `vset`.
fn comparison(words: &mut Words<'_>) -> Option<Operation> {
    words.take_map(|word| {
        Some(match word {
            "eq" => Operation::Equal,
            "ne" => Operation::NotEqual,
            "lt" => Operation::Less,
            "le" => Operation::LessEqual,
            "gt" => Operation::Greater,
            "ge" => Operation::GreaterEqual,
            _ => return None,
        })
    })
}

impl FunctionDecoder<'_, '_> {
    /// A video instruction. Parts of operands are chosen in those with one result alone.
    pub(super) fn video(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let Some((operation, lanes)) = operation(&instruction.opcode) else {
            return Err(self.unsupported(instruction));
        };
        let mut words = Words::new(&instruction.modifiers);
        let mut signed = [false; 3];
        let compares = operation.is_none();
        for signed in signed.iter_mut().skip(usize::from(compares)) {
            match words.take_type() {
                Some(T::U32) => {}
                Some(T::S32) => *signed = true,
                _ => return Err(self.unsupported(instruction)),
            }
        }
        let operation = operation.or_else(|| comparison(&mut words));
        let saturate = words.take("sat");
        let shifts = matches!(operation, Some(Operation::ShiftLeft | Operation::ShiftRight));
        let mode = if shifts { words.take_any(&["clamp", "wrap"]) } else { None };
        let second = words.take_any(&["add", "min", "max"]);
        self.all_taken(&words, instruction)?;
        let (Some(operation), true) = (operation, shifts == mode.is_some()) else {
            return Err(self.unsupported(instruction));
        };
        let second = match second {
            None => Second::Merge,
            Some("add") => Second::Add,
            Some(_) if lanes > 1 => return Err(self.unsupported(instruction)),
            Some("min") => Second::Min,
            Some(_) => Second::Max,
        };
        let wrap = mode == Some("wrap");
        let parts = [Part::WORD; 3];
        let video = Video { operation, second, lanes, signed, saturate, wrap, parts };
        self.emit_video(instruction, video)
    }

    fn emit_video(
        &mut self,
        instruction: &Instruction,
        mut video: Video,
    ) -> Result<(), DecodeError> {
        let (to, a, b, c) = match instruction.operands.as_slice() {
            [to, a, b] => (to, a, b, None),
            [to, a, b, c] => (to, a, b, Some(c)),
            others => return Err(self.error("3 or 4 operands", others.len().to_string())),
        };
        let mut names = Vec::new();
        for (operand, part) in [to, a, b].into_iter().zip(&mut video.parts) {
            let (name, chosen) = self.part_of(operand)?;
            *part = chosen;
            names.push(name);
        }
        let whole = video.parts[0] == Part::WORD;
        let needs_third = video.lanes > 1 || video.second != Second::Merge || !whole;
        let chosen = video.parts.iter().any(|part| *part != Part::WORD);
        let merged_twice = !whole && video.second != Second::Merge;
        if c.is_some() != needs_third || (video.lanes > 1 && chosen) || merged_twice {
            return Err(self.unsupported(instruction));
        }
        let (a, b) = (self.source(&names[1], T::U32)?, self.source(&names[2], T::U32)?);
        let c = match c {
            Some(c) => self.source(c, T::U32)?,
            None => self.constant(Constant::Bits(0), 4),
        };
        let d = self.destination(&names[0], T::U32)?;
        self.emit(Op::Alu(run, Args { d, a, b, c, e: video.encode() }));
        Ok(())
    }

    /// `%r1.b2`: the register, and the part of it.
    fn part_of(&self, operand: &Operand) -> Result<(Operand, Part), DecodeError> {
        let Operand::Name(name) = operand else { return Ok((operand.clone(), Part::WORD)) };
        match name.rsplit_once('.') {
            None => Ok((operand.clone(), Part::WORD)),
            Some((register, part)) => match Part::named(part) {
                Some(part) => Ok((Operand::Name(register.to_owned()), part)),
                None => Err(self.error("`.b0` to `.b3`, `.h0` or `.h1`", describe(operand))),
            },
        }
    }
}
