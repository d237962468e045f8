//! `cp.async.bulk`, with tensor maps or without, `cp.reduce.async.bulk` without, and
//! `tensormap.replace`.
//!
//! PTX lets a copy happen at any time before its barrier's phase ends or its group is waited for.
//! Here it happens at once, lane after lane, so groups hold nothing. A kernel that forgets to wait
//! does not show.

use super::access::try_each_lane;
use super::cluster;
use super::fault::{FaultKind, Trouble};
use super::matrix::memory::Base;
use super::place::Place;

use super::registers::LANES;
use super::warp::{Context, Warp};
use crate::kernel::Clock;
use crate::memory::Memory;
use crate::tensor_map::{self, Field, RANK_MAX, TensorMap};

/// Bytes that bulk copies are multiples of, and aligned to.
const GRAIN: usize = 16;
/// Bytes that a box in shared memory is aligned to.
const BOX_ALIGN: usize = 128;

/// A copy of bytes that follow one another.
#[derive(Clone, Debug)]
pub struct BulkCopy {
    /// Where to.
    pub to: Base,
    /// Where from.
    pub from: Base,
    /// Slot of the number of bytes.
    pub bytes: u32,
    /// The barrier that waits for the bytes.
    pub barrier: Option<Base>,
    /// Slot of a mask of the cluster's blocks that get the bytes, each at the same place, and whose
    /// barriers wait for them; None: the one that the addresses name.
    pub mask: Option<u32>,
}

/// A copy of a box of a tensor.
#[derive(Clone, Debug)]
pub struct TensorCopy {
    /// In shared memory.
    pub tile: Base,
    /// The tensor's map.
    pub map: Base,
    /// Slots of the box's place, the innermost dimension first.
    pub coordinates: Vec<u32>,
    /// The barrier that waits for the bytes; None: to global memory.
    pub barrier: Option<Base>,
    /// As in [`BulkCopy`].
    pub mask: Option<u32>,
}

/// `tensormap.replace`
#[derive(Clone, Debug)]
pub struct MapChange {
    /// The map.
    pub map: Base,
    /// What of it.
    pub field: Field,
    /// Of several, which.
    pub index: usize,
    /// Slot of the value, 64 bits or 32.
    pub value: u32,
    /// The value has 64 bits.
    pub is_wide: bool,
    /// It counts so many bytes.
    pub unit: u64,
}

/// `tensormap.cp_fenceproxy`: a copy of a map.
#[derive(Clone, Debug)]
pub struct MapCopy {
    /// Where to.
    pub to: Base,
    /// Where from.
    pub from: Base,
}

fn refuse<T>(place: Place, bytes: usize, detail: String) -> Result<T, Box<Trouble>> {
    let trouble = Trouble::at(FaultKind::InvalidBulk, place.lane, place.address, bytes);
    Err(Box::new(Trouble { detail, ..*trouble }))
}

impl Warp {
    /// A place in each lane.
    fn place_in(&self, base: Base, lane: usize, word: usize) -> Place {
        let address = self.addresses(base.slot, base.narrow, base.offset)[lane];
        Place { space: base.space, address, lane, word }
    }

