//! Inputs whose reduction is exactly predictable, and that reduction.
//!
//! Every comparison is bit for bit, so the inputs are chosen such that no order of combining and
//! no intermediate rounding can change the result:
//!
//! * **Integers** wrap, and wrapping sums and products do not depend on the order: the inputs are
//!   random over the whole range. (Products use odd factors: even ones would soon all be 0.)
//!   `avg` divides, which does not commute with wrapping: there the sum stays within range.
//! * **Float sums** are sums of whole numbers, bounded so that every partial sum is a whole
//!   number that the type holds exactly ([`exact_integer_max`]).
//! * **Float products** are powers of two with a sign; exponents stay in f16's normal range.
//! * **Float averages**: ranks pair up as mean + d and mean - d, so the sum is an exact multiple
//!   of the number of ranks, and the quotient is the mean.
//! * **mulsum** scales by small whole numbers, different on odd and even ranks.
//!
//! No input is -0 or NaN, so equal values have equal bits.
//!
//! The pattern repeats after [`PERIOD`] elements. The period is a prime, so that no chunk, slice
//! or slot size (all powers of two times something small) is a multiple of it: data that lands in
//! a wrong place is seen. And since both inputs and result repeat, filling and comparing run at
//! the speed of memory copies, whatever the type.

use super::backend::{Collective, DataType, ReduceOp};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// The pattern repeats after this many elements; a prime.
pub const PERIOD: usize = 262_147;
/// The most ranks for which the results are exact in every type.
pub const RANKS_MAX: usize = 256;
/// Ranks beyond this one contribute only a sign to float products: 448 is the largest 8-bit one.
const PRODUCT_RANKS_MAX: usize = 8;
/// The largest [`scalar`].
const SCALAR_MAX: u64 = 3;

/// One set of inputs.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// The operation.
    pub collective: Collective,
    /// Type of the elements.
    pub data_type: DataType,
    /// How they combine, if they do.
    pub reduction: ReduceOp,
    /// Number of ranks.
    pub rank_count: usize,
    /// Changes with every check, so that data left over from an earlier one is seen.
    pub seed: u64,
}

/// A value before it is written in the element's type.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    /// Exact; written modulo 2^bits.
    Integer(i128),
    /// Exactly representable in the element's type.
    Float(f64),
    /// Any bits, where data only moves.
    Bits(u64),
}

/// The factor by which `mulsum` scales the input of `rank`.
pub fn scalar(rank: usize) -> u32 {
    2 + (rank % 2) as u32
}

/// The largest whole number up to which the float type holds every whole number.
fn exact_integer_max(data_type: DataType) -> u64 {
    match data_type {
        DataType::F16 => 1 << 11,
        DataType::BF16 => 1 << 8,
        DataType::F8E4M3 => 1 << 4,
        DataType::F8E5M2 => 1 << 3,
        DataType::F32 => 1 << 24,
        _ => 1 << 53,
    }
}

/// SplitMix64's finaliser: cheap, and every bit depends on every input bit.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A whole number in `-limit..=limit`.
fn symmetric(hash: u64, limit: u64) -> i64 {
    (hash % (2 * limit + 1)) as i64 - limit as i64
}

/// The value that the low bits of `hash` have in an integer type.
fn integer_of(data_type: DataType, hash: u64) -> i128 {
    let unused = 64 - 8 * data_type.size_bytes();
    match data_type {
        DataType::U8 | DataType::U32 | DataType::U64 => i128::from(hash << unused >> unused),
        _ => i128::from((hash << unused) as i64 >> unused),
    }
}

impl Pattern {
    /// The input of `rank` for the first `elements` (at most [`PERIOD`]), as bytes in memory.
    pub fn input_table(&self, rank: usize, elements: usize) -> Vec<u8> {
        self.table(elements, |index| self.input(rank, index))
    }

    /// `elements` (at most [`PERIOD`]) that lie `start` elements into the input of rank `from`, or
    /// into the reduction of all inputs.
    pub fn expected_table(&self, from: Option<usize>, start: usize, elements: usize) -> Vec<u8> {
        let index = |place: u64| (start as u64 + place) % PERIOD as u64;
        match from {
            Some(rank) => self.table(elements, |place| self.input(rank, index(place))),
            None => self.table(elements, |place| self.reduced(index(place))),
        }
    }

