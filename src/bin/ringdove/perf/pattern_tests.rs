//! The expected values against a slow computation in the element's own type, in every ring order.

use super::*;
use bytemuck::Pod;

/// Arithmetic of one element type as a GPU does it: one rounding (or wrap) for each step.
trait Arithmetic: Pod + PartialEq + std::fmt::Debug {
    fn combine(reduction: ReduceOp, left: Self, right: Self) -> Self;
    fn scale(self, factor: u32) -> Self;
    fn divide(self, count: usize) -> Self;
}

macro_rules! integer {
    ($($kind:ty),*) => {$(impl Arithmetic for $kind {
        fn combine(reduction: ReduceOp, left: Self, right: Self) -> Self {
            match reduction {
                ReduceOp::Prod => left.wrapping_mul(right),
                ReduceOp::Max => left.max(right),
                ReduceOp::Min => left.min(right),
                _ => left.wrapping_add(right),
            }
        }
        fn scale(self, factor: u32) -> Self { self.wrapping_mul(factor as Self) }
        // The count may be more than the type holds.
        fn divide(self, count: usize) -> Self { (i128::from(self) / count as i128) as Self }
    })*};
}
integer!(i8, u8, i32, u32, i64, u64);

macro_rules! float {
    ($($kind:ty, $wide:ty, $widen:expr, $narrow:expr;)*) => {$(impl Arithmetic for $kind {
        fn combine(reduction: ReduceOp, left: Self, right: Self) -> Self {
            let (left, right): ($wide, $wide) = ($widen(left), $widen(right));
            $narrow(match reduction {
                ReduceOp::Prod => left * right,
                ReduceOp::Max => left.max(right),
                ReduceOp::Min => left.min(right),
                _ => left + right,
            })
        }
        fn scale(self, factor: u32) -> Self { $narrow($widen(self) * factor as $wide) }
        fn divide(self, count: usize) -> Self { $narrow($widen(self) / count as $wide) }
    })*};
}
float! {
    f32, f32, |value| value, |value| value;
    f64, f64, |value| value, |value| value;
    f16, f32, f16::to_f32, f16::from_f32;
    bf16, f32, bf16::to_f32, bf16::from_f32;
    F8E4M3, f32, |value: F8E4M3| value.to_f32(), F8E4M3::from_f32;
    F8E5M2, f32, |value: F8E5M2| value.to_f32(), F8E5M2::from_f32;
}

const ELEMENTS: usize = 150;

