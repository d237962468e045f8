//! Arithmetic of floats.

use super::Type::{BF16, F16, F32, F64, U32};
use super::{Form, Type};

const NANS: &str = "the bits of a NaN of single precision, or of less";
const PAYLOAD: &str = "whose payload a NaN has";
const APPROXIMATE: &str = "the last bits of an approximation";

pub fn all() -> Vec<Form> {
    let mut forms = Vec::new();
    for rounding in ["rn", "rz", "rm", "rp"] {
        for flags in ["", ".ftz", ".sat", ".ftz.sat"] {
            forms.extend(arithmetic(F32, rounding, flags));
        }
        forms.extend(arithmetic(F64, rounding, ""));
        for ftz in ["", ".ftz"] {
            forms.extend(division(F32, rounding, ftz));
        }
        forms.extend(division(F64, rounding, ""));
    }
    for ftz in ["", ".ftz"] {
        for opcode in ["rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos"] {
            let form = Form::new(&format!("{opcode}.approx{ftz}.f32"), F32, &[F32]);
            forms.push(form.open(APPROXIMATE));
        }
        for kind in ["approx", "full"] {
            let form = Form::new(&format!("div.{kind}{ftz}.f32"), F32, &[F32, F32]);
            forms.push(form.open(APPROXIMATE));
        }
        forms.extend(bits_and_order(F32, ftz));
    }
    forms.push(Form::new("tanh.approx.f32", F32, &[F32]).open(APPROXIMATE).from(75));
    forms.push(Form::new("rcp.approx.ftz.f64", F64, &[F64]).open(APPROXIMATE));
    forms.push(Form::new("rsqrt.approx.ftz.f64", F64, &[F64]).open(APPROXIMATE).from(90));
    forms.push(Form::new("rsqrt.approx.f64", F64, &[F64]).open(APPROXIMATE));
    forms.extend(bits_and_order(F64, ""));
    forms.extend(halves());
    for ty in [F32, F64] {
        let name = ty.name();
        forms.push(Form::new(&format!("copysign.{name}"), ty, &[ty, ty]));
        for property in ["finite", "infinite", "number", "notanumber", "normal", "subnormal"] {
            let text = format!("testp.{property}.{name} %p0, {{a}}; selp.u32 {{d}}, 1, 0, %p0;");
            let form = Form::new(&format!("testp.{property}.{name}"), U32, &[ty]);
            forms.push(form.with_text(&text));
        }
    }
    forms
}

const fn of_nans(ty: Type) -> &'static str {
    if matches!(ty, F64) { PAYLOAD } else { NANS }
}

fn arithmetic(ty: Type, rounding: &str, flags: &str) -> Vec<Form> {
    let name = ty.name();
    let new = |opcode: &str, operands: &[Type]| {
        Form::new(&format!("{opcode}.{rounding}{flags}.{name}"), ty, operands).open(of_nans(ty))
    };
    vec![
        new("add", &[ty, ty]),
        new("sub", &[ty, ty]),
        new("mul", &[ty, ty]),
        new("fma", &[ty, ty, ty]),
    ]
}

fn division(ty: Type, rounding: &str, ftz: &str) -> Vec<Form> {
    let name = ty.name();
    let new = |opcode: &str, operands: &[Type]| {
        Form::new(&format!("{opcode}.{rounding}{ftz}.{name}"), ty, operands).open(of_nans(ty))
    };
    vec![new("div", &[ty, ty]), new("rcp", &[ty]), new("sqrt", &[ty])]
}

/// Signs, extremes and comparisons.
fn bits_and_order(ty: Type, ftz: &str) -> Vec<Form> {
    let name = ty.name();
    let mut forms = vec![
        Form::new(&format!("abs{ftz}.{name}"), ty, &[ty]).open(of_nans(ty)),
        Form::new(&format!("neg{ftz}.{name}"), ty, &[ty]).open(of_nans(ty)),
        Form::new(&format!("min{ftz}.{name}"), ty, &[ty, ty]).open(of_nans(ty)),
        Form::new(&format!("max{ftz}.{name}"), ty, &[ty, ty]).open(of_nans(ty)),
    ];
    if matches!(ty, F32) {
        for opcode in ["min", "max"] {
            forms.push(Form::new(&format!("{opcode}{ftz}.NaN.f32"), ty, &[ty, ty]).from(80));
        }
    }
    for operator in
        ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]
    {
        let instruction = format!("setp.{operator}{ftz}.{name}");
        let text = format!("{instruction} %p0, {{a}}, {{b}}; selp.u32 {{d}}, 1, 0, %p0;");
        forms.push(Form::new(&instruction, U32, &[ty, ty]).with_text(&text));
    }
    forms
}

fn halves() -> Vec<Form> {
    let mut forms = Vec::new();
    for (ty, ftz, target) in [(F16, "", 70), (F16, ".ftz", 70), (BF16, "", 90)] {
        let name = ty.name();
        for opcode in ["add", "sub", "mul"] {
            let instruction = format!("{opcode}.rn{ftz}.{name}");
            forms.push(Form::new(&instruction, ty, &[ty, ty]).open(NANS).from(target));
            if matches!(ty, F16) {
                let instruction = format!("{opcode}.rn{ftz}.sat.{name}");
                forms.push(Form::new(&instruction, ty, &[ty, ty]).from(target));
            }
        }
        let three = [ty, ty, ty];
        let target = if matches!(ty, F16) { 70 } else { 80 };
        forms.push(Form::new(&format!("fma.rn{ftz}.{name}"), ty, &three).open(NANS).from(target));
        forms.push(Form::new(&format!("fma.rn{ftz}.relu.{name}"), ty, &three).open(NANS).from(80));
        for opcode in ["min", "max", "min.NaN", "max.NaN"] {
            let (opcode, nan) = opcode.split_once('.').unwrap_or((opcode, ""));
            let nan = if nan.is_empty() { "" } else { ".NaN" };
            let instruction = format!("{opcode}{ftz}{nan}.{name}");
            forms.push(Form::new(&instruction, ty, &[ty, ty]).open(NANS).from(80));
        }
        for opcode in ["abs", "neg"] {
            let form = Form::new(&format!("{opcode}{ftz}.{name}"), ty, &[ty]);
            forms.push(form.open(NANS).from(target));
        }
    }
    forms
}
