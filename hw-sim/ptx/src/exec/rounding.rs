//! Exact arithmetic on any binary format in any rounding direction, in integers.
//!
//! The host rounds to nearest, in f32 and f64 only; this is what everything else goes through.

/// A binary floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bits of the exponent.
    pub exponent_bits: u32,
    /// Bits of the fraction, without the hidden one.
    pub fraction_bits: u32,
}

/// IEEE half precision.
pub const F16: Format = Format { exponent_bits: 5, fraction_bits: 10 };
/// The upper half of an f32.
pub const BF16: Format = Format { exponent_bits: 8, fraction_bits: 7 };
/// IEEE single precision.
pub const F32: Format = Format { exponent_bits: 8, fraction_bits: 23 };
/// IEEE double precision.
pub const F64: Format = Format { exponent_bits: 11, fraction_bits: 52 };

/// A rounding direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// `.rn`: to nearest, ties to even.
    Nearest,
    /// `.rz`: toward zero.
    Zero,
    /// `.rm`: toward minus infinity.
    Down,
    /// `.rp`: toward plus infinity.
    Up,
    /// `.rna`: to nearest, ties away from zero.
    NearestAway,
}

impl Rounding {
    /// From the two low bits or so of an operand word, as the decoder packs it.
    pub const fn from_code(code: u32) -> Self {
        match code & 7 {
            1 => Self::Zero,
            2 => Self::Down,
            3 => Self::Up,
            4 => Self::NearestAway,
            _ => Self::Nearest,
        }
    }

    /// The inverse of [`Rounding::from_code`].
    pub const fn code(self) -> u32 {
        match self {
            Self::Nearest => 0,
            Self::Zero => 1,
            Self::Down => 2,
            Self::Up => 3,
            Self::NearestAway => 4,
        }
    }

    /// Does a magnitude round away from zero, given its last kept bit and what was cut off?
    fn increments(self, negative: bool, odd: bool, cut: Cut) -> bool {
        match self {
            Self::Nearest => cut == Cut::AboveHalf || (cut == Cut::Half && odd),
            Self::NearestAway => matches!(cut, Cut::Half | Cut::AboveHalf),
            Self::Zero => false,
            Self::Down => negative && cut != Cut::None,
            Self::Up => !negative && cut != Cut::None,
        }
    }
}

/// What lies below the last kept bit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    None,
    BelowHalf,
    Half,
    AboveHalf,
}

/// `±magnitude × 2^exponent`, finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exact {
    /// Sign.
    pub negative: bool,
    /// Magnitude.
    pub magnitude: u128,
    /// Power of two.
    pub exponent: i32,
}

impl Exact {
    /// A finite f64, taken apart.
    pub fn from_f64(value: f64) -> Self {
        let bits = value.to_bits();
        let biased = (bits >> 52 & 0x7ff) as i32;
        let fraction = u128::from(bits & ((1 << 52) - 1));
        let (magnitude, exponent) =
            if biased == 0 { (fraction, -1074) } else { (fraction | 1 << 52, biased - 1075) };
        Self { negative: value.is_sign_negative(), magnitude, exponent }
    }

    /// An integer.
    pub fn from_integer(value: i128) -> Self {
        Self { negative: value < 0, magnitude: value.unsigned_abs(), exponent: 0 }
    }

    /// Moves the highest bit to bit 125: room for one carry, and for a sticky bit below.
    fn normalised(self) -> Self {
        if self.magnitude == 0 {
            return self;
        }
        let shift = 125 - (127 - self.magnitude.leading_zeros() as i32);
        if shift < 0 {
            return self.shifted_right(shift.unsigned_abs());
        }
        Self { magnitude: self.magnitude << shift, exponent: self.exponent - shift, ..self }
    }

    /// Shifts right; what falls off leaves the last bit set.
    fn shifted_right(self, shift: u32) -> Self {
        let exponent = self.exponent.saturating_add(shift as i32);
        let kept = self.magnitude.checked_shr(shift).unwrap_or(0);
        let lost = kept.checked_shl(shift).unwrap_or(0) != self.magnitude;
        Self { magnitude: kept | u128::from(lost), exponent, ..self }
    }

