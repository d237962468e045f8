//! A virtual machine's tree as `/sys`, beside what the host has there.
//!
//! PCI devices, RDMA adapters and NUMA nodes are the machine's alone; all else is the host's,
//! and its own devices keep their places below `/sys/devices`.

use super::{bind, private_mounts, tmpfs};
use crate::error::Error;
use nix::mount::{MsFlags, mount};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Where the host has its own.
const SYS: &str = "/sys";
/// Folders in which entries of both are, below `/sys`.
const SHARED: [&str; 6] = ["", "bus", "class", "devices", "devices/system", "devices/virtual"];
/// What is the machine's alone.
const OWN: [&str; 6] = [
    "bus/pci",
    "class/pci_bus",
    "class/infiniband",
    "class/infiniband_verbs",
    "class/infiniband_mad",
    "devices/system/node",
];

/// Shows the tree in `virtual_tree` as `/sys` to this process and its children. If it has network
/// interfaces, the run has a network of its own, and the host's are not there.
pub fn show(virtual_tree: &Path) -> Result<(), Error> {
    let with_net = virtual_tree.join("class/net").is_dir();
    private_mounts()?;
    // In the tree's own folder, which is in memory and this run's alone.
    let stage = PathBuf::from(format!("{}.sys-{}", virtual_tree.display(), std::process::id()));
    fs::create_dir(&stage).map_err(Error::system(format!("making {}", stage.display())))?;
    tmpfs(&stage)?;
    let merging = Merging { host: Path::new(SYS), tree: virtual_tree, stage: &stage, with_net };
    merging.folder("")?;
    let none = None::<&str>;
    mount(Some(&stage), SYS, none, MsFlags::MS_MOVE, none)
        .map_err(|errno| Error::system("showing the machine in /sys")(errno.into()))?;
    let _ = fs::remove_dir(&stage);
    Ok(())
}

struct Merging<'a> {
    host: &'a Path,
    tree: &'a Path,
    stage: &'a Path,
    with_net: bool,
}

impl Merging<'_> {
    fn is_own(&self, path: &str) -> bool {
        OWN.contains(&path) || self.with_net && path == "class/net"
    }

    /// Folders with entries of both: those of the list, and root complexes that both have.
    fn is_shared(&self, path: &str) -> bool {
        let is_root =
            |path: &str| path.strip_prefix("devices/pci").is_some_and(|rest| !rest.contains('/'));
        let in_both = self.tree.join(path).is_dir() && self.host.join(path).is_dir();
        let in_list = ["class/net", "class/misc"].contains(&path) || is_root(path);
        SHARED.contains(&path) || in_both && in_list && !self.is_own(path)
    }

    /// Shows a folder's entries. Those of the machine come first.
    fn folder(&self, path: &str) -> Result<(), Error> {
        let place = self.stage.join(path);
        fs::create_dir_all(&place).map_err(Error::system(format!("making {}", place.display())))?;
        for (of_tree, from) in [(true, self.tree), (false, self.host)] {
            // A folder that either lacks has no entries there.
            for entry in fs::read_dir(from.join(path)).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let Some(name) = name.to_str() else { continue };
                let inside =
                    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
                let to = self.stage.join(&inside);
                if to.symlink_metadata().is_ok() || self.is_own(&inside) && !of_tree {
                    continue;
                }
                self.entry(&inside, &entry.path(), &to)?;
            }
        }
        Ok(())
    }

    fn entry(&self, inside: &str, from: &Path, to: &Path) -> Result<(), Error> {
        let failed = || Error::system(format!("showing {}", from.display()));
        let Ok(kind) = from.symlink_metadata().map(|data| data.file_type()) else { return Ok(()) };
        if kind.is_symlink() {
            return fs::read_link(from).and_then(|leads| symlink(leads, to)).map_err(failed());
        }
        if kind.is_dir() && self.is_shared(inside) {
            return self.folder(inside);
        }
        if kind.is_dir() {
            fs::create_dir(to).map_err(failed())?;
        } else {
            fs::File::create(to).map_err(failed())?;
        }
        bind(from, to)
    }
}
