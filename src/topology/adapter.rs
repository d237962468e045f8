//! RDMA adapters and their ports, as sysfs shows them: no verbs library is needed to look.

use super::gid::{Gid, GidType};
use super::pci;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

/// The most ports and GIDs of one adapter that are looked at.
const PORTS_MAX: u8 = 8;
const GIDS_MAX: u8 = 128;

/// Where adapters stand below the folder on which sysfs is mounted.
const CLASS: &str = "class/infiniband";

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// Linked, and waiting for a subnet manager.
    Initializing,
    /// Configured, and waiting to be switched on.
    Armed,
    /// Usable.
    Active,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "down",
            Self::Initializing => "initializing (is a subnet manager running?)",
            Self::Armed => "armed, not active yet",
            Self::Active => "active",
        })
    }
}

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet (RoCE).
    Ethernet,
    /// Anything else.
    Other,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
            Self::Other => "unknown link layer",
        })
    }
}

/// One port of one adapter, as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The adapter's name.
    pub adapter: String,
    /// The port's number, from 1.
    pub number: u8,
    /// Its state.
    pub state: PortState,
    /// Its link layer.
    pub link_layer: LinkLayer,
    /// Megabits a second; 0 where the adapter does not say.
    pub rate_mbps: u64,
    /// Bytes of payload in one packet.
    pub mtu_bytes: u32,
    /// Its addresses.
    pub gids: Vec<Gid>,
    /// From the PCI root down to the adapter; empty if it hangs on no PCI bus.
    pub pci_path: Vec<String>,
    /// The adapter's NUMA node.
    pub numa: Option<u32>,
}

/// One adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// What it is, in its driver's words, with its firmware; empty where it does not say.
    pub model: String,
    /// Its PCI address; `None` for one that hangs on no PCI bus, such as SoftRoCE.
    pub pci: Option<pci::PciAddress>,
    /// The file through which programs reach it, such as `/dev/infiniband/uverbs0`.
    pub device_file: Option<PathBuf>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// The folder on which sysfs is mounted: `SYSFS_PATH`, which libibverbs obeys too, or `/sys`.
pub fn sysfs() -> PathBuf {
    let named = std::env::var_os("SYSFS_PATH").filter(|path| !path.is_empty());
    named.map_or_else(|| PathBuf::from("/sys"), PathBuf::from)
}

/// Every adapter below `sysfs`, in the order of their names. What cannot be read counts as not
/// there.
pub fn read(sysfs: &Path) -> Vec<Adapter> {
    let entries = std::fs::read_dir(sysfs.join(CLASS)).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_by_key(|name| natural(name));
    names.iter().map(|name| adapter(sysfs, name)).collect()
}

fn adapter(sysfs: &Path, name: &str) -> Adapter {
    let folder = sysfs.join(CLASS).join(name);
    let words = [text(&folder.join("hca_type")), text(&folder.join("fw_ver"))];
    let pci_path = pci::path_of(&folder.join("device"));
    let numa = pci::numa_of(&folder.join("device"));
    let port = |number| port(&folder, number, name, &pci_path, numa);
    Adapter {
        name: name.to_owned(),
        model: words.map(Option::unwrap_or_default).join(" ").trim().to_owned(),
        pci: pci_path.last().and_then(|last| last.parse().ok()),
        device_file: device_file(sysfs, name),
        ports: (1..=PORTS_MAX).filter_map(port).collect(),
    }
}

/// The character device that belongs to an adapter.
fn device_file(sysfs: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(sysfs.join("class/infiniband_verbs")).ok()?.flatten();
    let verbs = entries.map(|entry| entry.path());
    let own = verbs.into_iter().find(|f| text(&f.join("ibdev")).as_deref() == Some(name))?;
    Some(Path::new("/dev/infiniband").join(own.file_name()?))
}

fn port(
    folder: &Path,
    number: u8,
    adapter: &str,
    pci_path: &[String],
    numa: Option<u32>,
) -> Option<Port> {
    let folder = folder.join(format!("ports/{number}"));
    let state = text(&folder.join("state"))?;
    let link_layer = match text(&folder.join("link_layer")).as_deref() {
        // Old InfiniBand drivers do not say.
        None | Some("InfiniBand" | "Unspecified") => LinkLayer::InfiniBand,
        Some("Ethernet") => LinkLayer::Ethernet,
        Some(_) => LinkLayer::Other,
    };
    Some(Port {
        adapter: adapter.to_owned(),
        number,
        state: port_state(&state),
        link_layer,
        rate_mbps: text(&folder.join("rate")).map_or(0, |rate| rate_mbps(&rate)),
        // Sysfs does not show it.
        mtu_bytes: 0,
        gids: (0..GIDS_MAX).filter_map(|index| gid(&folder, index, link_layer)).collect(),
        pci_path: pci_path.to_vec(),
        numa,
    })
}

