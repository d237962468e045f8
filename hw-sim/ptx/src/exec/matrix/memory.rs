//! Between memory and matrices in registers: `ldmatrix`, `stmatrix`, `movmatrix`, `wmma.load`,
//! `wmma.store`.

use bytemuck::Pod;

use super::element::{ELEMENTS_MAX, MatrixRegisters};
use crate::exec::fault::Trouble;
use crate::exec::place::Place;
use crate::exec::program::{NO_SLOT, Space};
use crate::exec::registers::{FULL, Registers};
use crate::exec::warp::{Context, Flow, Warp};
use crate::exec::windows;
use crate::kernel::Clock;
use crate::memory::Memory;

/// Rows of a matrix of 8 × 8 halves.
const ROWS: usize = 8;
/// Bytes of such a row.
const ROW_BYTES: usize = 16;
/// Bytes of such a matrix: just a register of all lanes. Row after row, lane after lane.
const MATRIX_BYTES: usize = ROWS * ROW_BYTES;

/// Where an instruction finds memory.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    /// The space.
    pub space: Space,
    /// Slot of the address; [`NO_SLOT`] for none.
    pub slot: u32,
    /// It is a 32-bit register.
    pub narrow: bool,
    /// Bytes added to it.
    pub offset: u64,
}

/// `ldmatrix`, `stmatrix`: matrices of 8 × 8 halves, whose rows lie where lanes say. Lane `8 i + j`
/// has the address of row `j` of matrix `i`.
#[derive(Clone, Debug)]
pub struct Tiles {
    /// The rows' addresses.
    pub base: Base,
    /// A register for each matrix.
    pub slots: Vec<u32>,
    /// Rows in registers are columns in memory.
    pub transposed: bool,
    /// From registers to memory.
    pub stores: bool,
}

/// `wmma.load`, `wmma.store`: a matrix whose rows or columns lie at equal distances.
#[derive(Clone, Debug)]
pub struct Lines {
    /// The matrix's address, the same in all lanes.
    pub base: Base,
    /// Slot of the elements from one line to the next; [`NO_SLOT`] if lines lie side by side.
    pub stride: u32,
    /// Rows or columns, as they lie in memory.
    pub lines: usize,
    /// Elements of one.
    pub length: usize,
    /// Its registers; places are `line × length + index`.
    pub matrix: MatrixRegisters,
    /// From registers to memory.
    pub stores: bool,
}

/// `movmatrix`: one matrix of 8 × 8 halves.
#[derive(Clone, Copy, Debug)]
pub struct Transpose {
    /// Destination.
    pub d: u32,
    /// Source.
    pub a: u32,
}

/// Reads rows of shared memory. False: one is misaligned or outside.
#[inline(always)]
fn read_rows(shared: &[u8], addresses: &[u64], matrix: &mut [u8; MATRIX_BYTES]) -> bool {
    let mut fits = true;
    for (row, &address) in matrix.as_chunks_mut::<ROW_BYTES>().0.iter_mut().zip(addresses) {
        let start = (address & windows::OFFSET) as usize;
        match shared.get(start..).and_then(|shared| shared.first_chunk()) {
            Some(found) => *row = *found,
            None => fits = false,
        }
        fits &= start.is_multiple_of(ROW_BYTES);
    }
    fits
}

/// Turns a matrix of halves around.
fn transposed(bytes: [u8; MATRIX_BYTES]) -> [u8; MATRIX_BYTES] {
    let from: [[u16; ROWS]; ROWS] = bytemuck::cast(bytes);
    let to: [[u16; ROWS]; ROWS] =
        std::array::from_fn(|row| std::array::from_fn(|column| from[column][row]));
    bytemuck::cast(to)
}

