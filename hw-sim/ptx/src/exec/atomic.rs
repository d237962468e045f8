//! Read-modify-write.

use super::access::{check_alignment, try_each_lane};
use super::by_thread::check_space;
use super::cluster::space_of;
use super::fault::{FaultKind, Trouble};
use super::float::{canonical, maximum, minimum};
use super::program::{Atomic, NO_SLOT, Space};
use super::registers::{LANES, each_lane};
use super::rounding::{self, Format, Rounding};
use super::shared::BlockMemory;
use super::warp::{Context, Warp};
use super::windows;
use crate::kernel::Clock;
use crate::memory::{AtomicOp, AtomicType, Memory};

/// The new value of a word: what every memory has to compute for an atomic.
pub fn apply(op: AtomicOp, ty: AtomicType, old: u64, operand: u64, compare: u64) -> u64 {
    let bits = ty.size_bytes() as u32 * 8;
    let keep = u64::MAX >> (64 - bits);
    let (old, operand, compare) = (old & keep, operand & keep, compare & keep);
    let signed = |value: u64| (value << (64 - bits)) as i64 >> (64 - bits);
    let is_signed = matches!(ty, AtomicType::S32 | AtomicType::S64);
    let new = match op {
        AtomicOp::Exch => operand,
        AtomicOp::Cas if old == compare => operand,
        AtomicOp::Cas => old,
        AtomicOp::And => old & operand,
        AtomicOp::Or => old | operand,
        AtomicOp::Xor => old ^ operand,
        AtomicOp::Inc if old >= operand => 0,
        AtomicOp::Inc => old + 1,
        AtomicOp::Dec if old == 0 || old > operand => operand,
        AtomicOp::Dec => old - 1,
        AtomicOp::Add | AtomicOp::Min | AtomicOp::Max => match ty {
            AtomicType::F16 => half(op, old, operand, rounding::F16),
            AtomicType::BF16 => half(op, old, operand, rounding::BF16),
            AtomicType::F16x2 => pair(op, old, operand, rounding::F16),
            AtomicType::BF16x2 => pair(op, old, operand, rounding::BF16),
            AtomicType::F32 => {
                let (a, b) = (f32::from_bits(old as u32), f32::from_bits(operand as u32));
                u64::from(single(op, a, b).to_bits())
            }
            AtomicType::F64 => (f64::from_bits(old) + f64::from_bits(operand)).to_bits(),
            _ if op == AtomicOp::Add => old.wrapping_add(operand),
            _ => {
                let less = if is_signed { signed(old) < signed(operand) } else { old < operand };
                if less == (op == AtomicOp::Min) { old } else { operand }
            }
        },
    };
    new & keep
}

fn single(op: AtomicOp, a: f32, b: f32) -> f32 {
    match op {
        AtomicOp::Min => minimum(a, b),
        AtomicOp::Max => maximum(a, b),
        _ => canonical(a + b),
    }
}

fn half(op: AtomicOp, old: u64, operand: u64, format: Format) -> u64 {
    let (a, b) = (rounding::to_f64(old, format), rounding::to_f64(operand, format));
    let result = f64::from(single(op, a as f32, b as f32));
    rounding::from_f64(result, format, Rounding::Nearest)
}

fn pair(op: AtomicOp, old: u64, operand: u64, format: Format) -> u64 {
    let low = half(op, old & 0xffff, operand & 0xffff, format);
    let high = half(op, old >> 16 & 0xffff, operand >> 16 & 0xffff, format);
    high << 16 | low
}

/// Words of shared memory, and who does what to which.
struct WordLanes<'a> {
    words: &'a mut [[u8; 4]],
    places: &'a [u32; LANES],
    operands: &'a [u32; LANES],
    active: u32,
}

impl WordLanes<'_> {
    /// Lane after lane. Gives the old values, and whether any word is another one now.
    #[inline(always)]
    fn each(self, new: impl Fn(usize, u32, u32) -> u32) -> ([u32; LANES], bool) {
        let (mut olds, mut changed) = ([0; LANES], 0);
        each_lane(self.active, |lane| {
            let word = &mut self.words[self.places[lane] as usize];
            let old = u32::from_le_bytes(*word);
            let new = new(lane, old, self.operands[lane]);
            (olds[lane], *word) = (old, new.to_le_bytes());
            changed |= old ^ new;
        });
        (olds, changed != 0)
    }
}

impl Warp {
    /// One register's lane, by its width.
    pub(super) fn lane_bits(&self, slot: u32, lane: usize, bytes: usize) -> u64 {
        match bytes {
            2 => u64::from(self.registers.get::<u16>(slot)[lane]),
            4 => u64::from(self.registers.get::<u32>(slot)[lane]),
            _ => self.registers.get::<u64>(slot)[lane],
        }
    }

