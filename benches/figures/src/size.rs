//! Message sizes: read as `512`, `8K`, `8KB`, `1.5M` or `1GiB`, written as `8K` or `8 KiB`.

use std::fmt;

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a size in bytes such as 8192, 8K, 8KB, 1.5M or 1GiB (K, M, G and T are powers of \
     1024), but saw {seen:?}: {reason}"
)]
pub struct SizeError {
    /// The text.
    pub seen: String,
    /// What is wrong with it.
    pub reason: SizeReason,
}

/// What is wrong with the text of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeReason {
    /// It does not start with a number.
    Number,
    /// The letters after the number name no unit.
    Unit,
    /// The number of bytes is not whole.
    Fraction,
    /// The number of bytes does not fit.
    TooLarge,
}

impl fmt::Display for SizeReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Number => "it does not start with a decimal number",
            Self::Unit => "the unit is none of B, K, M, G, T (or KB, KiB and so on)",
            Self::Fraction => "it is not a whole number of bytes",
            Self::TooLarge => "it is more than 2^53 bytes",
        })
    }
}

/// Above this a double no longer holds every whole number; no memory is that large anyway.
const BYTES_MAX: f64 = (1u64 << 53) as f64;

/// Reads a size. Units are binary, as in nccl-tests: `1K` is 1024 bytes.
///
/// # Errors
/// [`SizeError`] for a text that is not a whole number of bytes, at most 2^53.
pub fn parse_size(text: &str) -> Result<usize, SizeError> {
    let fail = |reason| SizeError { seen: text.to_owned(), reason };
    let trimmed = text.trim();
    let split = trimmed
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number: f64 = number.parse().map_err(|_| fail(SizeReason::Number))?;
    let scale = unit_bytes(unit.trim()).ok_or_else(|| fail(SizeReason::Unit))?;
    let bytes = number * scale;
    if bytes > BYTES_MAX {
        return Err(fail(SizeReason::TooLarge));
    }
    if bytes.fract() != 0.0 {
        return Err(fail(SizeReason::Fraction));
    }
    Ok(bytes as usize)
}

/// `8K` for 8192: the largest unit that divides the size.
pub fn short(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units.iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or(bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// `8 KiB` for 8192, `1.5 KiB` for 1536: at most two decimals.
pub fn with_unit(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1.0).log2() / 10.0).floor().clamp(0.0, 4.0);
    let value = (bytes / 1024f64.powf(power) * 100.0).round() / 100.0;
    format!("{value} {}", units[power as usize])
}

fn unit_bytes(unit: &str) -> Option<f64> {
    let lower = unit.to_ascii_lowercase();
    let letter = lower.strip_suffix("ib").or(lower.strip_suffix('b')).unwrap_or(&lower);
    Some(match (letter, lower.as_str()) {
        // "ib" alone is no unit, although stripping leaves nothing.
        ("", "" | "b") => 1.0,
        ("k", _) => 1024.0,
        ("m", _) => 1024.0 * 1024.0,
        ("g", _) => 1024.0 * 1024.0 * 1024.0,
        ("t", _) => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_nccl_tests_reads_them() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("8K", 8192),
            ("8k", 8192),
            ("8KB", 8192),
            ("8KiB", 8192),
            ("8 kib", 8192),
            ("1.5M", 3 << 19),
            ("1G", 1 << 30),
            ("1GiB", 1 << 30),
            ("2T", 2 << 40),
            ("64B", 64),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_in_binary_units() {
        for (bytes, brief, label) in [
            (1, "1", "1 B"),
            (512, "512", "512 B"),
            (1536, "1536", "1.5 KiB"),
            (8192, "8K", "8 KiB"),
            (24 << 20, "24M", "24 MiB"),
            (1 << 30, "1G", "1 GiB"),
        ] {
            assert_eq!((short(bytes).as_str(), with_unit(bytes as f64).as_str()), (brief, label));
            assert_eq!(parse_size(brief), Ok(bytes as usize));
        }
    }

    #[test]
    fn a_bad_size_says_what_was_seen_and_why() {
        for (text, reason) in [
            ("", SizeReason::Number),
            ("K", SizeReason::Number),
            ("-8K", SizeReason::Number),
            ("1.2.3K", SizeReason::Number),
            ("8Q", SizeReason::Unit),
            ("8iB", SizeReason::Unit),
            ("8KK", SizeReason::Unit),
            ("0.3K", SizeReason::Fraction),
            ("9000000T", SizeReason::TooLarge),
        ] {
            let error = parse_size(text).expect_err(text);
            assert_eq!(error.reason, reason, "{text}");
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }
}
