//! Conversions whose results share a register or have none of their own type: tf32, pairs of 8-bit
//! floats, and `cvt.pack`.

use super::float::{canonical, flags};
use super::half::narrow;
use super::minifloat::{E4M3, E5M2, Minifloat};
use super::registers::{AluFn, Args, LANES, Registers, map1, map2, map3};
use super::rounding::{Exact, Format, Rounding};
use crate::ast::ScalarType as T;
use crate::decode::select::{Compute, Words};

/// [`Args::e`]: the largest number instead of infinity.
const SATFINITE: u32 = 1 << 6;
/// tf32 without the bits that are not there.
const TF32: Format = Format { exponent_bits: 8, fraction_bits: 10 };
/// Bits of an f32 behind a tf32.
const TF32_UNUSED: u32 = 13;

/// Chooses such a conversion; None for the others, whose words are then all there still. Gives the
/// architecture that brought it, too.
pub fn select(words: &mut Words<'_>) -> Option<(Compute, u32)> {
    let packs = words.take("pack");
    if packs {
        return pack(words);
    }
    let target = words.take_any(&["tf32", "e4m3x2", "e5m2x2"])?;
    let (rounding, architecture) = words.take_map(|word| {
        Some(match word {
            "rna" => (Rounding::NearestAway, 80),
            "rn" => (Rounding::Nearest, 90),
            "rz" => (Rounding::Zero, 90),
            _ => return None,
        })
    })?;
    let finite = if words.take("satfinite") { SATFINITE } else { 0 };
    let relu = if words.take("relu") { flags::RELU } else { 0 };
    let other = words.take_type()?;
    if target == "tf32" {
        let extra = rounding.code() | finite | relu;
        let compute = (other == T::F32).then(|| Compute::uniform(to_tf32, T::F32, 1))?;
        return Some((Compute { dst: T::B32, ..compute }.with_extra(extra), architecture));
    }
    let is_e5m2 = target == "e5m2x2";
    if rounding != Rounding::Nearest {
        return None;
    }
    let compute = match (other, finite != 0) {
        (T::F32, true) => {
            let exec = if is_e5m2 { from_singles::<true> } else { from_singles::<false> };
            Compute::mixed(exec, T::B16, &[T::F32, T::F32])
        }
        // `.satfinite` says which way: narrowing must have it, widening has nothing to clamp.
        (T::F16x2, true) => {
            let exec = if is_e5m2 { from_halves::<true> } else { from_halves::<false> };
            Compute::mixed(exec, T::B16, &[T::F16x2])
        }
        (T::F16x2, false) => {
            let exec = if is_e5m2 { to_halves::<true> } else { to_halves::<false> };
            Compute::mixed(exec, T::F16x2, &[T::B16])
        }
        _ => return None,
    };
    Some((compute.with_extra(relu), 89))
}

/// `.relu`: what is below zero becomes +0, and so does -0; a NaN stays one.
fn relu(value: f32) -> f32 {
    if value > 0.0 || value.is_nan() { value } else { 0.0 }
}

/// `cvt.{rna,rn,rz}.tf32.f32`
fn to_tf32(r: &mut Registers, i: &Args, mask: u32) {
    let e = i.e;
    map1(r, i, mask, |a: f32| {
        let a = if e & flags::RELU != 0 { relu(a) } else { a };
        if a.is_nan() {
            return canonical(a).to_bits();
        }
        if a.is_infinite() {
            let largest = 0x7f7f_e000 | a.to_bits() & 0x8000_0000;
            return if e & SATFINITE != 0 { largest } else { a.to_bits() };
        }
        let bits = Exact::from_f64(a.into()).encode(TF32, Rounding::from_code(e)) as u32;
        let infinite = bits & 0x3_ffff == 0x3_fc00;
        let bits = if infinite && e & SATFINITE != 0 { bits - 1 } else { bits };
        bits << TF32_UNUSED
    });
}

const fn format(is_e5m2: bool) -> Minifloat {
    if is_e5m2 { E5M2 } else { E4M3 }
}

