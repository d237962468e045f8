//! Host memory of a rank that others write: a file in memory. Within a process it has no name; to
//! other processes of the node it is known by a random one, until all have opened it.

use crate::bootstrap::random_bytes;
use crate::error::{Error, Result};
use crate::gpu::HostMemory;
use crate::id::Rank;
use crate::shared::map_file;
use cudarc::driver::CudaContext;
use nix::fcntl::posix_fallocate;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where Linux keeps files in memory that processes share.
const FOLDER: &str = "/dev/shm";

/// What names a rank's file.
pub(super) type SharedName = [u8; 16];

/// A file that other processes can still open. Dropped, it has no name any more.
#[derive(Debug)]
pub(super) struct SharedFile {
    name: SharedName,
    path: PathBuf,
}

impl SharedFile {
    pub fn name(&self) -> SharedName {
        self.name
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "shared memory keeps its name");
        }
    }
}

/// Memory for threads of this process.
///
/// # Errors
/// [`Error::System`] where the system has no such memory; [`Error::Cuda`] where the driver cannot
/// pin it.
pub(super) fn anonymous(context: &Arc<CudaContext>, bytes: u64) -> Result<HostMemory> {
    let path = Path::new("memory for messages through the host");
    let failed = |error: String| no_memory(path, bytes, &error);
    let file = memfd_create(c"ringdove", MFdFlags::MFD_CLOEXEC);
    let file = File::from(file.map_err(|errno| failed(errno.desc().to_owned()))?);
    file.set_len(bytes).map_err(|error| failed(error.to_string()))?;
    HostMemory::register(context, map_file(&file, path)?)
}

/// Memory that other processes of the node can open.
///
/// # Errors
/// As [`anonymous`].
pub(super) fn create(context: &Arc<CudaContext>, bytes: u64) -> Result<(HostMemory, SharedFile)> {
    let name: SharedName = random_bytes()?;
    let path = path_of(name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = options.open(&path).map_err(|error| no_memory(&path, bytes, &error.to_string()))?;
    let shared = SharedFile { name, path };
    // Pages that are missing later would be a signal that ends the process.
    posix_fallocate(&file, 0, bytes as i64)
        .map_err(|errno| no_memory(&shared.path, bytes, errno.desc()))?;
    let memory = HostMemory::register(context, map_file(&file, &shared.path)?)?;
    Ok((memory, shared))
}

/// The memory of `rank`, a rank of another process that has published this name of it.
///
/// # Errors
/// [`Error::PeerValue`] where there is no such memory, or where it has another size;
/// [`Error::Cuda`] where the driver cannot pin it.
pub(super) fn open(
    context: &Arc<CudaContext>,
    rank: Rank,
    name: Option<SharedName>,
    bytes: u64,
) -> Result<HostMemory> {
    const WHAT: &str = "its host memory";
    let expected = format!("a file of {bytes} bytes in {FOLDER}");
    let name = name.ok_or_else(|| Error::peer_value(rank, WHAT, &expected, "none"))?;
    let path = path_of(name);
    let mut options = OpenOptions::new();
    let opened = options.read(true).write(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path);
    let file = opened.map_err(|error| {
        let seen = format!(
            "{}: {error}; containers of one node share it with --ipc=host, or have nodes' names \
             of their own (RINGDOVE_HOST_ID)",
            path.display()
        );
        Error::peer_value(rank, WHAT, &expected, seen)
    })?;
    let length = file.metadata().map_or(0, |metadata| metadata.size());
    if length != bytes {
        return Err(Error::peer_value(rank, WHAT, &expected, format!("{length} bytes")));
    }
    HostMemory::register(context, map_file(&file, &path)?)
}

fn path_of(name: SharedName) -> PathBuf {
    let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    Path::new(FOLDER).join(format!("ringdove-{digits}"))
}

fn no_memory(path: &Path, bytes: u64, cause: &str) -> Error {
    Error::System {
        what: format!(
            "{bytes} bytes of {} (more room in {FOLDER}, such as docker's --shm-size, or fewer \
             and smaller slots help: RINGDOVE_SLOTS, RINGDOVE_SLOT_BYTES)",
            path.display()
        ),
        cause: cause.to_owned(),
    }
}
