//! Faults of GPUs, and of the host's pinned memory, by name. A GPU is `gpu0`, `gpu1`, ... as the
//! machine numbers them; pinned memory is `host`.
//!
//! | fault | what happens |
//! |---|---|
//! | `out-of-memory-at=N` | in each process, allocation N (from 0) is refused; later ones are not |
//! | `stop-at=N` | in each process, launches from number N on never begin; GPUs alone |

use super::argument;
use std::str::FromStr;

/// A fault of a GPU, or of pinned memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GpuFault {
    OutOfMemoryAt(u64),
    StopAt(u64),
}

impl FromStr for GpuFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected out-of-memory-at=N or stop-at=N, found `{text}`");
        let (name, argument) = text.split_once('=').ok_or_else(wrong)?;
        let number = argument::number(argument).ok_or_else(wrong)?;
        match name {
            "out-of-memory-at" => Ok(Self::OutOfMemoryAt(number)),
            "stop-at" => Ok(Self::StopAt(number)),
            _ => Err(wrong()),
        }
    }
}
