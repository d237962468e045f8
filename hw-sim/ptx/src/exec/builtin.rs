//! The device runtime's functions that the interpreter answers itself.

use super::fault::{FaultKind, Trouble};
use super::program::{Builtin, BuiltinKind, NO_SLOT};
use super::registers::{LANES, each_lane};
use super::warp::{Context, Warp};
use super::windows;
use crate::kernel::Clock;
use crate::memory::{Memory, Strength};

/// Longest string that a kernel may print or assert with.
const TEXT_BYTES_MAX: u64 = 4096;

impl Warp {
    /// Runs a built-in function for each lane.
    pub(super) fn builtin<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        builtin: &Builtin,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        if matches!(builtin.kind, BuiltinKind::Allocate | BuiltinKind::Free) {
            return self.heap(context, builtin, active);
        }
        let mut results = [0_u32; LANES];
        let mut outcome = Ok(());
        each_lane(active, |lane| {
            if outcome.is_err() {
                return;
            }
            let argument = |number: usize| {
                let slot = builtin.arguments.get(number).copied();
                slot.map_or(0, |slot| self.registers.get::<u64>(slot)[lane])
            };
            outcome = match builtin.kind {
                BuiltinKind::Print => {
                    self.print(context, lane, argument(0), argument(1)).map(|count| {
                        results[lane] = count;
                    })
                }
                _ => {
                    let arguments = std::array::from_fn(argument);
                    Err(self.assertion(context, lane, arguments))
                }
            };
        });
        outcome?;
        if builtin.result != NO_SLOT {
            self.registers.put(builtin.result, &results, active);
        }
        Ok(())
    }

    /// `malloc` and `free`, lane by lane.
    fn heap<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        builtin: &Builtin,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let argument = builtin.arguments.first().copied();
        let arguments = argument.map_or([0; LANES], |slot| *self.registers.get::<u64>(slot));
        let mut results = [0_u64; LANES];
        let mut outcome = Ok(());
        each_lane(active, |lane| {
            let value = arguments[lane];
            if builtin.kind == BuiltinKind::Allocate {
                results[lane] = context.memory.allocate(value);
            } else if value != 0 && outcome.is_ok() && !context.memory.release(value) {
                outcome = Err(Trouble::at(FaultKind::InvalidFree, lane, value, 0));
            }
        });
        outcome?;
        if builtin.result != NO_SLOT {
            self.registers.put(builtin.result, &results, active);
        }
        Ok(())
    }

    /// A fault that says what `assert` says.
    fn assertion<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        lane: usize,
        [message, file, line, function]: [u64; 4],
    ) -> Box<Trouble> {
        let mut text = |address| self.text(context, lane, address).unwrap_or_default();
        let (message, file, function) = (text(message), text(file), text(function));
        let mut trouble = Trouble::new(FaultKind::Assert, 1 << lane);
        trouble.detail =
            format!("{file}:{}: {function}: assertion `{message}` failed", line as u32);
        trouble
    }

    /// Bytes at a generic address, as one lane sees them.
    fn bytes_at<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        lane: usize,
        address: u64,
        bytes: &mut [u8],
    ) -> Result<(), Box<Trouble>> {
        let start = (address & windows::OFFSET) as usize;
        let end = start.saturating_add(bytes.len());
        let (owned, fault): (&[u8], _) = match address & !windows::OFFSET {
            windows::SHARED => (&context.block.bytes, FaultKind::SharedOutOfBounds),
            windows::LOCAL => {
                let own = self.local.len() / LANES;
                (&self.local[lane * own..(lane + 1) * own], FaultKind::LocalOutOfBounds)
            }
            _ => {
                let read =
                    context.memory.read(&mut context.cursor, address, 1, Strength::WEAK, bytes);
                return read.map_err(|fault| Trouble::at(fault.into(), lane, address, bytes.len()));
            }
        };
        let found = owned.get(start..end);
        let found = found.ok_or_else(|| Trouble::at(fault, lane, address, bytes.len()))?;
        bytes.copy_from_slice(found);
        Ok(())
    }

    /// A NUL-terminated string.
    fn text<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        lane: usize,
        address: u64,
    ) -> Result<String, Box<Trouble>> {
        let mut text = Vec::new();
        for offset in 0..TEXT_BYTES_MAX {
            let mut byte = [0];
            self.bytes_at(context, lane, address.wrapping_add(offset), &mut byte)?;
            if byte[0] == 0 {
                break;
            }
            text.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// `vprintf`: gives the number of arguments, or -1 for none to print.
    fn print<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        lane: usize,
        format: u64,
        arguments: u64,
    ) -> Result<u32, Box<Trouble>> {
        let format = self.text(context, lane, format)?;
        let mut out = String::new();
        let mut cursor = arguments;
        let mut count = 0;
        let mut rest = format.as_str();
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            let (specifier, after) = Specifier::parse(&rest[at + 1..]);
            rest = after;
            if specifier.conversion == '%' {
                out.push('%');
                continue;
            }
            let (width, precision) = (
                self.star(context, lane, &mut cursor, specifier.width)?,
                self.star(context, lane, &mut cursor, specifier.precision)?,
            );
            let size = specifier.argument_bytes();
            let raw = self.argument(context, lane, &mut cursor, size)?;
            count += 1;
            let body = match specifier.conversion {
                's' => {
                    let text = self.text(context, lane, raw)?;
                    match precision {
                        Some(most) => text.chars().take(most).collect(),
                        None => text,
                    }
                }
                _ => specifier.number(raw, precision),
            };
            out.push_str(&specifier.padded(body, width.unwrap_or(0)));
        }
        out.push_str(rest);
        context.clock.print(&out);
        Ok(count)
    }

    /// One argument from the buffer, at its natural alignment.
    fn argument<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        lane: usize,
        cursor: &mut u64,
        size: u64,
    ) -> Result<u64, Box<Trouble>> {
        let address = cursor.wrapping_add(size - 1) & !(size - 1);
        let mut raw = [0; 8];
        self.bytes_at(context, lane, address, &mut raw[..size as usize])?;
        *cursor = address.wrapping_add(size);
        Ok(u64::from_le_bytes(raw))
    }

    /// A width or precision, taken from the arguments where it is `*`.
    fn star<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        lane: usize,
        cursor: &mut u64,
        field: Field,
    ) -> Result<Option<usize>, Box<Trouble>> {
        Ok(match field {
            Field::None => None,
            Field::Given(value) => Some(value),
            Field::Star => {
                let raw = self.argument(context, lane, cursor, 4)? as u32;
                Some((raw as usize).min(TEXT_BYTES_MAX as usize))
            }
        })
    }
}

