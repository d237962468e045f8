//! Between bytes in the order of lanes and registers.

use bytemuck::Zeroable;

use super::program::{Access, NO_SLOT};
use super::registers::{FULL, LANES, Lane, Registers, Row, each_lane};
use super::warp::Warp;

/// Room for the widest access of all lanes: 32 bytes each.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Zeroable)]
pub struct Scratch([u64; LANES * 4]);

impl Default for Scratch {
    fn default() -> Self {
        Self::zeroed()
    }
}

impl Scratch {
    pub(super) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

impl Warp {
    /// Scratch to registers.
    pub(super) fn unpack(&mut self, access: &Access, mask: u32) {
        let (element, register) = (access.element_bytes, access.register_bytes);
        let (registers, slots) = (&mut self.registers, access.registers.as_slice());
        let words = &self.scratch.0;
        match (element, register, slots.len()) {
            (4, 4, 1) => spread::<u32, 1>(registers, slots, bytemuck::cast_slice(words), mask),
            (4, 4, 2) if mask == FULL && spread_words::<2>(registers, slots, words) => {}
            (4, 4, 4) if mask == FULL && spread_words::<4>(registers, slots, words) => {}
            (4, 4, 2) => spread::<u32, 2>(registers, slots, bytemuck::cast_slice(words), mask),
            (4, 4, 4) => spread::<u32, 4>(registers, slots, bytemuck::cast_slice(words), mask),
            (8, 8, 1) => spread::<u64, 1>(registers, slots, words, mask),
            (8, 8, 2) => spread::<u64, 2>(registers, slots, words, mask),
            (2, 2, 1) => spread::<u16, 1>(registers, slots, bytemuck::cast_slice(words), mask),
            _ => spread_any(registers, access, bytemuck::cast_slice(words), mask),
        }
    }

    /// Registers to scratch, all lanes.
    pub(super) fn pack(&mut self, access: &Access) {
        let (element, register) = (access.element_bytes, access.register_bytes);
        let (registers, slots) = (&self.registers, access.registers.as_slice());
        let words = &mut self.scratch.0;
        match (element, register, slots.len()) {
            (4, 4, 1) => gather::<u32, 1>(registers, slots, bytemuck::cast_slice_mut(words)),
            (4, 4, 2) => gather::<u32, 2>(registers, slots, bytemuck::cast_slice_mut(words)),
            (4, 4, 4) => gather::<u32, 4>(registers, slots, bytemuck::cast_slice_mut(words)),
            (8, 8, 1) => gather::<u64, 1>(registers, slots, words),
            (8, 8, 2) => gather::<u64, 2>(registers, slots, words),
            (2, 2, 1) => gather::<u16, 1>(registers, slots, bytemuck::cast_slice_mut(words)),
            _ => gather_any(registers, access, bytemuck::cast_slice_mut(words)),
        }
    }
}

/// As [`spread`], of all lanes to registers that differ, with nothing between.
#[inline(always)]
fn spread_words<const N: usize>(registers: &mut Registers, slots: &[u32], words: &[u64]) -> bool {
    let Some(rows) = registers.words_mut::<N>(slots) else { return false };
    let words: &[u32] = bytemuck::cast_slice(words);
    let Some(words) = words.as_chunks::<N>().0.first_chunk() else { return false };
    rows_of(words, rows);
    true
}

/// Lanes of words to rows. By name where they are two or four: only so does the compiler see that
/// they lie apart, and makes vector code of it.
#[inline(always)]
fn rows_of<const N: usize>(words: &[[u32; N]; LANES], mut rows: [&mut Row; N]) {
    match rows.as_mut_slice() {
        [a] => part::<N>(words, 0, a),
        [a, b] => two(words, a, b),
        [a, b, c, d] => four(words, a, b, c, d),
        _ => {
            for (element, row) in rows.iter_mut().enumerate() {
                part(words, element, row);
            }
        }
    }
}

#[inline(always)]
fn part<const N: usize>(words: &[[u32; N]; LANES], element: usize, row: &mut Row) {
    for lane in 0..LANES {
        row.0[lane] = words[lane][element];
    }
}

#[inline(always)]
fn two<const N: usize>(words: &[[u32; N]; LANES], a: &mut Row, b: &mut Row) {
    for lane in 0..LANES {
        a.0[lane] = words[lane][0];
        b.0[lane] = words[lane][1];
    }
}

#[inline(always)]
fn four<const N: usize>(
    words: &[[u32; N]; LANES],
    a: &mut Row,
    b: &mut Row,
    c: &mut Row,
    d: &mut Row,
) {
    for lane in 0..LANES {
        a.0[lane] = words[lane][0];
        b.0[lane] = words[lane][1];
        c.0[lane] = words[lane][2];
        d.0[lane] = words[lane][3];
    }
}

/// Lanes of `N` words each, side by side, to `N` registers.
#[inline(always)]
fn spread<T: Lane, const N: usize>(
    registers: &mut Registers,
    slots: &[u32],
    words: &[T],
    mask: u32,
) {
    let mut rows = [[T::zeroed(); LANES]; N];
    for (lane, group) in words[..LANES * N].chunks_exact(N).enumerate() {
        for element in 0..N {
            rows[element][lane] = group[element];
        }
    }
    for (row, &slot) in rows.iter().zip(slots) {
        if slot != NO_SLOT {
            registers.put(slot, row, mask);
        }
    }
}

/// The reverse of [`spread`].
#[inline(always)]
fn gather<T: Lane, const N: usize>(registers: &Registers, slots: &[u32], words: &mut [T]) {
    let rows: [&[T; LANES]; N] = std::array::from_fn(|element| registers.get(slots[element]));
    for (lane, group) in words[..LANES * N].chunks_exact_mut(N).enumerate() {
        for element in 0..N {
            group[element] = rows[element][lane];
        }
    }
}

/// Elements narrower than their registers, or of odd number: one by one.
fn spread_any(registers: &mut Registers, access: &Access, bytes: &[u8], mask: u32) {
    let element = usize::from(access.element_bytes);
    let width = access.lane_bytes();
    for (number, &slot) in access.registers.iter().enumerate() {
        if slot == NO_SLOT {
            continue;
        }
        let mut values = [0_u64; LANES];
        each_lane(mask, |lane| {
            let start = lane * width + number * element;
            let mut raw = [0; 8];
            raw[..element].copy_from_slice(&bytes[start..start + element]);
            let value = u64::from_le_bytes(raw);
            let unused = 64 - 8 * element as u32;
            values[lane] =
                if access.signed { ((value << unused) as i64 >> unused) as u64 } else { value };
        });
        match access.register_bytes {
            2 => registers.put(slot, &values.map(|value| value as u16), mask),
            4 => registers.put(slot, &values.map(|value| value as u32), mask),
            _ => registers.put(slot, &values, mask),
        }
    }
}

/// The reverse of [`spread_any`].
fn gather_any(registers: &Registers, access: &Access, bytes: &mut [u8]) {
    let element = usize::from(access.element_bytes);
    let width = access.lane_bytes();
    for (number, &slot) in access.registers.iter().enumerate() {
        for lane in 0..LANES {
            let value = match access.register_bytes {
                2 => u64::from(registers.get::<u16>(slot)[lane]),
                4 => u64::from(registers.get::<u32>(slot)[lane]),
                _ => registers.get::<u64>(slot)[lane],
            };
            let start = lane * width + number * element;
            bytes[start..start + element].copy_from_slice(&value.to_le_bytes()[..element]);
        }
    }
}
