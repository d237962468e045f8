//! Float instructions: bit-exact where IEEE says so.

use crate::arithmetic::{COUNT, check16, check32, check64, random};
use crate::common::{BASE, Bench};

fn single(f: impl Fn(f32, f32, f32) -> f32) -> impl Fn(u32, u32, u32) -> u32 {
    move |a, b, c| {
        let value = f(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
        if value.is_nan() { 0x7fff_ffff } else { value.to_bits() }
    }
}

/// Of `N` operands. Whose NaN a NaN is must not hang on the host: the first operand's that is one.
fn double<const N: usize>(f: impl Fn([f64; N]) -> f64) -> impl Fn(u64, u64, u64) -> u64 {
    move |a, b, c| {
        let operands: [u64; N] = std::array::from_fn(|number| [a, b, c][number]);
        let value = f(operands.map(f64::from_bits));
        let nan = operands.into_iter().find(|&bits| f64::from_bits(bits).is_nan());
        match (value.is_nan(), nan) {
            (false, _) => value.to_bits(),
            (true, Some(nan)) => nan | 1 << 51,
            (true, None) => 0xfff8_0000_0000_0000,
        }
    }
}

/// Runs on floats of a middling range, where an f64 holds sums and products exactly.
fn check_moderate(instruction: &str, expected: impl Fn(f32, f32, f32) -> f32) {
    let mut random = random(7);
    let mut value = || {
        let bits = random.u64(..);
        let exponent = 117 + (bits >> 40) as u32 % 20;
        f32::from_bits((bits as u32 & 0x807f_ffff) | exponent << 23)
    };
    let values: [Vec<f32>; 3] = std::array::from_fn(|_| (0..COUNT).map(|_| value()).collect());
    let bench = Bench::of_body(&format!(
        "ld.global.f32 %f1, [%a4];\nld.global.f32 %f2, [%a4+1024];\n\
         ld.global.f32 %f3, [%a4+2048];\n{instruction};\nst.global.f32 [%a4+3072], %f0;"
    ));
    for (operand, list) in values.iter().enumerate() {
        bench.put(operand * 1024, list);
    }
    bench.run("test", 1, COUNT as u32, &[BASE]).unwrap();
    for (number, got) in bench.get::<f32>(3072, COUNT).into_iter().enumerate() {
        let [a, b, c] = [0, 1, 2].map(|operand: usize| values[operand][number]);
        let wanted = expected(a, b, c);
        assert_eq!(
            got.to_bits(),
            wanted.to_bits(),
            "{instruction}: {a:?} {b:?} {c:?}: {got:?} {wanted:?}"
        );
    }
}

/// The f32 next to an exact value in a direction.
fn toward(exact: f64, up: bool) -> f32 {
    let near = exact as f32;
    let behind = if up { f64::from(near) < exact } else { f64::from(near) > exact };
    match (behind, up) {
        (false, _) => near,
        (true, true) => near.next_up(),
        (true, false) => near.next_down(),
    }
}

fn toward_zero(exact: f64) -> f32 {
    toward(exact, exact < 0.0)
}

#[test]
fn singles_to_nearest() {
    check32("add.f32 %r0, %r1, %r2", single(|a, b, _| a + b));
    check32("sub.rn.f32 %r0, %r1, %r2", single(|a, b, _| a - b));
    check32("mul.f32 %r0, %r1, %r2", single(|a, b, _| a * b));
    check32("fma.rn.f32 %r0, %r1, %r2, %r3", single(|a, b, c| a.mul_add(b, c)));
    check32("div.rn.f32 %r0, %r1, %r2", single(|a, b, _| a / b));
    check32("sqrt.rn.f32 %r0, %r1", single(|a, _, _| a.sqrt()));
    check32("rcp.rn.f32 %r0, %r1", single(|a, _, _| 1.0 / a));
    check32("neg.f32 %r0, %r1", single(|a, _, _| -a));
    check32("abs.f32 %r0, %r1", single(|a, _, _| a.abs()));
    check_moderate("fma.rn.f32 %f0, %f1, %f2, %f3", |a, b, c| a.mul_add(b, c));
}

#[test]
fn doubles_to_nearest() {
    check64("add.f64 %d0, %d1, %d2", double(|[a, b]| a + b));
    check64("sub.f64 %d0, %d1, %d2", double(|[a, b]| a - b));
    check64("mul.f64 %d0, %d1, %d2", double(|[a, b]| a * b));
    check64("div.rn.f64 %d0, %d1, %d2", double(|[a, b]| a / b));
    check64("sqrt.rn.f64 %d0, %d1", double(|[a]| a.sqrt()));
    check64("fma.rn.f64 %d0, %d1, %d2, %d3", double(|[a, b, c]| a.mul_add(b, c)));
}

/// If this fails, the same program gives other bits on another processor.
#[test]
fn nans_of_doubles_are_the_first_operands() {
    let moves = "mov.b64 %d1, 0x7ff0000000000001; mov.b64 %d2, 0xfff8000000000002; \
                 mov.b64 %d3, 0x7ff8000000000003; mov.b64 %d4, 0x3ff0000000000000; \
                 mov.b64 %d5, 0x7ff0000000000000; mov.b64 %d6, 0;";
    for (instruction, wanted) in [
        ("fma.rn.f64 %d0, %d1, %d2, %d3", 0x7ff8_0000_0000_0001),
        ("fma.rn.f64 %d0, %d4, %d2, %d3", 0xfff8_0000_0000_0002),
        ("fma.rn.f64 %d0, %d4, %d4, %d3", 0x7ff8_0000_0000_0003),
        ("fma.rn.f64 %d0, %d5, %d6, %d3", 0x7ff8_0000_0000_0003),
        ("fma.rn.f64 %d0, %d5, %d6, %d4", 0xfff8_0000_0000_0000),
        ("add.f64 %d0, %d3, %d2", 0x7ff8_0000_0000_0003),
        ("fma.rz.f64 %d0, %d4, %d2, %d1", 0xfff8_0000_0000_0002_u64),
    ] {
        check64(&format!("{moves} {instruction}"), |_, _, _| wanted);
    }
}

/// One instruction on constants: `%d1`, `%d2`.
fn on_constants(instruction: &str, [a, b]: [f64; 2], wanted: f64) {
    let moves = format!("mov.b64 %d1, {:#x}; mov.b64 %d2, {:#x};", a.to_bits(), b.to_bits());
    check64(&format!("{moves} {instruction}"), |_, _, _| wanted.to_bits());
}

/// If this fails, a quotient or a root of doubles that is too large, too small or subnormal is
/// rounded as if it went to nearest.
#[test]
fn directed_doubles_at_the_ends_of_their_range() {
    let least = f64::from_bits(1);
    let (least_normal, large) = (f64::MIN_POSITIVE, f64::MAX);
    for (instruction, operands, wanted) in [
        ("div.rz.f64 %d0, %d1, %d2", [large, 0.5], large),
        ("div.rm.f64 %d0, %d1, %d2", [large, 0.5], large),
        ("div.rp.f64 %d0, %d1, %d2", [large, -0.5], -large),
        ("div.rp.f64 %d0, %d1, %d2", [large, 0.5], f64::INFINITY),
        ("div.rp.f64 %d0, %d1, %d2", [least, large], least),
        ("div.rm.f64 %d0, %d1, %d2", [least, -large], -least),
        ("div.rz.f64 %d0, %d1, %d2", [least, large], 0.0),
        ("div.rp.f64 %d0, %d1, %d2", [least_normal, 3.0], f64::from_bits(0x5_5555_5555_5556)),
        ("div.rz.f64 %d0, %d1, %d2", [least_normal, 3.0], f64::from_bits(0x5_5555_5555_5555)),
        ("div.rz.f64 %d0, %d1, %d2", [1.0, f64::INFINITY], 0.0),
        ("rcp.rz.f64 %d0, %d1", [least, 0.0], large),
        ("rcp.rp.f64 %d0, %d1", [large, 0.0], f64::from_bits(0x4_0000_0000_0001)),
        ("sqrt.rp.f64 %d0, %d1", [2.0, 0.0], 2_f64.sqrt()),
        ("sqrt.rz.f64 %d0, %d1", [2.0, 0.0], 2_f64.sqrt().next_down()),
        ("sqrt.rz.f64 %d0, %d1", [least, 0.0], f64::from_bits(0x1e60_0000_0000_0000)),
        ("sqrt.rm.f64 %d0, %d1", [9.0, 0.0], 3.0),
        ("sqrt.rp.f64 %d0, %d1", [9.0, 0.0], 3.0),
    ] {
        on_constants(instruction, operands, wanted);
    }
}

/// If this fails, the quick approximations of doubles see more of their operand, or give more of
/// their result, than PTX says.
#[test]
fn approximate_doubles_are_of_upper_halves() {
    let bits = f64::from_bits;
    for (instruction, operand, wanted) in [
        ("rcp.approx.ftz.f64 %d0, %d1", bits(0x4000_0000_ffff_ffff), 0.5),
        ("rcp.approx.ftz.f64 %d0, %d1", -bits(1), f64::NEG_INFINITY),
        ("rcp.approx.ftz.f64 %d0, %d1", f64::NEG_INFINITY, -0.0),
        ("rcp.approx.ftz.f64 %d0, %d1", bits(0x7fe8_0000_0000_0000), 0.0),
        ("rcp.approx.ftz.f64 %d0, %d1", bits(0xfff8_0000_0000_0001), bits(0x7fff_ffff_0000_0000)),
        ("rsqrt.approx.ftz.f64 %d0, %d1", bits(0x4010_0000_0000_0001), 0.5),
        ("rsqrt.approx.ftz.f64 %d0, %d1", -0.0, f64::NEG_INFINITY),
        ("rsqrt.approx.ftz.f64 %d0, %d1", -1.0, bits(0x7fff_ffff_0000_0000)),
    ] {
        on_constants(instruction, [operand, 0.0], wanted);
    }
}

#[test]
fn directed_rounding() {
    check_moderate("add.rz.f32 %f0, %f1, %f2", |a, b, _| toward_zero(f64::from(a) + f64::from(b)));
    check_moderate("add.rm.f32 %f0, %f1, %f2", |a, b, _| {
        toward(f64::from(a) + f64::from(b), false)
    });
    check_moderate("sub.rp.f32 %f0, %f1, %f2", |a, b, _| toward(f64::from(a) - f64::from(b), true));
    check_moderate("mul.rz.f32 %f0, %f1, %f2", |a, b, _| toward_zero(f64::from(a) * f64::from(b)));
    check_moderate("mul.rp.f32 %f0, %f1, %f2", |a, b, _| toward(f64::from(a) * f64::from(b), true));
    check_moderate("div.rm.f32 %f0, %f1, %f2", |a, b, _| {
        // The quotient is near, and which side of it is right shows when multiplied back.
        let near = (f64::from(a) / f64::from(b)) as f32;
        let (back, a, b) = (f64::from(near) * f64::from(b), f64::from(a), f64::from(b));
        let too_high = if b > 0.0 { back > a } else { back < a };
        if too_high { near.next_down() } else { near }
    });
    check_moderate("abs.f32 %f1, %f1; sqrt.rz.f32 %f0, %f1", |a, _, _| {
        let near = f64::from(a.abs()).sqrt() as f32;
        if f64::from(near) * f64::from(near) > f64::from(a.abs()) { near.next_down() } else { near }
    });
    // f64: an exact sum of two integers beyond 53 bits.
    check64(
        "cvt.rn.f64.s64 %d4, 9007199254740993; cvt.rz.f64.s64 %d0, 9007199254740995",
        |_, _, _| 9007199254740994_f64.to_bits(),
    );
    check64(
        "mov.f64 %d1, 0d3ff0000000000000; mov.f64 %d2, 0d3c00000000000000; \
             add.rp.f64 %d0, %d1, %d2",
        |_, _, _| 1.0_f64.next_up().to_bits(),
    );
}

#[test]
fn flush_saturate_and_extremes() {
    let flush = |x: f32| if x.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(x) } else { x };
    check32("add.ftz.f32 %r0, %r1, %r2", single(move |a, b, _| flush(flush(a) + flush(b))));
    check32("add.sat.f32 %r0, %r1, %r2", |a, b, _| {
        let sum = f32::from_bits(a) + f32::from_bits(b);
        if sum > 0.0 { sum.min(1.0).to_bits() } else { 0 }
    });
    check32(
        "min.f32 %r0, %r1, %r2",
        single(|a, b, _| {
            if a.is_nan() {
                b
            } else if b.is_nan() {
                a
            } else if a == 0.0 && b == 0.0 {
                if a.is_sign_negative() { a } else { b }
            } else if a < b {
                a
            } else {
                b
            }
        }),
    );
    check32(
        "max.NaN.f32 %r0, %r1, %r2",
        single(|a, b, _| {
            if a.is_nan() || b.is_nan() {
                f32::NAN
            } else if a == 0.0 && b == 0.0 {
                if a.is_sign_negative() { b } else { a }
            } else if a > b {
                a
            } else {
                b
            }
        }),
    );
    check32("copysign.f32 %r0, %r1, %r2", |a, b, _| (a & 1 << 31) | (b & !(1 << 31)));
}

