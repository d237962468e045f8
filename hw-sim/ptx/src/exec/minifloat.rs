//! Floats of 8 bits: e4m3 and e5m2, as OCP's specification of 8-bit floats has them. e4m3 has no
//! infinity; its largest pattern is the NaN.

use std::sync::LazyLock;

use super::rounding::{Exact, Rounding};

/// One of the two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minifloat {
    fraction_bits: u32,
    bias: i32,
    /// Bits of the largest number.
    largest: u8,
}

/// Four bits of exponent, three of fraction; up to 448.
pub const E4M3: Minifloat = Minifloat { fraction_bits: 3, bias: 7, largest: 0x7e };
/// Five bits of exponent, two of fraction; up to 57,344.
pub const E5M2: Minifloat = Minifloat { fraction_bits: 2, bias: 15, largest: 0x7b };
/// The NaN of both.
const NAN: u8 = 0x7f;

impl Minifloat {
    /// The number that bits mean. Every one is an f16, too.
    pub fn decode(self, bits: u8) -> f32 {
        let magnitude = bits & 0x7f;
        let fraction = i32::from(magnitude) & ((1 << self.fraction_bits) - 1);
        let exponent = i32::from(magnitude) >> self.fraction_bits;
        let value = if magnitude > self.largest {
            // Above the largest number is the infinity, where there is one, and then NaNs.
            let infinity = self == E5M2 && magnitude == self.largest + 1;
            if infinity { f32::INFINITY } else { f32::from_bits(0x7fff_ffff) }
        } else {
            let (significand, power) = match exponent {
                0 => (fraction, 1),
                _ => (fraction + (1 << self.fraction_bits), exponent),
            };
            significand as f32 * 2_f32.powi(power - self.bias - self.fraction_bits as i32)
        };
        if bits & 0x80 != 0 && !value.is_nan() { -value } else { value }
    }

    /// Rounds to nearest even; what is too large, infinities too, becomes the largest number
    /// (`.satfinite`).
    pub fn encode(self, value: f32) -> u8 {
        if value.is_nan() {
            return NAN;
        }
        let sign = u8::from(value.is_sign_negative()) << 7;
        if value.is_infinite() {
            return sign | self.largest;
        }
        // A format of the same grid with room above, so that only the clamp bounds it.
        let exponent_bits = 7 - self.fraction_bits;
        let wide = super::rounding::Format { exponent_bits, fraction_bits: self.fraction_bits };
        let exact = Exact::from_f64(f64::from(value.abs()));
        let top = exact.exponent + 127 - exact.magnitude.leading_zeros() as i32;
        if exact.magnitude != 0 && top > self.bias + 1 {
            return sign | self.largest;
        }
        // The largest binade of e4m3 is in use, which `Format` takes for infinity: halve it.
        let halved = exact.magnitude != 0 && top == self.bias + 1;
        let bits = if halved {
            let half = Exact { exponent: exact.exponent - 1, ..exact };
            half.encode(wide, Rounding::Nearest) + (1 << self.fraction_bits)
        } else {
            exact.encode(wide, Rounding::Nearest)
        };
        sign | (bits as u8).min(self.largest)
    }
}

/// What each pattern means.
pub fn table(is_e5m2: bool) -> &'static [f32; 256] {
    static TABLES: LazyLock<[[f32; 256]; 2]> = LazyLock::new(|| {
        [E4M3, E5M2].map(|format| std::array::from_fn(|bits| format.decode(bits as u8)))
    });
    &TABLES[usize::from(is_e5m2)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pattern comes back; values between two go to the nearer one, ties to the even one.
    #[test]
    fn encoding_is_the_nearest_of_all_patterns() {
        for format in [E4M3, E5M2] {
            for bits in 0..=format.largest {
                let value = format.decode(bits);
                assert_eq!(format.encode(value), bits, "{format:?} {bits:#x}");
                assert_eq!(format.encode(-value), bits | 0x80, "{format:?} {bits:#x}");
                if bits == format.largest {
                    continue;
                }
                let next = format.decode(bits + 1);
                let middle = (value + next) / 2.0;
                assert_eq!(format.encode(middle), bits + (bits & 1), "{format:?} {middle}");
                assert_eq!(format.encode(middle.next_down()), bits, "{format:?} {middle}");
                assert_eq!(format.encode(middle.next_up()), bits + 1, "{format:?} {middle}");
            }
            for large in [1e9, f32::INFINITY, f32::MAX] {
                assert_eq!(format.encode(large), format.largest);
            }
            assert_eq!(format.encode(f32::NAN), 0x7f);
        }
        let known = [(0x7e, 448.0), (0x01, 2_f32.powi(-9)), (0x38, 1.0), (0xb8, -1.0)];
        for (bits, value) in known {
            assert_eq!(E4M3.decode(bits), value);
        }
        let known = [(0x7b, 57344.0), (0x01, 2_f32.powi(-16)), (0x3c, 1.0), (0x7c, f32::INFINITY)];
        for (bits, value) in known {
            assert_eq!(E5M2.decode(bits), value);
        }
        assert!(E4M3.decode(0x7f).is_nan() && E5M2.decode(0x7d).is_nan());
    }
}
