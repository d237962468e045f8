//! Video instructions: sums, differences, shifts and comparisons of parts of words, one or several
//! to a word, with a second operation behind.

use super::registers::{Args, Registers, map3};

/// The first operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // The names are PTX's own.
pub enum Operation {
    Add,
    Sub,
    AbsoluteDifference,
    Average,
    Min,
    Max,
    ShiftLeft,
    ShiftRight,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

const OPERATIONS: [Operation; 14] = [
    Operation::Add,
    Operation::Sub,
    Operation::AbsoluteDifference,
    Operation::Average,
    Operation::Min,
    Operation::Max,
    Operation::ShiftLeft,
    Operation::ShiftRight,
    Operation::Equal,
    Operation::NotEqual,
    Operation::Less,
    Operation::LessEqual,
    Operation::Greater,
    Operation::GreaterEqual,
];

/// What is done with the third operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Second {
    /// It takes the place of what the result does not fill.
    Merge,
    /// It is added: to the result, or to the sum of the results.
    Add,
    /// The smaller counts.
    Min,
    /// The larger counts.
    Max,
}

const SECONDS: [Second; 4] = [Second::Merge, Second::Add, Second::Min, Second::Max];

/// Part of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its bits: 8, 16 or 32.
    pub bits: u32,
    /// The lowest of them.
    pub low: u32,
}

impl Part {
    /// All of it.
    pub const WORD: Self = Self { bits: 32, low: 0 };

    /// `b0` to `b3`, `h0`, `h1`
    pub fn named(word: &str) -> Option<Self> {
        let (kind, number) = word.split_at_checked(1)?;
        let number: u32 = number.parse().ok()?;
        let bits = match kind {
            "b" if number < 4 => 8,
            "h" if number < 2 => 16,
            _ => return None,
        };
        Some(Self { bits, low: number * bits })
    }

    /// Its value in a word.
    fn of(self, word: u32, signed: bool) -> i64 {
        let unused = 32 - self.bits;
        let high = word >> self.low << unused;
        if signed { (high as i32 >> unused).into() } else { (high >> unused).into() }
    }

    /// A word with this part replaced.
    fn put(self, word: u32, value: i64) -> u32 {
        let mask = (u64::from(u32::MAX) >> (32 - self.bits)) << self.low;
        let value = (value as u64) << self.low & mask;
        (u64::from(word) & !mask | value) as u32
    }

    /// The nearest value that it holds.
    fn clamp(self, value: i64, signed: bool) -> i64 {
        let end = 1_i64 << self.bits;
        if signed { value.clamp(-end / 2, end / 2 - 1) } else { value.clamp(0, end - 1) }
    }
}

/// An instruction, but for its registers.
#[derive(Clone, Copy, Debug)]
pub struct Video {
    /// The first operation.
    pub operation: Operation,
    /// The second one.
    pub second: Second,
    /// Parts of a word that are computed apart: 1, 2 or 4.
    pub lanes: u32,
    /// Are the result, a and b signed?
    pub signed: [bool; 3],
    /// Results are clamped.
    pub saturate: bool,
    /// Distances of shifts are taken modulo 32, not clamped.
    pub wrap: bool,
    /// Which parts of the result, a and b; whole words where there are several lanes.
    pub parts: [Part; 3],
}

impl Video {
    /// As [`Args::e`].
    pub fn encode(self) -> u32 {
        let mut code = 0;
        let mut push = |value: u32, bits: u32| code = code << bits | value;
        push(self.operation as u32, 4);
        push(self.second as u32, 2);
        push(self.lanes.trailing_zeros(), 2);
        for signed in self.signed.into_iter().chain([self.saturate, self.wrap]) {
            push(signed.into(), 1);
        }
        for part in self.parts {
            push(part.bits.trailing_zeros() - 3, 2);
            push(part.low / 8, 2);
        }
        code
    }

    fn decode(mut code: u32) -> Self {
        let mut pop = |bits: u32| {
            let value = code & ((1 << bits) - 1);
            code >>= bits;
            value
        };
        let mut part = || Part { low: pop(2) * 8, bits: 8 << pop(2) };
        let (b, a, d) = (part(), part(), part());
        let mut flag = || pop(1) == 1;
        let (wrap, saturate) = (flag(), flag());
        let (b_signed, a_signed, d_signed) = (flag(), flag(), flag());
        Self {
            parts: [d, a, b],
            wrap,
            saturate,
            signed: [d_signed, a_signed, b_signed],
            lanes: 1 << pop(2),
            second: SECONDS[pop(2) as usize],
            operation: OPERATIONS[pop(4) as usize % OPERATIONS.len()],
        }
    }

    /// One part, before it is cut to its place.
    fn first(self, a: i64, b: i64) -> i64 {
        let distance = if self.wrap { b & 31 } else { b.clamp(0, 32) };
        match self.operation {
            Operation::Add => a + b,
            Operation::Sub => a - b,
            Operation::AbsoluteDifference => (a - b).abs(),
            // Half a unit is rounded up, also below zero.
            Operation::Average => (a + b + i64::from(a + b >= 0)) >> 1,
            Operation::Min => a.min(b),
            Operation::Max => a.max(b),
            Operation::ShiftLeft => a << distance,
            Operation::ShiftRight => a >> distance,
            Operation::Equal => (a == b).into(),
            Operation::NotEqual => (a != b).into(),
            Operation::Less => (a < b).into(),
            Operation::LessEqual => (a <= b).into(),
            Operation::Greater => (a > b).into(),
            Operation::GreaterEqual => (a >= b).into(),
        }
    }

    fn apply(self, a: u32, b: u32, c: u32) -> u32 {
        let [d_signed, a_signed, b_signed] = self.signed;
        if self.lanes > 1 {
            let bits = 32 / self.lanes;
            let (mut word, mut sum) = (c, c);
            for lane in 0..self.lanes {
                let part = Part { bits, low: lane * bits };
                let value = self.first(part.of(a, a_signed), part.of(b, b_signed));
                let value = if self.saturate { part.clamp(value, d_signed) } else { value };
                word = part.put(word, value);
                sum = sum.wrapping_add(part.of(word, d_signed) as u32);
            }
            return if self.second == Second::Add { sum } else { word };
        }
        let [to, from_a, from_b] = self.parts;
        let value = self.first(from_a.of(a, a_signed), from_b.of(b, b_signed));
        let value = if self.saturate { to.clamp(value, d_signed) } else { value };
        let result = value as u32;
        match self.second {
            Second::Merge => to.put(c, value),
            Second::Add => result.wrapping_add(c),
            Second::Min if d_signed => (result as i32).min(c as i32) as u32,
            Second::Max if d_signed => (result as i32).max(c as i32) as u32,
            Second::Min => result.min(c),
            Second::Max => result.max(c),
        }
    }
}

/// The instruction on all lanes.
pub fn run(r: &mut Registers, i: &Args, mask: u32) {
    let video = Video::decode(i.e);
    map3(r, i, mask, |a: u32, b: u32, c: u32| video.apply(a, b, c));
}