/// A float as a byte.
fn byte<const IS_E5M2: bool>(value: f32, e: u32) -> u16 {
    let value = if e & flags::RELU != 0 { relu(value) } else { value };
    format(IS_E5M2).encode(value).into()
}

/// `cvt.rn.satfinite.e4m3x2.f32 d, a, b`: a to the upper half.
fn from_singles<const IS_E5M2: bool>(r: &mut Registers, i: &Args, mask: u32) {
    let e = i.e;
    map2(r, i, mask, |a: f32, b: f32| byte::<IS_E5M2>(a, e) << 8 | byte::<IS_E5M2>(b, e));
}

/// `cvt.rn.satfinite.e4m3x2.f16x2`
fn from_halves<const IS_E5M2: bool>(r: &mut Registers, i: &Args, mask: u32) {
    let e = i.e;
    map1(r, i, mask, |a: u32| {
        let half = |bits: u32| half::f16::from_bits(bits as u16).to_f32();
        byte::<IS_E5M2>(half(a >> 16), e) << 8 | byte::<IS_E5M2>(half(a), e)
    });
}

/// `cvt.rn.f16x2.e4m3x2`: every 8-bit float is an f16.
fn to_halves<const IS_E5M2: bool>(r: &mut Registers, i: &Args, mask: u32) {
    let pairs = *r.get::<u16>(i.a);
    let halves = [0, 8].map(|shift| {
        let values: [f32; LANES] = std::array::from_fn(|lane| {
            let value = format(IS_E5M2).decode((pairs[lane] >> shift) as u8);
            if i.e & flags::RELU != 0 { relu(value) } else { value }
        });
        narrow::<false>(&values)
    });
    let mut d = [0; LANES];
    for lane in 0..LANES {
        d[lane] = u32::from(halves[1][lane]) << 16 | u32::from(halves[0][lane]);
    }
    r.put(i.d, &d, mask);
}

/// `cvt.pack.sat.convert.s32{.b32}`: a and b, clamped, side by side; c above them.
fn pack(words: &mut Words<'_>) -> Option<(Compute, u32)> {
    let (bits, signed) = words.take_map(|word| {
        Some(match word {
            "u16" => (16, false),
            "s16" => (16, true),
            "u8" => (8, false),
            "s8" => (8, true),
            "u4" => (4, false),
            "s4" => (4, true),
            "u2" => (2, false),
            "s2" => (2, true),
            _ => return None,
        })
    })?;
    if !words.take("sat") || !words.take("s32") {
        return None;
    }
    let exec: AluFn = match (bits, signed) {
        (16, false) => |r, i, mask| map2(r, i, mask, |a, b| packed::<16, false>(a, b, 0)),
        (16, true) => |r, i, mask| map2(r, i, mask, |a, b| packed::<16, true>(a, b, 0)),
        (8, false) => |r, i, mask| map3(r, i, mask, packed::<8, false>),
        (8, true) => |r, i, mask| map3(r, i, mask, packed::<8, true>),
        (4, false) => |r, i, mask| map3(r, i, mask, packed::<4, false>),
        (4, true) => |r, i, mask| map3(r, i, mask, packed::<4, true>),
        (2, false) => |r, i, mask| map3(r, i, mask, packed::<2, false>),
        _ => |r, i, mask| map3(r, i, mask, packed::<2, true>),
    };
    let mut sources = vec![T::S32, T::S32];
    if bits < 16 {
        if !words.take("b32") {
            return None;
        }
        sources.push(T::B32);
    }
    Some((Compute::mixed(exec, T::B32, &sources), if bits < 8 { 75 } else { 72 }))
}

/// The lower bits of c, then a, then b in the lowest place.
fn packed<const BITS: u32, const SIGNED: bool>(a: i32, b: i32, c: u32) -> u32 {
    let (low, high) =
        if SIGNED { (-1 << (BITS - 1), (1 << (BITS - 1)) - 1) } else { (0, (1 << BITS) - 1) };
    let keep = (1_u32 << BITS) - 1;
    let part = |value: i32| value.clamp(low, high) as u32 & keep;
    let above = c.checked_shl(2 * BITS).unwrap_or(0);
    above | part(a) << BITS | part(b)
}
