//! Reductions: every data type with every reduction and flag, against a model on the host.

use crate::rank::{PlanText, Rank, address, copy, reduce};
use half::{bf16, f16};
use ringdove_kernels::element::{DataType, ReduceOp};
use ringdove_kernels::op::{Op, flags};

const RANK_COUNT: u32 = 3;
const THREADS: u32 = 64;

/// What is done to one pair of elements.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Sum,
    Prod,
    Max,
    Min,
    ScaledSum,
    AverageEnd,
    Scale,
    Divide,
}

/// The rules of element.rs and op.rs, for one launch's reduction and one op's flags.
fn rule(reduce_op: ReduceOp, op_flags: u8, is_copy: bool) -> Option<Rule> {
    let is_scaled = reduce_op == ReduceOp::PreMulSum && op_flags & flags::SCALE != 0;
    let is_last = reduce_op == ReduceOp::Avg && op_flags & flags::FINISH != 0;
    if is_copy {
        return if is_scaled {
            Some(Rule::Scale)
        } else if is_last {
            Some(Rule::Divide)
        } else {
            None
        };
    }
    Some(match reduce_op {
        ReduceOp::Prod => Rule::Prod,
        ReduceOp::Max => Rule::Max,
        ReduceOp::Min => Rule::Min,
        _ if is_scaled => Rule::ScaledSum,
        _ if is_last => Rule::AverageEnd,
        _ => Rule::Sum,
    })
}

macro_rules! integer_model {
    ($type:ty, $rule:expr, $a:expr, $b:expr, $scalar:expr) => {{
        let (a, b, factor) = ($a as $type, $b as $type, $scalar as $type);
        // In a width that holds the sum of two elements and the rank count as well.
        let divide = |sum: $type| (i128::from(sum) / i128::from(RANK_COUNT)) as $type;
        let result = match $rule {
            Rule::Sum => a.wrapping_add(b),
            Rule::Prod => a.wrapping_mul(b),
            Rule::Max => a.max(b),
            Rule::Min => a.min(b),
            Rule::ScaledSum => a.wrapping_add(b.wrapping_mul(factor)),
            Rule::AverageEnd => divide(a.wrapping_add(b)),
            Rule::Scale => a.wrapping_mul(factor),
            Rule::Divide => divide(a),
        };
        result as u64
    }};
}

macro_rules! float_model {
    ($rule:expr, $a:expr, $b:expr, $factor:expr, $count:expr) => {{
        let (a, b) = ($a, $b);
        match $rule {
            Rule::Sum => a + b,
            Rule::Prod => a * b,
            Rule::Max if a.is_nan() || b.is_nan() => a + b,
            Rule::Min if a.is_nan() || b.is_nan() => a + b,
            Rule::Max => a.max(b),
            Rule::Min => a.min(b),
            Rule::ScaledSum => a + b * $factor,
            Rule::AverageEnd => (a + b) / $count,
            Rule::Scale => a * $factor,
            Rule::Divide => a / $count,
        }
    }};
}

/// All values of an 8-bit float, by its definition: a sign, `exponent` bits, the rest mantissa.
struct ByteFloat {
    mantissa_bits: i32,
    bias: i32,
    /// The largest code of a finite number.
    finite_max: u8,
    infinity: Option<u8>,
}

impl ByteFloat {
    fn of(data_type: DataType) -> Self {
        match data_type {
            DataType::F8E4M3 => {
                Self { mantissa_bits: 3, bias: 7, finite_max: 0x7e, infinity: None }
            }
            DataType::F8E5M2 => {
                Self { mantissa_bits: 2, bias: 15, finite_max: 0x7b, infinity: Some(0x7c) }
            }
            other => unreachable!("{other:?} has more than 8 bits, or is no float"),
        }
    }

    fn value(&self, code: u8) -> f32 {
        let magnitude = code & 0x7f;
        let exponent = i32::from(magnitude >> self.mantissa_bits);
        let mantissa = f32::from(magnitude) / 2f32.powi(self.mantissa_bits) - exponent as f32;
        let absolute = match exponent {
            _ if Some(magnitude) == self.infinity => f32::INFINITY,
            _ if magnitude > self.finite_max => f32::NAN,
            0 => mantissa * 2f32.powi(1 - self.bias),
            _ => (1.0 + mantissa) * 2f32.powi(exponent - self.bias),
        };
        if code & 0x80 == 0 { absolute } else { -absolute }
    }

