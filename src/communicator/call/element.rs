//! Rust types that can be reduced, and reductions with their scalar.

use ringdove_kernels::element::{DataType, ReduceOp};

/// A Rust type that stands for a [`DataType`].
pub trait Element: private::Sealed + cudarc::driver::DeviceRepr + 'static {
    /// Its data type.
    const DATA_TYPE: DataType;
}

mod private {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($rust:ty => $code:ident),* $(,)?) => {$(
        impl private::Sealed for $rust {}
        impl Element for $rust {
            const DATA_TYPE: DataType = DataType::$code;
        }
    )*};
}

elements! {
    i8 => I8,
    u8 => U8,
    i32 => I32,
    u32 => U32,
    i64 => I64,
    u64 => U64,
    f32 => F32,
    f64 => F64,
    half::f16 => F16,
    half::bf16 => BF16,
    float8::F8E4M3 => F8E4M3,
    float8::F8E5M2 => F8E5M2,
}

/// The factor of [`ReduceOp::PreMulSum`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// For floating-point elements; rounded to f32 for all types but f64.
    Float(f64),
    /// For integer elements; taken modulo the element's range.
    Integer(i64),
}

/// A reduction as a call names it: `ReduceOp::Sum.into()`, or
/// [`Reduction::pre_mul_sum`] with its scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction {
    pub(crate) op: ReduceOp,
    pub(crate) scalar: Scalar,
}

impl Reduction {
    /// Each rank's input is multiplied by `scalar`, then summed. Ranks may differ in the scalar.
    pub fn pre_mul_sum(scalar: Scalar) -> Self {
        Self { op: ReduceOp::PreMulSum, scalar }
    }

    /// The scalar as the executor reads it for elements of `data_type`.
    pub(crate) fn scalar_bits(&self, data_type: DataType) -> u64 {
        match (self.scalar, data_type) {
            (Scalar::Float(value), DataType::F64) => value.to_bits(),
            (Scalar::Float(value), kind) if kind.is_float() => u64::from((value as f32).to_bits()),
            (Scalar::Float(value), _) => value as i64 as u64,
            (Scalar::Integer(value), DataType::F64) => (value as f64).to_bits(),
            (Scalar::Integer(value), kind) if kind.is_float() => {
                u64::from((value as f32).to_bits())
            }
            (Scalar::Integer(value), _) => value as u64,
        }
    }
}

impl From<ReduceOp> for Reduction {
    /// A `PreMulSum` made this way multiplies by one.
    fn from(op: ReduceOp) -> Self {
        Self { op, scalar: Scalar::Integer(1) }
    }
}
