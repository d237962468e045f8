//! The lines of a box, in the order in which they lie in shared memory.
//!
//! A line is what follows each other in dimension 0. A tile has one for each of its elements in the
//! other dimensions, a column one for each of its pixels. Pixels are walked from a first one on
//! through the box between the corners, row by row, plane by plane and image by image, as far as
//! the column is long. All of them are shifted by the offsets of the filter's element.

use super::{PIXEL_RANK_MAX, RANK_MAX, TensorMap};
use std::ops::Range;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where the first of its elements that are in the tensor lies.
    pub address: u64,
    /// Which of its elements are in the tensor.
    pub part: Range<usize>,
}

/// Walks through the lines of a box.
pub struct Lines<'a> {
    map: &'a TensorMap,
    /// Where the box, or the column, begins.
    start: [i64; RANK_MAX],
    offsets: [u16; PIXEL_RANK_MAX],
    /// The next line.
    at: [i64; RANK_MAX],
    left: u64,
}

impl TensorMap {
    /// Lines of the box.
    pub fn lines(&self) -> u64 {
        match self.corners {
            Some(_) => u64::from(self.boxes[1]),
            None => (1..usize::from(self.rank)).map(|axis| self.count(axis)).product(),
        }
    }

    /// Walks through the lines of the box at this place; offsets are for columns.
    pub fn walk(&self, start: [i64; RANK_MAX], offsets: [u16; PIXEL_RANK_MAX]) -> Lines<'_> {
        Lines { map: self, start, offsets, at: start, left: self.lines() }
    }
}

impl Lines<'_> {
    fn line(&self) -> Line {
        let map = self.map;
        let rank = usize::from(map.rank);
        let (mut address, mut inside) = (map.address, true);
        for axis in 1..rank {
            let is_pixel = map.corners.is_some() && axis < rank - 1;
            let offset = if is_pixel { i64::from(self.offsets[axis - 1]) } else { 0 };
            let at = self.at[axis] + offset;
            inside &= (0..map.extents[axis] as i64).contains(&at);
            address = address.wrapping_add((at as u64).wrapping_mul(map.strides[axis - 1]));
        }
        let (extent, elements) = (map.extents[0] as i64, map.count(0) as i64);
        let first = self.start[0].clamp(0, extent);
        let last = (self.start[0] + elements).clamp(first, extent);
        address = address.wrapping_add(first as u64 * map.element_bytes());
        let part = (first - self.start[0]) as usize..(last - self.start[0]) as usize;
        Line { address, part: if inside && last > first { part } else { 0..0 } }
    }

    fn advance(&mut self) {
        let map = self.map;
        let rank = usize::from(map.rank);
        for axis in 1..rank {
            let step = i64::from(map.steps[axis].max(1));
            let (first, is_past) = match map.corners {
                // Images follow each other.
                Some(_) if axis == rank - 1 => {
                    self.at[axis] += 1;
                    return;
                }
                Some(corners) => {
                    self.at[axis] += step;
                    let last = map.extents[axis] as i64 - 1 + i64::from(corners.upper[axis - 1]);
                    (i64::from(corners.lower[axis - 1]), self.at[axis] > last)
                }
                None => {
                    self.at[axis] += step;
                    let count = map.count(axis) as i64;
                    (self.start[axis], self.at[axis] >= self.start[axis] + count * step)
                }
            };
            if !is_past {
                return;
            }
            self.at[axis] = first;
        }
    }
}

impl Iterator for Lines<'_> {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        self.left = self.left.checked_sub(1)?;
        let line = self.line();
        self.advance();
        Some(line)
    }
}
