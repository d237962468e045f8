//! Conversions of `printf`, as C has them: the device's output is formatted like the host's.

/// Longest string that a kernel may print or assert with, widest field, and most digits.
pub const TEXT_BYTES_MAX: usize = 4096;

/// A width or a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// There is none.
    None,
    /// A number.
    Given(i32),
    /// `*`: the next argument.
    Star,
}

/// A conversion, after its `%`.
#[derive(Clone, Copy, Debug)]
pub struct Specifier {
    left: bool,
    zeros: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    /// As it was written.
    pub width: Field,
    /// As it was written.
    pub precision: Field,
    long: bool,
    short_bits: u32,
    /// `d`, `s`, ...; `%` for none.
    pub conversion: char,
}

impl Specifier {
    /// Reads one; gives what comes after.
    pub fn parse(text: &str) -> (Self, &str) {
        let mut specifier = Self {
            left: false,
            zeros: false,
            plus: false,
            space: false,
            alternate: false,
            width: Field::None,
            precision: Field::None,
            long: false,
            short_bits: 0,
            conversion: '%',
        };
        let mut in_precision = false;
        for (at, c) in text.char_indices() {
            let field = if in_precision { &mut specifier.precision } else { &mut specifier.width };
            match c {
                '.' => {
                    in_precision = true;
                    specifier.precision = Field::Given(0);
                }
                '*' => *field = Field::Star,
                '0' if !in_precision && *field == Field::None => specifier.zeros = true,
                '0'..='9' => {
                    let digit = c as i32 - '0' as i32;
                    let before = if let Field::Given(value) = *field { value } else { 0 };
                    *field = Field::Given((before * 10 + digit).min(TEXT_BYTES_MAX as i32));
                }
                '-' => specifier.left = true,
                '+' => specifier.plus = true,
                ' ' => specifier.space = true,
                '#' => specifier.alternate = true,
                'l' | 'z' | 'j' | 't' => specifier.long = true,
                'h' => specifier.short_bits += 16,
                'L' => {}
                _ => {
                    specifier.conversion = c;
                    return (specifier, &text[at + c.len_utf8()..]);
                }
            }
        }
        (specifier, "")
    }

    /// With the width and the precision that arguments gave. A negative width means the left edge,
    /// a negative precision none.
    pub fn with(mut self, width: Option<i32>, precision: Option<i32>) -> Self {
        self.left |= width.is_some_and(|width| width < 0);
        let most = TEXT_BYTES_MAX as u32;
        let given = |value: u32| Field::Given(value.min(most) as i32);
        self.width = width.map_or(Field::None, |width| given(width.unsigned_abs()));
        let precision = precision.and_then(|precision| u32::try_from(precision).ok());
        self.precision = precision.map_or(Field::None, given);
        self
    }

    /// Bytes of the argument.
    pub fn argument_bytes(&self) -> u64 {
        match self.conversion {
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'c' if !self.long => 4,
            _ => 8,
        }
    }

    fn digits(&self) -> Option<usize> {
        if let Field::Given(digits) = self.precision { Some(digits as usize) } else { None }
    }

    /// `%s`
    pub fn text(&self, text: &str) -> String {
        let text: String = text.chars().take(self.digits().unwrap_or(usize::MAX)).collect();
        self.padded("", text, false)
    }

    /// All others.
    pub fn number(&self, raw: u64) -> String {
        let unused = match (self.long, self.short_bits) {
            (true, _) => 0,
            (false, 0) => 32,
            (false, 16) => 48,
            _ => 56,
        };
        let unsigned = raw << unused >> unused;
        let prefixed = |prefix| if self.alternate && unsigned != 0 { prefix } else { "" };
        match self.conversion {
            'd' | 'i' => {
                let value = (raw << unused) as i64 >> unused;
                self.integer(self.sign(value < 0), value.unsigned_abs().to_string())
            }
            'u' => self.integer("", unsigned.to_string()),
            'x' => self.integer(prefixed("0x"), format!("{unsigned:x}")),
            'X' => self.integer(prefixed("0X"), format!("{unsigned:X}")),
            'o' => self.octal(unsigned),
            'c' => self.padded("", char::from(raw as u8).to_string(), false),
            'p' if raw == 0 => self.padded("", "(nil)".to_owned(), false),
            'p' => self.padded("0x", format!("{raw:x}"), false),
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'a' | 'A' => self.float(f64::from_bits(raw)),
            // C gives it no meaning; shown as it stands.
            other => format!("%{other}"),
        }
    }

