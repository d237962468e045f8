//! Integer instructions: bit-exact, on edges and random values.

use crate::common::Bench;
use std::cmp::Ordering::{self, Equal, Greater, Less};

/// Threads, and so values, of one check.
pub const COUNT: usize = 256;

/// A generator with this seed, which is printed: the same values in every run.
pub fn random(seed: u64) -> fastrand::Rng {
    println!("seed {seed}");
    fastrand::Rng::with_seed(seed)
}

const EDGES: [u64; 12] = [
    0,
    1,
    2,
    31,
    32,
    33,
    u64::MAX,
    i64::MAX as u64,
    i64::MIN as u64,
    0x8000_0000,
    0x7fff_ffff,
    0xff_ffff,
];

/// Three operands for each thread: all pairs of edges first, then random ones of random length.
pub fn operands(seed: u64) -> [Vec<u64>; 3] {
    let mut random = random(seed);
    let mut any = move || {
        let value = random.u64(..);
        value >> random.u32(..64)
    };
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for number in 0..COUNT {
        let edges = EDGES.len();
        let (a, b) = if number < edges * edges {
            (EDGES[number / edges], EDGES[number % edges])
        } else {
            (any(), any())
        };
        all[0].push(a);
        all[1].push(b);
        all[2].push(if number % 3 == 0 { EDGES[number % edges] } else { any() });
    }
    all
}

macro_rules! checker {
    ($name:ident, $ty:ty, $register:literal, $address:literal, $suffix:literal) => {
        /// Runs an instruction on registers 1 to 3 of a width, result in 0, and compares.
        pub fn $name(instruction: &str, expected: impl Fn($ty, $ty, $ty) -> $ty) {
            let size = size_of::<$ty>() * COUNT;
            let mut body = String::new();
            for operand in 0..3 {
                body += &format!(
                    "ld.global.{} %{}{}, [%{}+{}];\n",
                    $suffix,
                    $register,
                    operand + 1,
                    $address,
                    operand * size
                );
            }
            body += instruction;
            body += if instruction.starts_with('{') { "" } else { ";" };
            body +=
                &format!("\nst.global.{} [%{}+{}], %{}0;", $suffix, $address, 3 * size, $register);
            let bench = Bench::of_body(&body);
            let values = operands(COUNT as u64)
                .map(|list| list.into_iter().map(|value| value as $ty).collect::<Vec<_>>());
            for (operand, list) in values.iter().enumerate() {
                bench.put(operand * size, list);
            }
            bench.run("test", 1, COUNT as u32, &[crate::common::BASE]).unwrap();
            let results = bench.get::<$ty>(3 * size, COUNT);
            for number in 0..COUNT {
                let [a, b, c] = [0, 1, 2].map(|operand| values[operand][number]);
                let wanted = expected(a, b, c);
                assert_eq!(
                    results[number], wanted,
                    "{instruction}: of {a:#x}, {b:#x}, {c:#x} got {:#x}, expected {wanted:#x}",
                    results[number]
                );
            }
        }
    };
}
checker!(check16, u16, "h", "a2", "b16");
checker!(check32, u32, "r", "a4", "b32");
checker!(check64, u64, "d", "a8", "b64");

#[test]
fn add_and_subtract() {
    check16("add.u16 %h0, %h1, %h2", |a, b, _| a.wrapping_add(b));
    check32("add.s32 %r0, %r1, %r2", |a, b, _| a.wrapping_add(b));
    check64("sub.u64 %d0, %d1, %d2", |a, b, _| a.wrapping_sub(b));
    check32("add.sat.s32 %r0, %r1, %r2", |a, b, _| (a as i32).saturating_add(b as i32) as u32);
    check32("sub.sat.s32 %r0, %r1, %r2", |a, b, _| (a as i32).saturating_sub(b as i32) as u32);
    check32("sub.s32 %r0, %r1, 7", |a, _, _| a.wrapping_sub(7));
}

