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
