//! f32 and f64 instructions. To nearest they are the host's; other directions go through
//! [`super::rounding`].

use super::approximate;
use super::registers::{AluFn, Args, FULL, LANES, Registers, TestFn, map1, map2, map3, test2};
use super::rounding::{self, Format, Rounding};
use crate::ast::ScalarType as T;
use crate::decode::select::{Compute, Words};
use wide::f32x8;

macro_rules! alu {
    ($map:ident, $f:expr) => {{
        fn run(r: &mut Registers, i: &Args, mask: u32) {
            $map(r, i, mask, $f);
        }
        run as AluFn
    }};
}

/// Makes a function pointer of [`run_rounded`] with one operation.
macro_rules! rounded {
    ($ty:ident, $f:expr) => {{
        fn run(r: &mut Registers, i: &Args, mask: u32) {
            run_rounded(r, i, mask, T::$ty, $f);
        }
        run as AluFn
    }};
}

/// `Args::e` of an instruction with unusual rounding: bits 0-2 the direction, then these.
pub mod flags {
    /// `.ftz`
    pub const FTZ: u32 = 8;
    /// `.sat`
    pub const SAT: u32 = 16;
    /// `.relu`
    pub const RELU: u32 = 32;
}

/// The NaN that the device writes for every f32 result that is one.
#[inline(always)]
pub fn canonical(value: f32) -> f32 {
    // In integers: LLVM takes the freedom to keep any NaN where a float is selected.
    let bits = value.to_bits();
    let infinity = 0x7f80_0000;
    f32::from_bits(if bits & 0x7fff_ffff > infinity { 0x7fff_ffff } else { bits })
}

/// A result of double precision. Where it is a NaN, processors differ in whose NaN it is; here it
/// is that of the first operand that is one, made quiet, or else the one that is written for what
/// has no result.
#[inline(always)]
pub fn settled<const N: usize>(result: f64, operands: [f64; N]) -> f64 {
    const QUIET: u64 = 1 << 51;
    // In integers: LLVM takes the freedom to keep any NaN where a float is selected.
    let is_nan = |bits: u64| bits & (u64::MAX >> 1) > 0x7ff0_0000_0000_0000;
    let mut nan = 0xfff8_0000_0000_0000;
    for operand in operands.iter().rev() {
        let bits = operand.to_bits();
        nan = if is_nan(bits) { bits | QUIET } else { nan };
    }
    let bits = result.to_bits();
    f64::from_bits(if is_nan(bits) { nan } else { bits })
}

/// A subnormal becomes a zero of its sign.
#[inline(always)]
pub fn flush(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(value) } else { value }
}

/// `.sat`: to [0, 1], NaN to 0.
#[inline(always)]
pub fn saturate(value: f64) -> f64 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

/// The smaller; a NaN loses against a number, and -0 is below +0.
#[inline(always)]
pub fn minimum(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        return canonical(b);
    }
    let smaller = a < b || (a == b && a.is_sign_negative());
    if smaller || b.is_nan() { a } else { b }
}

/// The larger; a NaN loses against a number, and -0 is below +0.
#[inline(always)]
pub fn maximum(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        return canonical(b);
    }
    let larger = a > b || (a == b && a.is_sign_positive());
    if larger || b.is_nan() { a } else { b }
}

/// As [`minimum`], in double precision; of two NaNs the second one, made quiet.
#[inline(always)]
fn minimum_double(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        return settled(b, [b]);
    }
    if a < b || (a == b && a.is_sign_negative()) || b.is_nan() { a } else { b }
}

/// As [`maximum`], in double precision.
#[inline(always)]
fn maximum_double(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        return settled(b, [b]);
    }
    if a > b || (a == b && a.is_sign_positive()) || b.is_nan() { a } else { b }
}

/// How a float instruction was written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode {
    /// Direction.
    pub rounding: Option<Rounding>,
    /// `.ftz`
    pub ftz: bool,
    /// `.sat`
    pub sat: bool,
    /// `.relu`
    pub relu: bool,
    /// `.approx` or `.full`
    pub approximate: bool,
    /// `.NaN`: a NaN wins.
    pub propagate_nan: bool,
}

