//! Bit-field, permutation and dot-product instructions.

use super::registers::{AluFn, Args, LANES, Registers, map1, map2, map3};
use crate::ast::ScalarType as T;
use crate::decode::select::{Compute, Words};

macro_rules! alu {
    ($map:ident, $f:expr) => {{
        fn run(r: &mut Registers, i: &Args, mask: u32) {
            $map(r, i, mask, $f);
        }
        run as AluFn
    }};
}

/// Chooses a bit instruction.
pub fn select(opcode: &str, words: &mut Words<'_>) -> Option<Compute> {
    match opcode {
        "popc" | "clz" | "brev" => count(opcode, words.take_type()?),
        "bfind" => find(words),
        "bfe" => extract(words.take_type()?),
        "bfi" => insert(words.take_type()?),
        "bmsk" => mask(words),
        "szext" => sign_or_zero_extend(words),
        "shf" => funnel(words),
        "prmt" => permute(words),
        "lop3" => {
            let ty = words.take_type()?;
            // The table arrives in `e` as an immediate; the decoder puts it there.
            (ty == T::B32).then(|| Compute::uniform(lop3, ty, 3))
        }
        "dp4a" | "dp2a" => dot(opcode, words),
        _ => None,
    }
}

fn count(opcode: &str, ty: T) -> Option<Compute> {
    let (exec, dst) = match (opcode, ty) {
        ("popc", T::B32) => (alu!(map1, |a: u32| a.count_ones()), T::U32),
        ("popc", T::B64) => (alu!(map1, |a: u64| a.count_ones()), T::U32),
        ("clz", T::B32) => (alu!(map1, |a: u32| a.leading_zeros()), T::U32),
        ("clz", T::B64) => (alu!(map1, |a: u64| a.leading_zeros()), T::U32),
        ("brev", T::B32) => (alu!(map1, |a: u32| a.reverse_bits()), T::B32),
        ("brev", T::B64) => (alu!(map1, |a: u64| a.reverse_bits()), T::B64),
        _ => return None,
    };
    Some(Compute::mixed(exec, dst, &[ty]))
}

fn find(words: &mut Words<'_>) -> Option<Compute> {
    /// Position of the highest set bit, all ones where there is none.
    const fn position(a: u64) -> u32 {
        if a == 0 { u32::MAX } else { 63 - a.leading_zeros() }
    }
    /// How far to shift left to bring that bit to the top of `bits`.
    const fn amount(a: u64, bits: u32) -> u32 {
        if a == 0 { u32::MAX } else { bits - 1 - position(a) }
    }
    /// For signed types the highest bit that differs from the sign.
    const fn folded(a: i64) -> u64 {
        (a ^ (a >> 63)) as u64
    }
    let shift = words.take("shiftamt");
    let ty = words.take_type()?;
    let exec = match (ty, shift) {
        (T::U32, false) => alu!(map1, |a: u32| position(u64::from(a))),
        (T::U64, false) => alu!(map1, |a: u64| position(a)),
        (T::S32, false) => alu!(map1, |a: i32| position(folded(i64::from(a)))),
        (T::S64, false) => alu!(map1, |a: i64| position(folded(a))),
        (T::U32, true) => alu!(map1, |a: u32| amount(u64::from(a), 32)),
        (T::U64, true) => alu!(map1, |a: u64| amount(a, 64)),
        (T::S32, true) => alu!(map1, |a: i32| amount(folded(i64::from(a)), 32)),
        (T::S64, true) => alu!(map1, |a: i64| amount(folded(a), 64)),
        _ => return None,
    };
    Some(Compute::mixed(exec, T::U32, &[ty]))
}

/// `bfe`: a field of a word. What lies above the word's top counts as zeros, or as its sign.
/// Only selects and shifts, so that it becomes vector code.
fn extract(ty: T) -> Option<Compute> {
    macro_rules! unsigned {
        ($word:ident) => {
            alu!(map3, |a: $word, start: u32, length: u32| {
                let (start, length) = (start & 0xff, length & 0xff);
                let moved = if start < $word::BITS { a >> start } else { 0 };
                let keep = if length < $word::BITS { (1 << length) - 1 } else { $word::MAX };
                moved & keep
            })
        };
    }
    macro_rules! signed {
        ($word:ident) => {
            alu!(map3, |a: $word, start: u32, length: u32| {
                let (start, length) = (start & 0xff, length & 0xff);
                let moved = a >> start.min($word::BITS - 1);
                let unused = $word::BITS - length.clamp(1, $word::BITS);
                let field = (moved << unused) >> unused;
                if length == 0 { 0 } else { field }
            })
        };
    }
    let exec = match ty {
        T::U32 => unsigned!(u32),
        T::S32 => signed!(i32),
        T::U64 => unsigned!(u64),
        T::S64 => signed!(i64),
        _ => return None,
    };
    Some(Compute::mixed(exec, ty, &[ty, T::U32, T::U32]))
}

