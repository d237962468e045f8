//! Text to tokens. Linear, and the only place that looks at single characters.

use crate::error::PtxError;

/// What a token is. Punctuation is told apart by its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `add`, `%r1`, `$L__BB0_1`, `_`
    Word,
    /// `.global`, `.shared::cta`, `.2d`
    Dotted,
    /// Starts with a digit; its form is checked when it is read as a constant.
    Number,
    /// `"..."`, quotes included.
    Text,
    /// One operator or bracket.
    Punctuation,
    /// Behind the last token, once.
    End,
}

/// A token: kind and place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub kind: Kind,
    pub start: u32,
    pub end: u32,
    /// From 1.
    pub line: u32,
}

const TWO_CHARACTER_OPERATORS: [&[u8]; 8] =
    [b"<<", b">>", b"<=", b">=", b"==", b"!=", b"&&", b"||"];
const ONE_CHARACTER_OPERATORS: &[u8] = b"{}()[],;:@!+-*/%~<>=|&^?";

/// Splits `source`; the last token is always [`Kind::End`].
pub(super) fn tokens(source: &str) -> Result<Vec<Token>, PtxError> {
    if u32::try_from(source.len()).is_err() {
        let found = format!("{} bytes", source.len());
        return Err(PtxError::at(source, 0, "a text of less than 4 GiB", found));
    }
    let mut lexer = Lexer { source, bytes: source.as_bytes(), position: 0, line: 1 };
    // Compilers' output has a token for every four to five bytes.
    let mut tokens = Vec::with_capacity(source.len() / 4 + 1);
    loop {
        let token = lexer.token()?;
        tokens.push(token);
        if token.kind == Kind::End {
            return Ok(tokens);
        }
    }
}

struct Lexer<'t> {
    source: &'t str,
    bytes: &'t [u8],
    position: usize,
    line: u32,
}

