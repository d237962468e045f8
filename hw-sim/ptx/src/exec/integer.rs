//! Integer and bit instructions.

use super::registers::{
    AluFn, Args, LANES, Lane, Registers, TestFn, map1, map2, map3, predicate, test2,
};
use crate::ast::ScalarType as T;
use crate::decode::select::{Compute, Words};

/// A function pointer to a map over lanes.
macro_rules! alu {
    ($map:ident, $f:expr) => {{
        fn run(r: &mut Registers, i: &Args, mask: u32) {
            $map(r, i, mask, $f);
        }
        run as AluFn
    }};
}

/// `$body` with `$t` standing for the integer type that `$ty` names.
macro_rules! on_integer {
    ($ty:expr, $t:ident => $body:expr) => {
        match $ty {
            T::U16 | T::B16 => on_integer!(@ $t = u16, $body),
            T::S16 => on_integer!(@ $t = i16, $body),
            T::U32 | T::B32 => on_integer!(@ $t = u32, $body),
            T::S32 => on_integer!(@ $t = i32, $body),
            T::U64 | T::B64 => on_integer!(@ $t = u64, $body),
            T::S64 => on_integer!(@ $t = i64, $body),
            _ => return None,
        }
    };
    (@ $t:ident = $actual:ty, $body:expr) => {{
        type $t = $actual;
        $body
    }};
}

/// `$body` with `$t` the narrow and `$w` the wide type of `.wide` and `.hi`.
macro_rules! on_widening {
    ($ty:expr, ($t:ident, $w:ident) => $body:expr) => {
        match $ty {
            T::U16 => on_widening!(@ $t = u16, $w = u32, $body),
            T::S16 => on_widening!(@ $t = i16, $w = i32, $body),
            T::U32 => on_widening!(@ $t = u32, $w = u64, $body),
            T::S32 => on_widening!(@ $t = i32, $w = i64, $body),
            T::U64 => on_widening!(@ $t = u64, $w = u128, $body),
            T::S64 => on_widening!(@ $t = i64, $w = i128, $body),
            _ => return None,
        }
    };
    (@ $t:ident = $narrow:ty, $w:ident = $wide:ty, $body:expr) => {{
        type $t = $narrow;
        #[allow(dead_code)]
        type $w = $wide;
        $body
    }};
}

/// The type twice as wide, for `.wide`.
const fn widened(ty: T) -> Option<T> {
    Some(match ty {
        T::U16 => T::U32,
        T::S16 => T::S32,
        T::U32 => T::U64,
        T::S32 => T::S64,
        _ => return None,
    })
}

/// Chooses an integer instruction; None where the opcode or type is not one.
pub fn select(opcode: &str, words: &mut Words<'_>) -> Option<Compute> {
    match opcode {
        "add" | "sub" | "min" | "max" | "div" | "rem" | "and" | "or" | "xor" => {
            binary(opcode, words)
        }
        "abs" | "neg" | "not" | "cnot" => unary(opcode, words.take_type()?),
        "mul" | "mad" | "mul24" | "mad24" | "addc" | "subc" | "madc" => multiply(opcode, words),
        "sad" => {
            let ty = words.take_type()?;
            let exec = on_integer!(ty, I => alu!(map3, |a: I, b: I, c: I| c.wrapping_add(if a < b {
                b.wrapping_sub(a)
            } else {
                a.wrapping_sub(b)
            })));
            Some(Compute::uniform(exec, ty, 3))
        }
        "shl" | "shr" => shift(opcode, words.take_type()?),
        _ => super::bits::select(opcode, words),
    }
}

fn binary(opcode: &str, words: &mut Words<'_>) -> Option<Compute> {
    if matches!(opcode, "add" | "sub") && words.take("cc") {
        return carry(opcode, true, words.take_type()?);
    }
    let saturate = matches!(opcode, "add" | "sub") && words.take("sat");
    let ty = words.take_type()?;
    if ty == T::Pred {
        return None;
    }
    let exec = match (opcode, saturate) {
        ("add", true) if ty == T::S32 => alu!(map2, |a: i32, b: i32| a.saturating_add(b)),
        ("sub", true) if ty == T::S32 => alu!(map2, |a: i32, b: i32| a.saturating_sub(b)),
        ("add", false) => on_integer!(ty, I => alu!(map2, |a: I, b: I| a.wrapping_add(b))),
        ("sub", false) => on_integer!(ty, I => alu!(map2, |a: I, b: I| a.wrapping_sub(b))),
        ("min", _) => on_integer!(ty, I => alu!(map2, |a: I, b: I| a.min(b))),
        ("max", _) => on_integer!(ty, I => alu!(map2, |a: I, b: I| a.max(b))),
        // PTX leaves a division by zero to the machine, and it never faults. All ones, of the
        // remainder too: so ends what NVIDIA's assembler (13.5, sm_90) makes of these instructions
        // at each width.
        ("div", _) => on_integer!(ty, I => alu!(map2, |a: I, b: I| if b == 0 {
            !0
        } else {
            a.wrapping_div(b)
        })),
        ("rem", _) => on_integer!(ty, I => alu!(map2, |a: I, b: I| if b == 0 {
            !0
        } else {
            a.wrapping_rem(b)
        })),
        ("and", _) => on_integer!(ty, I => alu!(map2, |a: I, b: I| a & b)),
        ("or", _) => on_integer!(ty, I => alu!(map2, |a: I, b: I| a | b)),
        ("xor", _) => on_integer!(ty, I => alu!(map2, |a: I, b: I| a ^ b)),
        _ => return None,
    };
    Some(Compute::uniform(exec, ty, 2))
}