    /// A product; both magnitudes must be below 2^64.
    pub fn times(self, other: Self) -> Self {
        Self {
            negative: self.negative != other.negative,
            magnitude: self.magnitude * other.magnitude,
            exponent: self.exponent + other.exponent,
        }
    }

    /// A sum, exact up to a sticky last bit far below any format's precision. A zero sum of
    /// unlike signs is +0, or -0 when rounding down.
    pub fn plus(self, other: Self, rounding: Rounding) -> Self {
        if self.magnitude == 0 && other.magnitude == 0 {
            let negative = if self.negative == other.negative {
                self.negative
            } else {
                rounding == Rounding::Down
            };
            return Self { negative, ..self };
        }
        if self.magnitude == 0 {
            return other;
        }
        if other.magnitude == 0 {
            return self;
        }
        let (mut large, mut small) = (self.normalised(), other.normalised());
        if (small.exponent, small.magnitude) > (large.exponent, large.magnitude) {
            std::mem::swap(&mut large, &mut small);
        }
        let small = small.shifted_right((large.exponent - small.exponent) as u32);
        if large.negative == small.negative {
            return Self { magnitude: large.magnitude + small.magnitude, ..large };
        }
        let magnitude = large.magnitude - small.magnitude;
        let negative = if magnitude == 0 { rounding == Rounding::Down } else { large.negative };
        Self { negative, magnitude, ..large }
    }

    /// Rounds to a format; gives its bits.
    pub fn encode(self, format: Format, rounding: Rounding) -> u64 {
        let fraction_bits = format.fraction_bits as i32;
        let bias = (1_i32 << (format.exponent_bits - 1)) - 1;
        let sign = u64::from(self.negative) << (format.exponent_bits + format.fraction_bits);
        if self.magnitude == 0 {
            return sign;
        }
        let top = self.exponent + 127 - self.magnitude.leading_zeros() as i32;
        let least_normal = 1 - bias;
        let shift = top.max(least_normal) - fraction_bits - self.exponent;
        let (kept, cut) = split(self.magnitude, shift);
        let up = rounding.increments(self.negative, kept & 1 == 1, cut);
        // The hidden bit of a normal number adds one to the exponent field, and a carry out of
        // the fraction does the same.
        let infinity = ((1_i64 << format.exponent_bits) - 1) << fraction_bits;
        // What is far too large has no place in the field of the exponent.
        if top <= bias {
            let base = if top >= least_normal { i64::from(top + bias - 1) } else { 0 };
            let bits = (base << fraction_bits) + kept as i64 + i64::from(up);
            if bits < infinity {
                return sign | bits as u64;
            }
        }
        let to_infinity = match rounding {
            Rounding::Nearest | Rounding::NearestAway => true,
            Rounding::Zero => false,
            Rounding::Down => self.negative,
            Rounding::Up => !self.negative,
        };
        sign | if to_infinity { infinity } else { infinity - 1 } as u64
    }
}

/// `magnitude >> shift` (left where negative), and what was cut off.
fn split(magnitude: u128, shift: i32) -> (u128, Cut) {
    if shift <= 0 {
        return (magnitude << shift.unsigned_abs(), Cut::None);
    }
    if shift >= 128 {
        let above = shift == 128 && magnitude > 1 << 127;
        let half = shift == 128 && magnitude == 1 << 127;
        let cut = if above {
            Cut::AboveHalf
        } else if half {
            Cut::Half
        } else {
            Cut::BelowHalf
        };
        return (0, cut);
    }
    let kept = magnitude >> shift;
    let rest = magnitude & ((1 << shift) - 1);
    let half = 1_u128 << (shift - 1);
    let cut = match rest.cmp(&half) {
        _ if rest == 0 => Cut::None,
        std::cmp::Ordering::Less => Cut::BelowHalf,
        std::cmp::Ordering::Equal => Cut::Half,
        std::cmp::Ordering::Greater => Cut::AboveHalf,
    };
    (kept, cut)
}

