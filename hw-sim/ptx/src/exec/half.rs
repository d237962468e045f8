//! f16 and bf16 instructions, alone and in pairs.
//!
//! A sum or product of two such numbers, computed in f32 and rounded again, is the correctly
//! rounded one: f32 has more than twice the bits. A fused multiply-add is not, and takes the
//! exact way.

use half::slice::HalfFloatSliceExt;

use super::float::{Mode, canonical, flags, maximum, minimum, saturate, strict};
use super::registers::{AluFn, Args, LANES, Registers, TestFn, map2};
use super::rounding::{self, Format, Rounding};
use crate::ast::ScalarType as T;
use crate::decode::select::Compute;

/// Lanes of 16 bits.
pub type Halves = [u16; LANES];

/// Widens lanes.
#[inline(always)]
pub fn widen<const BF16: bool>(halves: &Halves) -> [f32; LANES] {
    let mut wide = [0.0; LANES];
    if BF16 {
        for lane in 0..LANES {
            wide[lane] = f32::from_bits(u32::from(halves[lane]) << 16);
        }
    } else {
        let halves: &[half::f16; LANES] = bytemuck::cast_ref(halves);
        halves.convert_to_f32_slice(&mut wide);
    }
    wide
}

/// Rounds lanes to nearest, NaNs to the device's own.
#[inline(always)]
pub fn narrow<const BF16: bool>(wide: &[f32; LANES]) -> Halves {
    let mut halves = [0_u16; LANES];
    if BF16 {
        for lane in 0..LANES {
            let bits = wide[lane].to_bits();
            let even = bits >> 16 & 1;
            let rounded = (bits.wrapping_add(0x7fff + even) >> 16) as u16;
            halves[lane] = if wide[lane].is_nan() { 0x7fff } else { rounded };
        }
    } else {
        let out: &mut [half::f16; LANES] = bytemuck::cast_mut(&mut halves);
        out.convert_from_f32_slice(wide);
        for half in &mut halves {
            *half = if *half & 0x7fff > 0x7c00 { 0x7fff } else { *half };
        }
    }
    halves
}

/// Both halves of 32-bit lanes.
#[inline(always)]
fn unpack(words: &[u32; LANES]) -> [Halves; 2] {
    let mut halves = [[0; LANES]; 2];
    for lane in 0..LANES {
        halves[0][lane] = words[lane] as u16;
        halves[1][lane] = (words[lane] >> 16) as u16;
    }
    halves
}

/// Runs `f` on whole rows of halves, once or for both halves of packed words.
#[inline(always)]
fn run_rows<const PACKED: bool>(
    r: &mut Registers,
    i: &Args,
    mask: u32,
    f: impl Fn(&Halves, &Halves, &Halves) -> Halves,
) {
    if PACKED {
        let a = unpack(r.get(i.a));
        let (b, c) = (unpack(r.get(i.b)), unpack(r.get(i.c)));
        let low = f(&a[0], &b[0], &c[0]);
        let high = f(&a[1], &b[1], &c[1]);
        let mut d = [0_u32; LANES];
        for lane in 0..LANES {
            d[lane] = u32::from(high[lane]) << 16 | u32::from(low[lane]);
        }
        r.put(i.d, &d, mask);
    } else {
        let d = f(r.get(i.a), r.get(i.b), r.get(i.c));
        r.put(i.d, &d, mask);
    }
}

/// An operation through f32. Unused operands repeat the first.
#[inline(always)]
fn through_single<const BF16: bool, const PACKED: bool>(
    r: &mut Registers,
    i: &Args,
    mask: u32,
    f: impl Fn(f32, f32) -> f32,
) {
    let bits = i.e;
    run_rows::<PACKED>(r, i, mask, |a, b, _| {
        let (a, b) = (widen::<BF16>(a), widen::<BF16>(b));
        let mut d = [0.0; LANES];
        for lane in 0..LANES {
            d[lane] = if bits & (flags::FTZ | flags::SAT) == 0 {
                f(a[lane], b[lane])
            } else {
                let value = f(flush_half(a[lane], bits), flush_half(b[lane], bits));
                let value = flush_half(value, bits);
                if bits & flags::SAT != 0 { saturate(value.into()) as f32 } else { value }
            };
        }
        narrow::<BF16>(&d)
    });
}

