//! Files whose bytes a device also writes: the BARs of PCI functions, as Linux shows them.

use super::Region;
use crate::error::{Error, Result};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of a file in memory, until it is dropped.
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
        // SAFETY: mapped by `map_file`, unmapped only here, after the last view of it is gone.
        let unmapped = unsafe { munmap(self.base, self.length_bytes) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, "a BAR stays mapped");
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
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the system's choice touches no memory in use.
    let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file, 0) };
    let base = base.map_err(|errno| failed(errno.desc().to_owned()))?;
    let mapping = Arc::new(Mapping { base, length_bytes: length.get() });
    // SAFETY: the bytes are mapped, readable and writable until `mapping` is dropped, and nothing
    // in this process has a reference into them: they are reached through regions alone.
    Ok(unsafe { Region::new(base.cast(), length.get(), mapping) })
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
