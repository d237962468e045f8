//! `cp.async.bulk` and `cp.reduce.async.bulk` without tensor maps, and `tensormap`.
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
use crate::memory::{AtomicOp, AtomicType, Memory};
use crate::tensor_map::{self, Field, TensorMap};

/// Bytes that bulk copies are multiples of, and aligned to.
pub(super) const GRAIN: usize = 16;

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
    /// What is done with what is there; None: it is replaced.
    pub reduction: Option<Reduction>,
}

/// A read-modify-write of each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// The operation.
    pub op: AtomicOp,
    /// The elements.
    pub ty: AtomicType,
}

impl Reduction {
    /// Does `cp.reduce.async.bulk` know it, to global memory or to that of the cluster?
    pub fn exists(self, to_global: bool) -> bool {
        use AtomicOp as O;
        use AtomicType as T;
        match (self.op, self.ty) {
            (O::Add, T::U32 | T::S32 | T::U64)
            | (O::Min | O::Max, T::U32 | T::S32)
            | (O::Inc | O::Dec, T::U32)
            | (O::And | O::Or | O::Xor, T::B32) => true,
            (O::Add, T::F16 | T::BF16 | T::F32 | T::F64)
            | (O::Min | O::Max, T::U64 | T::S64 | T::F16 | T::BF16)
            | (O::And | O::Or | O::Xor, T::B64) => to_global,
            _ => false,
        }
    }
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

pub(super) fn refuse<T>(place: Place, bytes: usize, detail: String) -> Result<T, Box<Trouble>> {
    let trouble = Trouble::at(FaultKind::InvalidBulk, place.lane, place.address, bytes);
    Err(Box::new(Trouble { detail, ..*trouble }))
}

impl Warp {
    /// A place in each lane.
    pub(super) fn place_in(&self, base: Base, lane: usize, word: usize) -> Place {
        let address = self.addresses(base.slot, base.narrow, base.offset)[lane];
        Place { space: base.space, address, lane, word }
    }

    /// `cp.async.bulk` and `cp.reduce.async.bulk`
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
                    warp.bring_at(context, at(to), bytes, copy.reduction)?;
                }
                warp.come(context, (to, barrier), length)
            })
        })
    }

    /// Calls `f` with each target of a copy and its barrier: that of the instruction, or the same
    /// in each block that a mask names.
    pub(super) fn for_targets(
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

    /// Writes bytes, or reduces them with what is there.
    pub(super) fn bring_at<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        place: Place,
        bytes: &[u8],
        reduction: Option<Reduction>,
    ) -> Result<(), Box<Trouble>> {
        let Some(Reduction { op, ty }) = reduction else {
            return self.write_at(context, place, bytes);
        };
        let word = ty.size_bytes();
        for (number, element) in bytes.chunks_exact(word).enumerate() {
            let address = place.address + (number * word) as u64;
            self.reduce_at(context, Place { address, word, ..place }, (op, ty), element)?;
        }
        Ok(())
    }

    /// Tells a barrier that bytes have come. It is in the block to which they have come.
    pub(super) fn come<M: Memory, C: Clock>(
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

    pub(super) fn read_map<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        place: Place,
    ) -> Result<[u8; tensor_map::BYTES], Box<Trouble>> {
        let mut map = [0; tensor_map::BYTES];
        self.read_at(context, place, &mut map)?;
        Ok(map)
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
