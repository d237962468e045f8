//! Effects of an engine's faults. Every choice follows from the seed and the request's number,
//! counted over the engine: the same program with the same seed has the same faults.

use crate::fault::{DeviceFaults, EngineFault, choose, of_device};
use std::time::Duration;

/// The faults of one engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineFaults {
    seed: u64,
    faults: Vec<EngineFault>,
}

impl EngineFaults {
    /// The faults of one engine of one node: those of its machine file, and those of a list.
    pub fn new(node: u32, name: &str, of_file: &[String], list: &str) -> Result<Self, String> {
        let DeviceFaults { seed, faults } = of_device(of_file, list, node, name)?;
        Ok(Self { seed, faults })
    }

    /// Is the link down once the engine has taken so many requests?
    pub(super) fn link_is_down(&self, taken: u64) -> bool {
        self.faults
            .iter()
            .any(|fault| matches!(*fault, EngineFault::LinkDownAfter(n) if taken >= n))
    }

    /// Does the engine stand still once it has taken so many requests?
    pub(super) fn is_stalled(&self, taken: u64) -> bool {
        self.faults.iter().any(|fault| matches!(*fault, EngineFault::StallAfter(n) if taken >= n))
    }

    /// Is the source of the engine's `request`th unreadable?
    pub(super) fn fetch_faults(&self, request: u64) -> bool {
        self.faults.contains(&EngineFault::FetchFaultAfter(request))
    }

    /// How long a request waits.
    pub(super) fn delay(&self, request: u64) -> Duration {
        let delays = self.faults.iter().map(|fault| match *fault {
            EngineFault::Delay(most) => choose(self.seed, [1, 0, request]) % (most + 1),
            _ => 0,
        });
        Duration::from_micros(delays.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_list_serves_adapters_and_engines() {
        let list = "seed=7,hwsim0:port-down,*:delay=50,node1/engine0:stall-after=3";
        let of = |node, name| EngineFaults::new(node, name, &[], list).unwrap();
        assert_eq!(of(0, "engine0").faults, [EngineFault::Delay(50)]);
        assert_eq!(of(1, "engine0").faults, [EngineFault::Delay(50), EngineFault::StallAfter(3)]);
        let adapter = crate::adapter::fault::AdapterFaults::new(0, "hwsim0", &[], list).unwrap();
        assert!(adapter.port_down_at_start());
        for wrong in [
            "engine0:port-down",
            "engine0:nonsense=1",
            "*:nonsense",
            "x:delay=y",
            "engine0:delay=86400000001",
        ] {
            let error = EngineFaults::new(0, "engine0", &[], wrong).unwrap_err();
            assert!(error.contains("expected") && error.contains("found"), "{error}");
        }
    }

    /// If this fails, a seed no longer repeats an earlier failure.
    #[test]
    fn delays_follow_from_the_seed() {
        let delays = |seed| {
            let faults =
                EngineFaults::new(0, "a", &[], &format!("seed={seed},a:delay=99")).unwrap();
            (0..64).map(|request| faults.delay(request)).collect::<Vec<_>>()
        };
        assert_eq!(delays(1), delays(1));
        assert_ne!(delays(1), delays(2));
        assert!(delays(1).iter().all(|delay| delay.as_micros() <= 99));
    }
}
