//! Faults of a process: of what its operating system does for it, and of its life. A process is
//! `rank0`, `rank1`, ... by its variable `RANK`; one without the variable is `rank0`.
//!
//! | fault | what happens |
//! |---|---|
//! | `kill-at=N` | the process is killed (SIGKILL) at its driver call N, counted from 0 |
//! | `freeze-at=N` | the same, but it is stopped (SIGSTOP), and goes on if somebody lets it |
//! | `time-jumps=MICROSECONDS` | each look at the time of day is off by a random time up to this |
//! | `flip-at=N` | one bit, at random, of the Nth byte that it sends over TCP is inverted |
//! | `partition-at=N` | when it has sent N bytes over TCP, nothing comes or goes any more |
//! | `connections-reset-at=N` | byte N that it sends over TCP resets its connection |
//! | `network-delay=MICROSECONDS` | each of its sends over TCP takes a random time up to this longer |
//! | `disk-full-at=N` | when it has written N bytes to files, the disk is full |
//! | `unreadable=PATH` | files whose names begin with this cannot be opened for reading |
//!
//! The driver kills and stops. All others are done by a library that `hwsim run` loads into the processes:
//! `hw-sim/libc`.

use super::argument;
use super::choice::choose;
use super::list::{DeviceFaults, FAULTS_VARIABLE, of_device};
use crate::description::cluster::NODE_VARIABLE;
use std::str::FromStr;

/// The variable with the number of a process among all, which launchers set.
const RANK_VARIABLE: &str = "RANK";

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
                "expected kill-at=N, freeze-at=N, time-jumps=MICROSECONDS, flip-at=N, partition-at=N, \
                 connections-reset-at=N, network-delay=MICROSECONDS (times up to a day), \
                 disk-full-at=N or unreadable=PATH, found `{text}`"
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
    fn strikes_calls(&self) -> bool {
        matches!(self, Self::KillAt(_) | Self::FreezeAt(_))
    }
}

/// The faults of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessFaults {
    seed: u64,
    faults: Vec<ProcessFault>,
}

impl ProcessFaults {
    /// Those of this process.
    ///
    /// # Errors
    /// The entry of the list that is none, and what was expected.
    pub fn from_environment() -> Result<Self, String> {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let list = std::env::var(FAULTS_VARIABLE).unwrap_or_default();
        let (node, rank) = (number(NODE_VARIABLE).unwrap_or(0), number(RANK_VARIABLE).unwrap_or(0));
        Self::new(&list, node, rank).map_err(|why| format!("{FAULTS_VARIABLE}: {why}"))
    }

    /// Those of the process with this rank, on this node.
    ///
    /// # Errors
    /// As [`Self::from_environment`].
    pub fn new(list: &str, node: u32, rank: u32) -> Result<Self, String> {
        let DeviceFaults { seed, faults } = of_device(&[], list, node, &format!("rank{rank}"))?;
        Ok(Self { seed, faults })
    }

    /// The faults.
    pub fn faults(&self) -> &[ProcessFault] {
        &self.faults
    }

    /// Does one of them strike at a driver call?
    pub fn strikes_calls(&self) -> bool {
        self.faults.iter().any(ProcessFault::strikes_calls)
    }

    /// Is it time to be killed, at the driver call of this number?
    pub fn kills_at(&self, call: u64) -> bool {
        self.faults.contains(&ProcessFault::KillAt(call))
    }

    /// The same of being stopped.
    pub fn freezes_at(&self, call: u64) -> bool {
        self.faults.contains(&ProcessFault::FreezeAt(call))
    }

    /// A random number up to `most`, for the `number`th choice of this purpose.
    pub fn up_to(&self, most: u64, purpose: u64, number: u64) -> u64 {
        choose(self.seed, [purpose, most, number]) % most.saturating_add(1)
    }
}

/// Does a list have faults of processes for which their operating system has to be stood in for?
/// Entries that are none are not looked at.
pub fn needs_libc(list: &str) -> bool {
    list.split(',').any(|entry| {
        let fault = entry.split_once(':').and_then(|(_, fault)| fault.trim().parse().ok());
        fault.is_some_and(|fault: ProcessFault| !fault.strikes_calls())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a fault strikes another process than the one that it names, or none.
    #[test]
    fn faults_strike_the_process_that_they_name() {
        let list = "seed=3,rank1:kill-at=7,node1/*:time-jumps=50,gpu0:stop-at=1,*:delay=9,\
                    rank0:unreadable=/etc/a:b";
        let of = |node, rank| ProcessFaults::new(list, node, rank).unwrap().faults;
        assert_eq!(of(0, 0), [ProcessFault::Unreadable("/etc/a:b".into())]);
        assert_eq!(of(1, 1), [ProcessFault::KillAt(7), ProcessFault::TimeJumps(50)]);
        let faults = ProcessFaults::new(list, 0, 1).unwrap();
        assert!(faults.kills_at(7) && !faults.kills_at(6) && !faults.freezes_at(7));
        for wrong in ["rank0:kill-at", "rank0:flip-at=x", "rank0:unreadable=a", "*:time-jumps=-1"] {
            let error = ProcessFaults::new(wrong, 0, 0).unwrap_err();
            assert!(error.contains("expected") && error.contains("found"), "{error}");
        }
    }

    /// If this fails, processes run without the faults that were asked for, or with a library
    /// that they do not need.
    #[test]
    fn the_library_is_loaded_where_it_has_something_to_do() {
        for list in ["rank0:flip-at=1", "seed=1, *:disk-full-at=0", "node1/*:unreadable=/a"] {
            assert!(needs_libc(list), "{list}");
        }
        for list in [
            "",
            "seed=1",
            "rank0:kill-at=3,rank1:freeze-at=1",
            "*:delay=1,gpu0:stop-at=1",
            "nonsense",
        ] {
            assert!(!needs_libc(list), "{list}");
        }
    }

    /// If this fails, a seed no longer repeats an earlier failure.
    #[test]
    fn choices_follow_from_the_seed() {
        let of = |seed| ProcessFaults::new(&format!("seed={seed}"), 0, 0).unwrap();
        let drawn = |seed| (0..64).map(|number| of(seed).up_to(9, 1, number)).collect::<Vec<_>>();
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        assert!(drawn(1).iter().all(|drawn| *drawn <= 9));
        assert_eq!(of(1).up_to(0, 1, 1), 0);
    }
}
