//! Which rank runs what, for model files that do not say it.
//!
//! ```json
//! {
//!   "ringdove_placement": 1,
//!   "ranks": 2,
//!   "operators": {"*": 0, "decoder/*": 1, "decoder/last": 0},
//!   "tensors": {"decoder.weight": 0},
//!   "bytes_max": {"chosen rows": 65536}
//! }
//! ```
//!
//! A name that ends in `*` means all names that begin so. The whole name counts before others, and
//! of those the longest. `tensors` are inputs and parameters; those that are not named stay where
//! they are read first. `bytes_max` bounds tensors whose shape is known when the graph runs.

use super::build::{Result, Source};
use super::model::RANKS_MAX;
use crate::error::json_reason;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The format that this version reads.
const FORMAT: u32 = 1;
/// The largest file.
const BYTES_MAX: usize = 16 << 20;

/// Where operators run, and where inputs and parameters are kept.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    ringdove_placement: u32,
    ranks: u32,
    #[serde(default)]
    operators: BTreeMap<String, u32>,
    #[serde(default)]
    tensors: BTreeMap<String, u32>,
    #[serde(default)]
    bytes_max: BTreeMap<String, u64>,
}

impl Placement {
    /// The placement that `text`, the contents of `file`, describes.
    ///
    /// # Errors
    /// [`GraphError`](super::GraphError) with file, line and reason.
    pub fn read(file: &str, text: &str) -> Result<Self> {
        let source = Source { file, text };
        if text.len() > BYTES_MAX {
            return Err(source.error(0, format!("{} bytes; at most {BYTES_MAX}", text.len())));
        }
        let parsed: Self = serde_json::from_str(text)
            .map_err(|error| source.error(error.line(), json_reason(&error)))?;
        let Self { ringdove_placement: format, ranks, .. } = parsed;
        if format != FORMAT {
            let reason = format!("format {format}: this version reads {FORMAT}");
            return Err(source.error(1, reason));
        }
        if !(1..=RANKS_MAX).contains(&ranks) {
            return Err(source.error(1, format!("{ranks} ranks; expected 1 to {RANKS_MAX}")));
        }
        let named = parsed.operators.iter().chain(&parsed.tensors);
        if let Some((name, rank)) = named.into_iter().find(|(_, rank)| **rank >= ranks) {
            let reason = format!("'{name}' on rank {rank} of {ranks} ranks");
            return Err(source.error(1, reason));
        }
        Ok(parsed)
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The rank of an operator, where a name fits it.
    pub fn operator(&self, name: &str) -> Option<u32> {
        fitting(&self.operators, name)
    }

    /// The rank of an input or a parameter, where a name fits it.
    pub fn tensor(&self, name: &str) -> Option<u32> {
        fitting(&self.tensors, name)
    }

    /// The most bytes of a tensor, where a name fits it.
    pub fn bytes_max(&self, name: &str) -> Option<u64> {
        fitting(&self.bytes_max, name)
    }
}

/// What the whole name is given, or else the longest beginning of it.
fn fitting<T: Copy>(given: &BTreeMap<String, T>, name: &str) -> Option<T> {
    let begins = |key: &String| key.strip_suffix('*').is_some_and(|start| name.starts_with(start));
    let longest = || given.iter().filter(|(key, _)| begins(key)).max_by_key(|(key, _)| key.len());
    given.get(name).copied().or_else(|| longest().map(|(_, value)| *value))
}
