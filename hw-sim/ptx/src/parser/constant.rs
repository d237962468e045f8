//! Constants and constant expressions.

use super::Parser;
use super::lexer::Kind;
use crate::error::PtxError;

/// Deepest nesting of parentheses, signs and conditionals. Compilers emit two or three.
const DEPTH_MAX: u32 = 64;
/// What PTX calls `WARP_SZ`.
const WARP_SIZE: i128 = 32;

/// A constant's value. The single form keeps its bits, because a NaN must survive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Constant {
    Integer(i128),
    Float(f64),
    FloatBits32(u32),
}

impl<'t> Parser<'t> {
    /// A constant expression.
    pub(super) fn constant(&mut self) -> Result<Constant, PtxError> {
        self.conditional(0)
    }

    /// A constant expression that must be an integer in the given range.
    pub(super) fn integer(&mut self, what: &str, low: i128, high: i128) -> Result<i128, PtxError> {
        let token = self.peek();
        match self.constant()? {
            Constant::Integer(value) if (low..=high).contains(&value) => Ok(value),
            Constant::Integer(value) => {
                let expected = format!("{what} from {low} to {high}");
                Err(self.error_at(token, expected, value.to_string()))
            }
            _ => Err(self.error_at(token, what, "a float")),
        }
    }

    /// An unsigned 32-bit integer.
    pub(super) fn unsigned(&mut self, what: &str) -> Result<u32, PtxError> {
        // The range makes the cast exact.
        self.integer(what, 0, u32::MAX.into()).map(|value| value as u32)
    }

    fn conditional(&mut self, depth: u32) -> Result<Constant, PtxError> {
        let condition = self.binary(0, depth)?;
        if !self.eat("?") {
            return Ok(condition);
        }
        let deeper = self.deeper(depth)?;
        let yes = self.conditional(deeper)?;
        self.expect(":")?;
        let no = self.conditional(deeper)?;
        Ok(if condition == Constant::Integer(0) { no } else { yes })
    }

    /// Operators of at least this precedence, by climbing.
    fn binary(&mut self, precedence_min: u32, depth: u32) -> Result<Constant, PtxError> {
        let mut left = self.unary(depth)?;
        loop {
            let token = self.peek();
            let operator = self.slice(token);
            let Some(precedence) = precedence(operator).filter(|own| *own >= precedence_min) else {
                return Ok(left);
            };
            self.advance();
            let right = self.binary(precedence + 1, self.deeper(depth)?)?;
            left = apply(operator, left, right).ok_or_else(|| {
                let found = format!("{left:?} {operator} {right:?}");
                self.error_at(token, "operands of one kind, and a result of 64 bits", found)
            })?;
        }
    }

    fn unary(&mut self, depth: u32) -> Result<Constant, PtxError> {
        let token = self.peek();
        let operator = self.slice(token);
        match operator {
            "+" | "-" | "!" | "~" => {
                self.advance();
                let value = self.unary(self.deeper(depth)?)?;
                negate(operator, value)
                    .ok_or_else(|| self.error_at(token, "an integer", format!("{value:?}")))
            }
            "(" => {
                self.advance();
                if self.peek().kind == Kind::Dotted {
                    return self.cast(depth);
                }
                let value = self.conditional(self.deeper(depth)?)?;
                self.expect(")")?;
                Ok(value)
            }
            "WARP_SZ" => {
                self.advance();
                Ok(Constant::Integer(WARP_SIZE))
            }
            _ if token.kind == Kind::Number => {
                self.advance();
                literal(operator)
                    .ok_or_else(|| self.error_at(token, "a number", format!("`{operator}`")))
            }
            _ if self.at_fraction() => {
                self.advance();
                literal(&format!("0{operator}"))
                    .ok_or_else(|| self.error_at(token, "a number", format!("`{operator}`")))
            }
            _ => Err(self.unexpected("a constant")),
        }
    }

