//! The condition under a litmus test: `exists (P0:r1 == 0 /\ x == 1)`.

use std::collections::BTreeMap;
use std::fmt;

/// What a condition speaks of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// A register of a thread at its end.
    Register(usize, String),
    /// A location when all is over.
    Location(String),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(thread, register) => write!(f, "P{thread}:{register}"),
            Self::Location(name) => f.write_str(name),
        }
    }
}

/// What a run came to.
pub type Outcome = BTreeMap<Name, i64>;

/// A term of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// Its value at the end.
    Name(Name),
    /// A number.
    Number(i64),
}

/// A formula.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Formula {
    /// `a == b`, or `a != b` if the flag is not set.
    Equal(Term, Term, bool),
    /// `/\`
    And(Box<Formula>, Box<Formula>),
    /// `\/`
    Or(Box<Formula>, Box<Formula>),
    /// `~`
    Not(Box<Formula>),
}

/// What is claimed of all outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantifier {
    /// Some outcome is so.
    Exists,
    /// None is.
    NotExists,
    /// All are.
    Forall,
}

impl fmt::Display for Quantifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exists => "exists",
            Self::NotExists => "~exists",
            Self::Forall => "forall",
        })
    }
}

impl Formula {
    /// Is it so? A name that nothing wrote is zero.
    pub fn holds(&self, outcome: &Outcome) -> bool {
        let value = |term: &Term| match term {
            Term::Name(name) => outcome.get(name).copied().unwrap_or(0),
            Term::Number(number) => *number,
        };
        match self {
            Self::Equal(a, b, equal) => (value(a) == value(b)) == *equal,
            Self::And(a, b) => a.holds(outcome) && b.holds(outcome),
            Self::Or(a, b) => a.holds(outcome) || b.holds(outcome),
            Self::Not(a) => !a.holds(outcome),
        }
    }

    /// All names in it, in order.
    pub fn names(&self) -> Vec<Name> {
        let mut names = Vec::new();
        self.collect(&mut names);
        names.sort();
        names.dedup();
        names
    }

    fn collect(&self, names: &mut Vec<Name>) {
        match self {
            Self::Equal(a, b, _) => {
                for term in [a, b] {
                    if let Term::Name(name) = term {
                        names.push(name.clone());
                    }
                }
            }
            Self::And(a, b) | Self::Or(a, b) => {
                a.collect(names);
                b.collect(names);
            }
            Self::Not(a) => a.collect(names),
        }
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// In words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser { tokens: tokens(text)?, next: 0 };
        let formula = parser.any()?;
        match parser.peek() {
            None => Ok(formula),
            Some(token) => Err(format!("`{token}` follows the condition")),
        }
    }
}

struct Parser {
    tokens: Vec<String>,
    next: usize,
}

impl Parser {
    fn peek(&self) -> Option<&str> {
        self.tokens.get(self.next).map(String::as_str)
    }

    fn take(&mut self, token: &str) -> bool {
        let there = self.peek() == Some(token);
        self.next += usize::from(there);
        there
    }

    fn any(&mut self) -> Result<Formula, String> {
        let mut formula = self.all()?;
        while self.take("\\/") {
            formula = Formula::Or(Box::new(formula), Box::new(self.all()?));
        }
        Ok(formula)
    }

    fn all(&mut self) -> Result<Formula, String> {
        let mut formula = self.one()?;
        while self.take("/\\") {
            formula = Formula::And(Box::new(formula), Box::new(self.one()?));
        }
        Ok(formula)
    }

    fn one(&mut self) -> Result<Formula, String> {
        if self.take("~") || self.take("not") {
            return Ok(Formula::Not(Box::new(self.one()?)));
        }
        if self.take("(") {
            let formula = self.any()?;
            return if self.take(")") { Ok(formula) } else { Err("a `)` is missing".to_owned()) };
        }
        let a = self.term()?;
        let equal = match self.peek() {
            Some("=" | "==") => true,
            Some("!=") => false,
            other => return Err(format!("expected `==` or `!=`, found {other:?}")),
        };
        self.next += 1;
        Ok(Formula::Equal(a, self.term()?, equal))
    }

    fn term(&mut self) -> Result<Term, String> {
        let token = self.peek().ok_or("the condition ends too early")?.to_owned();
        self.next += 1;
        term(&token)
    }
}

fn term(token: &str) -> Result<Term, String> {
    if let Ok(number) = token.parse() {
        return Ok(Term::Number(number));
    }
    let name = match token.split_once(':') {
        Some((thread, register)) => {
            let thread = thread.trim_start_matches('P').parse();
            let thread = thread.map_err(|_| format!("`{token}` names no thread"))?;
            Name::Register(thread, register.to_owned())
        }
        None => Name::Location(token.to_owned()),
    };
    Ok(Term::Name(name))
}

fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut tokens = Vec::new();
    // Some files have a space between a thread and its register.
    let text = text.replace(": ", ":");
    let mut rest = text.trim_start();
    let marks = ["/\\", "\\/", "==", "!=", "=", "(", ")", "~"];
    while !rest.is_empty() {
        let length = match marks.iter().find(|mark| rest.starts_with(**mark)) {
            Some(mark) => mark.len(),
            None => rest
                .find(|c: char| !(c.is_alphanumeric() || "_:[]-".contains(c)))
                .unwrap_or(rest.len()),
        };
        if length == 0 {
            return Err(format!("`{rest}` is no condition"));
        }
        tokens.push(rest[..length].trim_matches(['[', ']']).to_owned());
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a test's verdict is about another condition than the one in its file.
    #[test]
    fn conditions_bind_as_written() {
        let formula = Formula::parse(r"(P0: r1 == 1 /\ x != 2 \/ 1:r0 = 3)").unwrap();
        let register = |thread, value| (Name::Register(thread, format!("r{}", 1 - thread)), value);
        let outcome = |list: &[(Name, i64)]| list.iter().cloned().collect::<Outcome>();
        assert!(formula.holds(&outcome(&[register(0, 1)])));
        assert!(!formula.holds(&outcome(&[register(0, 1), (Name::Location("x".into()), 2)])));
        assert!(formula.holds(&outcome(&[register(1, 3)])));
        assert_eq!(formula.names().len(), 3);
        assert!(Formula::parse("(x == 1").is_err() && Formula::parse("x == 1 )").is_err());
    }
}
