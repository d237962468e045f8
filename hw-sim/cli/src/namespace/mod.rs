//! Device files for adapters and GPUs that the kernel does not know.
//!
//! The verbs library wants character devices `/dev/infiniband/uverbsN`, and some programs (JAX)
//! look for `/dev/nvidia0` before they ask the driver. What they are does not matter, for virtual
//! drivers never talk to the kernel. They are shown to the command alone, in its own mount
//! namespace, so nothing is left in `/dev`. Root makes one directly; others through a user
//! namespace in which they stay who they are.

mod net;
mod sys;

pub use net::{Interface, make_interfaces};
pub use sys::show as show_sys;

use crate::adapters::device_name;
use crate::error::Error;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};

/// Where the verbs library looks. In memory, once [`enter`] has succeeded.
pub const FOLDER: &str = "/dev/infiniband";
/// Its name there.
const ADAPTERS: &str = "infiniband";

/// What names of GPUs' device files begin with.
const GPUS: &str = "nvidia";

/// What namespaces are made for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Device files of adapters.
    pub adapters: usize,
    /// Device files of GPUs.
    pub gpus: usize,
    /// A network of its own.
    pub net: bool,
}

/// Moves this process into a mount namespace of its own, and other ones if asked for, where
/// need be with a user namespace around them.
fn unshare_with(others: CloneFlags) -> Result<(), Error> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |errno: Errno| Error::system(what)(errno.into())
    };
    if unshare(CloneFlags::CLONE_NEWNS | others).is_err() {
        let (user, group) = (geteuid(), getegid());
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | others)
            .map_err(failed("making a user namespace and a mount namespace"))?;
        let map = |file: &str, content: String| {
            fs::write(format!("/proc/self/{file}"), content)
                .map_err(Error::system(format!("writing {file}")))
        };
        // The kernel wants this before it lets anybody but root map a group.
        map("setgroups", "deny".into())?;
        map("uid_map", format!("{user} {user} 1"))?;
        map("gid_map", format!("{group} {group} 1"))?;
    }
    let none = None::<&str>;
    // What is mounted from here on is seen here only.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(failed("making mounts private"))
}

/// Moves this process into a mount namespace of its own.
pub fn private_mounts() -> Result<(), Error> {
    unshare_with(CloneFlags::empty())
}

/// Moves this process into namespaces in which there are device files for so many adapters and
/// GPUs, and none for those of the host. `scratch` is an empty folder to build them in. The process
/// must have no other threads.
pub fn enter(wanted: Wanted, scratch: &Path) -> Result<(), Error> {
    let net = if wanted.net { CloneFlags::CLONE_NEWNET } else { CloneFlags::empty() };
    unshare_with(net)?;
    let none = None::<&str>;
    let Wanted { adapters, gpus, .. } = wanted;
    let null = Path::new("/dev/null").canonicalize();
    let null = null.map_err(Error::system("finding /dev/null"))?;
    tmpfs(scratch)?;
    copy_dev(scratch)?;
    let folder = scratch.join(ADAPTERS);
    fs::create_dir(&folder).map_err(Error::system("making /dev/infiniband"))?;
    devices(&folder, &null, (0..adapters).map(device_name))?;
    let numbered = (0..gpus).map(|gpu| format!("{GPUS}{gpu}"));
    let all = numbered.chain(["ctl", "-uvm"].map(|kind| format!("{GPUS}{kind}")));
    devices(scratch, &null, all)?;
    mount(Some(scratch), "/dev", none, MsFlags::MS_MOVE, none)
        .map_err(|errno| Error::system("showing device files in /dev")(errno.into()))
}

fn tmpfs(target: &Path) -> Result<(), Error> {
    let options = Some("mode=0755,size=256m");
    mount(Some("hwsim"), target, Some("tmpfs"), MsFlags::MS_NOSUID, options)
        .map_err(|errno| Error::system(format!("mounting on {}", target.display()))(errno.into()))
}

fn bind(source: &Path, target: &Path) -> Result<(), Error> {
    let none = None::<&str>;
    mount(Some(source), target, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)
        .map_err(|errno| Error::system(format!("showing {}", source.display()))(errno.into()))
}

fn devices(folder: &Path, null: &Path, names: impl Iterator<Item = String>) -> Result<(), Error> {
    for name in names {
        let file = folder.join(name);
        File::create(&file).map_err(Error::system(format!("making {}", file.display())))?;
        bind(null, &file)?;
    }
    Ok(())
}

/// Shows everything of `/dev` in another folder, too, but adapters and GPUs.
fn copy_dev(target: &Path) -> Result<(), Error> {
    let entries = fs::read_dir("/dev").map_err(Error::system("reading /dev"))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name == ADAPTERS || name.to_string_lossy().starts_with(GPUS) {
            continue;
        }
        let (source, place) = (entry.path(), target.join(&name));
        let Ok(kind) = entry.file_type() else { continue };
        let made = if kind.is_symlink() {
            fs::read_link(&source).and_then(|leads| symlink(leads, &place))
        } else if name == "ptmx" && Path::new("/dev/pts/ptmx").exists() {
            // Finds its terminals beside itself, which a bind mount would not do.
            symlink(PathBuf::from("pts/ptmx"), &place)
        } else if kind.is_dir() {
            fs::create_dir(&place)
        } else if kind.is_char_device() || kind.is_block_device() || kind.is_file() {
            File::create(&place).map(drop)
        } else {
            continue;
        };
        made.map_err(Error::system(format!("making {}", place.display())))?;
        if !kind.is_symlink() && !place.is_symlink() {
            bind(&source, &place)?;
        }
    }
    Ok(())
}
