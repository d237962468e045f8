//! What those look at who find runs of instructions that are carried out in one go.

use super::function::Record;
use super::role::Role;
use crate::exec::program::{Instruction, Op};
use crate::exec::registers::Args;

/// The code of a function, and what is known of it.
pub struct Finder<'a> {
    pub code: &'a [Instruction],
    pub records: &'a [Record],
    /// As [`private_registers`] says.
    pub private: &'a [bool],
    /// As [`entered`] says.
    pub entered: &'a [bool],
}

impl Finder<'_> {
    /// What an instruction that all lanes compute is given, and what it may be.
    pub fn computes(&self, place: usize) -> Option<(Args, Role)> {
        let record = self.records.get(place)?;
        match self.code[place].op {
            Op::Alu(_, args) if !record.guarded => Some((args, record.role)),
            _ => None,
        }
    }

    /// The register that an instruction writes, if only one instruction reads it.
    pub fn result(&self, place: usize) -> Option<u32> {
        let [register] = self.records[place].defs[..] else { return None };
        self.private[register as usize].then_some(register)
    }
}

/// Whoever jumps into the middle of a run expects the registers to be filled.
pub fn entered(code: &[Instruction], records: &[Record]) -> Vec<bool> {
    let mut entered = vec![false; code.len() + 1];
    let targets = records.iter().flat_map(|record| &record.targets);
    targets.for_each(|&target| entered[target] = true);
    entered
}

/// Which registers one instruction reads: what others write there, nobody else sees.
pub fn private_registers(records: &[Record]) -> Vec<bool> {
    let all = || records.iter().flat_map(|record| record.defs.iter().chain(record.uses.iter()));
    let mut counts = vec![0_u32; all().max().map_or(0, |&last| last as usize + 1)];
    for record in records {
        record.uses.iter().for_each(|&register| counts[register as usize] += 1);
    }
    counts.into_iter().map(|count| count == 1).collect()
}
