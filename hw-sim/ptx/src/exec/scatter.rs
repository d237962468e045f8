//! Loads and stores of whole words in shared memory whose lanes lie anywhere: tables, tiles of
//! matrices, one vector for several lanes. One pass over the lanes, and no look at windows.

use super::program::{Access, Atomic, Space};
use super::registers::{FULL, LANES, Row, each_lane};
use super::warp::{Context, Warp};
use super::windows;
use crate::kernel::Clock;
use crate::memory::Memory;

/// No block has as much shared memory.
const NEAR: u32 = 1 << 24;

/// What an instruction says of where it goes.
pub(super) struct SharedPlace {
    pub space: Space,
    pub base: u32,
    pub narrow_base: bool,
    pub offset: u64,
}

impl From<&Access> for SharedPlace {
    #[inline(always)]
    fn from(access: &Access) -> Self {
        let Access { space, base, narrow_base, offset, .. } = *access;
        Self { space, base, narrow_base, offset }
    }
}

impl From<&Atomic> for SharedPlace {
    #[inline(always)]
    fn from(atomic: &Atomic) -> Self {
        let Atomic { space, base, narrow_base, offset, .. } = *atomic;
        Self { space, base, narrow_base, offset }
    }
}

/// Lanes that are looked at together: as many words as a vector register of the host has.
const GROUP: usize = 8;

/// Loads of all lanes. In products of matrices many lanes load the same: all of a group, or each
/// what a lane of the group before or of the one before that loads. False if one goes outside.
#[inline(always)]
fn load_groups<const N: usize, const BYTES: usize>(
    shared: &[[u8; BYTES]],
    numbers: &[u32; LANES],
    mut rows: [&mut Row; N],
) -> bool {
    let numbers: &[[u32; GROUP]; LANES / GROUP] = bytemuck::cast_ref(numbers);
    let mut words = [[[0; GROUP]; N]; LANES / GROUP];
    for group in 0..numbers.len() {
        words[group] = if group > 0 && numbers[group] == numbers[group - 1] {
            words[group - 1]
        } else if group > 1 && numbers[group] == numbers[group - 2] {
            words[group - 2]
        } else {
            match words_of(shared, &numbers[group]) {
                Some(words) => words,
                None => return false,
            }
        };
    }
    for (element, row) in rows.iter_mut().enumerate() {
        for (group, lanes) in row.0.as_chunks_mut().0.iter_mut().enumerate() {
            *lanes = words[group][element];
        }
    }
    true
}

/// The words of some lanes, element by element.
#[inline(always)]
fn words_of<const N: usize, const BYTES: usize>(
    shared: &[[u8; BYTES]],
    numbers: &[u32; GROUP],
) -> Option<[[u32; GROUP]; N]> {
    if *numbers == [numbers[0]; GROUP] {
        let one: [u32; N] = bytemuck::cast(*shared.get(numbers[0] as usize)?);
        return Some(one.map(|word| [word; GROUP]));
    }
    let mut lanes = [[0; N]; GROUP];
    for lane in 0..GROUP {
        lanes[lane] = bytemuck::cast(*shared.get(numbers[lane] as usize)?);
    }
    Some(std::array::from_fn(|element| std::array::from_fn(|lane| lanes[lane][element])))
}

impl Warp {
    /// The places of lanes in shared memory, counted in accesses of so many bytes. None if one of
    /// the active lanes goes elsewhere or is misaligned.
    #[inline(always)]
    pub(super) fn shared_numbers(
        &self,
        place: &SharedPlace,
        active: u32,
        bytes: u32,
    ) -> Option<[u32; LANES]> {
        let mut numbers = [0; LANES];
        let mut wrong = 0;
        let is_active = |lane: usize| (active >> lane & 1).wrapping_neg();
        if place.narrow_base && place.space == Space::Shared {
            // Below this, sums of 32 bits are right: what is negative is far outside.
            let delta = place.offset as i64;
            if delta.unsigned_abs() >= u64::from(NEAR) {
                return None;
            }
            let bases = self.registers.get::<u32>(place.base);
            for lane in 0..LANES {
                let offset = bases[lane].wrapping_add(delta as u32);
                let far = bases[lane] & !(NEAR - 1);
                wrong |= (offset & (bytes - 1) | far) & is_active(lane);
                numbers[lane] = offset / bytes;
            }
            return (wrong == 0).then_some(numbers);
        }
        let (window, kept) = match place.space {
            // The window's byte does not count, as wherever an access says its space.
            Space::Shared => (0, windows::OFFSET),
            Space::Generic => (windows::SHARED, u64::MAX),
            _ => return None,
        };
        let addresses = self.addresses(place.base, place.narrow_base, place.offset);
        for lane in 0..LANES {
            let offset = (addresses[lane] ^ window) & kept;
            let far = u32::from(offset >= u64::from(NEAR));
            wrong |= (offset as u32 & (bytes - 1) | far) & is_active(lane);
            numbers[lane] = offset as u32 / bytes;
        }
        (wrong == 0).then_some(numbers)
    }