    /// The code of the nearest finite number; of two that are as near, the even one.
    fn nearest(&self, value: f32) -> u8 {
        if value.is_nan() {
            return 0x7f;
        }
        let target = f64::from(value.abs());
        let distance = |code: u8| (f64::from(self.value(code)) - target).abs();
        let magnitude = if target.is_infinite() {
            self.finite_max
        } else {
            let codes = 0..=self.finite_max;
            let order =
                |a: &u8, b: &u8| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1)));
            codes.min_by(order).unwrap()
        };
        if value.is_sign_negative() { magnitude | 0x80 } else { magnitude }
    }
}

/// One element, as bits.
fn model(data_type: DataType, rule: Rule, a: u64, b: u64, scalar: u64) -> u64 {
    let count = RANK_COUNT as f32;
    let factor = f32::from_bits(scalar as u32);
    match data_type {
        DataType::I8 => integer_model!(i8, rule, a, b, scalar) & 0xff,
        DataType::U8 => integer_model!(u8, rule, a, b, scalar),
        DataType::I32 => integer_model!(i32, rule, a, b, scalar) & 0xffff_ffff,
        DataType::U32 => integer_model!(u32, rule, a, b, scalar),
        DataType::I64 => integer_model!(i64, rule, a, b, scalar),
        DataType::U64 => integer_model!(u64, rule, a, b, scalar),
        DataType::F16 => {
            let (a, b) = (f16::from_bits(a as u16).to_f32(), f16::from_bits(b as u16).to_f32());
            f16::from_f32(float_model!(rule, a, b, factor, count)).to_bits().into()
        }
        DataType::BF16 => {
            let (a, b) = (bf16::from_bits(a as u16).to_f32(), bf16::from_bits(b as u16).to_f32());
            bf16::from_f32(float_model!(rule, a, b, factor, count)).to_bits().into()
        }
        DataType::F8E4M3 | DataType::F8E5M2 => {
            let values = ByteFloat::of(data_type);
            let (a, b) = (values.value(a as u8), values.value(b as u8));
            values.nearest(float_model!(rule, a, b, factor, count)).into()
        }
        DataType::F32 => {
            let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
            float_model!(rule, a, b, factor, count).to_bits().into()
        }
        DataType::F64 => {
            let (a, b) = (f64::from_bits(a), f64::from_bits(b));
            let factor = f64::from_bits(scalar);
            float_model!(rule, a, b, factor, f64::from(RANK_COUNT)).to_bits()
        }
    }
}

/// Sign and magnitude bits, and the bits of infinity, of a float type.
fn float_format(data_type: DataType) -> Option<(u64, u64)> {
    match data_type {
        DataType::F16 => Some((0x8000, 0x7c00)),
        DataType::BF16 => Some((0x8000, 0x7f80)),
        // It has no infinity; what is above the largest number is not a number.
        DataType::F8E4M3 => Some((0x80, 0x7e)),
        DataType::F8E5M2 => Some((0x80, 0x7c)),
        DataType::F32 => Some((0x8000_0000, 0x7f80_0000)),
        DataType::F64 => Some((1 << 63, 0x7ff0 << 48)),
        _ => None,
    }
}

/// Equal bits; any NaN for any NaN; either zero for a maximum or minimum of two zeros.
fn is_same(data_type: DataType, rule: Rule, found: u64, expected: u64) -> bool {
    if found == expected {
        return true;
    }
    let Some((sign, infinity)) = float_format(data_type) else { return false };
    let (found, expected) = (found & (sign - 1), expected & (sign - 1));
    (found > infinity && expected > infinity)
        || (matches!(rule, Rule::Max | Rule::Min) && found == 0 && expected == 0)
}

/// Bits that are the same on every run.
struct Bits(fastrand::Rng);

impl Bits {
    fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self(fastrand::Rng::with_seed(seed))
    }

    /// An element: mostly any bits at all, now and then a special value.
    fn element(&mut self, data_type: DataType) -> u64 {
        let bits = self.0.u64(..);
        let mask = u64::MAX >> (64 - 8 * data_type.size_bytes() as u32);
        let (sign, infinity) = float_format(data_type).unwrap_or((1, mask));
        // Small numbers too: two arbitrary exponents seldom meet, and then rounding is idle.
        let one = infinity - (infinity & (infinity >> 1 & infinity)) / 2;
        match bits >> 60 {
            0 => 0,
            1 => sign & mask,
            2 => infinity,
            3 => (infinity | sign) & mask,
            4 => mask >> 1,
            5 => 1,
            6..=11 => (one & infinity | bits & (mask & !infinity)) & mask,
            _ => bits & mask,
        }
    }
}

