//! Accesses to memory that belongs to the block: shared, local, parameters.

use super::access::{Addresses, Shape, shape, try_each_lane};
use super::cluster::own_lanes;
use super::fault::{FaultKind, Trouble};
use super::program::{Access, Space};
use super::registers::{LANES, each_lane};
use super::warp::{Context, Warp};
use super::windows;
use crate::kernel::Clock;
use crate::memory::Memory;
use std::ops::Deref;

/// The bytes of a memory that belongs to the block.
fn place(
    bytes: &mut [u8],
    offset: u64,
    length: usize,
    fault: FaultKind,
    lane: usize,
    address: u64,
) -> Result<&mut [u8], Box<Trouble>> {
    usize::try_from(offset)
        .ok()
        .and_then(|start| bytes.get_mut(start..start.checked_add(length)?))
        .ok_or_else(|| Trouble::at(fault, lane, address, length))
}

/// The bytes of each lane's local memory at the same place, if they are there.
fn rows(
    local: &mut [u8],
    local_bytes: usize,
    offset: u64,
    width: usize,
) -> Option<impl Iterator<Item = &mut [u8]>> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(width).filter(|&end| end <= local_bytes)?;
    Some(local.chunks_exact_mut(local_bytes).map(move |own| &mut own[start..end]))
}

/// Copies for each lane. Words of usual sizes are moves of the host, where a length that is not
/// known would be a call.
fn copy_rows<'a, From: Deref<Target = [u8]>>(
    to: impl Iterator<Item = &'a mut [u8]>,
    from: impl Iterator<Item = From>,
) {
    for (to, from) in to.zip(from) {
        match (to.len(), &*from) {
            (4, &[a, b, c, d]) => to.copy_from_slice(&[a, b, c, d]),
            (8, &[a, b, c, d, e, f, g, h]) => to.copy_from_slice(&[a, b, c, d, e, f, g, h]),
            (_, from) => to.copy_from_slice(from),
        }
    }
}

impl Warp {
    /// Loads of memory that the block owns, and generic loads whose lanes disagree.
    pub(super) fn load_inside<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        addresses: &Addresses,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let width = access.lane_bytes();
        for_windows(access.space, addresses, active, |space, offsets, lanes| {
            if space == Space::Global {
                return self.read_outside(context, access, addresses, lanes, Shape::Scattered);
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
            if space == Space::Local
                && shape(offsets, lanes, width as u64) == Shape::Same
                && let Some(rows) = rows(&mut self.local, local_bytes, offsets[0], width)
            {
                copy_rows(scratch.chunks_exact_mut(width), rows);
                return Ok(());
            }
            try_each_lane(lanes, |lane| {
                let offset = offsets[lane];
                let into = &mut scratch[lane * width..(lane + 1) * width];
                let address = addresses[lane];
                let bytes: &[u8] = match space {
                    Space::Shared => {
                        let fault = FaultKind::SharedOutOfBounds;
                        place(&mut context.block.bytes, offset, width, fault, lane, address)?
                    }
                    Space::Cluster => {
                        let read = |found: &mut [u8]| into.copy_from_slice(found);
                        return context.block.within_cluster((lane, address), width, read);
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

    /// Stores to memory that the block owns, and generic stores whose lanes disagree.
    pub(super) fn store_inside<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        addresses: &Addresses,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let width = access.lane_bytes();
        for_windows(access.space, addresses, active, |space, offsets, lanes| {
            if space == Space::Global {
                return self.write_outside(context, access, addresses, lanes);
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
            if space == Space::Local
                && shape(offsets, lanes, width as u64) == Shape::Same
                && let Some(rows) = rows(&mut self.local, local_bytes, offsets[0], width)
            {
                copy_rows(rows, scratch.chunks_exact(width));
                return Ok(());
            }
            try_each_lane(lanes, |lane| {
                let (offset, address) = (offsets[lane], addresses[lane]);
                let (memory, fault) = match space {
                    Space::Shared => {
                        (context.block.bytes.as_mut_slice(), FaultKind::SharedOutOfBounds)
                    }
                    Space::Cluster => {
                        let from = &scratch[lane * width..(lane + 1) * width];
                        let write = |found: &mut [u8]| found.copy_from_slice(from);
                        return context.block.within_cluster((lane, address), width, write);
                    }
                    Space::Local => {
                        let own = &mut self.local[lane * local_bytes..(lane + 1) * local_bytes];
                        (own, FaultKind::LocalOutOfBounds)
                    }
                    _ => {
                        return Err(Trouble::at(FaultKind::ParamOutOfBounds, lane, address, width));
                    }
                };
                let bytes = place(memory, offset, width, fault, lane, address)?;
                bytes.copy_from_slice(&scratch[lane * width..(lane + 1) * width]);
                Ok(())
            })
        })
    }

    /// Copies between local addresses of each lane: arguments and results of calls.
    #[inline(never)]
    pub(super) fn copy_local(
        &mut self,
        copy: &super::program::CopyLocal,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let (from, to) =
            (*self.registers.get::<u64>(copy.from), *self.registers.get::<u64>(copy.to));
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
}

/// Calls `f` with each group of lanes that access one memory, and their offsets in it.
fn for_windows(
    space: Space,
    addresses: &Addresses,
    active: u32,
    mut f: impl FnMut(Space, &Addresses, u32) -> Result<(), Box<Trouble>>,
) -> Result<(), Box<Trouble>> {
    let offsets = addresses.map(|address| address & windows::OFFSET);
    if !matches!(space, Space::Generic | Space::Param) {
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
        let space = match (window, space) {
            // What a function was passed lies in local memory.
            (windows::LOCAL, _) => Space::Local,
            (_, Space::Param) | (windows::PARAM, _) => Space::Param,
            (windows::SHARED, _) => {
                // What names another block goes there.
                let own = own_lanes(addresses, lanes);
                if own != 0 && own != lanes {
                    lanes = own;
                }
                if own != 0 { Space::Shared } else { Space::Cluster }
            }
            _ => Space::Global,
        };
        f(space, &offsets, lanes)?;
        left &= !lanes;
    }
    Ok(())
}
