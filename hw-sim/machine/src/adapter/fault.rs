//! Effects of an adapter's faults. Every choice follows from the seed, the adapter, the queue
//! pair's place in the order of creation and the message's number: the same program on the same
//! seed meets the same faults.

use crate::fault::{AdapterFault, DeviceFaults, choose, of_device};
use std::time::Duration;

/// The effect of faults on the next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Send,
    PortDown,
    /// The port goes down for so long.
    Flap(Duration),
    /// The whole adapter fails.
    Reset,
    Lose,
    Fail {
        code: u32,
    },
    Hold(Duration),
}

/// The faults of one adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdapterFaults {
    seed: u64,
    faults: Vec<AdapterFault>,
}

impl AdapterFaults {
    /// The faults of one adapter of one node: those of its machine file, and those of a list as
    /// `HWSIM_FAULTS` has it.
    pub fn new(node: u32, name: &str, of_file: &[String], list: &str) -> Result<Self, String> {
        let DeviceFaults { seed, faults } = of_device(of_file, list, node, name)?;
        Ok(Self { seed, faults })
    }

    pub(crate) fn port_down_at_start(&self) -> bool {
        self.faults.contains(&AdapterFault::PortDown)
    }

    /// How many completions a queue really holds, if it is not as many as it promises.
    pub(super) fn completions_max(&self) -> Option<u64> {
        self.faults.iter().find_map(|fault| match *fault {
            AdapterFault::CompletionsMax(count) => Some(count),
            _ => None,
        })
    }

    /// What happens to a message: the adapter's `of_adapter`th, and the `message`th of the queue
    /// pair that was made as the `queue_pair`th. Asked once for each message.
    pub(super) fn at_message(&self, of_adapter: u64, queue_pair: u32, message: u64) -> Verdict {
        let mut hold = 0;
        for fault in &self.faults {
            match *fault {
                AdapterFault::PortDownAfter(count) if of_adapter >= count => {
                    return Verdict::PortDown;
                }
                AdapterFault::PortFlap { after, micros } if of_adapter == after => {
                    return Verdict::Flap(Duration::from_micros(micros));
                }
                AdapterFault::ResetAt(at) if of_adapter >= at => return Verdict::Reset,
                AdapterFault::LossAt(at) if of_adapter >= at => return Verdict::Lose,
                AdapterFault::QueuePairError { after, code } if message == after => {
                    return Verdict::Fail { code };
                }
                // No overflow: each is a day at most, and lists are short.
                AdapterFault::Delay(most) => {
                    hold += self.choose(1, queue_pair, message) % (most + 1)
                }
                AdapterFault::Reorder(time) if self.choose(2, queue_pair, message) & 1 == 1 => {
                    hold += time;
                }
                _ => {}
            }
        }
        if hold == 0 { Verdict::Send } else { Verdict::Hold(Duration::from_micros(hold)) }
    }

    /// Is the adapter's registration with this number refused?
    pub(super) fn refuses_registration(&self, number: u64) -> bool {
        self.faults.contains(&AdapterFault::RegistrationFailsAt(number))
    }

    /// Does a message find no receive request, the first time that it is looked at?
    pub(super) fn receiver_not_ready(&self, queue_pair: u32, message: u64) -> bool {
        self.faults.iter().any(|fault| match *fault {
            AdapterFault::ReceiverNotReady(share) => {
                self.choose(3, queue_pair, message) % 100 < share
            }
            _ => false,
        })
    }

    fn choose(&self, purpose: u64, queue_pair: u32, message: u64) -> u64 {
        choose(self.seed, [purpose, u64::from(queue_pair), message])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_node_and_adapter() {
        let list = "seed=7, hwsim0:port-down,node1/*:delay=5,hwsim1:qp-error-after=3:0x99";
        let of = |node, name| AdapterFaults::new(node, name, &[], list).unwrap();
        assert!(of(0, "hwsim0").port_down_at_start());
        assert_eq!(of(0, "hwsim1").at_message(0, 0, 3), Verdict::Fail { code: 0x99 });
        assert_eq!(of(0, "hwsim1").at_message(0, 0, 2), Verdict::Send);
        assert_eq!(of(1, "hwsim0").faults.len(), 2);
        let flaps = AdapterFaults::new(0, "a", &[], "a:port-flap=2:70,a:reset-at=5").unwrap();
        let of_flaps: Vec<_> = (0..6).map(|message| flaps.at_message(message, 0, 0)).collect();
        let flap = Verdict::Flap(Duration::from_micros(70));
        let send = Verdict::Send;
        assert_eq!(of_flaps, [send, send, flap, send, send, Verdict::Reset]);
        for wrong in [
            "seed=x",
            "port-down",
            "a:port-flap=3",
            "a:reset-at",
            "hwsim0:nonsense",
            "nodex/a:port-down",
            "a:delay",
        ] {
            let error = AdapterFaults::new(0, "hwsim0", &[], wrong).unwrap_err();
            assert!(error.contains("expected") && error.contains("found"), "{error}");
        }
    }

    /// If this fails, a number in a list ends the program, or holds messages back for no time.
    #[test]
    fn times_beyond_a_day_are_refused() {
        let most = u64::MAX.to_string();
        for time in [most.as_str(), "86400000001", "0xffffffffffffffff", "18446744073709551616"] {
            for fault in ["delay", "reorder"] {
                let list = format!("a:{fault}={time}");
                let error = AdapterFaults::new(0, "a", &[], &list).unwrap_err();
                assert!(error.contains("up to a day") && error.contains(time), "{error}");
            }
        }
        assert!(AdapterFaults::new(0, "a", &[], "a:qp-error-after=1:0x100000000").is_err());
        let day = "a:delay=86400000000,a:reorder=86400000000,a:delay=86400000000";
        let faults = AdapterFaults::new(0, "a", &[], day).unwrap();
        for message in 0..64 {
            let _ = faults.at_message(0, 0, message);
        }
    }

    /// If this fails, a seed no longer repeats an earlier failure.
    #[test]
    fn the_same_seed_makes_the_same_choices() {
        let of =
            |seed| AdapterFaults::new(0, "a", &[], &format!("seed={seed},a:reorder=9")).unwrap();
        let verdicts = |seed| -> Vec<_> {
            (0..64).map(|message| of(seed).at_message(0, 0, message)).collect()
        };
        assert_eq!(verdicts(1), verdicts(1));
        assert_ne!(verdicts(1), verdicts(2));
        let held = verdicts(1).iter().filter(|verdict| **verdict != Verdict::Send).count();
        assert!((16..48).contains(&held), "about half of 64, not {held}");
    }
}
