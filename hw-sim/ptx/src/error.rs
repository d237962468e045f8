//! Why a text is not a PTX module that we accept, and where.

use thiserror::Error;

/// Longest excerpt of the text that an error repeats, in characters.
const EXCERPT_CHARS_MAX: usize = 120;

/// A text that cannot be parsed: what was expected, what was seen, where.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("PTX line {line}, column {column}: expected {expected}, found {found}\n  | {text}")]
pub struct PtxError {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The text of that line, shortened if it is very long.
    pub text: String,
    /// The accepted values.
    pub expected: String,
    /// The text at that place.
    pub found: String,
}

impl PtxError {
    /// An error at byte `offset` of `source`. Costs a scan of the source, which errors can afford.
    pub(crate) fn at(
        source: &str,
        offset: usize,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        let before = source.get(..offset).unwrap_or(source);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line_text = source[line_start..].lines().next().unwrap_or("");
        Self {
            line: to_u32(before.bytes().filter(|byte| *byte == b'\n').count() + 1),
            column: to_u32(before[line_start..].chars().count() + 1),
            text: shorten(line_text.trim()),
            expected: expected.into(),
            found: found.into(),
        }
    }
}

/// The first characters of `text`, with a mark if something was left out.
pub(crate) fn shorten(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
