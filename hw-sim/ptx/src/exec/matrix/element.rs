//! Elements of matrices: how they lie in registers, and the numbers that are computed with.

use std::sync::Arc;

use half::slice::HalfFloatSliceExt;

use crate::exec::float::canonical;
use crate::exec::minifloat;
use crate::exec::registers::{LANES, Registers};
use crate::exec::rounding::{self, Rounding};

/// Most elements of a matrix.
pub const ELEMENTS_MAX: usize = 512;
/// Most elements of one register in all lanes.
pub const ROW_MAX: usize = 4 * LANES;

/// What an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are PTX's own.
pub enum Element {
    F16,
    BF16,
    Tf32,
    E4m3,
    E5m2,
    S8,
    U8,
    S32,
    F32,
    F64,
}

impl Element {
    /// By its word.
    pub fn named(word: &str) -> Option<Self> {
        Some(match word {
            "f16" => Self::F16,
            "bf16" => Self::BF16,
            "tf32" => Self::Tf32,
            "e4m3" => Self::E4m3,
            "e5m2" => Self::E5m2,
            "s8" => Self::S8,
            "u8" => Self::U8,
            "s32" => Self::S32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Bytes of one.
    pub const fn bytes(self) -> usize {
        match self {
            Self::E4m3 | Self::E5m2 | Self::S8 | Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::Tf32 | Self::S32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// How many a register of one lane holds.
    pub const fn per_register(self) -> usize {
        if self.bytes() < 4 { 4 / self.bytes() } else { 1 }
    }
}

/// A matrix, spread over registers: what PTX calls a fragment, a word that here means lanes.
#[derive(Clone, Debug)]
pub struct MatrixRegisters {
    /// What its elements are.
    pub element: Element,
    /// Its registers.
    pub slots: Vec<u32>,
    /// Where in the matrix they lie.
    pub places: Places,
}

/// Where in a matrix the elements of registers lie. A register has those of lane 0 first, in the
/// order of their bits, then those of lane 1, and so on.
#[derive(Clone, Debug)]
pub struct Places {
    /// Elements that lie side by side in register and matrix: 1, 4, 8 or 16.
    run: usize,
    /// The first place of each run, register after register.
    starts: Arc<[u16]>,
}

impl Places {
    /// From the places of all elements.
    pub fn new(all: &[u16]) -> Self {
        let in_order = |run: &[u16]| run.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let fits = |run: &usize| all.chunks(*run).all(in_order);
        let run = [16, 8, 4].into_iter().find(fits).unwrap_or(1);
        Self { run, starts: all.iter().copied().step_by(run).collect() }
    }
}

impl MatrixRegisters {
    /// Each register, with the places of its runs.
    pub fn rows(&self) -> impl Iterator<Item = (u32, &[u16])> {
        let runs = self.element.per_register() * LANES / self.places.run;
        self.slots.iter().copied().zip(self.places.starts.chunks_exact(runs))
    }

    /// Puts the elements of a register where they lie. `SIZE` is a power of two that no place
    /// reaches.
    #[inline(always)]
    pub fn drop<T: Copy, const SIZE: usize>(
        &self,
        places: &[u16],
        row: &[T],
        matrix: &mut [T; SIZE],
    ) {
        match self.places.run {
            16 => drop_runs::<T, 16>(places, row, matrix),
            8 => drop_runs::<T, 8>(places, row, matrix),
            4 => drop_runs::<T, 4>(places, row, matrix),
            _ => {
                for (value, &place) in row.iter().zip(places) {
                    matrix[usize::from(place) % SIZE] = *value;
                }
            }
        }
    }

    /// The reverse of [`MatrixRegisters::drop`].
    #[inline(always)]
    pub fn pick<T: Copy, const SIZE: usize>(
        &self,
        places: &[u16],
        matrix: &[T; SIZE],
        row: &mut [T],
    ) {
        match self.places.run {
            16 => pick_runs::<T, 16>(places, matrix, row),
            8 => pick_runs::<T, 8>(places, matrix, row),
            4 => pick_runs::<T, 4>(places, matrix, row),
            _ => {
                for (value, &place) in row.iter_mut().zip(places) {
                    *value = matrix[usize::from(place) % SIZE];
                }
            }
        }
    }
}

#[inline(always)]
fn drop_runs<T: Copy, const N: usize>(places: &[u16], row: &[T], matrix: &mut [T]) {
    for (run, &place) in row.as_chunks::<N>().0.iter().zip(places) {
        matrix[usize::from(place)..][..N].copy_from_slice(run);
    }
}

#[inline(always)]
fn pick_runs<T: Copy, const N: usize>(places: &[u16], matrix: &[T], row: &mut [T]) {
    for (run, &place) in row.as_chunks_mut::<N>().0.iter_mut().zip(places) {
        run.copy_from_slice(&matrix[usize::from(place)..][..N]);
    }
}

/// What sums are computed in.
pub trait Number: Copy {
    /// Zero.
    const ZERO: Self;
    /// `a × b + c`
    fn fused(a: Self, b: Self, c: Self) -> Self;
    /// Reads a register of all lanes. The element is one that this number stands for.
    fn read(registers: &Registers, slot: u32, element: Element, out: &mut [Self; ROW_MAX]);
    /// Writes a register of all lanes.
    fn write(registers: &mut Registers, slot: u32, element: Element, values: &[Self; ROW_MAX]);
    /// Reads elements that lie side by side in memory.
    fn line(bytes: &[u8], element: Element, out: &mut [Self]);
    /// With the other sign.
    fn negated(self) -> Self;
}

impl Number for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn fused(a: Self, b: Self, c: Self) -> Self {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn read(registers: &Registers, slot: u32, element: Element, out: &mut [Self; ROW_MAX]) {
        let words: &[u32; LANES] = registers.get(slot);
        let halves: &[u16; 2 * LANES] = bytemuck::cast_ref(words);
        let bytes: &[u8; 4 * LANES] = bytemuck::cast_ref(words);
        match element {
            Element::F16 => {
                let halves: &[half::f16; 2 * LANES] = bytemuck::cast_ref(halves);
                halves.convert_to_f32_slice(&mut out[..2 * LANES]);
            }
            Element::BF16 => {
                for (out, half) in out.iter_mut().zip(halves) {
                    *out = Self::from_bits(u32::from(*half) << 16);
                }
            }
            // What is behind the tenth bit of the fraction does not count.
            Element::Tf32 => {
                for (out, word) in out.iter_mut().zip(words) {
                    *out = Self::from_bits(word & !0x1fff);
                }
            }
            Element::E4m3 | Element::E5m2 => {
                let table = minifloat::table(element == Element::E5m2);
                for (out, byte) in out.iter_mut().zip(bytes) {
                    *out = table[usize::from(*byte)];
                }
            }
            _ => out[..LANES].copy_from_slice(registers.get::<f32>(slot)),
        }
    }

    #[inline(always)]
    fn write(registers: &mut Registers, slot: u32, element: Element, values: &[Self; ROW_MAX]) {
        if element == Element::F16 {
            let words: &mut [u32; LANES] = registers.get_mut(slot);
            let halves: &mut [half::f16; 2 * LANES] = bytemuck::cast_mut(words);
            halves.convert_from_f32_slice(&values[..2 * LANES]);
            for half in halves {
                *half = if half.is_nan() { half::f16::from_bits(0x7fff) } else { *half };
            }
            return;
        }
        for (out, value) in registers.get_mut::<f32>(slot).iter_mut().zip(values) {
            *out = canonical(*value);
        }
    }

    #[inline(always)]
    fn line(bytes: &[u8], element: Element, out: &mut [Self]) {
        let halves = bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half));
        match element {
            Element::F16 => {
                for (out, half) in out.iter_mut().zip(halves) {
                    *out = half::f16::from_bits(half).to_f32();
                }
            }
            Element::BF16 => {
                for (out, half) in out.iter_mut().zip(halves) {
                    *out = Self::from_bits(u32::from(half) << 16);
                }
            }
            Element::E4m3 | Element::E5m2 => {
                let table = minifloat::table(element == Element::E5m2);
                for (out, byte) in out.iter_mut().zip(bytes) {
                    *out = table[usize::from(*byte)];
                }
            }
            _ => {
                let kept = if element == Element::Tf32 { !0x1fff } else { u32::MAX };
                for (out, word) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *out = Self::from_bits(u32::from_le_bytes(*word) & kept);
                }
            }
        }
    }

    fn negated(self) -> Self {
        -self
    }
}

impl Number for f64 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn fused(a: Self, b: Self, c: Self) -> Self {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn read(registers: &Registers, slot: u32, _: Element, out: &mut [Self; ROW_MAX]) {
        out[..LANES].copy_from_slice(registers.get::<f64>(slot));
    }

    #[inline(always)]
    fn write(registers: &mut Registers, slot: u32, _: Element, values: &[Self; ROW_MAX]) {
        registers.get_mut::<f64>(slot).copy_from_slice(&values[..LANES]);
    }

    fn line(bytes: &[u8], _: Element, out: &mut [Self]) {
        for (out, word) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *out = Self::from_le_bytes(*word);
        }
    }

    fn negated(self) -> Self {
        -self
    }
}

/// An f64 whose sums are rounded in another direction than to nearest: that of this code.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Directed<const CODE: u32>(f64);

impl<const CODE: u32> Number for Directed<CODE> {
    const ZERO: Self = Self(0.0);

