//! Virtual memory management: memory of a GPU without addresses, and addresses without memory, that
//! programs join.
//!
//! Physical memory is a memory file, so that it can be mapped at several addresses, and in several
//! processes. What kernels and copies may touch is in the allocation table: there, mapped pieces
//! that follow one another and have the same rights are one allocation, for a program takes them
//! for one.

use super::pages::{self, HUGE_PAGE};
use super::table::{Allocation, AllocationKind, Rights};
use super::{GlobalMemory, ipc};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What sizes and addresses of mapped memory are multiples of, in bytes.
pub const GRANULARITY: u64 = HUGE_PAGE;

/// More address space than a program can use.
const SPACE_BYTES_MAX: u64 = 1 << 46;

/// The memory file's name, up to the GPU's number: who imports one finds there whose it is.
const FILE_NAME: &str = "hwsim-physical-memory-";

/// Memory of a GPU that lives as long as somebody holds it, or has it mapped.
#[derive(Debug)]
pub struct Physical {
    memory: Arc<GlobalMemory>,
    /// The GPU.
    pub gpu: usize,
    /// How much.
    pub bytes: u64,
    /// Other processes may be given it.
    pub is_shareable: bool,
    /// Another process has taken it from the GPU.
    is_import: bool,
    file: File,
}

impl Drop for Physical {
    fn drop(&mut self) {
        if !self.is_import {
            // A ledger that cannot be written says so when memory is taken next.
            let _ = self.memory.uncommit(self.gpu, self.bytes);
        }
    }
}

impl PartialEq for Physical {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Physical {
    /// The memory file.
    pub(super) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// A descriptor that another process can import.
    pub fn export(&self) -> Result<OwnedFd> {
        if !self.is_shareable {
            let text = "the memory was not made to be exported as a descriptor";
            return Err(Error::InvalidValue(text.into()));
        }
        self.memory.note_shared();
        let file = self.file.try_clone().map_err(ipc::failed("copying a descriptor"))?;
        Ok(file.into())
    }
}

/// Memory that is mapped somewhere.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// Where.
    pub base: u64,
    /// What.
    pub physical: Arc<Physical>,
    /// The GPUs that may touch it, a bit each.
    rights: u64,
}

impl Mapped {
    /// One past its last byte.
    fn end(&self) -> u64 {
        self.base + self.physical.bytes
    }

    /// May a GPU touch it here?
    pub fn is_granted(&self, gpu: usize) -> bool {
        self.rights & (1 << gpu) != 0
    }
}

/// Reserved addresses.
#[derive(Debug)]
struct Space {
    bytes: u64,
    /// What the host has set aside, for the sake of alignment.
    reserved: (u64, u64),
    /// By address.
    pieces: BTreeMap<u64, Mapped>,
    /// What the allocation table has of them: rights by address.
    entered: BTreeMap<u64, (u64, u64)>,
}

impl Space {
    /// Runs of pieces with the same rights: bytes and rights by address.
    fn runs(&self) -> BTreeMap<u64, (u64, u64)> {
        let mut runs: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for piece in self.pieces.values().filter(|piece| piece.rights != 0) {
            match runs.last_entry() {
                Some(mut last)
                    if last.key() + last.get().0 == piece.base && last.get().1 == piece.rights =>
                {
                    last.get_mut().0 += piece.physical.bytes;
                }
                _ => drop(runs.insert(piece.base, (piece.physical.bytes, piece.rights))),
            }
        }
        runs
    }

    /// The addresses of the pieces that make up exactly these bytes.
    fn exactly(&self, address: u64, bytes: u64) -> Result<Vec<u64>> {
        let end = address.checked_add(bytes).filter(|_| bytes > 0);
        let mut next = address;
        let mut found = Vec::new();
        for piece in self.pieces.range(address..).map(|(_, piece)| piece) {
            if piece.base != next || Some(next) == end {
                break;
            }
            found.push(piece.base);
            next = piece.end();
        }
        if Some(next) != end {
            return Err(Error::InvalidValue(format!(
                "{bytes} bytes at {address:#x} are not whole mappings that follow one another"
            )));
        }
        Ok(found)
    }
}

/// All reserved addresses of a machine.
#[derive(Debug, Default)]
pub(super) struct Spaces(Mutex<BTreeMap<u64, Space>>);

