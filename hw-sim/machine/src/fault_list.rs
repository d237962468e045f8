//! Lists of faults, as `HWSIM_FAULTS` has them: a seed, and faults of devices by name.
//!
//! `seed=7,hwsim0:port-down,*:delay=200`; `node1/hwsim0:port-down` is for one node. Adapters and
//! device engines share one list and have faults of their own kinds: each takes what bears its name
//! and is of its kind. An entry that is of no kind is an error whoever reads it.

/// The environment variable with faults for all processes of a run.
pub const FAULTS_VARIABLE: &str = "HWSIM_FAULTS";

/// What is told to one device, in its machine file and by a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told<F> {
    pub seed: u64,
    pub faults: Vec<F>,
}

/// The faults of the device of this name on this node: those of its machine file, and behind them
/// those of a list. `parse` reads a fault of its kind.
pub(crate) fn of_device<F>(
    of_file: &[String],
    list: &str,
    node: u32,
    name: &str,
    parse: impl Fn(&str) -> Result<F, String>,
) -> Result<Told<F>, String> {
    let faults = of_file.iter().map(|fault| parse(fault)).collect::<Result<_, _>>()?;
    let mut told = Told { seed: 0, faults };
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let wrong = || format!("expected seed=NUMBER or DEVICE:FAULT, found `{entry}`");
        if let Some(seed) = entry.strip_prefix("seed=") {
            told.seed = seed.parse().map_err(|_| wrong())?;
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
        match parse(fault) {
            Ok(fault) if meant && (device == "*" || device == name) => told.faults.push(fault),
            Ok(_) => {}
            // Another kind's, and not for us alone.
            Err(_) if device != name && is_known(fault) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(told)
}

/// Is it a fault of any kind of device?
fn is_known(fault: &str) -> bool {
    crate::adapter::fault::check(fault).is_ok() || crate::engine::fault::check(fault).is_ok()
}

/// The number after the sign of equality: decimal, or hexadecimal after `0x`.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The most microseconds that a fault may hold something back: a day. Sums of longer times could be
/// more than clocks can tell.
const TIME_MAX: u64 = 24 * 60 * 60 * 1_000_000;

/// A time after the sign of equality, in microseconds.
pub(crate) fn time(text: &str) -> Option<u64> {
    number(text).filter(|time| *time <= TIME_MAX)
}

/// A number that depends on the seed and on these, and on nothing else.
pub(crate) fn choose(seed: u64, parts: [u64; 3]) -> u64 {
    // The finaliser of SplitMix64 over all of them.
    let mut value = seed;
    for part in parts {
        value = value.wrapping_add(part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^= value >> 31;
    }
    value
}