    /// `cp.async.bulk`
    #[inline(never)]
    pub(super) fn copy_bulk<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        copy: &BulkCopy,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        self.watch.clear();
        try_each_lane(active, |lane| {
            let (to, from) = (self.place_in(copy.to, lane, 8), self.place_in(copy.from, lane, 8));
            let length = self.registers.get::<u32>(copy.bytes)[lane] as usize;
            to.check_alignment(GRAIN)?;
            from.check_alignment(GRAIN)?;
            if !length.is_multiple_of(GRAIN) {
                return refuse(to, length, format!("{length} bytes, no multiple of {GRAIN}"));
            }
            let barrier = copy.barrier.map(|barrier| self.place_in(barrier, lane, 8));
            self.for_targets(copy.mask, (to, barrier), |warp, to, barrier| {
                let mut piece = [0; 1024];
                for start in (0..length).step_by(piece.len()) {
                    let bytes = &mut piece[..(length - start).min(1024)];
                    let at =
                        |place: Place| Place { address: place.address + start as u64, ..place };
                    warp.read_at(context, at(from), bytes)?;
                    warp.write_at(context, at(to), bytes)?;
                }
                warp.come(context, (to, barrier), length)
            })
        })
    }

    /// Calls `f` with each target of a copy and its barrier: that of the instruction, or the same
    /// in each block that a mask names.
    fn for_targets(
        &mut self,
        mask: Option<u32>,
        (to, barrier): (Place, Option<Place>),
        mut f: impl FnMut(&mut Self, Place, Option<Place>) -> Result<(), Box<Trouble>>,
    ) -> Result<(), Box<Trouble>> {
        let Some(slot) = mask else { return f(self, to, barrier) };
        let mask = self.registers.get::<u16>(slot)[to.lane];
        for rank in (0..u16::BITS).filter(|rank| mask >> rank & 1 == 1) {
            let there = |place: Place| Place {
                address: cluster::place_in(place.address, rank.into()),
                ..place
            };
            f(self, there(to), barrier.map(there))?;
        }
        Ok(())
    }

    /// Tells a barrier that bytes have come. It is in the block to which they have come.
    fn come<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        (to, barrier): (Place, Option<Place>),
        bytes: usize,
    ) -> Result<(), Box<Trouble>> {
        let Some(barrier) = barrier else { return Ok(()) };
        let own = context.block.rank() as u64;
        let (block, other) = (barrier.rank().unwrap_or(own), to.rank().unwrap_or(own));
        if block != other {
            let detail = format!("in block {block} of the cluster, the bytes in {other}");
            return refuse(barrier, bytes, detail);
        }
        self.complete_bytes(context, barrier, bytes)
    }

    /// `cp.async.bulk.tensor`
    #[inline(never)]
    pub(super) fn copy_tensor<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        copy: &TensorCopy,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        self.watch.clear();
        try_each_lane(active, |lane| {
            let at = self.place_in(copy.map, lane, 8);
            let map = self.read_map(context, at)?;
            let Some(map) = TensorMap::from_bytes(&map) else {
                return refuse(at, tensor_map::BYTES, "no valid tensor map".to_owned());
            };
            if usize::from(map.rank) != copy.coordinates.len() {
                let (rank, given) = (map.rank, copy.coordinates.len());
                let detail = format!("a tensor of rank {rank}, and {given} coordinates");
                return refuse(at, tensor_map::BYTES, detail);
            }
            let mut start = [0; RANK_MAX];
            for (place, &slot) in start.iter_mut().zip(&copy.coordinates) {
                *place = i64::from(self.registers.get::<i32>(slot)[lane]);
            }
            let tile = self.place_in(copy.tile, lane, 8);
            tile.check_alignment(BOX_ALIGN)?;
            let barrier = copy.barrier.map(|barrier| self.place_in(barrier, lane, 8));
            self.for_targets(copy.mask, (tile, barrier), |warp, tile, barrier| {
                let bytes = warp.copy_box(context, &map, start, (tile, barrier.is_some()))?;
                warp.come(context, (tile, barrier), bytes)
            })
        })
    }

    fn read_map<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        place: Place,
    ) -> Result<[u8; tensor_map::BYTES], Box<Trouble>> {
        let mut map = [0; tensor_map::BYTES];
        self.read_at(context, place, &mut map)?;
        Ok(map)
    }

    /// Moves a box, line after line, to shared memory or from it. Gives its bytes in shared memory.
    fn copy_box<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        map: &TensorMap,
        start: [i64; RANK_MAX],
        (tile, loads): (Place, bool),
    ) -> Result<usize, Box<Trouble>> {
        let width = map.element_bytes() as usize;
        let (rank, elements) = (usize::from(map.rank), map.count(0) as usize);
        let line = elements * width;
        if !line.is_multiple_of(GRAIN) {
            return refuse(tile, line, format!("lines of {line} bytes, no multiple of {GRAIN}"));
        }
        let counts: [u64; RANK_MAX] =
            std::array::from_fn(|axis| if axis < rank { map.count(axis) } else { 1 });
        let lines: u64 = counts[1..].iter().product();
        let fill = map.fill().to_le_bytes();
        // A box has at most 256 elements along an axis.
        let mut buffer = [0_u8; 256 * 8];
        let buffer = &mut buffer[..line];
        for number in 0..lines {
            let mut rest = number;
            let mut address = map.address;
            let mut inside = true;
            for axis in 1..rank {
                let step = i64::from(map.steps[axis].max(1));
                let at = start[axis] + (rest % counts[axis]) as i64 * step;
                rest /= counts[axis];
                inside &= (0..map.extents[axis] as i64).contains(&at);
                address = address.wrapping_add((at as u64).wrapping_mul(map.strides[axis - 1]));
            }
            // The part of the line that is in the tensor.
            let first = start[0].clamp(0, map.extents[0] as i64);
            let last = (start[0] + elements as i64).clamp(first, map.extents[0] as i64);
            let (from, to) =
                ((first - start[0]) as usize * width, (last - start[0]) as usize * width);
            let part = if inside && to > from { from..to } else { 0..0 };
            let global = Place {
                address: address.wrapping_add(first as u64 * width as u64),
                space: super::program::Space::Global,
                word: width,
                ..tile
            };
            let shared = tile.address + number * line as u64;
            if loads {
                if part.len() < line {
                    buffer
                        .chunks_exact_mut(width)
                        .for_each(|element| element.copy_from_slice(&fill[..width]));
                }
                if !part.is_empty() {
                    self.read_at(context, global, &mut buffer[part])?;
                }
            }
            for (piece, bytes) in buffer.chunks_exact_mut(GRAIN).enumerate() {
                let address = map.swizzle.place(shared + (piece * GRAIN) as u64);
                let place = Place { address, ..tile };
                if loads {
                    self.write_at(context, place, bytes)?;
                } else {
                    self.read_at(context, place, bytes)?;
                }
            }
            if !loads && inside && to > from {
                self.write_at(context, global, &buffer[from..to])?;
            }
        }
        Ok(lines as usize * line)
    }

    /// `tensormap.replace`
    #[inline(never)]
    pub(super) fn change_map<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        change: &MapChange,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        self.watch.clear();
        try_each_lane(active, |lane| {
            let at = self.place_in(change.map, lane, 8);
            let mut map = self.read_map(context, at)?;
            let value = match change.is_wide {
                true => self.registers.get::<u64>(change.value)[lane],
                false => u64::from(self.registers.get::<u32>(change.value)[lane]),
            };
            let value = value.wrapping_mul(change.unit);
            if TensorMap::replace(&mut map, change.field, change.index, value).is_none() {
                let detail = format!("{:?} of a tensor map cannot be {value}", change.field);
                return refuse(at, tensor_map::BYTES, detail);
            }
            self.write_at(context, at, &map)
        })
    }

    /// `tensormap.cp_fenceproxy`: all lanes name the same places.
    #[inline(never)]
    pub(super) fn copy_map<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        copy: &MapCopy,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        self.watch.clear();
        let lane = active.trailing_zeros() as usize % LANES;
        let map = self.read_map(context, self.place_in(copy.from, lane, 8))?;
        self.write_at(context, self.place_in(copy.to, lane, 8), &map)
    }
}
