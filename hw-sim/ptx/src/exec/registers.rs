//! The register file of one warp: 32 lanes side by side, so that one decoded instruction is one
//! loop that the compiler turns into vector code.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use wide::{i16x16, i32x8, i64x4};

/// Lanes of a warp.
pub const LANES: usize = 32;
/// A mask of all lanes.
pub const FULL: u32 = u32::MAX;

/// One 32-bit register of all lanes. A 64-bit register takes two rows, a 16-bit one half a row.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Row(pub [u32; LANES]);

impl Row {
    /// All lanes zero.
    pub const ZERO: Self = Self([0; LANES]);
}

/// One step of a digest that tells states of one program apart.
#[inline(always)]
pub fn mix(digest: u64, word: u64) -> u64 {
    (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// A type that registers hold.
pub trait Lane: Pod {
    /// Views the register at `rows[0]`.
    fn view(rows: &[Row]) -> &[Self; LANES];
    /// Views the register at `rows[0]`, to write.
    fn view_mut(rows: &mut [Row]) -> &mut [Self; LANES];
}

macro_rules! narrow_lane {
    ($($ty:ty),*) => {$(
        impl Lane for $ty {
            #[inline(always)]
            fn view(rows: &[Row]) -> &[Self; LANES] {
                let halves: &[[Self; LANES]; 2] = bytemuck::cast_ref(&rows[0]);
                &halves[0]
            }
            #[inline(always)]
            fn view_mut(rows: &mut [Row]) -> &mut [Self; LANES] {
                let halves: &mut [[Self; LANES]; 2] = bytemuck::cast_mut(&mut rows[0]);
                &mut halves[0]
            }
        }
    )*};
}

macro_rules! word_lane {
    ($($ty:ty),*) => {$(
        impl Lane for $ty {
            #[inline(always)]
            fn view(rows: &[Row]) -> &[Self; LANES] {
                bytemuck::cast_ref(&rows[0])
            }
            #[inline(always)]
            fn view_mut(rows: &mut [Row]) -> &mut [Self; LANES] {
                bytemuck::cast_mut(&mut rows[0])
            }
        }
    )*};
}

macro_rules! wide_lane {
    ($($ty:ty),*) => {$(
        impl Lane for $ty {
            #[inline(always)]
            fn view(rows: &[Row]) -> &[Self; LANES] {
                let pair: &[Row; 2] = rows.first_chunk().expect("a 64-bit register has two rows");
                bytemuck::cast_ref(pair)
            }
            #[inline(always)]
            fn view_mut(rows: &mut [Row]) -> &mut [Self; LANES] {
                let pair: &mut [Row; 2] =
                    rows.first_chunk_mut().expect("a 64-bit register has two rows");
                bytemuck::cast_mut(pair)
            }
        }
    )*};
}

narrow_lane!(u16, i16);
word_lane!(u32, i32, f32);
wide_lane!(u64, i64, f64);

/// Predicate slots with a meaning of their own.
pub mod predicate {
    /// The carry flag of `add.cc` and its kin.
    pub const CARRY: u32 = 0;
    /// Always true: the guard of an instruction without one.
    pub const TRUE: u32 = 1;
    /// Set on a predicate reference to read its complement.
    pub const NEGATED: u32 = 1 << 31;
    /// First slot that the allocator gives out.
    pub const FIRST: u32 = 2;
}

/// Slots from this one on are constants: the same for all warps, and never written.
pub const CONSTANT: u32 = 1 << 31;

/// Registers and predicates of one warp.
#[derive(Clone, Debug)]
pub struct Registers {
    rows: Vec<Row>,
    /// Those of the kernel. A row for each warp would not stay in the host's cache.
    constants: Arc<[Row]>,
    predicates: Vec<u32>,
}

impl Registers {
    /// A file of so many rows and predicates.
    pub fn new(rows: usize, constants: &Arc<[Row]>, predicates: usize) -> Self {
        let mut predicates = vec![0; predicates.max(predicate::FIRST as usize)];
        predicates[predicate::TRUE as usize] = FULL;
        Self { rows: vec![Row::ZERO; rows], constants: Arc::clone(constants), predicates }
    }

    /// Bytes of its rows.
    pub fn bytes_used(&self) -> usize {
        size_of_val(&self.rows[..])
    }

    /// Mixes all registers and predicates into a digest.
    pub fn digest(&self, before: u64) -> u64 {
        let words: &[u64] = bytemuck::cast_slice(&self.rows);
        let mut lanes = [before; 8];
        // Side by side: a multiplication waits for the one before it.
        for group in words.as_chunks::<8>().0 {
            for (lane, word) in lanes.iter_mut().zip(group) {
                *lane = mix(*lane, *word);
            }
        }
        let digest = lanes.into_iter().fold(before, mix);
        self.predicates.iter().fold(digest, |digest, bits| mix(digest, u64::from(*bits)))
    }

    /// The 32 lanes of a register.
    #[inline(always)]
    pub fn get<T: Lane>(&self, slot: u32) -> &[T; LANES] {
        // Constants lie beyond all rows: one comparison tells them apart, and keeps to the file.
        match self.rows.get(slot as usize..) {
            Some(rows) => T::view(rows),
            None => T::view(&self.constants[(slot - CONSTANT) as usize..]),
        }
    }

    /// The value of a constant.
    #[inline(always)]
    pub fn constant<T: Lane>(&self, slot: u32) -> Option<T> {
        let place = slot.checked_sub(CONSTANT)?;
        Some(T::view(&self.constants[place as usize..])[0])
    }

    /// The 32 lanes of a register, to write. No constant is.
    #[inline(always)]
    pub fn get_mut<T: Lane>(&mut self, slot: u32) -> &mut [T; LANES] {
        T::view_mut(&mut self.rows[slot as usize..])
    }

    /// Writes the lanes of `mask`.
    #[inline(always)]
    pub fn put<T: Lane>(&mut self, slot: u32, values: &[T; LANES], mask: u32) {
        let lanes = self.get_mut::<T>(slot);
        if mask == FULL {
            *lanes = *values;
        } else {
            blend(lanes, values, mask);
        }
    }

    /// Several 32-bit registers to write at once; None unless they differ.
    #[inline(always)]
    pub fn words_mut<const N: usize>(&mut self, slots: &[u32]) -> Option<[&mut Row; N]> {
        let slots: &[u32; N] = slots.try_into().ok()?;
        self.rows.get_disjoint_mut(slots.map(|slot| slot as usize)).ok()
    }

    /// The bytes of a register's lanes, in order.
    #[inline(always)]
    pub fn bytes(&self, slot: u32, width: usize) -> Option<&[u8]> {
        if slot == super::program::NO_SLOT {
            return None;
        }
        Some(match width {
            2 => bytemuck::bytes_of(self.get::<u16>(slot)),
            4 => bytemuck::bytes_of(self.get::<u32>(slot)),
            8 => bytemuck::bytes_of(self.get::<u64>(slot)),
            _ => return None,
        })
    }

    /// The same, to write.
    pub fn bytes_mut(&mut self, slot: u32, width: usize) -> Option<&mut [u8]> {
        if slot == super::program::NO_SLOT {
            return None;
        }
        Some(match width {
            2 => bytemuck::bytes_of_mut(self.get_mut::<u16>(slot)),
            4 => bytemuck::bytes_of_mut(self.get_mut::<u32>(slot)),
            8 => bytemuck::bytes_of_mut(self.get_mut::<u64>(slot)),
            _ => return None,
        })
    }

    /// The bytes of adjacent rows.
    #[inline(always)]
    pub fn rows_mut(&mut self, first: usize, count: usize) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.rows[first..first + count])
    }

    /// A predicate, or its complement where the reference says so.
    #[inline(always)]
    pub fn predicate(&self, reference: u32) -> u32 {
        let flip = ((reference as i32) >> 31) as u32;
        self.predicates[(reference & !predicate::NEGATED) as usize] ^ flip
    }

    /// Writes the lanes of `mask` of a predicate.
    #[inline(always)]
    pub fn set_predicate(&mut self, slot: u32, bits: u32, mask: u32) {
        let old = &mut self.predicates[slot as usize];
        *old = (*old & !mask) | (bits & mask);
    }

    /// One lane's share of rows and predicates, for a recursive call to come back to.
    pub fn save_lane(&self, lane: usize, span: &RegisterSpan, into: &mut Vec<u32>) {
        // 16-bit registers live in the lower half of a row and 64-bit ones across two, so words
        // are taken by their place in each view.
        for &(slot, width) in &span.registers {
            match width {
                2 => into.push(u32::from(self.get::<u16>(slot)[lane])),
                4 => into.push(self.get::<u32>(slot)[lane]),
                _ => {
                    let value = self.get::<u64>(slot)[lane];
                    into.push(value as u32);
                    into.push((value >> 32) as u32);
                }
            }
        }
        for slot in span.predicates.clone() {
            into.push(self.predicates[slot as usize] >> lane & 1);
        }
    }

    /// Takes back what [`Registers::save_lane`] put at the end of `from`.
    pub fn restore_lane(&mut self, lane: usize, span: &RegisterSpan, from: &mut Vec<u32>) {
        for slot in span.predicates.clone().rev() {
            let bit = from.pop().unwrap_or(0);
            self.set_predicate(slot, bit << lane, 1 << lane);
        }
        for &(slot, width) in span.registers.iter().rev() {
            let high = from.pop().unwrap_or(0);
            match width {
                2 => self.get_mut::<u16>(slot)[lane] = high as u16,
                4 => self.get_mut::<u32>(slot)[lane] = high,
                _ => {
                    let low = u64::from(from.pop().unwrap_or(0));
                    self.get_mut::<u64>(slot)[lane] = u64::from(high) << 32 | low;
                }
            }
        }
    }
}

