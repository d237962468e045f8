//! What the operating system says of this machine and of this process: limits, quotas, devices,
//! containers. Everything is read below a root folder, so that a made-up tree will do.

use std::path::{Path, PathBuf};

/// `CAP_IPC_LOCK`: memory may be locked without limit.
const IPC_LOCK_BIT: u32 = 14;
/// Levels of nested control groups that are looked at.
const CGROUPS_MAX: usize = 64;
const NVIDIA: &str = "0x10de";
const MELLANOX: &str = "0x15b3";

/// Values that were read; `None` where the system has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostFacts {
    pub name: String,
    pub kernel: String,
    pub boot_id: Option<String>,
    /// Why this is taken for a container.
    pub container: Option<String>,
    pub memlock: Option<Memlock>,
    /// Bytes of `/dev/shm`.
    pub shared_memory_bytes: Option<u64>,
    pub ptrace_scope: Option<u32>,
    /// Processors that this process may run on.
    pub cpus: Vec<usize>,
    /// Processors' worth of time that control groups grant.
    pub cpu_quota: Option<f64>,
    /// The kernel module that lets adapters reach GPU memory by its address.
    pub peer_memory_module: Option<String>,
    /// Whether the NVIDIA driver's device file is there.
    pub nvidia_device_file: bool,
    /// PCI addresses of NVIDIA GPUs, with or without driver.
    pub pci_gpus: Vec<String>,
    /// PCI addresses of RDMA adapters, with or without driver.
    pub pci_adapters: Vec<String>,
}

/// How much memory this process may lock; registration with an adapter locks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memlock {
    Unlimited,
    Bytes(u64),
}

/// Reads it all. `root` is `/`; `sysfs` is where sysfs is mounted.
pub fn read(root: &Path, sysfs: &Path) -> HostFacts {
    let proc = root.join("proc");
    let status = read_text(&proc.join("self/status"));
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim).unwrap_or_default().to_owned()
    };
    let (pci_gpus, pci_adapters) = pci_functions(sysfs);
    HostFacts {
        name: word(&proc.join("sys/kernel/hostname")).unwrap_or_else(|| "this machine".into()),
        kernel: word(&proc.join("sys/kernel/osrelease")).unwrap_or_default(),
        boot_id: word(&proc.join("sys/kernel/random/boot_id")),
        container: container(root),
        memlock: memlock(&read_text(&proc.join("self/limits")), &field("CapEff")),
        shared_memory_bytes: shared_memory(&root.join("dev/shm")),
        ptrace_scope: word(&proc.join("sys/kernel/yama/ptrace_scope"))
            .and_then(|scope| scope.parse().ok()),
        cpus: cpu_list(&field("Cpus_allowed_list")),
        cpu_quota: cpu_quota(root),
        peer_memory_module: peer_memory_module(&read_text(&proc.join("modules"))),
        nvidia_device_file: root.join("dev/nvidiactl").exists(),
        pci_gpus,
        pci_adapters,
    }
}

fn read_text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Content of a file of one line.
pub fn word(path: &Path) -> Option<String> {
    let text = read_text(path).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn container(root: &Path) -> Option<String> {
    let marks = [".dockerenv", "run/.containerenv", ".singularity.d"];
    let mark = marks.iter().find(|mark| root.join(mark).exists());
    if let Some(mark) = mark {
        return Some(format!("/{mark} is there"));
    }
    let first = read_text(&root.join("proc/1/cgroup"));
    let engines = ["docker", "kubepods", "containerd", "libpod", "lxc"];
    let engine = engines.iter().find(|engine| first.contains(**engine))?;
    Some(format!("the first process is in a control group of {engine}"))
}

/// From the table of limits and the effective capabilities.
fn memlock(limits: &str, capabilities: &str) -> Option<Memlock> {
    let mask = u64::from_str_radix(capabilities, 16).unwrap_or(0);
    if mask >> IPC_LOCK_BIT & 1 == 1 {
        return Some(Memlock::Unlimited);
    }
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(Memlock::Unlimited),
        soft => soft.parse().ok().map(Memlock::Bytes),
    }
}

fn shared_memory(path: &Path) -> Option<u64> {
    let answer = nix::sys::statvfs::statvfs(path).ok()?;
    Some(answer.blocks() as u64 * answer.fragment_size() as u64)
}

/// `0-3,8`.
fn cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse().ok()?);
        (last < 1 << 16).then_some(first..=last)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// The tightest quota of the control groups that this process is in.
fn cpu_quota(root: &Path) -> Option<f64> {
    let groups = read_text(&root.join("proc/self/cgroup"));
    let mounted = root.join("sys/fs/cgroup");
    let quotas = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or("/"));
        let base = match controllers {
            "" => mounted.clone(),
            some if some.split(',').any(|one| one == "cpu") => mounted.join("cpu"),
            _ => return Vec::new(),
        };
        let deepest = base.join(path.trim_start_matches('/'));
        let chain = deepest.ancestors().take(CGROUPS_MAX).map(Path::to_path_buf);
        chain.take_while(|folder| folder.starts_with(&base)).collect::<Vec<PathBuf>>()
    });
    let quotas = quotas.filter_map(|folder| group_quota(&folder));
    quotas.min_by(f64::total_cmp)
}

