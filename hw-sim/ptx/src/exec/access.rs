//! Loads and stores. Lanes that access bytes side by side are served by one copy.

use bytemuck::Zeroable;

use super::fault::{FaultKind, Trouble};
use super::program::{Access, NO_SLOT, Space};
use super::registers::{FULL, LANES, Lane, Registers, each_lane};
use super::warp::{Context, Warp};
use super::windows;
use crate::kernel::Clock;
use crate::memory::{Memory, Order, Strength};

/// Room for the widest access of all lanes: 32 bytes each.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Zeroable)]
pub struct Scratch([u64; LANES * 4]);

impl Default for Scratch {
    fn default() -> Self {
        Self::zeroed()
    }
}

impl Scratch {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// Addresses of all lanes.
pub type Addresses = [u64; LANES];

/// How the addresses of lanes lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// All 32, one behind the other.
    SideBySide,
    /// All the same.
    Same,
    /// Neither.
    Scattered,
}

/// Looks at addresses: `width` is the bytes that each lane moves.
#[inline(always)]
fn shape(addresses: &Addresses, mask: u32, width: u64) -> Shape {
    if mask != FULL {
        return Shape::Scattered;
    }
    let first = addresses[0];
    let (mut apart, mut unequal) = (0, 0);
    for (lane, &address) in addresses.iter().enumerate() {
        apart |= address ^ first.wrapping_add(lane as u64 * width);
        unequal |= address ^ first;
    }
    if apart == 0 {
        Shape::SideBySide
    } else if unequal == 0 {
        Shape::Same
    } else {
        Shape::Scattered
    }
}

/// The bytes of a memory that belongs to the block.
fn place<'b>(
    bytes: &'b mut [u8],
    offset: u64,
    length: usize,
    fault: FaultKind,
    lane: usize,
    address: u64,
) -> Result<&'b mut [u8], Box<Trouble>> {
    usize::try_from(offset)
        .ok()
        .and_then(|start| bytes.get_mut(start..start.checked_add(length)?))
        .ok_or_else(|| Trouble::at(fault, lane, address, length))
}

impl Warp {
    /// The address that each lane accesses.
    #[inline(always)]
    pub(super) fn addresses(&self, base: u32, narrow: bool, offset: u64) -> Addresses {
        let mut addresses = [offset; LANES];
        if base == NO_SLOT {
            return addresses;
        }
        if narrow {
            let bases = self.registers.get::<u32>(base);
            for lane in 0..LANES {
                addresses[lane] = u64::from(bases[lane]).wrapping_add(offset);
            }
        } else {
            let bases = self.registers.get::<u64>(base);
            for lane in 0..LANES {
                addresses[lane] = bases[lane].wrapping_add(offset);
            }
        }
        addresses
    }