impl Spaces {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Space>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The space that holds all of the bytes.
fn holding(spaces: &mut BTreeMap<u64, Space>, address: u64, bytes: u64) -> Result<&mut Space> {
    let found = spaces.range_mut(..=address).next_back().filter(|(base, space)| {
        let end = address.checked_add(bytes);
        end.is_some_and(|end| end <= **base + space.bytes)
    });
    found.map(|(_, space)| space).ok_or_else(|| {
        Error::InvalidValue(format!("{bytes} bytes at {address:#x} are not reserved addresses"))
    })
}

fn check_granularity(what: &str, number: u64) -> Result<()> {
    if number.is_multiple_of(GRANULARITY) {
        return Ok(());
    }
    let text = format!("{what} of {number:#x} is no multiple of the granularity, {GRANULARITY}");
    Err(Error::InvalidValue(text))
}

impl GlobalMemory {
    /// Takes memory of a GPU, which has no address yet.
    pub fn create_physical(
        self: &Arc<Self>,
        gpu: usize,
        bytes: u64,
        is_shareable: bool,
    ) -> Result<Arc<Physical>> {
        check_granularity("a size", bytes)?;
        if bytes == 0 {
            return Err(Error::InvalidValue("physical memory of 0 bytes".into()));
        }
        self.commit(gpu, bytes)?;
        let name = CString::new(format!("{FILE_NAME}{gpu}")).expect("digits have no NUL");
        let file = pages::memory_file(&name, bytes).inspect_err(|_| {
            // As in `Drop`.
            let _ = self.uncommit(gpu, bytes);
        })?;
        let memory = Arc::clone(self);
        Ok(Arc::new(Physical { memory, gpu, bytes, is_shareable, is_import: false, file }))
    }

    /// Physical memory of another process, by its descriptor.
    pub fn import_physical(self: &Arc<Self>, descriptor: OwnedFd) -> Result<Arc<Physical>> {
        let file = File::from(descriptor);
        pages::check_sealed(&file)?;
        let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map_err(ipc::failed("examining a descriptor"))?;
        let name = link.to_string_lossy();
        let number = name.strip_prefix("/memfd:").and_then(|name| name.strip_prefix(FILE_NAME));
        let number = number.and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
        let bytes = file.metadata().map_err(ipc::failed("examining a memory file"))?.len();
        let gpu = number.filter(|&gpu| gpu < self.arenas.len());
        let (Some(gpu), true) = (gpu, bytes > 0 && bytes.is_multiple_of(GRANULARITY)) else {
            let text = format!("a descriptor of {name}, which is no memory of this machine's GPUs");
            return Err(Error::InvalidValue(text));
        };
        self.note_shared();
        let memory = Arc::clone(self);
        let (is_shareable, is_import) = (true, true);
        Ok(Arc::new(Physical { memory, gpu, bytes, is_shareable, is_import, file }))
    }

    /// Sets addresses aside, at a multiple of `alignment`.
    pub fn reserve_addresses(&self, bytes: u64, alignment: u64) -> Result<u64> {
        check_granularity("a size", bytes)?;
        let alignment = alignment.max(GRANULARITY);
        if bytes == 0 || bytes > SPACE_BYTES_MAX || !alignment.is_power_of_two() {
            let text = format!("{bytes} bytes of addresses at multiples of {alignment}");
            return Err(Error::InvalidValue(text));
        }
        let length = bytes + alignment.min(SPACE_BYTES_MAX);
        let start = pages::reserve(length)?;
        let base = start.next_multiple_of(alignment);
        if base + bytes > start + length {
            pages::unmap(start, length);
            return Err(Error::InvalidValue(format!("an alignment of {alignment}")));
        }
        let reserved = (start, length);
        let (pieces, entered) = Default::default();
        self.spaces.lock().insert(base, Space { bytes, reserved, pieces, entered });
        Ok(base)
    }

    /// Gives addresses back, at which nothing is mapped any more.
    pub fn free_addresses(&self, base: u64, bytes: u64) -> Result<()> {
        let mut spaces = self.spaces.lock();
        let Some(space) = spaces.get(&base).filter(|space| space.bytes == bytes) else {
            let text = format!("no {bytes} addresses were reserved at {base:#x}");
            return Err(Error::InvalidValue(text));
        };
        if let Some(piece) = space.pieces.values().next() {
            let text = format!("memory is still mapped at {:#x}", piece.base);
            return Err(Error::InvalidValue(text));
        }
        let (start, length) = space.reserved;
        spaces.remove(&base);
        pages::unmap(start, length);
        Ok(())
    }

    /// Maps all of some memory at reserved addresses. Nobody may touch it there yet.
    pub fn map(&self, address: u64, physical: &Arc<Physical>) -> Result<()> {
        check_granularity("an address", address)?;
        let mut spaces = self.spaces.lock();
        let space = holding(&mut spaces, address, physical.bytes)?;
        let end = address + physical.bytes;
        let before = space.pieces.range(..end).next_back();
        if let Some((_, other)) = before.filter(|(_, other)| other.end() > address) {
            let text = format!("memory is mapped at {:#x} already", other.base);
            return Err(Error::InvalidValue(text));
        }
        pages::map_shared(&physical.file, physical.bytes, Some(address))?;
        let physical = Arc::clone(physical);
        space.pieces.insert(address, Mapped { base: address, physical, rights: 0 });
        Ok(())
    }

