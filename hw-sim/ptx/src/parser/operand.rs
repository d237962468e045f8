//! Instructions and their operands.

use super::Parser;
use super::constant::Constant;
use super::lexer::Kind;
use super::scope::Scopes;
use crate::ast::{Guard, Instruction, Operand};
use crate::error::PtxError;

impl<'t> Parser<'t> {
    /// An instruction with its guard, up to and with the semicolon.
    pub(super) fn instruction(&mut self, scopes: &Scopes<'t>) -> Result<Instruction, PtxError> {
        let guard = self.guard(scopes)?;
        let line = self.peek().line;
        let opcode = self.word("an instruction")?.to_owned();
        let mut modifiers = Vec::new();
        while let Some(modifier) = self.eat_dotted() {
            modifiers.push(modifier.to_owned());
        }
        let is_call = opcode == "call";
        self.takes_tensors = opcode == "cp";
        let operands = self.list(";", |parser| {
            if is_call && parser.eat("(") {
                let items = parser.list(")", |parser| parser.operand(scopes))?;
                return Ok(Operand::List(items));
            }
            parser.operand(scopes)
        })?;
        Ok(Instruction { line, guard, opcode, modifiers, operands })
    }

    fn guard(&mut self, scopes: &Scopes<'t>) -> Result<Option<Guard>, PtxError> {
        if !self.eat("@") {
            return Ok(None);
        }
        let negated = self.eat("!");
        let register = scopes.resolve(self.word("a predicate register")?);
        Ok(Some(Guard { register, negated }))
    }

    /// One operand, `d|p` pairs included.
    fn operand(&mut self, scopes: &Scopes<'t>) -> Result<Operand, PtxError> {
        let first = match self.slice(self.peek()) {
            "[" => return self.address(scopes),
            "{" => {
                self.advance();
                return Ok(Operand::Vector(self.list("}", |parser| parser.element(scopes))?));
            }
            _ => self.element(scopes)?,
        };
        if !self.eat("|") {
            return Ok(first);
        }
        let second = self.element(scopes)?;
        Ok(Operand::Pair(Box::new(first), Box::new(second)))
    }

    /// What may stand in a vector or a pair: a name, a negated predicate or a constant.
    fn element(&mut self, scopes: &Scopes<'t>) -> Result<Operand, PtxError> {
        let token = self.peek();
        let negates = self.at("!") && self.peek_second().kind == Kind::Word;
        if negates && self.slice(self.peek_second()) != "WARP_SZ" {
            self.advance();
            return Ok(Operand::Negated(self.name(scopes)?));
        }
        if token.kind != Kind::Word || self.at("WARP_SZ") {
            let is_constant = matches!(self.slice(token), "+" | "-" | "!" | "~" | "(" | "WARP_SZ");
            if token.kind != Kind::Number && !is_constant && !self.at_fraction() {
                return Err(self.unexpected("an operand"));
            }
            return Ok(match self.constant()? {
                Constant::Integer(value) => Operand::Integer(value),
                Constant::Float(value) => Operand::Float(value),
                Constant::FloatBits32(bits) => Operand::FloatBits32(bits),
            });
        }
        if self.eat("_") {
            return Ok(Operand::Sink);
        }
        let name = self.name(scopes)?;
        match self.slice(self.peek()) {
            "+" | "-" => Ok(Operand::NameOffset(name, self.offset()?)),
            "[" => Err(self.unexpected("`,` or `;` (array elements are read as `[array+bytes]`)")),
            _ => Ok(Operand::Name(name)),
        }
    }

    /// A name with the component that touches it: `%tid.x`, `%v.y`.
    fn name(&mut self, scopes: &Scopes<'t>) -> Result<String, PtxError> {
        let mut last = self.peek();
        let mut name = scopes.resolve(self.word("a name")?);
        while self.dotted_touches(last) {
            last = self.advance();
            name.push_str(self.slice(last));
        }
        Ok(name)
    }

    /// `+8`, `-8`, `+-8`: the sign is read as the expression's.
    fn offset(&mut self) -> Result<i64, PtxError> {
        // The range makes the cast exact.
        self.integer("an offset", i64::MIN.into(), i64::MAX.into()).map(|offset| offset as i64)
    }

    /// `[name]`, `[name+offset]`, `[constant]`, `[name, {coordinates}]`.
    fn address(&mut self, scopes: &Scopes<'t>) -> Result<Operand, PtxError> {
        self.expect("[")?;
        let base = match self.peek().kind {
            Kind::Word if !self.at("WARP_SZ") => Some(self.name(scopes)?),
            _ => None,
        };
        let offset = match (&base, self.slice(self.peek())) {
            (Some(_), "+" | "-") => self.offset()?,
            (Some(_), _) => 0,
            // The upper half of the addresses is written as it is, and kept as its bits.
            (None, _) => self.integer("an address", i64::MIN.into(), u64::MAX.into())? as i64,
        };
        if let Some(base) = &base
            && self.takes_tensors
            && self.eat(",")
        {
            self.expect("{")?;
            let coordinates = self.list("}", |parser| parser.element(scopes))?;
            self.expect("]")?;
            return Ok(Operand::Tensor { base: base.clone(), offset, coordinates });
        }
        if !self.at("]") {
            return Err(self.unexpected("`]` (an address is one name or constant, and an offset)"));
        }
        self.advance();
        // A promise that the address is valid in every space: nothing to act on.
        self.eat(".unified");
        Ok(Operand::Address { base, offset })
    }
}
