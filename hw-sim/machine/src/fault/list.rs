//! Lists of faults, as `HWSIM_FAULTS` has them: a seed, and faults of devices by name.
//!
//! `seed=7,hwsim0:port-down,*:delay=200`; `node1/hwsim0:port-down` is for one node. Adapters,
//! device engines, GPUs and processes share one list and have faults of their own kinds: each takes
//! what bears its name and is of its kind. An entry that is of no kind is an error whoever reads
//! it.

use super::gpu::GpuFault;
use super::process::ProcessFault;
use super::{AdapterFault, EngineFault};
use std::str::FromStr;

/// The environment variable with faults for all processes of a run.
pub const FAULTS_VARIABLE: &str = "HWSIM_FAULTS";

/// The faults of one device, and the seed of its choices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeviceFaults<F> {
    pub seed: u64,
    pub faults: Vec<F>,
}

/// The faults of the device of this name on this node: those of its machine file, and behind them
/// those of a list.
pub(crate) fn of_device<F: FromStr<Err = String>>(
    of_file: &[String],
    list: &str,
    node: u32,
    name: &str,
) -> Result<DeviceFaults<F>, String> {
    let faults = of_file.iter().map(|fault| fault.parse()).collect::<Result<_, _>>()?;
    let mut found = DeviceFaults { seed: 0, faults };
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let wrong = || format!("expected seed=NUMBER or DEVICE:FAULT, found `{entry}`");
        if let Some(seed) = entry.strip_prefix("seed=") {
            found.seed = seed.parse().map_err(|_| wrong())?;
            continue;
        }
        let (place, fault) = entry.split_once(':').ok_or_else(wrong)?;
        let (of_node, device) = match place.split_once('/') {
            Some((of_node, device)) => {
                let index = of_node.strip_prefix("node").and_then(|text| text.parse::<u32>().ok());
                (Some(index.ok_or_else(wrong)?), device)
            }
            None => (None, place),
        };
        let meant = of_node.is_none_or(|of_node| of_node == node);
        match fault.parse() {
            Ok(fault) if meant && (device == "*" || device == name) => found.faults.push(fault),
            Ok(_) => {}
            // Another kind's, and not for us alone.
            Err(_) if device != name && is_known(fault) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(found)
}

/// Is it a fault of any kind of device?
fn is_known(fault: &str) -> bool {
    fault.parse::<AdapterFault>().is_ok()
        || fault.parse::<EngineFault>().is_ok()
        || fault.parse::<GpuFault>().is_ok()
        || fault.parse::<ProcessFault>().is_ok()
}

/// Is this a list that some device can read? Names of devices are not looked at.
///
/// # Errors
/// The entry that is none, and what was expected.
pub fn check_list(list: &str) -> Result<(), String> {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).try_for_each(|entry| {
        let is_seed = |seed: &str| seed.parse::<u64>().is_ok();
        let known = match (entry.strip_prefix("seed="), entry.split_once(':')) {
            (Some(seed), _) => is_seed(seed),
            (None, Some((_, fault))) => is_known(fault),
            (None, None) => false,
        };
        let expected = "seed=NUMBER, or DEVICE:FAULT with a fault of hw-sim/README.md";
        if known { Ok(()) } else { Err(format!("expected {expected}, found `{entry}`")) }
    })
}

/// Does a list have faults of processes for which their operating system has to be stood in for?
/// Entries that are none are not looked at.
pub fn needs_libc(list: &str) -> bool {
    list.split(',').any(|entry| {
        let fault = entry.split_once(':').and_then(|(_, fault)| fault.trim().parse().ok());
        fault.is_some_and(|fault: ProcessFault| !fault.strikes_calls())
    })
}
