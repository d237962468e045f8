//! `cvt`: quick ways for the common pairs, one general way for all others.

use super::float::{canonical, flags, flush, format_of, saturate};
use super::half;
use super::registers::{AluFn, Args, LANES, Registers, map1};
use super::rounding::{self, Exact, Rounding};
use crate::ast::ScalarType as T;
use crate::decode::select::{Compute, Words, register_bytes, size_bytes};

macro_rules! alu {
    ($f:expr) => {{
        fn run(r: &mut Registers, i: &Args, mask: u32) {
            map1(r, i, mask, $f);
        }
        run as AluFn
    }};
}

/// Layout of `Args::e` for the general way, above the bits of [`flags`].
mod layout {
    pub const TO_INTEGRAL: u32 = 1 << 6;
    pub const SATFINITE: u32 = 1 << 7;
    pub const DST_TYPE: u32 = 8;
    pub const SRC_TYPE: u32 = 13;
    pub const DST_WIDTH: u32 = 18;
    pub const SRC_WIDTH: u32 = 20;
}

/// Types in the order of their codes.
const TYPES: [T; 17] = [
    T::U8,
    T::S8,
    T::U16,
    T::S16,
    T::U32,
    T::S32,
    T::U64,
    T::S64,
    T::F16,
    T::BF16,
    T::F32,
    T::F64,
    T::B8,
    T::B16,
    T::B32,
    T::B64,
    T::F16x2,
];

fn type_code(ty: T) -> Option<u32> {
    TYPES.iter().position(|known| *known == ty).map(|code| code as u32)
}

/// Operands of a `cvt`.
struct Request {
    dst: T,
    src: T,
    rounding: Option<Rounding>,
    to_integral: bool,
    flags: u32,
}

/// Chooses a conversion. `widths` are the bytes of the registers given: they may be wider than
/// the types.
pub fn select(words: &mut Words<'_>, widths: (u8, u8)) -> Option<Compute> {
    let integral = words.take_map(|word| match word {
        "rni" => Some(Rounding::Nearest),
        "rzi" => Some(Rounding::Zero),
        "rmi" => Some(Rounding::Down),
        "rpi" => Some(Rounding::Up),
        _ => None,
    });
    let rounding = words.take_map(|word| match word {
        "rn" => Some(Rounding::Nearest),
        "rna" => Some(Rounding::NearestAway),
        "rz" => Some(Rounding::Zero),
        "rm" => Some(Rounding::Down),
        "rp" => Some(Rounding::Up),
        _ => None,
    });
    let ftz = if words.take("ftz") { flags::FTZ } else { 0 };
    let sat = if words.take("sat") { flags::SAT } else { 0 };
    let relu = if words.take("relu") { flags::RELU } else { 0 };
    let finite = if words.take("satfinite") { layout::SATFINITE } else { 0 };
    let request = Request {
        dst: words.take_type()?,
        src: words.take_type()?,
        rounding: integral.or(rounding),
        to_integral: integral.is_some(),
        flags: ftz | sat | relu | finite,
    };
    if matches!(request.dst, T::F16x2 | T::BF16x2) {
        return pack(&request);
    }
    let exact_widths = (register_bytes(request.dst), register_bytes(request.src)) == widths;
    if request.flags == 0
        && exact_widths
        && let Some(exec) = quick(&request)
    {
        return Some(Compute::mixed(exec, request.dst, &[request.src]).of_any_width());
    }
    if request.flags == 0
        && let Some(exec) = quick_extension(&request, widths)
    {
        return Some(Compute::mixed(exec, request.dst, &[request.src]).of_any_width());
    }
    let width_code = |bytes: u8| u32::from(bytes).trailing_zeros() - 1;
    let extra = request.flags
        | request.rounding.map_or(0, Rounding::code)
        | if request.to_integral { layout::TO_INTEGRAL } else { 0 }
        | type_code(request.dst)? << layout::DST_TYPE
        | type_code(request.src)? << layout::SRC_TYPE
        | width_code(widths.0) << layout::DST_WIDTH
        | width_code(widths.1) << layout::SRC_WIDTH;
    let compute = Compute::mixed(general, request.dst, &[request.src]);
    Some(compute.of_any_width().with_extra(extra))
}