/// `.ftz` of a half: what is subnormal in f16 becomes zero.
fn flush_half(value: f32, bits: u32) -> f32 {
    let subnormal = value.abs() < 6.103_515_6e-5;
    if bits & flags::FTZ != 0 && subnormal { 0.0_f32.copysign(value) } else { value }
}

/// `a × b + c` of two halves' values, cut to an f32 whose last bit is set if anything was cut off
/// (rounding to odd): to round that to a half once more gives what rounding once would.
#[inline(always)]
fn fused_to_odd(a: f32, b: f32, c: f32) -> f32 {
    let (a, b, c) = (f64::from(a), f64::from(b), f64::from(c));
    // Exact: a half has at most 11 bits.
    let product = a * b;
    let sum = product + c;
    // What the sum lost, exactly (Knuth's two-sum).
    let part = sum - product;
    let lost = (product - (sum - part)) + (c - part);
    let bits = sum.to_bits();
    let away = (lost > 0.0) == (sum > 0.0);
    let odd = if away { bits | 1 } else { bits.wrapping_sub(1) };
    let inexact = lost != 0.0 && sum.is_finite() && bits & 1 == 0;
    let sum = f64::from_bits(if inexact { odd } else { bits });
    let near = sum as f32;
    let beyond = f64::from(near).abs() > sum.abs();
    let cut = near.to_bits().wrapping_sub(u32::from(beyond));
    f32::from_bits(if f64::from(near) == sum { near.to_bits() } else { cut | 1 })
}

fn fused<const BF16: bool, const PACKED: bool>(r: &mut Registers, i: &Args, mask: u32) {
    let format: Format = if BF16 { rounding::BF16 } else { rounding::F16 };
    let bits = i.e;
    run_rows::<PACKED>(r, i, mask, |a, b, c| {
        if bits == 0 {
            let (a, b, c) = (widen::<BF16>(a), widen::<BF16>(b), widen::<BF16>(c));
            let mut d = [0.0; LANES];
            for lane in 0..LANES {
                d[lane] = fused_to_odd(a[lane], b[lane], c[lane]);
            }
            return narrow::<BF16>(&d);
        }
        let mut d = [0; LANES];
        for lane in 0..LANES {
            let value = |x: u16| {
                let wide = rounding::to_f64(x.into(), format);
                f64::from(flush_half(wide as f32, bits))
            };
            let (x, y, z) = (value(a[lane]), value(b[lane]), value(c[lane]));
            let raw = rounding::fused(x, y, z, format, Rounding::Nearest);
            d[lane] = finished(raw as u16, format, bits);
        }
        d
    });
}

/// A product with `.ftz` or `.sat`: the first looks at what is rounded already.
fn product<const BF16: bool, const PACKED: bool>(r: &mut Registers, i: &Args, mask: u32) {
    let format: Format = if BF16 { rounding::BF16 } else { rounding::F16 };
    let bits = i.e;
    run_rows::<PACKED>(r, i, mask, |a, b, _| {
        let (a, b) = (widen::<BF16>(a), widen::<BF16>(b));
        std::array::from_fn(|lane| {
            let value = |x: f32| f64::from(flush_half(x, bits));
            let (a, b) = (value(a[lane]), value(b[lane]));
            finished(rounding::product(a, b, format, Rounding::Nearest) as u16, format, bits)
        })
    });
}

/// Applies `.ftz`, `.sat` and `.relu` to a result.
fn finished(raw: u16, format: Format, bits: u32) -> u16 {
    if bits & (flags::FTZ | flags::SAT | flags::RELU) == 0 {
        return raw;
    }
    let value = rounding::to_f64(raw.into(), format);
    let value = f64::from(flush_half(value as f32, bits));
    if bits & flags::SAT != 0 {
        return rounding::from_f64(saturate(value), format, Rounding::Nearest) as u16;
    }
    if bits & flags::RELU != 0 && value < 0.0 {
        return 0;
    }
    rounding::from_f64(value, format, Rounding::Nearest) as u16
}

