//! `cp.async.bulk`, `cp.reduce.async.bulk`, `tensormap`.

use super::DecodeError;
use super::data::{atomic_op, atomic_type, cache_words};
use super::function::{FunctionDecoder, describe};
use super::select::Words;
use crate::ast::{Instruction, Operand, ScalarType as T};
use crate::exec::bulk::{BulkCopy, MapChange, MapCopy, Reduction};
use crate::exec::program::Op;
use crate::exec::tensor_copy::TensorCopy;
use crate::memory::AtomicOp;
use crate::tensor_map::{BYTES, Field, RANK_MAX};

/// Words that name a side of a copy.
const SIDES: [&str; 4] = ["shared::cluster", "shared::cta", "shared", "global"];

/// The two sides of a copy, in the order in which they are written.
fn take_sides<'a>(
    instruction: &'a Instruction,
    words: &mut Words<'_>,
) -> Option<(&'a str, &'a str)> {
    let named = instruction.modifiers.iter().map(String::as_str);
    let sides: Vec<&str> = named.filter(|word| SIDES.contains(word)).collect();
    while words.take_any(&SIDES).is_some() {}
    match *sides {
        [to, from] => Some((to, from)),
        _ => None,
    }
}

/// What the words of a copy with a tensor map say.
struct Tensor<'a> {
    rank: usize,
    mode: &'a str,
    /// The side in shared memory, and whether the copy goes to global memory.
    sides: (&'a str, bool),
    mask: Option<u32>,
    reduction: Option<AtomicOp>,
}

impl FunctionDecoder<'_, '_> {
    /// `cp.async.bulk` and its groups. Copies are done at once, so groups hold nothing.
    pub(super) fn copy_bulk(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        self.require(instruction, 90)?;
        let mut words = Words::new(&instruction.modifiers);
        words.take("async");
        words.take("bulk");
        if words.take("commit_group") {
            self.all_taken(&words, instruction)?;
            self.operands::<0>(instruction)?;
            self.emit(Op::Nop);
            return Ok(());
        }
        if words.take("wait_group") {
            words.take("read");
            self.all_taken(&words, instruction)?;
            let [count] = self.operands::<1>(instruction)?;
            if !matches!(count, Operand::Integer(0..)) {
                return Err(self.error("a number of groups", describe(count)));
            }
            self.emit(Op::Nop);
            return Ok(());
        }
        if words.take("prefetch") {
            // Nothing comes of it.
            self.emit(Op::Nop);
            return Ok(());
        }
        self.copy_bulk_data(instruction, words)
    }

    /// A copy, or a reduction.
    fn copy_bulk_data(
        &mut self,
        instruction: &Instruction,
        mut words: Words<'_>,
    ) -> Result<(), DecodeError> {
        let reduces = words.take("reduce");
        let is_tensor = words.take("tensor");
        let rank = words.take_any(&["1d", "2d", "3d", "4d", "5d"]);
        let mode = words.take_any(&["tile", "im2col", "im2col_no_offs"]).unwrap_or("tile");
        let Some((to, from)) = take_sides(instruction, &mut words) else {
            return Err(self.unsupported(instruction));
        };
        let by_barrier = words.take("mbarrier::complete_tx::bytes");
        let by_group = words.take("bulk_group");
        let is_multicast = words.take("multicast::cluster");
        let op = if reduces { words.take_map(atomic_op) } else { None };
        let is_noftz = op == Some(AtomicOp::Add) && words.take("noftz");
        let hint = cache_words(&mut words);
        let ty = if op.is_some() && !is_tensor { words.take_type() } else { None };
        self.all_taken(&words, instruction)?;
        let to_global = to == "global";
        let is_wrong = by_barrier == by_group
            || by_group != to_global
            || to == from
            || (is_multicast && (to, from) != ("shared::cluster", "global"))
            || (reduces && (op.is_none() || from == "global" || is_multicast));
        if is_wrong {
            return Err(self.unsupported(instruction));
        }
        let operands = match (instruction.operands.as_slice(), hint) {
            // The cache policy.
            ([operands @ .., _], true) => operands,
            (operands, _) => operands,
        };
        let (operands, mask) = match operands {
            [operands @ .., mask] if is_multicast => (operands, Some(self.source(mask, T::U16)?)),
            operands => (operands, None),
        };
        match (is_tensor, rank) {
            (true, Some(rank)) if !is_noftz && (!reduces || to_global) => {
                let rank = usize::from(rank.as_bytes()[0] - b'0');
                let side = if to_global { from } else { to };
                let (sides, reduction) = ((side, to_global), op);
                self.copy_tensor(
                    instruction,
                    operands,
                    Tensor { rank, mode, sides, mask, reduction },
                )
            }
            (false, None) if mode == "tile" => {
                let reduction = match (op, ty) {
                    (None, None) => None,
                    (Some(op), Some(ty)) => {
                        let is_half = op == AtomicOp::Add && matches!(ty, T::F16 | T::BF16);
                        let known = atomic_type(op, ty).map(|ty| Reduction { op, ty });
                        let exists = |known: &Reduction| known.exists(to_global);
                        let Some(known) = known.filter(exists).filter(|_| is_half == is_noftz)
                        else {
                            return Err(self.unsupported(instruction));
                        };
                        Some(known)
                    }
                    _ => return Err(self.unsupported(instruction)),
                };
                let sides = (to, from);
                let [to, from, bytes, barrier @ ..] = operands else {
                    return Err(self.unsupported(instruction));
                };
                let to = self.place_of(to, Some(sides.0))?.base();
                let from = self.place_of(from, Some(sides.1))?.base();
                let bytes = self.source(bytes, T::U32)?;
                let barrier = match (barrier, by_barrier) {
                    // It is where the bytes go to.
                    ([at], true) => Some(self.place_of(at, Some(sides.0))?.base()),
                    ([], false) => None,
                    _ => return Err(self.unsupported(instruction)),
                };
                let copy = BulkCopy { to, from, bytes, barrier, mask, reduction };
                self.emit(Op::BulkCopy(Box::new(copy)));
                Ok(())
            }
            _ => Err(self.unsupported(instruction)),
        }
    }

