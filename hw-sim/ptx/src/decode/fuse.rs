//! Finds loads whose values go nowhere but to stores right behind them, as in the body of a copy
//! loop. Such a run is carried out as one move of bytes: no register is filled or read.
//!
//! Among the loads may stand what compilers put there for lanes that do not load: constants for
//! registers that a later load of the run fills.

use super::function::Record;
use crate::exec::program::{Access, Instruction, NO_SLOT, Op, Space, Transit};
use crate::exec::registers::predicate;
use crate::memory::Order;

/// The most loads of one run, as many as the warp has room for.
pub const LOADS_MAX: usize = 4;

/// Loads and, right behind the last of them, as many stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Their places, in order.
    loads: Vec<usize>,
    /// The place of the first store.
    stores: usize,
}

impl Run {
    fn end(&self) -> usize {
        self.stores + self.loads.len()
    }
}

/// The runs of a function, from its first pass.
pub fn runs(code: &[Instruction], records: &[Record]) -> Vec<Run> {
    let finder = Finder::new(code, records);
    let mut runs = Vec::new();
    let mut start = 0;
    while start < code.len() {
        let run = finder.from(start);
        start = run.as_ref().map_or(start + 1, Run::end);
        runs.extend(run);
    }
    runs
}

struct Finder<'a> {
    code: &'a [Instruction],
    records: &'a [Record],
    /// Registers that one instruction reads.
    private: Vec<bool>,
    /// Whoever jumps into the middle expects the registers to be filled.
    entered: Vec<bool>,
}

impl<'a> Finder<'a> {
    fn new(code: &'a [Instruction], records: &'a [Record]) -> Self {
        let mut entered = vec![false; code.len() + 1];
        let targets = records.iter().flat_map(|record| &record.targets);
        targets.for_each(|&target| entered[target] = true);
        Self { code, records, private: private_registers(records), entered }
    }

    /// The longest run that starts here.
    fn from(&self, start: usize) -> Option<Run> {
        let mut loads = vec![start];
        self.feeds(start)?;
        let mut best = None;
        let mut place = start + 1;
        // Constants that wait for the load that replaces them.
        let mut constants: Vec<u32> = Vec::new();
        while place < self.code.len() && !self.entered[place] {
            let record = &self.records[place];
            if constants.is_empty() && self.drain(&loads, place) {
                best = Some(Run { loads: loads.clone(), stores: place });
            }
            if self.feeds(place).is_some() && loads.len() < LOADS_MAX {
                constants.retain(|register| !record.defs.contains(register));
                loads.push(place);
            } else if self.is_constant(place) {
                constants.extend_from_slice(&record.defs);
            } else {
                break;
            }
            place += 1;
        }
        best
    }

    fn feeds(&self, place: usize) -> Option<()> {
        let (Op::Load(access), record) = (&self.code[place].op, &self.records[place]) else {
            return None;
        };
        let fits = is_plain(access)
            && record.defs.len() == access.registers.len()
            && record.defs.iter().all(|&register| self.private[register as usize]);
        fits.then_some(())
    }

    fn is_constant(&self, place: usize) -> bool {
        let record = &self.records[place];
        let pure = record.is_pure && record.uses.is_empty() && !record.guarded;
        pure && record.defs.iter().all(|&register| self.private[register as usize])
    }

    /// Do stores from here on take what the loads bring, each under the guard of its load?
    fn drain(&self, loads: &[usize], stores: usize) -> bool {
        let end = stores + loads.len();
        end <= self.code.len()
            && !self.entered[stores..end].contains(&true)
            && loads.iter().zip(stores..).all(|(&load, store)| self.drains(load, store))
    }

    fn drains(&self, load: usize, store: usize) -> bool {
        let Op::Store(access) = &self.code[store].op else { return false };
        let (from, to) = (&self.records[load], &self.records[store]);
        is_plain(access)
            && self.code[load].guard == self.code[store].guard
            && from.guarded == to.guarded
            && to.uses.len() == from.defs.len() + 1 + usize::from(to.guarded)
            && from.defs.iter().all(|register| to.uses.contains(register))
    }
}

/// Registers that one instruction reads: what others write there, nobody sees.
fn private_registers(records: &[Record]) -> Vec<bool> {
    let all = || records.iter().flat_map(|record| record.defs.iter().chain(record.uses.iter()));
    let mut counts = vec![0_u32; all().max().map_or(0, |&last| last as usize + 1)];
    for record in records {
        record.uses.iter().for_each(|&register| counts[register as usize] += 1);
    }
    counts.into_iter().map(|count| count == 1).collect()
}

fn is_plain(access: &Access) -> bool {
    access.strength.order == Order::Weak
        && matches!(access.space, Space::Global | Space::Generic)
        && access.base != NO_SLOT
        && !access.narrow_base
        && matches!(access.lane_bytes(), 4 | 8 | 16)
}

/// Puts a [`Transit`] at the head of each run, in the finished code of the function.
pub fn fuse(code: &mut [Instruction], runs: &[Run]) {
    for run in runs {
        let access = |place: usize| match &code[place].op {
            Op::Load(access) | Op::Store(access) => Some((**access).clone()),
            _ => None,
        };
        let loads: Option<Vec<Access>> = run.loads.iter().map(|&place| access(place)).collect();
        let stores: Option<Vec<Access>> = (run.stores..run.end()).map(access).collect();
        let (Some(loads), Some(stores)) = (loads, stores) else { continue };
        let alike = |(load, store): (&Access, &Access)| {
            load.registers == store.registers
                && load.lane_bytes() == loads[0].lane_bytes()
                && (load.element_bytes, load.register_bytes)
                    == (store.element_bytes, store.register_bytes)
                && load.element_bytes == load.register_bytes
        };
        if loads.iter().zip(&stores).all(alike) {
            let start = run.loads[0];
            let mut guards: Vec<u32> = run.loads.iter().map(|&place| code[place].guard).collect();
            guards.retain(|guard| *guard != predicate::TRUE);
            guards.dedup();
            let length = (run.end() - start) as u32;
            code[start].op = Op::Transit(Box::new(Transit { loads, stores, guards, length }));
        }
    }
}