    /// `atom` and `red`: lane after lane.
    #[inline(never)]
    pub(super) fn atomic<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        atomic: &Atomic,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let bytes = atomic.ty.size_bytes();
        if M::BY_THREAD {
            check_space(atomic.space, active)?;
        }
        if bytes == 4 && !M::BY_THREAD && self.atomic_words(context.block, atomic, active) {
            return Ok(());
        }
        let addresses = self.addresses(atomic.base, atomic.narrow_base, atomic.offset);
        check_alignment(&addresses, active, bytes)?;
        let mut olds = [0_u64; LANES];
        let mut changed = false;
        try_each_lane(active, |lane| {
            let operand = self.lane_bits(atomic.operand, lane, bytes);
            let compare = match atomic.op {
                AtomicOp::Cas => self.lane_bits(atomic.compare, lane, bytes),
                _ => 0,
            };
            let old = self.one_atomic(context, atomic, lane, addresses[lane], operand, compare)?;
            // What leaves memory as it was is a way to look at it: a lock polled, a sum of zero.
            let new = apply(atomic.op, atomic.ty, old, operand, compare);
            changed |= new != apply(AtomicOp::Exch, atomic.ty, 0, old, 0);
            olds[lane] = old;
            Ok(())
        })?;
        if changed {
            self.watch.clear();
        } else {
            self.note_atomic(atomic, &addresses, &olds, active);
        }
        if atomic.d != NO_SLOT {
            match bytes {
                2 => self.registers.put(atomic.d, &olds.map(|old| old as u16), active),
                4 => self.registers.put(atomic.d, &olds.map(|old| old as u32), active),
                _ => self.registers.put(atomic.d, &olds, active),
            }
        }
        Ok(())
    }

    /// The same on words of shared memory alone. False if this way is not for it; nothing was done.
    fn atomic_words(&mut self, block: &mut BlockMemory, atomic: &Atomic, active: u32) -> bool {
        let Some(places) = self.shared_numbers(&atomic.into(), active, 4) else { return false };
        let words = block.bytes.as_chunks_mut::<4>().0;
        let mut fits = true;
        each_lane(active, |lane| fits &= (places[lane] as usize) < words.len());
        if !fits {
            return false;
        }
        let operands = self.registers.get::<u32>(atomic.operand);
        let lanes = WordLanes { words, places: &places, operands, active };
        let (olds, changed) = match (atomic.op, atomic.ty) {
            (AtomicOp::Add, AtomicType::U32 | AtomicType::S32 | AtomicType::B32) => {
                lanes.each(|_, old, operand| old.wrapping_add(operand))
            }
            (AtomicOp::Add, AtomicType::F32) => lanes.each(|_, old, operand| {
                canonical(f32::from_bits(old) + f32::from_bits(operand)).to_bits()
            }),
            (AtomicOp::Exch, _) => lanes.each(|_, _, operand| operand),
            (AtomicOp::Cas, _) => {
                let compare = self.registers.get::<u32>(atomic.compare);
                lanes.each(|lane, old, operand| if old == compare[lane] { operand } else { old })
            }
            (op, ty) => lanes.each(|_, old, operand| {
                apply(op, ty, u64::from(old), u64::from(operand), 0) as u32
            }),
        };
        if changed {
            self.watch.clear();
        } else {
            self.watch.looked(true, true);
        }
        if atomic.d != NO_SLOT {
            self.registers.put(atomic.d, &olds, active);
        }
        true
    }

    /// An atomic that left memory as it was is a look at it.
    #[cold]
    fn note_atomic(
        &mut self,
        atomic: &Atomic,
        addresses: &[u64; LANES],
        olds: &[u64; LANES],
        active: u32,
    ) {
        let bytes = atomic.ty.size_bytes();
        let mut same = true;
        each_lane(active, |lane| {
            let outside = match atomic.space {
                Space::Global => true,
                Space::Generic => addresses[lane] >> windows::SHIFT == 0,
                _ => false,
            };
            if outside {
                same &= self.watch.note(addresses[lane], &olds[lane].to_le_bytes()[..bytes]);
            }
        });
        self.watch.looked(same, true);
    }

    fn one_atomic<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        atomic: &Atomic,
        lane: usize,
        address: u64,
        operand: u64,
        compare: u64,
    ) -> Result<u64, Box<Trouble>> {
        let bytes = atomic.ty.size_bytes();
        let space = match (atomic.space, address & !windows::OFFSET) {
            (Space::Generic, windows::SHARED) => space_of(address),
            (Space::Generic, windows::LOCAL) => Space::Local,
            (Space::Generic, _) => Space::Global,
            (space, _) => space,
        };
        let (space, address) = self.by_thread_place::<M>(context.memory, space, address, lane);
        let start = (address & windows::OFFSET) as usize;
        let (memory, fault) = match space {
            Space::Shared => (context.block.bytes.as_mut_slice(), FaultKind::SharedOutOfBounds),
            Space::Cluster => {
                let change = |word: &mut [u8]| modify(atomic, word, operand, compare);
                return context.block.within_cluster((lane, address), bytes, change);
            }
            Space::Local => {
                let local_bytes = context.program.local_bytes as usize;
                let own = &mut self.local[lane * local_bytes..(lane + 1) * local_bytes];
                (own, FaultKind::LocalOutOfBounds)
            }
            _ => {
                let (op, ty, strength) = (atomic.op, atomic.ty, atomic.strength);
                let cursor = &mut *context.cursor;
                let result =
                    context.memory.atomic(cursor, address, op, ty, strength, operand, compare);
                return result.map_err(|fault| Trouble::at(fault.into(), lane, address, bytes));
            }
        };
        let word = memory
            .get_mut(start..start.saturating_add(bytes))
            .ok_or_else(|| Trouble::at(fault, lane, address, bytes))?;
        Ok(modify(atomic, word, operand, compare))
    }
}

/// Changes a word; gives the old value.
fn modify(atomic: &Atomic, word: &mut [u8], operand: u64, compare: u64) -> u64 {
    let mut raw = [0; 8];
    raw[..word.len()].copy_from_slice(word);
    let old = u64::from_le_bytes(raw);
    let new = apply(atomic.op, atomic.ty, old, operand, compare);
    word.copy_from_slice(&new.to_le_bytes()[..word.len()]);
    old
}
