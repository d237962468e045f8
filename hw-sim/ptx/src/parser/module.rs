//! The module's own directives.

use std::collections::HashSet;

use super::Parser;
use super::lexer::{Kind, Token};
use crate::ast::{Linkage, Module};
use crate::error::PtxError;

/// Files whose names are kept.
const FILES_MAX: usize = 256;

impl<'t> Parser<'t> {
    /// All of the text.
    pub(super) fn module(&mut self) -> Result<Module, PtxError> {
        // PTX's own default, which the text nearly always overrides.
        let mut module = Module { address_size: 32, ..Module::default() };
        let mut defined = HashSet::new();
        self.expect(".version")?;
        module.version = self.version()?;
        self.target(&mut module)?;
        while self.peek().kind != Kind::End {
            self.item(&mut module, &mut defined)?;
        }
        // Files may be named behind the functions that come from them.
        let bodies = module.functions.iter_mut().filter_map(|function| function.body.as_mut());
        for body in bodies.filter(|body| !body.locations.is_empty()) {
            body.files.clone_from(&self.files);
        }
        Ok(module)
    }

    /// Takes note of a definition; a second one of the same name is an error. Declarations may
    /// repeat, before and after.
    fn define(&self, name: Token, defined: &mut HashSet<&'t str>) -> Result<(), PtxError> {
        if defined.insert(self.slice(name)) {
            return Ok(());
        }
        let found = format!("`{}` again", self.slice(name));
        Err(self.error_at(name, "one definition of each name", found))
    }

    /// `8.4`: two integers, although it reads like a float.
    fn version(&mut self) -> Result<(u32, u32), PtxError> {
        let token = self.advance();
        let parts = self.slice(token).split_once('.');
        let version =
            parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        version.ok_or_else(|| {
            self.error_at(token, "a version, as `8.4`", format!("`{}`", self.slice(token)))
        })
    }

    /// `.target sm_70, debug`. Only the architecture is kept: the options concern textures and
    /// debuggers.
    fn target(&mut self, module: &mut Module) -> Result<(), PtxError> {
        self.expect(".target")?;
        self.word("a target, as `sm_70`")?.clone_into(&mut module.target);
        while self.eat(",") {
            self.word("an option of the target")?;
        }
        Ok(())
    }

    /// One directive of the module, read to its end.
    fn item(
        &mut self,
        module: &mut Module,
        defined: &mut HashSet<&'t str>,
    ) -> Result<(), PtxError> {
        let linkage = self.linkage()?;
        let token = self.peek();
        let word = match token.kind {
            Kind::Dotted => &self.slice(token)[1..],
            _ => return Err(self.unexpected("a directive")),
        };
        match word {
            "entry" | "func" => {
                self.advance();
                let (name, function) = self.function(word == "entry", linkage)?;
                if function.body.is_some() {
                    self.define(name, defined)?;
                }
                module.functions.push(function);
            }
            "global" | "shared" | "const" => {
                let kindred = self.kindred()?;
                let variables = self.list(";", |parser| parser.variable(kindred, linkage))?;
                for (name, variable) in variables {
                    // `.common` and `.weak` merge, `.extern` declares.
                    if matches!(linkage, Linkage::Internal | Linkage::Visible) {
                        self.define(name, defined)?;
                    }
                    module.variables.push(variable);
                }
            }
            _ if linkage != Linkage::Internal => {
                return Err(self.unexpected("a function or a variable"));
            }
            "address_size" => {
                self.advance();
                module.address_size = self.unsigned("32 or 64")?;
            }
            _ if self.transparent_directive()? => {}
            _ => return Err(self.unexpected("a directive that we know")),
        }
        Ok(())
    }

    fn linkage(&mut self) -> Result<Linkage, PtxError> {
        let linkage = match self.slice(self.peek()) {
            ".visible" => Linkage::Visible,
            ".extern" => Linkage::Extern,
            ".weak" => Linkage::Weak,
            ".common" => Linkage::Common,
            _ => return Ok(Linkage::Internal),
        };
        self.advance();
        Ok(linkage)
    }

    /// Reads over a directive that changes nothing; false if the next token is not one.
    pub(super) fn transparent_directive(&mut self) -> Result<bool, PtxError> {
        let token = self.peek();
        match self.slice(token) {
            ".file" => self.skip_file()?,
            ".loc" => self.skip_location()?,
            ".section" => self.skip_section()?,
            ".pragma" => {
                self.advance();
                self.pragma()?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// `.file 1 "name"`, `.file 1 "name", time, size`.
    fn skip_file(&mut self) -> Result<(), PtxError> {
        self.advance();
        let number = self.expect_kind(Kind::Number, "the file's number")?;
        let mut name = self.expect_kind(Kind::Text, "the file's name")?;
        // A second string: some assemblers write directory and name apart.
        while self.peek().kind == Kind::Text {
            name = self.advance();
        }
        if let Ok(number) = self.slice(number).parse()
            && self.files.len() < FILES_MAX
        {
            let name = self.slice(name).trim_matches('"');
            // People know their files by the last part of the path.
            let short = name.rsplit('/').next().unwrap_or(name);
            self.files.push((number, short.to_owned()));
        }
        while self.eat(",") {
            self.expect_kind(Kind::Number, "the file's time or size")?;
        }
        Ok(())
    }

    /// `.loc 1 2 3`, `.loc 1 2 3, function_name label+4, inlined_at 1 2 3`.
    fn skip_location(&mut self) -> Result<(), PtxError> {
        self.advance();
        self.location = self.skip_place()?;
        while self.eat(",") {
            match self.word("`function_name` or `inlined_at`")? {
                "function_name" => {
                    self.word("a label")?;
                    if self.eat("+") {
                        self.expect_kind(Kind::Number, "an offset")?;
                    }
                }
                "inlined_at" => drop(self.skip_place()?),
                other => {
                    let found = format!("`{other}`");
                    let at = self.tokens[self.next - 1];
                    return Err(self.error_at(at, "`function_name` or `inlined_at`", found));
                }
            }
        }
        Ok(())
    }

    /// File, line, column: the first two, if they are plain numbers.
    fn skip_place(&mut self) -> Result<Option<(u32, u32)>, PtxError> {
        let file = self.expect_kind(Kind::Number, "a file's number")?;
        let line = self.expect_kind(Kind::Number, "a line")?;
        self.expect_kind(Kind::Number, "a column")?;
        let number = |token| self.slice(token).parse().ok();
        Ok(number(file).zip(number(line)))
    }

    /// `.section .debug_info { ... }`; its data name labels and sections freely, so only braces
    /// count. Some compilers write an empty section without braces.
    fn skip_section(&mut self) -> Result<(), PtxError> {
        self.advance();
        if !matches!(self.peek().kind, Kind::Dotted | Kind::Word) {
            return Err(self.unexpected("the section's name"));
        }
        let mut last = self.advance();
        while self.dotted_touches(last) {
            last = self.advance();
        }
        if !self.at("{") {
            return Ok(());
        }
        let opening: Token = self.advance();
        let mut open = 1_u32;
        while open > 0 {
            match self.slice(self.peek()) {
                "{" => open += 1,
                "}" => open -= 1,
                _ if self.peek().kind == Kind::End => {
                    return Err(self.error_at(opening, "a closing brace", "the end of the text"));
                }
                _ => {}
            }
            self.advance();
        }
        Ok(())
    }
}