#[test]
fn multiply() {
    check16("mul.hi.u16 %h0, %h1, %h2", |a, b, _| ((u32::from(a) * u32::from(b)) >> 16) as u16);
    check32("mul.lo.s32 %r0, %r1, %r2", |a, b, _| a.wrapping_mul(b));
    check32("mul.hi.s32 %r0, %r1, %r2", |a, b, _| {
        ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32
    });
    check64("mul.hi.u64 %d0, %d1, %d2", |a, b, _| ((u128::from(a) * u128::from(b)) >> 64) as u64);
    check64("mul.hi.s64 %d0, %d1, %d2", |a, b, _| {
        ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
    });
    check32("mad.lo.u32 %r0, %r1, %r2, %r3", |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    check32("mad.hi.u32 %r0, %r1, %r2, %r3", |a, b, c| {
        (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
    });
    check32("mad.hi.sat.s32 %r0, %r1, %r2, %r3", |a, b, c| {
        let high = ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as i32;
        high.saturating_add(c as i32) as u32
    });
    check64(
        "{ .reg .b32 x, y; cvt.u32.u64 x, %d1; cvt.u32.u64 y, %d2; mad.wide.s32 %d0, x, y, %d3; }",
        |a, b, c| (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64,
    );
    check32("mul24.lo.u32 %r0, %r1, %r2", |a, b, _| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff));
    check32("mad24.hi.sat.s32 %r0, %r1, %r2, %r3", |a, b, c| {
        let low = |word: u32| i64::from((word << 8) as i32 >> 8);
        let part = ((low(a) * low(b)) >> 16) as i32;
        part.saturating_add(c as i32) as u32
    });
    check32("mad24.hi.s32 %r0, %r1, %r2, %r3", |a, b, c| {
        let low = |x: u32| i64::from((x << 8) as i32 >> 8);
        (((low(a) * low(b)) >> 16) as u32).wrapping_add(c)
    });
}

#[test]
fn divide() {
    check32("div.s32 %r0, %r1, %r2", |a, b, _| match b as i32 {
        0 => u32::MAX,
        b => (a as i32).wrapping_div(b) as u32,
    });
    check64("rem.u64 %d0, %d1, %d2", |a, b, _| a.checked_rem(b).unwrap_or(u64::MAX));
    check32("rem.u32 %r0, %r1, %r2", |a, b, _| a.checked_rem(b).unwrap_or(u32::MAX));
    check16("rem.u16 %h0, %h1, %h2", |a, b, _| a.checked_rem(b).unwrap_or(u16::MAX));
    check16("div.u16 %h0, %h1, %h2", |a, b, _| a.checked_div(b).unwrap_or(u16::MAX));
}

#[test]
fn carries() {
    check32("add.cc.u32 %r4, %r1, %r2; addc.u32 %r0, %r3, 0", |a, b, c| {
        c.wrapping_add(u32::from(a.checked_add(b).is_none()))
    });
    check32(
        "sub.cc.u32 %r4, %r1, %r2; subc.cc.u32 %r5, %r3, 0; subc.u32 %r0, %r1, %r2",
        |a, b, c| {
            let first = u32::from(a < b);
            let second = u32::from(c < first);
            a.wrapping_sub(b).wrapping_sub(second)
        },
    );
    check64("mad.lo.cc.u64 %d4, %d1, %d2, %d3; madc.hi.u64 %d0, %d1, %d2, 0", |a, b, c| {
        ((u128::from(a) * u128::from(b)).wrapping_add(u128::from(c)) >> 64) as u64
    });
}

/// If this fails, code that mixes the two gets another carry than hardware gives: what a
/// subtraction leaves is the inverted borrow.
#[test]
fn additions_take_up_what_subtractions_leave() {
    check32("sub.cc.u32 %r4, %r1, %r2; addc.u32 %r0, %r3, 0", |a, b, c| {
        c.wrapping_add(u32::from(a >= b))
    });
    check32("add.cc.u32 %r4, %r1, %r2; subc.u32 %r0, %r3, 0", |a, b, c| {
        c.wrapping_sub(u32::from(a.checked_add(b).is_some()))
    });
    check32(
        "sub.cc.s32 %r4, %r1, %r2; addc.cc.s32 %r5, %r3, -1; subc.s32 %r0, %r1, 0",
        |a, b, c| {
            let first = u64::from(a >= b);
            let carries = u64::from(c) + 0xffff_ffff + first > 0xffff_ffff;
            a.wrapping_sub(u32::from(!carries))
        },
    );
    check64("sub.cc.u64 %d4, %d1, %d2; addc.u64 %d0, %d3, 0", |a, b, c| {
        c.wrapping_add(u64::from(a >= b))
    });
    check32("sub.cc.u32 %r4, %r1, %r2; madc.lo.u32 %r0, %r1, %r2, %r3", |a, b, c| {
        a.wrapping_mul(b).wrapping_add(c).wrapping_add(u32::from(a >= b))
    });
}

/// If this fails, a comparison of pairs of halves is wrong in one of them, or for numbers that are
/// none.
#[test]
fn pairs_of_halves_are_compared_into_pairs() {
    type Holds = fn(Option<Ordering>) -> bool;
    let halves = |word: u32| {
        [word as u16, (word >> 16) as u16].map(|bits| half::f16::from_bits(bits).to_f32())
    };
    let cases: [(&str, Holds); 14] = [
        ("eq", |order| order == Some(Equal)),
        ("ne", |order| matches!(order, Some(Less | Greater))),
        ("lt", |order| order == Some(Less)),
        ("le", |order| matches!(order, Some(Less | Equal))),
        ("gt", |order| order == Some(Greater)),
        ("ge", |order| matches!(order, Some(Greater | Equal))),
        ("equ", |order| matches!(order, None | Some(Equal))),
        ("neu", |order| order != Some(Equal)),
        ("ltu", |order| matches!(order, None | Some(Less))),
        ("leu", |order| order != Some(Greater)),
        ("gtu", |order| matches!(order, None | Some(Greater))),
        ("geu", |order| order != Some(Less)),
        ("num", |order| order.is_some()),
        ("nan", |order| order.is_none()),
    ];
    for (name, compares) in cases {
        for (ty, one) in [("u32", 0xffff_u32), ("s32", 0xffff), ("f16x2", 0x3c00)] {
            check32(&format!("set.{name}.{ty}.f16x2 %r0, %r1, %r2"), |a, b, _| {
                let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
                let bits = |holds: bool| if holds { one } else { 0 };
                bits(compares(a1.partial_cmp(&b1))) << 16 | bits(compares(a0.partial_cmp(&b0)))
            });
        }
    }
}

#[test]
fn logic_and_shifts() {
    check32("and.b32 %r0, %r1, %r2", |a, b, _| a & b);
    check64("xor.b64 %d0, %d1, %d2", |a, b, _| a ^ b);
    check16("not.b16 %h0, %h1", |a, _, _| !a);
    check32("cnot.b32 %r0, %r1", |a, _, _| u32::from(a == 0));
    check32("lop3.b32 %r0, %r1, %r2, %r3, 0xe8", |a, b, c| (a & b) | (a & c) | (b & c));
    check32("shl.b32 %r0, %r1, %r2", |a, b, _| a.checked_shl(b).unwrap_or(0));
    check32("shr.u32 %r0, %r1, %r2", |a, b, _| a.checked_shr(b).unwrap_or(0));
    check32("shr.s32 %r0, %r1, %r2", |a, b, _| ((a as i32) >> b.min(31)) as u32);
    check64("{ .reg .b32 n; cvt.u32.u64 n, %d2; shr.s64 %d0, %d1, n; }", |a, b, _| {
        ((a as i64) >> (b as u32).min(63)) as u64
    });
    check32("shf.l.wrap.b32 %r0, %r1, %r2, %r3", |a, b, c| {
        ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32
    });
    check32("shf.r.clamp.b32 %r0, %r1, %r2, %r3", |a, b, c| {
        ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32
    });
}

#[test]
fn bit_fields() {
    check32("popc.b32 %r0, %r1", |a, _, _| a.count_ones());
    check32("clz.b32 %r0, %r1", |a, _, _| a.leading_zeros());
    check64("brev.b64 %d0, %d1", |a, _, _| a.reverse_bits());
    check32("bfind.u32 %r0, %r1", |a, _, _| if a == 0 { u32::MAX } else { a.ilog2() });
    check32("bfind.shiftamt.s32 %r0, %r1", |a, _, _| {
        let folded = if (a as i32) < 0 { !a } else { a };
        if folded == 0 { u32::MAX } else { 31 - folded.ilog2() }
    });
    check32("bfi.b32 %r0, %r1, %r2, %r3, 5", |a, b, c| {
        let mut out = b;
        for bit in 0..5 {
            let place = (c & 0xff) + bit;
            if place < 32 {
                out = out & !(1 << place) | (a >> bit & 1) << place;
            }
        }
        out
    });
    // Bit by bit, as the specification has it.
    let field = |a: u64, bits: u32, start: u32, length: u32, signed: bool| {
        let (start, length) = (start & 0xff, length & 0xff);
        let top = (start + length).saturating_sub(1).min(bits - 1);
        let sign = if signed && length > 0 { (a >> top) & 1 } else { 0 };
        (0..bits).fold(0, |out, bit| {
            let inside = bit < length && start + bit < bits;
            out | if inside { (a >> (start + bit)) & 1 } else { sign } << bit
        })
    };
    for signed in [false, true] {
        let kind = if signed { 's' } else { 'u' };
        check32(&format!("bfe.{kind}32 %r0, %r1, %r2, %r3"), |a, b, c| {
            field(a.into(), 32, b, c, signed) as u32
        });
        check64(
            &format!(
                "{{ .reg .b32 s, n; cvt.u32.u64 s, %d2; cvt.u32.u64 n, %d3; \
                 bfe.{kind}64 %d0, %d1, s, n; }}"
            ),
            |a, b, c| field(a, 64, b as u32, c as u32, signed),
        );
    }
    check32("prmt.b32 %r0, %r1, %r2, %r3", |a, b, c| {
        let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
        let pick = |place: u32| {
            let selector = c >> (place * 4);
            let byte = bytes[(selector & 7) as usize];
            if selector & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
        };
        u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)])
    });
}

