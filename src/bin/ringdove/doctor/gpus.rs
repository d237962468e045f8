//! The CUDA driver, GPUs, and the ways between them.

use super::facts::{Facts, Gpu};
use super::report::{Level, Report};
use ringdove::Error;
use ringdove::gpu::ComputeMode;
use ringdove::topology::pci;
use ringdove_kernels::ptx;
use serde::Serialize;
use std::collections::BTreeMap;

const GIB: u64 = 1 << 30;

/// How ranks on two GPUs of this node will reach each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pair {
    pub one: usize,
    pub other: usize,
    /// `peer`, or `host`: through host memory, since the driver refuses peer access.
    pub transport: &'static str,
    /// The path between them.
    pub path: String,
}

/// The driver: whether it is there, and new enough for the device code.
pub fn driver(facts: &Facts, report: &mut Report) {
    report.section("driver");
    match &facts.driver {
        Ok(driver) => {
            let ((major, minor), needed) = (driver.cuda_version, needed_cuda());
            let seen = format!("CUDA {major}.{minor}, from libcuda.so.1");
            if driver.cuda_version < needed {
                let advice = format!("install one of CUDA {}.{} or later", needed.0, needed.1);
                report.complain(Level::Missing, "CUDA driver", seen, advice);
            } else {
                report.ok("CUDA driver", seen);
            }
        }
        Err(error) => no_driver(facts, error, report),
    }
    match &facts.management {
        Ok(management) => report.ok(
            "NVML",
            format!(
                "kernel driver {}, {} in the machine",
                management.driver_version,
                counted(management.gpus.len(), "GPU")
            ),
        ),
        // Without a driver nobody expects it.
        Err(_) if facts.driver.is_err() => {}
        Err(why) => report.complain(
            Level::Warning,
            "NVML",
            format!("{why}, so NVLinks are unknown"),
            "install the driver's libnvidia-ml.so.1; in a container, ask for the `utility` \
             capability (NVIDIA_DRIVER_CAPABILITIES)",
        ),
    }
}

fn no_driver(facts: &Facts, error: &Error, report: &mut Report) {
    let Error::NotFound { looked_for, advice, .. } = error else {
        let code = if let Error::Cuda { code, .. } = error { *code } else { 0 };
        return report.complain(Level::Missing, "CUDA driver", error, start_advice(code));
    };
    let host = &facts.host;
    let seen = format!("not found: looked for {looked_for}");
    if host.nvidia_device_file {
        let advice = "the kernel driver is loaded (/dev/nvidiactl), but libcuda.so.1 is missing: \
                      start the container with `--gpus all` and the NVIDIA Container Toolkit, \
                      with `compute,utility` in NVIDIA_DRIVER_CAPABILITIES";
        return report.complain(Level::Missing, "CUDA driver", seen, advice);
    }
    if !host.pci_gpus.is_empty() {
        let seen = format!("{seen}; the PCI bus has {}", host.pci_gpus.join(", "));
        let advice = if host.container.is_some() {
            "start the container with `--gpus all` and the NVIDIA Container Toolkit"
        } else {
            "install NVIDIA's driver, or load it (modprobe nvidia)"
        };
        return report.complain(Level::Missing, "CUDA driver", seen, advice);
    }
    report.complain(Level::Missing, "CUDA driver", seen, advice);
}

/// What to do about a driver that is there and does not start.
fn start_advice(code: u32) -> &'static str {
    match code {
        34 => {
            "a stub library of the CUDA toolkit was loaded: remove its folder from LD_LIBRARY_PATH"
        }
        802 => "on machines with NVSwitches, start the fabric manager (nvidia-fabricmanager)",
        803 => {
            "library and kernel module have different versions: reboot after an upgrade; in a \
             container, use the host's libcuda.so.1"
        }
        804 => "remove the toolkit's compat folder from LD_LIBRARY_PATH",
        999 => {
            "check that /dev/nvidia-uvm exists and is open to this user; `nvidia-modprobe -u` \
             makes it"
        }
        _ => "see the kernel's log (dmesg) for NVRM and Xid lines",
    }
}

/// CUDA version in which the device code's PTX version came, by the numbers that PTX 7 and 8 share
/// with CUDA 11 and 12.
fn needed_cuda() -> (u32, u32) {
    let (major, minor) = directive(".version ")
        .and_then(|text| text.split_once('.'))
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .unwrap_or((7, 0));
    (major + 4, minor)
}