    fn fused(a: Self, b: Self, c: Self) -> Self {
        let direction = Rounding::from_code(CODE);
        Self(f64::from_bits(rounding::fused(a.0, b.0, c.0, rounding::F64, direction)))
    }

    fn read(registers: &Registers, slot: u32, _: Element, out: &mut [Self; ROW_MAX]) {
        out[..LANES].copy_from_slice(&registers.get::<f64>(slot).map(Self));
    }

    fn write(registers: &mut Registers, slot: u32, _: Element, values: &[Self; ROW_MAX]) {
        for (out, value) in registers.get_mut::<f64>(slot).iter_mut().zip(values) {
            *out = value.0;
        }
    }

    fn line(bytes: &[u8], _: Element, out: &mut [Self]) {
        for (out, word) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *out = Self(f64::from_le_bytes(*word));
        }
    }

    fn negated(self) -> Self {
        Self(-self.0)
    }
}

/// Integers of one width; the wider one is for sums that are clamped.
macro_rules! integer {
    ($ty:ty, $narrow:expr) => {
        impl Number for $ty {
            const ZERO: Self = 0;

            #[inline(always)]
            fn fused(a: Self, b: Self, c: Self) -> Self {
                a.wrapping_mul(b).wrapping_add(c)
            }

            #[inline(always)]
            fn read(registers: &Registers, slot: u32, element: Element, out: &mut [Self; ROW_MAX]) {
                let words: &[i32; LANES] = registers.get(slot);
                let unsigned: &[u8; 4 * LANES] = bytemuck::cast_ref(words);
                let signed: &[i8; 4 * LANES] = bytemuck::cast_ref(words);
                match element {
                    Element::S8 => *out = signed.map(Self::from),
                    Element::U8 => *out = unsigned.map(Self::from),
                    _ => out[..LANES].copy_from_slice(&words.map(Self::from)),
                }
            }

            #[inline(always)]
            fn write(r: &mut Registers, slot: u32, _: Element, values: &[Self; ROW_MAX]) {
                for (out, value) in r.get_mut::<i32>(slot).iter_mut().zip(values) {
                    *out = $narrow(*value);
                }
            }

            fn line(bytes: &[u8], element: Element, out: &mut [Self]) {
                for (out, &byte) in out.iter_mut().zip(bytes) {
                    *out = match element {
                        Element::S8 => Self::from(byte as i8),
                        _ => Self::from(byte),
                    };
                }
            }

            fn negated(self) -> Self {
                self.wrapping_neg()
            }
        }
    };
}

integer!(i32, |value| value);
integer!(i64, |value: i64| value.clamp(i32::MIN.into(), i32::MAX.into()) as i32);
