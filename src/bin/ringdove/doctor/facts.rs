//! Everything that the report rests on, gathered once. The judgements are pure functions of it.

use super::drivers;
use super::engines::Engine;
use super::host::{self, HostFacts};
use ringdove::bootstrap::{InterfaceChoice, Launch, choose_interface};
use ringdove::gpu::{DeviceFacts, DriverFacts};
use ringdove::settings::{LAUNCH_TABLE, Setting, TABLE};
use ringdove::topology::nvml::Management;
use ringdove::topology::{Adapter, PciAddress, PciLocation, Port, adapter, engine};
use ringdove::transport::verbs::list_ports;
use ringdove::{Error, Settings};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Secrets are never shown, only that they are set.
const SECRET: &str = "RINGDOVE_BOOTSTRAP_SECRET";
/// A variable of the command, not of the library.
const LOG: &str = "RINGDOVE_LOG";

/// The findings.
pub struct Facts {
    pub driver: Result<DriverFacts, Error>,
    pub management: Result<Management, String>,
    pub gpus: Vec<Gpu>,
    pub visible_devices: Option<String>,
    /// Those of [`drivers::VARIABLES`] that are set.
    pub driver_variables: BTreeMap<&'static str, String>,
    pub sysfs: PathBuf,
    pub adapters: Vec<Adapter>,
    /// Ports as the verbs library shows them, and the adapters that it cannot open.
    pub verbs: Result<(Vec<Port>, Vec<String>), Error>,
    pub engines: Vec<Engine>,
    pub host: HostFacts,
    pub settings: Result<Settings, Error>,
    pub sources: Vec<Source>,
    /// Variables that look like settings, but are not.
    pub unknown_settings: Vec<String>,
    pub interface: Result<InterfaceChoice, Error>,
    pub launch: Result<Option<Launch>, Error>,
}

/// A GPU that this process sees.
pub struct Gpu {
    pub device: DeviceFacts,
    pub pci: Option<PciAddress>,
    pub place: PciLocation,
    /// Lanes that its PCI link runs with, and could.
    pub lanes: Option<(u32, u32)>,
    /// How the host's IOMMU treats it, in the kernel's words.
    pub iommu: Option<String>,
}

/// A setting, and where its value comes from.
#[derive(Clone, Debug, Serialize)]
pub struct Source {
    pub name: &'static str,
    pub value: String,
    pub from: &'static str,
}

impl Facts {
    /// Looks everywhere. Nothing is changed, no memory is taken on a GPU.
    pub fn gather() -> Self {
        let environment: BTreeMap<String, String> = std::env::vars_os()
            .map(|(name, value)| {
                (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
            })
            .collect();
        let lookup = |name: &str| environment.get(name).cloned();
        let sysfs = adapter::sysfs();
        let driver = DriverFacts::read();
        let devices = driver.as_ref().map(|driver| driver.devices.as_slice()).unwrap_or_default();
        let settings = Settings::from_lookup(lookup);
        let ids = settings.as_ref().map(|settings| settings.engine_ids.as_slice());
        let engines = engine::read(&sysfs, ids.unwrap_or_default());
        let wanted = settings.as_ref().map(|settings| settings.bootstrap_interface.as_str());
        Self {
            gpus: devices.iter().map(|device| gpu(&sysfs, device)).collect(),
            management: Management::read(),
            visible_devices: lookup("CUDA_VISIBLE_DEVICES"),
            driver_variables: drivers::VARIABLES
                .iter()
                .filter_map(|&name| Some((name, lookup(name)?)))
                .collect(),
            adapters: adapter::read(&sysfs),
            verbs: list_ports(),
            engines: engines.into_iter().map(Engine::look_at).collect(),
            host: host::read(Path::new("/"), &sysfs),
            interface: choose_interface(wanted.unwrap_or_default()),
            launch: Launch::from_lookup(lookup),
            sources: sources(lookup),
            unknown_settings: unknown(&environment),
            driver,
            sysfs,
            settings,
        }
    }

    /// Whether this process is one of a job on several nodes, as far as its launcher says.
    pub fn several_nodes(&self) -> bool {
        let launch = self.launch.as_ref().ok().and_then(Option::as_ref);
        launch.is_some_and(|launch| launch.local_count.is_some_and(|n| n < launch.rank_count))
    }

    /// The ports among which a transport chooses: those of the verbs library if it can be asked.
    pub fn ports(&self) -> Vec<Port> {
        match &self.verbs {
            Ok((ports, _)) if !ports.is_empty() => ports.clone(),
            _ => self.adapters.iter().flat_map(|adapter| adapter.ports.clone()).collect(),
        }
    }
}

fn gpu(sysfs: &Path, device: &DeviceFacts) -> Gpu {
    let pci: Option<PciAddress> = device.pci.parse().ok();
    let folder = sysfs.join("bus/pci/devices").join(&device.pci);
    Gpu {
        device: device.clone(),
        pci,
        place: pci.map(|pci| PciLocation::of(sysfs, pci)).unwrap_or_default(),
        lanes: lanes(&folder),
        iommu: host::word(&folder.join("iommu_group/type")),
    }
}

/// Lanes that a PCI function's link runs with, and could.
pub fn lanes(folder: &Path) -> Option<(u32, u32)> {
    let number = |file: &str| host::word(&folder.join(file))?.parse().ok();
    let (now, most) = (number("current_link_width")?, number("max_link_width")?);
    // Links of virtual machines say 0 or nonsense.
    (now > 0 && most > 0 && most <= 32).then_some((now, most))
}

/// Every setting with its value. What is set to nothing counts as not set.
fn sources(lookup: impl Fn(&str) -> Option<String>) -> Vec<Source> {
    let source = |&Setting { name, default, .. }: &Setting| match lookup(name) {
        Some(_) if name == SECRET => {
            Source { name, value: "(set, not shown)".into(), from: "environment" }
        }
        Some(value) => Source { name, value, from: "environment" },
        None => Source { name, value: default.to_owned(), from: "default" },
    };
    TABLE.iter().chain(LAUNCH_TABLE).map(source).collect()
}

fn unknown(environment: &BTreeMap<String, String>) -> Vec<String> {
    let known = |name: &&String| {
        name.as_str() == LOG || TABLE.iter().chain(LAUNCH_TABLE).any(|row| row.name == **name)
    };
    let ours = environment.keys().filter(|name| name.starts_with("RINGDOVE_"));
    ours.filter(|name| !known(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_never_shown() {
        let rows = sources(|name| (name == SECRET).then(|| "hush".to_owned()));
        let row = rows.iter().find(|row| row.name == SECRET).expect("it is a setting");
        assert_eq!(row.from, "environment");
        assert!(rows.iter().all(|row| !row.value.contains("hush")));
    }

    #[test]
    fn misspelt_settings_are_found() {
        let name = |name: &str| (name.to_owned(), String::new());
        let set = ["RINGDOVE_SLOTS", "RINGDOVE_SLTS", "RINGDOVE_LOG", "RINGDOVE_RANK", "PATH"];
        let environment = set.into_iter().map(name).collect();
        assert_eq!(unknown(&environment), ["RINGDOVE_SLTS"]);
    }
}
