//! `mbarrier`: barriers that are words in shared memory.
//!
//! The PTX ISA leaves the word's layout open. Here it is, from its lowest bit: arrivals that the
//! phase still waits for (20 bits), arrivals that each phase waits for (20 bits), bytes that it
//! still waits for (21 bits with a sign: what arrives may be expected afterwards), and the
//! number of the phase (3 bits, which wrap: states are of this phase or the one before). The state
//! that an arrival gives is the word as it was before.

use super::access::try_each_lane;
use super::fault::{FaultKind, Trouble};
use super::matrix::memory::Base;
use super::place::Place;
use super::program::NO_SLOT;
use super::registers::{LANES, each_lane};
use super::warp::{Context, Warp};
use crate::kernel::Clock;
use crate::memory::Memory;

/// Bits of a count.
const COUNT_BITS: u32 = 20;
/// The largest count.
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
/// Where the bytes are.
const BYTES_SHIFT: u32 = 2 * COUNT_BITS;
/// Bits of the bytes.
const BYTES_BITS: u32 = 21;
/// Where the phase is.
const PHASE_SHIFT: u32 = BYTES_SHIFT + BYTES_BITS;
/// Bytes of the word.
const BYTES: usize = 8;

/// One operation in each lane.
#[derive(Clone, Debug)]
pub struct BarrierWord {
    /// The word's place.
    pub base: Base,
    /// What is done with it.
    pub action: Action,
}

/// What is done with a barrier's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `init`: slot of the count.
    Init(u32),
    /// `inval`
    Invalidate,
    /// `arrive`, `arrive_drop`
    Arrive {
        /// Slot of the state before; [`NO_SLOT`] where it is not wanted.
        state: u32,
        /// Slot of the count; [`NO_SLOT`] for one.
        count: u32,
        /// Later phases wait for as many less.
        drops: bool,
        /// It must not end the phase.
        stays: bool,
        /// Slot of the bytes that the phase is to wait for, too; [`NO_SLOT`] for none.
        bytes: u32,
    },
    /// `expect_tx`, or `complete_tx`, which is the reverse: slot of the bytes.
    Expect {
        /// The slot.
        bytes: u32,
        /// They have come.
        completes: bool,
    },
    /// `cp.async.mbarrier.arrive` without `.noinc`: the phase waits for one more arrival, which
    /// follows at once, because copies are done at once.
    ArriveAndWaitFor,
    /// `test_wait`, `try_wait`
    Test {
        /// Predicate: is the phase over?
        over: u32,
        /// Slot of the phase's state, or of its parity.
        phase: u32,
        /// Which of the two.
        by_parity: bool,
    },
}

/// A barrier's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word(u64);

impl Word {
    /// A barrier in its first phase; None where the count is out of range.
    fn new(count: u32) -> Option<Self> {
        let count = u64::from(count);
        (1..=COUNT_MAX).contains(&count).then_some(Self(count << COUNT_BITS | count))
    }

    fn pending(self) -> u64 {
        self.0 & COUNT_MAX
    }

    fn expected(self) -> u64 {
        self.0 >> COUNT_BITS & COUNT_MAX
    }

    fn phase(self) -> u64 {
        self.0 >> PHASE_SHIFT
    }

    /// Bytes that the phase waits for.
    fn bytes(self) -> i64 {
        let unused = u64::BITS - PHASE_SHIFT;
        (self.0 << unused) as i64 >> (u64::BITS - BYTES_BITS)
    }

    /// The same with so many bytes more to wait for. None where that is beyond what hardware
    /// counts.
    fn expect(self, bytes: i64) -> Option<Self> {
        let bytes = self.bytes() + bytes;
        let mask = (1 << BYTES_BITS) - 1;
        let rest = self.0 & !(mask << BYTES_SHIFT);
        let fits = bytes.unsigned_abs() <= COUNT_MAX;
        fits.then_some(Self(rest | (bytes as u64 & mask) << BYTES_SHIFT))
    }

    /// The next phase, if this one waits for nothing more, and whether that is so.
    fn settle(self) -> (Self, bool) {
        if self.pending() != 0 || self.bytes() != 0 || self.expected() == 0 {
            return (self, false);
        }
        let (expected, phase) = (self.expected(), self.phase() + 1);
        (Self(phase << PHASE_SHIFT | expected << COUNT_BITS | expected), true)
    }

    /// After so many arrivals, and whether they ended the phase. None where the phase does not wait
    /// for that many.
    fn arrive(self, count: u32, drops: bool) -> Option<(Self, bool)> {
        let count = u64::from(count);
        let pending = self.pending().checked_sub(count)?;
        let expected = self.expected().checked_sub(if drops { count } else { 0 })?;
        let low = (1 << BYTES_SHIFT) - 1;
        let after = Self(self.0 & !low | expected << COUNT_BITS | pending);
        Some(after.settle())
    }