    fn table(&self, elements: usize, value: impl Fn(u64) -> Number) -> Vec<u8> {
        let elements = elements.min(PERIOD);
        let mut bytes = Vec::with_capacity(elements * self.data_type.size_bytes());
        for index in 0..elements as u64 {
            write_number(&mut bytes, self.data_type, value(index));
        }
        bytes
    }

    fn hash(&self, stream: usize, index: u64) -> u64 {
        mix(mix(self.seed ^ (stream as u64) << 40).wrapping_add(index))
    }

    fn input(&self, rank: usize, index: u64) -> Number {
        let hash = self.hash(rank, index);
        if !self.collective.reduces() {
            Number::Bits(hash)
        } else if self.data_type.is_float() {
            Number::Float(self.float_input(rank, index, hash))
        } else {
            Number::Integer(self.integer_input(hash))
        }
    }

    fn integer_input(&self, hash: u64) -> i128 {
        let value = integer_of(self.data_type, hash);
        match self.reduction {
            ReduceOp::Prod => value | 1,
            // Truncates towards zero, so a sum of `rank_count` of them stays within range.
            ReduceOp::Avg => value / self.rank_count as i128,
            _ => value,
        }
    }

    fn float_input(&self, rank: usize, index: u64, hash: u64) -> f64 {
        let limit = exact_integer_max(self.data_type);
        let value = match self.reduction {
            ReduceOp::Sum => self.summand(rank, index, hash, limit),
            ReduceOp::PreMulSum => self.summand(rank, index, hash, limit / SCALAR_MAX),
            ReduceOp::Min | ReduceOp::Max => symmetric(hash, limit),
            ReduceOp::Avg => match limit / self.rank_count as u64 {
                0 => self.around_zero(rank, index, limit),
                share => self.around_mean(rank, index, share),
            },
            ReduceOp::Prod => return power_of_two(rank, hash),
        };
        value as f64
    }

    /// A whole number, so that no sum of them exceeds `limit`. Where there are more ranks than
    /// that, only some contribute to an element, others to the next.
    fn summand(&self, rank: usize, index: u64, hash: u64, limit: u64) -> i64 {
        let ranks = self.rank_count as u64;
        let one_of = ranks.div_ceil(limit);
        match (rank as u64 + index).is_multiple_of(one_of) {
            true => symmetric(hash, limit / ranks.div_ceil(one_of)),
            false => 0,
        }
    }

    /// The mean that `avg` must find at `index`, in `1..=share`.
    fn mean(&self, index: u64, share: u64) -> i64 {
        1 + (self.hash(2 * RANKS_MAX + self.rank_count, index) % share) as i64
    }

    /// Mean + d on even ranks, mean - d on the odd rank that follows; an even rank that is the
    /// last one has no partner and holds the mean. All are positive, so partial sums never exceed
    /// the whole one, which is at most `rank_count * share`.
    fn around_mean(&self, rank: usize, index: u64, share: u64) -> i64 {
        let mean = self.mean(index, share);
        let pair = rank / 2;
        if 2 * pair + 1 == self.rank_count {
            return mean;
        }
        let distance = (self.hash(RANKS_MAX + 1 + pair, index) % mean as u64) as i64;
        if rank.is_multiple_of(2) { mean + distance } else { mean - distance }
    }

    /// 1 on some even ranks and -1 on the odd ranks that follow, so that the mean is 0.
    fn around_zero(&self, rank: usize, index: u64, limit: u64) -> i64 {
        let (pairs, pair) = (self.rank_count / 2, rank / 2);
        let one_of = (pairs as u64).div_ceil(limit);
        match (pair as u64 + index).is_multiple_of(one_of) && pair < pairs {
            true => 1 - 2 * (rank % 2) as i64,
            false => 0,
        }
    }

