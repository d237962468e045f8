//! Floats, by LLVM's soft floats.

use hwsim_judge::forms::Type;
use rustc_apfloat::ieee::{BFloat, Double, Half, Quad, Single};
use rustc_apfloat::{Float, FloatConvert, Round};

/// How a form rounds, and what it does with what is small or large.
#[derive(Clone, Copy)]
struct Mode {
    round: Round,
    ftz: bool,
    sat: bool,
    relu: bool,
    propagates_nan: bool,
}

impl Mode {
    fn of(words: &[&str]) -> Self {
        let round = words.iter().find_map(|word| match *word {
            "rz" | "rzi" => Some(Round::TowardZero),
            "rm" | "rmi" => Some(Round::TowardNegative),
            "rp" | "rpi" => Some(Round::TowardPositive),
            _ => None,
        });
        Self {
            round: round.unwrap_or(Round::NearestTiesToEven),
            ftz: words.contains(&"ftz"),
            sat: words.contains(&"sat"),
            relu: words.contains(&"relu"),
            propagates_nan: words.contains(&"NaN"),
        }
    }

    fn flush<F: Float>(self, value: F) -> F {
        match self.ftz && value.is_denormal() {
            true if value.is_negative() => -F::ZERO,
            true => F::ZERO,
            false => value,
        }
    }

    /// The bits of a result.
    fn finish<F: Float>(self, value: F) -> u64 {
        let value = self.flush(value);
        let one = F::from_u128(1).value;
        if self.sat {
            let positive = !value.is_nan() && value > F::ZERO;
            let clamped = if positive && value > one { one } else { value };
            return if positive { clamped.to_bits() as u64 } else { 0 };
        }
        if value.is_nan() {
            return nan::<F>();
        }
        if self.relu && value < F::ZERO {
            return 0;
        }
        value.to_bits() as u64
    }
}

/// All bits below the sign; of f64 any NaN will do.
fn nan<F: Float>() -> u64 {
    u64::MAX >> (65 - F::BITS)
}

/// The result, of the forms that this file knows.
pub fn expected(words: &[&str], from: Type, to: Type, operands: &[u64]) -> Option<u64> {
    let result = result(words, from, to, operands)?;
    // Whether `.relu` takes a zero with its sign for negative, PTX does not say.
    let negative_zero = 1 << (to.bits() - 1);
    (!words.contains(&"relu") || result != negative_zero).then_some(result)
}

fn result(words: &[&str], from: Type, to: Type, operands: &[u64]) -> Option<u64> {
    if words[0] == "cvt" {
        return convert(words, from, to, operands[0]);
    }
    match from {
        Type::F16 => arithmetic::<Half>(words, operands),
        Type::BF16 => arithmetic::<BFloat>(words, operands),
        Type::F32 => arithmetic::<Single>(words, operands),
        Type::F64 => arithmetic::<Double>(words, operands),
        _ => None,
    }
}

fn arithmetic<F: Float + FloatConvert<Quad>>(words: &[&str], operands: &[u64]) -> Option<u64> {
    if words.contains(&"approx") || words.contains(&"full") {
        return None;
    }
    let mode = Mode::of(words);
    let raw = |number: usize| F::from_bits(u128::from(operands[number]));
    let of = |number: usize| mode.flush(raw(number));
    let (a, b) = (of(0), operands.get(1).map_or(F::ZERO, |_| of(1)));
    let sign = 1_u64 << (F::BITS - 1);
    let done = |value: F| Some(mode.finish(value));
    match words[0] {
        "add" => done(a.add_r(b, mode.round).value),
        "sub" => done(a.sub_r(b, mode.round).value),
        "mul" => done(a.mul_r(b, mode.round).value),
        "fma" => done(a.mul_add_r(b, of(2), mode.round).value),
        "div" => done(a.div_r(b, mode.round).value),
        "rcp" => done(F::from_u128(1).value.div_r(a, mode.round).value),
        "sqrt" => done(square_root(a, mode.round)),
        // The bits of f64 NaNs are open, and so is whether their sign changes.
        "abs" => done(a.abs()),
        "neg" => done(-a),
        "copysign" => Some(operands[0] & sign | operands[1] & !sign),
        "min" | "max" => done(extreme(words[0] == "max", mode, a, b)),
        "setp" => Some(u64::from(compare(words[1], a, b)?)),
        "testp" => Some(u64::from(match words[1] {
            "finite" => a.is_finite(),
            "infinite" => a.is_infinite(),
            "number" => !a.is_nan(),
            "notanumber" => a.is_nan(),
            "normal" => a.is_normal(),
            "subnormal" => a.is_denormal(),
            _ => return None,
        })),
        _ => None,
    }
}

/// A NaN loses against a number, unless it is asked for; +0 is above -0.
fn extreme<F: Float>(is_max: bool, mode: Mode, a: F, b: F) -> F {
    if a.is_nan() || b.is_nan() {
        let number = if a.is_nan() { b } else { a };
        return if mode.propagates_nan { F::NAN } else { number };
    }
    let a_is_less = a < b || (a == b && a.is_negative());
    if a_is_less == is_max { b } else { a }
}

