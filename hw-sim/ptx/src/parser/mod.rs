//! PTX text to [`crate::ast`].
//!
//! Hand-written. The crates that exist were tried first, on the 37 modules in `tests/fixtures`.
//! `ptx-parser` 0.1.6 (2023) keeps its parsed instructions private, gives no lines and knows no
//! nested scopes. `singe-ptx` 0.1.0-alpha.7 reads none of the 37: it stops at vector operands,
//! atomics, fences, `d|p` pairs and initial values. `ptx-syntax` 0.5 (MIT, kept up, successor of
//! `ptx-90-parser`) reads 20: it refuses initial values, indirect calls, and atomics with a scope
//! or an order; and it is 130 000 lines with one Rust type for each form of each instruction of
//! PTX 9, which would have to be translated back, form by form, into the few words that our decoder
//! dispatches on. The grammar below the instruction set is small and does not change with it; and
//! we need a line for every instruction, unknown opcodes kept as words for the decoder to name, and
//! limits that hold for any input.
//!
//! Nothing here recurses without a limit, and everything is linear in the length of the text, save
//! for names inside nested scopes, which cost a look-up for each scope around them.

mod body;
mod constant;
mod function;
mod lexer;
mod module;
mod operand;
mod scope;
mod variable;

use crate::ast::Module;
use crate::error::{PtxError, shorten};
use lexer::{Kind, Token};

/// Parses a module.
///
/// `text` is what `nvcc -ptx`, NVRTC or clang emit, without a terminating NUL. Debug sections,
/// `.file`, `.loc` and `.pragma` are read over. A module that the decoder cannot use is an error
/// too where the AST has no place for it (textures, aliases, opaque types); the error names it.
///
/// Variables, labels and registers of nested scopes get a suffix (`param0` becomes `param0#3`), so
/// that all names of a [`crate::ast::Body`] are distinct; `#` cannot occur in PTX's own names.
///
/// # Errors
///
/// The first place at which the text is not such a module, with what was expected there.
pub fn parse(text: &str) -> Result<Module, PtxError> {
    Parser::new(text)?.module()
}

/// The tokens, and how far they are read.
struct Parser<'t> {
    text: &'t str,
    tokens: Vec<Token>,
    next: usize,
    /// The instruction at hand may name tensors.
    takes_tensors: bool,
    /// `.file` directives so far.
    files: Vec<(u32, String)>,
    /// File and line of the last `.loc`, until somebody takes it.
    location: Option<(u32, u32)>,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str) -> Result<Self, PtxError> {
        Ok(Self {
            text,
            tokens: lexer::tokens(text)?,
            next: 0,
            takes_tensors: false,
            files: Vec::new(),
            location: None,
        })
    }

    /// The token to be read next; [`Kind::End`] again and again behind the last.
    fn peek(&self) -> Token {
        self.tokens[self.next]
    }

    /// The one behind it.
    fn peek_second(&self) -> Token {
        self.tokens[(self.next + 1).min(self.tokens.len() - 1)]
    }

    fn slice(&self, token: Token) -> &'t str {
        &self.text[token.start as usize..token.end as usize]
    }

    fn advance(&mut self) -> Token {
        let token = self.peek();
        if token.kind != Kind::End {
            self.next += 1;
        }
        token
    }

    fn at(&self, text: &str) -> bool {
        self.slice(self.peek()) == text
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.at(text);
        if found {
            self.advance();
        }
        found
    }

    fn expect(&mut self, text: &str) -> Result<Token, PtxError> {
        if self.at(text) { Ok(self.advance()) } else { Err(self.unexpected(format!("`{text}`"))) }
    }

    /// A token of this kind.
    fn expect_kind(&mut self, kind: Kind, what: &str) -> Result<Token, PtxError> {
        if self.peek().kind == kind { Ok(self.advance()) } else { Err(self.unexpected(what)) }
    }

    /// A name.
    fn word(&mut self, what: &str) -> Result<&'t str, PtxError> {
        let token = self.expect_kind(Kind::Word, what)?;
        Ok(self.slice(token))
    }

    /// The next dotted word without its dot, if one stands there.
    fn eat_dotted(&mut self) -> Option<&'t str> {
        let token = self.peek();
        (token.kind == Kind::Dotted).then(|| {
            self.advance();
            &self.slice(token)[1..]
        })
    }

    /// Is the next token a dotted word that touches the token before it?
    fn dotted_touches(&self, before: Token) -> bool {
        let token = self.peek();
        token.kind == Kind::Dotted && token.start == before.end
    }

    /// `item, item, ...` up to `close`, which is read; may be empty.
    fn list<T>(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<T, PtxError>,
    ) -> Result<Vec<T>, PtxError> {
        let mut items = Vec::new();
        if self.eat(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(close) {
                return Ok(items);
            }
            if !self.eat(",") {
                return Err(self.unexpected(format!("`,` or `{close}`")));
            }
        }
    }

    fn unexpected(&self, expected: impl Into<String>) -> PtxError {
        let token = self.peek();
        let found = match token.kind {
            Kind::End => "the end of the text".to_owned(),
            _ => format!("`{}`", shorten(self.slice(token))),
        };
        self.error_at(token, expected, found)
    }

    fn error_at(
        &self,
        token: Token,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> PtxError {
        PtxError::at(self.text, token.start as usize, expected, found)
    }
}
