//! `mma` and `wmma.mma`: `D = A × B + C`.
//!
//! # The order of the sums
//!
//! PTX leaves open in what order and with what roundings the products are summed. Here each element
//! of D starts as that of C, and takes up the products of one k after the other, in rising order:
//! `d = fma(a[k], b[k], d)`. The product is exact, and the sum is rounded to nearest even: in f32
//! for all floats of up to 32 bits, in f64 for f64. An accumulator of type f16 is widened to f32 at
//! the start, and rounded once at the end. Subnormal numbers are kept, and a NaN is the canonical
//! one. Sums of integers wrap; with `.satfinite` the exact sum is clamped at the end.

use super::element::{ELEMENTS_MAX, Fragment, Number, ROW_MAX};
use crate::exec::fault::Trouble;
use crate::exec::registers::Registers;
use crate::exec::warp::{Flow, Warp};

/// Rows and columns that are computed together: sums that fit into the host's vector registers.
const TILE: usize = 8;

/// The instruction.
#[derive(Clone, Debug)]
pub struct Multiply {
    /// Rows of A and C, columns of B and C, columns of A and rows of B.
    pub shape: Shape,
    /// How many matrices of this shape lie in the fragments, one behind the other.
    pub count: usize,
    /// Places are `k × m + row`.
    pub a: Fragment,
    /// Places are `k × n + column`.
    pub b: Fragment,
    /// Places are `row × n + column`.
    pub c: Fragment,
    /// As C.
    pub d: Fragment,
    /// Does the work, in the type that the sums need.
    pub run: fn(&mut Registers, &Multiply),
}

/// Extents of a multiplication. Rows and columns are multiples of [`TILE`].
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

/// The work, with sums of one type.
pub fn run<T: Number>(registers: &mut Registers, multiply: &Multiply) {
    let [mut a, mut b, mut c] = [[T::ZERO; ELEMENTS_MAX]; 3];
    gather(registers, &multiply.a, &mut a);
    gather(registers, &multiply.b, &mut b);
    gather(registers, &multiply.c, &mut c);
    let Shape { m, n, k } = multiply.shape;
    for number in 0..multiply.count {
        accumulate(
            multiply.shape,
            &a[number * m * k..][..m * k],
            &b[number * k * n..][..k * n],
            &mut c[number * m * n..][..m * n],
        );
    }
    for (slot, places) in multiply.d.rows() {
        let mut values = [T::ZERO; ROW_MAX];
        for (value, &place) in values.iter_mut().zip(places) {
            *value = c[usize::from(place) % ELEMENTS_MAX];
        }
        T::write(registers, slot, multiply.d.element, &values);
    }
}

/// Puts the elements of a fragment where they lie in the matrix.
#[inline(always)]
fn gather<T: Number>(registers: &Registers, fragment: &Fragment, matrix: &mut [T; ELEMENTS_MAX]) {
    for (slot, places) in fragment.rows() {
        let mut values = [T::ZERO; ROW_MAX];
        T::read(registers, slot, fragment.element, &mut values);
        for (&value, &place) in values.iter().zip(places) {
            matrix[usize::from(place) % ELEMENTS_MAX] = value;
        }
    }
}

/// `c += a × b`, a tile of sums at a time.
#[inline(always)]
fn accumulate<T: Number>(shape: Shape, a: &[T], b: &[T], c: &mut [T]) {
    let Shape { m, n, .. } = shape;
    for row in (0..m).step_by(TILE) {
        for column in (0..n).step_by(TILE) {
            let mut sums = [[T::ZERO; TILE]; TILE];
            for (line, sums) in sums.iter_mut().enumerate() {
                sums.copy_from_slice(&c[(row + line) * n + column..][..TILE]);
            }
            for (left, right) in a.chunks_exact(m).zip(b.chunks_exact(n)) {
                let left: &[T; TILE] = left[row..].first_chunk().expect("a multiple of tiles");
                let right: &[T; TILE] = right[column..].first_chunk().expect("a multiple of tiles");
                for line in 0..TILE {
                    for lane in 0..TILE {
                        sums[line][lane] = T::fused(left[line], right[lane], sums[line][lane]);
                    }
                }
            }
            for (line, sums) in sums.iter().enumerate() {
                c[(row + line) * n + column..][..TILE].copy_from_slice(sums);
            }
        }
    }
}