/// Least compute capability for which the device code is compiled.
fn needed_capability() -> (u32, u32) {
    let number = directive(".target sm_").and_then(|text| text.parse().ok()).unwrap_or(70);
    (number / 10, number % 10)
}

fn directive(name: &str) -> Option<&'static str> {
    let rest = ptx::EXECUTOR.lines().find_map(|line| line.trim().strip_prefix(name))?;
    rest.split([',', ' ']).next()
}

/// GPUs, one line each, and what hides others.
pub fn gpus(facts: &Facts, report: &mut Report) {
    report.section("GPUs");
    visible(facts, report);
    for (ordinal, gpu) in facts.gpus.iter().enumerate() {
        one(ordinal, gpu, nv_links(facts, gpu), report);
    }
    for (index, why) in facts.management.iter().flat_map(|management| &management.silent) {
        report.complain(
            Level::Warning,
            "lost GPU",
            format!("NVML's GPU {index} does not answer: {why}"),
            "see the kernel's log (dmesg) for Xid lines; reset or reboot",
        );
    }
    let managed = facts.management.iter().flat_map(|management| &management.gpus);
    for gpu in managed.filter(|gpu| gpu.links_down > 0 && !gpu.links.is_empty()) {
        report.complain(
            Level::Warning,
            format!("NVLinks of {}", gpu.pci),
            format!("{} up, {} down", gpu.links.len(), gpu.links_down),
            "see `nvidia-smi nvlink --status` and the fabric manager's log",
        );
    }
}

fn visible(facts: &Facts, report: &mut Report) {
    let Ok(driver) = &facts.driver else { return };
    let seen = driver.devices.len();
    let present = facts.management.as_ref().map_or(seen, |management| management.gpus.len());
    let variable = facts.visible_devices.as_deref();
    let because = variable.map(|value| format!("CUDA_VISIBLE_DEVICES={value}"));
    match (seen, because) {
        (0, Some(because)) => report.complain(
            Level::Missing,
            "visible GPUs",
            format!("none of {present}: {because}"),
            "unset CUDA_VISIBLE_DEVICES, or name GPUs that exist: a wrong entry hides all \
             later ones",
        ),
        (0, None) => report.complain(
            Level::Missing,
            "visible GPUs",
            "the driver finds none",
            "see `nvidia-smi` and the kernel's log; in a container, use `--gpus all`",
        ),
        (_, Some(because)) => report.ok("visible GPUs", format!("{seen} of {present}: {because}")),
        (_, None) if seen < present => report.complain(
            Level::Warning,
            "visible GPUs",
            format!("{seen} of {present}, and CUDA_VISIBLE_DEVICES is not set"),
            "the others may be in MIG mode or have failed; see `nvidia-smi`",
        ),
        (_, None) => report.ok("visible GPUs", format!("all {seen}")),
    }
}

fn nv_links(facts: &Facts, gpu: &Gpu) -> usize {
    let management = facts.management.as_ref().ok();
    let managed = management.zip(gpu.pci).and_then(|(management, pci)| management.gpu(pci));
    managed.map_or(0, |managed| managed.links.len())
}

fn one(ordinal: usize, gpu: &Gpu, nv_links: usize, report: &mut Report) {
    let subject = format!("GPU {ordinal}");
    let device = &gpu.device;
    let (major, minor) = device.compute_capability;
    let numa = gpu.place.numa.map(|numa| format!(", NUMA node {numa}")).unwrap_or_default();
    let gib = device.memory_bytes as f64 / GIB as f64;
    let name = &device.name;
    let mut text = format!("{name}, {}, {gib:.1} GiB, compute {major}.{minor}{numa}", device.pci);
    if nv_links > 0 {
        text.push_str(&format!(", {}", counted(nv_links, "NVLink")));
    }
    let needed = needed_capability();
    if device.compute_capability < needed {
        let advice = format!(
            "kernels need {}.{} or later; hide it with CUDA_VISIBLE_DEVICES",
            needed.0, needed.1
        );
        report.complain(Level::Missing, &subject, text, advice);
    } else {
        report.ok(&subject, text);
    }
    match device.compute_mode {
        ComputeMode::Shared => {}
        ComputeMode::ExclusiveProcess => report.complain(
            Level::Warning,
            &subject,
            "exclusive to one process at a time: ranks of two processes cannot share it",
            "to share it, run nvidia-smi -c DEFAULT",
        ),
        ComputeMode::Prohibited => report.complain(
            Level::Missing,
            &subject,
            "its compute mode is prohibited: no process can use it",
            "nvidia-smi -c DEFAULT",
        ),
    }
    if let Some((now, most)) = gpu.lanes.filter(|(now, most)| now < most) {
        report.complain(
            Level::Warning,
            &subject,
            format!("its PCI link runs with {now} of {most} lanes"),
            "reseat it, or check that slot and riser have all lanes",
        );
    }
    if let Some(kind) = gpu.iommu.as_deref().filter(|kind| kind.starts_with("DMA")) {
        report.complain(
            Level::Warning,
            &subject,
            format!("the IOMMU translates its accesses ({kind}): peer traffic goes over the root"),
            "boot with iommu=pt, or with the IOMMU off, unless this is a virtual machine",
        );
    }
}