impl Mode {
    /// Takes the words that say how.
    pub fn take(words: &mut Words<'_>) -> Self {
        let rounding = words.take_map(|word| match word {
            "rn" => Some(Rounding::Nearest),
            "rz" => Some(Rounding::Zero),
            "rm" => Some(Rounding::Down),
            "rp" => Some(Rounding::Up),
            _ => None,
        });
        Self {
            rounding,
            ftz: words.take("ftz"),
            sat: words.take("sat"),
            relu: words.take("relu"),
            approximate: words.take_any(&["approx", "full"]).is_some(),
            propagate_nan: words.take("NaN"),
        }
    }

    /// As bits for `Args::e`.
    pub fn bits(self) -> u32 {
        self.rounding.map_or(0, Rounding::code)
            | if self.ftz { flags::FTZ } else { 0 }
            | if self.sat { flags::SAT } else { 0 }
            | if self.relu { flags::RELU } else { 0 }
    }

    /// Nothing but rounding to nearest?
    fn is_plain(self) -> bool {
        self.bits() == 0
    }
}

/// An f32 instruction to nearest, with the device's NaN: `$f` on numbers and on vectors of them.
macro_rules! settled {
    (|$($x:ident),+| $f:expr) => {{
        fn run(r: &mut Registers, i: &Args, mask: u32) {
            if mask == FULL {
                // In vectors: of arrays the compiler makes scalar code, by parts.
                let rows = [$(groups(r, settled!(@slot i $x))),+];
                let results = std::array::from_fn(|number| {
                    let [$($x),+] = rows.map(|row: [f32x8; GROUPS]| row[number]);
                    $f
                });
                return settle(r.get_mut(i.d), results);
            }
            settled!(@map $($x)+)(r, i, mask, |$($x: f32),+| canonical($f));
        }
        run as AluFn
    }};
    (@slot $i:ident a) => { $i.a };
    (@slot $i:ident b) => { $i.b };
    (@slot $i:ident c) => { $i.c };
    (@map a b) => { map2 };
    (@map a b c) => { map3 };
}

/// Vectors of eight lanes in a register.
pub const GROUPS: usize = LANES / 8;

#[inline(always)]
pub fn groups(r: &Registers, slot: u32) -> [f32x8; GROUPS] {
    let lanes = r.get::<f32>(slot).as_chunks().0;
    std::array::from_fn(|number| f32x8::new(lanes[number]))
}

/// Writes results. Those that are NaN are rare, so they are looked for all at once, before the
/// results are in memory, and written anew if there are any.
#[inline(always)]
pub fn settle(lanes: &mut [f32; LANES], results: [f32x8; GROUPS]) {
    let mut unordered = f32x8::ZERO;
    for (number, group) in results.into_iter().enumerate() {
        unordered |= group.simd_ne(group);
        lanes.as_chunks_mut().0[number] = group.to_array();
    }
    if unordered.to_bitmask() != 0 {
        rewrite(lanes);
    }
}

#[cold]
#[inline(never)]
fn rewrite(results: &mut [f32; LANES]) {
    *results = results.map(canonical);
}

/// Chooses an f32 or f64 instruction.
pub fn select(opcode: &str, mode: Mode, ty: T) -> Option<Compute> {
    let sources = match opcode {
        "add" | "sub" | "mul" | "div" | "min" | "max" | "copysign" => 2,
        "fma" | "mad" => 3,
        _ => 1,
    };
    let exec = match ty {
        T::F32 => single(opcode, mode)?,
        T::F64 => double(opcode, mode)?,
        _ => return None,
    };
    Some(Compute::uniform(exec, ty, sources).with_extra(mode.bits()))
}

