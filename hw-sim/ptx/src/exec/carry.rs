//! Moves from memory to memory that touch no register.

use super::program::{Access, Space, Transit};
use super::registers::{Args, FULL, LANES, Row};
use super::swept::Pair;
use super::warp::{Context, Warp};
use crate::decode::fuse::ACCESSES_MAX;
use crate::kernel::Clock;
use crate::memory::Memory;

impl Warp {
    /// Does all loads, then combines what they bring, then does all stores. Says whether it could;
    /// if not, a store may have been done, but one instruction after the other comes to the same,
    /// or to the fault.
    #[inline(always)]
    pub(super) fn carry<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        transit: &Transit,
    ) -> bool {
        if transit.guards.iter().any(|&guard| self.registers.predicate(guard) != FULL) {
            return false;
        }
        let Some(from) = self.starts(&transit.loads) else { return false };
        let Some(to) = self.starts(&transit.stores) else { return false };
        let first = &transit.loads[0];
        let (rows, word, strength) =
            (transit.rows, usize::from(first.element_bytes), first.strength);
        let bytes = rows * size_of::<Row>();
        for (accesses, starts) in [(&transit.loads, &from), (&transit.stores, &to)] {
            for (access, start) in accesses.iter().zip(starts) {
                self.strides.note(context.memory, access, *start, bytes);
            }
        }
        let cargo = context.program.cargo as usize;
        let (memory, cursor) = (context.memory, &mut *context.cursor);
        let mut at = 0;
        while at < transit.loads.len() {
            let count = in_a_row(&from[at..transit.loads.len()], bytes);
            let into = self.registers.rows_mut(cargo + at * rows, count * rows);
            if memory.read(cursor, from[at], word, strength, into).is_err() {
                return false;
            }
            at += count;
        }
        self.combine_cargo(cargo, &transit.pairs, first.lane_bytes() / word, word);
        self.watch.clear();
        let mut at = 0;
        while at < transit.stores.len() {
            let count = in_a_row(&to[at..transit.stores.len()], bytes)
                .min(in_a_row(&transit.sources[at..], rows));
            let source =
                self.registers.rows_mut(cargo + transit.sources[at] as usize, count * rows);
            if memory.write(cursor, to[at], word, strength, source).is_err() {
                return false;
            }
            at += count;
        }
        true
    }

    /// Combines cargo rows, whose lanes hold so many words of so many bytes.
    #[inline(always)]
    pub(super) fn combine_cargo(
        &mut self,
        cargo: usize,
        pairs: &[Pair],
        words: usize,
        word: usize,
    ) {
        let rows = word * LANES / size_of::<Row>();
        for pair in pairs {
            for place in (0..words).map(|word| cargo + word * rows) {
                let [d, a, b] = [pair.to, pair.a, pair.b].map(|row| (place + row) as u32);
                (pair.run)(&mut self.registers, &Args { d, a, b, c: a, e: pair.extra }, FULL);
            }
        }
    }

    /// Where each access starts, if all of them are global and their lanes lie side by side.
    #[inline(always)]
    fn starts(&self, accesses: &[Access]) -> Option<[u64; ACCESSES_MAX]> {
        let mut starts = [0; ACCESSES_MAX];
        for (start, access) in starts.iter_mut().zip(accesses) {
            let address = self.side_by_side(access, access.lane_bytes() as u64)?;
            if Self::quick_space(access.space, address) != Some(Space::Global) {
                return None;
            }
            *start = address;
        }
        Some(starts)
    }
}

/// How many from the first on lie behind one another, `step` apart.
#[inline(always)]
fn in_a_row(starts: &[u64], step: usize) -> usize {
    1 + starts.windows(2).take_while(|pair| pair[1] == pair[0].wrapping_add(step as u64)).count()
}