/// Every pair of visible GPUs.
pub fn pairs(facts: &Facts) -> Vec<Pair> {
    let count = facts.gpus.len();
    let all = (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other)));
    all.map(|(one, other)| pair(facts, one, other)).collect()
}

fn pair(facts: &Facts, one: usize, other: usize) -> Pair {
    let (a, b) = (&facts.gpus[one], &facts.gpus[other]);
    let reached = |gpu: &Gpu, at: usize| gpu.device.reaches.get(at).copied().unwrap_or(false);
    let transport = if reached(a, other) && reached(b, one) { "peer" } else { "host" };
    let links = match (&facts.management, a.pci, b.pci) {
        (Ok(management), Some(a), Some(b)) => management.links_between(a, b),
        _ => 0,
    };
    let path = match (links, pci::common(&a.place.pci_path, &b.place.pci_path)) {
        (1.., _) => counted(links, "NVLink"),
        (0, 2..) => "PCI, below one switch".to_owned(),
        (0, 1) => "PCI, through one root complex".to_owned(),
        (0, 0) if a.place.pci_path.is_empty() || b.place.pci_path.is_empty() => "PCI".to_owned(),
        (0, 0) => "PCI, between root complexes".to_owned(),
    };
    Pair { one, other, transport, path }
}

/// The transports of pairs of GPUs: a line for each kind.
pub fn pair_findings(pairs: &[Pair], report: &mut Report) {
    let mut kinds: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for pair in pairs {
        let kind = kinds.entry((pair.transport, pair.path.as_str())).or_default();
        kind.push(format!("{}-{}", pair.one, pair.other));
    }
    for ((transport, path), members) in kinds {
        let members = members.join(" ");
        match transport {
            "peer" => {
                report.ok("between GPUs", format!("peer over {path}, with peer access: {members}"))
            }
            _ => report.complain(
                Level::Warning,
                "between GPUs",
                format!(
                    "through host memory, the driver refuses peer access over {path}: {members}"
                ),
                "nothing, or choose GPUs with peer access to one another, which is faster \
                 (CUDA_VISIBLE_DEVICES); see `nvidia-smi topo -p2p r` for the driver's reason",
            ),
        }
    }
}

/// `1 GPU`, `2 GPUs`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_device_code_needs_is_read_from_it() {
        assert!(directive(".version ").is_some() && directive(".target sm_").is_some());
        assert!((11..=12).contains(&needed_cuda().0), "{:?}", needed_cuda());
        assert!((7..=9).contains(&needed_capability().0), "{:?}", needed_capability());
    }

    #[test]
    fn pairs_of_one_kind_share_a_line_and_pairs_without_access_go_through_the_host() {
        let pair = |one, other, transport, path: &str| Pair {
            one,
            other,
            transport,
            path: path.to_owned(),
        };
        let mut report = Report::default();
        let pairs = [
            pair(0, 1, "peer", "2 NVLinks"),
            pair(0, 2, "host", "PCI"),
            pair(1, 2, "peer", "2 NVLinks"),
        ];
        pair_findings(&pairs, &mut report);
        let lines: Vec<_> = report.findings().map(|f| (f.level, f.seen.as_str())).collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].0 == Level::Warning && lines[0].1.ends_with(": 0-2"), "{lines:?}");
        assert!(lines[0].1.starts_with("through host memory"), "{lines:?}");
        assert!(lines[1].0 == Level::Ok && lines[1].1.ends_with(": 0-1 1-2"), "{lines:?}");
    }
}