/// The registers of one function, to be saved around a recursive call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterSpan {
    /// Slot and width in bytes.
    pub registers: Vec<(u32, u8)>,
    /// Predicate slots.
    pub predicates: std::ops::Range<u32>,
}

/// Slots of an instruction that only computes. What each means is up to the function beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// Destination.
    pub d: u32,
    /// First source.
    pub a: u32,
    /// Second source.
    pub b: u32,
    /// Third source.
    pub c: u32,
    /// A second destination, a fourth source, or bits that say how.
    pub e: u32,
}

/// An instruction that only computes: registers, slots, mask of lanes to write.
pub type AluFn = fn(&mut Registers, &Args, u32);

/// Lanes that are computed together: a vector register of the host, of words.
const GROUP: usize = 8;

/// May each group of results be written before the next group of a source is read? So it is unless
/// the two share rows without being the same register, and registers of one size never do: they
/// have their rows apart, or in common.
#[inline(always)]
fn in_step<A: Lane, D: Lane>(source: u32, destination: u32) -> bool {
    let (source_rows, rows) =
        (size_of::<A>().div_ceil(4) as u32, size_of::<D>().div_ceil(4) as u32);
    let apart = source + source_rows <= destination || destination + rows <= source;
    if size_of::<A>() == size_of::<D>() {
        debug_assert!(source == destination || apart);
        return true;
    }
    apart
}

