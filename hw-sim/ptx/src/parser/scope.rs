//! Names of nested scopes made unique.
//!
//! A function's own names stay as they are; a name declared in a `{ }` inside it gets the scope's
//! number. Labels may be used before they stand, so those of all scopes are collected up front.

use std::collections::{HashMap, HashSet};

use super::Parser;
use super::lexer::{Kind, Token};
use crate::error::PtxError;

/// Deepest nesting. Compilers emit two or three; each level costs a look-up for each name.
const DEPTH_MAX: usize = 64;

/// The scopes that are open at one place of a function.
pub(super) struct Scopes<'t> {
    open: Vec<NameScope<'t>>,
    /// How many were opened so far: the next one's number.
    opened: u32,
    /// The labels of each scope, by the index of its `{`.
    labels: HashMap<usize, HashSet<&'t str>>,
}

struct NameScope<'t> {
    number: u32,
    names: HashSet<&'t str>,
    /// `.reg .b32 %r<20>`: prefix and count.
    ranges: HashMap<&'t str, u32>,
}

impl<'t> Scopes<'t> {
    /// Enters the scope whose `{` is the parser's next token.
    pub(super) fn enter(&mut self, parser: &Parser<'t>) -> Result<(), PtxError> {
        if self.open.len() == DEPTH_MAX {
            let expected = format!("at most {DEPTH_MAX} nested scopes");
            return Err(parser.error_at(parser.peek(), expected, "one more"));
        }
        let names = self.labels.remove(&parser.next).unwrap_or_default();
        self.open.push(NameScope { number: self.opened, names, ranges: HashMap::new() });
        self.opened += 1;
        Ok(())
    }

    /// Leaves the innermost scope; false when that was the function's own.
    pub(super) fn leave(&mut self) -> bool {
        self.open.pop();
        !self.open.is_empty()
    }

    /// Declares a name; gives the unique one, or None if this scope has it already.
    pub(super) fn declare(&mut self, name: &'t str) -> Option<String> {
        let scope = self.open.last_mut()?;
        let is_new = scope.resolve(name).is_none() && scope.names.insert(name);
        is_new.then(|| scope.unique(name))
    }

    /// Declares `prefix0` to `prefix(count-1)`; gives the unique prefix.
    pub(super) fn declare_range(&mut self, prefix: &'t str, count: u32) -> Option<String> {
        let scope = self.open.last_mut()?;
        scope.ranges.insert(prefix, count).is_none().then(|| scope.unique_prefix(prefix))
    }

    /// What `name` is called in the AST.
    pub(super) fn resolve(&self, name: &str) -> String {
        // The function's own scope comes last and changes nothing, so it is not asked.
        let nested = self.open.get(1..).unwrap_or_default();
        let found = nested.iter().rev().find_map(|scope| scope.resolve(name));
        found.unwrap_or_else(|| name.to_owned())
    }
}

impl NameScope<'_> {
    fn unique(&self, name: &str) -> String {
        if self.number == 0 { name.to_owned() } else { format!("{name}#{}", self.number) }
    }

    fn unique_prefix(&self, prefix: &str) -> String {
        if self.number == 0 { prefix.to_owned() } else { format!("{prefix}#{}#", self.number) }
    }

    fn resolve(&self, name: &str) -> Option<String> {
        if self.names.contains(name) {
            return Some(self.unique(name));
        }
        // `%r12` may be element 12 of `%r` or element 2 of `%r1`. An index has at most ten digits.
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).take(10).count();
        (name.len() - digits..name.len()).find_map(|split| {
            let (prefix, index) = name.split_at(split);
            let canonical = index == "0" || !index.starts_with('0');
            let in_range = index.parse::<u32>().ok()? < *self.ranges.get(prefix)?;
            (canonical && in_range).then(|| format!("{}{index}", self.unique_prefix(prefix)))
        })
    }
}

impl<'t> Parser<'t> {
    /// Collects the labels of the body whose `{` is the next token, scope by scope. A brace that
    /// turns out to be a vector's holds no label, so it needs no telling apart here.
    pub(super) fn scopes(&self) -> Result<Scopes<'t>, PtxError> {
        let mut labels: HashMap<usize, HashSet<&'t str>> = HashMap::new();
        let mut open: Vec<usize> = Vec::new();
        for index in self.next..self.tokens.len() {
            let token = self.tokens[index];
            match self.slice(token) {
                "{" => open.push(index),
                "}" => {
                    open.pop();
                    if open.is_empty() {
                        break;
                    }
                }
                ":" => {
                    let Some(&scope) = open.last() else { continue };
                    let Some(name) = self.label_before(index) else { continue };
                    if !labels.entry(scope).or_default().insert(self.slice(name)) {
                        let found = format!("`{}` again", self.slice(name));
                        return Err(self.error_at(name, "labels that differ", found));
                    }
                }
                _ => {}
            }
        }
        Ok(Scopes { open: Vec::new(), opened: 0, labels })
    }

    /// The label that ends at the colon `index`; None for the colon of `a ? b : c`, which follows
    /// a name only if that is `WARP_SZ`.
    fn label_before(&self, index: usize) -> Option<Token> {
        let token = *self.tokens.get(index.checked_sub(1)?)?;
        (token.kind == Kind::Word && self.slice(token) != "WARP_SZ").then_some(token)
    }
}
