//! Numbers of matrices as the tests see them: how each kind is rounded and stored, and the product
//! of matrices in the order that the interpreter documents.

/// A random number generator with a seed that is printed.
pub struct Rng(fastrand::Rng);

/// A seed for this run, printed with the output of a test that fails.
pub fn seed() -> u64 {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    seed
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }
}

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Integer(i64),
    Single(f32),
    Double(f64),
}

/// What an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F16,
    BF16,
    Tf32,
    E4m3,
    E5m2,
    S8,
    U8,
    S32,
    F32,
    F64,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Tf32 => "tf32",
            Self::E4m3 => "e4m3",
            Self::E5m2 => "e5m2",
            Self::S8 => "s8",
            Self::U8 => "u8",
            Self::S32 => "s32",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::E4m3 | Self::E5m2 | Self::S8 | Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::Tf32 | Self::S32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// A small whole number, which every kind holds.
    pub fn small(self, rng: &mut Rng) -> Value {
        let whole = rng.0.i32(if self == Self::U8 { 0..8 } else { -4..8 });
        match self {
            Self::S8 | Self::U8 | Self::S32 => Value::Integer(whole.into()),
            Self::F64 => Value::Double(whole.into()),
            _ => Value::Single(whole as f32),
        }
    }

    /// Any number of a range in which sums of products round.
    pub fn random(self, rng: &mut Rng) -> Value {
        let scale = 2_f32.powi(rng.0.i32(-6..6));
        match self {
            Self::S8 => Value::Integer(rng.0.i8(..).into()),
            Self::U8 => Value::Integer(rng.0.u8(..).into()),
            Self::S32 => Value::Integer(rng.0.i32(..).into()),
            Self::F64 => Value::Double((rng.0.f64() - 0.5) * f64::from(scale)),
            _ => Value::Single((rng.0.f32() - 0.5) * scale),
        }
    }

    /// The nearest number of this kind.
    pub fn rounded(self, value: Value) -> Value {
        let Value::Single(value) = value else { return value };
        Value::Single(match self {
            Self::F16 => half::f16::from_f32(value).to_f32(),
            Self::BF16 => half::bf16::from_f32(value).to_f32(),
            // Cut: tests need any number of the kind, not the nearest.
            Self::Tf32 => f32::from_bits(value.to_bits() & !0x1fff),
            Self::E4m3 => cut(value, 3, 2_f32.powi(-6), 448.0),
            Self::E5m2 => cut(value, 2, 2_f32.powi(-14), 57344.0),
            _ => value,
        })
    }

    /// The bytes of a number of this kind.
    pub fn bytes_of(self, value: Value) -> Vec<u8> {
        match (self, value) {
            (Self::S8 | Self::U8, Value::Integer(value)) => vec![value as u8],
            (Self::S32, Value::Integer(value)) => (value as i32).to_le_bytes().to_vec(),
            (Self::F64, Value::Double(value)) => value.to_le_bytes().to_vec(),
            (Self::F16, Value::Single(value)) => half::f16::from_f32(value).to_le_bytes().to_vec(),
            (Self::BF16, Value::Single(value)) => {
                half::bf16::from_f32(value).to_le_bytes().to_vec()
            }
            (Self::E4m3, Value::Single(value)) => vec![minifloat(value, 3, 7)],
            (Self::E5m2, Value::Single(value)) => vec![minifloat(value, 2, 15)],
            (_, Value::Single(value)) => value.to_le_bytes().to_vec(),
            other => panic!("{other:?} do not fit"),
        }
    }
}

/// Keeps so many bits of the fraction, in a range from the least normal number to the largest.
fn cut(value: f32, fraction_bits: u32, least: f32, largest: f32) -> f32 {
    if value.abs() < least {
        return 0.0_f32.copysign(value);
    }
    let bits = value.to_bits() >> (23 - fraction_bits) << (23 - fraction_bits);
    f32::from_bits(bits).clamp(-largest, largest)
}

/// The bits of zero or of a normal number that the format holds.
fn minifloat(value: f32, fraction_bits: u32, bias: u32) -> u8 {
    let (bits, sign) = (value.to_bits(), u8::from(value.is_sign_negative()) << 7);
    if value == 0.0 {
        return sign;
    }
    let exponent = (bits >> 23 & 0xff) + bias - 127;
    let fraction = bits >> (23 - fraction_bits) & ((1 << fraction_bits) - 1);
    sign | (exponent << fraction_bits | fraction) as u8
}

/// `a × b + c`: from C on, one product after the other, in rising k.
pub fn product(
    (m, n, k): (usize, usize, usize),
    a: &[Value],
    b: &[Value],
    c: &[Value],
    clamps: bool,
) -> Vec<Value> {
    let mut sums = c.to_vec();
    for row in 0..m {
        for column in 0..n {
            let sum = &mut sums[row * n + column];
            for step in 0..k {
                *sum = match (a[row * k + step], b[step * n + column], *sum) {
                    (Value::Single(a), Value::Single(b), Value::Single(c)) => {
                        Value::Single(a.mul_add(b, c))
                    }
                    (Value::Double(a), Value::Double(b), Value::Double(c)) => {
                        Value::Double(a.mul_add(b, c))
                    }
                    (Value::Integer(a), Value::Integer(b), Value::Integer(c)) => {
                        Value::Integer(a * b + c)
                    }
                    other => panic!("{other:?} do not fit"),
                };
            }
            if let (Value::Integer(exact), true) = (&mut *sum, clamps) {
                *exact = (*exact).clamp(i32::MIN.into(), i32::MAX.into());
            }
        }
    }
    sums
}
