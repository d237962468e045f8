//! Graphs in files: a small JSON form.
//!
//! ```json
//! {
//!   "ringdove_graph": 1,
//!   "ranks": 2,
//!   "tensors": [
//!     {"name": "x", "type": "f32", "shape": [64, 784], "rank": 0},
//!     {"name": "w", "type": "f32", "shape": [784, 10], "rank": 1},
//!     {"name": "y", "shape": ["batch", 10], "bytes_max": 4096}
//!   ],
//!   "operators": [
//!     {"name": "hidden", "kind": "relu", "rank": 0, "inputs": ["x"], "output": "h"},
//!     {"name": "out", "kind": "dense", "rank": 1, "inputs": ["h", "w"], "output": "y"}
//!   ]
//! }
//! ```
//!
//! * `tensors`: inputs and parameters, which no operator writes, each with the `rank` that keeps
//!   it; and of others what does not follow by itself. `type` is f32 where it is left out. A word
//!   in a `shape` is a dimension that is known when the graph runs; a tensor with one may have a
//!   `bytes_max`. `"memory": "foreign"` says that somebody else allocates it.
//! * `operators`: in any order. `kind` is one of dense, add, subtract, multiply, divide, relu,
//!   tanh, sigmoid, softmax, batch-normalization, layer-normalization, transpose, concatenate,
//!   convolution, max-pool, average-pool, reshape, select and gather ([`Kind`](super::Kind)).
//!   `"attributes"` says what an operator is told ([`Attributes`](super::Attributes)), and its
//!   shape follows: `{"axis": 1}`, `{"order": [0, 2, 1]}`, `{"kernel": [3, 3], "strides": [2, 2],
//!   "before": [1, 1], "after": [1, 1]}`, also `dilations`, `groups`, `counts_edges`, `ceiling`,
//!   `whole`, `epsilon` and, of reshape, `shape`. Without it the shape of what is transposed,
//!   concatenated, convolved, pooled or reshaped is as declared.
//!
//! Errors name file, line and reason.

use super::build::{Builder, Result, Source};
use super::model::{Graph, OPERATORS_MAX, RANKS_MAX, TENSORS_MAX};
use crate::error::{json_reason, line_of};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The format that this version reads.
const FORMAT: u32 = 1;
/// The largest file.
const BYTES_MAX: usize = 64 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<'a> {
    ringdove_graph: u32,
    ranks: u32,
    #[serde(borrow)]
    tensors: Vec<&'a RawValue>,
    #[serde(borrow)]
    operators: Vec<&'a RawValue>,
}

impl Source<'_> {
    fn entry<'b, T: Deserialize<'b>>(&self, raw: &'b RawValue) -> Result<(T, usize)> {
        let line = line_of(self.text, raw.get());
        let parsed = serde_json::from_str(raw.get());
        let entry =
            parsed.map_err(|error| self.error(line + error.line() - 1, json_reason(&error)))?;
        Ok((entry, line))
    }
}

impl Graph {
    /// The graph that `text`, the contents of `file`, describes.
    ///
    /// # Errors
    /// [`GraphError`] with file, line and reason, for anything that is not a graph: unknown
    /// operators, types and fields, names that are used twice or not at all, ranks that there are
    /// not, cycles, and shapes that disagree.
    ///
    /// [`GraphError`]: super::GraphError
    pub fn read(file: &str, text: &str) -> Result<Self> {
        let source = Source { file, text };
        if text.len() > BYTES_MAX {
            return Err(source.error(0, format!("{} bytes; at most {BYTES_MAX}", text.len())));
        }
        let parsed: File<'_> = serde_json::from_str(text)
            .map_err(|error| source.error(error.line(), json_reason(&error)))?;
        if parsed.ringdove_graph != FORMAT {
            let reason = format!("format {}: this version reads {FORMAT}", parsed.ringdove_graph);
            return Err(source.error(1, reason));
        }
        for (what, count, most) in [
            ("ranks", parsed.ranks as usize, RANKS_MAX as usize),
            ("tensors", parsed.tensors.len(), TENSORS_MAX),
            ("operators", parsed.operators.len(), OPERATORS_MAX),
        ] {
            if !(1..=most).contains(&count) {
                return Err(source.error(1, format!("{count} {what}; expected 1 to {most}")));
            }
        }
        let mut builder = Builder::new(&source, parsed.ranks);
        for raw in parsed.tensors {
            let (entry, line) = source.entry(raw)?;
            builder.declare(entry, line)?;
        }
        for raw in parsed.operators {
            let (entry, line) = source.entry(raw)?;
            builder.operator(entry, line)?;
        }
        builder.finish()
    }
}