    /// Does `.5` stand next, which reads like a modifier?
    pub(super) fn at_fraction(&self) -> bool {
        let token = self.peek();
        let first = self.slice(token).as_bytes().get(1);
        token.kind == Kind::Dotted && first.is_some_and(u8::is_ascii_digit)
    }

    /// `(.u64) x` or `(.s64) x`, the opening parenthesis being read.
    fn cast(&mut self, depth: u32) -> Result<Constant, PtxError> {
        let token = self.advance();
        self.expect(")")?;
        let value = self.unary(self.deeper(depth)?)?;
        match (self.slice(token), value) {
            (".u64", Constant::Integer(value)) => Ok(Constant::Integer((value as u64).into())),
            (".s64", Constant::Integer(value)) => Ok(Constant::Integer((value as i64).into())),
            (other, _) => {
                Err(self.error_at(token, "`.s64` or `.u64`, and an integer", format!("`{other}`")))
            }
        }
    }

    fn deeper(&self, depth: u32) -> Result<u32, PtxError> {
        if depth == DEPTH_MAX {
            let found = "a deeper one";
            return Err(self.error_at(
                self.peek(),
                format!("an expression of at most {DEPTH_MAX} levels"),
                found,
            ));
        }
        Ok(depth + 1)
    }
}

/// A number as written.
pub(super) fn literal(text: &str) -> Option<Constant> {
    let (prefix, rest) = text.split_at_checked(2).unwrap_or((text, ""));
    match prefix {
        "0f" | "0F" if rest.len() == 8 => {
            u32::from_str_radix(rest, 16).ok().map(Constant::FloatBits32)
        }
        "0d" | "0D" if rest.len() == 16 => {
            u64::from_str_radix(rest, 16).ok().map(f64::from_bits).map(Constant::Float)
        }
        "0f" | "0F" | "0d" | "0D" => None,
        "0x" | "0X" => digits(rest, 16),
        "0b" | "0B" => digits(rest, 2),
        _ if text.contains(['.', 'e', 'E']) => text.parse().ok().map(Constant::Float),
        _ if text.starts_with('0') => digits(text, 8),
        _ => digits(text, 10),
    }
}

/// An unsigned integer of at most 64 bits, with or without `U`.
fn digits(text: &str, radix: u32) -> Option<Constant> {
    let digits = text.strip_suffix('U').unwrap_or(text);
    let value = u64::from_str_radix(digits, radix).ok()?;
    Some(Constant::Integer(value.into()))
}

/// As in C.
fn precedence(operator: &str) -> Option<u32> {
    Some(match operator {
        "||" => 0,
        "&&" => 1,
        "|" => 2,
        "^" => 3,
        "&" => 4,
        "==" | "!=" => 5,
        "<" | ">" | "<=" | ">=" => 6,
        "<<" | ">>" => 7,
        "+" | "-" => 8,
        "*" | "/" | "%" => 9,
        _ => return None,
    })
}

fn negate(operator: &str, value: Constant) -> Option<Constant> {
    Some(match (operator, value) {
        ("+", value) => value,
        ("-", Constant::Integer(value)) => Constant::Integer(-value),
        ("-", Constant::Float(value)) => Constant::Float(-value),
        ("-", Constant::FloatBits32(bits)) => Constant::FloatBits32(bits ^ 0x8000_0000),
        ("!", Constant::Integer(value)) => Constant::Integer((value == 0).into()),
        ("~", Constant::Integer(value)) => Constant::Integer(!value),
        _ => return None,
    })
}

fn apply(operator: &str, left: Constant, right: Constant) -> Option<Constant> {
    match (left, right) {
        (Constant::Integer(left), Constant::Integer(right)) => {
            let value = apply_integers(operator, left, right)?;
            let fits = (i64::MIN.into()..=u64::MAX.into()).contains(&value);
            fits.then_some(Constant::Integer(value))
        }
        (Constant::Float(left), Constant::Float(right)) => Some(Constant::Float(match operator {
            "+" => left + right,
            "-" => left - right,
            "*" => left * right,
            "/" => left / right,
            _ => return None,
        })),
        _ => None,
    }
}