/// Chooses a half-precision instruction.
pub fn select(opcode: &str, mode: Mode, ty: T) -> Option<Compute> {
    let sources = match opcode {
        "add" | "sub" | "mul" | "min" | "max" => 2,
        "fma" => 3,
        "abs" | "neg" | "ex2" | "tanh" => 1,
        _ => return None,
    };
    let exec = match ty {
        T::F16 => of::<false, false>(opcode, mode)?,
        T::F16x2 => of::<false, true>(opcode, mode)?,
        T::BF16 => of::<true, false>(opcode, mode)?,
        T::BF16x2 => of::<true, true>(opcode, mode)?,
        _ => return None,
    };
    Some(Compute::uniform(exec, ty, sources).with_extra(mode.bits()))
}

fn of<const BF16: bool, const PACKED: bool>(opcode: &str, mode: Mode) -> Option<AluFn> {
    /// `$f` through f32 on the chosen kind of half.
    macro_rules! through {
        ($f:expr) => {{
            fn run<const BF16: bool, const PACKED: bool>(r: &mut Registers, i: &Args, mask: u32) {
                through_single::<BF16, PACKED>(r, i, mask, $f);
            }
            run::<BF16, PACKED> as AluFn
        }};
    }
    /// An operation that rounds nothing, with the device's NaN.
    macro_rules! signs {
        ($operator:tt, $bits:literal) => {{
            fn run<const BF16: bool, const PACKED: bool>(r: &mut Registers, i: &Args, mask: u32) {
                let (infinity, least) = if BF16 { (0x7f80, 0x80) } else { (0x7c00, 0x400) };
                let ftz = i.e & flags::FTZ != 0;
                run_rows::<PACKED>(r, i, mask, |a, _, _| {
                    a.map(|half| match half & 0x7fff {
                        magnitude if magnitude > infinity => 0x7fff,
                        magnitude if ftz && magnitude < least => (half & 0x8000) $operator $bits,
                        _ => half $operator $bits,
                    })
                });
            }
            run::<BF16, PACKED> as AluFn
        }};
    }
    let nan = mode.propagate_nan;
    Some(match opcode {
        "add" => through!(|a, b| a + b),
        "sub" => through!(|a, b| a - b),
        "mul" if mode.bits() != 0 => product::<BF16, PACKED>,
        "mul" => through!(|a, b| a * b),
        "fma" => fused::<BF16, PACKED>,
        "min" if nan => through!(|a, b| strict(a, b, minimum)),
        "max" if nan => through!(|a, b| strict(a, b, maximum)),
        "min" => through!(minimum),
        "max" => through!(maximum),
        "abs" => signs!(&, 0x7fff),
        "neg" => signs!(^, 0x8000),
        "ex2" => through!(|a, _| canonical(a.exp2())),
        "tanh" => through!(|a, _| canonical(a.tanh())),
        _ => return None,
    })
}

/// The comparison that an operator word means on single halves: through f32 copies.
// With NaNs, `!(a >= b)` is not `a < b`; the lints know only ordered numbers.
#[allow(clippy::neg_cmp_op_on_partial_ord, clippy::double_comparisons)]
#[allow(clippy::nonminimal_bool)]
pub fn comparison(operator: &str, ty: T) -> Option<TestFn> {
    macro_rules! of {
        ($bf16:literal) => {{
            macro_rules! test {
                ($g:expr) => {{
                    fn run(r: &Registers, (a, b): (u32, u32), _: u32) -> u32 {
                        let g: fn(f32, f32) -> bool = $g;
                        let a = widen::<$bf16>(r.get(a));
                        let b = widen::<$bf16>(r.get(b));
                        (0..LANES).fold(0, |bits, k| bits | u32::from(g(a[k], b[k])) << k)
                    }
                    run as TestFn
                }};
            }
            match operator {
                "eq" => test!(|a, b| a == b),
                "ne" => test!(|a, b| a < b || a > b),
                "lt" => test!(|a, b| a < b),
                "le" => test!(|a, b| a <= b),
                "gt" => test!(|a, b| a > b),
                "ge" => test!(|a, b| a >= b),
                "equ" => test!(|a, b| !(a < b || a > b)),
                "neu" => test!(|a, b| a != b),
                "ltu" => test!(|a, b| !(a >= b)),
                "leu" => test!(|a, b| !(a > b)),
                "gtu" => test!(|a, b| !(a <= b)),
                "geu" => test!(|a, b| !(a < b)),
                "num" => test!(|a, b| !a.is_nan() && !b.is_nan()),
                "nan" => test!(|a, b| a.is_nan() || b.is_nan()),
                _ => return None,
            }
        }};
    }
    match ty {
        T::F16 => Some(of!(false)),
        T::BF16 => Some(of!(true)),
        _ => None,
    }
}