    /// Unmaps whole mappings that follow one another.
    pub fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        let mut spaces = self.spaces.lock();
        let space = holding(&mut spaces, address, bytes)?;
        let all = space.exactly(address, bytes)?;
        let gone: Vec<_> = all.iter().filter_map(|base| space.pieces.remove(base)).collect();
        self.enter_runs(space);
        {
            let _quiet = self.gate.write().unwrap_or_else(PoisonError::into_inner);
            pages::replace_private(address, bytes)?;
        }
        // The last holder of physical memory gives it back.
        drop(gone);
        Ok(())
    }

    /// Says whether a GPU may touch whole mappings that follow one another.
    pub fn set_access(&self, address: u64, bytes: u64, gpu: usize, granted: bool) -> Result<()> {
        let mut spaces = self.spaces.lock();
        let space = holding(&mut spaces, address, bytes)?;
        for base in space.exactly(address, bytes)? {
            let piece = space.pieces.get_mut(&base).expect("found just now");
            piece.rights = piece.rights & !(1 << gpu) | u64::from(granted) << gpu;
        }
        self.enter_runs(space);
        Ok(())
    }

    /// What is mapped at an address.
    pub fn mapped(&self, address: u64) -> Option<Mapped> {
        let mut spaces = self.spaces.lock();
        let space = holding(&mut spaces, address, 1).ok()?;
        let (_, piece) = space.pieces.range(..=address).next_back()?;
        (address < piece.end()).then(|| piece.clone())
    }