/// The common pairs, without flags, between registers of the types' own widths.
fn quick(request: &Request) -> Option<AluFn> {
    use T::{B16, B32, B64, BF16, F16, F32, F64, S16, S32, S64, U16, U32, U64};
    let near = matches!(request.rounding, None | Some(Rounding::Nearest));
    let float_to_integer = request.to_integral && request.rounding == Some(Rounding::Zero);
    Some(match (request.dst, request.src) {
        (U64 | S64 | B64, U32 | B32) => alu!(|a: u32| u64::from(a)),
        (U64 | S64 | B64, S32) => alu!(|a: i32| i64::from(a)),
        (U32 | S32 | B32, U64 | S64 | B64) => alu!(|a: u64| a as u32),
        (U32 | S32 | B32, U16 | B16) => alu!(|a: u16| u32::from(a)),
        (U32 | S32 | B32, S16) => alu!(|a: i16| i32::from(a)),
        (U16 | S16 | B16, U32 | S32 | B32) => alu!(|a: u32| a as u16),
        (U32 | S32, U32 | S32) => alu!(|a: u32| a),
        (U64 | S64, U64 | S64) => alu!(|a: u64| a),
        (U16 | S16, U16 | S16) => alu!(|a: u16| a),
        (F32, S32) if near => alu!(|a: i32| a as f32),
        (F32, U32) if near => alu!(|a: u32| a as f32),
        (F64, S32) => alu!(|a: i32| f64::from(a)),
        (F64, U32) => alu!(|a: u32| f64::from(a)),
        (S32, F32) if float_to_integer => alu!(|a: f32| a as i32),
        (U32, F32) if float_to_integer => alu!(|a: f32| a as u32),
        // Moves: NaNs stay what they are.
        (F32, F32) if request.rounding.is_none() => alu!(|a: u32| a),
        (F64, F64) if request.rounding.is_none() => alu!(|a: u64| a),
        (F64, F32) => alu!(|a: f32| f64::from(a)),
        (F32, F64) if near && !request.to_integral => alu!(|a: f64| canonical(a as f32)),
        (F16 | BF16, F32) | (F32, F16 | BF16) if near && !request.to_integral => {
            half::convert(request.dst, request.src)?
        }
        _ => return None,
    })
}

/// Bytes and 16-bit integers in wider registers, extended to a whole register.
fn quick_extension(request: &Request, (to, from): (u8, u8)) -> Option<AluFn> {
    if format_of(request.dst).is_some() || size_bytes(request.dst) != u32::from(to) {
        return None;
    }
    Some(match (to, from, request.src) {
        (2, 2, T::S8) => alu!(|a: u16| i16::from(a as i8)),
        (2, 2, T::U8 | T::B8) => alu!(|a: u16| a & 0xff),
        (4, 2, T::S8) => alu!(|a: u16| i32::from(a as i8)),
        (4, 2, T::U8 | T::B8) => alu!(|a: u16| u32::from(a) & 0xff),
        (4, 4, T::S8) => alu!(|a: u32| i32::from(a as i8)),
        (4, 4, T::U8 | T::B8) => alu!(|a: u32| a & 0xff),
        (4, 4, T::S16) => alu!(|a: u32| i32::from(a as i16)),
        (4, 4, T::U16 | T::B16) => alu!(|a: u32| a & 0xffff),
        (8, 2, T::S16) => alu!(|a: u16| i64::from(a as i16)),
        (8, 2, T::U16 | T::B16) => alu!(|a: u16| u64::from(a)),
        (2, 8, T::U64 | T::S64 | T::B64) => alu!(|a: u64| a as u16),
        _ => return None,
    })
}

/// `cvt.rn.bf16x2.f32 d, a, b`: a to the upper half.
fn pack(request: &Request) -> Option<Compute> {
    fn general_pack(r: &mut Registers, i: &Args, mask: u32) {
        let format = if i.e >> layout::DST_TYPE & 1 == 1 { rounding::BF16 } else { rounding::F16 };
        let one = |value: f32| {
            let value = if i.e & flags::RELU != 0 && value < 0.0 { 0.0 } else { value };
            float_bits(f64::from(value), format, i.e) as u32
        };
        let mut d = [0_u32; LANES];
        for (lane, d) in d.iter_mut().enumerate() {
            *d = one(r.get::<f32>(i.a)[lane]) << 16 | one(r.get::<f32>(i.b)[lane]);
        }
        r.put(i.d, &d, mask);
    }
    if request.src != T::F32 {
        return None;
    }
    let sources = [T::F32, T::F32];
    if request.flags == 0 && request.rounding == Some(Rounding::Nearest) {
        let exec = half::convert(request.dst, request.src)?;
        return Some(Compute::mixed(exec, request.dst, &sources));
    }
    let extra = request.flags
        | request.rounding.map_or(0, Rounding::code)
        | u32::from(request.dst == T::BF16x2) << layout::DST_TYPE;
    Some(Compute::mixed(general_pack, request.dst, &sources).with_extra(extra))
}