    /// A load.
    pub(super) fn load<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        if access.strength.order != Order::Weak {
            self.polls += 1;
        }
        let width = access.lane_bytes();
        if access.space == Space::Param && access.base == NO_SLOT {
            return self.load_param(context, access, active);
        }
        let addresses = self.addresses(access.base, access.narrow_base, access.offset);
        check_alignment(&addresses, active, width)?;
        let space = access.space;
        let outside = match space {
            Space::Global => true,
            Space::Generic => same_window(&addresses, active) == Some(0),
            _ => false,
        };
        if !outside {
            return self.load_inside(context, access, &addresses, active);
        }
        let form = shape(&addresses, active, width as u64);
        let word = usize::from(access.element_bytes);
        let strength = access.strength;
        if form == Shape::SideBySide && access.registers.len() == 1 {
            // The widest road: memory to register with nothing between.
            if access.element_bytes == access.register_bytes
                && let Some(row) = self.registers.bytes_mut(access.registers[0], word)
            {
                let read =
                    context.memory.read(&mut context.cursor, addresses[0], word, strength, row);
                if read.is_ok() {
                    return Ok(());
                }
            }
        }
        self.read_outside(context, &addresses, active, (width, word), strength, form)?;
        self.unpack(access, active);
        Ok(())
    }

    /// Reads global memory into the scratch, lane after lane.
    fn read_outside<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        addresses: &Addresses,
        active: u32,
        (width, word): (usize, usize),
        strength: Strength,
        form: Shape,
    ) -> Result<(), Box<Trouble>> {
        let scratch = self.scratch.bytes_mut();
        let (memory, cursor) = (context.memory, &mut context.cursor);
        if form == Shape::SideBySide {
            let bytes = &mut scratch[..width * LANES];
            if memory.read(cursor, addresses[0], word, strength, bytes).is_ok() {
                return Ok(());
            }
        } else if form == Shape::Same {
            let result = memory.read(cursor, addresses[0], word, strength, &mut scratch[..width]);
            result.map_err(|fault| Trouble::at(fault.into(), 0, addresses[0], width))?;
            for lane in 1..LANES {
                scratch.copy_within(..width, lane * width);
            }
            return Ok(());
        }
        for_runs(addresses, active, width, |lane, count| {
            let bytes = &mut scratch[lane * width..(lane + count) * width];
            if memory.read(cursor, addresses[lane], word, strength, bytes).is_ok() {
                return Ok(());
            }
            for one in lane..lane + count {
                let bytes = &mut scratch[one * width..(one + 1) * width];
                let result = memory.read(cursor, addresses[one], word, strength, bytes);
                result.map_err(|fault| Trouble::at(fault.into(), one, addresses[one], width))?;
            }
            Ok(())
        })
    }

    /// Loads of memory that the block owns, and generic loads whose lanes disagree.
    fn load_inside<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        addresses: &Addresses,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let width = access.lane_bytes();
        let word = usize::from(access.element_bytes);
        for_windows(access.space, addresses, active, |space, offsets, lanes| {
            if space == Space::Global {
                let (form, strength) = (Shape::Scattered, access.strength);
                return self
                    .read_outside(context, addresses, lanes, (width, word), strength, form);
            }
            let scratch = self.scratch.bytes_mut();
            if space == Space::Shared && shape(offsets, lanes, width as u64) == Shape::SideBySide {
                let all = width * LANES;
                let start = offsets[0] as usize;
                if let Some(bytes) = context.block.bytes.get(start..start.saturating_add(all)) {
                    scratch[..all].copy_from_slice(bytes);
                    return Ok(());
                }
            }
            let local_bytes = context.program.local_bytes as usize;
            try_each_lane(lanes, |lane| {
                let offset = offsets[lane];
                let into = &mut scratch[lane * width..(lane + 1) * width];
                let address = addresses[lane];
                let bytes: &[u8] = match space {
                    Space::Shared => {
                        let fault = FaultKind::SharedOutOfBounds;
                        place(&mut context.block.bytes, offset, width, fault, lane, address)?
                    }
                    Space::Local => {
                        let own = &mut self.local[lane * local_bytes..(lane + 1) * local_bytes];
                        place(own, offset, width, FaultKind::LocalOutOfBounds, lane, address)?
                    }
                    _ => {
                        let start = offset as usize;
                        let end = start.saturating_add(width);
                        context.launch.params.get(start..end).ok_or_else(|| {
                            Trouble::at(FaultKind::ParamOutOfBounds, lane, address, width)
                        })?
                    }
                };
                into.copy_from_slice(bytes);
                Ok(())
            })
        })?;
        self.unpack(access, active);
        Ok(())
    }

    /// A kernel parameter at a known place: the same for all lanes.
    fn load_param<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let width = access.lane_bytes();
        let start = access.offset as usize;
        let Some(bytes) = context.launch.params.get(start..start + width) else {
            let lane = active.trailing_zeros() as usize;
            return Err(Trouble::at(FaultKind::ParamOutOfBounds, lane, access.offset, width));
        };
        let scratch = self.scratch.bytes_mut();
        for lane in 0..LANES {
            scratch[lane * width..(lane + 1) * width].copy_from_slice(bytes);
        }
        self.unpack(access, active);
        Ok(())
    }

    /// A store.
    pub(super) fn store<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        self.polls = 0;
        let width = access.lane_bytes();
        let addresses = self.addresses(access.base, access.narrow_base, access.offset);
        check_alignment(&addresses, active, width)?;
        let outside = match access.space {
            Space::Global => true,
            Space::Generic => same_window(&addresses, active) == Some(0),
            _ => false,
        };
        let word = usize::from(access.element_bytes);
        let strength = access.strength;
        let form = shape(&addresses, active, width as u64);
        if outside && form == Shape::SideBySide && access.registers.len() == 1 {
            if access.element_bytes == access.register_bytes
                && let Some(row) = self.registers.bytes_mut(access.registers[0], word)
            {
                let written =
                    context.memory.write(&mut context.cursor, addresses[0], word, strength, row);
                if written.is_ok() {
                    return Ok(());
                }
            }
        }
        self.pack(access);
        if outside {
            return self.write_outside(context, &addresses, active, (width, word), strength);
        }
        self.store_inside(context, access, &addresses, active)
    }

    /// Writes the scratch to global memory.
    fn write_outside<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        addresses: &Addresses,
        active: u32,
        (width, word): (usize, usize),
        strength: Strength,
    ) -> Result<(), Box<Trouble>> {
        let scratch = self.scratch.bytes();
        let (memory, cursor) = (context.memory, &mut context.cursor);
        for_runs(addresses, active, width, |lane, count| {
            let bytes = &scratch[lane * width..(lane + count) * width];
            if memory.write(cursor, addresses[lane], word, strength, bytes).is_ok() {
                return Ok(());
            }
            for one in lane..lane + count {
                let bytes = &scratch[one * width..(one + 1) * width];
                let result = memory.write(cursor, addresses[one], word, strength, bytes);
                result.map_err(|fault| Trouble::at(fault.into(), one, addresses[one], width))?;
            }
            Ok(())
        })
    }

    /// Stores to memory that the block owns, and generic stores whose lanes disagree.
    fn store_inside<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        addresses: &Addresses,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let width = access.lane_bytes();
        let word = usize::from(access.element_bytes);
        for_windows(access.space, addresses, active, |space, offsets, lanes| {
            if space == Space::Global {
                return self.write_outside(
                    context,
                    addresses,
                    lanes,
                    (width, word),
                    access.strength,
                );
            }
            let scratch = self.scratch.bytes();
            if space == Space::Shared && shape(offsets, lanes, width as u64) == Shape::SideBySide {
                let all = width * LANES;
                let start = offsets[0] as usize;
                let end = start.saturating_add(all);
                if let Some(bytes) = context.block.bytes.get_mut(start..end) {
                    bytes.copy_from_slice(&scratch[..all]);
                    return Ok(());
                }
            }
            let local_bytes = context.program.local_bytes as usize;
            try_each_lane(lanes, |lane| {
                let (offset, address) = (offsets[lane], addresses[lane]);
                let (memory, fault) = match space {
                    Space::Shared => {
                        (context.block.bytes.as_mut_slice(), FaultKind::SharedOutOfBounds)
                    }
                    Space::Local => {
                        let own = &mut self.local[lane * local_bytes..(lane + 1) * local_bytes];
                        (own, FaultKind::LocalOutOfBounds)
                    }
                    _ => return Err(Trouble::at(FaultKind::ParamOutOfBounds, lane, address, width)),
                };
                let bytes = place(memory, offset, width, fault, lane, address)?;
                bytes.copy_from_slice(&scratch[lane * width..(lane + 1) * width]);
                Ok(())
            })
        })
    }

    /// Copies between local addresses of each lane: arguments and results of calls.
    pub(super) fn copy_local(
        &mut self,
        copy: &super::program::CopyLocal,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let (from, to) = (*self.registers.get::<u64>(copy.from), *self.registers.get::<u64>(copy.to));
        let local_bytes = self.local.len() / LANES;
        let length = copy.bytes as usize;
        try_each_lane(active, |lane| {
            let own = &mut self.local[lane * local_bytes..(lane + 1) * local_bytes];
            let fault = FaultKind::StackOverflow;
            let (from, to) = (from[lane] & windows::OFFSET, to[lane] & windows::OFFSET);
            place(own, from, length, fault, lane, from)?;
            place(own, to, length, fault, lane, to)?;
            own.copy_within(from as usize..from as usize + length, to as usize);
            Ok(())
        })
    }

    /// Scratch to registers.
    fn unpack(&mut self, access: &Access, mask: u32) {
        let (element, register) = (access.element_bytes, access.register_bytes);
        let (registers, slots) = (&mut self.registers, access.registers.as_slice());
        let words = &self.scratch.0;
        match (element, register, slots.len()) {
            (4, 4, 1) => spread::<u32, 1>(registers, slots, bytemuck::cast_slice(words), mask),
            (4, 4, 2) => spread::<u32, 2>(registers, slots, bytemuck::cast_slice(words), mask),
            (4, 4, 4) => spread::<u32, 4>(registers, slots, bytemuck::cast_slice(words), mask),
            (8, 8, 1) => spread::<u64, 1>(registers, slots, words, mask),
            (8, 8, 2) => spread::<u64, 2>(registers, slots, words, mask),
            (2, 2, 1) => spread::<u16, 1>(registers, slots, bytemuck::cast_slice(words), mask),
            _ => spread_any(registers, access, bytemuck::cast_slice(words), mask),
        }
    }

    /// Registers to scratch, all lanes.
    fn pack(&mut self, access: &Access) {
        let (element, register) = (access.element_bytes, access.register_bytes);
        let (registers, slots) = (&self.registers, access.registers.as_slice());
        let words = &mut self.scratch.0;
        match (element, register, slots.len()) {
            (4, 4, 1) => gather::<u32, 1>(registers, slots, bytemuck::cast_slice_mut(words)),
            (4, 4, 2) => gather::<u32, 2>(registers, slots, bytemuck::cast_slice_mut(words)),
            (4, 4, 4) => gather::<u32, 4>(registers, slots, bytemuck::cast_slice_mut(words)),
            (8, 8, 1) => gather::<u64, 1>(registers, slots, words),
            (8, 8, 2) => gather::<u64, 2>(registers, slots, words),
            (2, 2, 1) => gather::<u16, 1>(registers, slots, bytemuck::cast_slice_mut(words)),
            _ => gather_any(registers, access, bytemuck::cast_slice_mut(words)),
        }
    }
}

