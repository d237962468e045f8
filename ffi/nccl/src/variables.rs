//! `NCCL_*` variables that mean the same here, as settings. A variable of ringdove's own wins.

use crate::result::Result;
use ringdove::{Settings, ThroughHost};
use std::env;
use std::sync::Once;

/// A variable that means the same here.
struct Meaning {
    nccl: &'static str,
    /// Ringdove's own, which wins.
    own: &'static str,
    /// Sets what the value says. An error names the part that no setting of ringdove can express.
    apply: fn(&mut Settings, &str) -> std::result::Result<(), &'static str>,
}

const MEANINGS: [Meaning; 8] = [
    Meaning {
        nccl: "NCCL_SOCKET_IFNAME",
        own: "RINGDOVE_BOOTSTRAP_INTERFACE",
        apply: |settings, names| {
            settings.bootstrap_interface =
                interfaces(names).ok_or("interfaces that are not to be used")?;
            Ok(())
        },
    },
    Meaning {
        nccl: "NCCL_HOSTID",
        own: "RINGDOVE_HOST_ID",
        apply: |settings, name| {
            settings.host_id = name.to_owned();
            Ok(())
        },
    },
    Meaning {
        nccl: "NCCL_P2P_DISABLE",
        own: "RINGDOVE_THROUGH_HOST",
        apply: |settings, value| {
            match value {
                "0" => {}
                "1" => settings.through_host = ThroughHost::Always,
                _ => return Err("another value than 0 and 1"),
            }
            Ok(())
        },
    },
    Meaning {
        nccl: "NCCL_IB_HCA",
        own: "RINGDOVE_ADAPTER",
        apply: |settings, name| match name.trim_start_matches('=').parse() {
            Ok(adapter) if !name.contains([',', '^']) => {
                settings.adapter = Some(adapter);
                Ok(())
            }
            _ => Err("more than one adapter, or those not to be used,"),
        },
    },
    Meaning {
        nccl: "NCCL_IB_GID_INDEX",
        own: "RINGDOVE_GID_INDEX",
        apply: |settings, value| number(value).map(|index| settings.gid_index = Some(index)),
    },
    Meaning {
        nccl: "NCCL_IB_TC",
        own: "RINGDOVE_TRAFFIC_CLASS",
        apply: |settings, value| number(value).map(|class| settings.traffic_class = class),
    },
    Meaning {
        nccl: "NCCL_IB_SL",
        own: "RINGDOVE_SERVICE_LEVEL",
        apply: |settings, value| match number(value)? {
            level @ 0..=15 => {
                settings.service_level = level;
                Ok(())
            }
            _ => Err("more than 15"),
        },
    },
    Meaning {
        nccl: "NCCL_IB_QPS_PER_CONNECTION",
        own: "RINGDOVE_QUEUE_PAIRS",
        apply: |settings, value| match number(value)? {
            count @ 1..=16 => {
                settings.queue_pairs = count.into();
                Ok(())
            }
            _ => Err("another number than 1 to 16"),
        },
    },
];

/// The settings of this process.
pub fn settings() -> Result<Settings> {
    let mut settings = Settings::from_env()?;
    apply(&mut settings, |name| env::var(name).ok().filter(|value| !value.is_empty()));
    Ok(settings)
}

fn apply(settings: &mut Settings, lookup: impl Fn(&str) -> Option<String>) {
    for Meaning { nccl, own, apply } in MEANINGS {
        let Some(value) = lookup(nccl).filter(|_| lookup(own).is_none()) else { continue };
        if let Err(what) = apply(settings, &value) {
            tracing::warn!(
                name = nccl,
                value,
                "not used: {what} cannot be expressed as a setting of ringdove"
            );
        }
    }
}

fn number(text: &str) -> std::result::Result<u8, &'static str> {
    text.parse().map_err(|_| "another value than 0 to 255")
}

/// NCCL's list of interfaces as ringdove has it: there a name is a beginning unless the list
/// starts with `=`, here it is one if it ends in `*`. `None` for a list of exclusions.
fn interfaces(names: &str) -> Option<String> {
    let names = names.trim();
    if names.starts_with('^') {
        return None;
    }
    let (names, end) = match names.strip_prefix('=') {
        Some(names) => (names, ""),
        None => (names, "*"),
    };
    let names: Vec<_> = names.split(',').map(|name| format!("{}{end}", name.trim())).collect();
    Some(names.join(","))
}