#[test]
fn dot_products_and_differences() {
    check32("dp4a.s32.u32 %r0, %r1, %r2, %r3", |a, b, c| {
        let (x, y) = (a.to_le_bytes(), b.to_le_bytes());
        (0..4).fold(c, |sum, k| sum.wrapping_add((i32::from(x[k] as i8) * i32::from(y[k])) as u32))
    });
    check32("dp2a.hi.u32.s32 %r0, %r1, %r2, %r3", |a, b, c| {
        let y = b.to_le_bytes();
        let low = (a & 0xffff) as i32 * i32::from(y[2] as i8);
        let high = (a >> 16) as i32 * i32::from(y[3] as i8);
        c.wrapping_add(low as u32).wrapping_add(high as u32)
    });
    check32("sad.s32 %r0, %r1, %r2, %r3", |a, b, c| c.wrapping_add((a as i32).abs_diff(b as i32)));
    check32("min.s32 %r0, %r1, %r2", |a, b, _| (a as i32).min(b as i32) as u32);
    check64("max.u64 %d0, %d1, %d2", |a, b, _| a.max(b));
    check32("abs.s32 %r0, %r1", |a, _, _| (a as i32).wrapping_abs() as u32);
}

#[test]
fn comparisons_and_choices() {
    check32("setp.lt.s32 %p1, %r1, %r2; selp.b32 %r0, %r1, %r3, %p1", |a, b, c| {
        if (a as i32) < b as i32 { a } else { c }
    });
    check64("setp.hi.u64 %p1|%p2, %d1, %d2; selp.b64 %d0, %d1, %d3, %p2", |a, b, c| {
        if a > b { c } else { a }
    });
    check32(
        "setp.eq.u32 %p1, %r1, %r2; setp.ge.or.u32 %p2, %r1, %r3, !%p1; selp.b32 %r0, 1, 0, %p2",
        |a, b, c| u32::from(a >= c || a != b),
    );
    check32(
        "set.le.u32.s32 %r0, %r1, %r2",
        |a, b, _| {
            if a as i32 <= b as i32 { u32::MAX } else { 0 }
        },
    );
    check32("slct.u32.s32 %r0, %r1, %r2, %r3", |a, b, c| if c as i32 >= 0 { a } else { b });
    check32("mov.b32 %r0, 9; setp.ne.u32 %p1, %r1, 0; @!%p1 mov.b32 %r0, %r2", |a, b, _| {
        if a == 0 { b } else { 9 }
    });
    check32(
        "setp.gt.u32 %p1, %r1, %r2; setp.gt.u32 %p2, %r2, %r3; xor.pred %p3, %p1, %p2; \
             not.pred %p3, %p3; selp.u32 %r0, 5, 6, %p3",
        |a, b, c| if (a > b) == (b > c) { 5 } else { 6 },
    );
}

#[test]
fn packs() {
    check64("{ .reg .b32 lo, hi; mov.b64 {lo, hi}, %d1; mov.b64 %d0, {hi, lo}; }", |a, _, _| {
        a.rotate_left(32)
    });
    check32("mov.b32 {%h1, %h2}, %r1; mov.b32 %r0, {%h2, %h1}", |a, _, _| a.rotate_left(16));
    check64("mov.b64 {%h1, %h2, %h3, %h4}, %d1; mov.b64 %d0, {%h4, %h3, %h2, %h1}", |a, _, _| {
        let [x, y, z, w] = [0, 16, 32, 48].map(|shift| (a >> shift) & 0xffff);
        x << 48 | y << 32 | z << 16 | w
    });
}