impl Warp {
    /// `ldmatrix`, `stmatrix`
    #[inline(never)]
    pub(in crate::exec) fn tiles<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        tiles: &Tiles,
        mask: u32,
        active: u32,
    ) -> Result<Flow, Box<Trouble>> {
        if let Some(wait) = self.whole_warp(mask, active)? {
            return Ok(wait);
        }
        let Base { space, slot, narrow, offset } = tiles.base;
        let addresses = self.addresses(slot, narrow, offset);
        if tiles.stores {
            self.watch.clear();
        }
        for (number, &slot) in tiles.slots.iter().enumerate() {
            let mut matrix = [0; MATRIX_BYTES];
            if tiles.stores {
                matrix = bytemuck::cast(*self.registers.get::<u32>(slot));
                matrix = if tiles.transposed { transposed(matrix) } else { matrix };
            }
            let rows = &addresses[number * ROWS..][..ROWS];
            let quick = !tiles.stores && space == Space::Shared;
            if !(quick && read_rows(&context.block.bytes, rows, &mut matrix)) {
                for (row, bytes) in matrix.chunks_exact_mut(ROW_BYTES).enumerate() {
                    let lane = number * ROWS + row;
                    let place = Place { space, address: addresses[lane], lane, word: 2 };
                    place.check_alignment(ROW_BYTES)?;
                    if tiles.stores {
                        self.write_at(context, place, bytes)?;
                    } else {
                        self.read_at(context, place, bytes)?;
                    }
                }
            }
            if !tiles.stores {
                matrix = if tiles.transposed { transposed(matrix) } else { matrix };
                self.registers.put::<u32>(slot, &bytemuck::cast(matrix), FULL);
            }
        }
        Ok(Flow::Next)
    }

    /// `movmatrix`
    #[inline(never)]
    pub(in crate::exec) fn transpose(
        &mut self,
        transpose: Transpose,
        mask: u32,
        active: u32,
    ) -> Result<Flow, Box<Trouble>> {
        if let Some(wait) = self.whole_warp(mask, active)? {
            return Ok(wait);
        }
        let matrix = transposed(bytemuck::cast(*self.registers.get::<u32>(transpose.a)));
        self.registers.put::<u32>(transpose.d, &bytemuck::cast(matrix), FULL);
        Ok(Flow::Next)
    }

    /// `wmma.load`, `wmma.store`
    #[inline(never)]
    pub(in crate::exec) fn lines<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        lines: &Lines,
        mask: u32,
        active: u32,
    ) -> Result<Flow, Box<Trouble>> {
        if let Some(wait) = self.whole_warp(mask, active)? {
            return Ok(wait);
        }
        match lines.matrix.element.bytes() {
            1 => self.lines_of::<u8, M, C>(context, lines)?,
            2 => self.lines_of::<u16, M, C>(context, lines)?,
            4 => self.lines_of::<u32, M, C>(context, lines)?,
            _ => self.lines_of::<u64, M, C>(context, lines)?,
        }
        Ok(Flow::Next)
    }

    /// The same, on elements as wide as `E`.
    fn lines_of<E: Pod, M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        lines: &Lines,
    ) -> Result<(), Box<Trouble>> {
        let Base { space, slot, narrow, offset } = lines.base;
        let start = self.addresses(slot, narrow, offset)[0];
        let stride = match lines.stride {
            NO_SLOT => lines.length as u64,
            slot => u64::from(self.registers.get::<u32>(slot)[0]),
        };
        let mut matrix = [E::zeroed(); ELEMENTS_MAX];
        let registers = &lines.matrix;
        if lines.stores {
            self.watch.clear();
            for (slot, places) in registers.rows() {
                registers.drop(places, elements::<E>(&mut self.registers, slot), &mut matrix);
            }
        }
        for (number, line) in matrix.chunks_exact_mut(lines.length).take(lines.lines).enumerate() {
            let step = (number as u64).wrapping_mul(stride).wrapping_mul(size_of::<E>() as u64);
            let address = start.wrapping_add(step);
            let place = Place { space, address, lane: 0, word: size_of::<E>() };
            place.check_alignment(size_of::<E>())?;
            if lines.stores {
                self.write_at(context, place, bytemuck::cast_slice(line))?;
            } else {
                self.read_at(context, place, bytemuck::cast_slice_mut(line))?;
            }
        }
        if !lines.stores {
            for (slot, places) in registers.rows() {
                registers.pick(places, &matrix, elements::<E>(&mut self.registers, slot));
            }
        }
        Ok(())
    }
}

/// The elements of a register in all lanes.
fn elements<E: Pod>(registers: &mut Registers, slot: u32) -> &mut [E] {
    if size_of::<E>() == 8 {
        bytemuck::cast_slice_mut(registers.get_mut::<u64>(slot))
    } else {
        bytemuck::cast_slice_mut(registers.get_mut::<u32>(slot))
    }
}
