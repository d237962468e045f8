//! Declarations: registers, variables, parameters, initial values.

use super::Parser;
use super::constant::{Constant, literal};
use super::lexer::{Kind, Token};
use crate::ast::{Initializer, Linkage, Register, ScalarType, StateSpace, Variable};
use crate::error::PtxError;

/// Deepest nesting of an initial value; PTX arrays have few dimensions.
const INITIALIZER_DEPTH_MAX: u32 = 16;
/// Most registers that one `%r<N>` may declare, so that a short text cannot ask for all memory.
const REGISTERS_MAX: u32 = 1 << 20;

/// What all names of one declaration share: `.shared .align 4 .v2 .f32`.
#[derive(Clone, Copy)]
pub(super) struct Kindred {
    pub space: StateSpace,
    pub align: Option<u32>,
    pub scalar: ScalarType,
    pub vector: u8,
    pub managed: bool,
}

/// The space that a directive names, if it names one.
pub(super) fn space(word: &str) -> Option<StateSpace> {
    Some(match word {
        "reg" => StateSpace::Reg,
        "global" => StateSpace::Global,
        "shared" => StateSpace::Shared,
        "local" => StateSpace::Local,
        "const" => StateSpace::Const,
        "param" => StateSpace::Param,
        _ => return None,
    })
}

fn scalar(word: &str) -> Option<ScalarType> {
    Some(match word {
        "b8" => ScalarType::B8,
        "b16" => ScalarType::B16,
        "b32" => ScalarType::B32,
        "b64" => ScalarType::B64,
        "b128" => ScalarType::B128,
        "u8" => ScalarType::U8,
        "u16" => ScalarType::U16,
        "u32" => ScalarType::U32,
        "u64" => ScalarType::U64,
        "s8" => ScalarType::S8,
        "s16" => ScalarType::S16,
        "s32" => ScalarType::S32,
        "s64" => ScalarType::S64,
        "f16" => ScalarType::F16,
        "f16x2" => ScalarType::F16x2,
        "bf16" => ScalarType::BF16,
        "bf16x2" => ScalarType::BF16x2,
        "f32" => ScalarType::F32,
        "f64" => ScalarType::F64,
        "pred" => ScalarType::Pred,
        _ => return None,
    })
}

impl<'t> Parser<'t> {
    /// The space and all that follows it up to the first name.
    pub(super) fn kindred(&mut self) -> Result<Kindred, PtxError> {
        let Some(space) = space(self.slice(self.peek()).get(1..).unwrap_or("")) else {
            let expected = "`.reg`, `.global`, `.shared`, `.local`, `.const` or `.param`";
            return Err(self.unexpected(expected));
        };
        self.advance();
        let (mut align, mut vector, mut found) = (None, 1, None);
        let (mut is_pointer, mut managed) = (false, false);
        loop {
            let token = self.peek();
            let Some(word) = self.eat_dotted() else { break };
            match word {
                // What follows `.ptr` describes the memory behind the pointer: a promise that
                // changes nothing here.
                "ptr" => is_pointer = true,
                "global" | "shared" | "local" | "const" if is_pointer => {}
                "align" => {
                    let bytes = self.alignment()?;
                    align = if is_pointer { align } else { Some(bytes) };
                }
                "v2" => vector = 2,
                "v4" => vector = 4,
                "v8" => vector = 8,
                "attribute" => managed |= self.attribute()?,
                _ if found.is_none() && scalar(word).is_some() => found = scalar(word),
                _ => {
                    let expected = "a type, `.align`, `.v2`, `.v4`, `.v8`, `.ptr` or `.attribute`";
                    return Err(self.error_at(token, expected, format!("`.{word}`")));
                }
            }
        }
        let Some(scalar) = found else { return Err(self.unexpected("a type, as in `.b32`")) };
        Ok(Kindred { space, align, scalar, vector, managed })
    }

    fn alignment(&mut self) -> Result<u32, PtxError> {
        let token = self.peek();
        let bytes = self.unsigned("an alignment in bytes")?;
        if bytes.is_power_of_two() {
            return Ok(bytes);
        }
        Err(self.error_at(token, "a power of two", bytes.to_string()))
    }

    /// `.attribute(.managed, .unified(1, 2))`, the first word being read. Is it `.managed`? No
    /// other attribute changes what a program computes.
    pub(super) fn attribute(&mut self) -> Result<bool, PtxError> {
        self.expect("(")?;
        let (mut open, mut managed) = (1, false);
        while open > 0 {
            match self.slice(self.peek()) {
                "(" => open += 1,
                ")" => open -= 1,
                "," => {}
                ".managed" => managed = true,
                _ if matches!(self.peek().kind, Kind::Dotted | Kind::Number) => {}
                _ => return Err(self.unexpected("an attribute or `)`")),
            }
            self.advance();
        }
        Ok(managed)
    }

