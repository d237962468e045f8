//! `cvt` between all kinds.

use crate::arithmetic::{check16, check32, check64};
use crate::common::{BASE, Bench};

#[test]
fn integers_to_integers() {
    check64("{ .reg .b32 x; cvt.u32.u64 x, %d1; cvt.s64.s32 %d0, x; }", |a, _, _| {
        i64::from(a as i32) as u64
    });
    check32("cvt.s32.s8 %r0, %r1", |a, _, _| i32::from(a as i8) as u32);
    check32("cvt.u32.u16 %r0, %r1", |a, _, _| a & 0xffff);
    check32("cvt.u32.u8 %r0, %r1", |a, _, _| a & 0xff);
    check16("cvt.s16.s8 %h0, %h1", |a, _, _| i16::from(a as i8) as u16);
    check64("cvt.u16.u64 %h1, %d1; cvt.s64.s16 %d0, %h1", |a, _, _| i64::from(a as i16) as u64);
    // A byte type in a wider register: the register's upper part is filled up all the same.
    check32("cvt.u8.u32 %r0, %r1", |a, _, _| a & 0xff);
    check32("cvt.s8.s32 %r0, %r1", |a, _, _| i32::from(a as i8) as u32);
    check32("cvt.u16.u32 %h1, %r1; cvt.s32.s16 %r0, %h1", |a, _, _| i32::from(a as i16) as u32);
    check32("cvt.sat.u8.s32 %r0, %r1", |a, _, _| (a as i32).clamp(0, 255) as u32);
    check64("cvt.sat.s32.s64 %r1, %d1; cvt.s64.s32 %d0, %r1", |a, _, _| {
        (a as i64).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u64
    });
}

#[test]
fn integers_to_floats() {
    check32("cvt.rn.f32.s32 %r0, %r1", |a, _, _| (a as i32 as f32).to_bits());
    check32("cvt.rn.f32.u32 %r0, %r1", |a, _, _| (a as f32).to_bits());
    check64("cvt.rn.f32.u64 %r1, %d1; cvt.u64.u32 %d0, %r1", |a, _, _| {
        u64::from((a as f32).to_bits())
    });
    check64("cvt.rn.f64.s64 %d0, %d1", |a, _, _| (a as i64 as f64).to_bits());
    check32("cvt.rz.f32.u32 %r0, %r1", |a, _, _| {
        let near = a as f32;
        (if f64::from(near) > f64::from(a) { near.next_down() } else { near }).to_bits()
    });
    check32("cvt.rn.f16.s32 %h1, %r1; cvt.u32.u16 %r0, %h1", |a, _, _| {
        // Beyond 2^24 an f32 is not exact, but there an f16 is infinite anyway.
        u32::from(half::f16::from_f32(a as i32 as f32).to_bits())
    });
}

#[test]
fn floats_to_integers() {
    type Round = fn(f32) -> f32;
    let directions: [(&str, Round); 4] = [
        ("rni", f32::round_ties_even),
        ("rzi", f32::trunc),
        ("rmi", f32::floor),
        ("rpi", f32::ceil),
    ];
    for (word, round) in directions {
        check32(&format!("cvt.{word}.s32.f32 %r0, %r1"), |a, _, _| {
            // A cast saturates, and gives 0 for a NaN, as PTX does.
            round(f32::from_bits(a)) as i32 as u32
        });
        check32(&format!("cvt.{word}.f32.f32 %r0, %r1"), |a, _, _| {
            let value = round(f32::from_bits(a));
            if value.is_nan() { 0x7fff_ffff } else { value.to_bits() }
        });
    }
    check32("cvt.rzi.u32.f32 %r0, %r1", |a, _, _| f32::from_bits(a) as u32);
    check64("cvt.rzi.s64.f64 %d0, %d1", |a, _, _| {
        let value = f64::from_bits(a);
        if value.is_nan() { 1 << 63 } else { value as i64 as u64 }
    });
    check32("cvt.rzi.s16.f32 %h1, %r1; cvt.s32.s16 %r0, %h1", |a, _, _| {
        i32::from(f32::from_bits(a) as i16) as u32
    });
}

