//! Faults of GPUs, and of the host's pinned memory, by name. A GPU is `gpu0`, `gpu1`, ... as the
//! machine numbers them; pinned memory is `host`.
//!
//! | fault | what happens |
//! |---|---|
//! | `out-of-memory-at=N` | in each process, allocation N (from 0) is refused; later ones are not |
//! | `stop-at=N` | in each process, launches from number N on never begin; GPUs alone |
//! | `slow=MICROSECONDS` | each turn of a block, of some 8,192 instructions of its warps or until |
//! | | it waits, begins so much later; GPUs alone |
//! | `clock-leaps-at=N:MICROSECONDS` | in each process, from look N at it on, counted from 0, the |
//! | | GPU's clock (`%globaltimer`) is so much ahead, or behind with a `-`; GPUs alone |

use super::argument;
use std::str::FromStr;

/// A fault of a GPU, or of pinned memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GpuFault {
    OutOfMemoryAt(u64),
    StopAt(u64),
    Slow(u64),
    ClockLeapsAt { look: u64, by_ns: i64 },
}

impl FromStr for GpuFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "expected out-of-memory-at=N, stop-at=N, slow=MICROSECONDS or \
                 clock-leaps-at=N:[-]MICROSECONDS (up to a day), found `{text}`"
            )
        };
        let (name, argument) = text.split_once('=').ok_or_else(wrong)?;
        let number = |text: &str| argument::number(text).ok_or_else(wrong);
        let time = |text: &str| argument::time(text).ok_or_else(wrong);
        match name {
            "out-of-memory-at" => Ok(Self::OutOfMemoryAt(number(argument)?)),
            "stop-at" => Ok(Self::StopAt(number(argument)?)),
            "slow" => Ok(Self::Slow(time(argument)?)),
            "clock-leaps-at" => {
                let (look, by) = argument.split_once(':').ok_or_else(wrong)?;
                let (sign, by) = by.strip_prefix('-').map_or((1, by), |by| (-1, by));
                // No overflow: a day at most.
                let by_ns = sign * 1000 * time(by)? as i64;
                Ok(Self::ClockLeapsAt { look: number(look)?, by_ns })
            }
            _ => Err(wrong()),
        }
    }
}
