//! The faults of one process, from a list.

use super::choice::choose;
use super::list::{DeviceFaults, FAULTS_VARIABLE, of_device};
use super::process::ProcessFault;

/// The variable with the number of a process among all, which launchers set.
const RANK_VARIABLE: &str = "RANK";

/// The faults of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessFaults {
    seed: u64,
    faults: Vec<ProcessFault>,
}

impl ProcessFaults {
    /// Those of this process, which is on this node.
    ///
    /// # Errors
    /// The entry of the list that is none, and what was expected.
    pub fn from_environment(node: u32) -> Result<Self, String> {
        let list = std::env::var(FAULTS_VARIABLE).unwrap_or_default();
        let rank = std::env::var(RANK_VARIABLE).ok().and_then(|text| text.parse().ok());
        let rank = rank.unwrap_or(0);
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

#[cfg(test)]
mod tests {
    use super::super::list::needs_libc;
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
