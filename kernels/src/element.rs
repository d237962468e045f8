//! Element types and reductions, with the codes that host and device share.

/// The type of one element. Codes are those of NCCL's data types, so that the C ABI translates
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum DataType {
    /// Signed 8-bit integer.
    I8 = 0,
    /// Unsigned 8-bit integer.
    U8 = 1,
    /// Signed 32-bit integer.
    I32 = 2,
    /// Unsigned 32-bit integer.
    U32 = 3,
    /// Signed 64-bit integer.
    I64 = 4,
    /// Unsigned 64-bit integer.
    U64 = 5,
    /// IEEE 754 binary16; accumulated in f32.
    F16 = 6,
    /// IEEE 754 binary32.
    F32 = 7,
    /// IEEE 754 binary64.
    F64 = 8,
    /// bfloat16; accumulated in f32.
    BF16 = 9,
    /// 8-bit float of 4 exponent and 3 mantissa bits, without infinities; accumulated in f32. What
    /// exceeds 448 becomes 448.
    F8E4M3 = 10,
    /// 8-bit float of 5 exponent and 2 mantissa bits; accumulated in f32. What exceeds 57344,
    /// infinity too, becomes 57344.
    F8E5M2 = 11,
}

impl DataType {
    /// Every data type, in the order of the codes.
    pub const ALL: [Self; 12] = [
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::BF16,
        Self::F8E4M3,
        Self::F8E5M2,
    ];

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// The data type with this code.
    pub const fn from_code(code: u32) -> Option<Self> {
        if code < Self::ALL.len() as u32 { Some(Self::ALL[code as usize]) } else { None }
    }

    /// The name in files and messages, for example `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::BF16 => "bf16",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
        }
    }

    /// The data type with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|data_type| data_type.name() == name)
    }

    /// True for the six floating-point types.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64 | Self::BF16 | Self::F8E4M3 | Self::F8E5M2)
    }
}

/// How elements combine. Codes 0 to 4 are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum ReduceOp {
    /// Sum. Integers wrap.
    Sum = 0,
    /// Product. Integers wrap.
    Prod = 1,
    /// Maximum. For floats NaN wins, as in NCCL.
    Max = 2,
    /// Minimum. For floats NaN wins, as in NCCL.
    Min = 3,
    /// Sum, then divided by the number of ranks (integers: truncating division).
    Avg = 4,
    /// Each rank's input is multiplied by the launch's scalar first, then summed.
    PreMulSum = 5,
}

impl ReduceOp {
    /// Every reduction, in the order of the codes.
    pub const ALL: [Self; 6] =
        [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::PreMulSum];

    /// The reduction with this code.
    pub const fn from_code(code: u32) -> Option<Self> {
        if code < Self::ALL.len() as u32 { Some(Self::ALL[code as usize]) } else { None }
    }
}
