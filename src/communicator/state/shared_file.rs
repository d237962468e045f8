//! Memory of the host that processes of a node share: a file in memory. Others know it by a random
//! name until all have opened it.

use crate::bootstrap::random_bytes;
use crate::error::{Error, Result};
use crate::id::Rank;
use nix::fcntl::posix_fallocate;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Where Linux keeps files in memory that processes share.
const FOLDER: &str = "/dev/shm";

/// What names a rank's file.
pub(crate) type SharedName = [u8; 16];

/// A file that other processes can still open. Dropped, it has no name any more.
#[derive(Debug)]
pub(crate) struct SharedFile {
    name: SharedName,
    path: PathBuf,
}

impl SharedFile {
    /// A new file of so many bytes, zeros.
    ///
    /// # Errors
    /// [`Error::System`] where the system has no such memory.
    pub fn create(bytes: u64) -> Result<(Self, File)> {
        let name: SharedName = random_bytes()?;
        let path = Self::path_of(name);
        let failed = |cause: &str| no_memory(&path, bytes, cause);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(|error| failed(&error.to_string()))?;
        let shared = Self { name, path: path.clone() };
        // Pages that are missing later would be a signal that ends the process.
        posix_fallocate(&file, 0, bytes as i64).map_err(|errno| failed(errno.desc()))?;
        Ok((shared, file))
    }

    /// The file of `rank`, a rank of another process that has published this name of it.
    ///
    /// # Errors
    /// [`Error::PeerValue`] where there is no such file, or where it has another size.
    pub fn open(rank: Rank, name: Option<SharedName>, bytes: u64) -> Result<File> {
        const WHAT: &str = "its host memory";
        let expected = format!("a file of {bytes} bytes in {FOLDER}");
        let name = name.ok_or_else(|| Error::peer_value(rank, WHAT, &expected, "none"))?;
        let path = Self::path_of(name);
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path);
        let file = opened.map_err(|error| {
            let seen = format!(
                "{}: {error}; containers of one node share it with --ipc=host, or have nodes' \
                 names of their own (RINGDOVE_HOST_ID)",
                path.display()
            );
            Error::peer_value(rank, WHAT, &expected, seen)
        })?;
        let length = file.metadata().map_or(0, |metadata| metadata.size());
        if length != bytes {
            return Err(Error::peer_value(rank, WHAT, &expected, format!("{length} bytes")));
        }
        Ok(file)
    }

    pub fn name(&self) -> SharedName {
        self.name
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn path_of(name: SharedName) -> PathBuf {
        let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        Path::new(FOLDER).join(format!("ringdove-{digits}"))
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "shared memory keeps its name");
        }
    }
}

/// The error where there is no memory of so many bytes at `path`.
pub(crate) fn no_memory(path: &Path, bytes: u64, cause: &str) -> Error {
    Error::System {
        what: format!(
            "{bytes} bytes of {} (more room in {FOLDER}, such as docker's --shm-size, or fewer \
             and smaller slots help: RINGDOVE_SLOTS, RINGDOVE_SLOT_BYTES)",
            path.display()
        ),
        cause: cause.to_owned(),
    }
}
