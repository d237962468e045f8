//! `cp.async`.

use super::DecodeError;
use super::data::cache_words;
use super::function::{Class, FunctionDecoder, describe};
use super::select::Words;
use crate::ast::{Instruction, Operand, ScalarType as T};
use crate::exec::copy_async::{CopyAsync, SourceBytes};
use crate::exec::program::Op;

impl FunctionDecoder<'_, '_> {
    /// `cp.async` and its groups. Copies are done at once, so there is nothing to wait for.
    pub(super) fn copy_async(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let modifiers: Vec<&str> = instruction.modifiers.iter().map(String::as_str).collect();
        match modifiers.as_slice() {
            ["async", "commit_group" | "wait_all"] => {
                self.operands::<0>(instruction)?;
            }
            ["async", "wait_group"] => {
                let [count] = self.operands::<1>(instruction)?;
                if !matches!(count, Operand::Integer(0..)) {
                    return Err(self.error("a number of groups", describe(count)));
                }
            }
            ["async", "mbarrier", ..] => return self.copy_arrival(instruction),
            ["async", "bulk", ..] | ["reduce", "async", "bulk", ..] => {
                return self.copy_bulk(instruction);
            }
            ["async", "ca" | "cg", ..] => return self.copy_to_shared(instruction),
            _ => return Err(self.unsupported(instruction)),
        }
        self.require(instruction, 80)?;
        self.emit(Op::Nop);
        Ok(())
    }

    fn copy_to_shared(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        words.take("async");
        let only_16 = words.take("cg");
        let to_shared = words.take_any(&["shared", "shared::cta"]).is_some();
        let from_global = words.take("global");
        let hint = cache_words(&mut words);
        self.all_taken(&words, instruction)?;
        let operands = match (instruction.operands.as_slice(), hint) {
            // The cache policy.
            ([operands @ .., _], true) => operands,
            (operands, _) => operands,
        };
        let ([to, from, bytes, rest @ ..], true) = (operands, to_shared && from_global) else {
            return Err(self.unsupported(instruction));
        };
        self.require(instruction, 80)?;
        let bytes = match bytes {
            Operand::Integer(4 | 8) if only_16 => return Err(self.error("16 bytes", "fewer")),
            Operand::Integer(bytes @ (4 | 8 | 16)) => *bytes as usize,
            other => return Err(self.error("4, 8 or 16 bytes", describe(other))),
        };
        let source = match rest {
            [] => SourceBytes::All,
            [ignore] if self.is_predicate(ignore) => {
                SourceBytes::Ignored(self.predicate_source(ignore)?)
            }
            [count] => SourceBytes::Counted(self.source(count, T::U32)?),
            _ => return Err(self.unsupported(instruction)),
        };
        let to = self.place_of(to, Some("shared"))?.base();
        let from = self.place_of(from, Some("global"))?.base();
        self.emit(Op::CopyAsync(Box::new(CopyAsync { to, from, bytes, source })));
        Ok(())
    }

    /// Is an operand a predicate, and not a number?
    fn is_predicate(&mut self, operand: &Operand) -> bool {
        matches!(operand, Operand::Negated(_)) || self.class_of(operand) == Some(Class::Predicate)
    }
}