fn unary(opcode: &str, ty: T) -> Option<Compute> {
    let exec = match (opcode, ty) {
        ("abs", T::S16) => alu!(map1, |a: i16| a.wrapping_abs()),
        ("abs", T::S32) => alu!(map1, |a: i32| a.wrapping_abs()),
        ("abs", T::S64) => alu!(map1, |a: i64| a.wrapping_abs()),
        ("neg", _) => on_integer!(ty, I => alu!(map1, |a: I| (0 as I).wrapping_sub(a))),
        ("not", _) => on_integer!(ty, I => alu!(map1, |a: I| !a)),
        ("cnot", _) => on_integer!(ty, I => alu!(map1, |a: I| I::from(a == 0))),
        _ => return None,
    };
    Some(Compute::uniform(exec, ty, 1))
}

fn shift(opcode: &str, ty: T) -> Option<Compute> {
    let exec = match opcode {
        "shl" => on_integer!(ty, I => alu!(map2, |a: I, n: u32| if n < I::BITS {
            a << n
        } else {
            0
        })),
        // A shift by the width or more leaves only sign bits, or zeros.
        _ => on_integer!(ty, I => alu!(map2, |a: I, n: u32| if n < I::BITS {
            a >> n
        } else {
            (a >> (I::BITS - 1)) >> 1
        })),
    };
    Some(Compute::mixed(exec, ty, &[ty, T::U32]))
}

fn multiply(opcode: &str, words: &mut Words<'_>) -> Option<Compute> {
    let part = words.take_any(&["lo", "hi", "wide"]);
    if matches!(opcode, "addc" | "subc" | "madc") || (opcode == "mad" && words.take("cc")) {
        let sets = opcode != "mad" && words.take("cc");
        let ty = words.take_type()?;
        return match opcode {
            "addc" | "subc" => carry(opcode, sets, ty),
            _ => multiply_carry(opcode == "madc", sets || opcode == "mad", part?, ty),
        };
    }
    let saturate = words.take("sat");
    let ty = words.take_type()?;
    let adds = opcode.starts_with("mad");
    if opcode.ends_with("24") && !saturate {
        return multiply24(adds, part?, ty);
    }
    if saturate {
        let exec = match opcode {
            "mad" => alu!(map3, |a: i32, b: i32, c: i32| {
                (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c)
            }),
            _ => alu!(map3, |a: i32, b: i32, c: i32| {
                (((low_24(a) * low_24(b)) >> 16) as i32).saturating_add(c)
            }),
        };
        return (adds && part == Some("hi") && ty == T::S32).then(|| Compute::uniform(exec, ty, 3));
    }
    let exec = match (part?, adds) {
        ("lo", false) => on_integer!(ty, I => alu!(map2, |a: I, b: I| a.wrapping_mul(b))),
        ("lo", true) => on_integer!(ty, I => alu!(map3, |a: I, b: I, c: I| {
            a.wrapping_mul(b).wrapping_add(c)
        })),
        ("hi", false) => on_widening!(ty, (N, W) => alu!(map2, |a: N, b: N| {
            ((W::from(a) * W::from(b)) >> N::BITS) as N
        })),
        ("hi", true) => on_widening!(ty, (N, W) => alu!(map3, |a: N, b: N, c: N| {
            (((W::from(a) * W::from(b)) >> N::BITS) as N).wrapping_add(c)
        })),
        (_, adds) => return multiply_wide(adds, ty),
    };
    Some(Compute::uniform(exec, ty, if adds { 3 } else { 2 }))
}