impl Lexer<'_> {
    /// The byte `ahead` of the position; 0, which starts no token, behind the end.
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.position + ahead).copied().unwrap_or(0)
    }

    fn error(&self, expected: &str, found: impl Into<String>) -> PtxError {
        PtxError::at(self.source, self.position, expected, found)
    }

    fn skip_while(&mut self, accept: impl Fn(u8) -> bool) {
        while self.position < self.bytes.len() && accept(self.bytes[self.position]) {
            self.position += 1;
        }
    }

    fn token(&mut self) -> Result<Token, PtxError> {
        self.skip_blanks()?;
        let (start, line) = (self.position, self.line);
        let kind = match self.peek(0) {
            _ if start == self.bytes.len() => Kind::End,
            b'0'..=b'9' => self.number()?,
            b'"' => self.text()?,
            b'.' if follows(self.peek(1)) => self.dotted(),
            first if starts_word(first, self.peek(1)) => {
                self.position += 1;
                self.skip_while(follows);
                Kind::Word
            }
            _ => self.operator()?,
        };
        // `tokens` made sure that offsets fit.
        Ok(Token { kind, start: start as u32, end: self.position as u32, line })
    }

    /// White space, comments and the long-deprecated `@@DWARF` lines.
    fn skip_blanks(&mut self) -> Result<(), PtxError> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (b'\n', _) => {
                    self.line += 1;
                    self.position += 1;
                }
                (b' ' | b'\t' | b'\r' | 0x0b | 0x0c, _) => self.position += 1,
                (b'/', b'/') | (b'@', b'@') => self.skip_while(|byte| byte != b'\n'),
                (b'/', b'*') => self.skip_block_comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn skip_block_comment(&mut self) -> Result<(), PtxError> {
        let body = &self.bytes[self.position + 2..];
        let Some(length) = body.windows(2).position(|pair| pair == b"*/") else {
            return Err(self.error("`*/` somewhere behind `/*`", "the end of the text"));
        };
        self.line += body[..length].iter().filter(|byte| **byte == b'\n').count() as u32;
        self.position += length + 4;
        Ok(())
    }

    fn dotted(&mut self) -> Kind {
        self.position += 1;
        loop {
            self.skip_while(follows);
            if self.peek(0) != b':' || self.peek(1) != b':' || !follows(self.peek(2)) {
                return Kind::Dotted;
            }
            self.position += 2;
        }
    }

    fn number(&mut self) -> Result<Kind, PtxError> {
        let start = self.position;
        match (self.peek(0), self.peek(1)) {
            (b'0', b'x' | b'X' | b'f' | b'F' | b'd' | b'D' | b'b' | b'B') => {
                self.position += 2;
                self.skip_while(|byte| byte.is_ascii_hexdigit());
            }
            _ => self.decimal(),
        }
        if self.peek(0) == b'U' {
            self.position += 1;
        }
        if follows(self.peek(0)) {
            self.skip_while(follows);
            let found = format!("`{}`", &self.source[start..self.position]);
            return Err(PtxError::at(self.source, start, "a number", found));
        }
        Ok(Kind::Number)
    }

    /// Digits, and a fraction and an exponent where they stand.
    fn decimal(&mut self) {
        self.skip_while(|byte| byte.is_ascii_digit());
        // `1.` and `1.e5` are floats, but the dot of `1.x` belongs to what follows.
        let fraction = self.peek(1).is_ascii_digit() || !follows(self.peek(1));
        if self.peek(0) == b'.' && (fraction || self.exponent(1).is_some()) {
            self.position += 1;
            self.skip_while(|byte| byte.is_ascii_digit());
        }
        if let Some(length) = self.exponent(0) {
            self.position += length;
            self.skip_while(|byte| byte.is_ascii_digit());
        }
    }

    /// Length of the `e`, `e+` or `e-` that stands `ahead` in front of a digit.
    fn exponent(&self, ahead: usize) -> Option<usize> {
        let length = 1 + usize::from(matches!(self.peek(ahead + 1), b'+' | b'-'));
        let is_exponent = matches!(self.peek(ahead), b'e' | b'E');
        (is_exponent && self.peek(ahead + length).is_ascii_digit()).then_some(length)
    }

    fn text(&mut self) -> Result<Kind, PtxError> {
        let start = self.position;
        self.position += 1;
        loop {
            self.skip_while(|byte| !matches!(byte, b'"' | b'\\' | b'\n'));
            match self.peek(0) {
                b'"' => {
                    self.position += 1;
                    return Ok(Kind::Text);
                }
                // What is escaped may be a quote; an escaped newline ends the string all the same.
                b'\\' if !matches!(self.peek(1), 0 | b'\n') => {
                    self.position += 1;
                    self.skip_character();
                }
                _ => {
                    let expected = "a closing quote on the same line";
                    return Err(PtxError::at(self.source, start, expected, "the end of the line"));
                }
            }
        }
    }

    /// One character, so that the position stays on a boundary of the UTF-8 text.
    fn skip_character(&mut self) {
        self.position += 1;
        self.skip_while(|byte| byte & 0xc0 == 0x80);
    }

    fn operator(&mut self) -> Result<Kind, PtxError> {
        let rest = &self.bytes[self.position..];
        if TWO_CHARACTER_OPERATORS.iter().any(|operator| rest.starts_with(operator)) {
            self.position += 2;
        } else if ONE_CHARACTER_OPERATORS.contains(&self.peek(0)) {
            self.position += 1;
        } else {
            let found = self.source[self.position..].chars().next().unwrap_or('\0');
            return Err(self.error("PTX", format!("the character {found:?}")));
        }
        Ok(Kind::Punctuation)
    }
}

/// May `byte` stand inside a name?
fn follows(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

/// Does a name begin here? `%` alone is the modulo operator, `_` alone is the sink.
fn starts_word(first: u8, second: u8) -> bool {
    first.is_ascii_alphabetic() || matches!(first, b'_' | b'$') || first == b'%' && follows(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(source: &str) -> Vec<&str> {
        let tokens = tokens(source).unwrap();
        tokens.iter().map(|token| &source[token.start as usize..token.end as usize]).collect()
    }

    #[test]
    fn modifiers_numbers_and_registers_come_apart() {
        let source = "ld.shared::cta.v2.u32 {%r1,_}, [%rd1+-8];";
        let expected = "ld .shared::cta .v2 .u32 { %r1 , _ } , [ %rd1 + - 8 ] ; ";
        assert_eq!(split(source), expected.split(' ').collect::<Vec<_>>());
        assert_eq!(
            split("0xFFU 1.5e-3 0f3F800000 1. .2d"),
            ["0xFFU", "1.5e-3", "0f3F800000", "1.", ".2d", ""]
        );
    }

    #[test]
    fn lines_are_counted_through_comments_and_carriage_returns() {
        let tokens = tokens("a\r\n/* x\n y */ b // c\n\"d\\\"\"").unwrap();
        let lines: Vec<_> = tokens.iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 3, 4, 4]);
    }

    #[test]
    fn bad_characters_are_named_with_their_place() {
        let error = tokens("ret;\n  add é").unwrap_err();
        assert_eq!((error.line, error.column), (2, 7));
        assert_eq!(error.found, "the character 'é'");
        assert!(tokens("\"open").is_err());
        assert!(tokens("/* open").is_err());
        assert!(tokens("12abc").is_err());
    }
}
