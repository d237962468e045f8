//! Finds what all blocks of a launch compute alike: from the number of a thread in its block, from
//! parameters and from constants, at the start of a kernel, into registers that nothing else
//! writes. A warp that begins another block of the same launch finds it there, and starts with a
//! copy of the kernel's start that lacks it.

use super::function::Record;
use crate::exec::program::{Instruction, NO_SLOT, Op, Space, Special};
use crate::exec::registers::predicate;
use crate::memory::Order;

/// The start of a kernel, up to where somebody may jump to or from.
#[derive(Clone, Debug, Default)]
pub struct Front {
    /// What each block does for itself, by number.
    own: Vec<usize>,
    /// Where the start ends.
    pub end: usize,
    /// Registers with what blocks have in common: they must keep it to the end.
    pub kept: Vec<u32>,
}

impl Front {
    /// That of a kernel, from its first pass.
    pub fn of(code: &[Instruction], records: &[Record]) -> Self {
        let writes = writes(records);
        let mut is_common = vec![false; writes.len()];
        let mut front = Self { end: straight(code, records), ..Self::default() };
        for (number, record) in records.iter().enumerate().take(front.end) {
            let once = record.defs.iter().all(|&register| writes[register as usize] == 1);
            let known = record.uses.iter().all(|&register| is_common[register as usize]);
            if is_fixed(&code[number].op, record) && once && known && !record.guarded {
                record.defs.iter().for_each(|&register| is_common[register as usize] = true);
                front.kept.extend_from_slice(&record.defs);
            } else {
                front.own.push(number);
            }
        }
        front
    }

    /// How many instructions fewer the appended start has, its jump included.
    pub fn spared(&self) -> u64 {
        match self.kept.is_empty() {
            true => 0,
            false => (self.end - self.own.len()) as u64 - 1,
        }
    }

    /// Appends the start without what is common, and a jump to where it ends. Gives the place; the
    /// kernel's own start, 0, where nothing is common.
    pub fn append(&self, code: &mut Vec<Instruction>) -> u32 {
        if self.kept.is_empty() {
            return 0;
        }
        let place = code.len() as u32;
        let own: Vec<Instruction> = self.own.iter().map(|&number| code[number].clone()).collect();
        code.extend(own);
        let (op, line) = (Op::Branch(self.end as u32), code[self.end].line);
        code.push(Instruction { op, guard: predicate::TRUE, line });
        place
    }
}

/// Instructions that write each register.
fn writes(records: &[Record]) -> Vec<u32> {
    let all = || records.iter().flat_map(|record| record.defs.iter().chain(record.uses.iter()));
    let mut counts = vec![0; all().max().map_or(0, |&last| last as usize + 1)];
    for record in records {
        record.defs.iter().for_each(|&register| counts[register as usize] += 1);
    }
    counts
}

/// How many instructions stand at the start that nobody jumps over or among.
fn straight(code: &[Instruction], records: &[Record]) -> usize {
    let entered = records.iter().flat_map(|record| &record.targets).min();
    let parts = |(op, record): (&Op, &Record)| {
        !record.targets.is_empty() || !record.falls_through || matches!(op, Op::Call(_))
    };
    let ops = code.iter().map(|instruction| &instruction.op);
    let parts = ops.zip(records).position(parts).unwrap_or(records.len());
    parts.min(entered.map_or(usize::MAX, |&target| target))
}

/// Does it give the same in all blocks of a launch, if its operands do?
fn is_fixed(op: &Op, record: &Record) -> bool {
    match op {
        Op::Alu(..) => record.is_pure,
        Op::Special { which, .. } => matches!(
            which,
            Special::ThreadIndex(_)
                | Special::BlockShape(_)
                | Special::GridShape(_)
                | Special::Lane
                | Special::Warp
                | Special::Warps
                | Special::LaneMask(_)
                | Special::DynamicShared
                | Special::TotalShared
                | Special::Fixed(_)
        ),
        // A parameter at a known place.
        Op::Load(access) => {
            (access.space, access.base) == (Space::Param, NO_SLOT)
                && access.strength.order == Order::Weak
        }
        _ => false,
    }
}
