//! Where devices hang in the PCI tree, as Linux shows it in sysfs.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Address of a PCI function: `domain:bus:device.function`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PciAddress {
    /// Domain (segment); more than 16 bits behind some bridges.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = ();

    /// Reads `0000:3b:00.0`; the case of the digits and the length of the domain do not matter, as
    /// CUDA, NVML and sysfs do not agree on them.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (rest, function) = text.trim().rsplit_once('.').ok_or(())?;
        let mut parts = rest.splitn(3, ':').map(|part| u32::from_str_radix(part, 16).ok());
        let mut next = || parts.next().flatten().ok_or(());
        let (domain, bus, device) = (next()?, next()?, next()?);
        let function: u8 = function.parse().map_err(drop)?;
        let bus = u8::try_from(bus).map_err(drop)?;
        let device = u8::try_from(device).map_err(drop)?;
        if device > 31 || function > 7 {
            return Err(());
        }
        Ok(Self { domain, bus, device, function })
    }
}

/// The functions and bridges from the root of the tree down to a device: `pci0000:3a`,
/// `0000:3a:00.0`, `0000:3b:00.0`. Empty if it is not a PCI device.
pub fn path_of(device_folder: &Path) -> Vec<String> {
    let Ok(real) = device_folder.canonicalize() else { return Vec::new() };
    let parts = real.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    let from_root: Vec<String> = parts.skip_while(|part| !part.starts_with("pci")).collect();
    let known = |part: &String| part.starts_with("pci") || part.parse::<PciAddress>().is_ok();
    from_root.into_iter().take_while(known).collect()
}

/// The folder of a PCI function. `sysfs` is where sysfs is mounted.
pub fn folder_of(sysfs: &Path, address: PciAddress) -> PathBuf {
    sysfs.join("bus/pci/devices").join(address.to_string())
}

/// The NUMA node of a device, where Linux knows it.
pub fn numa_of(device_folder: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(device_folder.join("numa_node")).ok()?;
    // -1 says that there is none.
    text.trim().parse().ok()
}

/// Bridges that two devices have in common: the more, the nearer. Two that share only the root
/// complex have 1, two under different ones 0.
pub fn common(one: &[String], other: &[String]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_the_forms_of_cuda_nvml_and_sysfs() {
        let expected = PciAddress { domain: 0, bus: 0x3b, device: 0, function: 0 };
        for text in ["0000:3b:00.0", "00000000:3B:00.0", " 0000:3b:00.0\n"] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "3b:00.0", "0000:3b:20.0", "0000:3b:00.8", "0000:1ff:00.0", "x:y:z.0"] {
            assert_eq!(text.parse::<PciAddress>(), Err(()), "{text}");
        }
    }

    #[test]
    fn the_way_to_a_device_is_read_through_links() {
        let sysfs = tempfile::tempdir().unwrap();
        let function = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
        let folder = sysfs.path().join(function);
        std::fs::create_dir_all(folder.join("infiniband/mlx5_0")).unwrap();
        std::fs::create_dir_all(sysfs.path().join("bus/pci/devices")).unwrap();
        let link = sysfs.path().join("bus/pci/devices/0000:3b:00.0");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        std::fs::write(folder.join("numa_node"), "1\n").unwrap();

        let address = "0000:3b:00.0".parse().unwrap();
        let expected = ["pci0000:3a", "0000:3a:00.0", "0000:3b:00.0"];
        assert_eq!(path_of(&folder_of(sysfs.path(), address)), expected);
        assert_eq!(path_of(&folder.join("infiniband/mlx5_0")), expected);
        assert_eq!(numa_of(&link), Some(1));
        assert_eq!(path_of(Path::new("/nowhere")), Vec::<String>::new());
    }
}
