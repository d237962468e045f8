//! Votes and shuffles: whole warps.

use super::Form;
use super::Type::{F32, Place, U32};

pub fn all() -> Vec<Form> {
    let mut forms = Vec::new();
    for kind in ["all", "any", "uni"] {
        let text = format!(
            "setp.gt.s32 %p0, {{a}}, {{b}}; vote.sync.{kind}.pred %p1, %p0, 0xffffffff; \
             selp.u32 {{d}}, 1, 0, %p1;"
        );
        let form = Form::new(&format!("vote.sync.{kind}"), U32, &[U32, U32]);
        forms.push(form.with_text(&text));
    }
    let text = "setp.gt.s32 %p0, {a}, {b}; vote.sync.ballot.b32 {d}, %p0, 0xffffffff;";
    forms.push(Form::new("vote.sync.ballot", U32, &[U32, U32]).with_text(text));
    for mode in ["up", "down", "bfly", "idx"] {
        // The whole warp, and segments of eight lanes.
        for (name, clamp) in [("warp", 0x1f), ("eight", 0x181f)] {
            let clamp = if mode == "up" { clamp & !0x1f } else { clamp };
            // Above bit 4 nothing counts of a lane; the predicate goes into the top bit.
            let text = format!(
                "and.b32 %r7, {{b}}, 31; \
                 shfl.sync.{mode}.b32 {{d}}|%p0, {{a}}, %r7, {clamp}, 0xffffffff; \
                 @%p0 xor.b32 {{d}}, {{d}}, 0x80000000;"
            );
            let form = Form::new(&format!("shfl.sync.{mode}.{name}"), U32, &[U32, Place]);
            forms.push(form.with_text(&text));
        }
    }
    for (kind, ty) in [("any", "b32"), ("all", "b32")] {
        let text = match kind {
            "any" => format!("match.any.sync.{ty} {{d}}, {{a}}, 0xffffffff;"),
            _ => format!(
                "match.all.sync.{ty} {{d}}|%p0, {{a}}, 0xffffffff; @%p0 xor.b32 {{d}}, {{d}}, 1;"
            ),
        };
        forms.push(Form::new(&format!("match.{kind}.sync.{ty}"), U32, &[U32]).with_text(&text));
    }
    for operation in ["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"] {
        let text = format!("redux.sync.{operation} {{d}}, {{a}}, 0xffffffff;");
        let form = Form::new(&format!("redux.sync.{operation}"), U32, &[U32]);
        forms.push(form.with_text(&text).from(80));
    }
    let text = "slct.f32.f32 {d}, {a}, {b}, {c};";
    forms.push(Form::new("slct.f32.f32", F32, &[F32, F32, F32]).with_text(text));
    let text = "slct.ftz.u32.f32 {d}, {a}, {b}, {c};";
    forms.push(Form::new("slct.ftz.u32.f32", U32, &[U32, U32, F32]).with_text(text));
    forms
}