/// `4: ACTIVE`; the numbers are the specification's.
fn port_state(text: &str) -> PortState {
    match text.split(':').next().map(str::trim) {
        Some("2") => PortState::Initializing,
        Some("3") => PortState::Armed,
        Some("4" | "5") => PortState::Active,
        _ => PortState::Down,
    }
}

/// `100 Gb/sec (4X EDR)`, `2.5 Gb/sec (1X SDR)`.
fn rate_mbps(text: &str) -> u64 {
    let number = text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    // Negative and absurd numbers become the ends of the range.
    number.map_or(0, |gigabits| (gigabits * 1000.0).round() as u64)
}

/// An entry of the port's table, if it is filled in.
fn gid(port: &Path, index: u8, link_layer: LinkLayer) -> Option<Gid> {
    let address: Ipv6Addr = text(&port.join(format!("gids/{index}")))?.parse().ok()?;
    // Entries without a type cannot be read: nobody uses them.
    let kind = text(&port.join(format!("gid_attrs/types/{index}")));
    let kind = match (link_layer, kind.as_deref()) {
        (LinkLayer::Ethernet, Some("RoCE v2")) => GidType::RoceV2,
        (LinkLayer::Ethernet, _) => GidType::RoceV1,
        _ => GidType::InfiniBand,
    };
    let gid = Gid { index, raw: address.octets(), kind };
    (!gid.is_empty()).then_some(gid)
}

/// A file of one line, without the white space around it.
fn text(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// `mlx5_10` comes after `mlx5_9`.
pub(super) fn natural(name: &str) -> (String, u64) {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (stem, number) = name.split_at(name.len() - digits);
    (stem.to_owned(), number.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn write(root: &Path, path: &str, content: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{content}\n")).unwrap();
    }

    /// An adapter with two ports as a kernel shows it: RoCE, and InfiniBand that is down.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let device = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
        let class = "class/infiniband/mlx5_10";
        for (path, content) in [
            ("hca_type", "MT4123"),
            ("fw_ver", "20.35.1012"),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/rate", "200 Gb/sec (4X HDR)"),
            ("ports/1/gids/0", "fe80:0000:0000:0000:0e42:a1ff:fe5e:0d18"),
            ("ports/1/gid_attrs/types/0", "IB/RoCE v1"),
            ("ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
            ("ports/1/gid_attrs/types/1", "RoCE v2"),
            ("ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("ports/2/state", "1: DOWN"),
            ("ports/2/link_layer", "InfiniBand"),
            ("ports/2/rate", "2.5 Gb/sec (1X SDR)"),
        ] {
            write(root.path(), &format!("{class}/{path}"), content);
        }
        write(root.path(), &format!("{device}/numa_node"), "1");
        symlink(root.path().join(device), root.path().join(class).join("device")).unwrap();
        write(root.path(), "class/infiniband_verbs/uverbs3/ibdev", "mlx5_10");
        write(root.path(), "class/infiniband_verbs/abi_version", "6");
        write(root.path(), "class/infiniband/mlx5_9/fw_ver", "");
        root
    }

    #[test]
    fn adapters_ports_and_gids_are_read_without_a_verbs_library() {
        let root = tree();
        let adapters = read(root.path());
        let names: Vec<_> = adapters.iter().map(|adapter| adapter.name.as_str()).collect();
        assert_eq!(names, ["mlx5_9", "mlx5_10"]);
        let [bare, full] = &adapters[..] else { unreachable!() };
        assert_eq!((bare.model.as_str(), bare.pci, bare.ports.len()), ("", None, 0));
        assert_eq!(full.model, "MT4123 20.35.1012");
        assert_eq!(full.pci, "0000:3b:00.0".parse().ok());
        assert_eq!(full.device_file.as_deref(), Some(Path::new("/dev/infiniband/uverbs3")));
        let [first, second] = &full.ports[..] else { panic!("{:?}", full.ports) };
        assert_eq!((first.number, first.state), (1, PortState::Active));
        assert_eq!((first.link_layer, first.rate_mbps), (LinkLayer::Ethernet, 200_000));
        assert_eq!(first.numa, Some(1));
        let kinds: Vec<_> = first.gids.iter().map(|gid| (gid.index, gid.kind)).collect();
        assert_eq!(kinds, [(0, GidType::RoceV1), (1, GidType::RoceV2)]);
        assert_eq!((second.state, second.rate_mbps), (PortState::Down, 2_500));
        assert_eq!(second.link_layer, LinkLayer::InfiniBand);
    }

    #[test]
    fn a_machine_without_rdma_has_no_adapters() {
        assert_eq!(read(tempfile::tempdir().unwrap().path()), []);
    }
}