#[test]
fn floats_to_floats() {
    check64(
        "cvt.f32.f64 %r1, %d1; cvt.u64.u32 %d0, %r1".replace("cvt.f32", "cvt.rn.f32").as_str(),
        |a, _, _| {
            let value = f64::from_bits(a) as f32;
            u64::from(if value.is_nan() { 0x7fff_ffff } else { value.to_bits() })
        },
    );
    check64("cvt.rz.f32.f64 %r1, %d1; cvt.u64.u32 %d0, %r1", |a, _, _| {
        let exact = f64::from_bits(a);
        let near = exact as f32;
        let cut = if f64::from(near).abs() > exact.abs() {
            f32::from_bits(near.to_bits() - 1)
        } else {
            near
        };
        u64::from(if near.is_nan() { 0x7fff_ffff } else { cut.to_bits() })
    });
    check32("cvt.rn.bf16x2.f32 %r0, %r1, %r2", |a, b, _| {
        let one = |bits: u32| {
            let value = half::bf16::from_f32(f32::from_bits(bits));
            u32::from(if value.is_nan() { 0x7fff } else { value.to_bits() })
        };
        one(a) << 16 | one(b)
    });
    check32("cvt.sat.f32.f32 %r0, %r1", |a, _, _| {
        let value = f32::from_bits(a);
        if value > 0.0 { value.min(1.0).to_bits() } else { 0 }
    });
    check16("cvt.f32.f16 %f1, %h1; cvt.rn.f16.f32 %h0, %f1", |a, _, _| {
        if half::f16::from_bits(a).is_nan() { 0x7fff } else { a }
    });
}

/// Every f16 and every bf16, widened.
#[test]
fn all_halves_widen_exactly() {
    for (ty, widen) in [
        ("f16", (|bits| half::f16::from_bits(bits).to_f32()) as fn(u16) -> f32),
        ("bf16", |bits| half::bf16::from_bits(bits).to_f32()),
    ] {
        let bench = Bench::of_body(&format!(
            "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %t;\n\
             cvt.u16.u32 %h1, %r3; cvt.f32.{ty} %f1, %h1;\n\
             mul.wide.u32 %d1, %r3, 4; add.s64 %d1, %d1, %base; st.global.f32 [%d1], %f1;"
        ));
        bench.run("test", 64, 1024, &[BASE]).unwrap();
        for (bits, got) in bench.get::<u32>(0, 65536).into_iter().enumerate() {
            let value = widen(bits as u16);
            let wanted = if value.is_nan() { 0x7fff_ffff } else { value.to_bits() };
            assert_eq!(got, wanted, "{ty} {bits:#x}");
        }
    }
}

/// The nearest of all numbers that `decode` knows, ties to the even pattern: conversions to 8-bit
/// floats are checked without a word on how they are done.
fn nearest(value: f32, decode: impl Fn(u8) -> f32, largest: u8) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    // Beyond any of them; larger ones would make all distances equal.
    let magnitude = f64::from(value.abs().min(1e6));
    let distance = |bits: u8| (f64::from(decode(bits)) - magnitude).abs();
    let best = (0..=largest)
        .min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((*a & 1).cmp(&(*b & 1))));
    best.unwrap() | u8::from(value.is_sign_negative()) << 7
}

fn e4m3(bits: u8) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    if exponent == 0 {
        fraction * 2_f32.powi(-9)
    } else {
        (8.0 + fraction) * 2_f32.powi(exponent - 10)
    }
}

fn e5m2(bits: u8) -> f32 {
    half::f16::from_bits(u16::from(bits) << 8).to_f32()
}

#[test]
fn floats_to_pairs_of_bytes() {
    let byte = |bits: u32, wide: bool| {
        let value = f32::from_bits(bits);
        u32::from(if wide { nearest(value, e5m2, 0x7b) } else { nearest(value, e4m3, 0x7e) })
    };
    for (name, wide) in [("e4m3x2", false), ("e5m2x2", true)] {
        let text = format!("cvt.rn.satfinite.{name}.f32 %h1, %r1, %r2; cvt.u32.u16 %r0, %h1");
        check32(&text, |a, b, _| byte(a, wide) << 8 | byte(b, wide));
        // Random bits are mostly far out of range; these are not.
        let near = |a: u32| (a & 0x83ff_ffff) | (0x3800_0000 + (a >> 5 & 0x0780_0000));
        check32(
            &format!(
                "and.b32 %r4, %r1, 0x83ffffff; shr.b32 %r5, %r1, 5; and.b32 %r5, %r5, 0x7800000;\n\
                 add.u32 %r5, %r5, 0x38000000; or.b32 %r4, %r4, %r5;\n\
                 cvt.rn.satfinite.{name}.f32 %h1, %r4, %r4; cvt.u32.u16 %r0, %h1"
            ),
            |a, _, _| byte(near(a), wide) * 0x101,
        );
        let text = format!("cvt.rn.satfinite.relu.{name}.f16x2 %h1, %r1; cvt.u32.u16 %r0, %h1");
        check32(&text, |a, _, _| {
            let half = |bits: u32| {
                let value = half::f16::from_bits(bits as u16).to_f32();
                byte(if value <= 0.0 { 0 } else { value.to_bits() }, wide)
            };
            half(a >> 16) << 8 | half(a)
        });
    }
}