    /// Is the phase of a state over?
    fn is_past(self, state: u64) -> bool {
        self.phase() != Self(state).phase()
    }

    /// Is the phase of this parity over, of the present one and the one before?
    fn is_past_parity(self, parity: u32) -> bool {
        self.phase() & 1 != u64::from(parity & 1)
    }
}

impl Place {
    /// What a barrier there cannot do.
    fn refuse_barrier(self, detail: String) -> Box<Trouble> {
        let trouble = Trouble::at(FaultKind::InvalidBarrier, self.lane, self.address, BYTES);
        Box::new(Trouble { detail, ..*trouble })
    }
}

impl Warp {
    /// An operation on barriers in shared memory, lane after lane.
    #[inline(never)]
    pub(super) fn barrier_word<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        operation: &BarrierWord,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let Base { space, slot, narrow, offset } = operation.base;
        let addresses = self.addresses(slot, narrow, offset);
        let place = |lane| Place { space, address: addresses[lane], lane, word: BYTES };
        let is_for_all = match operation.action {
            Action::Init(_) | Action::Invalidate | Action::Test { .. } => false,
            Action::Arrive { state, .. } => state == NO_SLOT,
            Action::Expect { .. } | Action::ArriveAndWaitFor => true,
        };
        if !is_for_all {
            let own = context.block.rank() as u64;
            try_each_lane(active, |lane| match place(lane).rank() {
                Some(rank) if rank != own => Err(place(lane).refuse_barrier(format!(
                    "the barrier is in block {rank} of the cluster: from here it takes arrivals \
                     without a state, and bytes"
                ))),
                _ => Ok(()),
            })?;
        }
        if let Action::Test { over, phase, by_parity } = operation.action {
            let mut past = 0;
            try_each_lane(active, |lane| {
                let word = self.barrier_at(context, place(lane))?;
                let is_past = match by_parity {
                    true => word.is_past_parity(self.registers.get::<u32>(phase)[lane]),
                    false => word.is_past(self.registers.get::<u64>(phase)[lane]),
                };
                past |= u32::from(is_past) << lane;
                Ok(())
            })?;
            // Only warps of this block can end the phase: a loop of such looks must let them.
            self.watch.looked(true, true);
            if over != NO_SLOT {
                self.registers.set_predicate(over, past, active);
            }
            return Ok(());
        }
        self.watch.clear();
        let mut states = [0; LANES];
        try_each_lane(active, |lane| {
            states[lane] = self.change_barrier(context, place(lane), operation.action)?.0;
            Ok(())
        })?;
        if let Action::Arrive { state, .. } = operation.action
            && state != NO_SLOT
        {
            self.registers.put(state, &states, active);
        }
        Ok(())
    }

    /// One lane's change of a barrier. Gives the word before.
    fn change_barrier<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        place: Place,
        action: Action,
    ) -> Result<Word, Box<Trouble>> {
        let before = self.barrier_at(context, place)?;
        let refused = |detail: String| Err(place.refuse_barrier(detail));
        let after = match action {
            Action::Init(slot) => {
                let count = self.registers.get::<u32>(slot)[place.lane];
                match Word::new(count) {
                    Some(word) => word,
                    None => return refused(format!("{count} arrivals, not 1 to {COUNT_MAX}")),
                }
            }
            Action::Invalidate => Word(0),
            Action::Expect { bytes, completes } => {
                let bytes = i64::from(self.registers.get::<u32>(bytes)[place.lane]);
                let Some(after) = before.expect(if completes { -bytes } else { bytes }) else {
                    return refused(format!("{bytes} bytes beside {}", before.bytes()));
                };
                let (after, is_over) = after.settle();
                context.block.completions += u64::from(is_over);
                after
            }
            Action::Arrive { count, drops, stays, bytes, .. } => {
                let more = match bytes {
                    NO_SLOT => 0,
                    slot => i64::from(self.registers.get::<u32>(slot)[place.lane]),
                };
                let Some(waits) = before.expect(more) else {
                    return refused(format!("{more} bytes beside {}", before.bytes()));
                };
                let count = match count {
                    NO_SLOT => 1,
                    slot => self.registers.get::<u32>(slot)[place.lane],
                };
                match waits.arrive(count, drops) {
                    Some((_, true)) if stays => {
                        return refused("an arrival with .noComplete ends the phase".to_owned());
                    }
                    Some((after, is_over)) => {
                        context.block.completions += u64::from(is_over);
                        after
                    }
                    None => {
                        let (pending, expected) = (before.pending(), before.expected());
                        return refused(format!(
                            "{count} arrivals, where {pending} of {expected} are awaited"
                        ));
                    }
                }
            }
            Action::ArriveAndWaitFor | Action::Test { .. } => before,
        };
        self.write_at(context, place, &after.0.to_le_bytes())?;
        Ok(before)
    }

    /// So many bytes have come that the barrier at a place waits for.
    pub(super) fn complete_bytes<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        place: Place,
        bytes: usize,
    ) -> Result<(), Box<Trouble>> {
        let before = self.barrier_at(context, Place { word: BYTES, ..place })?;
        let Some(after) = before.expect(-(bytes as i64)) else {
            let detail = format!("{bytes} bytes came, where {} are awaited", before.bytes());
            return Err(place.refuse_barrier(detail));
        };
        let (after, is_over) = after.settle();
        context.block.completions += u64::from(is_over);
        self.write_at(context, Place { word: BYTES, ..place }, &after.0.to_le_bytes())
    }

    /// The word at a place, which must be aligned and in shared memory.
    fn barrier_at<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        place: Place,
    ) -> Result<Word, Box<Trouble>> {
        place.check_alignment(BYTES)?;
        place.check_shared(BYTES)?;
        let mut bytes = [0; BYTES];
        self.read_at(context, place, &mut bytes)?;
        Ok(Word(u64::from_le_bytes(bytes)))
    }

    /// `mbarrier.pending_count`
    #[inline(never)]
    pub(super) fn pending_count(&mut self, to: u32, state: u32, active: u32) {
        let states = self.registers.get::<u64>(state);
        let mut counts = [0_u32; LANES];
        each_lane(active, |lane| counts[lane] = Word(states[lane]).pending() as u32);
        self.registers.put(to, &counts, active);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, threads leave a barrier before all have come, or never.
    #[test]
    fn a_phase_ends_with_its_last_arrival() {
        let first = Word::new(3).unwrap();
        let (two, over) = first.arrive(1, false).unwrap();
        assert!(!over && !two.is_past(first.0) && !two.is_past_parity(0));
        assert_eq!((two.pending(), two.expected()), (2, 3));
        let (next, over) = two.arrive(2, false).unwrap();
        assert!(over && next.is_past(first.0) && next.is_past(two.0));
        assert!(next.is_past_parity(0) && !next.is_past_parity(1));
        assert_eq!((next.pending(), next.expected()), (3, 3));
        assert_eq!(next.arrive(4, false), None, "more than the phase waits for");
    }

    /// If this fails, a thread that has left a barrier is waited for in later phases.
    #[test]
    fn who_drops_out_is_not_waited_for_again() {
        let (one, over) = Word::new(2).unwrap().arrive(1, true).unwrap();
        assert!(!over && (one.pending(), one.expected()) == (1, 1));
        let (next, over) = one.arrive(1, false).unwrap();
        assert!(over && (next.pending(), next.expected()) == (1, 1));
    }

    /// If this fails, a barrier that is used often breaks when its phases' number wraps.
    #[test]
    fn phases_wrap() {
        let mut word = Word(u64::MAX << PHASE_SHIFT | Word::new(1).unwrap().0);
        let last = word;
        word = word.arrive(1, false).unwrap().0;
        assert!(word.phase() == 0 && word.is_past(last.0) && word.expected() == 1);
    }

    /// If this fails, a thread reads a tile before its bytes have come, or waits for it forever.
    #[test]
    fn a_phase_waits_for_bytes_too() {
        let word = Word::new(1).unwrap().expect(100).unwrap();
        let (arrived, over) = word.arrive(1, false).unwrap();
        assert!(!over && (arrived.pending(), arrived.bytes()) == (0, 100));
        let (some, over) = arrived.expect(-60).unwrap().settle();
        assert!(!over && some.bytes() == 40);
        let (next, over) = some.expect(-40).unwrap().settle();
        assert!(over && next.is_past_parity(0) && (next.pending(), next.bytes()) == (1, 0));
        // What comes before it is expected ends nothing.
        let (early, over) = next.expect(-8).unwrap().settle();
        assert!(!over && early.bytes() == -8);
        let (late, over) = early.expect(8).unwrap().arrive(1, false).unwrap();
        assert!(over && late.phase() == 2);
        assert!(Word::new(1).unwrap().expect(1 << 20).is_none());
    }

    /// If this fails, counts that PTX forbids make barriers that end at once, or never.
    #[test]
    fn counts_are_bounded() {
        assert!(Word::new(0).is_none() && Word::new(1 << 20).is_none());
        assert_eq!(Word::new(COUNT_MAX as u32).unwrap().pending(), COUNT_MAX);
    }
}
