//! Work that switches do: multicast, and reduction on the way (NVLS, NVLink SHARP). The words for
//! it are there, so that topology, cost model and files can speak of it. *Planned*: nothing runs
//! it, since no kernel and no virtual hardware of ours has it; the verifier refuses each such op.

use super::{Operand, Range};
use serde::{Deserialize, Serialize};

/// An op on memory that a switch maps to one place of each GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum InSwitch {
    /// The switch writes `source` to the same place of every rank.
    Multicast {
        /// Where from.
        source: Operand,
        /// Bytes from the start of that memory.
        offset: u64,
        /// How much.
        range: Range,
    },
    /// The switch reads the same place of every rank, and reduces what it reads.
    Reduce {
        /// Where to.
        destination: Operand,
        /// Bytes from the start of that memory.
        offset: u64,
        /// How much.
        range: Range,
    },
}

impl InSwitch {
    /// What it asks the switch for.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Multicast { .. } => "multicast",
            Self::Reduce { .. } => "reduction",
        }
    }

    /// How much.
    pub fn range(&self) -> Range {
        match *self {
            Self::Multicast { range, .. } | Self::Reduce { range, .. } => range,
        }
    }
}
