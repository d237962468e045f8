//! Faults of device engines, by name.
//!
//! | fault | what happens |
//! |---|---|
//! | `link-down-after=N` | the link goes down, for good, when the engine has taken N requests |
//! | `fetch-fault-after=N` | the source of request N cannot be read |
//! | `stall-after=N` | the engine does nothing more when it has taken N requests |
//! | `delay=MICROSECONDS` | each request waits for a random time up to this |

use super::argument;
use std::str::FromStr;

/// A fault of a device engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineFault {
    LinkDownAfter(u64),
    FetchFaultAfter(u64),
    StallAfter(u64),
    Delay(u64),
}

impl FromStr for EngineFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "expected link-down-after=N, fetch-fault-after=N, stall-after=N or \
                 delay=MICROSECONDS (up to a day), found `{text}`"
            )
        };
        let (name, argument) = text.split_once('=').ok_or_else(wrong)?;
        let number = argument::number(argument).ok_or_else(wrong)?;
        Ok(match name {
            "link-down-after" => Self::LinkDownAfter(number),
            "fetch-fault-after" => Self::FetchFaultAfter(number),
            "stall-after" => Self::StallAfter(number),
            "delay" => Self::Delay(argument::time(argument).ok_or_else(wrong)?),
            _ => return Err(wrong()),
        })
    }
}
