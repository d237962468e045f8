//! What a user can choose about adapters and connections.

use std::str::FromStr;
use std::time::Duration;

/// Settings of the verbs transport. [`Settings`](crate::Settings) reads them from the environment.
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
}

impl Default for VerbsSettings {
    fn default() -> Self {
        Self {
            adapter: None,
            gid_index: None,
            queue_pairs: 2,
            queue_depth: 256,
            retry_timeout: Duration::from_secs(10),
            traffic_class: 0,
            service_level: 0,
        }
    }
}

/// Retries of an unacknowledged packet. The field has three bits, and 7 is a number like others in
/// the specification; SoftRoCE takes it for "for ever" all the same, and every wait must end (R10).
pub(super) const RETRIES: u8 = 6;

impl VerbsSettings {
    /// The exponent of an adapter's acknowledgement timeout, 4.096 µs · 2^n, with which all tries
    /// together last at least `retry_timeout` (and at most twice as long, by the specification:
    /// adapters may wait up to four times what they are told).
    pub(super) fn timeout_exponent(&self) -> u8 {
        let each_ns = self.retry_timeout.as_nanos() / u128::from(RETRIES + 1);
        let units = each_ns.div_ceil(4096).max(1);
        // 5 bits; 0 would mean for ever.
        (units.next_power_of_two().trailing_zeros() as u8).clamp(1, 31)
    }
}

/// An adapter, and perhaps a port: `mlx5_0` or `mlx5_0:2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterName {
    /// As `ibv_devices` lists it.
    pub name: String,
    /// From 1.
    pub port: Option<u8>,
}

impl FromStr for AdapterName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (name, port) = match text.trim().split_once(':') {
            Some((name, port)) => {
                let port: u8 = port.parse().map_err(drop)?;
                (name, Some(port).filter(|port| *port > 0).ok_or(())?.into())
            }
            None => (text.trim(), None),
        };
        let valid = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        valid.then(|| Self { name: name.to_owned(), port }).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapter_names_are_read_with_and_without_port() {
        let name = |text: &str| text.parse::<AdapterName>().ok().map(|n| (n.name, n.port));
        assert_eq!(name("mlx5_0"), Some(("mlx5_0".into(), None)));
        assert_eq!(name("mlx5_0:2"), Some(("mlx5_0".into(), Some(2))));
        for bad in ["", ":1", "mlx5_0:0", "mlx5_0:x", "a/b", "mlx5_0:300"] {
            assert_eq!(name(bad), None, "{bad}");
        }
    }

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
