//! Finds what all blocks of a launch compute alike: from the number of a thread in its block, from
//! parameters and from constants, at the start of a kernel. It is brought to the front of the code,
//! into registers that nothing else writes. A warp that begins another block of the same launch
//! finds it there and starts behind it.

use super::function::Record;
use crate::exec::program::{Instruction, NO_SLOT, Op, Space, Special};
use crate::memory::Order;

/// The order in which a kernel's first instructions stand.
#[derive(Clone, Debug, Default)]
pub struct Front {
    /// The instructions by their old numbers, from the first one on.
    order: Vec<usize>,
    /// How many of them, from the first one on, all blocks have in common.
    pub count: usize,
}

impl Front {
    /// What a kernel's blocks have in common, from its first pass.
    pub fn of(code: &[Instruction], records: &[Record]) -> Self {
        let writes = writes(records);
        let mut is_common = vec![false; writes.len()];
        let (mut common, mut own) = (Vec::new(), Vec::new());
        for number in 0..straight(code, records) {
            let record = &records[number];
            let once = record.defs.iter().all(|&register| writes[register as usize] == 1);
            let known = record.uses.iter().all(|&register| is_common[register as usize]);
            if is_fixed(&code[number].op, record) && once && known && !record.guarded {
                record.defs.iter().for_each(|&register| is_common[register as usize] = true);
                common.push(number);
            } else {
                own.push(number);
            }
        }
        let count = common.len();
        common.extend(own);
        Self { order: common, count }
    }

    /// Puts instructions, or what is noted of them, in this order.
    pub fn apply<T: Clone>(&self, items: &mut [T]) {
        let moved: Vec<T> = self.order.iter().map(|&number| items[number].clone()).collect();
        items[..moved.len()].clone_from_slice(&moved);
    }

    /// The registers that must keep their values to the end, after [`Self::apply`].
    pub fn registers<'a>(&self, records: &'a [Record]) -> impl Iterator<Item = u32> + 'a {
        records[..self.count].iter().flat_map(|record| record.defs.iter().copied())
    }
}

/// Instructions that write each register.
fn writes(records: &[Record]) -> Vec<u32> {
    let all = || records.iter().flat_map(|record| record.defs.iter().chain(&record.uses));
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