/// Quota over period, in the files of version 2 or of version 1.
fn group_quota(folder: &Path) -> Option<f64> {
    let (quota, period) = match word(&folder.join("cpu.max")) {
        Some(line) => {
            let (quota, period) = line.split_once(' ')?;
            (quota.to_owned(), period.to_owned())
        }
        None => (word(&folder.join("cpu.cfs_quota_us"))?, word(&folder.join("cpu.cfs_period_us"))?),
    };
    // "max" and -1 stand for no quota.
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

fn peer_memory_module(modules: &str) -> Option<String> {
    let names = modules.lines().filter_map(|line| line.split_whitespace().next());
    let known = ["nvidia_peermem", "nv_peer_mem"];
    names.into_iter().find(|name| known.contains(name)).map(str::to_owned)
}

/// NVIDIA's GPUs, and RDMA adapters, by class and vendor.
fn pci_functions(sysfs: &Path) -> (Vec<String>, Vec<String>) {
    let (mut gpus, mut adapters) = (Vec::new(), Vec::new());
    let entries = std::fs::read_dir(sysfs.join("bus/pci/devices")).into_iter().flatten().flatten();
    for entry in entries {
        let [class, vendor] =
            ["class", "vendor"].map(|file| word(&entry.path().join(file)).unwrap_or_default());
        let address = entry.file_name().to_string_lossy().into_owned();
        // 0x03: display and 3D; 0x0207: InfiniBand; Mellanox calls RoCE adapters Ethernet.
        if class.starts_with("0x03") && vendor == NVIDIA {
            gpus.push(address);
        } else if class.starts_with("0x0207") || class.starts_with("0x02") && vendor == MELLANOX {
            adapters.push(address);
        }
    }
    gpus.sort();
    adapters.sort();
    (gpus, adapters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, content: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    #[test]
    fn a_container_with_the_usual_traps_is_read() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, ".dockerenv", "");
        write(
            root,
            "proc/self/limits",
            "Limit  Soft Limit\nMax locked memory  65536 65536 bytes\n",
        );
        write(root, "proc/self/status", "CapEff:\t00000000a80425fb\nCpus_allowed_list:\t0-2,7\n");
        write(root, "proc/self/cgroup", "0::/slice/pod\n");
        write(root, "sys/fs/cgroup/slice/cpu.max", "150000 100000\n");
        write(root, "sys/fs/cgroup/slice/pod/cpu.max", "max 100000\n");
        write(root, "proc/modules", "nvidia 1 0 - Live 0\nnvidia_peermem 1 0 - Live 0\n");
        write(root, "proc/sys/kernel/yama/ptrace_scope", "1\n");
        write(root, "proc/sys/kernel/random/boot_id", "b-o-o-t\n");
        write(root, "sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n");
        write(root, "sys/bus/pci/devices/0000:3b:00.0/vendor", "0x10de\n");
        write(root, "sys/bus/pci/devices/0000:5e:00.0/class", "0x020000\n");
        write(root, "sys/bus/pci/devices/0000:5e:00.0/vendor", "0x15b3\n");
        write(root, "sys/bus/pci/devices/0000:00:1f.0/class", "0x020000\n");
        write(root, "sys/bus/pci/devices/0000:00:1f.0/vendor", "0x8086\n");
        let host = read(root, &root.join("sys"));
        assert_eq!(host.container.as_deref(), Some("/.dockerenv is there"));
        assert_eq!(host.memlock, Some(Memlock::Bytes(65536)));
        assert_eq!(host.cpus, [0, 1, 2, 7]);
        assert_eq!(host.cpu_quota, Some(1.5));
        assert_eq!(host.peer_memory_module.as_deref(), Some("nvidia_peermem"));
        assert_eq!((host.ptrace_scope, host.boot_id.as_deref()), (Some(1), Some("b-o-o-t")));
        assert_eq!(host.pci_gpus, ["0000:3b:00.0"]);
        assert_eq!(host.pci_adapters, ["0000:5e:00.0"]);
        assert!(!host.nvidia_device_file);
    }

    #[test]
    fn a_system_that_says_nothing_is_read_too() {
        let root = tempfile::tempdir().unwrap();
        let host = read(root.path(), &root.path().join("sys"));
        assert_eq!(host.memlock, None);
        assert_eq!(host.cpu_quota, None);
        assert_eq!((host.container, host.boot_id), (None, None));
        assert_eq!(host.shared_memory_bytes, None);
    }

    #[test]
    fn the_right_to_lock_memory_lifts_the_limit() {
        let limits = "Max locked memory         8388608              8388608              bytes\n";
        assert_eq!(memlock(limits, "0000000000000000"), Some(Memlock::Bytes(8 << 20)));
        assert_eq!(memlock(limits, "0000000000004000"), Some(Memlock::Unlimited));
        let unlimited = "Max locked memory         unlimited            unlimited   bytes\n";
        assert_eq!(memlock(unlimited, "0"), Some(Memlock::Unlimited));
    }

    #[test]
    fn quotas_of_the_first_version_of_control_groups_count() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "proc/self/cgroup", "4:cpu,cpuacct:/pod\n3:memory:/pod\n");
        write(root.path(), "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
        write(root.path(), "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
        assert_eq!(cpu_quota(root.path()), None);
        write(root.path(), "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "50000\n");
        write(root.path(), "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "100000\n");
        assert_eq!(cpu_quota(root.path()), Some(0.5));
    }
}
