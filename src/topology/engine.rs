//! Device engines: PCI functions that drain doorbell rings, as sysfs shows them.
//!
//! A function is taken for one if its class and numbers say so; whether it truly is one only its
//! first page shows, which `engine::device` reads.

use super::choice::PciLocation;
use super::pci::{self, PciAddress};
use crate::error::{Error, Result};
use crate::id::PciId;
use ringdove_kernels::bar::{PCI_CLASS, PCI_DEVICE_VIRTUAL, PCI_VENDOR_VIRTUAL};
use std::cmp::Reverse;
use std::path::{Path, PathBuf};

/// A PCI function that should be a device engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFunction {
    /// Its bus id.
    pub address: PciAddress,
    /// Vendor and device.
    pub id: PciId,
    /// The file that is its first BAR.
    pub resource: PathBuf,
    /// Where it is attached.
    pub location: PciLocation,
}

/// PCI ids of virtual engines.
const VIRTUAL: PciId = PciId { vendor: PCI_VENDOR_VIRTUAL, device: PCI_DEVICE_VIRTUAL };

/// Every function below `sysfs` with the class of device engines that is virtual or has one of
/// `ids`, in the order of their addresses. What cannot be read counts as not there.
pub fn read(sysfs: &Path, ids: &[PciId]) -> Vec<EngineFunction> {
    let entries = std::fs::read_dir(sysfs.join("bus/pci/devices")).into_iter().flatten().flatten();
    let addresses = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<_> =
        addresses.filter_map(|address: PciAddress| function(sysfs, address, ids)).collect();
    found.sort_by_key(|function| {
        let PciAddress { domain, bus, device, function } = function.address;
        (domain, bus, device, function)
    });
    found
}

fn function(sysfs: &Path, address: PciAddress, ids: &[PciId]) -> Option<EngineFunction> {
    let folder = pci::folder_of(sysfs, address);
    let number = |file: &str| {
        let text = std::fs::read_to_string(folder.join(file)).ok()?;
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    let half = |file| u16::try_from(number(file)?).ok();
    let id = PciId { vendor: half("vendor")?, device: half("device")? };
    let wanted = number("class")? == PCI_CLASS && (id == VIRTUAL || ids.contains(&id));
    wanted.then(|| EngineFunction {
        address,
        id,
        resource: folder.join("resource0"),
        location: PciLocation::of(sysfs, address),
    })
}

/// Which of `functions` rank number `ordinal` of a node should try, best first: the one that
/// `wanted` names for it, or all, those nearest to its GPU first. Ranks with equal choices begin at
/// different ones.
///
/// # Errors
/// [`Error::NotFound`] where there is none, or not the one that is asked for.
pub fn candidates<'a>(
    functions: &'a [EngineFunction],
    gpu: &PciLocation,
    ordinal: usize,
    wanted: &[String],
) -> Result<Vec<&'a EngineFunction>> {
    if !wanted.is_empty() {
        let name = &wanted[ordinal % wanted.len()];
        let named = functions.iter().find(|function| function.address.to_string() == *name);
        return named.map(|function| vec![function]).ok_or_else(|| Error::NotFound {
            wanted: format!("device engine {name}, which RINGDOVE_ENGINE_DEVICE asks for"),
            looked_for: seen(functions),
            advice: ADVICE.into(),
        });
    }
    if functions.is_empty() {
        return Err(Error::NotFound {
            wanted: "device engine".into(),
            looked_for: seen(functions),
            advice: ADVICE.into(),
        });
    }
    let mut sorted: Vec<_> = functions.iter().collect();
    sorted.sort_by_key(|function| Reverse(nearness(function, gpu)));
    let best = nearness(sorted[0], gpu);
    let equals = sorted.iter().take_while(|function| nearness(function, gpu) == best).count();
    sorted[..equals].rotate_left(ordinal % equals);
    Ok(sorted)
}

const ADVICE: &str = "load the engine's driver, name a maker's numbers in RINGDOVE_ENGINE_IDS, or \
                      use RINGDOVE_ENGINE=proxy";

/// Bridges in common, then the same NUMA node.
fn nearness(function: &EngineFunction, gpu: &PciLocation) -> (usize, bool) {
    let place = &function.location;
    (pci::common(&place.pci_path, &gpu.pci_path), gpu.numa.is_some() && place.numa == gpu.numa)
}