/// Some lanes of a register that is no constant.
#[inline(always)]
fn group<T: Lane>(r: &Registers, slot: u32, number: usize) -> [T; GROUP] {
    T::view(&r.rows[slot as usize..]).as_chunks::<GROUP>().0[number]
}

/// The same, to write.
#[inline(always)]
fn group_mut<T: Lane>(r: &mut Registers, slot: u32, number: usize) -> &mut [T; GROUP] {
    &mut r.get_mut::<T>(slot).as_chunks_mut::<GROUP>().0[number]
}

/// The lane of a mask that has one. What a thread does for its block while the others wait is a
/// large part of many kernels.
#[inline(always)]
pub fn only(mask: u32) -> Option<usize> {
    mask.is_power_of_two().then(|| mask.trailing_zeros() as usize)
}

/// `d = f(a)` on all lanes, in step.
#[inline(always)]
fn all1<A: Lane, D: Lane>(r: &mut Registers, a: u32, d: u32, f: impl Fn(A) -> D) {
    if let Some(a) = r.constant::<A>(a) {
        *r.get_mut::<D>(d) = [f(a); LANES];
        return;
    }
    for number in 0..LANES / GROUP {
        let a = group::<A>(r, a, number);
        let d = group_mut::<D>(r, d, number);
        for lane in 0..GROUP {
            d[lane] = f(a[lane]);
        }
    }
}

