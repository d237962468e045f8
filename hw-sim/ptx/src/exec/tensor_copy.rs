//! `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`: boxes and columns of tensors, to
//! shared memory and from it. They move at once, as all bulk copies do.

use super::access::try_each_lane;
use super::bulk::{GRAIN, Reduction, refuse};
use super::fault::Trouble;
use super::matrix::memory::Base;
use super::place::Place;
use super::program::Space;
use super::warp::{Context, Warp};
use crate::kernel::Clock;
use crate::memory::{AtomicOp, AtomicType, Memory};
use crate::tensor_map::{self, Line, PIXEL_RANK_MAX, RANK_MAX, TensorMap};

/// Bytes that a box in shared memory is aligned to.
const BOX_ALIGN: usize = 128;

/// A copy of a box of a tensor.
#[derive(Clone, Debug)]
pub struct TensorCopy {
    /// In shared memory.
    pub tile: Base,
    /// The tensor's map.
    pub map: Base,
    /// Slots of the box's place, the innermost dimension first.
    pub coordinates: Vec<u32>,
    /// It moves columns: slots of their offsets, of which stores have none. None: it moves tiles.
    pub offsets: Option<Vec<u32>>,
    /// The barrier that waits for the bytes; None: to global memory.
    pub barrier: Option<Base>,
    /// As in [`super::bulk::BulkCopy`].
    pub mask: Option<u32>,
    /// What is done with the elements that are there; None: they are replaced.
    pub reduction: Option<AtomicOp>,
}

/// A box: its map, what is walked through, and how it moves.
struct Moved<'a> {
    map: &'a TensorMap,
    start: [i64; RANK_MAX],
    offsets: [u16; PIXEL_RANK_MAX],
    loads: bool,
    reduction: Option<Reduction>,
}

/// The type of the elements as reductions have it. None where there are none on it.
fn reduced_type(map: &TensorMap, op: AtomicOp) -> Option<AtomicType> {
    use AtomicType as T;
    let is_bitwise = matches!(op, AtomicOp::And | AtomicOp::Or | AtomicOp::Xor);
    Some(match map.element {
        2 | 3 if is_bitwise => T::B32,
        4 | 5 if is_bitwise => T::B64,
        2 => T::U32,
        3 => T::S32,
        4 => T::U64,
        5 => T::S64,
        6 => T::F16,
        7 | 8 => T::F32,
        9 => T::F64,
        10 => T::BF16,
        _ => return None,
    })
}

impl Warp {
    /// `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`
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
            let wrong = |detail: String| refuse(at, tensor_map::BYTES, detail);
            let Some(map) = TensorMap::from_bytes(&map) else {
                return wrong("no valid tensor map".to_owned());
            };
            if usize::from(map.rank) != copy.coordinates.len() {
                let (rank, given) = (map.rank, copy.coordinates.len());
                return wrong(format!("a tensor of rank {rank}, and {given} coordinates"));
            }
            if map.corners.is_some() != copy.offsets.is_some() {
                let name = |columns: bool| if columns { "columns" } else { "tiles" };
                let (map, copy) = (name(map.corners.is_some()), name(copy.offsets.is_some()));
                return wrong(format!("a map of {map}, and a copy of {copy}"));
            }
            let reduction = match copy.reduction {
                None => None,
                Some(op) => {
                    let known = reduced_type(&map, op).map(|ty| Reduction { op, ty });
                    let Some(known) = known.filter(|reduction| reduction.exists(true)) else {
                        return wrong(format!("{op:?} of elements of type {}", map.element));
                    };
                    Some(known)
                }
            };
            let mut start = [0; RANK_MAX];
            for (place, &slot) in start.iter_mut().zip(&copy.coordinates) {
                *place = i64::from(self.registers.get::<i32>(slot)[lane]);
            }
            let mut offsets = [0; PIXEL_RANK_MAX];
            for (place, &slot) in offsets.iter_mut().zip(copy.offsets.iter().flatten()) {
                *place = self.registers.get::<u16>(slot)[lane];
            }
            let loads = copy.barrier.is_some();
            let moved = Moved { map: &map, start, offsets, loads, reduction };
            let tile = self.place_in(copy.tile, lane, 8);
            tile.check_alignment(BOX_ALIGN)?;
            let barrier = copy.barrier.map(|barrier| self.place_in(barrier, lane, 8));
            self.for_targets(copy.mask, (tile, barrier), |warp, tile, barrier| {
                let bytes = warp.copy_box(context, &moved, tile)?;
                warp.come(context, (tile, barrier), bytes)
            })
        })
    }

    /// Moves a box, line after line, to shared memory or from it. Gives its bytes in shared memory.
    fn copy_box<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        moved: &Moved<'_>,
        tile: Place,
    ) -> Result<usize, Box<Trouble>> {
        let map = moved.map;
        let width = map.element_bytes() as usize;
        let line = map.count(0) as usize * width;
        if !line.is_multiple_of(GRAIN) {
            return refuse(tile, line, format!("lines of {line} bytes, no multiple of {GRAIN}"));
        }
        let fill = map.fill().to_le_bytes();
        // A line has at most 256 elements.
        let mut buffer = [0_u8; 256 * 8];
        let buffer = &mut buffer[..line];
        let mut shared = tile.address;
        for Line { address, part } in map.walk(moved.start, moved.offsets) {
            let part = part.start * width..part.end * width;
            let global = Place { address, space: Space::Global, word: width, ..tile };
            if moved.loads {
                if part.len() < line {
                    let elements = buffer.chunks_exact_mut(width);
                    elements.for_each(|element| element.copy_from_slice(&fill[..width]));
                }
                if !part.is_empty() {
                    self.read_at(context, global, &mut buffer[part.clone()])?;
                }
            }
            for (piece, bytes) in buffer.chunks_exact_mut(GRAIN).enumerate() {
                let address = map.swizzle.place(shared + (piece * GRAIN) as u64);
                let place = Place { address, ..tile };
                if moved.loads {
                    self.write_at(context, place, bytes)?;
                } else {
                    self.read_at(context, place, bytes)?;
                }
            }
            if !moved.loads && !part.is_empty() {
                self.bring_at(context, global, &buffer[part], moved.reduction)?;
            }
            shared += line as u64;
        }
        Ok(map.lines() as usize * line)
    }
}