#[test]
fn float_comparisons() {
    type Holds = fn(f32, f32) -> bool;
    let cases: [(&str, Holds); 6] = [
        ("eq", |a, b| a == b),
        ("ne", |a, b| !a.is_nan() && !b.is_nan() && a != b),
        ("neu", |a, b| a != b),
        ("ltu", |a, b| a.is_nan() || b.is_nan() || a < b),
        ("ge", |a, b| a >= b),
        ("nan", |a, b| a.is_nan() || b.is_nan()),
    ];
    for (operator, holds) in cases {
        check32(
            &format!("setp.{operator}.f32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1"),
            |a, b, _| u32::from(holds(f32::from_bits(a), f32::from_bits(b))),
        );
    }
    check32("testp.subnormal.f32 %p1, %r1; selp.b32 %r0, 1, 0, %p1", |a, _, _| {
        u32::from(f32::from_bits(a).is_subnormal())
    });
}

/// The nearest value of a 16-bit format to an exact one, found by looking at all of them.
fn nearest_half(exact: f64, widen: fn(u16) -> f64) -> u16 {
    let distance = |bits: u16| (widen(bits) - exact).abs();
    let sign = if exact.is_sign_negative() { 0x8000 } else { 0 };
    let (mut low, mut high) = (0_u16, 0x7c00);
    if widen(0x7c00).is_finite() {
        high = 0x7f80;
    }
    while high - low > 1 {
        let middle = (low + high) / 2;
        if widen(middle).abs() <= exact.abs() { low = middle } else { high = middle }
    }
    let (a, b) = (distance(low | sign), distance(high | sign));
    let pick = if a < b || (a == b && low & 1 == 0) { low } else { high };
    pick | sign
}