/// `d = f(a, b)` on all lanes, in step, of registers that are no constants.
#[inline(always)]
fn all2<A: Lane, B: Lane, D: Lane>(
    r: &mut Registers,
    (a, b): (u32, u32),
    d: u32,
    f: impl Fn(A, B) -> D,
) {
    for number in 0..LANES / GROUP {
        let (a, b) = (group::<A>(r, a, number), group::<B>(r, b, number));
        let d = group_mut::<D>(r, d, number);
        for lane in 0..GROUP {
            d[lane] = f(a[lane], b[lane]);
        }
    }
}

/// `d = f(a)` on every lane.
#[inline(always)]
pub fn map1<A: Lane, D: Lane>(r: &mut Registers, i: &Args, mask: u32, f: impl Fn(A) -> D) {
    if mask == FULL && in_step::<A, D>(i.a, i.d) {
        return all1(r, i.a, i.d, f);
    }
    some1(r, i, mask, f);
}

/// The same on some lanes. Apart, so that the common way needs no room for what is kept.
#[inline(never)]
fn some1<A: Lane, D: Lane>(r: &mut Registers, i: &Args, mask: u32, f: impl Fn(A) -> D) {
    if let Some(lane) = only(mask) {
        r.get_mut::<D>(i.d)[lane] = f(r.get::<A>(i.a)[lane]);
        return;
    }
    let a = r.get::<A>(i.a);
    let mut d = [D::zeroed(); LANES];
    for lane in 0..LANES {
        d[lane] = f(a[lane]);
    }
    r.put(i.d, &d, mask);
}

/// `d = f(a, b)` on every lane.
#[inline(always)]
pub fn map2<A: Lane, B: Lane, D: Lane>(
    r: &mut Registers,
    i: &Args,
    mask: u32,
    f: impl Fn(A, B) -> D,
) {
    if mask == FULL && in_step::<A, D>(i.a, i.d) && in_step::<B, D>(i.b, i.d) {
        return match (r.constant::<A>(i.a), r.constant::<B>(i.b)) {
            (_, Some(b)) => all1(r, i.a, i.d, |a| f(a, b)),
            (Some(a), None) => all1(r, i.b, i.d, |b| f(a, b)),
            (None, None) => all2(r, (i.a, i.b), i.d, f),
        };
    }
    some2(r, i, mask, f);
}

/// The same on some lanes.
#[inline(never)]
fn some2<A: Lane, B: Lane, D: Lane>(r: &mut Registers, i: &Args, mask: u32, f: impl Fn(A, B) -> D) {
    if let Some(lane) = only(mask) {
        r.get_mut::<D>(i.d)[lane] = f(r.get::<A>(i.a)[lane], r.get::<B>(i.b)[lane]);
        return;
    }
    let (a, b) = (r.get::<A>(i.a), r.get::<B>(i.b));
    let mut d = [D::zeroed(); LANES];
    for lane in 0..LANES {
        d[lane] = f(a[lane], b[lane]);
    }
    r.put(i.d, &d, mask);
}

/// `d = f(a, b, c)` on every lane.
#[inline(always)]
pub fn map3<A: Lane, B: Lane, C: Lane, D: Lane>(
    r: &mut Registers,
    i: &Args,
    mask: u32,
    f: impl Fn(A, B, C) -> D,
) {
    let in_step = in_step::<A, D>(i.a, i.d) && in_step::<B, D>(i.b, i.d);
    if mask == FULL && in_step && self::in_step::<C, D>(i.c, i.d) {
        match (r.constant::<A>(i.a), r.constant::<B>(i.b), r.constant::<C>(i.c)) {
            (None, None, None) => {
                for number in 0..LANES / GROUP {
                    let (a, b) = (group::<A>(r, i.a, number), group::<B>(r, i.b, number));
                    let c = group::<C>(r, i.c, number);
                    let d = group_mut::<D>(r, i.d, number);
                    for lane in 0..GROUP {
                        d[lane] = f(a[lane], b[lane], c[lane]);
                    }
                }
                return;
            }
            (None, Some(b), None) => return all2(r, (i.a, i.c), i.d, |a, c| f(a, b, c)),
            (None, None, Some(c)) => return all2(r, (i.a, i.b), i.d, |a, b| f(a, b, c)),
            _ => {}
        }
    }
    some3(r, i, mask, f);
}