fn multiply_wide(adds: bool, ty: T) -> Option<Compute> {
    let wide = widened(ty)?;
    let exec = match (ty, adds) {
        (T::U16, false) => alu!(map2, |a: u16, b: u16| u32::from(a) * u32::from(b)),
        (T::S16, false) => alu!(map2, |a: i16, b: i16| i32::from(a) * i32::from(b)),
        (T::U32, false) => alu!(map2, |a: u32, b: u32| u64::from(a) * u64::from(b)),
        (T::S32, false) => alu!(map2, |a: i32, b: i32| i64::from(a) * i64::from(b)),
        (T::U16, true) => {
            alu!(map3, |a: u16, b: u16, c: u32| c.wrapping_add(u32::from(a) * u32::from(b)))
        }
        (T::S16, true) => {
            alu!(map3, |a: i16, b: i16, c: i32| c.wrapping_add(i32::from(a) * i32::from(b)))
        }
        (T::U32, true) => {
            alu!(map3, |a: u32, b: u32, c: u64| c.wrapping_add(u64::from(a) * u64::from(b)))
        }
        _ => alu!(map3, |a: i32, b: i32, c: i64| c.wrapping_add(i64::from(a) * i64::from(b))),
    };
    let sources = [ty, ty, wide];
    Some(Compute::mixed(exec, wide, &sources[..if adds { 3 } else { 2 }]))
}

/// The low 24 bits, with their sign.
const fn low_24(a: i32) -> i64 {
    ((a << 8) >> 8) as i64
}

/// The product of the low 24 bits: `.lo` its bits 0..32, `.hi` its bits 16..48.
fn multiply24(adds: bool, part: &str, ty: T) -> Option<Compute> {
    const fn low_unsigned(a: u32) -> u64 {
        (a & 0xff_ffff) as u64
    }
    let exec = match (ty, part, adds) {
        (T::U32, "lo", _) => alu!(map3, |a: u32, b: u32, c: u32| {
            ((low_unsigned(a) * low_unsigned(b)) as u32).wrapping_add(c)
        }),
        (T::U32, "hi", _) => alu!(map3, |a: u32, b: u32, c: u32| {
            (((low_unsigned(a) * low_unsigned(b)) >> 16) as u32).wrapping_add(c)
        }),
        (T::S32, "lo", _) => {
            alu!(map3, |a: i32, b: i32, c: i32| {
                ((low_24(a) * low_24(b)) as i32).wrapping_add(c)
            })
        }
        (T::S32, "hi", _) => alu!(map3, |a: i32, b: i32, c: i32| {
            (((low_24(a) * low_24(b)) >> 16) as i32).wrapping_add(c)
        }),
        _ => return None,
    };
    if adds {
        return Some(Compute::uniform(exec, ty, 3));
    }
    // Without an addend the third slot repeats a source, and the sum is not wanted.
    let exec = match (ty, part) {
        (T::U32, "lo") => alu!(map2, |a: u32, b: u32| (low_unsigned(a) * low_unsigned(b)) as u32),
        (T::U32, _) => {
            alu!(map2, |a: u32, b: u32| ((low_unsigned(a) * low_unsigned(b)) >> 16) as u32)
        }
        (_, "lo") => alu!(map2, |a: i32, b: i32| (low_24(a) * low_24(b)) as i32),
        _ => alu!(map2, |a: i32, b: i32| ((low_24(a) * low_24(b)) >> 16) as i32),
    };
    Some(Compute::uniform(exec, ty, 2))
}

/// An unsigned word with carries in and out.
trait CarryWord: Lane {
    fn add(self, other: Self, carry: bool) -> (Self, bool);
    fn sub(self, other: Self, borrow: bool) -> (Self, bool);
}

macro_rules! carry_word {
    ($($ty:ty),*) => {$(
        impl CarryWord for $ty {
            fn add(self, other: Self, carry: bool) -> (Self, bool) {
                let (sum, first) = self.overflowing_add(other);
                let (sum, second) = sum.overflowing_add(Self::from(carry));
                (sum, first || second)
            }
            fn sub(self, other: Self, borrow: bool) -> (Self, bool) {
                let (difference, first) = self.overflowing_sub(other);
                let (difference, second) = difference.overflowing_sub(Self::from(borrow));
                (difference, first || second)
            }
        }
    )*};
}
carry_word!(u32, u64);

/// Runs a carrying operation on every lane; `SETS` writes the carry flag back.
fn with_carry<W: Lane, const SETS: bool>(
    r: &mut Registers,
    i: &Args,
    mask: u32,
    f: impl Fn(&Registers, usize, bool) -> (W, bool),
) {
    let before = r.predicate(predicate::CARRY);
    let mut after = 0;
    let mut d = [W::zeroed(); LANES];
    for lane in 0..LANES {
        let (value, carry) = f(r, lane, before >> lane & 1 == 1);
        d[lane] = value;
        after |= u32::from(carry) << lane;
    }
    r.put(i.d, &d, mask);
    if SETS {
        r.set_predicate(predicate::CARRY, after, mask);
    }
}

