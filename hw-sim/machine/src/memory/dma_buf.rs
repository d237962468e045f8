//! Device memory as dma-bufs: descriptors that adapters take.
//!
//! A dma-buf is the memory file of an exported allocation, or of physical memory that is mapped at
//! the address, opened once more; the file's position says where in it the exported range begins.

use super::pages::PAGE;
use super::{Arena, GlobalMemory};
use crate::error::{Error, Result};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{OwnedFd, RawFd};

impl GlobalMemory {
    /// A descriptor for a range of device memory, in whole pages of the host, as the driver API
    /// wants it. The memory lives as long as the descriptor, and whatever was mapped through it.
    pub fn export_dma_buf(&self, address: u64, bytes: u64) -> Result<OwnedFd> {
        if bytes == 0 || !address.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) {
            return Err(Error::InvalidValue(format!(
                "{bytes} bytes at {address:#x}: expected whole pages of {PAGE} bytes"
            )));
        }
        let found = self.find(address);
        let found = found
            .ok_or_else(|| Error::InvalidValue(format!("no allocation holds {address:#x}")))?;
        let fits = |whole: u64, base: u64| {
            let (offset, room) = (address - base, whole - (address - base));
            let refusal = format!(
                "{bytes} bytes at {address:#x} reach past the allocation, which has {room} more"
            );
            if bytes > room { Err(Error::InvalidValue(refusal)) } else { Ok(offset) }
        };
        if let Some(mapped) = self.mapped(address) {
            // One descriptor is for one piece of physical memory, whatever is mapped beside it.
            let offset = fits(mapped.physical.bytes, mapped.base)?;
            self.note_shared();
            return open_again(mapped.physical.descriptor(), offset);
        }
        let offset = fits(Arena::footprint(found.bytes), found.base)?;
        open_again(self.export(address)?.descriptor, offset)
    }
}

/// An open memory file once more, with a position of its own.
fn open_again(descriptor: RawFd, offset: u64) -> Result<OwnedFd> {
    let failed = |cause: std::io::Error| Error::System {
        what: "opening exported device memory".into(),
        cause: cause.to_string(),
    };
    let path = format!("/proc/self/fd/{descriptor}");
    let mut file = File::options().read(true).write(true).open(path).map_err(failed)?;
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    Ok(file.into())
}
