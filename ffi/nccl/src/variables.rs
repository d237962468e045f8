//! `NCCL_*` variables that mean the same here, as settings. A variable of ringdove's own wins.

use crate::result::Result;
use ringdove::Settings;
use std::env;
use std::sync::Once;

/// Variables with a meaning here.
const KNOWN: [&str; 6] = [
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_TC",
    "NCCL_IB_SL",
];

/// The settings of this process.
pub fn settings() -> Result<Settings> {
    let mut settings = Settings::from_env()?;
    apply(&mut settings, |name| env::var(name).ok().filter(|value| !value.is_empty()));
    Ok(settings)
}

fn apply(settings: &mut Settings, lookup: impl Fn(&str) -> Option<String>) {
    let given = |nccl: &str, own: &str| lookup(nccl).filter(|_| lookup(own).is_none());
    if let Some(names) = given("NCCL_SOCKET_IFNAME", "RINGDOVE_BOOTSTRAP_INTERFACE") {
        match interfaces(&names) {
            Some(wanted) => settings.bootstrap_interface = wanted,
            None => unused("NCCL_SOCKET_IFNAME", &names, "interfaces that are not to be used"),
        }
    }
    if let Some(name) = given("NCCL_IB_HCA", "RINGDOVE_ADAPTER") {
        match name.trim_start_matches('=').parse() {
            Ok(adapter) if !name.contains([',', '^']) => settings.adapter = Some(adapter),
            _ => unused("NCCL_IB_HCA", &name, "more than one adapter, or those not to be used"),
        }
    }
    let number = |nccl: &str, own: &str| {
        let text = given(nccl, own)?;
        let number = text.parse::<u8>();
        number.map_err(|_| unused(nccl, &text, "other values than 0 to 255")).ok()
    };
    if let Some(index) = number("NCCL_IB_GID_INDEX", "RINGDOVE_GID_INDEX") {
        settings.gid_index = Some(index);
    }
    if let Some(class) = number("NCCL_IB_TC", "RINGDOVE_TRAFFIC_CLASS") {
        settings.traffic_class = class;
    }
    if let Some(level) = number("NCCL_IB_SL", "RINGDOVE_SERVICE_LEVEL") {
        settings.service_level = level;
    }
}

/// NCCL's list of interfaces as ringdove has it: there a name is a beginning unless the list
/// starts with `=`, here it is one if it ends in `*`. `None` for a list of exclusions.
fn interfaces(names: &str) -> Option<String> {
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

fn unused(name: &str, value: &str, what: &str) {
    tracing::warn!(name, value, "not used: {what} cannot be expressed as a setting of ringdove");
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
            if !KNOWN.contains(&name.as_str()) {
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
        let both = [("NCCL_IB_GID_INDEX", "3"), ("RINGDOVE_GID_INDEX", "1")];
        assert_eq!(with(&both[..1]).gid_index, Some(3));
        assert_eq!(with(&both).gid_index, None, "ringdove's own variable wins");
        assert_eq!(with(&[("NCCL_IB_HCA", "=mlx5_0:1")]).adapter.unwrap().port, Some(1));
        assert_eq!(with(&[("NCCL_IB_HCA", "mlx5_0,mlx5_1")]).adapter, None);
        assert_eq!(with(&[("NCCL_IB_TC", "106")]).traffic_class, 106);
    }
}
