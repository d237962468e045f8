//! NVIDIA's management library (NVML): the driver's version, and NVLinks.
//!
//! NVML sees all GPUs of the machine, numbers them its own way, and knows nothing of
//! `CUDA_VISIBLE_DEVICES`; PCI addresses show which of its GPUs is which of CUDA's.

use super::machine::{CLASS_GPU, CLASS_NVSWITCH, NvLinks, nvlinks_between};
use super::pci::PciAddress;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::collections::BTreeMap;

/// NVML numbers the NVLinks of a GPU up to here.
const LINKS_MAX: u32 = 18;

/// The machine, according to the management library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Management {
    /// Version of the kernel driver, such as `550.54.15`.
    pub driver_version: String,
    /// Every GPU of the machine that answers.
    pub gpus: Vec<ManagedGpu>,
    /// For each GPU that does not, its number and NVML's reason.
    pub silent: Vec<(u32, String)>,
}

/// A GPU as the management library sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedGpu {
    /// Its PCI address.
    pub pci: PciAddress,
    /// Its product name.
    pub name: String,
    /// For each NVLink that is up, the function at its other end: a GPU or an NVSwitch.
    pub links: Vec<PciAddress>,
    /// NVLinks that the GPU has and that are not up.
    pub links_down: u32,
    /// Generation of its NVLinks, where it has any.
    pub link_version: Option<u32>,
    /// Compute capability, major and minor; zeros if it does not say.
    pub compute: (u32, u32),
    /// Generation and lanes of its PCI Express link, at most; at rest it may be slower.
    pub pcie: Option<(u32, u32)>,
}

impl Management {
    /// Asks the library.
    ///
    /// # Errors
    /// In words, why the library cannot be asked: for a report, since nothing depends on it.
    pub fn read() -> Result<Self, String> {
        let library = Nvml::init().map_err(|error| match error {
            NvmlError::LibloadingError(_) => {
                "libnvidia-ml.so.1 is not on the library path".to_owned()
            }
            other => other.to_string(),
        })?;
        let words = |error: NvmlError| error.to_string();
        let driver_version = library.sys_driver_version().map_err(words)?;
        let count = library.device_count().map_err(words)?;
        let mut management = Self { driver_version, gpus: Vec::new(), silent: Vec::new() };
        for index in 0..count {
            // A GPU that fell off the bus must not hide the others.
            match library.device_by_index(index).and_then(|device| gpu(&device)) {
                Ok(gpu) => management.gpus.push(gpu),
                Err(error) => management.silent.push((index, words(error))),
            }
        }
        Ok(management)
    }

    /// The GPU at a PCI address.
    pub fn gpu(&self, pci: PciAddress) -> Option<&ManagedGpu> {
        self.gpus.iter().find(|gpu| gpu.pci == pci)
    }

    /// The number that the library gives the GPU at a PCI address.
    pub fn number(&self, pci: PciAddress) -> Option<u32> {
        let place = self.gpus.iter().position(|gpu| gpu.pci == pci)?;
        // Those that do not answer have numbers, too.
        (0..).filter(|number| self.silent.iter().all(|(silent, _)| silent != number)).nth(place)
    }

    /// The NVLinks of a GPU, by their other ends.
    pub fn nvlinks(&self, gpu: &ManagedGpu) -> Vec<NvLinks> {
        let mut ends: BTreeMap<String, NvLinks> = BTreeMap::new();
        for &to in &gpu.links {
            let class = if self.gpu(to).is_some() { CLASS_GPU } else { CLASS_NVSWITCH };
            ends.entry(to.to_string()).or_insert(NvLinks { to, count: 0, class }).count += 1;
        }
        ends.into_values().collect()
    }

    /// NVLinks that join two GPUs: direct ones, or as many as both have to common switches.
    pub fn links_between(&self, one: PciAddress, other: PciAddress) -> usize {
        let (Some(a), Some(b)) = (self.gpu(one), self.gpu(other)) else { return 0 };
        nvlinks_between(&self.nvlinks(a), other, &self.nvlinks(b)) as usize
    }
}

fn gpu(device: &Device<'_>) -> Result<ManagedGpu, NvmlError> {
    let pci = device.pci_info()?;
    let mut gpu = ManagedGpu {
        pci: address(&pci),
        name: device.name()?,
        links: Vec::new(),
        links_down: 0,
        link_version: None,
        compute: (0, 0),
        pcie: None,
    };
    if let Ok(compute) = device.cuda_compute_capability() {
        gpu.compute = (compute.major.max(0) as u32, compute.minor.max(0) as u32);
    }
    gpu.pcie = device.max_pcie_link_gen().ok().zip(device.max_pcie_link_width().ok());
    for number in 0..LINKS_MAX {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) => {
                gpu.link_version = gpu.link_version.or(link.version().ok());
                match link.remote_pci_info() {
                    Ok(remote) => gpu.links.push(address(&remote)),
                    Err(_) => gpu.links_down += 1,
                }
            }
            Ok(false) => gpu.links_down += 1,
            // A GPU without NVLink, or without this one.
            Err(_) => {}
        }
    }
    Ok(gpu)
}

/// NVML reports no function number: GPUs and NVSwitches are function 0.
fn address(info: &nvml_wrapper::struct_wrappers::device::PciInfo) -> PciAddress {
    PciAddress { domain: info.domain, bus: info.bus as u8, device: info.device as u8, function: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bus: u8) -> PciAddress {
        PciAddress { domain: 0, bus, device: 0, function: 0 }
    }

    fn gpu(bus: u8, links: &[u8]) -> ManagedGpu {
        ManagedGpu {
            pci: at(bus),
            name: String::new(),
            links: links.iter().map(|bus| at(*bus)).collect(),
            links_down: 0,
            link_version: None,
            compute: (7, 0),
            pcie: None,
        }
    }

    fn seeing(gpus: Vec<ManagedGpu>) -> Management {
        Management { driver_version: String::new(), gpus, silent: Vec::new() }
    }

    /// If this fails, a GPU that fell off the bus makes others answer to wrong numbers.
    #[test]
    fn gpus_that_do_not_answer_keep_their_numbers() {
        let mut machine = seeing(vec![gpu(1, &[]), gpu(3, &[]), gpu(5, &[])]);
        let numbers = |machine: &Management| [1, 3, 5, 9].map(|bus| machine.number(at(bus)));
        assert_eq!(numbers(&machine), [Some(0), Some(1), Some(2), None]);
        machine.silent = vec![(0, "lost".into()), (2, "lost".into())];
        assert_eq!(numbers(&machine), [Some(1), Some(3), Some(4), None]);
    }

    #[test]
    fn links_count_directly_or_through_common_switches() {
        let gpus = vec![gpu(1, &[2, 2, 3]), gpu(2, &[1, 1]), gpu(3, &[1]), gpu(4, &[])];
        let machine = seeing(gpus);
        assert_eq!(machine.links_between(at(1), at(2)), 2);
        assert_eq!(machine.links_between(at(3), at(1)), 1);
        // A GPU in between is no switch.
        assert_eq!(machine.links_between(at(2), at(3)), 0);
        assert_eq!(machine.links_between(at(1), at(4)), 0);
        assert_eq!(machine.links_between(at(1), at(9)), 0);

        let gpus = vec![gpu(1, &[0x80, 0x80, 0x81]), gpu(2, &[0x81, 0x81, 0x82])];
        let machine = seeing(gpus);
        assert_eq!(machine.links_between(at(1), at(2)), 1);
    }
}