fn store(bytes: &mut [u8], index: usize, size: usize, bits: u64) {
    bytes[index * size..][..size].copy_from_slice(&bits.to_le_bytes()[..size]);
}

fn fetch(bytes: &[u8], index: usize, size: usize) -> u64 {
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[index * size..][..size]);
    u64::from_le_bytes(word)
}

/// Where the operands start: all aligned, all misaligned alike, each differently. In elements.
const OFFSETS: [[usize; 3]; 3] = [[0, 0, 0], [1, 1, 1], [0, 1, 3]];

/// Runs one launch of several ops with this type, reduction and flags, and checks every element.
fn check(data_type: DataType, reduce_op: ReduceOp, op_flags: u8, seed: u64) {
    let size = data_type.size_bytes();
    // More than two tiles of each warp, some vectors and a tail.
    let count = (5 * 2048 + 16 * 7) / size + 1;
    let length = count * size;
    let mut rank = Rank::new(2, RANK_COUNT, &[]);
    let mut bits = Bits::new(seed);
    let mut ops: Vec<Op> = Vec::new();
    let mut expectations = Vec::new();
    let scalar = match data_type {
        DataType::F64 => 2.7_f64.to_bits(),
        other if other.is_float() => u64::from(2.7_f32.to_bits()),
        // A negative scalar, sign-extended.
        _ => -3_i64 as u64,
    };
    for (case, [to, a, b]) in OFFSETS.into_iter().enumerate() {
        for is_copy in [false, true] {
            let mut values = [vec![0; length], vec![0; length]];
            for operand in &mut values {
                for i in 0..count {
                    store(operand, i, size, bits.element(data_type));
                }
            }
            let address_a = rank.arena.allocate(length, a * size);
            let address_b = rank.arena.allocate(length, b * size);
            // In place in one of the cases: the destination is the first operand.
            let destination =
                if case == 1 { address_a } else { rank.arena.allocate(length, to * size) };
            rank.arena.put(address_a, &values[0]);
            rank.arena.put(address_b, &values[1]);
            let (to, a, b) = (address(destination), address(address_a), address(address_b));
            ops.push(if is_copy {
                Op { flags: op_flags, ..copy(to, a, length as u32) }
            } else {
                reduce(to, a, b, length as u32, op_flags)
            });
            expectations.push((destination, values, is_copy));
        }
    }
    let mut arguments = rank.arguments(&PlanText::single(THREADS, &[], &ops));
    arguments.data_type = data_type as u32;
    arguments.reduce_op = reduce_op as u32;
    arguments.scalar = scalar;
    rank.execute(&arguments, (1, THREADS), |_| {});
    assert_eq!(rank.record().state, 0, "{:?}", rank.record());
    for (destination, [a, b], is_copy) in expectations {
        let result = rank.arena.get(destination, length);
        let Some(rule) = rule(reduce_op, op_flags, is_copy) else {
            assert!(result == a, "{data_type:?} {reduce_op:?}: a plain copy changed bits");
            continue;
        };
        for i in 0..count {
            let (a, b, found) = (fetch(&a, i, size), fetch(&b, i, size), fetch(&result, i, size));
            let expected = model(data_type, rule, a, b, scalar);
            assert!(
                is_same(data_type, rule, found, expected),
                "{data_type:?} {rule:?} element {i} of {count}: {a:#x} with {b:#x} gave \
                 {found:#x}, expected {expected:#x}"
            );
        }
    }
}

/// If this fails, a collective gives wrong results for this data type.
fn check_all(data_type: DataType) {
    for (i, reduce_op) in ReduceOp::ALL.into_iter().enumerate() {
        for op_flags in [0, flags::SCALE, flags::FINISH, flags::SCALE | flags::FINISH] {
            check(data_type, reduce_op, op_flags, (i * 16) as u64 + u64::from(op_flags));
        }
    }
}

macro_rules! for_each_type {
    ($($name:ident $data_type:ident),+) => {
        $(#[test]
        fn $name() {
            check_all(DataType::$data_type);
        })+
    };
}

for_each_type! {
    i8_elements I8, u8_elements U8, i32_elements I32, u32_elements U32, i64_elements I64,
    u64_elements U64, f16_elements F16, f32_elements F32, f64_elements F64, bf16_elements BF16,
    f8e4m3_elements F8E4M3, f8e5m2_elements F8E5M2
}
