//! `cp.async`: from global to shared memory.
//!
//! PTX lets the copy happen at any time between the instruction and the wait for its group. Here it
//! happens at once, so groups hold nothing and waits have nothing to wait for; a kernel that
//! forgets to wait does not show.

use super::access::{Addresses, for_runs};
use super::fault::Trouble;
use super::matrix::memory::Base;
use super::place::Place;
use super::program::Space;
use super::registers::{LANES, each_lane};
use super::warp::{Context, Warp};
use super::windows;
use crate::kernel::Clock;
use crate::memory::{Memory, Strength};

/// Most bytes of one copy.
const BYTES_MAX: usize = 16;

/// One copy in each lane.
#[derive(Clone, Debug)]
pub struct CopyAsync {
    /// Where to.
    pub to: Base,
    /// Where from.
    pub from: Base,
    /// Bytes written: 4, 8 or 16.
    pub bytes: usize,
    /// How much of them comes from the source; the rest is zeros.
    pub source: SourceBytes,
}

/// How many bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceBytes {
    /// All.
    All,
    /// As many as a 32-bit register says; all, if it says more.
    Counted(u32),
    /// None where a predicate holds, else all.
    Ignored(u32),
}

impl Warp {
    /// `cp.async`
    #[inline(never)]
    pub(super) fn copy_async<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        copy: &CopyAsync,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let addresses = |base: Base| self.addresses(base.slot, base.narrow, base.offset);
        let (to, from) = (addresses(copy.to), addresses(copy.from));
        let mut counts = [copy.bytes; LANES];
        match copy.source {
            SourceBytes::All => {}
            SourceBytes::Counted(slot) => {
                for (count, &given) in counts.iter_mut().zip(self.registers.get::<u32>(slot)) {
                    *count = copy.bytes.min(given as usize);
                }
            }
            SourceBytes::Ignored(predicate) => {
                each_lane(self.registers.predicate(predicate), |lane| counts[lane] = 0);
            }
        }
        self.watch.clear();
        if copy.bytes == BYTES_MAX
            && copy.from.space == Space::Global
            && self.copy_lines(context, (&to, &from), &counts, active)
        {
            return Ok(());
        }
        super::access::try_each_lane(active, |lane| {
            let mut bytes = [0; BYTES_MAX];
            if counts[lane] > 0 {
                let whole = counts[lane] == copy.bytes;
                let word = if whole { copy.bytes.min(8) } else { 1 };
                let place = Place { space: copy.from.space, address: from[lane], lane, word };
                place.check_alignment(copy.bytes)?;
                self.read_at(context, place, &mut bytes[..counts[lane]])?;
            }
            let place = Place { space: Space::Shared, address: to[lane], lane, word: copy.bytes };
            place.check_alignment(copy.bytes)?;
            self.write_at(context, place, &bytes[..copy.bytes])
        })
    }
    /// The same for copies of 16 bytes that come from global memory whole, or not at all: one read
    /// for lanes whose sources lie side by side. False if this way is not for them; what may have
    /// been written until then is what they write anyway.
    fn copy_lines<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        (to, from): (&Addresses, &Addresses),
        counts: &[usize; LANES],
        active: u32,
    ) -> bool {
        let mut reading = 0;
        let mut fits = true;
        each_lane(active, |lane| {
            let aligned = (to[lane] | from[lane]) & (BYTES_MAX as u64 - 1) == 0;
            fits &= aligned && matches!(counts[lane], 0 | BYTES_MAX);
            reading |= u32::from(counts[lane] != 0) << lane;
        });
        if !fits {
            return false;
        }
        let mut lines = [[0_u8; BYTES_MAX]; LANES];
        let (memory, cursor) = (context.memory, &mut *context.cursor);
        let read = for_runs(from, reading, BYTES_MAX, |lane, count| {
            let bytes = lines[lane..lane + count].as_flattened_mut();
            let read = memory.read(cursor, from[lane], 8, Strength::WEAK, bytes);
            read.map_err(|fault| Trouble::at(fault.into(), lane, from[lane], BYTES_MAX))
        });
        if read.is_err() {
            return false;
        }
        let shared = context.block.bytes.as_chunks_mut::<BYTES_MAX>().0;
        each_lane(active, |lane| {
            let number = (to[lane] & windows::OFFSET) as usize / BYTES_MAX;
            match shared.get_mut(number) {
                Some(line) => *line = lines[lane],
                None => fits = false,
            }
        });
        fits
    }
}
