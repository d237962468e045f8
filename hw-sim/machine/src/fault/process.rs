//! Faults of a process, by name: of what its operating system does for it, and of its life. A
//! process is `rank0`, `rank1`, ... by its variable `RANK`; one without the variable is `rank0`.
//!
//! | fault | what happens |
//! |---|---|
//! | `kill-at=N` | the process is killed (SIGKILL) at its driver call N, counted from 0 |
//! | `freeze-at=N` | the same, but it is stopped (SIGSTOP), and goes on if somebody lets it |
//! | `time-jumps=MICROSECONDS` | each look at the time of day is off by a random time up to this |
//! | `flip-at=N` | one bit, at random, of the Nth byte that it sends over TCP is inverted |
//! | `partition-at=N` | when it has sent N bytes over TCP, nothing comes or goes any more |
//! | `connections-reset-at=N` | byte N that it sends over TCP resets its connection |
//! | `network-delay=MICROSECONDS` | each of its sends over TCP takes up to this longer |
//! | `disk-full-at=N` | when it has written N bytes to files, the disk is full |
//! | `unreadable=PATH` | files whose names begin with this cannot be opened for reading |
//!
//! The driver kills and stops. All others are done by a library that `hwsim run` loads into the
//! processes: `hw-sim/libc`.

use super::argument;
use std::str::FromStr;

/// A fault of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessFault {
    /// Killed at this driver call.
    KillAt(u64),
    /// Stopped at this driver call.
    FreezeAt(u64),
    /// The time of day is wrong by up to so many microseconds.
    TimeJumps(u64),
    /// One bit of this byte is inverted.
    FlipAt(u64),
    /// Cut off from this byte on.
    PartitionAt(u64),
    /// This byte ends its connection.
    ConnectionsResetAt(u64),
    /// Up to so many microseconds for each send.
    NetworkDelay(u64),
    /// No room for this byte, nor for later ones.
    DiskFullAt(u64),
    /// What cannot be read.
    Unreadable(String),
}

impl FromStr for ProcessFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "expected kill-at=N, freeze-at=N, time-jumps=MICROSECONDS, flip-at=N, \
                 partition-at=N, connections-reset-at=N, network-delay=MICROSECONDS (times up \
                 to a day), disk-full-at=N or unreadable=PATH, found `{text}`"
            )
        };
        let (name, argument) = text.split_once('=').ok_or_else(wrong)?;
        let number = || argument::number(argument).ok_or_else(wrong);
        let time = || argument::time(argument).ok_or_else(wrong);
        Ok(match name {
            "kill-at" => Self::KillAt(number()?),
            "freeze-at" => Self::FreezeAt(number()?),
            "time-jumps" => Self::TimeJumps(time()?),
            "flip-at" => Self::FlipAt(number()?),
            "partition-at" => Self::PartitionAt(number()?),
            "connections-reset-at" => Self::ConnectionsResetAt(number()?),
            "network-delay" => Self::NetworkDelay(time()?),
            "disk-full-at" => Self::DiskFullAt(number()?),
            "unreadable" if argument.starts_with('/') => Self::Unreadable(argument.to_owned()),
            _ => return Err(wrong()),
        })
    }
}

impl ProcessFault {
    /// Does it strike at a driver call?
    pub(super) fn strikes_calls(&self) -> bool {
        matches!(self, Self::KillAt(_) | Self::FreezeAt(_))
    }
}