fn elements<T: Pod>(table: &[u8]) -> Vec<T> {
    table.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Folds the inputs starting at one rank after the other (of many ranks, at some of them): any
/// rounding would show in one of the orders.
fn assert_exact<T: Arithmetic>(pattern: Pattern) {
    let inputs: Vec<Vec<T>> = (0..pattern.rank_count)
        .map(|rank| elements(&pattern.input_table(rank, ELEMENTS)))
        .collect();
    let expected: Vec<T> = elements(&pattern.expected_table(None, 0, ELEMENTS));
    for first in (0..pattern.rank_count).step_by(pattern.rank_count.div_ceil(8)) {
        for element in 0..ELEMENTS {
            let scaled = |rank: usize| match pattern.reduction {
                ReduceOp::PreMulSum => inputs[rank][element].scale(scalar(rank)),
                _ => inputs[rank][element],
            };
            let mut value = scaled(first);
            for step in 1..pattern.rank_count {
                let next = scaled((first + step) % pattern.rank_count);
                value = T::combine(pattern.reduction, value, next);
            }
            if pattern.reduction == ReduceOp::Avg {
                value = value.divide(pattern.rank_count);
            }
            let bits = |value: &T| bytemuck::bytes_of(value).to_vec();
            assert_eq!(
                bits(&value),
                bits(&expected[element]),
                "{pattern:?}, element {element}, first rank {first}"
            );
        }
    }
}

fn all_reduce(data_type: DataType, reduction: ReduceOp, rank_count: usize) -> Pattern {
    Pattern { collective: Collective::AllReduce, data_type, reduction, rank_count, seed: 7 }
}

#[test]
fn expected_values_are_those_of_every_order_of_combining() {
    for rank_count in [1, 2, 3, 4, 5, 7, 8, 13, RANKS_MAX] {
        for reduction in ReduceOp::ALL {
            assert_exact::<i8>(all_reduce(DataType::I8, reduction, rank_count));
            assert_exact::<u8>(all_reduce(DataType::U8, reduction, rank_count));
            assert_exact::<i32>(all_reduce(DataType::I32, reduction, rank_count));
            assert_exact::<u32>(all_reduce(DataType::U32, reduction, rank_count));
            assert_exact::<i64>(all_reduce(DataType::I64, reduction, rank_count));
            assert_exact::<u64>(all_reduce(DataType::U64, reduction, rank_count));
            assert_exact::<f16>(all_reduce(DataType::F16, reduction, rank_count));
            assert_exact::<f32>(all_reduce(DataType::F32, reduction, rank_count));
            assert_exact::<f64>(all_reduce(DataType::F64, reduction, rank_count));
            assert_exact::<bf16>(all_reduce(DataType::BF16, reduction, rank_count));
            assert_exact::<F8E4M3>(all_reduce(DataType::F8E4M3, reduction, rank_count));
            assert_exact::<F8E5M2>(all_reduce(DataType::F8E5M2, reduction, rank_count));
        }
    }
}

/// A reduction that forgets a rank, or counts one twice, must not go unseen.
#[test]
fn every_rank_matters() {
    for reduction in ReduceOp::ALL {
        for data_type in DataType::ALL {
            let pattern = all_reduce(data_type, reduction, 4);
            let tables: Vec<_> = (0..4).map(|rank| pattern.input_table(rank, ELEMENTS)).collect();
            for rank in 0..4 {
                for other in 0..rank {
                    assert_ne!(tables[rank], tables[other], "{pattern:?}: {rank} and {other}");
                }
            }
            let smaller = Pattern { rank_count: 3, ..pattern };
            assert_ne!(
                pattern.expected_table(None, 0, ELEMENTS),
                smaller.expected_table(None, 0, ELEMENTS)
            );
        }
    }
}

#[test]
fn another_seed_gives_other_data() {
    for data_type in DataType::ALL {
        let pattern = all_reduce(data_type, ReduceOp::Sum, 4);
        let other = Pattern { seed: 8, ..pattern };
        assert_ne!(
            pattern.expected_table(None, 0, ELEMENTS),
            other.expected_table(None, 0, ELEMENTS)
        );
    }
}

#[test]
fn no_float_is_a_negative_zero_or_not_a_number() {
    for reduction in ReduceOp::ALL {
        let pattern = all_reduce(DataType::BF16, reduction, 8);
        let tables = (0..8)
            .map(|rank| pattern.input_table(rank, 5000))
            .chain([pattern.expected_table(None, 0, 5000)]);
        for value in tables.flat_map(|table| elements::<bf16>(&table)) {
            assert!(value.is_finite() && value.to_bits() != bf16::NEG_ZERO.to_bits());
        }
    }
}

/// If this fails, a part that comes from the middle of an input is compared with other elements.
#[test]
fn parts_of_inputs_are_expected_where_they_lie() {
    let base = all_reduce(DataType::F32, ReduceOp::Sum, 3);
    let pattern = Pattern { collective: Collective::AllToAll, ..base };
    let input = pattern.input_table(2, 50);
    assert_eq!(pattern.expected_table(Some(2), 0, 50), input);
    assert_eq!(pattern.expected_table(Some(2), 20, 30), input[80..]);
    // Inputs repeat after a period.
    assert_eq!(pattern.expected_table(Some(2), PERIOD + 20, 30), input[80..]);
    let reduced = base.expected_table(None, 0, 50);
    assert_eq!(base.expected_table(None, 49, 1), reduced[196..]);
}

#[test]
fn the_period_is_a_prime() {
    let divisors = (2..).take_while(|divisor| divisor * divisor <= PERIOD);
    assert!(divisors.into_iter().all(|divisor| !PERIOD.is_multiple_of(divisor)));
}
