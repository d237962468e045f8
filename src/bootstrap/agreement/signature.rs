//! Named values that must be equal on all ranks, and their comparison.

use crate::error::{Error, Result};
use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt::{Debug, Display};

/// Values that must be equal, with their names.
pub(crate) type Signature = Vec<NamedValue>;

/// A named value.
pub(crate) type NamedValue = (Cow<'static, str>, Value);

/// One value of a [`Signature`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Value {
    /// A number.
    Number(u64),
    /// A word.
    Word(Cow<'static, str>),
}

impl Value {
    /// A word.
    pub const fn word(word: &'static str) -> Self {
        Self::Word(Cow::Borrowed(word))
    }
}

/// A signature of these terms.
pub(crate) fn signature<const COUNT: usize>(
    terms: [(&'static str, Value); COUNT],
) -> [NamedValue; COUNT] {
    terms.map(|(name, value)| (Cow::Borrowed(name), value))
}

impl Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// Compares `theirs` with `ours` and names the first difference.
pub(crate) fn compare(
    call: &dyn Display,
    rank: Rank,
    ours: &[NamedValue],
    peer: Rank,
    theirs: &[NamedValue],
) -> Result<()> {
    let differs = |((name, our_value), (_, their_value)): (&(Cow<str>, Value), &(_, Value))| {
        (our_value != their_value).then(|| Error::Disagreement {
            what: format!("{name} of {call}"),
            rank,
            value: our_value.to_string(),
            peer,
            peer_value: their_value.to_string(),
        })
    };
    ours.iter().zip(theirs).find_map(differs).map_or(Ok(()), Err)
}
