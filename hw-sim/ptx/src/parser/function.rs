//! Entries and functions: signature, performance directives, body or none.

use super::Parser;
use super::lexer::{Kind, Token};
use crate::ast::{Function, Linkage};
use crate::error::PtxError;
use crate::kernel::ClusterRules;

impl<'t> Parser<'t> {
    /// What follows `.entry` or `.func`; gives the name's token too.
    pub(super) fn function(
        &mut self,
        is_entry: bool,
        linkage: Linkage,
    ) -> Result<(Token, Function), PtxError> {
        while self.at(".attribute") {
            self.advance();
            self.attribute()?;
        }
        let returns = match !is_entry && self.eat("(") {
            true => self.parameters()?,
            false => Vec::new(),
        };
        let name = self.expect_kind(Kind::Word, "the function's name")?;
        let params = match self.eat("(") {
            true => self.parameters()?,
            false => Vec::new(),
        };
        let mut function = Function {
            name: self.slice(name).to_owned(),
            is_entry,
            linkage,
            returns,
            params,
            max_block: None,
            block_is_exact: false,
            clusters: ClusterRules::default(),
            hints: Vec::new(),
            body: None,
            line: name.line,
        };
        while self.peek().kind == Kind::Dotted {
            self.performance_directive(&mut function)?;
        }
        let ClusterRules { counted, required, .. } = function.clusters;
        if counted && !(is_entry && function.block_is_exact && required.is_some()) {
            let expected = "an entry with `.reqntid` and `.reqnctapercluster`";
            return Err(self.error_at(name, expected, "`.blocksareclusters` without them"));
        }
        if self.at("{") {
            function.body = Some(self.body()?);
        } else if !self.eat(";") {
            return Err(self.unexpected("`{` or `;`"));
        }
        Ok((name, function))
    }

    fn performance_directive(&mut self, function: &mut Function) -> Result<(), PtxError> {
        let token = self.advance();
        match &self.slice(token)[1..] {
            "maxntid" => {
                let block = self.block_shape()?;
                if !function.block_is_exact {
                    function.max_block = Some(block);
                }
            }
            "reqntid" => {
                function.max_block = Some(self.block_shape()?);
                function.block_is_exact = true;
            }
            "pragma" => self.pragma()?,
            "explicitcluster" => function.clusters.explicit = true,
            "blocksareclusters" => function.clusters.counted = true,
            "reqnctapercluster" => function.clusters.required = Some(self.block_shape()?),
            "maxclusterrank" => function.clusters.most = Some(self.unsigned("a count")?),
            hint @ "noreturn" => function.hints.push(hint.to_owned()),
            hint @ ("minnctapersm"
            | "maxnctapersm"
            | "maxnreg"
            | "local_maxnreg"
            | "abi_preserve"
            | "abi_preserve_control") => {
                let mut hint = hint.to_owned();
                for (place, count) in self.counts()?.into_iter().enumerate() {
                    hint.push_str(if place == 0 { " " } else { ", " });
                    hint.push_str(&count.to_string());
                }
                function.hints.push(hint);
            }
            other => {
                let expected = "a performance directive that we know, `{` or `;`";
                return Err(self.error_at(token, expected, format!("`.{other}`")));
            }
        }
        Ok(())
    }

    /// `x`, `x, y` or `x, y, z`.
    fn block_shape(&mut self) -> Result<[u32; 3], PtxError> {
        let token = self.peek();
        let counts = self.counts()?;
        let mut shape = [1; 3];
        if counts.len() > shape.len() {
            return Err(self.error_at(token, "one to three extents", counts.len().to_string()));
        }
        shape[..counts.len()].copy_from_slice(&counts);
        Ok(shape)
    }

    fn counts(&mut self) -> Result<Vec<u32>, PtxError> {
        let mut counts = vec![self.unsigned("a count")?];
        while self.eat(",") {
            counts.push(self.unsigned("a count")?);
        }
        Ok(counts)
    }

    /// `"text", "text";`, the directive's word being read.
    pub(super) fn pragma(&mut self) -> Result<(), PtxError> {
        self.list(";", |parser| parser.expect_kind(Kind::Text, "a string"))?;
        Ok(())
    }
}