fn from_f16(bits: u16) -> f64 {
    half::f16::from_bits(bits).to_f64()
}

fn from_bf16(bits: u16) -> f64 {
    half::bf16::from_bits(bits).to_f64()
}

#[test]
fn halves() {
    type Widen = fn(u16) -> f64;
    for (name, widen, mask) in
        [("f16", from_f16 as Widen, 0x3fff_u16), ("bf16", from_bf16 as Widen, 0xbfff)]
    {
        // The masks keep results finite; bf16 ones also keep exponents near enough for f64.
        let shape = if name == "f16" {
            ""
        } else {
            "or.b16 %h1, %h1, 0x3c00; or.b16 %h2, %h2, 0x3c00; or.b16 %h3, %h3, 0x3c00; "
        };
        let clean = format!(
            "and.b16 %h1, %h1, {mask}; and.b16 %h2, %h2, {mask}; and.b16 %h3, %h3, {mask}; {shape}"
        );
        let prepared = move |x: u16| {
            let x = x & mask;
            if name == "f16" { x } else { x | 0x3c00 }
        };
        check16(&format!("{clean} add.rn.{name} %h0, %h1, %h2"), |a, b, _| {
            nearest_half(widen(prepared(a)) + widen(prepared(b)), widen)
        });
        check16(&format!("{clean} mul.rn.{name} %h0, %h1, %h2"), |a, b, _| {
            nearest_half(widen(prepared(a)) * widen(prepared(b)), widen)
        });
        check16(&format!("{clean} fma.rn.{name} %h0, %h1, %h2, %h3"), |a, b, c| {
            let exact = widen(prepared(a)) * widen(prepared(b)) + widen(prepared(c));
            nearest_half(exact, widen)
        });
    }
}

