//! Why a graph is refused.

use std::fmt;

/// A graph that makes no sense: where that is, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphError {
    /// The file, as it was named.
    pub file: String,
    /// Counted from 1; 0 where the file as a whole is meant.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.reason),
            line => write!(f, "{}:{line}: {}", self.file, self.reason),
        }
    }
}

impl std::error::Error for GraphError {}