    /// The reduction over all ranks.
    fn reduced(&self, index: u64) -> Number {
        if self.data_type.is_float() && self.reduction == ReduceOp::Avg {
            let share = exact_integer_max(self.data_type) / self.rank_count as u64;
            let mean = if share == 0 { 0 } else { self.mean(index, share) };
            return Number::Float(mean as f64);
        }
        let inputs = (0..self.rank_count).map(|rank| (rank, self.input(rank, index)));
        if self.data_type.is_float() {
            let floats = inputs.map(|(rank, number)| match number {
                Number::Float(value) => (rank, value),
                other => unreachable!("a float type holds floats, not {other:?}"),
            });
            Number::Float(reduce_floats(self.reduction, floats))
        } else {
            let integers = inputs.map(|(rank, number)| match number {
                Number::Integer(value) => (rank, value),
                other => unreachable!("an integer type holds integers, not {other:?}"),
            });
            Number::Integer(reduce_integers(self.reduction, self.rank_count, integers))
        }
    }
}

/// One of +-1/2, +-1, +-2; only +-1 on ranks past [`PRODUCT_RANKS_MAX`].
fn power_of_two(rank: usize, hash: u64) -> f64 {
    let magnitude = match hash % 3 {
        _ if rank >= PRODUCT_RANKS_MAX => 1.0,
        0 => 0.5,
        1 => 1.0,
        _ => 2.0,
    };
    if hash >> 63 == 0 { magnitude } else { -magnitude }
}

/// Every intermediate value is exact in f64, so the order is of no matter.
fn reduce_floats(reduction: ReduceOp, values: impl Iterator<Item = (usize, f64)>) -> f64 {
    match reduction {
        ReduceOp::Sum => values.map(|(_, value)| value).fold(0.0, |sum, value| sum + value),
        ReduceOp::PreMulSum => {
            values.fold(0.0, |sum, (rank, value)| sum + value * f64::from(scalar(rank)))
        }
        ReduceOp::Prod => values.map(|(_, value)| value).product(),
        ReduceOp::Max => values.map(|(_, value)| value).fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => values.map(|(_, value)| value).fold(f64::INFINITY, f64::min),
        ReduceOp::Avg => unreachable!("the mean of floats is known without adding them"),
    }
}

/// Sums and products modulo 2^128, of which the low bits are those of the element's type.
fn reduce_integers(
    reduction: ReduceOp,
    rank_count: usize,
    values: impl Iterator<Item = (usize, i128)>,
) -> i128 {
    match reduction {
        ReduceOp::Sum => values.map(|(_, value)| value).sum(),
        ReduceOp::PreMulSum => values.map(|(rank, value)| value * i128::from(scalar(rank))).sum(),
        ReduceOp::Prod => values.fold(1, |product: i128, (_, value)| product.wrapping_mul(value)),
        ReduceOp::Max => values.map(|(_, value)| value).max().unwrap_or(0),
        ReduceOp::Min => values.map(|(_, value)| value).min().unwrap_or(0),
        ReduceOp::Avg => values.map(|(_, value)| value).sum::<i128>() / rank_count as i128,
    }
}

fn write_number(bytes: &mut Vec<u8>, data_type: DataType, number: Number) {
    let size = data_type.size_bytes();
    match (number, data_type) {
        (Number::Float(value), DataType::F16) => {
            bytes.extend_from_slice(&f16::from_f64(value).to_le_bytes());
        }
        (Number::Float(value), DataType::BF16) => {
            bytes.extend_from_slice(&bf16::from_f64(value).to_le_bytes());
        }
        (Number::Float(value), DataType::F8E4M3) => {
            bytes.push(F8E4M3::from_f64(value).to_bits());
        }
        (Number::Float(value), DataType::F8E5M2) => {
            bytes.push(F8E5M2::from_f64(value).to_bits());
        }
        (Number::Float(value), DataType::F32) => {
            bytes.extend_from_slice(&(value as f32).to_le_bytes());
        }
        (Number::Float(value), _) => bytes.extend_from_slice(&value.to_le_bytes()),
        (Number::Integer(value), _) => bytes.extend_from_slice(&value.to_le_bytes()[..size]),
        (Number::Bits(value), _) => bytes.extend_from_slice(&value.to_le_bytes()[..size]),
    }
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
