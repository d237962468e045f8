//! Device memory shared between processes.
//!
//! On export an allocation moves into a memory file that is mapped over the same addresses; the
//! handle says which process has that file, and where in a cluster it is. The file has no name: it
//! ends with the last process that maps it, however that process ends.

use super::passing::{self, Files};
use super::table::{Allocation, AllocationKind};
use super::{Arena, GlobalMemory, pages};
use crate::error::{Error, Result};
use crate::fabric::Directory;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// Bytes of a handle in the driver API.
pub const HANDLE_BYTES: usize = 64;
/// Bytes that move at a time into a memory file.
const MIGRATED_BYTES: usize = 16 << 10;
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
    /// The node of that GPU.
    pub node: u32,
    /// Size of the allocation.
    pub bytes: u64,
    /// The file's number: tells a reused descriptor from the one that was meant.
    pub inode: u64,
    /// The cluster: device and number of its fabric's folder, 0 for a process without one.
    pub fabric: [u64; 2],
}

impl IpcHandle {
    /// As the driver API passes it.
    pub fn to_bytes(self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words = [
            MAGIC,
            pair(self.process, self.descriptor as u32),
            pair(self.gpu, self.node),
            self.bytes,
            self.inode,
            self.fabric[0],
            self.fabric[1],
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
        if next() != MAGIC {
            return None;
        }
        let (owner, place, bytes, inode) = (next(), next(), next(), next());
        Some(Self {
            process: owner as u32,
            descriptor: (owner >> 32) as i32,
            gpu: place as u32,
            node: (place >> 32) as u32,
            bytes,
            inode,
            fabric: [next(), next()],
        })
    }
}

/// Where in a cluster this process is.
#[derive(Debug, Default)]
pub struct Site {
    /// The index of its node.
    pub node: u32,
    /// What joins the cluster; None for a process that was started alone.
    pub fabric: Option<Arc<Directory>>,
}

impl Site {
    fn number(&self) -> [u64; 2] {
        self.fabric.as_ref().map_or([0; 2], |fabric| fabric.number())
    }
}

/// What this process exports and imports.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    site: Site,
    /// Numbers of memory files, by the address of their allocations.
    exports: HashMap<u64, u64>,
    /// The memory files.
    files: Files,
    /// Others can ask for them.
    serving: bool,
    /// Address of the mapping, by inode, with the number of times it was opened.
    imports: HashMap<u64, (u64, usize)>,
}

impl Sharing {
    pub fn new(site: Site) -> Self {
        Self { site, ..Self::default() }
    }

    /// Has other processes find the memory files.
    pub fn serve(&mut self) -> Result<()> {
        if let (Some(fabric), false) = (&self.site.fabric, self.serving) {
            let listening = failed("listening for processes that open exported memory");
            passing::serve(fabric, Files::clone(&self.files)).map_err(listening)?;
            self.serving = true;
        }
        Ok(())
    }

    /// A handle that leads here.
    pub fn handle(&self, descriptor: i32, gpu: u32, bytes: u64, inode: u64) -> IpcHandle {
        let (process, node) = (std::process::id(), self.site.node);
        let fabric = self.site.number();
        IpcHandle { process, descriptor, gpu, node, bytes, inode, fabric }
    }

    /// Keeps a file for others to ask for.
    pub fn keep(&self, inode: u64, file: File) {
        self.files.lock().unwrap().insert(inode, file);
    }

    /// The descriptor of a file that is kept.
    pub fn descriptor(&self, inode: u64) -> Option<i32> {
        self.files.lock().unwrap().get(&inode).map(AsRawFd::as_raw_fd)
    }

    /// Ends that.
    pub fn let_go(&self, inode: u64) {
        self.files.lock().unwrap().remove(&inode);
    }

    /// Can what the handle names be opened in this process?
    pub fn check(&self, handle: &IpcHandle) -> Result<()> {
        let (node, number) = (self.site.node, self.site.number());
        if (handle.node, handle.fabric) != (node, number) {
            let elsewhere = match handle.fabric == number {
                true => {
                    format!("node {} of the cluster; this process is on node {node}", handle.node)
                }
                false => "another machine (each `hwsim run` is one)".into(),
            };
            return Err(Error::Elsewhere(elsewhere));
        }
        // Linux shows files of a process under the numbers of its threads, too.
        let is_own = |number: u32| Path::new("/proc/self/task").join(number.to_string()).exists();
        if handle.process == std::process::id() || is_own(handle.process) {
            return Err(Error::InvalidContext("a process cannot open its own handle".into()));
        }
        Ok(())
    }