fn insert(ty: T) -> Option<Compute> {
    fn inserted(from: u64, into: u64, bits: u32, start: u32, length: u32) -> u64 {
        let (start, length) = (start & 0xff, length & 0xff);
        if start >= bits {
            return into;
        }
        let ones = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
        let window = ones << start;
        (into & !window) | (from << start & window)
    }
    fn word(r: &mut Registers, i: &Args, mask: u32) {
        let mut d = [0_u32; LANES];
        for (lane, d) in d.iter_mut().enumerate() {
            let (a, b) = (r.get::<u32>(i.a)[lane], r.get::<u32>(i.b)[lane]);
            let (c, e) = (r.get::<u32>(i.c)[lane], r.get::<u32>(i.e)[lane]);
            *d = inserted(a.into(), b.into(), 32, c, e) as u32;
        }
        r.put(i.d, &d, mask);
    }
    fn wide(r: &mut Registers, i: &Args, mask: u32) {
        let mut d = [0_u64; LANES];
        for (lane, d) in d.iter_mut().enumerate() {
            let (a, b) = (r.get::<u64>(i.a)[lane], r.get::<u64>(i.b)[lane]);
            let (c, e) = (r.get::<u32>(i.c)[lane], r.get::<u32>(i.e)[lane]);
            *d = inserted(a, b, 64, c, e);
        }
        r.put(i.d, &d, mask);
    }
    let exec: AluFn = match ty {
        T::B32 => word,
        T::B64 => wide,
        _ => return None,
    };
    Some(Compute::mixed(exec, ty, &[ty, ty, T::U32, T::U32]))
}

fn mask(words: &mut Words<'_>) -> Option<Compute> {
    fn ones(start: u32, length: u32) -> u32 {
        let all = if length >= 32 { u32::MAX } else { (1 << length) - 1 };
        if start >= 32 { 0 } else { all << start }
    }
    let exec = match words.take_any(&["clamp", "wrap"])? {
        "clamp" => alu!(map2, |a: u32, b: u32| ones(a, b)),
        _ => alu!(map2, |a: u32, b: u32| ones(a & 31, b & 31)),
    };
    (words.take_type()? == T::B32).then(|| Compute::uniform(exec, T::B32, 2))
}

fn sign_or_zero_extend(words: &mut Words<'_>) -> Option<Compute> {
    fn extend(a: u32, bits: u32, signed: bool) -> u32 {
        if bits >= 32 {
            return a;
        }
        if bits == 0 {
            return 0;
        }
        let moved = a << (32 - bits);
        if signed { (moved as i32 >> (32 - bits)) as u32 } else { moved >> (32 - bits) }
    }
    let mode = words.take_any(&["clamp", "wrap"])?;
    let ty = words.take_type()?;
    let exec = match (mode, ty) {
        ("clamp", T::S32) => alu!(map2, |a: u32, b: u32| extend(a, b, true)),
        ("clamp", T::U32) => alu!(map2, |a: u32, b: u32| extend(a, b, false)),
        ("wrap", T::S32) => alu!(map2, |a: u32, b: u32| extend(a, b & 31, true)),
        ("wrap", T::U32) => alu!(map2, |a: u32, b: u32| extend(a, b & 31, false)),
        _ => return None,
    };
    Some(Compute::mixed(exec, ty, &[ty, T::U32]))
}

fn funnel(words: &mut Words<'_>) -> Option<Compute> {
    const fn joined(low: u32, high: u32) -> u64 {
        (high as u64) << 32 | low as u64
    }
    let direction = words.take_any(&["l", "r"])?;
    let mode = words.take_any(&["clamp", "wrap"])?;
    let exec = match (direction, mode) {
        ("l", "wrap") => {
            alu!(map3, |a: u32, b: u32, n: u32| (joined(a, b) << (n & 31) >> 32) as u32)
        }
        ("l", _) => {
            alu!(map3, |a: u32, b: u32, n: u32| (joined(a, b) << n.min(32) >> 32) as u32)
        }
        (_, "wrap") => alu!(map3, |a: u32, b: u32, n: u32| (joined(a, b) >> (n & 31)) as u32),
        _ => alu!(map3, |a: u32, b: u32, n: u32| (joined(a, b) >> n.min(32)) as u32),
    };
    (words.take_type()? == T::B32).then(|| Compute::uniform(exec, T::B32, 3))
}