    /// A load of one, two or four words a lane. False if this way is not for it; nothing is lost.
    #[inline(always)]
    pub(super) fn load_scattered<M: Memory, C: Clock>(
        &mut self,
        context: &Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> bool {
        if access.element_bytes != 4 || access.register_bytes != 4 {
            return false;
        }
        match *access.registers {
            [_] => self.load_words::<M, C, 1, 4>(context, access, active),
            [_, _] => self.load_words::<M, C, 2, 8>(context, access, active),
            [_, _, _, _] => self.load_words::<M, C, 4, 16>(context, access, active),
            _ => false,
        }
    }

    /// `N` words, `BYTES` bytes.
    #[inline(never)]
    fn load_words<M: Memory, C: Clock, const N: usize, const BYTES: usize>(
        &mut self,
        context: &Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> bool {
        let Some(numbers) = self.shared_numbers(&access.into(), active, BYTES as u32) else {
            return false;
        };
        let shared = context.block.bytes.as_chunks::<BYTES>().0;
        if active == FULL
            && let Some(rows) = self.registers.words_mut::<N>(&access.registers)
        {
            return load_groups::<N, BYTES>(shared, &numbers, rows);
        }
        let mut found = [[0_u8; BYTES]; LANES];
        let mut fits = true;
        each_lane(active, |lane| match shared.get(numbers[lane] as usize) {
            Some(bytes) => found[lane] = *bytes,
            None => fits = false,
        });
        if !fits {
            return false;
        }
        let words: &[[u32; N]; LANES] = bytemuck::cast_ref(&found);
        for (element, &slot) in access.registers.iter().enumerate() {
            if slot != super::program::NO_SLOT {
                let row: [u32; LANES] = std::array::from_fn(|lane| words[lane][element]);
                self.registers.put(slot, &row, active);
            }
        }
        true
    }

    /// A store of one, two or four words a lane. False if this way is not for it; nothing was
    /// written.
    #[inline(always)]
    pub(super) fn store_scattered<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> bool {
        if access.element_bytes != 4 || access.register_bytes != 4 {
            return false;
        }
        match *access.registers {
            [_] => self.store_words::<M, C, 1, 4>(context, access, active),
            [_, _] => self.store_words::<M, C, 2, 8>(context, access, active),
            [_, _, _, _] => self.store_words::<M, C, 4, 16>(context, access, active),
            _ => false,
        }
    }

    #[inline(never)]
    fn store_words<M: Memory, C: Clock, const N: usize, const BYTES: usize>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> bool {
        let Some(numbers) = self.shared_numbers(&access.into(), active, BYTES as u32) else {
            return false;
        };
        let shared = context.block.bytes.as_chunks_mut::<BYTES>().0;
        let length = shared.len() as u32;
        let mut fits = true;
        for lane in 0..LANES {
            fits &= numbers[lane] < length || active >> lane & 1 == 0;
        }
        if !fits {
            return false;
        }
        let mut words = [[0_u32; N]; LANES];
        for (element, &slot) in access.registers.iter().enumerate() {
            let row = self.registers.get::<u32>(slot);
            for lane in 0..LANES {
                words[lane][element] = row[lane];
            }
        }
        let mut put = |lane: usize| {
            if let Some(target) = shared.get_mut(numbers[lane] as usize) {
                target.copy_from_slice(bytemuck::cast_slice(&words[lane]));
            }
        };
        if active == FULL {
            (0..LANES).for_each(put);
        } else {
            each_lane(active, &mut put);
        }
        true
    }
}
