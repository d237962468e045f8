//! Loads and stores. Lanes that access bytes side by side are served by one copy.

use super::fault::{FaultKind, Trouble};
use super::program::{Access, NO_SLOT, Space};
use super::registers::{FULL, LANES, each_lane};
use super::warp::{Context, Warp};
use super::windows;
use crate::kernel::Clock;
use crate::memory::{Memory, Order};

/// Addresses of all lanes.
pub type Addresses = [u64; LANES];

/// The widest access of a lane.
pub(super) const WIDTH_MAX: usize = 32;

/// What a load of one place found.
pub(super) struct Outcome {
    /// Where in global memory it was, if it was there.
    pub place: Option<u64>,
    /// The bytes, and zeros.
    pub buffer: [u8; WIDTH_MAX],
}

/// How the addresses of lanes lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// All 32, one behind the other.
    SideBySide,
    /// All the same.
    Same,
    /// Neither.
    Scattered,
}

/// Looks at addresses: `width` is the bytes that each lane moves.
#[inline(always)]
pub(super) fn shape(addresses: &Addresses, mask: u32, width: u64) -> Shape {
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

    /// The address of lane 0, where all 32 lanes access bytes side by side and aligned. Looks at
    /// the base alone: this is how most accesses go, and the check is most of their cost.
    #[inline(always)]
    pub(super) fn side_by_side(&self, access: &Access, width: u64) -> Option<u64> {
        if access.narrow_base || access.base == NO_SLOT {
            return None;
        }
        let bases = self.registers.get::<u64>(access.base);
        let first = bases[0];
        // Most of the others are of one place, which two lanes tell.
        if bases[1] != first.wrapping_add(width) {
            return None;
        }
        // Four sums at a time: one vector register of the host.
        let mut apart = [0; 4];
        let mut wanted = [0, 1, 2, 3].map(|lane| first.wrapping_add(lane * width));
        for group in bases.as_chunks::<4>().0 {
            for lane in 0..4 {
                apart[lane] |= group[lane] ^ wanted[lane];
                wanted[lane] = wanted[lane].wrapping_add(4 * width);
            }
        }
        let address = first.wrapping_add(access.offset);
        let misaligned = address & (width - 1);
        (apart[0] | apart[1] | apart[2] | apart[3] | misaligned == 0).then_some(address)
    }

    /// The memory that an access of a full warp goes to, where it is one with a quick way.
    #[inline(always)]
    pub(super) fn quick_space(space: Space, address: u64) -> Option<Space> {
        match (space, address & !windows::OFFSET) {
            (Space::Global, _) | (Space::Generic, 0) => Some(Space::Global),
            (Space::Shared, _) | (Space::Generic, windows::SHARED) => Some(Space::Shared),
            _ => None,
        }
    }

    /// A load.
    #[inline(always)]
    pub(super) fn load<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        if M::BY_THREAD {
            return self.load_by_thread(context, access, active);
        }
        if access.strength.order != Order::Weak || self.watch.is_on() {
            return self.load_watched(context, access, active);
        }
        let width = access.lane_bytes();
        if active == FULL
            && let Some(address) = self.side_by_side(access, width as u64)
            && let Some(space) = Self::quick_space(access.space, address)
            && self.load_quickly(context, access, space, address)
        {
            return Ok(());
        }
        if self.load_one(context, access, active).is_some()
            || self.load_scattered(context, access, active)
        {
            return Ok(());
        }
        self.load_slowly(context, access, active)
    }

    /// A load that may be a poll.
    #[inline(never)]
    fn load_watched<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let strong = access.strength.order != Order::Weak;
        if let Some(outcome) = self.load_one(context, access, active) {
            let bytes = &outcome.buffer[..access.lane_bytes()];
            match outcome.place {
                Some(address) => {
                    let same = self.watch.note(address, bytes);
                    self.watch.looked(same, strong);
                }
                None if strong => self.watch.looked(true, true),
                None => {}
            }
            return Ok(());
        }
        let constant = access.space == Space::Param;
        let addresses = self.addresses(access.base, access.narrow_base, access.offset);
        self.load_slowly(context, access, active)?;
        if constant {
            return Ok(());
        }
        let mut outside = 0;
        if access.space == Space::Global || access.space == Space::Generic {
            each_lane(active, |lane| {
                outside |= u32::from(addresses[lane] >> windows::SHIFT == 0) << lane;
            });
        }
        if outside == 0 {
            // Memory of the block: only its own warps can change it.
            if strong {
                self.watch.looked(true, true);
            }
            return Ok(());
        }
        let (width, scratch, watch) = (access.lane_bytes(), self.scratch.bytes(), &mut self.watch);
        let mut same = true;
        for_runs(&addresses, outside, width, |lane, count| {
            same &= watch.note(addresses[lane], &scratch[lane * width..(lane + count) * width]);
            Ok(())
        })?;
        watch.looked(same, strong);
        Ok(())
    }

    /// One copy for all lanes. Says whether it could be done; if not, nothing is lost.
    #[inline(always)]
    fn load_quickly<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        space: Space,
        address: u64,
    ) -> bool {
        let word = usize::from(access.element_bytes);
        // One word a lane goes straight to its register.
        let straight = access.registers.len() == 1 && access.element_bytes == access.register_bytes;
        let bytes = if straight {
            match self.registers.bytes_mut(access.registers[0], word) {
                Some(row) => row,
                None => return false,
            }
        } else {
            &mut self.scratch.bytes_mut()[..access.lane_bytes() * LANES]
        };
        let done = if space == Space::Global {
            let (memory, cursor) = (context.memory, &mut *context.cursor);
            self.strides.note(memory, access, address, bytes.len());
            memory.read(cursor, address, word, access.strength, bytes).is_ok()
        } else {
            let start = (address & windows::OFFSET) as usize;
            let source = context.block.bytes.get(start..start.saturating_add(bytes.len()));
            source.map(|source| bytes.copy_from_slice(source)).is_some()
        };
        if done && !straight {
            self.unpack(access, FULL);
        }
        done
    }

    /// Any load.
    #[inline(never)]
    fn load_slowly<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let width = access.lane_bytes();
        if access.space == Space::Param && access.base == NO_SLOT {
            return self.load_param(context, access, active);
        }
        let addresses = self.addresses(access.base, access.narrow_base, access.offset);
        check_alignment(&addresses, active, width)?;
        let outside = match access.space {
            Space::Global => true,
            Space::Generic => same_window(&addresses, active) == Some(0),
            _ => false,
        };
        if !outside {
            return self.load_inside(context, access, &addresses, active);
        }
        let form = shape(&addresses, active, width as u64);
        self.read_outside(context, access, &addresses, active, form)?;
        self.unpack(access, active);
        Ok(())
    }

    /// Reads global memory into the scratch, lane after lane.
    pub(super) fn read_outside<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        addresses: &Addresses,
        active: u32,
        form: Shape,
    ) -> Result<(), Box<Trouble>> {
        let (width, word) = (access.lane_bytes(), usize::from(access.element_bytes));
        let strength = access.strength;
        let scratch = self.scratch.bytes_mut();
        let (memory, cursor) = (context.memory, &mut *context.cursor);
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

    /// A kernel parameter at a known place: the same for all lanes.
    pub(super) fn load_param<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let width = access.lane_bytes();
        let start = access.offset as usize;
        let Some(bytes) = context.launch.params.get(start..start.saturating_add(width)) else {
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
    #[inline(always)]
    pub(super) fn store<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        if self.watch.is_on() {
            self.end_watch(access, active);
        }
        if M::BY_THREAD {
            return self.store_by_thread(context, access, active);
        }
        let width = access.lane_bytes();
        if active == FULL
            && let Some(address) = self.side_by_side(access, width as u64)
            && let Some(space) = Self::quick_space(access.space, address)
            && self.store_quickly(context, access, space, address)
        {
            return Ok(());
        }
        if active.is_power_of_two() && self.store_one(context, access, active)
            || self.store_scattered(context, access, active)
        {
            return Ok(());
        }
        self.store_slowly(context, access, active)
    }

    /// A store ends the notes, unless lanes keep it to themselves like a register.
    #[cold]
    fn end_watch(&mut self, access: &Access, active: u32) {
        let private = access.space == Space::Local || access.space == Space::Param || {
            let addresses = self.addresses(access.base, access.narrow_base, access.offset);
            let local = windows::LOCAL >> windows::SHIFT;
            access.space == Space::Generic && same_window(&addresses, active) == Some(local)
        };
        if !private {
            self.watch.clear();
        }
    }

    /// One copy for all lanes. Says whether it could be done; if not, nothing was written.
    #[inline(always)]
    fn store_quickly<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        space: Space,
        address: u64,
    ) -> bool {
        let word = usize::from(access.element_bytes);
        let bytes: &[u8] =
            if access.registers.len() == 1 && access.element_bytes == access.register_bytes {
                match self.registers.bytes(access.registers[0], word) {
                    Some(row) => row,
                    None => return false,
                }
            } else {
                self.pack(access);
                &self.scratch.bytes()[..access.lane_bytes() * LANES]
            };
        if space == Space::Global {
            let (memory, cursor) = (context.memory, &mut *context.cursor);
            self.strides.note(memory, access, address, bytes.len());
            return memory.write(cursor, address, word, access.strength, bytes).is_ok();
        }
        let start = (address & windows::OFFSET) as usize;
        let target = context.block.bytes.get_mut(start..start.saturating_add(bytes.len()));
        target.map(|target| target.copy_from_slice(bytes)).is_some()
    }

    /// Any store.
    #[inline(never)]
    fn store_slowly<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let width = access.lane_bytes();
        let addresses = self.addresses(access.base, access.narrow_base, access.offset);
        check_alignment(&addresses, active, width)?;
        let outside = match access.space {
            Space::Global => true,
            Space::Generic => same_window(&addresses, active) == Some(0),
            _ => false,
        };
        self.pack(access);
        if outside {
            return self.write_outside(context, access, &addresses, active);
        }
        self.store_inside(context, access, &addresses, active)
    }

    /// Writes the scratch to global memory.
    pub(super) fn write_outside<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        addresses: &Addresses,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let (width, word) = (access.lane_bytes(), usize::from(access.element_bytes));
        let strength = access.strength;
        let scratch = self.scratch.bytes();
        let (memory, cursor) = (context.memory, &mut *context.cursor);
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

/// Calls `f` with each run of lanes whose addresses follow one another: first lane, how many.
#[inline(always)]
pub(super) fn for_runs(
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