/// A quiet NaN as the device writes it: all bits below the sign.
pub const fn canonical_nan(format: Format) -> u64 {
    match format.exponent_bits {
        11 => 0xfff8_0000_0000_0000,
        _ => (1 << (format.exponent_bits + format.fraction_bits)) - 1,
    }
}

/// Rounds any f64 to a format; gives its bits.
pub fn from_f64(value: f64, format: Format, rounding: Rounding) -> u64 {
    if value.is_nan() {
        return canonical_nan(format);
    }
    let sign_shift = format.exponent_bits + format.fraction_bits;
    if value.is_infinite() {
        let infinity = ((1_u64 << format.exponent_bits) - 1) << format.fraction_bits;
        return infinity | u64::from(value < 0.0) << sign_shift;
    }
    Exact::from_f64(value).encode(format, rounding)
}

/// Bits of a format as an f64, which holds every value of all of them.
pub fn to_f64(bits: u64, format: Format) -> f64 {
    match format {
        F16 => half::f16::from_bits(bits as u16).to_f64(),
        BF16 => f64::from(f32::from_bits((bits as u32) << 16)),
        F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

/// `a × b + c` rounded once, from values of a format (as f64) to its bits.
pub fn fused(a: f64, b: f64, c: f64, format: Format, rounding: Rounding) -> u64 {
    if !(a.is_finite() && b.is_finite() && c.is_finite()) {
        // Infinities and NaNs follow the same rules in every format.
        return from_f64(a.mul_add(b, c), format, rounding);
    }
    let product = Exact::from_f64(a).times(Exact::from_f64(b));
    product.plus(Exact::from_f64(c), rounding).encode(format, rounding)
}

/// `a + b` rounded once.
pub fn sum(a: f64, b: f64, format: Format, rounding: Rounding) -> u64 {
    if !(a.is_finite() && b.is_finite()) {
        return from_f64(a + b, format, rounding);
    }
    Exact::from_f64(a).plus(Exact::from_f64(b), rounding).encode(format, rounding)
}

/// `a × b` rounded once.
pub fn product(a: f64, b: f64, format: Format, rounding: Rounding) -> u64 {
    if !(a.is_finite() && b.is_finite()) {
        return from_f64(a * b, format, rounding);
    }
    Exact::from_f64(a).times(Exact::from_f64(b)).encode(format, rounding)
}

/// `a / b` rounded once.
pub fn quotient(a: f64, b: f64, format: Format, rounding: Rounding) -> u64 {
    if !(a.is_finite() && b.is_finite()) || a == 0.0 || b == 0.0 {
        return from_f64(a / b, format, rounding);
    }
    let (a, b) = (Exact::from_f64(a).normalised(), Exact::from_f64(b));
    let (whole, rest) = (a.magnitude / b.magnitude, a.magnitude % b.magnitude);
    // At least 72 bits, more than any format keeps: the last one may stand for all that follow.
    let exact = Exact {
        negative: a.negative != b.negative,
        magnitude: whole | u128::from(rest != 0),
        exponent: a.exponent - b.exponent,
    };
    exact.encode(format, rounding)
}

/// The square root, rounded once.
pub fn square_root(a: f64, format: Format, rounding: Rounding) -> u64 {
    if a.is_nan() || a <= 0.0 || a.is_infinite() {
        return from_f64(a.sqrt(), format, rounding);
    }
    let exact = Exact::from_f64(a).normalised();
    // The root of a power of two is one where its exponent is even.
    let odd = exact.exponent & 1;
    let square = exact.magnitude << odd;
    let root = square.isqrt();
    // 63 bits, with one for all that follow, as above.
    let magnitude = (root << 1) | u128::from(root * root != square);
    Exact { negative: false, magnitude, exponent: (exact.exponent - odd) / 2 - 1 }
        .encode(format, rounding)
}