/// `add.cc`, `addc`, `addc.cc` and the same for `sub`. USES: takes the flag in; SETS: gives it.
///
/// Hardware subtracts by adding the complement, so the flag behind a subtraction is the inverted
/// borrow: `addc` behind a `sub.cc` that borrows adds nothing. PTX calls the flag a borrow there,
/// and says nothing of such mixtures.
fn carry_run<W: CarryWord, const SUB: bool, const USES: bool, const SETS: bool>(
    r: &mut Registers,
    i: &Args,
    mask: u32,
) {
    with_carry::<W, SETS>(r, i, mask, |r, lane, flag| {
        let (a, b) = (r.get::<W>(i.a)[lane], r.get::<W>(i.b)[lane]);
        if SUB {
            let (difference, borrow) = a.sub(b, USES && !flag);
            (difference, !borrow)
        } else {
            a.add(b, flag && USES)
        }
    });
}

fn carry(opcode: &str, sets: bool, ty: T) -> Option<Compute> {
    fn of<W: CarryWord>(opcode: &str, sets: bool) -> AluFn {
        match (opcode, sets) {
            ("add", _) => carry_run::<W, false, false, true>,
            ("addc", true) => carry_run::<W, false, true, true>,
            ("addc", false) => carry_run::<W, false, true, false>,
            ("sub", _) => carry_run::<W, true, false, true>,
            (_, true) => carry_run::<W, true, true, true>,
            (_, false) => carry_run::<W, true, true, false>,
        }
    }
    let exec = match ty {
        T::U32 | T::S32 | T::B32 => of::<u32>(opcode, sets),
        T::U64 | T::S64 | T::B64 => of::<u64>(opcode, sets),
        _ => return None,
    };
    Some(Compute::uniform(exec, ty, 2))
}

fn multiply_carry(uses: bool, sets: bool, part: &str, ty: T) -> Option<Compute> {
    fn run<W: CarryWord, const SETS: bool>(
        r: &mut Registers,
        i: &Args,
        mask: u32,
        product: impl Fn(W, W) -> W,
    ) {
        let uses = i.e == 1;
        with_carry::<W, SETS>(r, i, mask, |r, lane, flag| {
            let (a, b, c) = (r.get::<W>(i.a)[lane], r.get::<W>(i.b)[lane], r.get::<W>(i.c)[lane]);
            product(a, b).add(c, flag && uses)
        });
    }
    macro_rules! of {
        ($w:ty, $product:expr) => {{
            fn setting(r: &mut Registers, i: &Args, mask: u32) {
                run::<$w, true>(r, i, mask, $product);
            }
            fn using(r: &mut Registers, i: &Args, mask: u32) {
                run::<$w, false>(r, i, mask, $product);
            }
            if sets { setting as AluFn } else { using as AluFn }
        }};
    }
    let exec = match (ty, part) {
        (T::U32 | T::S32, "lo") => of!(u32, |a, b| a.wrapping_mul(b)),
        (T::U64 | T::S64, "lo") => of!(u64, |a, b| a.wrapping_mul(b)),
        (T::U32, "hi") => of!(u32, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        (T::S32, "hi") => {
            of!(u32, |a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32)
        }
        (T::U64, "hi") => of!(u64, |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        (T::S64, "hi") => {
            of!(u64, |a, b| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64)
        }
        _ => return None,
    };
    Some(Compute::uniform(exec, ty, 3).with_extra(u32::from(uses)))
}

/// The comparison that an operator word means on an integer type.
pub fn comparison(operator: &str, ty: T) -> Option<TestFn> {
    macro_rules! test {
        ($i:ident, $f:expr) => {{
            fn run(r: &Registers, (a, b): (u32, u32), mask: u32) -> u32 {
                test2::<$i>(r, (a, b), mask, $f)
            }
            run as TestFn
        }};
    }
    Some(match operator {
        "eq" => on_integer!(ty, I => test!(I, |a, b| a == b)),
        "ne" => on_integer!(ty, I => test!(I, |a, b| a != b)),
        "lt" | "lo" => on_integer!(ty, I => test!(I, |a, b| a < b)),
        "le" | "ls" => on_integer!(ty, I => test!(I, |a, b| a <= b)),
        "gt" | "hi" => on_integer!(ty, I => test!(I, |a, b| a > b)),
        "ge" | "hs" => on_integer!(ty, I => test!(I, |a, b| a >= b)),
        _ => return None,
    })
}