fn single(opcode: &str, mode: Mode) -> Option<AluFn> {
    let plain = mode.is_plain();
    Some(match opcode {
        "add" if plain => settled!(|a, b| a + b),
        "sub" if plain => settled!(|a, b| a - b),
        "mul" if plain => settled!(|a, b| a * b),
        "fma" | "mad" if plain => settled!(|a, b, c| a.mul_add(b, c)),
        "div" if plain => alu!(map2, |a: f32, b: f32| canonical(a / b)),
        "sqrt" if plain => alu!(map1, |a: f32| canonical(a.sqrt())),
        "rcp" if plain => alu!(map1, |a: f32| canonical(1.0 / a)),
        "add" => rounded!(F32, |a, b, _, d| rounding::sum(a, b, rounding::F32, d)),
        "sub" => rounded!(F32, |a, b, _, d| rounding::sum(a, -b, rounding::F32, d)),
        "mul" => rounded!(F32, |a, b, _, d| rounding::product(a, b, rounding::F32, d)),
        "fma" | "mad" => rounded!(F32, |a, b, c, d| rounding::fused(a, b, c, rounding::F32, d)),
        "div" => rounded!(F32, |a, b, _, d| rounding::quotient(a, b, rounding::F32, d)),
        "rcp" => rounded!(F32, |a, _, _, d| rounding::quotient(1.0, a, rounding::F32, d)),
        "sqrt" => rounded!(F32, |a, _, _, d| rounding::square_root(a, rounding::F32, d)),
        // Additions to NVIDIA's assembler, which give their NaN.
        "abs" if !mode.ftz => alu!(map1, |a: f32| canonical(a.abs())),
        "neg" if !mode.ftz => alu!(map1, |a: f32| canonical(-a)),
        "abs" => alu!(map1, |a: f32| canonical(flush(a).abs())),
        "neg" => alu!(map1, |a: f32| canonical(-flush(a))),
        // The sign comes from the first operand, the magnitude from the second.
        "copysign" => {
            alu!(map2, |a: u32, b: u32| (a & 0x8000_0000) | (b & 0x7fff_ffff))
        }
        "min" | "max" => single_extreme(opcode == "max", mode),
        _ => return approximate::single(opcode, mode),
    })
}

fn single_extreme(max: bool, mode: Mode) -> AluFn {
    match (max, mode.propagate_nan, mode.ftz) {
        (false, false, false) => alu!(map2, minimum),
        (true, false, false) => alu!(map2, maximum),
        (false, false, true) => alu!(map2, |a: f32, b: f32| minimum(flush(a), flush(b))),
        (true, false, true) => alu!(map2, |a: f32, b: f32| maximum(flush(a), flush(b))),
        (false, true, false) => alu!(map2, |a: f32, b: f32| strict(a, b, minimum)),
        (true, true, false) => alu!(map2, |a: f32, b: f32| strict(a, b, maximum)),
        (false, true, true) => alu!(map2, |a: f32, b: f32| strict(flush(a), flush(b), minimum)),
        (true, true, true) => alu!(map2, |a: f32, b: f32| strict(flush(a), flush(b), maximum)),
    }
}

/// `.NaN`: either operand a NaN makes the result one.
#[inline(always)]
pub fn strict(a: f32, b: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    if a.is_nan() || b.is_nan() { canonical(f32::NAN) } else { f(a, b) }
}

fn double(opcode: &str, mode: Mode) -> Option<AluFn> {
    let plain = mode.is_plain();
    Some(match opcode {
        "add" if plain => alu!(map2, |a: f64, b: f64| settled(a + b, [a, b])),
        "sub" if plain => alu!(map2, |a: f64, b: f64| settled(a - b, [a, b])),
        "mul" if plain => alu!(map2, |a: f64, b: f64| settled(a * b, [a, b])),
        "fma" | "mad" if plain => {
            alu!(map3, |a: f64, b: f64, c: f64| settled(a.mul_add(b, c), [a, b, c]))
        }
        "div" if plain => alu!(map2, |a: f64, b: f64| settled(a / b, [a, b])),
        "sqrt" if plain => alu!(map1, |a: f64| settled(a.sqrt(), [a])),
        "rcp" if plain => alu!(map1, |a: f64| settled(1.0 / a, [a])),
        "rcp" if mode.approximate => alu!(map1, |a: f64| approximate::upper(a, |a| 1.0 / a)),
        "add" => rounded!(F64, |a, b, _, d| rounding::sum(a, b, rounding::F64, d)),
        "sub" => rounded!(F64, |a, b, _, d| rounding::sum(a, -b, rounding::F64, d)),
        "mul" => rounded!(F64, |a, b, _, d| rounding::product(a, b, rounding::F64, d)),
        "fma" | "mad" => rounded!(F64, |a, b, c, d| rounding::fused(a, b, c, rounding::F64, d)),
        "div" => rounded!(F64, |a, b, _, d| rounding::quotient(a, b, rounding::F64, d)),
        "rcp" => rounded!(F64, |a, _, _, d| rounding::quotient(1.0, a, rounding::F64, d)),
        "sqrt" => rounded!(F64, |a, _, _, d| rounding::square_root(a, rounding::F64, d)),
        "rsqrt" if mode.ftz => alu!(map1, |a: f64| approximate::upper(a, |a| 1.0 / a.sqrt())),
        "rsqrt" => alu!(map1, |a: f64| settled(1.0 / a.sqrt(), [a])),
        "abs" => alu!(map1, |a: u64| a & (u64::MAX >> 1)),
        "neg" => alu!(map1, |a: u64| a ^ (1 << 63)),
        "copysign" => alu!(map2, |a: u64, b: u64| (a & (1 << 63)) | (b & (u64::MAX >> 1))),
        "min" => alu!(map2, minimum_double),
        "max" => alu!(map2, maximum_double),
        _ => return None,
    })
}

