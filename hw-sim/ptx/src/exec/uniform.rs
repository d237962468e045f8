//! Accesses of one lane, and loads of many from one place: what a thread does for its block while
//! the others wait, and what all of them read of what it left there.

use super::access::{Outcome, WIDTH_MAX};
use super::program::{Access, NO_SLOT, Space};
use super::registers::{FULL, LANES};
use super::warp::{Context, Warp};
use super::windows;
use crate::kernel::Clock;
use crate::memory::Memory;

impl Warp {
    /// The address that all active lanes access, if it is one.
    #[inline(always)]
    fn one_address(&self, access: &Access, active: u32) -> Option<u64> {
        if access.base == NO_SLOT {
            return Some(access.offset);
        }
        let first = active.trailing_zeros() as usize % LANES;
        if access.narrow_base {
            let bases = self.registers.get::<u32>(access.base);
            is_one(bases, bases[first], active)
                .then(|| u64::from(bases[first]).wrapping_add(access.offset))
        } else {
            let bases = self.registers.get::<u64>(access.base);
            is_one(bases, bases[first], active).then(|| bases[first].wrapping_add(access.offset))
        }
    }

    /// Where one address leads: memory that one lane reaches like all others, or has for itself.
    #[inline(always)]
    fn one_place(access: &Access, address: u64, alone: bool) -> Option<Space> {
        let space = match (access.space, address & !windows::OFFSET) {
            (Space::Generic, 0) => Space::Global,
            (Space::Generic, windows::SHARED) => Space::Shared,
            (Space::Generic, windows::LOCAL) => Space::Local,
            (Space::Generic, _) => return None,
            (space, _) => space,
        };
        let aligned = address & (access.lane_bytes() as u64 - 1) == 0;
        let reached = match space {
            Space::Global | Space::Shared => true,
            Space::Local => alone,
            // At a known place: the same for all.
            Space::Param => access.base == NO_SLOT,
            // Another block's memory has no quick way.
            Space::Generic | Space::Cluster => false,
        };
        (aligned && reached).then_some(space)
    }

    /// Memory that belongs to the block.
    #[inline(always)]
    fn inside<'a, M: Memory, C: Clock>(
        &'a mut self,
        context: &'a mut Context<'_, M, C>,
        space: Space,
        lane: usize,
        address: u64,
        width: usize,
    ) -> Option<&'a mut [u8]> {
        let start = (address & windows::OFFSET) as usize;
        let bytes = if space == Space::Shared {
            context.block.bytes.as_mut_slice()
        } else {
            let local_bytes = context.program.local_bytes as usize;
            &mut self.local[lane * local_bytes..(lane + 1) * local_bytes]
        };
        bytes.get_mut(start..start.checked_add(width)?)
    }

    /// A load of one place. None: it is not, or cannot be done; nothing is lost.
    #[inline(always)]
    pub(super) fn load_one<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Option<Outcome> {
        let address = self.one_address(access, active)?;
        let alone = active.is_power_of_two();
        let space = Self::one_place(access, address, alone)?;
        let lane = active.trailing_zeros() as usize % LANES;
        let width = access.lane_bytes();
        let mut buffer = [0; WIDTH_MAX];
        let bytes = buffer.get_mut(..width)?;
        if space == Space::Global {
            let (memory, cursor) = (context.memory, &mut *context.cursor);
            let word = usize::from(access.element_bytes);
            memory.read(cursor, address, word, access.strength, bytes).ok()?;
        } else if space == Space::Param {
            let start = address as usize;
            copy_lane(bytes, context.launch.params.get(start..start.checked_add(width)?)?);
        } else {
            copy_lane(bytes, self.inside(context, space, lane, address, width)?);
        }
        let element = usize::from(access.element_bytes);
        let unused = 64 - 8 * element as u32;
        let mut at = 0;
        for &slot in &access.registers {
            let value = element_at(&buffer, at, element)?;
            let value =
                if access.signed { ((value << unused) as i64 >> unused) as u64 } else { value };
            if slot != NO_SLOT {
                self.put_one(slot, access.register_bytes, value, active);
            }
            at += element;
        }
        let place = (space == Space::Global).then_some(address);
        Some(Outcome { place, buffer })
    }

    #[inline(always)]
    fn put_one(&mut self, slot: u32, register_bytes: u8, value: u64, active: u32) {
        let registers = &mut self.registers;
        if active.is_power_of_two() {
            let lane = active.trailing_zeros() as usize % LANES;
            match register_bytes {
                2 => registers.get_mut::<u16>(slot)[lane] = value as u16,
                4 => registers.get_mut::<u32>(slot)[lane] = value as u32,
                _ => registers.get_mut::<u64>(slot)[lane] = value,
            }
            return;
        }
        match register_bytes {
            2 => registers.put(slot, &[value as u16; LANES], active),
            4 => registers.put(slot, &[value as u32; LANES], active),
            _ => registers.put(slot, &[value; LANES], active),
        }
    }

    /// A store of one lane. False: it is not, or cannot be done; nothing was written.
    #[inline(always)]
    pub(super) fn store_one<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> bool {
        self.try_store_one(context, access, active).is_some()
    }

    #[inline(always)]
    fn try_store_one<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Option<()> {
        let address = self.one_address(access, active)?;
        let space = Self::one_place(access, address, true).filter(|&it| it != Space::Param)?;
        let lane = active.trailing_zeros() as usize % LANES;
        let (width, element) = (access.lane_bytes(), usize::from(access.element_bytes));
        let mut buffer = [0; WIDTH_MAX];
        buffer.get(..width)?;
        let mut at = 0;
        for &slot in &access.registers {
            let value = self.lane_bits(slot, lane, usize::from(access.register_bytes));
            put_element(&mut buffer, at, element, value)?;
            at += element;
        }
        if space == Space::Global {
            let (memory, cursor) = (context.memory, &mut *context.cursor);
            let bytes = &buffer[..width];
            return memory.write(cursor, address, element, access.strength, bytes).ok();
        }
        copy_lane(self.inside(context, space, lane, address, width)?, &buffer[..width]);
        Some(())
    }
}

