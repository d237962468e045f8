//! Integers, fields of bits, and carries.

use super::Form;
use super::Type::{Place, S16, S32, S64, U16, U32, U64};

const BY_ZERO: &str = "a division by zero gives a value that the machine chooses";
const OVERFLOW: &str = "the quotient of the least number and -1 is no number of the type";
const BORROW: &str = "a subtraction's borrow in an addition, or a carry in a subtraction";

pub fn all() -> Vec<Form> {
    let mut forms = Vec::new();
    let types = [U16, S16, U32, S32, U64, S64];
    for ty in types {
        let name = ty.name();
        for opcode in ["add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem"] {
            let form = Form::new(&format!("{opcode}.{name}"), ty, &[ty, ty]);
            let signed = matches!(ty, S16 | S32 | S64);
            forms.push(match opcode {
                "div" | "rem" => form.open(if signed { OVERFLOW } else { BY_ZERO }),
                _ => form,
            });
        }
        forms.push(Form::new(&format!("mad.lo.{name}"), ty, &[ty, ty, ty]));
        forms.push(Form::new(&format!("mad.hi.{name}"), ty, &[ty, ty, ty]));
        forms.push(Form::new(&format!("sad.{name}"), ty, &[ty, ty, ty]));
        forms.push(Form::new(&format!("shr.{name}"), ty, &[ty, Place]));
        for operator in ["eq", "ne", "lt", "le", "gt", "ge"] {
            let text =
                format!("setp.{operator}.{name} %p0, {{a}}, {{b}}; selp.u32 {{d}}, 1, 0, %p0;");
            let form = Form::new(&format!("setp.{operator}.{name}"), U32, &[ty, ty]);
            forms.push(form.with_text(&text));
        }
    }
    for (ty, wide) in [(U16, U32), (S16, S32), (U32, U64), (S32, S64)] {
        let name = ty.name();
        forms.push(Form::new(&format!("mul.wide.{name}"), wide, &[ty, ty]));
        forms.push(Form::new(&format!("mad.wide.{name}"), wide, &[ty, ty, wide]));
    }
    for ty in [S16, S32, S64] {
        forms.push(Form::new(&format!("abs.{}", ty.name()), ty, &[ty]));
        forms.push(Form::new(&format!("neg.{}", ty.name()), ty, &[ty]));
    }
    for (bits, ty) in [(16, U16), (32, U32), (64, U64)] {
        for opcode in ["and", "or", "xor"] {
            forms.push(Form::new(&format!("{opcode}.b{bits}"), ty, &[ty, ty]));
        }
        forms.push(Form::new(&format!("not.b{bits}"), ty, &[ty]));
        forms.push(Form::new(&format!("cnot.b{bits}"), ty, &[ty]));
        forms.push(Form::new(&format!("shl.b{bits}"), ty, &[ty, Place]));
    }
    forms.push(Form::new("add.sat.s32", S32, &[S32, S32]));
    forms.push(Form::new("sub.sat.s32", S32, &[S32, S32]));
    forms.push(Form::new("mad.hi.sat.s32", S32, &[S32, S32, S32]));
    for ty in [U32, S32] {
        for part in ["lo", "hi"] {
            let name = ty.name();
            forms.push(Form::new(&format!("mul24.{part}.{name}"), ty, &[ty, ty]));
            forms.push(Form::new(&format!("mad24.{part}.{name}"), ty, &[ty, ty, ty]));
        }
    }
    forms.push(Form::new("mad24.hi.sat.s32", S32, &[S32, S32, S32]));
    forms.extend(fields());
    forms.extend(carries());
    forms
}

fn fields() -> Vec<Form> {
    let mut forms = Vec::new();
    for (bits, ty) in [(32, U32), (64, U64)] {
        forms.push(Form::new(&format!("popc.b{bits}"), U32, &[ty]));
        forms.push(Form::new(&format!("clz.b{bits}"), U32, &[ty]));
        forms.push(Form::new(&format!("brev.b{bits}"), ty, &[ty]));
        forms.push(Form::new(&format!("bfi.b{bits}"), ty, &[ty, ty, Place, Place]));
    }
    for ty in [U32, S32, U64, S64] {
        let name = ty.name();
        forms.push(Form::new(&format!("bfe.{name}"), ty, &[ty, Place, Place]));
        forms.push(Form::new(&format!("bfind.{name}"), U32, &[ty]));
        forms.push(Form::new(&format!("bfind.shiftamt.{name}"), U32, &[ty]));
    }
    for mode in ["clamp", "wrap"] {
        forms.push(Form::new(&format!("shf.l.{mode}.b32"), U32, &[U32, U32, Place]));
        forms.push(Form::new(&format!("shf.r.{mode}.b32"), U32, &[U32, U32, Place]));
        for (opcode, operands) in [("bmsk", "b32"), ("szext", "u32"), ("szext", "s32")] {
            let first = if opcode == "bmsk" { Place } else { U32 };
            let form = Form::new(&format!("{opcode}.{mode}.{operands}"), U32, &[first, Place]);
            forms.push(form.from(72));
        }
    }
    for mode in ["", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"] {
        forms.push(Form::new(&format!("prmt.b32{mode}"), U32, &[U32, U32, U32]));
    }
    for (a, b) in [("u32", "u32"), ("u32", "s32"), ("s32", "u32"), ("s32", "s32")] {
        forms.push(Form::new(&format!("dp4a.{a}.{b}"), U32, &[U32, U32, U32]));
        forms.push(Form::new(&format!("dp2a.lo.{a}.{b}"), U32, &[U32, U32, U32]));
        forms.push(Form::new(&format!("dp2a.hi.{a}.{b}"), U32, &[U32, U32, U32]));
    }
    let text = "lop3.b32 {d}, {a}, {b}, {c}, 0xd8;";
    forms.push(Form::new("lop3.b32", U32, &[U32, U32, U32]).with_text(text));
    forms
}

/// Chains of two, whose carry becomes the result.
fn carries() -> Vec<Form> {
    let mut forms = Vec::new();
    for (ty, zero) in [(U32, "%r7"), (U64, "%d7")] {
        let (name, bits) = (ty.name(), ty.bits());
        for (first, second, open) in [
            ("add.cc", "addc", false),
            ("sub.cc", "subc", false),
            ("sub.cc", "addc", true),
            ("add.cc", "subc", true),
        ] {
            let text = format!(
                "mov.b{bits} {zero}, 5; {first}.{name} {{d}}, {{a}}, {{b}}; \
                 {second}.{name} {{d}}, {zero}, {{c}};"
            );
            let form = Form::new(&format!("{first}+{second}.{name}"), ty, &[ty, ty, ty]);
            let form = form.with_text(&text);
            forms.push(if open { form.open(BORROW) } else { form });
        }
        let text = format!(
            "mad.lo.cc.{name} {{d}}, {{a}}, {{b}}, {{c}}; \
             madc.hi.{name} {{d}}, {{a}}, {{b}}, {{c}};"
        );
        let form = Form::new(&format!("mad.lo.cc+madc.hi.{name}"), ty, &[ty, ty, ty]);
        forms.push(form.with_text(&text));
    }
    forms
}