    fn copy_tensor(
        &mut self,
        instruction: &Instruction,
        operands: &[Operand],
        Tensor { rank, mode, sides: (side, to_global), mask, reduction }: Tensor<'_>,
    ) -> Result<(), DecodeError> {
        let is_loaded = mode == "im2col";
        let (operands, offsets) = match operands {
            [operands @ .., Operand::Vector(offsets)] if is_loaded => (operands, &offsets[..]),
            operands => (operands, &[][..]),
        };
        let is_right = match mode {
            "tile" => true,
            _ => rank >= 3 && is_loaded != to_global && (to_global || offsets.len() == rank - 2),
        };
        let (tile, tensor, barrier) = match (operands, to_global) {
            ([tensor, tile], true) if is_right => (tile, tensor, None),
            ([tile, tensor, barrier], false) if is_right => (tile, tensor, Some(barrier)),
            _ => return Err(self.unsupported(instruction)),
        };
        let Operand::Tensor { base, offset, coordinates } = tensor else {
            return Err(self.error("a tensor map with coordinates", describe(tensor)));
        };
        if coordinates.len() != rank {
            return Err(self.error(format!("{rank} coordinates"), coordinates.len().to_string()));
        }
        let tile = self.place_of(tile, Some(side))?.base();
        let at = Operand::Address { base: Some(base.clone()), offset: *offset };
        let map = self.place_of(&at, None)?.base();
        let slots = coordinates.iter().map(|operand| self.source(operand, T::S32));
        let coordinates = slots.collect::<Result<_, _>>()?;
        let offsets = match mode {
            "tile" => None,
            _ => {
                let slots = offsets.iter().map(|operand| self.source(operand, T::U16));
                Some(slots.collect::<Result<_, _>>()?)
            }
        };
        let barrier = match barrier {
            Some(at) => Some(self.place_of(at, Some(side))?.base()),
            None => None,
        };
        let copy = TensorCopy { tile, map, coordinates, offsets, barrier, mask, reduction };
        self.emit(Op::TensorCopy(Box::new(copy)));
        Ok(())
    }

    /// `tensormap`
    pub(super) fn tensor_map(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        self.require(instruction, 90)?;
        let mut words = Words::new(&instruction.modifiers);
        if words.take("cp_fenceproxy") {
            let [to, from, bytes] = self.operands::<3>(instruction)?;
            if *bytes != Operand::Integer(BYTES as i128) {
                return Err(self.error(format!("{BYTES} bytes"), describe(bytes)));
            }
            let to = self.place_of(to, Some("global"))?.base();
            let from = self.place_of(from, Some("shared"))?.base();
            self.emit(Op::MapCopy(Box::new(MapCopy { to, from })));
            return Ok(());
        }
        let is_it = words.take("replace") && words.take("tile");
        let field = words.take_map(Field::named);
        let space = words.take_any(&["global", "shared::cta", "shared"]);
        let is_map = words.take("b1024");
        let ty = words.take_type();
        self.all_taken(&words, instruction)?;
        let (Some(field), true, Some(ty @ (T::B32 | T::B64))) = (field, is_it && is_map, ty) else {
            return Err(self.unsupported(instruction));
        };
        let (at, index, value) = match (instruction.operands.as_slice(), field.is_indexed()) {
            ([at, Operand::Integer(index), value], true)
                if (0..RANK_MAX as i128).contains(index) =>
            {
                (at, *index as usize, value)
            }
            ([at, value], false) => (at, 0, value),
            _ => return Err(self.unsupported(instruction)),
        };
        let map = self.place_of(at, space)?.base();
        let (value, is_wide) = (self.source(value, ty)?, ty == T::B64);
        // NVIDIA's assemblers before PTX 8.5 take strides in units of 16 bytes, a defect that
        // compilers allow for: Triton shifts them.
        let in_units = field == Field::Stride && self.shared.version() < (8, 5);
        let unit = if in_units { 16 } else { 1 };
        let change = MapChange { map, field, index, value, is_wide, unit };
        self.emit(Op::MapChange(Box::new(change)));
        Ok(())
    }
}
