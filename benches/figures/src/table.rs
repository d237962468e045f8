//! The table of nccl-tests: programs that read its output can read this one.

use std::fmt::Display;

/// Out-of-place or in-place results of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Half {
    /// Time of one operation, in microseconds.
    pub time_us: f64,
    /// Bytes of the message over the time, in GB/s (10^9).
    pub algorithm_bandwidth: f64,
    /// Bytes that cross each rank's link over the time, in GB/s (10^9).
    pub bus_bandwidth: f64,
    /// Wrong elements; `None` if they were not counted.
    pub wrong: Option<u64>,
}

/// Bytes that a link must carry for each byte of an all-reduce, at best.
pub fn all_reduce_bus_factor(ranks: usize) -> f64 {
    let ranks = ranks as f64;
    2.0 * (ranks - 1.0) / ranks
}

/// The three lines that name the columns, spaced as by nccl-tests. `last` names a further column,
/// or is empty.
pub fn columns(last: &str) -> String {
    let half = |names: [&str; 4]| {
        format!("  {:>7}  {:>6}  {:>6}  {:>6}", names[0], names[1], names[2], names[3])
    };
    let line = |left: [&str; 5], right: [&str; 4], last: &str| {
        let [size, count, kind, redop, root] = left;
        let left = format!("# {size:>10}  {count:>12}  {kind:>8}  {redop:>6}  {root:>6}");
        format!("{left}{0}{0} {last}\n", half(right))
    };
    let halves = "out-of-place                       in-place          ";
    format!("#\n# {:50}           {halves}\n", "")
        + &line(
            ["size", "count", "type", "redop", "root"],
            ["time", "algbw", "busbw", "#wrong"],
            last,
        )
        + &line(["(B)", "(elements)", "", "", ""], ["(us)", "(GB/s)", "(GB/s)", ""], "")
}

/// The columns of a row before its results, with the reduction and the root.
pub fn row_start(
    bytes: impl Display,
    count: impl Display,
    data_type: &str,
    (redop, root): (&str, i64),
) -> String {
    format!("{bytes:>12}  {count:>12}  {data_type:>8}  {redop:>6}  {root:>6}")
}

/// The root of operations without one.
pub const ROOT: i64 = -1;

/// Four columns of a row; `None` for a half that was not run.
pub fn half(half: Option<&Half>) -> String {
    let Some(half) = half else {
        return format!("  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
    };
    let wrong = half.wrong.map_or("N/A".to_owned(), |count| general(count as f64));
    format!(
        "  {:>7}  {:>6}  {:>6}  {wrong:>6}",
        fitted(half.time_us, 7),
        fitted(half.algorithm_bandwidth, 6),
        fitted(half.bus_bandwidth, 6)
    )
}

/// A number with as many decimals as the width has room for: at most two, or three if the width is
/// above 7.
pub fn fitted(value: f64, width: usize) -> String {
    let most = if width > 7 { 3 } else { 2 };
    for decimals in (0..=most).rev() {
        let text = format!("{value:.decimals$}");
        if text.len() <= width {
            return text;
        }
    }
    if width >= 7 { exponential(value, 1) } else { exponential(value, 0) }
}

/// C's `%.*e`: an exponent of at least two digits, with its sign.
fn exponential(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = match exponent.strip_prefix('-') {
                Some(digits) => ('-', digits),
                None => ('+', exponent),
            };
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text,
    }
}

/// C's `%g`: six significant digits, no trailing zeros.
pub fn general(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let rounded = exponential(value, 5);
    let (mantissa, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        trim(&format!("{value:.*}", (5 - exponent) as usize))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_columns() {
        assert_eq!(fitted(6.514, 7), "6.51");
        assert_eq!(fitted(12345.678, 7), "12345.7");
        assert_eq!(fitted(1234567.8, 7), "1234568");
        assert_eq!(fitted(12345678.0, 7), "1.2e+07");
        assert_eq!(fitted(1234567.0, 6), "1e+06");
        assert_eq!(fitted(139.4, 6), "139.40");
        assert_eq!(fitted(0.0249, 9), "0.025");
    }

    #[test]
    fn general_is_printfs_g() {
        for (value, text) in [
            (0.0, "0"),
            (12.0, "12"),
            (3.4285714, "3.42857"),
            (139.4, "139.4"),
            (999999.5, "1e+06"),
            (1234567.0, "1.23457e+06"),
            (0.0001234567, "0.000123457"),
            (0.00001234567, "1.23457e-05"),
        ] {
            assert_eq!(general(value), text);
        }
    }
}
