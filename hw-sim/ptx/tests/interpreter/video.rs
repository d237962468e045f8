//! Video instructions against what the PTX ISA says of each.

use crate::arithmetic::check32;

fn byte(word: u32, number: u32) -> i64 {
    i64::from(word >> (8 * number) & 0xff)
}

fn half(word: u32, number: u32) -> i64 {
    i64::from((word >> (16 * number)) as i16)
}

/// A word from what each of its bytes becomes.
fn bytes(f: impl Fn(u32) -> i64) -> u32 {
    (0..4).fold(0, |word, number| word | (f(number) as u32 & 0xff) << (8 * number))
}

#[test]
fn shifts_clamp_or_wrap_and_take_up_a_third_operand() {
    let clamped = |a: u32, b: u32| (u64::from(a) >> b.min(32)) as u32;
    check32("vshr.u32.u32.u32.clamp %r0, %r1, %r2", |a, b, _| clamped(a, b));
    check32("vshr.u32.u32.u32.clamp.add %r0, %r1, %r2, %r3", |a, b, c| {
        clamped(a, b).wrapping_add(c)
    });
    check32("vshr.s32.s32.u32.wrap.min %r0, %r1, %r2, %r3", |a, b, c| {
        (a as i32 >> (b & 31)).min(c as i32) as u32
    });
    check32("vshl.u32.u32.u32.clamp %r0, %r1, %r2", |a, b, _| (u64::from(a) << b.min(32)) as u32);
}

#[test]
fn parts_are_chosen_clamped_and_merged() {
    check32("vadd.s32.s32.s32.sat %r0, %r1, %r2", |a, b, _| {
        (a as i32).saturating_add(b as i32) as u32
    });
    check32("vsub.u32.u32.u32.sat %r0, %r1, %r2", |a, b, _| a.saturating_sub(b));
    check32("vadd.u32.u32.s32 %r0, %r1.b2, %r2.h1", |a, b, _| (byte(a, 2) + half(b, 1)) as u32);
    check32("vadd.u32.u32.u32.sat %r0.b1, %r1.b0, %r2.b3, %r3", |a, b, c| {
        c & !0xff00 | ((byte(a, 0) + byte(b, 3)).min(255) as u32) << 8
    });
    check32("vmin.s32.s32.u32.max %r0, %r1, %r2, %r3", |a, b, c| {
        (i64::from(a as i32).min(b.into()) as i32).max(c as i32) as u32
    });
    check32("vabsdiff.u32.u32.u32.add %r0, %r1, %r2, %r3", |a, b, c| a.abs_diff(b).wrapping_add(c));
    check32("vset.s32.u32.lt %r0, %r1, %r2", |a, b, _| (i64::from(a as i32) < i64::from(b)).into());
}

#[test]
fn several_parts_are_computed_at_once() {
    check32("vadd4.u32.u32.u32 %r0, %r1, %r2, %r3", |a, b, _| {
        bytes(|number| byte(a, number) + byte(b, number))
    });
    check32("vadd4.u32.u32.u32.sat %r0, %r1, %r2, %r3", |a, b, _| {
        bytes(|number| (byte(a, number) + byte(b, number)).min(255))
    });
    check32("vabsdiff4.u32.u32.u32.add %r0, %r1, %r2, %r3", |a, b, c| {
        let sum: i64 = (0..4).map(|number| (byte(a, number) - byte(b, number)).abs()).sum();
        c.wrapping_add(sum as u32)
    });
    check32("vavrg4.u32.u32.u32 %r0, %r1, %r2, %r3", |a, b, _| {
        bytes(|number| (byte(a, number) + byte(b, number) + 1) / 2)
    });
    check32("vset4.u32.u32.ge %r0, %r1, %r2, %r3", |a, b, _| {
        bytes(|number| i64::from(byte(a, number) >= byte(b, number)))
    });
    check32("vmax2.s32.s32.s32 %r0, %r1, %r2, %r3", |a, b, _| {
        let larger = |number| half(a, number).max(half(b, number)) as u32 & 0xffff;
        larger(1) << 16 | larger(0)
    });
    check32("vsub2.s32.s32.s32.sat %r0, %r1, %r2, %r3", |a, b, _| {
        let difference =
            |number| (half(a, number) - half(b, number)).clamp(-32768, 32767) as u32 & 0xffff;
        difference(1) << 16 | difference(0)
    });
}

#[test]
fn what_is_not_there_is_refused() {
    for example in [
        "vshr.u32.u32.u32 %r0, %r1, %r2",
        "vadd.u32.u32.u32.add %r0, %r1, %r2",
        "vadd4.u32.u32.u32 %r0, %r1.b0, %r2, %r3",
        "vadd.u32.u32.u32 %r0.b0, %r1, %r2",
        "vadd.f32.u32.u32 %r0, %r1, %r2",
        "vadd.u32.u32.u32 %r0, %r1.b4, %r2",
    ] {
        let text = crate::common::module_text(&format!("{example};"));
        assert!(hwsim_ptx::Module::load(&text).is_err(), "{example}");
    }
}