fn permute(words: &mut Words<'_>) -> Option<Compute> {
    fn byte(a: u32, b: u32, index: u32) -> u32 {
        let all = u64::from(b) << 32 | u64::from(a);
        (all >> ((index & 7) * 8)) as u32 & 0xff
    }
    fn gather(a: u32, b: u32, indices: [u32; 4]) -> u32 {
        let mut out = 0;
        for (place, index) in indices.into_iter().enumerate() {
            out |= byte(a, b, index) << (place * 8);
        }
        out
    }
    fn general(a: u32, b: u32, selector: u32) -> u32 {
        let mut out = 0;
        for place in 0..4 {
            let index = selector >> (place * 4) & 0xf;
            let mut value = byte(a, b, index);
            if index & 8 != 0 {
                value = if value & 0x80 != 0 { 0xff } else { 0 };
            }
            out |= value << (place * 8);
        }
        out
    }
    if words.take_type()? != T::B32 {
        return None;
    }
    let exec = match words.take_any(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]) {
        None => alu!(map3, |a: u32, b: u32, c: u32| general(a, b, c)),
        Some("f4e") => alu!(map3, |a: u32, b: u32, c: u32| {
            let c = c & 3;
            gather(a, b, [c, c + 1, c + 2, c + 3])
        }),
        Some("b4e") => alu!(map3, |a: u32, b: u32, c: u32| {
            let c = c & 3;
            gather(a, b, [c, c + 7, c + 6, c + 5])
        }),
        Some("rc8") => alu!(map3, |a: u32, b: u32, c: u32| gather(a, b, [c & 3; 4])),
        Some("ecl") => alu!(map3, |a: u32, b: u32, c: u32| {
            let c = c & 3;
            gather(a, b, [c, c.max(1), c.max(2), 3])
        }),
        Some("ecr") => alu!(map3, |a: u32, b: u32, c: u32| {
            let c = c & 3;
            gather(a, b, [0, c.min(1), c.min(2), c])
        }),
        Some(_) => alu!(map3, |a: u32, b: u32, c: u32| {
            let c = (c & 1) * 2;
            gather(a, b, [c, c + 1, c, c + 1])
        }),
    };
    Some(Compute::uniform(exec, T::B32, 3))
}

/// Any function of three bits, by its truth table in `e`.
fn lop3(r: &mut Registers, i: &Args, mask: u32) {
    let table = i.e;
    map3(r, i, mask, |a: u32, b: u32, c: u32| {
        let mut out = 0;
        for row in 0..8 {
            if table >> row & 1 != 0 {
                let x = if row & 4 != 0 { a } else { !a };
                let y = if row & 2 != 0 { b } else { !b };
                let z = if row & 1 != 0 { c } else { !c };
                out |= x & y & z;
            }
        }
        out
    });
}

fn dot(opcode: &str, words: &mut Words<'_>) -> Option<Compute> {
    fn part(value: u32, index: u32, bits: u32, signed: bool) -> i64 {
        let raw = i64::from(value >> (index * bits)) & ((1 << bits) - 1);
        if signed && raw >> (bits - 1) & 1 == 1 { raw - (1 << bits) } else { raw }
    }
    /// `e`: bit 0 and 1 say that a and b are signed, bit 2 takes the upper half of b.
    fn four(r: &mut Registers, i: &Args, mask: u32) {
        map3(r, i, mask, |a: u32, b: u32, c: u32| {
            let terms = (0..4).map(|k| part(a, k, 8, i.e & 1 != 0) * part(b, k, 8, i.e & 2 != 0));
            (i64::from(c) + terms.sum::<i64>()) as u32
        });
    }
    fn two(r: &mut Registers, i: &Args, mask: u32) {
        let high = (i.e >> 2 & 1) * 2;
        map3(r, i, mask, |a: u32, b: u32, c: u32| {
            let terms =
                (0..2).map(|k| part(a, k, 16, i.e & 1 != 0) * part(b, k + high, 8, i.e & 2 != 0));
            (i64::from(c) + terms.sum::<i64>()) as u32
        });
    }
    let high = opcode == "dp2a" && words.take_any(&["lo", "hi"])? == "hi";
    let signed = |ty| match ty {
        T::S32 => Some(true),
        T::U32 => Some(false),
        _ => None,
    };
    let (a, b) = (words.take_type()?, words.take_type()?);
    let extra = u32::from(signed(a)?) | u32::from(signed(b)?) << 1 | u32::from(high) << 2;
    let exec: AluFn = if opcode == "dp4a" { four } else { two };
    Some(Compute::uniform(exec, T::B32, 3).with_extra(extra))
}