    /// The memory file of a handle.
    pub fn find(&self, handle: &IpcHandle) -> Result<File> {
        let freed = || {
            let process = handle.process;
            Error::InvalidValue(format!(
                "process {process} has freed the memory of this handle, or has ended"
            ))
        };
        let file = match &self.site.fabric {
            Some(fabric) => {
                let asking = format!("asking process {} for its memory", handle.process);
                let found = passing::ask(fabric, handle.process, handle.inode);
                // Its socket is still there, but nobody listens: the process has ended.
                let refused = io::ErrorKind::ConnectionRefused;
                if found.as_ref().is_err_and(|error| error.kind() == refused) {
                    return Err(freed());
                }
                found.map_err(failed(&asking))?.ok_or_else(freed)?
            }
            None => {
                let path = format!("/proc/{}/fd/{}", handle.process, handle.descriptor);
                let file = File::options().read(true).write(true).open(&path);
                if file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                    return Err(freed());
                }
                file.map_err(failed(&format!("opening the exporter's memory at {path}")))?
            }
        };
        let status = file.metadata().map_err(failed("examining the exporter's memory"))?;
        let length = handle.bytes.max(1).checked_next_multiple_of(pages::PAGE);
        if status.ino() != handle.inode || Some(status.len()) != length {
            return Err(freed());
        }
        pages::check_sealed(&file)?;
        Ok(file)
    }
}

impl GlobalMemory {
    /// A handle for the allocation that holds `address`.
    pub fn export(&self, address: u64) -> Result<IpcHandle> {
        let found = self.table.find(address);
        let Some((allocation, AllocationKind::Device { gpu })) =
            found.as_ref().map(|a| (a, a.kind))
        else {
            return Err(Error::InvalidValue(format!("{address:#x} is not in device memory")));
        };
        let mut sharing = self.sharing.lock().unwrap();
        sharing.serve()?;
        self.note_shared();
        let inode = match sharing.exports.get(&allocation.base) {
            Some(inode) => *inode,
            None => {
                let file = self.migrate(allocation)?;
                let inode = file.metadata().map_err(failed("examining a memory file"))?.ino();
                sharing.keep(inode, file);
                sharing.exports.insert(allocation.base, inode);
                inode
            }
        };
        let descriptor = sharing.descriptor(inode).expect("kept as long as it is exported");
        Ok(sharing.handle(descriptor, gpu as u32, allocation.bytes, inode))
    }

    /// Moves an allocation's pages into a memory file at the same addresses.
    fn migrate(&self, allocation: &Allocation) -> Result<File> {
        let length = Arena::footprint(allocation.bytes);
        let file = pages::memory_file(c"hwsim-device-memory", length)?;
        let _quiet = self.gate.write().unwrap_or_else(|poison| poison.into_inner());
        let mut buffer = [0; MIGRATED_BYTES];
        for offset in (0..length).step_by(buffer.len()) {
            let part = buffer.len().min((length - offset) as usize);
            let source = (allocation.base + offset) as *const u8;
            // SAFETY: the range lies in an arena, which is always mapped; the gate is ours, so no
            // kernel or copy writes meanwhile. Copied out, not referenced.
            unsafe { std::ptr::copy_nonoverlapping(source, buffer.as_mut_ptr(), part) };
            // A file has no pages where nothing was written.
            if buffer[..part] != [0; MIGRATED_BYTES][..part] {
                file.write_all_at(&buffer[..part], offset).map_err(failed("filling the file"))?;
            }
        }
        pages::map_shared(&file, length, Some(allocation.base))?;
        Ok(file)
    }

    /// Ends an export, if there is one: importers keep the old pages, the arena gets fresh ones.
    pub(super) fn unexport(&self, allocation: &Allocation) -> Result<()> {
        let mut sharing = self.sharing.lock().unwrap();
        if let Some(inode) = sharing.exports.remove(&allocation.base) {
            sharing.let_go(inode);
            let _quiet = self.gate.write().unwrap_or_else(|poison| poison.into_inner());
            pages::replace_private(allocation.base, Arena::footprint(allocation.bytes))?;
        }
        Ok(())
    }

