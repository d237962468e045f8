//! Finds loads whose values go nowhere but to stores right behind them, as in the body of a copy
//! loop. Such a run is carried out as one move of bytes: no register is filled or read.

use super::function::Record;
use crate::exec::program::{Access, Instruction, NO_SLOT, Op, Space, Transit};
use crate::memory::Order;

/// The most loads of one run, as many as the warp has room for.
pub const LOADS_MAX: usize = 4;

/// `count` loads from instruction `start` on, and as many stores behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    start: usize,
    count: usize,
}

/// The runs of a function, from its first pass.
pub fn runs(code: &[Instruction], records: &[Record]) -> Vec<Run> {
    let private = private_registers(records);
    let mut entered = vec![false; code.len() + 1];
    records.iter().flat_map(|record| &record.targets).for_each(|&target| entered[target] = true);
    let mut runs = Vec::new();
    let mut start = 0;
    while start < code.len() {
        let count = (1..=LOADS_MAX).rev().find(|&count| {
            let end = start + 2 * count;
            // Whoever jumps into the middle expects the registers to be filled.
            end <= code.len()
                && !entered[start + 1..end].contains(&true)
                && (start..start + count).all(|load| {
                    feeds(&code[load], &records[load], &private)
                        && drains(&code[load + count], &records[load + count], &records[load])
                })
        });
        if let Some(count) = count {
            runs.push(Run { start, count });
        }
        start += count.map_or(1, |count| 2 * count);
    }
    runs
}

/// Registers that one instruction writes and one instruction reads.
fn private_registers(records: &[Record]) -> Vec<bool> {
    let all = || records.iter().flat_map(|record| record.defs.iter().chain(record.uses.iter()));
    let mut counts = vec![(0_u32, 0_u32); all().max().map_or(0, |&last| last as usize + 1)];
    for record in records {
        record.defs.iter().for_each(|&register| counts[register as usize].0 += 1);
        record.uses.iter().for_each(|&register| counts[register as usize].1 += 1);
    }
    counts.into_iter().map(|count| count == (1, 1)).collect()
}

fn is_plain(access: &Access, record: &Record) -> bool {
    !record.guarded
        && access.strength.order == Order::Weak
        && matches!(access.space, Space::Global | Space::Generic)
        && access.base != NO_SLOT
        && !access.narrow_base
        && matches!(access.lane_bytes(), 4 | 8 | 16)
}

fn feeds(load: &Instruction, record: &Record, private: &[bool]) -> bool {
    let Op::Load(access) = &load.op else { return false };
    is_plain(access, record)
        && record.defs.len() == access.registers.len()
        && record.defs.iter().all(|&register| private[register as usize])
}

fn drains(store: &Instruction, record: &Record, load: &Record) -> bool {
    let Op::Store(access) = &store.op else { return false };
    is_plain(access, record)
        && record.uses.len() == load.defs.len() + 1
        && load.defs.iter().all(|register| record.uses.contains(register))
}

/// Puts a [`Transit`] at the head of each run, in the finished code of the function.
pub fn fuse(code: &mut [Instruction], runs: &[Run]) {
    for run in runs {
        let accesses = |from: usize| -> Option<Vec<Access>> {
            code[from..from + run.count]
                .iter()
                .map(|instruction| match &instruction.op {
                    Op::Load(access) | Op::Store(access) => Some((**access).clone()),
                    _ => None,
                })
                .collect()
        };
        let (Some(loads), Some(stores)) = (accesses(run.start), accesses(run.start + run.count))
        else {
            continue;
        };
        let alike = |(load, store): (&Access, &Access)| {
            load.registers == store.registers
                && load.lane_bytes() == loads[0].lane_bytes()
                && (load.element_bytes, load.register_bytes)
                    == (store.element_bytes, store.register_bytes)
                && load.element_bytes == load.register_bytes
        };
        if loads.iter().zip(&stores).all(alike) {
            code[run.start].op = Op::Transit(Box::new(Transit { loads, stores }));
        }
    }
}
