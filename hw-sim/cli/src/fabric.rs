//! The fabric: a folder that only the processes of one cluster share.

use crate::error::Error;
use crate::sysfs::VARIABLE as SYSFS_VARIABLE;
use hwsim_machine::description::cluster::{FABRIC_VARIABLE, NODE_VARIABLE};
use hwsim_machine::fabric::Directory;
use std::env;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// All virtual nodes are one host in truth, with one name and one boot id. Programs take a host's
/// identity from these instead, where they are set. No two nodes of a cluster have the same, nor
/// two clusters at one time.
const HOST_ID_VARIABLES: [&str; 2] = ["RINGDOVE_HOST_ID", "NCCL_HOSTID"];

/// The folder of a cluster.
pub struct Fabric {
    /// The folder, which is this user's own.
    pub directory: Directory,
    /// Where each node has its own tree of PCI functions, if they are shown.
    pub sysfs: Option<PathBuf>,
    /// Commands see these trees as `/sys`.
    pub shows_sys: bool,
}

impl Fabric {
    /// The folder that the environment names, which somebody else removes, or a new one in `stage`,
    /// which goes with that.
    pub fn find(stage: &Path) -> Result<Self, Error> {
        let (path, named) = match env::var_os(FABRIC_VARIABLE).filter(|path| !path.is_empty()) {
            Some(named) => {
                (PathBuf::from(named), format!("{FABRIC_VARIABLE} names an unusable folder"))
            }
            None => {
                let path = stage.join("fabric");
                let making = Error::system(format!("making {}", path.display()));
                DirBuilder::new().mode(0o700).create(&path).map_err(making)?;
                (path, "the folder of this run is unusable".into())
            }
        };
        let directory = Directory::open(&path).map_err(|cause| Error::Fabric { named, cause })?;
        Ok(Self { directory, sysfs: None, shows_sys: false })
    }

    /// What a node's processes are to see as `/sys`.
    pub fn sys_of(&self, node: u32) -> Option<PathBuf> {
        self.sysfs.as_ref().filter(|_| self.shows_sys).map(|root| root.join(node.to_string()))
    }

    /// The variables of a process on a node: the virtual driver, and programs that ask which
    /// of their processes share a host.
    pub fn place(&self, node: u32) -> impl Iterator<Item = (&'static str, OsString)> {
        // Nothing else has them while the folder exists.
        let [device, number] = self.directory.number();
        let host = OsString::from(format!("hwsim-{device:x}-{number:x}-node{node}"));
        let hosts = HOST_ID_VARIABLES.map(|name| (name, host.clone()));
        let node = node.to_string();
        let sysfs = self.sysfs.as_ref().map(|root| (SYSFS_VARIABLE, root.join(&node).into()));
        hosts.into_iter().chain([(NODE_VARIABLE, node.into())]).chain(sysfs)
    }
}