    /// Maps what another process exported. Opening the same memory again gives the same address.
    pub fn open(&self, handle: &IpcHandle, context: u64) -> Result<u64> {
        let mut sharing = self.sharing.lock().unwrap();
        sharing.check(handle)?;
        if handle.gpu as usize >= self.arenas.len() {
            return Err(Error::InvalidValue(format!("the handle names GPU {}", handle.gpu)));
        }
        if let Some((address, uses)) = sharing.imports.get_mut(&handle.inode) {
            *uses += 1;
            return Ok(*address);
        }
        self.note_shared();
        let (file, length) = (sharing.find(handle)?, Arena::footprint(handle.bytes));
        let base = pages::map_shared(&file, length, None)?;
        let kind = AllocationKind::Imported { gpu: handle.gpu as usize };
        let entry =
            Allocation { base, bytes: handle.bytes, kind, id: 0, context, flags: 0, rights: None };
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
        let removed =
            self.table.remove(address, |kind| matches!(kind, AllocationKind::Imported { .. }));
        let _quiet = self.gate.write().unwrap_or_else(|poison| poison.into_inner());
        if let Some(allocation) = removed {
            pages::unmap(address, Arena::footprint(allocation.bytes));
        }
        Ok(())
    }
}

pub(super) fn failed(what: &str) -> impl Fn(io::Error) -> Error {
    let what = what.to_owned();
    move |cause| Error::System { what: what.clone(), cause: cause.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_survive_their_byte_form() {
        let handle = IpcHandle {
            process: 77,
            descriptor: 9,
            gpu: 3,
            node: 5,
            bytes: 1 << 33,
            inode: 12345,
            fabric: [2, u64::MAX],
        };
        assert_eq!(IpcHandle::from_bytes(&handle.to_bytes()), Some(handle));
        assert_eq!(IpcHandle::from_bytes(&[7; HANDLE_BYTES]), None);
    }

    /// If this fails, a handle that somebody has changed opens memory, or ends the process.
    #[test]
    fn changed_handles_open_nothing() {
        let memory = GlobalMemory::new(&[64 << 20], Site::default()).unwrap();
        let base = memory.allocate(0, 3 << 20, false, 1).unwrap();
        let right = memory.export(base).unwrap().to_bytes();
        let seed = 20_261_125;
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut handles = 0;
        for _ in 0..2000 {
            let mut bytes = right;
            for _ in 0..random.usize(1..=8) {
                bytes[random.usize(0..HANDLE_BYTES)] = random.choice([0, 1, 0x7f, 0xff]).unwrap();
            }
            if let Some(handle) = IpcHandle::from_bytes(&bytes) {
                handles += 1;
                // This process opens no handle of its own, and no other has made one.
                assert!(memory.open(&handle, 1).is_err(), "{handle:?}");
            }
        }
        assert!(handles > 500, "{handles} of 2000 are handles");
        memory.free(base).unwrap();
    }

    /// Export must keep address and contents, and free must give clean private memory back.
    #[test]
    fn export_keeps_address_and_contents() {
        let memory = GlobalMemory::new(&[64 << 20], Site::default()).unwrap();
        let base = memory.allocate(0, 3 << 20, false, 1).unwrap();
        let last = (base + (3 << 20) - 8) as *mut u64;
        // SAFETY: the allocation is ours and mapped.
        unsafe { last.write(0x1234_5678) };
        let handle = memory.export(base + 100).unwrap();
        assert_eq!(memory.export(base).unwrap(), handle, "one export, one handle");
        // SAFETY: as above.
        assert_eq!(unsafe { last.read() }, 0x1234_5678);
        assert!(matches!(memory.open(&handle, 1), Err(Error::InvalidContext(_))));
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        let process = thread.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let by_thread = IpcHandle { process, ..handle };
        assert!(matches!(memory.open(&by_thread, 1), Err(Error::InvalidContext(_))));
        let stranger = IpcHandle { process: 1 << 30, ..handle };
        assert!(memory.open(&stranger, 1).is_err());
        for elsewhere in
            [IpcHandle { node: 1, ..stranger }, IpcHandle { fabric: [1, 1], ..stranger }]
        {
            assert!(matches!(memory.open(&elsewhere, 1), Err(Error::Elsewhere(_))));
        }
        memory.free(base).unwrap();
        assert!(memory.export(base).is_err());
    }
}
