//! Host memory of a rank that others write, pinned: within a process it has no name; to other
//! processes of the node it is a [`SharedFile`].

use crate::communicator::state::{SharedFile, SharedName, no_memory};
use crate::error::Result;
use crate::gpu::HostMemory;
use crate::id::Rank;
use crate::shared::map_file;
use cudarc::driver::CudaContext;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Memory for threads of this process.
///
/// # Errors
/// [`Error::System`](crate::Error::System) where the system has no such memory;
/// [`Error::Cuda`](crate::Error::Cuda) where the driver cannot pin it.
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
    let (shared, file) = SharedFile::create(bytes)?;
    let memory = HostMemory::register(context, map_file(&file, shared.path())?)?;
    Ok((memory, shared))
}

/// The memory of `rank`, a rank of another process that has published this name of it.
///
/// # Errors
/// [`Error::PeerValue`](crate::Error::PeerValue) where there is no such memory, or where it has
/// another size; [`Error::Cuda`](crate::Error::Cuda) where the driver cannot pin it.
pub(super) fn open(
    context: &Arc<CudaContext>,
    rank: Rank,
    name: Option<SharedName>,
    bytes: u64,
) -> Result<HostMemory> {
    pin(context, &SharedFile::open(rank, name, bytes)?)
}

/// The memory that `file` is, a file of another process.
///
/// # Errors
/// [`Error::System`](crate::Error::System) where it cannot be mapped;
/// [`Error::Cuda`](crate::Error::Cuda) where the driver cannot pin it.
pub(super) fn pin(context: &Arc<CudaContext>, file: &File) -> Result<HostMemory> {
    HostMemory::register(context, map_file(file, Path::new("host memory of another process"))?)
}