/// Shows messages on standard error as `NCCL_DEBUG` asks, once a process, and names the variables
/// that mean nothing here.
pub fn start_log() {
    static START: Once = Once::new();
    START.call_once(|| {
        let level = match env::var("NCCL_DEBUG").unwrap_or_default().to_uppercase().as_str() {
            "WARN" => tracing::Level::WARN,
            "INFO" | "ABORT" => tracing::Level::INFO,
            "TRACE" => tracing::Level::TRACE,
            _ => return,
        };
        let subscriber = tracing_subscriber::fmt().with_max_level(level);
        // A second library of this kind in the process may have come first.
        let _ = subscriber.with_writer(std::io::stderr).try_init();
        for (name, _) in env::vars().filter(|(name, _)| name.starts_with("NCCL_")) {
            if !["NCCL_DEBUG", "NCCL_COMM_ID"].contains(&&*name)
                && MEANINGS.iter().all(|known| known.nccl != name)
            {
                tracing::info!(name, "has no meaning for ringdove");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        apply(&mut settings, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        });
        settings
    }

    /// If this fails, a cluster's variables are taken for something else.
    #[test]
    fn variables_become_settings() {
        assert_eq!(with(&[("NCCL_SOCKET_IFNAME", "eth,ib0")]).bootstrap_interface, "eth*,ib0*");
        assert_eq!(with(&[("NCCL_SOCKET_IFNAME", "=eth0")]).bootstrap_interface, "eth0");
        assert_eq!(with(&[("NCCL_SOCKET_IFNAME", "^docker")]).bootstrap_interface, "");
        assert_eq!(with(&[("NCCL_SOCKET_IFNAME", " ^docker")]).bootstrap_interface, "");
        let both = [("NCCL_IB_GID_INDEX", "3"), ("RINGDOVE_GID_INDEX", "1")];
        assert_eq!(with(&both[..1]).gid_index, Some(3));
        assert_eq!(with(&both).gid_index, None, "ringdove's own variable wins");
        assert_eq!(with(&[("NCCL_IB_HCA", "=mlx5_0:1")]).adapter.unwrap().port, Some(1));
        assert_eq!(with(&[("NCCL_IB_HCA", "mlx5_0,mlx5_1")]).adapter, None);
        assert_eq!(with(&[("NCCL_IB_TC", "106")]).traffic_class, 106);
        assert_eq!(with(&[("NCCL_IB_SL", "16")]).service_level, 0, "out of range");
        assert_eq!(with(&[("NCCL_HOSTID", "a")]).host_id, "a");
        assert_eq!(with(&[("NCCL_P2P_DISABLE", "1")]).through_host, ThroughHost::Always);
        assert_eq!(with(&[("NCCL_P2P_DISABLE", "0")]).through_host, ThroughHost::Auto);
        assert_eq!(with(&[("NCCL_IB_QPS_PER_CONNECTION", "4")]).queue_pairs, 4);
        let out_of_range = with(&[("NCCL_IB_QPS_PER_CONNECTION", "40")]).queue_pairs;
        assert_eq!(out_of_range, Settings::default().queue_pairs);
    }

    /// If this fails, a value that somebody has set for NCCL ends the program, or becomes a setting
    /// that ringdove's own variable could not have.
    #[test]
    fn any_values_of_variables_are_used_or_left() {
        const PARTS: [&str; 24] = [
            "0",
            "1",
            "15",
            "16",
            "17",
            "255",
            "256",
            "-1",
            "4294967296",
            "",
            " ",
            "=",
            "^",
            ",",
            ":",
            "*",
            "eth",
            "mlx5_",
            "ib",
            ".",
            "\u{e9}",
            "\0",
            "nan",
            "0x10",
        ];
        let seed = env::var("RINGDOVE_FUZZ_SEED").map_or(16, |seed| seed.parse().unwrap());
        let mut random = fastrand::Rng::with_seed(seed);
        let mut used = 0;
        for case in 0..20_000 {
            let variables: Vec<_> = MEANINGS
                .iter()
                .map(|meaning| {
                    let count = random.usize(0..=4);
                    let value: String =
                        (0..count).map(|_| PARTS[random.usize(0..PARTS.len())]).collect();
                    (meaning.nccl, value)
                })
                .collect();
            let given: Vec<_> =
                variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let settings = with(&given);
            let place = format!("RINGDOVE_FUZZ_SEED={seed}, case {case}: {given:?}: {settings:?}");
            assert!(settings.service_level <= 15, "{place}");
            assert!((1..=16).contains(&settings.queue_pairs), "{place}");
            let is_exclusion = variables[0].1.trim().starts_with('^');
            assert!(!is_exclusion || settings.bootstrap_interface.is_empty(), "{place}");
            used += usize::from(settings != Settings::default());
        }
        assert!(used > 10_000, "{used} of them meant anything");
    }
}