/// The same on some lanes.
#[inline(never)]
fn some3<A: Lane, B: Lane, C: Lane, D: Lane>(
    r: &mut Registers,
    i: &Args,
    mask: u32,
    f: impl Fn(A, B, C) -> D,
) {
    if let Some(lane) = only(mask) {
        let (a, b) = (r.get::<A>(i.a)[lane], r.get::<B>(i.b)[lane]);
        r.get_mut::<D>(i.d)[lane] = f(a, b, r.get::<C>(i.c)[lane]);
        return;
    }
    let (a, b, c) = (r.get::<A>(i.a), r.get::<B>(i.b), r.get::<C>(i.c));
    let mut d = [D::zeroed(); LANES];
    for lane in 0..LANES {
        d[lane] = f(a[lane], b[lane], c[lane]);
    }
    r.put(i.d, &d, mask);
}

/// A comparison: registers, slots of its operands, and the lanes whose bits are wanted.
pub type TestFn = fn(&Registers, (u32, u32), u32) -> u32;

/// A bit where `f(a, b)` holds, for each lane of `mask`. What the others have means nothing.
#[inline(always)]
pub fn test2<A: Lane>(
    r: &Registers,
    (a, b): (u32, u32),
    mask: u32,
    f: impl Fn(A, A) -> bool,
) -> u32 {
    let (a, b) = (r.get::<A>(a), r.get::<A>(b));
    if let Some(lane) = only(mask) {
        return u32::from(f(a[lane], b[lane])) << lane;
    }
    // As wide as the operands, so that the host's comparison is the mask already.
    let mut bits = 0;
    if size_of::<A>() == size_of::<u64>() {
        for (number, (a, b)) in a.as_chunks::<4>().0.iter().zip(b.as_chunks::<4>().0).enumerate() {
            let held: [i64; 4] = std::array::from_fn(|lane| -i64::from(f(a[lane], b[lane])));
            bits |= i64x4::new(held).to_bitmask() << (4 * number);
        }
    } else {
        for (number, (a, b)) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0).enumerate() {
            let held: [i32; 8] = std::array::from_fn(|lane| -i32::from(f(a[lane], b[lane])));
            bits |= i32x8::new(held).to_bitmask() << (8 * number);
        }
    }
    bits
}

/// Writes the lanes of `mask`. Said in vectors: from a choice for each lane the compiler makes
/// vector code in some places, and in others a branch for each.
#[inline(always)]
fn blend<T: Lane>(lanes: &mut [T; LANES], values: &[T; LANES], mask: u32) {
    macro_rules! blend_as {
        ($vector:ident, $word:ty, $count:literal) => {{
            let bits = $vector::new(std::array::from_fn(|lane| 1 << lane));
            let lanes: &mut [$word; LANES] = bytemuck::cast_mut(lanes);
            let values: &[$word; LANES] = bytemuck::cast_ref(values);
            let groups = lanes.as_chunks_mut::<$count>().0.iter_mut();
            for (number, (lanes, values)) in groups.zip(values.as_chunks().0).enumerate() {
                let part = $vector::splat((mask >> (number * $count)) as $word);
                let chosen = (part & bits).simd_eq(bits);
                *lanes = chosen.select($vector::new(*values), $vector::new(*lanes)).to_array();
            }
        }};
    }
    match size_of::<T>() {
        2 => blend_as!(i16x16, i16, 16),
        4 => blend_as!(i32x8, i32, 8),
        _ => blend_as!(i64x4, i64, 4),
    }
}

/// A bit for each flag, which is 0 or 1.
#[inline(always)]
pub fn bits_of(flags: &[u8; LANES]) -> u32 {
    // The product brings eight flags, each in the lowest bit of a byte, together in the highest
    // byte, the first one lowest.
    let together = |flags: [u8; 8]| {
        (u64::from_le_bytes(flags).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
    };
    let groups: &[[u8; 8]; LANES / 8] = bytemuck::cast_ref(flags);
    u32::from_le_bytes(groups.map(together))
}

/// Calls `f` with each lane of `mask`.
#[inline(always)]
pub fn each_lane(mask: u32, mut f: impl FnMut(usize)) {
    let mut left = mask;
    while left != 0 {
        f(left.trailing_zeros() as usize);
        left &= left - 1;
    }
}
