//! `mma` and `wmma.mma`: `D = A × B + C`.
//!
//! # The order of the sums
//!
//! PTX leaves open in what order and with what roundings the products are summed. Here each element
//! of D starts as that of C, and takes up the products of one k after the other, in rising order:
//! `d = fma(a[k], b[k], d)`. The product is exact, and the sum is rounded to nearest even: in f32
//! for all floats of up to 32 bits, in f64 for f64, whose instructions may name another direction.
//! An accumulator of type f16 is widened to f32 at the start, and rounded once at the end.
//! Subnormal numbers are kept, and a NaN is the canonical one. Sums of integers wrap; with
//! `.satfinite` the exact sum is clamped at the end.

use super::element::{MatrixRegisters, Number, ROW_MAX};
use crate::exec::fault::Trouble;
use crate::exec::registers::Registers;
use crate::exec::warp::{Flow, Warp};

/// Rows that are computed together; all matrices have a multiple.
const ROWS: usize = 4;

/// The instruction.
#[derive(Clone, Debug)]
pub struct Multiply {
    /// Rows of A and C, columns of B and C, columns of A and rows of B.
    pub shape: Shape,
    /// How many matrices of this shape lie in the registers, one behind the other.
    pub count: usize,
    /// Places are `row × k + column`.
    pub a: MatrixRegisters,
    /// Places are `row × n + column`, of columns in the order of C's.
    pub b: MatrixRegisters,
    /// Places are `row × n + column`; the columns may be in any order.
    pub c: MatrixRegisters,
    /// As C.
    pub d: MatrixRegisters,
    /// Does the work, in the type that the sums need.
    pub run: fn(&mut Registers, &Multiply),
}

/// Extents of a multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Products in a sum.
    pub k: usize,
}

impl Warp {
    /// `mma`, `wmma.mma`
    #[inline(never)]
    pub(in crate::exec) fn multiply(
        &mut self,
        multiply: &Multiply,
        mask: u32,
        active: u32,
    ) -> Result<Flow, Box<Trouble>> {
        if let Some(wait) = self.whole_warp(mask, active)? {
            return Ok(wait);
        }
        (multiply.run)(&mut self.registers, multiply);
        Ok(Flow::Next)
    }
}

/// The work, with sums of one type. No matrix has more than `SIZE` elements, a power of two: to
/// clear more than that would take longer than the sums.
pub fn run<T: Number, const SIZE: usize>(registers: &mut Registers, multiply: &Multiply) {
    let [mut a, mut b, mut c] = [[T::ZERO; SIZE]; 3];
    let mut row = [T::ZERO; ROW_MAX];
    gather(registers, &multiply.a, &mut row, &mut a);
    gather(registers, &multiply.b, &mut row, &mut b);
    gather(registers, &multiply.c, &mut row, &mut c);
    let Shape { m, n, k } = multiply.shape;
    for number in 0..multiply.count {
        let a = &a[number * m * k..][..m * k];
        let b = &b[number * k * n..][..k * n];
        let c = &mut c[number * m * n..][..m * n];
        match n {
            8 => accumulate::<T, 8>(k, a, b, c),
            16 => accumulate::<T, 16>(k, a, b, c),
            _ => accumulate::<T, 32>(k, a, b, c),
        }
    }
    for (slot, places) in multiply.d.rows() {
        multiply.d.pick(places, &c, &mut row);
        T::write(registers, slot, multiply.d.element, &row);
    }
}

/// Puts the elements of registers where they lie in the matrix.
#[inline(always)]
fn gather<T: Number, const SIZE: usize>(
    registers: &Registers,
    spread: &MatrixRegisters,
    row: &mut [T; ROW_MAX],
    matrix: &mut [T; SIZE],
) {
    for (slot, places) in spread.rows() {
        T::read(registers, slot, spread.element, row);
        spread.drop(places, row, matrix);
    }
}

/// `c += a × b`, where C and B have `N` columns: some rows of sums at a time, as many as the host's
/// vector registers hold.
#[inline(always)]
pub(super) fn accumulate<T: Number, const N: usize>(k: usize, a: &[T], b: &[T], c: &mut [T]) {
    let rows = c.as_chunks_mut::<N>().0.as_chunks_mut::<ROWS>().0;
    let right = &b.as_chunks::<N>().0[..k];
    for (sums, left) in rows.iter_mut().zip(a.chunks_exact(ROWS * k)) {
        let left: [&[T]; ROWS] = std::array::from_fn(|row| &left[row * k..][..k]);
        let mut own = *sums;
        for step in 0..k {
            for row in 0..ROWS {
                let factor = left[row][step];
                for column in 0..N {
                    own[row][column] = T::fused(factor, right[step][column], own[row][column]);
                }
            }
        }
        *sums = own;
    }
}