    fn sign(&self, negative: bool) -> &'static str {
        match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        }
    }

    /// Digits, at least as many as the precision says; no zero at all if that is 0.
    fn integer(&self, prefix: &str, digits: String) -> String {
        let least = self.digits();
        let digits = if least == Some(0) && digits == "0" { String::new() } else { digits };
        let digits = format!("{digits:0>least$}", least = least.unwrap_or(0));
        self.padded(prefix, digits, least.is_none())
    }

    /// `#` asks for a zero in front, which counts as a digit.
    fn octal(&self, value: u64) -> String {
        let digits = format!("{value:o}");
        let short = self.digits().unwrap_or(0) <= digits.len();
        let zero_missing = value != 0 || self.digits() == Some(0);
        if self.alternate && short && zero_missing {
            let digits = if value == 0 { "0".to_owned() } else { format!("0{digits}") };
            return self.padded("", digits, self.digits().is_none());
        }
        self.integer("", digits)
    }

    fn float(&self, value: f64) -> String {
        let magnitude = value.abs();
        let upper = self.conversion.is_ascii_uppercase();
        let cased = |text: String| if upper { text.to_uppercase() } else { text };
        let sign = self.sign(value.is_sign_negative());
        if !magnitude.is_finite() {
            let name = if magnitude.is_nan() { "nan" } else { "inf" };
            return self.padded(sign, cased(name.to_owned()), false);
        }
        let digits = self.digits().unwrap_or(6);
        let body = match self.conversion.to_ascii_lowercase() {
            'e' => scientific(magnitude, digits, self.alternate),
            'g' => general(magnitude, digits.max(1), self.alternate),
            'a' => {
                let prefix = format!("{sign}{}", if upper { "0X" } else { "0x" });
                let body = hexadecimal(magnitude, self.digits(), self.alternate);
                return self.padded(&prefix, cased(body), true);
            }
            _ => pointed(format!("{magnitude:.digits$}"), self.alternate),
        };
        self.padded(sign, cased(body), true)
    }

    /// Fills up to the width: with zeros behind the prefix, where they are asked for and fit.
    fn padded(&self, prefix: &str, body: String, zeros_fit: bool) -> String {
        let width = if let Field::Given(width) = self.width { width as usize } else { 0 };
        if self.left {
            return format!("{:<width$}", format!("{prefix}{body}"));
        }
        if self.zeros && zeros_fit {
            let fill = width.saturating_sub(prefix.len());
            return format!("{prefix}{body:0>fill$}");
        }
        format!("{:>width$}", format!("{prefix}{body}"))
    }
}

/// `#`: a point even where no digit follows.
fn pointed(digits: String, alternate: bool) -> String {
    if alternate && !digits.contains('.') { digits + "." } else { digits }
}

/// `%e`: an exponent of at least two digits.
fn scientific(value: f64, digits: usize, alternate: bool) -> String {
    let text = format!("{value:.digits$e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", pointed(mantissa.to_owned(), alternate), exponent.abs())
}

/// `%g`: `%e` for very small and very large numbers, else `%f`; without trailing zeros, unless `#`.
fn general(value: f64, digits: usize, alternate: bool) -> String {
    let rounded = format!("{value:.*e}", digits - 1);
    let exponent: i32 = rounded.split_once('e').map_or(0, |(_, e)| e.parse().unwrap_or(0));
    let trim = |text: &str| match text.contains('.') && !alternate {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= digits as i32 {
        let text = scientific(value, digits - 1, alternate);
        return match text.split_once('e') {
            Some((mantissa, exponent)) => format!("{}e{exponent}", trim(mantissa)),
            None => text,
        };
    }
    let behind = (digits as i32 - 1 - exponent).max(0) as usize;
    trim(&pointed(format!("{value:.behind$}"), alternate))
}

/// `%a` without `0x`: one digit before the point, 1 for normal numbers and 0 for subnormal ones, as
/// the C library of GNU has it.
fn hexadecimal(value: f64, digits: Option<usize>, alternate: bool) -> String {
    const FRACTION: u32 = 52;
    let bits = value.to_bits();
    let (biased, fraction) = ((bits >> FRACTION) as i32, bits & ((1 << FRACTION) - 1));
    let (lead, exponent) = match (biased, fraction) {
        (0, 0) => (0, 0),
        (0, _) => (0, -1022),
        _ => (1, biased - 1023),
    };
    let mut significand = lead << FRACTION | fraction;
    let kept = digits.unwrap_or(13).min(13);
    let cut = FRACTION - 4 * kept as u32;
    if cut > 0 {
        // To nearest, ties to even.
        let (half, odd) = (1 << (cut - 1), significand >> cut & 1);
        significand = (significand + half - 1 + odd) >> cut << cut;
    }
    let fraction = format!("{:013x}", significand & ((1 << FRACTION) - 1));
    let fraction = match digits {
        None => fraction.trim_end_matches('0').to_owned(),
        Some(digits) => format!("{:0<digits$}", &fraction[..kept]),
    };
    let point = if fraction.is_empty() && !alternate { "" } else { "." };
    format!("{}{point}{fraction}p{exponent:+}", significand >> FRACTION)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table is what the C library of GNU prints: format, bits of the argument, text.
    #[test]
    fn conversions_print_what_c_prints() {
        let table = include_str!("../../tests/fixtures/printf.txt");
        let mut seen = 0;
        for line in table.lines() {
            let mut fields = line.split('\t');
            let mut next = || fields.next().expect("three fields");
            let (format, bits, expected) = (next(), next(), next());
            let bits = u64::from_str_radix(bits, 16).expect("a number");
            let (specifier, rest) = Specifier::parse(&format[1..]);
            let given = |field| if let Field::Given(value) = field { Some(value) } else { None };
            let specifier = specifier.with(given(specifier.width), given(specifier.precision));
            let got = format!("[{}{rest}]", specifier.number(bits));
            assert_eq!(got, expected, "{format} of {bits:#x}");
            seen += 1;
        }
        assert!(seen > 600, "{seen} lines");
    }
}
