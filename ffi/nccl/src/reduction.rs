//! Reductions by number: NCCL's own, and those that users define with a scalar.

use crate::result::{Failure, Result};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ringdove::{DataType, ReduceOp, Reduction, Scalar};
use std::ffi::c_int;

/// The number of the first reduction that a user defines.
const FIRST: c_int = 5;
/// Far more than programs define; a leak becomes an error.
const MOST: usize = 1 << 20;

/// Where the scalar is.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// It was read when the reduction was defined.
    Value(Scalar),
    /// In device memory at this address, read at each call.
    Device(u64),
}

/// A reduction that a user defined: the sum of inputs that were multiplied by a scalar.
#[derive(Clone, Copy, Debug)]
pub struct Defined {
    pub data_type: DataType,
    pub source: Source,
}

/// The reductions that were defined for one communicator.
#[derive(Debug, Default)]
pub struct Table(Vec<Option<Defined>>);

/// What a number stands for.
#[derive(Clone, Copy, Debug)]
pub enum Named {
    /// A reduction of NCCL.
    Plain(ReduceOp),
    /// One that a user defined.
    Defined(Defined),
}

impl Table {
    /// Adds a reduction, and returns its number.
    pub fn define(&mut self, defined: Defined) -> Result<c_int> {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if free == MOST {
            return Err(Failure::usage(format!("{MOST} reductions were defined, and none freed")));
        }
        match self.0.get_mut(free) {
            Some(place) => *place = Some(defined),
            None => self.0.push(Some(defined)),
        }
        Ok(FIRST + free as c_int)
    }

    /// Removes a reduction that a user defined.
    pub fn remove(&mut self, number: c_int) -> Result<()> {
        let index = usize::try_from(number.saturating_sub(FIRST)).ok();
        let place = index.and_then(|index| self.0.get_mut(index)).and_then(Option::take);
        place.map(drop).ok_or_else(|| {
            Failure::argument("op", "a reduction of ncclRedOpCreatePreMulSum", number)
        })
    }

    /// What `number` stands for, on elements of `data_type`.
    pub fn find(&self, number: c_int, data_type: DataType) -> Result<Named> {
        let plain = match number {
            0 => ReduceOp::Sum,
            1 => ReduceOp::Prod,
            2 => ReduceOp::Max,
            3 => ReduceOp::Min,
            4 => ReduceOp::Avg,
            _ => {
                let index = usize::try_from(number.saturating_sub(FIRST)).unwrap_or(usize::MAX);
                let defined = self.0.get(index).copied().flatten();
                let defined = defined.ok_or_else(|| {
                    Failure::argument("op", "0 to 4, or one defined for this communicator", number)
                })?;
                if defined.data_type != data_type {
                    let expected = format!("{:?}, for which op was defined", defined.data_type);
                    let seen = format!("{data_type:?}");
                    return Err(Failure::argument("datatype", &expected, seen));
                }
                return Ok(Named::Defined(defined));
            }
        };
        Ok(Named::Plain(plain))
    }
}

/// The scalar that `word` holds, as little-endian bytes of one element.
pub fn scalar(data_type: DataType, word: u64) -> Scalar {
    match data_type {
        DataType::I8 => Scalar::Integer((word as i8).into()),
        DataType::U8 => Scalar::Integer((word as u8).into()),
        DataType::I32 => Scalar::Integer((word as i32).into()),
        DataType::U32 => Scalar::Integer((word as u32).into()),
        DataType::I64 | DataType::U64 => Scalar::Integer(word as i64),
        DataType::F16 => Scalar::Float(f16::from_bits(word as u16).into()),
        DataType::BF16 => Scalar::Float(bf16::from_bits(word as u16).into()),
        DataType::F8E4M3 => Scalar::Float(F8E4M3::from_bits(word as u8).into()),
        DataType::F8E5M2 => Scalar::Float(F8E5M2::from_bits(word as u8).into()),
        DataType::F32 => Scalar::Float(f32::from_bits(word as u32).into()),
        DataType::F64 => Scalar::Float(f64::from_bits(word)),
    }
}

/// The reduction that multiplies each input by the scalar in `word`.
pub fn multiplied(data_type: DataType, word: u64) -> Reduction {
    Reduction::pre_mul_sum(scalar(data_type, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a number that was freed stands for another communicator's or type's scalar.
    #[test]
    fn numbers_are_checked_and_used_again() {
        let mut table = Table::default();
        let defined = |data_type| Defined { data_type, source: Source::Value(Scalar::Integer(2)) };
        let first = table.define(defined(DataType::F32)).unwrap();
        let second = table.define(defined(DataType::I32)).unwrap();
        assert_eq!((first, second), (5, 6));
        assert!(table.find(first, DataType::I32).is_err());
        assert!(matches!(table.find(second, DataType::I32), Ok(Named::Defined(_))));
        assert!(matches!(table.find(4, DataType::I32), Ok(Named::Plain(ReduceOp::Avg))));
        table.remove(first).unwrap();
        assert!(table.remove(first).is_err() && table.find(first, DataType::F32).is_err());
        for number in [-1, 7, 4_000, c_int::MAX, c_int::MIN] {
            assert!(table.find(number, DataType::F32).is_err(), "{number}");
            assert!(table.remove(number).is_err(), "{number}");
        }
        assert_eq!(table.define(defined(DataType::F64)).unwrap(), first);
    }

    #[test]
    fn scalars_are_read_as_their_type() {
        assert_eq!(scalar(DataType::I8, 0xff), Scalar::Integer(-1));
        assert_eq!(scalar(DataType::U8, 0xff), Scalar::Integer(255));
        assert_eq!(scalar(DataType::F32, 1.5f32.to_bits().into()), Scalar::Float(1.5));
        assert_eq!(scalar(DataType::BF16, 0x3fc0), Scalar::Float(1.5));
        assert_eq!(scalar(DataType::F8E4M3, 0x3c), Scalar::Float(1.5));
        assert_eq!(scalar(DataType::F8E5M2, 0x3e), Scalar::Float(1.5));
        assert_eq!(scalar(DataType::F64, 0.1f64.to_bits()), Scalar::Float(0.1));
    }
}
