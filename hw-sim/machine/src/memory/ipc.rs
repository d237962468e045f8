//! Device memory shared between processes.
//!
//! On export an allocation moves into a memory file that is mapped over the same addresses; the
//! handle says where another process finds that file. The file has no name: it ends with the last
//! process that maps it, however that process ends.

use super::table::{Allocation, Kind};
use super::{Arena, GlobalMemory, pages};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Bytes of a handle in the driver API.
pub const HANDLE_BYTES: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"hwsimIPC");

/// Names an exported allocation to other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle {
    /// The exporter.
    pub process: u32,
    /// Its descriptor of the memory file.
    pub descriptor: i32,
    /// The GPU that holds the memory.
    pub gpu: u32,
    /// Size of the allocation.
    pub bytes: u64,
    /// The file's number: tells a reused descriptor from the one that was meant.
    pub inode: u64,
}

impl IpcHandle {
    /// As the driver API passes it.
    pub fn to_bytes(self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        let words = [
            MAGIC,
            u64::from(self.process),
            self.descriptor as u64,
            u64::from(self.gpu),
            self.bytes,
            self.inode,
        ];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// None if the bytes were never a handle.
    pub fn from_bytes(bytes: &[u8; HANDLE_BYTES]) -> Option<Self> {
        let mut words = bytes.chunks_exact(8).map(|chunk| {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let mut next = || words.next().unwrap_or_default();
        (next() == MAGIC).then(|| Self {
            process: next() as u32,
            descriptor: next() as i32,
            gpu: next() as u32,
            bytes: next(),
            inode: next(),
        })
    }
}

/// What this process exports and imports.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    exports: HashMap<u64, File>,
    /// Address of the mapping, by inode, with the number of times it was opened.
    imports: HashMap<u64, (u64, usize)>,
}

impl GlobalMemory {
    /// A handle for the allocation that holds `address`.
    pub fn export(&self, address: u64) -> Result<IpcHandle> {
        let found = self.table.find(address);
        let Some((allocation, Kind::Device { gpu })) = found.as_ref().map(|a| (a, a.kind)) else {
            return Err(Error::InvalidValue(format!("{address:#x} is not in device memory")));
        };
        let mut sharing = self.sharing.lock().unwrap();
        if !sharing.exports.contains_key(&allocation.base) {
            let file = self.migrate(allocation)?;
            sharing.exports.insert(allocation.base, file);
        }
        let file = &sharing.exports[&allocation.base];
        let inode = file.metadata().map_err(failed("examining a memory file"))?.ino();
        Ok(IpcHandle {
            process: std::process::id(),
            descriptor: file.as_raw_fd(),
            gpu: gpu as u32,
            bytes: allocation.bytes,
            inode,
        })
    }

    /// Moves an allocation's pages into a memory file at the same addresses.
    fn migrate(&self, allocation: &Allocation) -> Result<File> {
        let length = Arena::footprint(allocation.bytes);
        let file = pages::memory_file(length)?;
        let _quiet = self.gate.write().unwrap_or_else(|poison| poison.into_inner());
        let mut buffer = vec![0u8; (1 << 20).min(length as usize)];
        for offset in (0..length).step_by(buffer.len()) {
            let part = buffer.len().min((length - offset) as usize);
            let source = (allocation.base + offset) as *const u8;
            // SAFETY: the range lies in an arena, which is always mapped; the gate is ours, so no
            // kernel or copy writes meanwhile. Copied out, not referenced.
            unsafe { std::ptr::copy_nonoverlapping(source, buffer.as_mut_ptr(), part) };
            if buffer[..part].iter().any(|byte| *byte != 0) {
                file.write_all_at(&buffer[..part], offset).map_err(failed("filling the file"))?;
            }
        }
        pages::map_shared(&file, length, Some(allocation.base))?;
        Ok(file)
    }

    /// Ends an export, if there is one: importers keep the old pages, the arena gets fresh ones.
    pub(super) fn unexport(&self, allocation: &Allocation) -> Result<()> {
        let mut sharing = self.sharing.lock().unwrap();
        if sharing.exports.remove(&allocation.base).is_some() {
            let _quiet = self.gate.write().unwrap_or_else(|poison| poison.into_inner());
            pages::replace_private(allocation.base, Arena::footprint(allocation.bytes))?;
        }
        Ok(())
    }

    /// Maps what another process exported. Opening the same memory again gives the same address.
    pub fn open(&self, handle: &IpcHandle, context: u64) -> Result<u64> {
        if handle.process == std::process::id() {
            return Err(Error::InvalidContext(
                "memory exported by this process cannot be opened in it".into(),
            ));
        }
        if handle.gpu as usize >= self.arenas.len() {
            return Err(Error::InvalidValue(format!("the handle names GPU {}", handle.gpu)));
        }
        let mut sharing = self.sharing.lock().unwrap();
        if let Some((address, uses)) = sharing.imports.get_mut(&handle.inode) {
            *uses += 1;
            return Ok(*address);
        }
        let path = format!("/proc/{}/fd/{}", handle.process, handle.descriptor);
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(failed(&format!("opening the exporter's memory at {path}")))?;
        let found = file.metadata().map_err(failed("examining the exporter's memory"))?;
        let length = Arena::footprint(handle.bytes);
        if found.ino() != handle.inode || found.len() != length {
            return Err(Error::InvalidValue(format!(
                "process {} has freed the memory of this handle",
                handle.process
            )));
        }
        let base = pages::map_shared(&file, length, None)?;
        let kind = Kind::Imported { gpu: handle.gpu as usize };
        let entry = Allocation { base, bytes: handle.bytes, kind, id: 0, context, flags: 0 };
        self.table.insert(entry).expect("a fresh mapping overlaps nothing");
        sharing.imports.insert(handle.inode, (base, 1));
        Ok(base)
    }

    /// Closes once what was opened; `all` closes it for good.
    pub fn close(&self, address: u64, all: bool) -> Result<()> {
        let mut sharing = self.sharing.lock().unwrap();
        let found = sharing.imports.iter_mut().find(|(_, (base, _))| *base == address);
        let Some((&inode, (_, uses))) = found else {
            return Err(Error::InvalidValue(format!("no imported memory starts at {address:#x}")));
        };
        *uses -= 1;
        if *uses > 0 && !all {
            return Ok(());
        }
        sharing.imports.remove(&inode);
        let removed = self.table.remove(address, |kind| matches!(kind, Kind::Imported { .. }));
        let _quiet = self.gate.write().unwrap_or_else(|poison| poison.into_inner());
        if let Some(allocation) = removed {
            pages::unmap(address, Arena::footprint(allocation.bytes));
        }
        Ok(())
    }
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> Error {
    let what = what.to_owned();
    move |cause| Error::System { what: what.clone(), cause: cause.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_survive_their_byte_form() {
        let handle =
            IpcHandle { process: 77, descriptor: 9, gpu: 3, bytes: 1 << 33, inode: 12345 };
        assert_eq!(IpcHandle::from_bytes(&handle.to_bytes()), Some(handle));
        assert_eq!(IpcHandle::from_bytes(&[7; HANDLE_BYTES]), None);
    }

    /// Export must keep address and contents, and free must give clean private memory back.
    #[test]
    fn export_keeps_address_and_contents() {
        let memory = GlobalMemory::new(&[64 << 20]).unwrap();
        let base = memory.allocate(0, 3 << 20, false, 1).unwrap();
        let last = (base + (3 << 20) - 8) as *mut u64;
        // SAFETY: the allocation is ours and mapped.
        unsafe { last.write(0x1234_5678) };
        let handle = memory.export(base + 100).unwrap();
        assert_eq!(memory.export(base).unwrap(), handle, "one export, one handle");
        // SAFETY: as above.
        assert_eq!(unsafe { last.read() }, 0x1234_5678);
        assert!(matches!(memory.open(&handle, 1), Err(Error::InvalidContext(_))));
        let stranger = IpcHandle { process: 1 << 30, ..handle };
        assert!(memory.open(&stranger, 1).is_err());
        memory.free(base).unwrap();
        assert!(memory.export(base).is_err());
    }
}