#[test]
fn packed_halves() {
    check32("add.f16x2 %r0, %r1, %r2", |a, b, _| {
        let half = |shift: u32| {
            let sum = half::f16::from_bits((a >> shift) as u16).to_f32()
                + half::f16::from_bits((b >> shift) as u16).to_f32();
            let bits = half::f16::from_f32(sum);
            u32::from(if bits.is_nan() { 0x7fff } else { bits.to_bits() }) << shift
        };
        half(0) | half(16)
    });
    check32("max.bf16x2 %r0, %r1, %r2", |a, b, _| {
        let half = |shift: u32| {
            let (a, b) = ((a >> shift) as u16, (b >> shift) as u16);
            let (x, y) = (half::bf16::from_bits(a), half::bf16::from_bits(b));
            let bits = match (x.is_nan(), y.is_nan()) {
                (true, true) => 0x7fff,
                (true, false) => b,
                (false, true) => a,
                _ if x == y => {
                    if a >> 15 == 0 {
                        a
                    } else {
                        b
                    }
                }
                _ => {
                    if x > y {
                        a
                    } else {
                        b
                    }
                }
            };
            u32::from(bits) << shift
        };
        half(0) | half(16)
    });
    check32("set.gt.f16x2.f16x2 %r0, %r1, %r2", |a, b, _| {
        let half = |shift: u32| {
            let x = half::f16::from_bits((a >> shift) as u16);
            let y = half::f16::from_bits((b >> shift) as u16);
            if x > y { 0x3c00 << shift } else { 0 }
        };
        half(0) | half(16)
    });
    let nan = |half: u16| half & 0x7fff > 0x7c00;
    let negated = move |half: u16| u32::from(if nan(half) { 0x7fff } else { half ^ 0x8000 });
    check32("neg.f16x2 %r0, %r1", move |a, _, _| {
        negated((a >> 16) as u16) << 16 | negated(a as u16)
    });
    check16("abs.ftz.f16 %h0, %h1", move |a, _, _| match a & 0x7fff {
        magnitude if magnitude < 0x400 => 0,
        magnitude if magnitude > 0x7c00 => 0x7fff,
        magnitude => magnitude,
    });
}
