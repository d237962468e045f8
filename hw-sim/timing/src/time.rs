//! Modelled time: whole picoseconds, so that equal runs give equal results to the last bit.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A moment or a duration of the model, in picoseconds. 2^64 of them are 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// The start of every run, and the duration of nothing.
    pub const ZERO: Self = Self(0);

    /// From microseconds, to the nearest picosecond.
    pub fn from_us(us: f64) -> Self {
        Self((us * 1e6).round() as u64)
    }

    /// In microseconds.
    pub fn us(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// In seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// This duration `count` times.
    pub fn times(self, count: u64) -> Self {
        Self(self.0 * count)
    }
}

impl Add for Time {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Time {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} us", self.us())
    }
}

/// How fast bytes move: bytes per second, a whole number so that sums are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rate(pub u64);

impl Rate {
    /// From GB/s (1e9 bytes).
    pub fn from_gb_per_s(gb: f64) -> Self {
        Self((gb * 1e9).round() as u64)
    }

    /// In GB/s.
    pub fn gb_per_s(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// This rate times a ratio.
    pub fn scaled(self, ratio: f64) -> Self {
        Self((self.0 as f64 * ratio).round() as u64)
    }

    /// This rate, so many times.
    pub fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    /// How long `bytes` take, rounded up: the model must never be faster than the rate.
    pub fn time(self, bytes: u64) -> Time {
        let picoseconds = u128::from(bytes) * 1_000_000_000_000;
        Time(picoseconds.div_ceil(u128::from(self.0.max(1))) as u64)
    }
}
