//! Conversions between all types.

use super::Type::{BF16, F16, F32, F64, S8, S16, S32, S64, U8, U16, U32, U64};
use super::{Form, Type};

const NANS: &str = "the bits of a NaN";

const INTEGERS: [Type; 8] = [U8, S8, U16, S16, U32, S32, U64, S64];

pub fn all() -> Vec<Form> {
    let mut forms = Vec::new();
    let floats = [F16, F32, F64];
    for to in INTEGERS {
        for from in INTEGERS {
            forms.push(cvt("", to, from));
            // Where every value fits, assemblers refuse it.
            if !holds(to, from) {
                forms.push(cvt(".sat", to, from));
            }
        }
        for from in floats {
            for rounding in [".rni", ".rzi", ".rmi", ".rpi"] {
                forms.push(cvt(rounding, to, from));
            }
        }
        forms.push(cvt(".rzi.ftz", to, F32));
    }
    for to in floats {
        for from in INTEGERS {
            for rounding in [".rn", ".rz", ".rm", ".rp"] {
                forms.push(cvt(rounding, to, from));
            }
        }
        forms.push(cvt(".rn.sat", to, S32));
        // Between floats: exact, to the same type, or rounded.
        for from in floats {
            if to.bits() > from.bits() {
                forms.push(cvt("", to, from).open(NANS));
                forms.push(cvt(".sat", to, from));
            } else if to.bits() == from.bits() {
                for mode in ["", ".rni", ".rzi", ".rmi", ".rpi"] {
                    forms.push(cvt(mode, to, from).open(NANS));
                }
                forms.push(cvt(".sat", to, from));
            } else {
                for rounding in [".rn", ".rz", ".rm", ".rp"] {
                    forms.push(cvt(rounding, to, from).open(NANS));
                }
                forms.push(cvt(".rn.sat", to, from));
            }
        }
    }
    forms.push(cvt(".ftz", F32, F32).open(NANS));
    forms.push(cvt(".ftz", F64, F32).open(NANS));
    forms.push(cvt(".rn.ftz", F32, F64).open(NANS));
    forms.push(cvt(".rz.ftz", F32, F64).open(NANS));
    forms.push(cvt(".rn.ftz", F16, F32).open(NANS));
    for rounding in [".rn", ".rz"] {
        forms.push(cvt(rounding, BF16, F32).open(NANS).from(80));
        forms.push(cvt(&format!("{rounding}.relu"), BF16, F32).open(NANS).from(80));
        forms.push(cvt(&format!("{rounding}.relu"), F16, F32).open(NANS).from(80));
    }
    forms
}

/// Does the integer type `to` hold every value of `from`?
fn holds(to: Type, from: Type) -> bool {
    let is_signed = |ty| matches!(ty, S8 | S16 | S32 | S64);
    match (is_signed(to), is_signed(from)) {
        (false, true) => false,
        (true, false) => to.bits() > from.bits(),
        _ => to.bits() >= from.bits(),
    }
}

fn cvt(modifiers: &str, to: Type, from: Type) -> Form {
    Form::new(&format!("cvt{modifiers}.{}.{}", to.name(), from.name()), to, &[from])
}
