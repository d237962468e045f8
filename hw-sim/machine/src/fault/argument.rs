//! Arguments of faults: what stands after the sign of equality.

/// The number after the sign of equality: decimal, or hexadecimal after `0x`.
pub(super) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The most microseconds that a fault may hold something back: a day. Sums of longer times could be
/// more than clocks can tell.
const TIME_MAX: u64 = 24 * 60 * 60 * 1_000_000;

/// A time after the sign of equality, in microseconds.
pub(super) fn time(text: &str) -> Option<u64> {
    number(text).filter(|time| *time <= TIME_MAX)
}