fn apply_integers(operator: &str, left: i128, right: i128) -> Option<i128> {
    let shift = || u32::try_from(right).ok().filter(|count| *count < 64);
    Some(match operator {
        "||" => (left != 0 || right != 0).into(),
        "&&" => (left != 0 && right != 0).into(),
        "|" => left | right,
        "^" => left ^ right,
        "&" => left & right,
        "==" => (left == right).into(),
        "!=" => (left != right).into(),
        "<" => (left < right).into(),
        ">" => (left > right).into(),
        "<=" => (left <= right).into(),
        ">=" => (left >= right).into(),
        "<<" => left.checked_mul(1 << shift()?)?,
        ">>" => left >> shift()?,
        "+" => left.checked_add(right)?,
        "-" => left.checked_sub(right)?,
        "*" => left.checked_mul(right)?,
        "/" => left.checked_div(right)?,
        "%" => left.checked_rem(right)?,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<Constant, PtxError> {
        let mut parser = Parser::new(text)?;
        let value = parser.constant()?;
        if parser.peek().kind == Kind::End { Ok(value) } else { Err(parser.unexpected("end")) }
    }

    #[test]
    fn every_form_of_number_is_read() {
        let integers = [
            ("0", 0),
            ("42U", 42),
            ("-8", -8),
            ("+-8", -8),
            ("0x1fU", 31),
            ("0XFFFFFFFFFFFFFFFF", u64::MAX.into()),
            ("017", 15),
            ("0b101", 5),
            ("WARP_SZ", 32),
        ];
        for (text, expected) in integers {
            assert_eq!(value(text), Ok(Constant::Integer(expected)), "{text}");
        }
        assert_eq!(value("0f7FC00001"), Ok(Constant::FloatBits32(0x7fc0_0001)));
        assert_eq!(value("-0f3F800000"), Ok(Constant::FloatBits32(0xbf80_0000)));
        assert_eq!(value("0d3FF8000000000000"), Ok(Constant::Float(1.5)));
        let floats =
            [("-1.25e1", -12.5), ("1.e2", 100.0), ("2e-1", 0.2), ("-.5", -0.5), ("3.", 3.0)];
        for (text, expected) in floats {
            assert_eq!(value(text), Ok(Constant::Float(expected)), "{text}");
        }
    }

    #[test]
    fn expressions_follow_c() {
        let expressions = [
            ("1 + 2 * 3", 7),
            ("(1 + 2) * 3", 9),
            ("10 - 4 - 3", 3),
            ("1 << 4 | 3", 19),
            ("7 % 4", 3),
            ("~0", -1),
            ("!5", 0),
            ("3 < 4 && 2 >= 2", 1),
            ("0 ? 1 : 2 ? 3 : 4", 3),
            ("(.u64) -1", u64::MAX.into()),
            ("(.s64) 0xFFFFFFFFFFFFFFFF", -1),
        ];
        for (text, expected) in expressions {
            assert_eq!(value(text), Ok(Constant::Integer(expected)), "{text}");
        }
    }

    #[test]
    fn wrong_constants_are_refused() {
        for text in [
            "0f3F80",
            "0d0",
            "08",
            "0b2",
            "0x",
            "0xFFFFFFFFFFFFFFFFF",
            "99999999999999999999",
            "1 / 0",
            "1 % 0",
            "1 << 64",
            "0x7FFFFFFFFFFFFFFF * 4",
            "1 + 1.0",
            "~1.0",
            "1 +",
            ".5x",
            "1.x",
            "1e",
            "(1",
            "",
        ] {
            assert!(value(text).is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn nesting_ends_in_an_error_and_not_in_a_stack_overflow() {
        for text in ["(".repeat(100_000), "-".repeat(100_000), "1?".repeat(100_000)] {
            assert!(value(&text).unwrap_err().expected.contains("levels"));
        }
    }
}
