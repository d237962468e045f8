//! Pages whose bytes a device also writes: files, such as the BARs of PCI functions as Linux shows
//! them, and memory of the process that is no driver's.

use super::Region;
use crate::error::{Error, Result};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// Pages in memory, until it is dropped.
struct Mapping {
    base: NonNull<c_void>,
    length_bytes: usize,
}

// SAFETY: the address of a mapping of the process, which any thread may use and unmap.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing but its address is read from a shared one.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by this module, unmapped only here, after the last view of it is gone.
        let unmapped = unsafe { munmap(self.base, self.length_bytes) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, "pages stay mapped");
        }
    }
}

/// Maps all of `file`, whose name is `path`, so that stores reach it and loads see what others
/// store.
///
/// # Errors
/// [`Error::System`] with the file's name, if it is empty or the system refuses.
pub fn map_file(file: &File, path: &Path) -> Result<Region> {
    let failed =
        |cause: String| Error::System { what: format!("mapping of {}", path.display()), cause };
    let bytes = file.metadata().map_err(|error| failed(error.to_string()))?.len();
    let length = usize::try_from(bytes).ok().and_then(NonZeroUsize::new);
    let length = length.ok_or_else(|| failed(format!("it has {bytes} bytes")))?;
    // SAFETY: a new mapping at an address of the system's choice touches no memory in use.
    let base = unsafe { mmap(None, length, PROTECTION, MapFlags::MAP_SHARED, file, 0) };
    let base = base.map_err(|errno| failed(errno.desc().to_owned()))?;
    Ok(region_of(base, length))
}

/// New pages of zeros, at least `bytes` bytes. They are shared: a fork leaves them where a device
/// knows them.
///
/// # Errors
/// [`Error::System`] where the system has no memory left.
pub fn map_zeros(bytes: usize) -> Result<Region> {
    let length = NonZeroUsize::new(bytes.max(1)).expect("at least 1");
    // SAFETY: as in `map_file`.
    let base = unsafe { mmap_anonymous(None, length, PROTECTION, MapFlags::MAP_SHARED) };
    let base = base.map_err(|errno| Error::System {
        what: format!("{bytes} bytes of memory"),
        cause: errno.desc().to_owned(),
    })?;
    Ok(region_of(base, length))
}

const PROTECTION: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// The view of pages that were mapped just now, which unmaps them when the last part is gone.
fn region_of(base: NonNull<c_void>, length: NonZeroUsize) -> Region {
    let mapping = Arc::new(Mapping { base, length_bytes: length.get() });
    // SAFETY: the bytes are mapped, readable and writable until `mapping` is dropped, and nothing
    // in this process has a reference into them: they are reached through regions alone.
    unsafe { Region::new(base.cast(), length.get(), mapping) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_of_one_file_are_the_same_memory() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let message = map_file(file.as_file(), file.path()).unwrap_err().to_string();
        assert!(message.contains("it has 0 bytes"), "{message}");
        file.as_file_mut().set_len(8192).unwrap();
        let one = map_file(file.as_file(), file.path()).unwrap();
        let other = map_file(&file.reopen().unwrap(), file.path()).unwrap();
        one.word64(4096).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(other.word64(4096).unwrap().load(Ordering::Relaxed), 7);
        assert!(one.word64(8192).is_err());
    }
}