    /// Registers `%a, %b<5>`, each with its token, up to and with the semicolon.
    pub(super) fn registers(
        &mut self,
        kindred: Kindred,
    ) -> Result<Vec<(Token, Register)>, PtxError> {
        self.list(";", |parser| {
            let token = parser.expect_kind(Kind::Word, "a register's name")?;
            let count = match parser.eat("<") {
                true => Some(parser.register_count()?),
                false => None,
            };
            let name = parser.slice(token).to_owned();
            let Kindred { scalar, vector, .. } = kindred;
            Ok((token, Register { name, count, scalar, vector }))
        })
    }

    fn register_count(&mut self) -> Result<u32, PtxError> {
        // Not an expression: its `>` would be a comparison.
        let token = self.expect_kind(Kind::Number, "the number of registers")?;
        let count = match literal(self.slice(token)) {
            Some(Constant::Integer(count)) => u32::try_from(count).ok(),
            _ => None,
        };
        let Some(count) = count.filter(|count| *count <= REGISTERS_MAX) else {
            let expected = format!("at most {REGISTERS_MAX} registers");
            return Err(self.error_at(token, expected, format!("`{}`", self.slice(token))));
        };
        self.expect(">")?;
        Ok(count)
    }

    /// One name with its dimensions and initial value; gives its token too.
    pub(super) fn variable(
        &mut self,
        kindred: Kindred,
        linkage: Linkage,
    ) -> Result<(Token, Variable), PtxError> {
        let token = self.expect_kind(Kind::Word, "a name")?;
        let mut dimensions = Vec::new();
        while self.eat("[") {
            if self.eat("]") {
                dimensions.push(0);
                continue;
            }
            // The range makes the cast exact.
            dimensions.push(self.integer("a number of elements", 0, i64::MAX.into())? as u64);
            self.expect("]")?;
        }
        let Kindred { space, align, scalar, vector, managed } = kindred;
        let initializer = self.initial_value(space)?;
        // A parameter without a size is the rest of a variadic call.
        let sized = initializer.is_some() || !dimensions.contains(&0);
        if !sized && linkage != Linkage::Extern && space != StateSpace::Param {
            let expected = "a size (only `.extern` variables go without)";
            return Err(self.error_at(token, expected, format!("`{}`", self.slice(token))));
        }
        let name = self.slice(token).to_owned();
        let line = token.line;
        let variable = Variable {
            name,
            space,
            align,
            scalar,
            vector,
            dimensions,
            initializer,
            linkage,
            managed,
            line,
        };
        Ok((token, variable))
    }

    /// `= ...`, if it stands there.
    fn initial_value(&mut self, space: StateSpace) -> Result<Option<Initializer>, PtxError> {
        let token = self.peek();
        if !self.eat("=") {
            return Ok(None);
        }
        if !matches!(space, StateSpace::Global | StateSpace::Const) {
            let expected = "no initial value outside `.global` and `.const`";
            return Err(self.error_at(token, expected, "`=`"));
        }
        self.initializer(0).map(Some)
    }

    fn initializer(&mut self, depth: u32) -> Result<Initializer, PtxError> {
        let token = self.peek();
        if self.eat("{") {
            if depth == INITIALIZER_DEPTH_MAX {
                let expected = format!("at most {INITIALIZER_DEPTH_MAX} levels of braces");
                return Err(self.error_at(token, expected, "one more"));
            }
            return Ok(Initializer::List(self.list("}", |parser| parser.initializer(depth + 1))?));
        }
        if token.kind == Kind::Word && !self.at("WARP_SZ") {
            return self.symbol();
        }
        let value = match self.constant()? {
            Constant::Integer(value) => Initializer::Integer(value),
            Constant::Float(value) => Initializer::Float(value),
            Constant::FloatBits32(bits) => Initializer::FloatBits32(bits),
        };
        if self.at("(") {
            // `0xFF00(symbol)`: one byte of an address, for structures without alignment.
            return Err(self.unexpected("a whole address (parts of addresses are not supported)"));
        }
        Ok(value)
    }

    /// `symbol+8`, `generic(symbol)+8`.
    fn symbol(&mut self) -> Result<Initializer, PtxError> {
        let mut name = self.word("a symbol")?;
        let generic = name == "generic" && self.at("(");
        if generic {
            self.advance();
            name = self.word("a symbol")?;
            self.expect(")")?;
        }
        let offset = match self.slice(self.peek()) {
            // The range makes the cast exact.
            "+" | "-" => self.integer("an offset", i64::MIN.into(), i64::MAX.into())? as i64,
            _ => 0,
        };
        Ok(Initializer::Symbol { name: name.to_owned(), offset, generic })
    }

    /// `( .param .b32 a, .reg .f32 b )`, the opening parenthesis being read.
    pub(super) fn parameters(&mut self) -> Result<Vec<Variable>, PtxError> {
        self.list(")", |parser| {
            let kindred = parser.kindred()?;
            Ok(parser.variable(kindred, Linkage::Internal)?.1)
        })
    }
}
