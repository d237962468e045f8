//! Bodies: scopes, declarations, labels, instructions.

use super::Parser;
use super::lexer::{Kind, Token};
use super::scope::Scopes;
use super::variable::{Kindred, space};
use crate::ast::{Body, Linkage, StateSpace, Statement, Variable};
use crate::error::PtxError;

impl<'t> Parser<'t> {
    /// `{ ... }` of a function. A loop, not a recursion: nested scopes are a stack of names.
    pub(super) fn body(&mut self) -> Result<Body, PtxError> {
        let mut body = Body::default();
        let mut scopes = self.scopes()?;
        let opening = self.peek();
        scopes.enter(self)?;
        self.advance();
        loop {
            let token = self.peek();
            match token.kind {
                Kind::End => {
                    let found = "the end of the text";
                    return Err(self.error_at(opening, "a body that is closed", found));
                }
                Kind::Dotted => self.body_directive(&mut body, &mut scopes)?,
                Kind::Word if self.slice(self.peek_second()) == ":" => {
                    self.label(&mut body, &scopes)?;
                }
                _ => match self.slice(token) {
                    "{" => {
                        scopes.enter(self)?;
                        self.advance();
                    }
                    "}" => {
                        self.advance();
                        if !scopes.leave() {
                            return Ok(body);
                        }
                    }
                    // Inline assembly may end with its own semicolon.
                    ";" => {
                        self.advance();
                    }
                    _ => {
                        let instruction = self.instruction(&scopes)?;
                        body.statements.push(Statement::Instruction(instruction));
                    }
                },
            }
        }
    }

    fn body_directive(&mut self, body: &mut Body, scopes: &mut Scopes<'t>) -> Result<(), PtxError> {
        if self.transparent_directive()? {
            if let Some((file, line)) = self.location.take() {
                body.locations.push((body.statements.len(), file, line));
            }
            return Ok(());
        }
        if space(&self.slice(self.peek())[1..]).is_none() {
            return Err(self.unexpected("an instruction or a directive that we know"));
        }
        let kindred = self.kindred()?;
        if kindred.space == StateSpace::Reg {
            return self.body_registers(kindred, body, scopes);
        }
        let variables = self.list(";", |parser| parser.variable(kindred, Linkage::Internal))?;
        for (token, mut variable) in variables {
            let unique = scopes.declare(self.slice(token));
            variable.name = unique.ok_or_else(|| self.declared_again(token))?;
            body.variables.push(variable);
        }
        Ok(())
    }

    fn body_registers(
        &mut self,
        kindred: Kindred,
        body: &mut Body,
        scopes: &mut Scopes<'t>,
    ) -> Result<(), PtxError> {
        for (token, mut register) in self.registers(kindred)? {
            let name = self.slice(token);
            let unique = match register.count {
                Some(count) => scopes.declare_range(name, count),
                None => scopes.declare(name),
            };
            register.name = unique.ok_or_else(|| self.declared_again(token))?;
            body.registers.push(register);
        }
        Ok(())
    }

    fn declared_again(&self, token: Token) -> PtxError {
        let found = format!("`{}` again", self.slice(token));
        self.error_at(token, "a name that this scope does not have yet", found)
    }

    /// `NAME:`, and the declaration that the name belongs to if one follows.
    fn label(&mut self, body: &mut Body, scopes: &Scopes<'t>) -> Result<(), PtxError> {
        let name = scopes.resolve(self.word("a label")?);
        self.expect(":")?;
        match self.slice(self.peek()) {
            ".callprototype" => {
                self.advance();
                let (returns, params) = self.prototype()?;
                body.prototypes.push((name, returns, params));
            }
            ".branchtargets" | ".calltargets" => {
                self.advance();
                let targets =
                    self.list(";", |parser| Ok(scopes.resolve(parser.word("a target")?)))?;
                body.target_lists.push((name, targets));
            }
            _ => body.statements.push(Statement::Label(name)),
        }
        Ok(())
    }

    /// `(returns) _ (params) .noreturn;`, each list optional.
    fn prototype(&mut self) -> Result<(Vec<Variable>, Vec<Variable>), PtxError> {
        let returns = match self.eat("(") {
            true => self.parameters()?,
            false => Vec::new(),
        };
        self.word("`_`")?;
        let params = match self.eat("(") {
            true => self.parameters()?,
            false => Vec::new(),
        };
        while !self.eat(";") {
            // `.noreturn` and register-saving hints, some with a count.
            match self.peek().kind {
                Kind::Dotted | Kind::Number => self.advance(),
                _ => return Err(self.unexpected("`;`")),
            };
        }
        Ok((returns, params))
    }
}