/// Lanes of `N` words each, side by side, to `N` registers.
#[inline(always)]
fn spread<T: Lane, const N: usize>(
    registers: &mut Registers,
    slots: &[u32],
    words: &[T],
    mask: u32,
) {
    let mut rows = [[T::zeroed(); LANES]; N];
    for (lane, group) in words[..LANES * N].chunks_exact(N).enumerate() {
        for element in 0..N {
            rows[element][lane] = group[element];
        }
    }
    for (row, &slot) in rows.iter().zip(slots) {
        if slot != NO_SLOT {
            registers.put(slot, row, mask);
        }
    }
}

/// The reverse of [`spread`].
#[inline(always)]
fn gather<T: Lane, const N: usize>(registers: &Registers, slots: &[u32], words: &mut [T]) {
    let rows: [&[T; LANES]; N] = std::array::from_fn(|element| registers.get(slots[element]));
    for (lane, group) in words[..LANES * N].chunks_exact_mut(N).enumerate() {
        for element in 0..N {
            group[element] = rows[element][lane];
        }
    }
}

/// Elements narrower than their registers, or of odd number: one by one.
fn spread_any(registers: &mut Registers, access: &Access, bytes: &[u8], mask: u32) {
    let element = usize::from(access.element_bytes);
    let width = access.lane_bytes();
    for (number, &slot) in access.registers.iter().enumerate() {
        if slot == NO_SLOT {
            continue;
        }
        let mut values = [0_u64; LANES];
        each_lane(mask, |lane| {
            let start = lane * width + number * element;
            let mut raw = [0; 8];
            raw[..element].copy_from_slice(&bytes[start..start + element]);
            let value = u64::from_le_bytes(raw);
            let unused = 64 - 8 * element as u32;
            values[lane] = if access.signed {
                ((value << unused) as i64 >> unused) as u64
            } else {
                value
            };
        });
        match access.register_bytes {
            2 => registers.put(slot, &values.map(|value| value as u16), mask),
            4 => registers.put(slot, &values.map(|value| value as u32), mask),
            _ => registers.put(slot, &values, mask),
        }
    }
}