    /// Brings the allocation table up to date, in one step: kernels go on using what stays.
    fn enter_runs(&self, space: &mut Space) {
        let runs = space.runs();
        let is_new = |entry: &(&u64, &(u64, u64))| space.entered.get(entry.0) != Some(entry.1);
        let gone: Vec<u64> = space
            .entered
            .iter()
            .filter(|(base, entry)| runs.get(base) != Some(entry))
            .map(|(base, _)| *base)
            .collect();
        let new = runs.iter().filter(is_new).map(|(&base, &(bytes, rights))| Allocation {
            base,
            bytes,
            kind: AllocationKind::Mapped { gpu: space.pieces[&base].physical.gpu },
            id: 0,
            context: 0,
            flags: 0,
            rights: Some(Arc::new(Rights::of(rights))),
        });
        self.table.replace(&gone, new.collect());
        space.entered = runs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Site;
    use std::io::{Seek, Write};

    const MIB: u64 = 1 << 20;

    fn memory() -> Arc<GlobalMemory> {
        Arc::new(GlobalMemory::new(&[64 * MIB, 64 * MIB], Site::default()).unwrap())
    }

    fn write(address: u64, value: u64) {
        // SAFETY: the test mapped it.
        unsafe { (address as *mut u64).write(value) };
    }

    fn read(address: u64) -> u64 {
        // SAFETY: the test mapped it.
        unsafe { (address as *const u64).read() }
    }

    /// Two addresses of one piece of memory show the same bytes; and pieces that follow one another
    /// are one allocation, up to where rights differ.
    #[test]
    fn memory_is_where_it_is_mapped() {
        let memory = memory();
        let [first, second] =
            [0, 1].map(|gpu| memory.create_physical(gpu, 4 * MIB, false).unwrap());
        assert_eq!(memory.usage(0).0, 60 * MIB);
        let base = memory.reserve_addresses(32 * MIB, 16 * MIB).unwrap();
        assert!(base.is_multiple_of(16 * MIB));
        memory.map(base, &first).unwrap();
        assert!(memory.find(base).is_none(), "nobody may touch it yet");
        memory.map(base + 4 * MIB, &second).unwrap();
        memory.map(base + 16 * MIB, &first).unwrap();
        memory.set_access(base, 8 * MIB, 0, true).unwrap();
        memory.set_access(base + 16 * MIB, 4 * MIB, 0, true).unwrap();
        write(base, 7);
        assert_eq!(read(base + 16 * MIB), 7);
        let whole = memory.find(base + 5 * MIB).unwrap();
        assert_eq!((whole.base, whole.bytes), (base, 8 * MIB));
        let id = memory.find(base + 16 * MIB).unwrap().id;
        memory.set_access(base + 4 * MIB, 4 * MIB, 1, true).unwrap();
        assert_eq!(memory.find(base).unwrap().bytes, 4 * MIB, "rights differ");
        assert_eq!(memory.find(base + 16 * MIB).unwrap().id, id, "others stay as they are");
        assert!(memory.mapped(base + 4 * MIB).unwrap().is_granted(1));
        assert!(!memory.mapped(base).unwrap().is_granted(1));
        memory.unmap(base, 4 * MIB).unwrap();
        assert!(memory.find(base).is_none() && memory.mapped(base).is_none());
        assert_eq!(read(base + 16 * MIB), 7);
        memory.free_addresses(base, 32 * MIB).unwrap_err();
        memory.unmap(base + 4 * MIB, 4 * MIB).unwrap();
        memory.unmap(base + 16 * MIB, 4 * MIB).unwrap();
        drop((first, second));
        assert_eq!(memory.usage(0).0, 64 * MIB, "all of it has come back");
        memory.free_addresses(base, 32 * MIB).unwrap();
        memory.free_addresses(base, 32 * MIB).unwrap_err();
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let memory = memory();
        for bytes in [0, MIB, 65 * MIB, 66 * MIB] {
            memory.create_physical(0, bytes, false).unwrap_err();
        }
        for (bytes, alignment) in [(0, 0), (MIB, 0), (2 * MIB, 3 << 21), (1 << 47, 0)] {
            memory.reserve_addresses(bytes, alignment).unwrap_err();
        }
        assert_eq!(memory.usage(0).0, 64 * MIB);
        let physical = memory.create_physical(0, 4 * MIB, false).unwrap();
        let base = memory.reserve_addresses(8 * MIB, 0).unwrap();
        for wrong in [base + 6 * MIB, base + MIB, base.wrapping_sub(2 * MIB), 0, u64::MAX - 1] {
            memory.map(wrong, &physical).unwrap_err();
        }
        memory.map(base + 2 * MIB, &physical).unwrap();
        memory.map(base, &physical).unwrap_err();
        for (address, bytes) in [(base, 4 * MIB), (base + 2 * MIB, 2 * MIB), (base, 8 * MIB)] {
            memory.set_access(address, bytes, 0, true).unwrap_err();
            memory.unmap(address, bytes).unwrap_err();
        }
        memory.unmap(base + 2 * MIB, 0).unwrap_err();
        memory.free(base + 2 * MIB).unwrap_err();
        physical.export().unwrap_err();
    }

    #[test]
    fn exported_memory_is_found_by_its_descriptor() {
        let memory = memory();
        let physical = memory.create_physical(1, 2 * MIB, true).unwrap();
        let again = memory.import_physical(physical.export().unwrap()).unwrap();
        assert_eq!((again.gpu, again.bytes), (1, 2 * MIB));
        let base = memory.reserve_addresses(4 * MIB, 0).unwrap();
        memory.map(base, &physical).unwrap();
        memory.map(base + 2 * MIB, &again).unwrap();
        write(base, 9);
        assert_eq!(read(base + 2 * MIB), 9);
        drop(again);
        assert_eq!(memory.usage(1).0, 62 * MIB, "who imports takes no memory of the GPU");
        let stranger = File::open("/dev/null").unwrap();
        memory.import_physical(stranger.into()).unwrap_err();
        let other = pages::memory_file(c"something-else", 2 * MIB).unwrap();
        memory.import_physical(other.into()).unwrap_err();
    }

    /// If this fails, an adapter writes to the neighbour of the memory that was registered.
    #[test]
    fn a_dma_buf_is_the_part_of_one_mapping_that_was_asked_for() {
        let memory = memory();
        let base = memory.reserve_addresses(4 * MIB, 0).unwrap();
        for at in [base, base + 2 * MIB] {
            memory.map(at, &memory.create_physical(0, 2 * MIB, false).unwrap()).unwrap();
        }
        memory.export_dma_buf(base, 4096).unwrap_err();
        memory.set_access(base, 4 * MIB, 0, true).unwrap();
        let address = base + 2 * MIB + 8192;
        let buffer = File::from(memory.export_dma_buf(address, 4096).unwrap());
        assert_eq!((&buffer).stream_position().unwrap(), 8192);
        (&buffer).write_all(&[7]).unwrap();
        assert_eq!((read(address), read(base + 8192)), (7, 0));
        memory.export_dma_buf(base + MIB, MIB).unwrap();
        for (address, bytes) in [(base + MIB, 2 * MIB), (base + 1, 4096), (base, 100), (base, 0)] {
            memory.export_dma_buf(address, bytes).unwrap_err();
        }
        // As with every dma-buf: what is unmapped lives on below it.
        memory.unmap(base, 4 * MIB).unwrap();
        (&buffer).write_all(&[8]).unwrap();
    }
}