/// The element of so many bytes that starts at `at`. It is read as it was written: a processor
/// waits for its own stores where it loads what several of them left.
#[inline(always)]
fn element_at(bytes: &[u8], at: usize, element: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?;
    Some(match element {
        8 => u64::from_le_bytes(*bytes.first_chunk()?),
        4 => u32::from_le_bytes(*bytes.first_chunk()?).into(),
        2 => u16::from_le_bytes(*bytes.first_chunk()?).into(),
        _ => (*bytes.first()?).into(),
    })
}

/// The same, to write.
#[inline(always)]
fn put_element(bytes: &mut [u8], at: usize, element: usize, value: u64) -> Option<()> {
    let bytes = bytes.get_mut(at..)?;
    match element {
        8 => *bytes.first_chunk_mut()? = value.to_le_bytes(),
        4 => *bytes.first_chunk_mut()? = (value as u32).to_le_bytes(),
        2 => *bytes.first_chunk_mut()? = (value as u16).to_le_bytes(),
        _ => *bytes.first_mut()? = value as u8,
    }
    Some(())
}

/// Copies what one lane accesses. Common widths take no call.
#[inline(always)]
fn copy_lane(to: &mut [u8], from: &[u8]) {
    fn copy<const WIDTH: usize>(to: &mut [u8], from: &[u8]) {
        if let (Some(to), Some(from)) = (to.first_chunk_mut::<WIDTH>(), from.first_chunk()) {
            *to = *from;
        }
    }
    match to.len() {
        4 => copy::<4>(to, from),
        8 => copy::<8>(to, from),
        16 => copy::<16>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// Do all active lanes have this value?
#[inline(always)]
fn is_one<T: Copy + Into<u64>>(values: &[T; LANES], first: T, active: u32) -> bool {
    if active.is_power_of_two() {
        return true;
    }
    let first: u64 = first.into();
    let mut unequal = 0;
    if active == FULL {
        for &value in values {
            unequal |= value.into() ^ first;
        }
    } else {
        for (lane, &value) in values.iter().enumerate() {
            let keep = u64::from(active >> lane & 1).wrapping_neg();
            unequal |= (value.into() ^ first) & keep;
        }
    }
    unequal == 0
}