/// The reverse of [`spread_any`].
fn gather_any(registers: &Registers, access: &Access, bytes: &mut [u8]) {
    let element = usize::from(access.element_bytes);
    let width = access.lane_bytes();
    for (number, &slot) in access.registers.iter().enumerate() {
        for lane in 0..LANES {
            let value = match access.register_bytes {
                2 => u64::from(registers.get::<u16>(slot)[lane]),
                4 => u64::from(registers.get::<u32>(slot)[lane]),
                _ => registers.get::<u64>(slot)[lane],
            };
            let start = lane * width + number * element;
            bytes[start..start + element].copy_from_slice(&value.to_le_bytes()[..element]);
        }
    }
}

/// All active lanes must be aligned to the whole access.
#[inline(always)]
pub(super) fn check_alignment(
    addresses: &Addresses,
    active: u32,
    width: usize,
) -> Result<(), Box<Trouble>> {
    let low = width as u64 - 1;
    let mut bits = 0;
    if active == FULL {
        for address in addresses {
            bits |= address;
        }
    } else {
        each_lane(active, |lane| bits |= addresses[lane]);
    }
    if bits & low == 0 {
        return Ok(());
    }
    try_each_lane(active, |lane| {
        let address = addresses[lane];
        if address & low == 0 {
            return Ok(());
        }
        Err(Trouble::at(FaultKind::Misaligned, lane, address, width))
    })
}

