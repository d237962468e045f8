//! The constants of a kind of machine, each with its unit and its source.
//!
//! A profile is a TOML file: `name`, `summary`, and for each constant a line
//! `NAME = { value = 1.5, unit = "us", source = "where it comes from" }`. All constants are
//! there, and no others: a file with a missing, an unknown or an impossible one is refused with the
//! reason.

use crate::error::{Error, Result};
use crate::topology::ranks::RankGpu;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Units, and what one of them is in µs, bytes a µs, or as it is.
const UNITS: [(&str, f64); 4] = [("us", 1.0), ("GB/s", 1e3), ("ratio", 1.0), ("count", 1.0)];

/// A line of a profile.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Constant {
    value: f64,
    unit: String,
    source: String,
}

#[derive(Deserialize)]
struct File {
    name: String,
    summary: String,
    #[serde(flatten)]
    constants: BTreeMap<String, toml::Value>,
}

/// Declares the constants: name, unit, meaning.
macro_rules! constants {
    ($($name:ident, $unit:literal, $meaning:literal;)*) => {
        /// The constants of a kind of machine. Times are µs, rates bytes a µs.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Profile {
            /// The profile's name.
            pub name: String,
            /// What it describes.
            pub summary: String,
            $(#[doc = $meaning] pub $name: f64,)*
        }

        /// Name, unit and meaning of each constant.
        pub const CONSTANTS: &[(&str, &str, &str)] = &[$((stringify!($name), $unit, $meaning),)*];

        impl Profile {
            fn of(mut file: File) -> Result<Self, String> {
                let profile = Self {
                    $($name: constant(&mut file.constants, stringify!($name), $unit)?,)*
                    name: file.name,
                    summary: file.summary,
                };
                match file.constants.keys().next() {
                    Some(name) => Err(format!("`{name}` is no constant of a profile")),
                    None => Ok(profile),
                }
            }

            /// The value of a constant, in its unit.
            pub fn value(&self, name: &str) -> Option<f64> {
                let of = |unit: &str, value: f64| value / scale(unit).unwrap_or(1.0);
                $(if name == stringify!($name) { return Some(of($unit, self.$name)); })*
                None
            }
        }
    };
}

constants! {
    launch, "us", "From the call until the first block runs";
    stagger, "us", "From the start of one block of a GPU to that of the next";
    op, "us", "A pass of a block (copy, reduction, packing), beside its bytes";
    step, "us", "A wait that is already over, or a signal that a block raises itself";
    doorbell, "us", "A block's store into a doorbell ring";
    copy, "GB/s", "What one block copies";
    reduce, "GB/s", "What one block reduces";
    memory, "GB/s", "What all blocks of a GPU copy together";
    proxy_doorbell, "us", "From a doorbell's store until the proxy sees it";
    descriptor, "us", "The proxy's time for a descriptor";
    submit, "us", "The proxy's time for a copy within the node: a driver call";
    copy_setup, "us", "From submission until a copy engine moves the first byte";
    copy_engines, "count", "Copies of one GPU at the same time";
    completion, "us", "From the last byte until the proxy knows that a copy has ended";
    signal, "us", "From the proxy's signal until the GPU sees it";
    device_doorbell, "us", "From a doorbell's store until the device engine sees it";
    decode, "us", "The device engine's time for a descriptor";
    device_signal, "us", "Fetch, link and signal of a device engine, beside the bytes";
    store_block, "GB/s", "What one block stores into a peer's memory";
    store_latency, "us", "From a store into a peer's memory until the peer sees it";
    nvlink_efficiency, "ratio", "What an NVLink carries of its data sheet's rate";
    nvlink_latency, "us", "One NVLink, or a port of an NVSwitch";
    pcie_efficiency, "ratio", "What a PCI link carries of its rate";
    pcie_latency, "us", "One PCI link";
    cpu_efficiency, "ratio", "What the links between sockets carry of their rate";
    cpu_latency, "us", "From socket to socket";
    network_efficiency, "ratio", "What an adapter carries of its rate";
    network_latency, "us", "An adapter's port and half of the network";
    post, "us", "The proxy's time to post a message to an adapter";
    message, "us", "The adapter's time for a message";
    fetch, "us", "Until the adapter has the first byte of a message";
    adapter_signal, "us", "From the last byte over the network until the GPU sees the signal";
}

fn scale(unit: &str) -> Option<f64> {
    UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale)
}

/// The values that a constant of this unit may have. Rates and ratios divide; times may be nothing.
pub fn permitted(unit: &str) -> RangeInclusive<f64> {
    let least = if unit == "us" { 0.0 } else { 1e-3 };
    let most = if unit == "ratio" { 1.0 } else { 1e6 };
    least..=most
}