/// Runs an operation that the host cannot round: per lane, in integers.
fn run_rounded(
    r: &mut Registers,
    i: &Args,
    mask: u32,
    ty: T,
    f: impl Fn(f64, f64, f64, Rounding) -> u64,
) {
    let direction = Rounding::from_code(i.e);
    if ty == T::F64 {
        return map3(r, i, mask, |a: f64, b: f64, c: f64| {
            settled(f64::from_bits(f(a, b, c, direction)), [a, b, c])
        });
    }
    let ftz = i.e & flags::FTZ != 0;
    let input = |x: f32| f64::from(if ftz { flush(x) } else { x });
    map3(r, i, mask, |a: f32, b: f32, c: f32| {
        let value = f32::from_bits(f(input(a), input(b), input(c), direction) as u32);
        let value = if ftz { flush(value) } else { value };
        if i.e & flags::SAT != 0 { saturate(value.into()) as f32 } else { value }
    });
}

/// The comparison that an operator word means on floats. The `u` forms hold for NaNs too.
// With NaNs, `!(a >= b)` is not `a < b`; the lints know only ordered numbers.
#[allow(clippy::neg_cmp_op_on_partial_ord, clippy::double_comparisons)]
#[allow(clippy::nonminimal_bool)]
pub fn comparison(operator: &str, ty: T, ftz: bool) -> Option<TestFn> {
    macro_rules! of {
        ($f:ident, $flush:expr) => {{
            macro_rules! test {
                ($g:expr) => {{
                    fn run(r: &Registers, (a, b): (u32, u32), mask: u32) -> u32 {
                        let g: fn($f, $f) -> bool = $g;
                        test2::<$f>(r, (a, b), mask, |a, b| g($flush(a), $flush(b)))
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
    Some(match (ty, ftz) {
        (T::F32, false) => of!(f32, std::convert::identity),
        (T::F32, true) => of!(f32, flush),
        (T::F64, false) => of!(f64, std::convert::identity),
        _ => return None,
    })
}

/// `testp`: a property of a float.
pub fn property(word: &str, ty: T) -> Option<TestFn> {
    macro_rules! of {
        ($f:ident) => {{
            macro_rules! test {
                ($g:expr) => {{
                    fn run(r: &Registers, (a, b): (u32, u32), mask: u32) -> u32 {
                        let g: fn($f) -> bool = $g;
                        test2::<$f>(r, (a, b), mask, |a, _| g(a))
                    }
                    run as TestFn
                }};
            }
            match word {
                "finite" => test!(|a| a.is_finite()),
                "infinite" => test!(|a| a.is_infinite()),
                "number" => test!(|a| !a.is_nan()),
                "notanumber" => test!(|a| a.is_nan()),
                "normal" => test!(|a| a.is_normal()),
                "subnormal" => test!(|a| a.is_subnormal()),
                _ => return None,
            }
        }};
    }
    Some(match ty {
        T::F32 => of!(f32),
        T::F64 => of!(f64),
        _ => return None,
    })
}

/// Formats by type, for those that have one.
pub fn format_of(ty: T) -> Option<Format> {
    Some(match ty {
        T::F16 | T::F16x2 => rounding::F16,
        T::BF16 | T::BF16x2 => rounding::BF16,
        T::F32 => rounding::F32,
        T::F64 => rounding::F64,
        _ => return None,
    })
}