fn seen(functions: &[EngineFunction]) -> String {
    if functions.is_empty() {
        return format!("PCI functions of class {PCI_CLASS:#08x} in sysfs, found none");
    }
    let names: Vec<_> = functions.iter().map(|function| function.address.to_string()).collect();
    format!("PCI functions in sysfs, found {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A function below `bridge`, as sysfs shows it.
    fn add(root: &Path, bridge: &str, address: &str, class: u32, id: PciId) {
        let folder = root.join("devices").join(bridge).join(address);
        std::fs::create_dir_all(&folder).unwrap();
        for (file, value) in [
            ("class", format!("{class:#08x}")),
            ("vendor", format!("{:#06x}", id.vendor)),
            ("device", format!("{:#06x}", id.device)),
            ("numa_node", "1".to_owned()),
        ] {
            std::fs::write(folder.join(file), format!("{value}\n")).unwrap();
        }
        let links = root.join("bus/pci/devices");
        std::fs::create_dir_all(&links).unwrap();
        symlink(&folder, links.join(address)).unwrap();
    }

    fn names(found: &[&EngineFunction]) -> Vec<String> {
        found.iter().map(|function| function.address.to_string()).collect()
    }

    const MADE: PciId = PciId { vendor: 0x10ee, device: 0x9038 };

    /// Two switches with an engine each, one engine of a maker, and functions that are none.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let gpu = PciId { vendor: 0x10de, device: 0x1db4 };
        add(root.path(), "pci0000:00/0000:01:00.0", "0000:04:00.0", 0x03_02_00, gpu);
        add(root.path(), "pci0000:00/0000:01:00.0", "0000:05:00.0", PCI_CLASS, VIRTUAL);
        add(root.path(), "pci0000:80/0000:81:00.0", "0000:85:00.0", PCI_CLASS, VIRTUAL);
        add(root.path(), "pci0000:80/0000:81:00.0", "0000:86:00.0", PCI_CLASS, MADE);
        add(root.path(), "pci0000:80/0000:81:00.0", "0000:87:00.0", 0x02_00_00, VIRTUAL);
        root
    }

    #[test]
    fn class_and_ids_distinguish_engines_from_other_functions() {
        let root = tree();
        let found = read(root.path(), &[]);
        assert_eq!(names(&found.iter().collect::<Vec<_>>()), ["0000:05:00.0", "0000:85:00.0"]);
        assert!(found[0].resource.ends_with("0000:05:00.0/resource0"));
        assert_eq!(found[0].location.pci_path.len(), 3);
        let found = read(root.path(), &[MADE]);
        assert_eq!((found.len(), found[2].id), (3, MADE));
        assert!(read(Path::new("/nowhere"), &[]).is_empty());
    }

    #[test]
    fn the_nearest_engine_comes_first_and_equals_take_turns() {
        let root = tree();
        let found = read(root.path(), &[MADE]);
        let near = PciLocation::of(root.path(), "0000:04:00.0".parse().unwrap());
        let first = |place: &PciLocation, ordinal| {
            names(&candidates(&found, place, ordinal, &[]).unwrap())[0].clone()
        };
        assert_eq!(first(&near, 0), "0000:05:00.0");
        assert_eq!(first(&near, 1), "0000:05:00.0");
        let other = PciLocation::of(root.path(), "0000:87:00.0".parse().unwrap());
        assert_eq!([first(&other, 0), first(&other, 1)], ["0000:85:00.0", "0000:86:00.0"]);
    }

    #[test]
    fn a_named_engine_is_the_only_candidate_and_must_exist() {
        let root = tree();
        let found = read(root.path(), &[]);
        let wanted = ["0000:85:00.0".to_owned(), "0000:99:00.0".to_owned()];
        let place = PciLocation::default();
        let chosen = candidates(&found, &place, 2, &wanted).unwrap();
        assert_eq!(names(&chosen), ["0000:85:00.0"]);
        let message = candidates(&found, &place, 1, &wanted).unwrap_err().to_string();
        assert!(message.contains("0000:99:00.0") && message.contains("0000:05:00.0"), "{message}");
        let message = candidates(&[], &place, 0, &[]).unwrap_err().to_string();
        assert!(message.contains("found none") && message.contains("proxy"), "{message}");
    }
}