/// A float to a format's bits, by the flags and the rounding of `e`.
fn float_bits(value: f64, format: rounding::Format, e: u32) -> u64 {
    let bits = rounding::from_f64(value, format, Rounding::from_code(e));
    let infinity = ((1_u64 << format.exponent_bits) - 1) << format.fraction_bits;
    let sign = 1_u64 << (format.exponent_bits + format.fraction_bits);
    if e & layout::SATFINITE != 0 && bits & !sign == infinity { bits - 1 } else { bits }
}

/// Any scalar conversion, a lane at a time.
fn general(r: &mut Registers, i: &Args, mask: u32) {
    let dst = TYPES[(i.e >> layout::DST_TYPE & 31) as usize];
    let src = TYPES[(i.e >> layout::SRC_TYPE & 31) as usize];
    let mut d = [0_u64; LANES];
    for (lane, d) in d.iter_mut().enumerate() {
        let raw = match i.e >> layout::SRC_WIDTH & 3 {
            0 => u64::from(r.get::<u16>(i.a)[lane]),
            1 => u64::from(r.get::<u32>(i.a)[lane]),
            _ => r.get::<u64>(i.a)[lane],
        };
        *d = one(raw, dst, src, i.e);
    }
    match i.e >> layout::DST_WIDTH & 3 {
        0 => r.put(i.d, &d.map(|x| x as u16), mask),
        1 => r.put(i.d, &d.map(|x| x as u32), mask),
        _ => r.put(i.d, &d, mask),
    }
}

/// One value: bits of `src` to bits of `dst`, extended to 64 as the type is signed or not.
fn one(raw: u64, dst: T, src: T, e: u32) -> u64 {
    let sat = e & flags::SAT != 0;
    match (format_of(dst), format_of(src)) {
        (None, None) => {
            let value = integer(raw, src);
            let (low, high) = range(dst);
            extend(if sat { value.clamp(low, high) } else { value } as u64, dst)
        }
        (Some(format), None) => {
            let exact = Exact::from_integer(integer(raw, src));
            let bits = exact.encode(format, Rounding::from_code(e));
            if sat { saturated(bits, format) } else { bits }
        }
        (None, Some(format)) => {
            let value = input(raw, format, e);
            if value.is_nan() {
                let wide = src == T::F64 || size_bytes(dst) == 8;
                let bits = size_bytes(dst) * 8;
                return if wide { extend(1 << (bits - 1), dst) } else { 0 };
            }
            let (low, high) = range(dst);
            let whole = integral(value, Rounding::from_code(e)) as i128;
            extend(whole.clamp(low, high) as u64, dst)
        }
        (Some(to), Some(from)) => {
            let value = input(raw, from, e);
            let value = if e & layout::TO_INTEGRAL != 0 {
                integral(value, Rounding::from_code(e))
            } else {
                value
            };
            let value = if e & flags::RELU != 0 && value < 0.0 { 0.0 } else { value };
            let bits = float_bits(value, to, e);
            let bits = if e & flags::FTZ != 0 && to == rounding::F32 {
                u64::from(flush(f32::from_bits(bits as u32)).to_bits())
            } else {
                bits
            };
            if sat { saturated(bits, to) } else { bits }
        }
    }
}

/// A float source; `.ftz` counts for f32 alone.
fn input(raw: u64, format: rounding::Format, e: u32) -> f64 {
    if e & flags::FTZ != 0 && format == rounding::F32 {
        return f64::from(flush(f32::from_bits(raw as u32)));
    }
    rounding::to_f64(raw, format)
}

/// `.sat` of a float result.
fn saturated(bits: u64, format: rounding::Format) -> u64 {
    rounding::from_f64(saturate(rounding::to_f64(bits, format)), format, Rounding::Nearest)
}

/// Rounds to a whole number.
fn integral(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::NearestAway => value.round(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// Bits of an integer type as its value.
fn integer(raw: u64, ty: T) -> i128 {
    match ty {
        T::S8 => i128::from(raw as i8),
        T::S16 => i128::from(raw as i16),
        T::S32 => i128::from(raw as i32),
        T::S64 => i128::from(raw as i64),
        T::U8 | T::B8 => i128::from(raw as u8),
        T::U16 | T::B16 => i128::from(raw as u16),
        T::U32 | T::B32 => i128::from(raw as u32),
        _ => i128::from(raw),
    }
}

/// Least and greatest value of an integer type.
fn range(ty: T) -> (i128, i128) {
    let bits = size_bytes(ty) * 8;
    match ty {
        T::S8 | T::S16 | T::S32 | T::S64 => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => (0, (1 << bits) - 1),
    }
}

/// The low bits of a value of `ty`, filled up by its sign where it has one.
pub fn extend(raw: u64, ty: T) -> u64 {
    integer(raw, ty) as u64
}