fn constant(
    constants: &mut BTreeMap<String, toml::Value>,
    name: &str,
    unit: &str,
) -> Result<f64, String> {
    let found = constants.remove(name).ok_or_else(|| format!("`{name}` is missing"))?;
    let found: Constant =
        found.try_into().map_err(|error| format!("`{name}`: {}", error.message()))?;
    if found.unit != unit {
        return Err(format!("unit of `{name}`: expected {unit:?}, but saw {:?}", found.unit));
    }
    if found.source.trim().is_empty() {
        return Err(format!("`{name}` has no source"));
    }
    let permitted = permitted(unit);
    match permitted.contains(&found.value) {
        true => Ok(found.value * scale(unit).unwrap_or(1.0)),
        false => {
            let (least, most, seen) = (permitted.start(), permitted.end(), found.value);
            Err(format!("value of `{name}`: expected {least} to {most} {unit}, but saw {seen}"))
        }
    }
}

/// Built-in profiles.
const FILES: [(&str, &str); 5] = [
    ("v100", include_str!("profiles/v100.toml")),
    ("a100", include_str!("profiles/a100.toml")),
    ("h100", include_str!("profiles/h100.toml")),
    ("pcie4", include_str!("profiles/pcie4.toml")),
    ("pcie5", include_str!("profiles/pcie5.toml")),
];

impl Profile {
    /// Names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FILES.iter().map(|(name, _)| *name)
    }

    /// The built-in profile of this name.
    ///
    /// # Errors
    /// [`Error::Argument`] names those that there are.
    pub fn built_in(name: &str) -> Result<Self> {
        let Some((_, text)) = FILES.iter().find(|(other, _)| *other == name) else {
            let known = Self::names().collect::<Vec<_>>().join(" ");
            return Err(Error::argument("profile", format!("one of {known}, or a file"), name));
        };
        Self::parse(name, text)
    }

    /// The profile that a file's text describes; `place` is the file's name.
    ///
    /// # Errors
    /// [`Error::Argument`] with file and reason (with the line, where it is no TOML).
    pub fn parse(place: &str, text: &str) -> Result<Self> {
        let refused = |reason: String| {
            let what = format!("profile {place}");
            Error::argument(&what, "all constants, each with value, unit and source", reason)
        };
        let file: File = toml::from_str(text).map_err(|error| refused(error.to_string()))?;
        Self::of(file).map_err(refused)
    }

    /// The profile for machines with such a GPU, by its compute capability, and for others by the
    /// rate of its PCI link.
    pub fn for_gpu(gpu: &RankGpu) -> &'static str {
        match (gpu.compute, gpu.nvlinks.is_empty()) {
            (70..80, _) => "v100",
            (80, false) => "a100",
            (90..110, false) => "h100",
            _ if gpu.pcie_megabytes > 40_000 => "pcie5",
            _ => "pcie4",
        }
    }

    /// What a block does in a pass that reads so many sources and writes so many destinations:
    /// bytes of one of them, a µs. A copy has one of each, a reduction one source more; what a
    /// source and a destination cost follows from these two.
    pub(super) fn pass(&self, sources: u32, destinations: u32) -> f64 {
        let (copy, reduce) = (1.0 / self.copy, 1.0 / self.reduce);
        let read = (reduce - copy).clamp(0.0, copy);
        let write = copy - read;
        match (sources, destinations) {
            (1, 1) => self.copy,
            (2, 1) => self.reduce,
            _ => 1.0 / (f64::from(sources) * read + f64::from(destinations) * write),
        }
    }

    /// From a doorbell's store until an engine sees it.
    pub(super) fn doorbell_latency(&self, by_device: bool) -> f64 {
        if by_device { self.device_doorbell } else { self.proxy_doorbell }
    }

    /// From a transfer's last byte until its signals are seen: on a node, and between nodes.
    pub(super) fn signal_latency(&self, by_device: bool) -> (f64, f64) {
        match by_device {
            true => (self.device_signal, self.device_signal),
            false => (self.completion + self.signal, self.adapter_signal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a profile that users get has a hole in it.
    #[test]
    fn built_in_profiles_have_every_constant() {
        for name in Profile::names() {
            let profile = Profile::built_in(name).unwrap();
            assert_eq!(profile.name, name);
            for (constant, _, _) in CONSTANTS {
                assert!(profile.value(constant).is_some(), "{name}: {constant}");
            }
        }
    }

    /// If this fails, a mistake in a user's file is taken for a constant.
    #[test]
    fn files_that_are_no_profiles_are_refused_with_the_reason() {
        let good = FILES[0].1;
        let line = |name: &str| {
            good.lines().find(|line| line.starts_with(&format!("{name} ="))).unwrap().to_owned()
        };
        let refused = |text: &str, part: &str| {
            let error = Profile::parse("mine.toml", text).unwrap_err().to_string();
            assert!(error.contains("mine.toml") && error.contains(part), "{error}");
        };
        refused(&good.replace(&line("submit"), ""), "`submit` is missing");
        refused(&format!("{good}\n{}", line("submit").replace("submit", "other")), "`other` is no");
        refused(&good.replace(&line("submit"), "submit = 2.5"), "submit");
        let submit = line("submit");
        refused(&good.replace(&submit, &submit.replace("\"us\"", "\"ms\"")), "unit of `submit`");
        let value = submit.split("value = ").nth(1).unwrap().split(',').next().unwrap();
        refused(&good.replace(&submit, &submit.replace(value, "-1.0")), "value of `submit`");
        refused(&good.replace(&submit, &submit.replace(value, "nan")), "value of `submit`");
        refused("name = ", "line 1");
    }
}