/// `cvt.rn.{f16,bf16}.f32` and back, whole rows at once.
pub fn convert(dst: T, src: T) -> Option<AluFn> {
    fn to<const BF16: bool>(r: &mut Registers, i: &Args, mask: u32) {
        let d = narrow::<BF16>(r.get(i.a));
        r.put(i.d, &d, mask);
    }
    fn from<const BF16: bool>(r: &mut Registers, i: &Args, mask: u32) {
        let mut d = widen::<BF16>(r.get(i.a));
        for value in &mut d {
            *value = canonical(*value);
        }
        r.put(i.d, &d, mask);
    }
    /// The first source is the upper half.
    fn pack<const BF16: bool>(r: &mut Registers, i: &Args, mask: u32) {
        let high = narrow::<BF16>(r.get(i.a));
        let low = narrow::<BF16>(r.get(i.b));
        let mut d = [0_u32; LANES];
        for lane in 0..LANES {
            d[lane] = u32::from(high[lane]) << 16 | u32::from(low[lane]);
        }
        r.put(i.d, &d, mask);
    }
    Some(match (dst, src) {
        (T::F16, T::F32) => to::<false>,
        (T::BF16, T::F32) => to::<true>,
        (T::F32, T::F16) => from::<false>,
        (T::F32, T::BF16) => from::<true>,
        (T::F16x2, T::F32) => pack::<false>,
        (T::BF16x2, T::F32) => pack::<true>,
        _ => return None,
    })
}

/// The type of each half of a packed type.
pub const fn half_of(ty: T) -> Option<T> {
    match ty {
        T::F16x2 => Some(T::F16),
        T::BF16x2 => Some(T::BF16),
        _ => None,
    }
}

/// Joins two 16-bit registers into one of 32 (first the lower half).
pub fn join(r: &mut Registers, i: &Args, mask: u32) {
    map2(r, i, mask, |low: u16, high: u16| u32::from(high) << 16 | u32::from(low));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The quick fused multiply-add against the exact one, on every kind of operand.
    #[test]
    fn quick_fused_is_exact() {
        fn check<const BF16: bool>(format: Format) {
            let mut state = 1_u64;
            for _ in 0..20_000 {
                let operands: [Halves; 3] = std::array::from_fn(|_| {
                    std::array::from_fn(|_| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        // Half of the operands lie near each other: sums that cancel or tie.
                        let random = (state >> 48) as u16;
                        if state >> 40 & 1 == 0 { random } else { random & 0x83ff | 0x3c00 }
                    })
                });
                let [a, b, c] = [0, 1, 2].map(|operand: usize| widen::<BF16>(&operands[operand]));
                let quick: [f32; LANES] =
                    std::array::from_fn(|lane| fused_to_odd(a[lane], b[lane], c[lane]));
                let quick = narrow::<BF16>(&quick);
                for lane in 0..LANES {
                    let [x, y, z] = [a, b, c].map(|operand| f64::from(operand[lane]));
                    let exact = rounding::fused(x, y, z, format, Rounding::Nearest) as u16;
                    assert_eq!(quick[lane], exact, "{x:e} * {y:e} + {z:e}");
                }
            }
        }
        check::<false>(rounding::F16);
        check::<true>(rounding::BF16);
    }
}