fn compare<F: Float>(operator: &str, a: F, b: F) -> Option<bool> {
    let unordered = a.is_nan() || b.is_nan();
    let ordered = |name: &str| match name {
        "eq" => Some(a == b),
        "ne" => Some(a != b && !unordered),
        "lt" => Some(a < b),
        "le" => Some(a <= b),
        "gt" => Some(a > b),
        "ge" => Some(a >= b),
        _ => None,
    };
    match operator {
        "num" => Some(!unordered),
        "nan" => Some(unordered),
        _ if operator.len() == 3 => Some(unordered || ordered(&operator[..2])?),
        _ => ordered(operator),
    }
}

/// By squares, which 113 bits hold exactly: LLVM has no root.
fn square_root<F: Float + FloatConvert<Quad>>(a: F, round: Round) -> F {
    if a.is_nan() || (a.is_negative() && !a.is_zero()) {
        return F::NAN;
    }
    if a.is_zero() || a.is_infinite() {
        return a;
    }
    let wide = |value: F| -> Quad { value.convert(&mut false).value };
    let square = |value: Quad| (value * value).value;
    let target = wide(a);
    // The largest number whose square is not above the target: by halving between patterns.
    let (mut low, mut high) = (0_u128, F::INFINITY.to_bits());
    while high - low > 1 {
        let middle = u128::midpoint(low, high);
        if square(wide(F::from_bits(middle))) <= target { low = middle } else { high = middle }
    }
    let (below, above) = (F::from_bits(low), F::from_bits(high));
    let exact = square(wide(below)) == target;
    match round {
        _ if exact => below,
        Round::TowardPositive => above,
        Round::NearestTiesToEven => {
            // Twice the middle between the two, whose square is four times its own.
            let middle = square((wide(below) + wide(above)).value);
            let four = Quad::from_u128(4).value;
            if middle < (target * four).value { above } else { below }
        }
        _ => below,
    }
}

fn convert(words: &[&str], from: Type, to: Type, raw: u64) -> Option<u64> {
    match (from.is_float(), to.is_float()) {
        (false, true) => match to {
            Type::F16 => Some(from_integer::<Half>(words, from, raw)),
            Type::F32 => Some(from_integer::<Single>(words, from, raw)),
            _ => Some(from_integer::<Double>(words, from, raw)),
        },
        (true, false) => match from {
            Type::F16 => to_integer::<Half>(words, from, to, raw),
            Type::F32 => to_integer::<Single>(words, from, to, raw),
            _ => to_integer::<Double>(words, from, to, raw),
        },
        _ => match from {
            Type::F16 => between::<Half>(words, from, to, raw),
            Type::F32 => between::<Single>(words, from, to, raw),
            _ => between::<Double>(words, from, to, raw),
        },
    }
}

fn is_signed(ty: Type) -> bool {
    matches!(ty, Type::S8 | Type::S16 | Type::S32 | Type::S64)
}

fn from_integer<F: Float>(words: &[&str], from: Type, raw: u64) -> u64 {
    let mode = Mode::of(words);
    let low = u128::from(raw) & ((1 << from.bits()) - 1);
    let negative = is_signed(from) && low >> (from.bits() - 1) == 1;
    let value = low as i128 - if negative { 1 << from.bits() } else { 0 };
    mode.finish(F::from_i128_r(value, mode.round).value)
}

fn to_integer<F: Float>(words: &[&str], from: Type, to: Type, raw: u64) -> Option<u64> {
    let mode = Mode { ftz: words.contains(&"ftz"), ..Mode::of(words) };
    let value = mode.flush(F::from_bits(u128::from(raw)));
    let bits = to.bits();
    let filled = |value: i128| {
        let width = bits.max(if bits == 8 { 32 } else { 16 });
        Some((value & ((1 << width) - 1)) as u64)
    };
    if value.is_nan() {
        // Zero, unless the source is an f64 or the result has 64 bits: then the sign bit alone.
        let alone = match is_signed(to) {
            true => -(1_i128 << (bits - 1)),
            false => 1 << (bits - 1),
        };
        return filled(if from == Type::F64 || bits == 64 { alone } else { 0 });
    }
    let (least, greatest) = match is_signed(to) {
        true => (-(1_i128 << (bits - 1)), (1 << (bits - 1)) - 1),
        false => (0, (1 << bits) - 1),
    };
    // Wider than any source of f32 or less; what does not fit is at its edge.
    let whole = value.to_i128_r(128, mode.round, &mut false).value;
    filled(whole.clamp(least, greatest))
}

fn between<F>(words: &[&str], from: Type, to: Type, raw: u64) -> Option<u64>
where
    F: Float + FloatConvert<Half> + FloatConvert<BFloat> + FloatConvert<Single>,
    F: FloatConvert<Double>,
{
    let mode = Mode::of(words);
    // A move.
    if words.len() == 3 && from == to && from != Type::F16 {
        return Some(raw);
    }
    let value = F::from_bits(u128::from(raw));
    let value = if from == Type::F32 { mode.flush(value) } else { value };
    let to_whole = words[1].len() == 3 && words[1].starts_with('r') && words[1].ends_with('i');
    let value = if to_whole { value.round_to_integral(mode.round).value } else { value };
    // `.ftz` is about f32 alone.
    let after = Mode { ftz: mode.ftz && to == Type::F32, ..mode };
    Some(match to {
        Type::F16 => after.finish::<Half>(value.convert_r(mode.round, &mut false).value),
        Type::BF16 => after.finish::<BFloat>(value.convert_r(mode.round, &mut false).value),
        Type::F32 => after.finish::<Single>(value.convert_r(mode.round, &mut false).value),
        _ => after.finish::<Double>(value.convert_r(mode.round, &mut false).value),
    })
}