/// The window of all active lanes, if it is one.
#[inline(always)]
fn same_window(addresses: &Addresses, active: u32) -> Option<u64> {
    let first = addresses[active.trailing_zeros() as usize % LANES] >> windows::SHIFT;
    let mut others = 0;
    each_lane(active, |lane| others |= addresses[lane] >> windows::SHIFT ^ first);
    (others == 0).then_some(first)
}

/// Calls `f` with each group of lanes that access one memory, and their offsets in it.
fn for_windows(
    space: Space,
    addresses: &Addresses,
    active: u32,
    mut f: impl FnMut(Space, &Addresses, u32) -> Result<(), Box<Trouble>>,
) -> Result<(), Box<Trouble>> {
    let offsets = addresses.map(|address| address & windows::OFFSET);
    if space != Space::Generic {
        // An address that was computed in a window may carry a window's byte all the same.
        return f(space, &offsets, active);
    }
    let mut left = active;
    while left != 0 {
        let window = addresses[left.trailing_zeros() as usize] & !windows::OFFSET;
        let mut lanes = 0;
        each_lane(left, |lane| {
            lanes |= u32::from(addresses[lane] & !windows::OFFSET == window) << lane;
        });
        let space = match window {
            windows::SHARED => Space::Shared,
            windows::LOCAL => Space::Local,
            windows::PARAM => Space::Param,
            _ => Space::Global,
        };
        f(space, &offsets, lanes)?;
        left &= !lanes;
    }
    Ok(())
}

/// Calls `f` with each run of lanes whose addresses follow one another: first lane, how many.
fn for_runs(
    addresses: &Addresses,
    active: u32,
    width: usize,
    mut f: impl FnMut(usize, usize) -> Result<(), Box<Trouble>>,
) -> Result<(), Box<Trouble>> {
    let mut lane = 0;
    while lane < LANES {
        if active >> lane & 1 == 0 {
            lane += 1;
            continue;
        }
        let mut end = lane + 1;
        while end < LANES
            && active >> end & 1 == 1
            && addresses[end] == addresses[end - 1].wrapping_add(width as u64)
        {
            end += 1;
        }
        f(lane, end - lane)?;
        lane = end;
    }
    Ok(())
}

/// Calls `f` with each lane until one fails.
pub(super) fn try_each_lane(
    mask: u32,
    mut f: impl FnMut(usize) -> Result<(), Box<Trouble>>,
) -> Result<(), Box<Trouble>> {
    let mut left = mask;
    while left != 0 {
        f(left.trailing_zeros() as usize)?;
        left &= left - 1;
    }
    Ok(())
}
