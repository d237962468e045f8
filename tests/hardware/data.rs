//! Inputs whose reductions are exact in every data type, and an independent host model of them.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ringdove::{DataType, ReduceOp};

/// The whole number that element `index` of `rank` stands for: small enough that every partial
/// sum and product of 8 ranks is exact in bf16's 8 bits, and of 3 ranks in 8-bit floats.
fn value(data_type: DataType, op: ReduceOp, rank: usize, index: usize) -> i64 {
    // Multiplicative hash; the constant is 2^64 over the golden ratio.
    let hash = ((index * 8 + rank) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    match op {
        ReduceOp::Prod => 1 + (hash % 2) as i64,
        _ if data_type.is_float() && data_type.size_bytes() == 1 => (hash % 5) as i64 - 2,
        _ => (hash % 17) as i64 - 8,
    }
}

/// The scalar that `rank` passes for `PreMulSum`.
pub fn scalar(rank: usize) -> i64 {
    1 + (rank % 2) as i64
}

/// `rank`'s input: `count` elements as bytes.
pub fn input(data_type: DataType, op: ReduceOp, rank: usize, count: usize) -> Vec<u8> {
    repeated(data_type, count, |index| encode(data_type, value(data_type, op, rank, index)))
}

/// `count` elements, which repeat. The period is a prime, and nothing that is cut or aligned in
/// powers of two is moved by a multiple of it.
fn repeated(data_type: DataType, count: usize, element: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    const PERIOD: usize = 65_521;
    let period: Vec<u8> = (0..count.min(PERIOD)).flat_map(element).collect();
    let mut bytes = period.repeat(count.div_ceil(PERIOD));
    bytes.truncate(count * data_type.size_bytes());
    bytes
}

/// What every rank must hold after an all-reduce over `ranks` ranks.
pub fn expected(data_type: DataType, op: ReduceOp, ranks: usize, count: usize) -> Vec<u8> {
    repeated(data_type, count, |index| element(data_type, op, ranks, index))
}

fn element(data_type: DataType, op: ReduceOp, ranks: usize, index: usize) -> Vec<u8> {
    // Integers go through the type's own range first, so that unsigned minima are right.
    let inputs = (0..ranks).map(|rank| {
        let value = value(data_type, op, rank, index);
        in_range(data_type, if op == ReduceOp::PreMulSum { value * scalar(rank) } else { value })
    });
    let whole = match op {
        ReduceOp::Sum | ReduceOp::PreMulSum | ReduceOp::Avg => inputs.sum(),
        ReduceOp::Prod => inputs.product(),
        ReduceOp::Max => inputs.max().unwrap(),
        ReduceOp::Min => inputs.min().unwrap(),
    };
    if op == ReduceOp::Avg {
        average(data_type, whole, ranks)
    } else {
        encode_wide(data_type, whole)
    }
}

fn in_range(data_type: DataType, value: i64) -> i128 {
    match data_type {
        DataType::U8 => i128::from(value as u8),
        DataType::U32 => i128::from(value as u32),
        DataType::U64 => i128::from(value as u64),
        _ => i128::from(value),
    }
}

fn encode(data_type: DataType, value: i64) -> Vec<u8> {
    encode_wide(data_type, in_range(data_type, value))
}

fn encode_wide(data_type: DataType, value: i128) -> Vec<u8> {
    match data_type {
        DataType::I8 | DataType::U8 => vec![value as u8],
        DataType::I32 | DataType::U32 => (value as u32).to_ne_bytes().to_vec(),
        DataType::I64 | DataType::U64 => (value as u64).to_ne_bytes().to_vec(),
        DataType::F16 => f16::from_f32(value as f32).to_ne_bytes().to_vec(),
        DataType::BF16 => bf16::from_f32(value as f32).to_ne_bytes().to_vec(),
        DataType::F8E4M3 => vec![F8E4M3::from_f32(value as f32).to_bits()],
        DataType::F8E5M2 => vec![F8E5M2::from_f32(value as f32).to_bits()],
        DataType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DataType::F64 => (value as f64).to_ne_bytes().to_vec(),
    }
}

/// The wrapped sum of integers, then truncating division; floats divide in the type that they
/// accumulate in, and round once more where that is wider.
fn average(data_type: DataType, sum: i128, ranks: usize) -> Vec<u8> {
    let by = ranks as i128;
    match data_type {
        DataType::I8 => encode_wide(data_type, i128::from(sum as i8) / by),
        DataType::U8 => encode_wide(data_type, i128::from(sum as u8) / by),
        DataType::I32 => encode_wide(data_type, i128::from(sum as i32) / by),
        DataType::U32 => encode_wide(data_type, i128::from(sum as u32) / by),
        DataType::I64 => encode_wide(data_type, i128::from(sum as i64) / by),
        DataType::U64 => encode_wide(data_type, i128::from(sum as u64) / by),
        DataType::F16 => f16::from_f32(sum as f32 / ranks as f32).to_ne_bytes().to_vec(),
        DataType::BF16 => bf16::from_f32(sum as f32 / ranks as f32).to_ne_bytes().to_vec(),
        DataType::F8E4M3 => vec![F8E4M3::from_f32(sum as f32 / ranks as f32).to_bits()],
        DataType::F8E5M2 => vec![F8E5M2::from_f32(sum as f32 / ranks as f32).to_bits()],
        DataType::F32 => (sum as f32 / ranks as f32).to_ne_bytes().to_vec(),
        DataType::F64 => (sum as f64 / ranks as f64).to_ne_bytes().to_vec(),
    }
}

/// The first element that differs, for a message.
pub fn first_difference(data_type: DataType, seen: &[u8], expected: &[u8]) -> Option<String> {
    let size = data_type.size_bytes();
    let mut pairs = seen.chunks(size).zip(expected.chunks(size)).enumerate();
    let (index, (seen, expected)) = pairs.find(|(_, (seen, expected))| seen != expected)?;
    Some(format!("element {index}: {seen:02x?} instead of {expected:02x?}"))
}
