//! The list of what may be skipped.

use serde::Deserialize;
use std::collections::BTreeMap;

/// `tests/skips.toml`: reasons by cause, and by test for those that are ignored.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Why a cause is no loss.
    pub causes: BTreeMap<String, String>,
    /// Why a test with `#[ignore]` is none: BINARY::NAME.
    pub ignored: BTreeMap<String, String>,
}

impl List {
    /// The list as it was when this was compiled.
    ///
    /// # Panics
    /// If the file is no such list, or a reason is empty.
    pub fn committed() -> Self {
        Self::parse(include_str!("../../skips.toml"))
    }

    /// Reads a list.
    ///
    /// # Panics
    /// As [`committed`](Self::committed).
    pub fn parse(text: &str) -> Self {
        let list: Self =
            toml::from_str(text).unwrap_or_else(|error| panic!("tests/skips.toml: {error}"));
        for (name, reason) in list.causes.iter().chain(&list.ignored) {
            assert!(!reason.trim().is_empty(), "tests/skips.toml: {name} has no reason");
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "gpu has no reason")]
    fn an_entry_without_reason_is_refused() {
        List::parse("[causes]\ngpu = \" \"\n[ignored]\n");
    }
}