/// A width or a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    None,
    Given(usize),
    Star,
}

/// A conversion of `printf`, after its `%`.
#[derive(Debug)]
struct Specifier {
    left: bool,
    zeros: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: Field,
    precision: Field,
    long: bool,
    short_bits: u32,
    conversion: char,
}

impl Specifier {
    /// Reads one; gives what comes after.
    fn parse(text: &str) -> (Self, &str) {
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
                    let digit = c as usize - '0' as usize;
                    let before = if let Field::Given(value) = *field { value } else { 0 };
                    *field = Field::Given((before * 10 + digit).min(TEXT_BYTES_MAX as usize));
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

    fn argument_bytes(&self) -> u64 {
        match self.conversion {
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'c' if !self.long => 4,
            _ => 8,
        }
    }

    /// A number without padding.
    fn number(&self, raw: u64, precision: Option<usize>) -> String {
        let unused = match (self.long, self.short_bits) {
            (true, _) => 0,
            (false, 0) => 32,
            (false, 16) => 48,
            _ => 56,
        };
        let unsigned = raw << unused >> unused;
        match self.conversion {
            'd' | 'i' => self.signed((raw << unused) as i64 >> unused),
            'u' => format!("{unsigned}"),
            'x' if self.alternate => format!("{unsigned:#x}"),
            'x' => format!("{unsigned:x}"),
            'X' => format!("{unsigned:X}"),
            'o' => format!("{unsigned:o}"),
            'c' => char::from(raw as u8).to_string(),
            'p' => format!("{raw:#x}"),
            _ => self.float(f64::from_bits(raw), precision.unwrap_or(6)),
        }
    }

    fn sign(&self) -> &'static str {
        if self.plus {
            "+"
        } else if self.space {
            " "
        } else {
            ""
        }
    }

    fn signed(&self, value: i64) -> String {
        if value < 0 { value.to_string() } else { format!("{}{value}", self.sign()) }
    }

    fn float(&self, value: f64, precision: usize) -> String {
        let sign = if value.is_sign_negative() { "-" } else { self.sign() };
        let magnitude = value.abs();
        if magnitude.is_nan() {
            return format!("{sign}nan");
        }
        if magnitude.is_infinite() {
            return format!("{sign}inf");
        }
        let body = match self.conversion {
            'e' | 'E' => scientific(magnitude, precision),
            'g' | 'G' => general(magnitude, precision.max(1)),
            _ => format!("{magnitude:.precision$}"),
        };
        let upper = self.conversion.is_ascii_uppercase();
        format!("{sign}{}", if upper { body.to_uppercase() } else { body })
    }

    fn padded(&self, body: String, width: usize) -> String {
        if self.left {
            return format!("{body:<width$}");
        }
        let number = !matches!(self.conversion, 's' | 'c');
        if self.zeros && number && body.len() < width {
            let digits = body.trim_start_matches(['-', '+', ' ']);
            let sign = &body[..body.len() - digits.len()];
            return format!("{sign}{digits:0>fill$}", fill = width - sign.len());
        }
        format!("{body:>width$}")
    }
}

/// `%e`: an exponent of at least two digits.
fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// `%g`: whichever of `%e` and `%f` is shorter, without trailing zeros.
fn general(value: f64, precision: usize) -> String {
    let rounded = format!("{value:.*e}", precision - 1);
    let exponent: i32 = rounded.split_once('e').map_or(0, |(_, e)| e.parse().unwrap_or(0));
    let trim = |text: &str| {
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text.to_owned()
        }
    };
    if exponent < -4 || exponent >= precision as i32 {
        let text = scientific(value, precision - 1);
        return match text.split_once('e') {
            Some((mantissa, exponent)) => format!("{}e{exponent}", trim(mantissa)),
            None => text,
        };
    }
    trim(&format!("{value:.*}", (precision as i32 - 1 - exponent).max(0) as usize))
}
