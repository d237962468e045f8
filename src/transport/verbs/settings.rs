//! What a user can choose about adapters and connections.

use crate::id::AdapterName;
use crate::settings::{Settings, VerbsOrder};
use crate::topology::Wanted;
use std::time::Duration;

/// The part of the [`Settings`] that concerns the verbs transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsSettings {
    /// The adapter (and port) to use; the nearest one without.
    pub adapter: Option<AdapterName>,
    /// The GID to use; the best one without.
    pub gid_index: Option<u8>,
    /// Queue pairs of each peer (1 to 16). Lanes are dealt out over them.
    pub queue_pairs: usize,
    /// Work requests that one queue pair holds (16 to 8192).
    pub queue_depth: usize,
    /// How long an adapter repeats what nobody acknowledges before it gives up.
    pub retry_timeout: Duration,
    /// Traffic class of packets (the differentiated services field on RoCE v2).
    pub traffic_class: u8,
    /// Service level, 0 to 15 (the priority on RoCE).
    pub service_level: u8,
    /// How signals go to peers: `Write`, `Immediate` or `Flush`. Whoever connects has asked the
    /// adapters what they promise ([`Endpoint::keeps_order`](super::Endpoint::keeps_order)).
    pub order: VerbsOrder,
}

impl From<&Settings> for VerbsSettings {
    fn from(settings: &Settings) -> Self {
        Self {
            adapter: settings.adapter.clone(),
            gid_index: settings.gid_index,
            queue_pairs: settings.queue_pairs,
            queue_depth: settings.queue_depth,
            retry_timeout: settings.retry_timeout,
            traffic_class: settings.traffic_class,
            service_level: settings.service_level,
            order: match settings.verbs_order {
                VerbsOrder::Auto | VerbsOrder::ForceWrite => VerbsOrder::Write,
                chosen => chosen,
            },
        }
    }
}

impl Default for VerbsSettings {
    fn default() -> Self {
        Self::from(&Settings::default())
    }
}

/// Retries of an unacknowledged packet. The field has three bits, and 7 is a number like others in
/// the specification; SoftRoCE takes it for "for ever" all the same, and every wait must end (R10).
pub(super) const RETRIES: u8 = 6;

impl VerbsSettings {
    /// What was asked for by name.
    pub fn wanted(&self) -> Wanted {
        Wanted { adapter: self.adapter.clone(), gid_index: self.gid_index }
    }

    /// The exponent of an adapter's acknowledgement timeout, 4.096 µs · 2^n, with which all tries
    /// together last at least `retry_timeout` (and at most twice as long, by the specification:
    /// adapters may wait up to four times as long as asked).
    pub(super) fn timeout_exponent(&self) -> u8 {
        let each_ns = self.retry_timeout.as_nanos() / u128::from(RETRIES + 1);
        let units = each_ns.div_ceil(4096).max(1);
        // 5 bits; 0 would mean for ever.
        (units.next_power_of_two().trailing_zeros() as u8).clamp(1, 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_retry_timeout_becomes_an_exponent_that_waits_at_least_as_long() {
        for ms in [1, 100, 1000, 10_000, 600_000] {
            let retry_timeout = Duration::from_millis(ms);
            let settings = VerbsSettings { retry_timeout, ..VerbsSettings::default() };
            let exponent = settings.timeout_exponent();
            let all = Duration::from_nanos(4096 << exponent) * u32::from(RETRIES + 1);
            assert!(all >= retry_timeout, "{ms} ms: exponent {exponent}");
            assert!(all <= retry_timeout * 2 || exponent == 1, "{ms} ms: exponent {exponent}");
        }
    }
}