#[test]
fn pairs_of_bytes_to_halves() {
    type Decode = fn(u8) -> f32;
    let formats: [(&str, Decode, u8); 2] = [("e4m3x2", e4m3, 0x7e), ("e5m2x2", e5m2, 0x7c)];
    for (name, decode, last) in formats {
        let half = |bits: u32| {
            let value = if bits as u8 & 0x7f > last {
                return 0x7fff;
            } else {
                decode(bits as u8 & 0x7f)
            };
            u32::from(half::f16::from_f32(value).to_bits()) | (bits & 0x80) << 8
        };
        let text = format!("cvt.u16.u32 %h1, %r1; cvt.rn.f16x2.{name} %r0, %h1");
        check32(&text, |a, _, _| half(a >> 8) << 16 | half(a));
    }
}

#[test]
fn singles_to_tf32() {
    let convert = |a: u32, rounded: fn(u32) -> u32| {
        let value = f32::from_bits(a);
        match () {
            () if value.is_nan() => 0x7fff_ffff,
            () if value.is_infinite() => a,
            () => rounded(a),
        }
    };
    check32("cvt.rna.tf32.f32 %r0, %r1", |a, _, _| {
        convert(a, |a| a.wrapping_add(0x1000) & !0x1fff)
    });
    check32("cvt.rz.tf32.f32 %r0, %r1", |a, _, _| convert(a, |a| a & !0x1fff));
    check32("cvt.rn.tf32.f32 %r0, %r1", |a, _, _| {
        convert(a, |a| a.wrapping_add(0xfff + (a >> 13 & 1)) & !0x1fff)
    });
}

#[test]
fn integers_are_clamped_and_packed() {
    let clamp = |a: u32, low: i32, high: i32, mask: u32| (a as i32).clamp(low, high) as u32 & mask;
    check32("cvt.pack.sat.s16.s32 %r0, %r1, %r2", |a, b, _| {
        clamp(a, -32768, 32767, 0xffff) << 16 | clamp(b, -32768, 32767, 0xffff)
    });
    check32("cvt.pack.sat.u16.s32 %r0, %r1, %r2", |a, b, _| {
        clamp(a, 0, 65535, 0xffff) << 16 | clamp(b, 0, 65535, 0xffff)
    });
    check32("cvt.pack.sat.u8.s32.b32 %r0, %r1, %r2, %r3", |a, b, c| {
        c << 16 | clamp(a, 0, 255, 255) << 8 | clamp(b, 0, 255, 255)
    });
    check32("cvt.pack.sat.s4.s32.b32 %r0, %r1, %r2, %r3", |a, b, c| {
        c << 8 | clamp(a, -8, 7, 15) << 4 | clamp(b, -8, 7, 15)
    });
    check32("cvt.pack.sat.u2.s32.b32 %r0, %r1, %r2, %r3", |a, b, c| {
        c << 4 | clamp(a, 0, 3, 3) << 2 | clamp(b, 0, 3, 3)
    });
}

/// Each is refused by a module for an architecture that does not have it yet.
#[test]
fn conversions_are_refused_below_their_architecture() {
    let cases = [
        ("cvt.rna.tf32.f32 %r0, %f1", 75, 80),
        ("cvt.rz.tf32.f32 %r0, %f1", 89, 90),
        ("cvt.rn.satfinite.e4m3x2.f32 %h0, %f1, %f2", 86, 89),
        ("cvt.rn.f16x2.e5m2x2 %r0, %h1", 80, 89),
        ("cvt.pack.sat.s16.s32 %r0, %r1, %r2", 70, 72),
        ("cvt.pack.sat.u4.s32.b32 %r0, %r1, %r2, %r3", 72, 75),
        ("redux.sync.add.u32 %r0, %r1, -1", 75, 80),
    ];
    for (example, below, least) in cases {
        let text = crate::common::module_text(&format!("{example};"));
        hwsim_ptx::Module::load(&text).unwrap_or_else(|error| panic!("{error}"));
        let text = text.replace("sm_90", &format!("sm_{below}"));
        let refused = hwsim_ptx::Module::load(&text).expect_err(example);
        assert!(refused.expected.contains(&format!("sm_{least}")), "{example}: {refused}");
    }
}
