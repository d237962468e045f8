//! Memory regions: which memory adapters may touch, and how.

use super::access::Access;
use super::completion::CompletionStatus;
use super::error::{Result, VerbsError};
use super::window::{self, Party, Window};
use crate::memory::{AccessGuard, GlobalMemory};
use std::collections::HashMap;
use std::fs::File;
use std::io::Seek;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{RwLock, RwLockReadGuard};

/// Beginnings of the names of memory files that stand for exported GPU memory: allocations, and
/// physical memory without addresses.
const MEMORY_FILES: [&str; 2] = ["/memfd:hwsim-device-memory", "/memfd:hwsim-physical-memory-"];

/// Memory to register.
#[derive(Debug)]
pub struct RegionRequest {
    /// The protection domain.
    pub domain: u64,
    /// The address that work requests and peers use.
    pub io_address: u64,
    /// Bytes.
    pub length: u64,
    /// Rights.
    pub access: Access,
}

/// Memory of a region.
#[derive(Debug)]
enum Backing {
    /// The program's own memory.
    Host,
    /// An allocation of a GPU: by number, for its address may be given out again.
    Device { id: u64, allocation: u64 },
    /// A mapping of a dma-buf, which keeps the memory alive.
    DmaBuf { mapping: u64, length: u64 },
}

#[derive(Debug)]
pub(super) struct Region {
    pub domain: u64,
    pub io_address: u64,
    pub length: u64,
    /// Where `io_address` lies in this process.
    base: u64,
    pub access: Access,
    backing: Backing,
}

/// A change of a registration; what is `None` stays.
#[derive(Debug, Default)]
pub struct RegionChange {
    /// The protection domain.
    pub domain: Option<u64>,
    /// Rights.
    pub access: Option<Access>,
    /// Other memory of the program: address and bytes.
    pub memory: Option<(u64, u64)>,
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Backing::DmaBuf { mapping, length } = self.backing {
            // SAFETY: the mapping is the region's own, and no copy is under way: those hold the
            // table that the region was taken out of.
            unsafe { libc::munmap(mapping as *mut libc::c_void, length as usize) };
        }
    }
}

/// All regions of a process, and the windows over them. Local and remote keys are the same number.
#[derive(Debug, Default)]
pub(super) struct Regions {
    pub table: RwLock<RegionTable>,
}

#[derive(Debug, Default)]
pub(super) struct RegionTable {
    pub regions: HashMap<u32, Region>,
    /// By the part of their keys that stays.
    pub windows: HashMap<u32, Window>,
    made: u32,
}

impl RegionTable {
    /// A key that no region and no window has.
    pub fn new_key(&mut self) -> u32 {
        loop {
            self.made = self.made.wrapping_add(1);
            // Keys of different processes differ, so that one given to the wrong peer is noticed;
            // and one that was deregistered does not come back soon.
            let key = (self.made << 8 ^ std::process::id().wrapping_mul(0x9e37_79b1)) & !0xff
                | (self.made & 0x7f) << 1;
            let is_window = self.windows.contains_key(&window::index(key));
            if key != 0 && !is_window && !self.regions.contains_key(&key) {
                return key;
            }
        }
    }

    /// Is a window bound to this region?
    fn is_bound(&self, key: u32) -> bool {
        let mut bindings = self.windows.values().filter_map(|window| window.bound.as_ref());
        bindings.any(|bound| bound.region == key)
    }
}

/// Who decides whether an address is GPU memory, and whether adapters may reach that directly.
#[derive(Clone, Copy)]
pub(super) struct GpuReach<'a> {
    pub memory: Option<&'a GlobalMemory>,
    pub peer_memory: bool,
}

impl GpuReach<'_> {
    /// Finds out what kind of memory this is, and that it may be registered with these rights.
    fn backing(self, base: u64, length: u64, access: Access) -> Result<Backing> {
        let end = base.checked_add(length);
        let end = end.ok_or_else(|| VerbsError::Fault("the range wraps around".into()))?;
        let on_gpu = self.memory.filter(|memory| {
            memory.find(base).is_some_and(|found| !found.kind.is_host())
                || memory.arena_of(base).is_some()
        });
        match on_gpu {
            Some(_) if !self.peer_memory => Err(VerbsError::Fault(format!(
                "{base:#x} is GPU memory, and this machine's adapters do not support peer \
                 memory: use a dma-buf"
            ))),
            Some(memory) => {
                memory.check(base, length).map_err(|e| VerbsError::Fault(e.to_string()))?;
                let found = memory.find(base);
                let found = found.ok_or_else(|| VerbsError::Fault("freed meanwhile".into()))?;
                Ok(Backing::Device { id: found.id, allocation: found.base })
            }
            None => {
                check_mapped(base, end, access)?;
                Ok(Backing::Host)
            }
        }
    }
}

/// Leave to touch registered memory: nothing is deregistered, and no GPU memory remapped, while one
/// of these lives.
pub(super) struct Held<'a> {
    table: RwLockReadGuard<'a, RegionTable>,
    gpu_memory: Option<&'a GlobalMemory>,
    _gate: Option<AccessGuard<'a>>,
}

impl Regions {
    /// Registers memory of the program, or of a GPU where `peer_memory` allows it.
    pub fn register(&self, request: &RegionRequest, base: u64, reach: GpuReach<'_>) -> Result<u32> {
        check_rights(request)?;
        let backing = reach.backing(base, request.length, request.access)?;
        Ok(self.enter(request, base, backing))
    }

    /// Changes a registration; its key stays. What is refused changes nothing.
    pub fn reregister(&self, key: u32, change: &RegionChange, reach: GpuReach<'_>) -> Result<()> {
        let mut table = self.table.write().unwrap();
        if table.is_bound(key) {
            let text = format!("memory windows are bound to the region {key:#x}");
            return Err(VerbsError::Busy(text));
        }
        let region = table.regions.get_mut(&key);
        let region = region.ok_or_else(|| no_region(key))?;
        let (base, length) = change.memory.unwrap_or((region.base, region.length));
        let request = RegionRequest {
            domain: change.domain.unwrap_or(region.domain),
            io_address: if change.memory.is_some() { base } else { region.io_address },
            length,
            access: change.access.unwrap_or(region.access),
        };
        check_rights(&request)?;
        if matches!(region.backing, Backing::DmaBuf { .. }) {
            let text = "changing the registration of a dma-buf";
            return Err(VerbsError::NotSupported(text.into()));
        }
        region.backing = reach.backing(base, length, request.access)?;
        (region.domain, region.access) = (request.domain, request.access);
        (region.io_address, region.length, region.base) = (request.io_address, length, base);
        Ok(())
    }

    /// Registers a range of a dma-buf, that is, of exported GPU memory. The file's position says
    /// where in it the exported range begins.
    pub fn register_dma_buf(
        &self,
        request: &RegionRequest,
        buffer: OwnedFd,
        offset: u64,
    ) -> Result<u32> {
        check_rights(request)?;
        let link = std::fs::read_link(format!("/proc/self/fd/{}", buffer.as_raw_fd()));
        let is_one = |link: &str| MEMORY_FILES.iter().any(|name| link.starts_with(name));
        if !link.is_ok_and(|link| is_one(&link.to_string_lossy())) {
            return Err(VerbsError::Invalid(
                "the file descriptor is not a dma-buf of GPU memory".into(),
            ));
        }
        let mut file = File::from(buffer);
        let begin = file.stream_position().map_err(VerbsError::system("reading a dma-buf"))?;
        let size = file.metadata().map_err(VerbsError::system("examining a dma-buf"))?.len();
        let from = begin.checked_add(offset);
        let to = from.and_then(|from| from.checked_add(request.length));
        let (Some(from), Some(_)) = (from, to.filter(|to| *to <= size)) else {
            let (length, room) = (request.length, size - begin.min(size));
            let text = format!("{length} bytes at offset {offset} of a dma-buf of {room} bytes");
            return Err(VerbsError::Invalid(text));
        };
        // Mapped from the file's beginning: pages need no arithmetic then.
        let mapping = crate::memory::map_file(&file, size)?;
        let backing = Backing::DmaBuf { mapping, length: size };
        Ok(self.enter(request, mapping + from, backing))
    }

    fn enter(&self, request: &RegionRequest, base: u64, backing: Backing) -> u32 {
        let mut table = self.table.write().unwrap();
        let key = table.new_key();
        let region = Region {
            domain: request.domain,
            io_address: request.io_address,
            length: request.length,
            base,
            access: request.access,
            backing,
        };
        table.regions.insert(key, region);
        key
    }

    /// Ends a registration. When this returns, no copy touches the memory any more.
    pub fn deregister(&self, key: u32) -> Result<()> {
        let mut table = self.table.write().unwrap();
        if table.is_bound(key) {
            let text = format!("memory windows are bound to the region {key:#x}: take them back");
            return Err(VerbsError::Busy(text));
        }
        table.regions.remove(&key).map(drop).ok_or_else(|| no_region(key))
    }

    /// Does a protection domain still have regions or windows?
    pub fn uses(&self, domain: u64) -> bool {
        let table = self.table.read().unwrap();
        table.regions.values().any(|region| region.domain == domain)
            || table.windows.values().any(|window| window.domain == domain)
    }

    /// Holds all regions for a copy.
    pub fn hold<'a>(&'a self, gpu_memory: Option<&'a GlobalMemory>) -> Held<'a> {
        let table = self.table.read().unwrap();
        Held { table, gpu_memory, _gate: gpu_memory.map(GlobalMemory::access) }
    }
}

impl Held<'_> {
    /// Wakes kernels and streams that wait for what was written just now.
    pub fn written(&self, target: u64, length: u64) {
        if let Some(memory) = self.gpu_memory {
            memory.watches.written_unfenced(target, length);
        }
    }

    /// The address in this process of `length` bytes at `address` of a region; or
    /// [`CompletionStatus::LocalProtection`], which callers turn into what their side calls it.
    pub fn resolve(
        &self,
        domain: u64,
        key: u32,
        address: u64,
        length: u64,
        need: Access,
    ) -> std::result::Result<u64, CompletionStatus> {
        let refused = Err(CompletionStatus::LocalProtection);
        let Some(region) = self.table.regions.get(&key) else { return refused };
        let Some(offset) = address.checked_sub(region.io_address) else { return refused };
        let fits = offset <= region.length && length <= region.length - offset;
        if region.domain != domain || !region.access.has(need) || !fits {
            return refused;
        }
        self.address_in(region, offset)
    }

    /// Was the memory that this key opens registered with relaxed ordering?
    pub fn is_relaxed(&self, key: u32) -> bool {
        let window = self.table.windows.get(&window::index(key));
        let region = match window {
            Some(window) => window.bound.as_ref().map(|bound| bound.region),
            None => Some(key),
        };
        let region = region.and_then(|key| self.table.regions.get(&key));
        region.is_some_and(|region| region.access.has(Access::RELAXED))
    }

    /// The same on behalf of a peer, to which windows are open, too.
    pub fn resolve_for_peer(
        &self,
        party: Party,
        key: u32,
        range: (u64, u64),
        need: Access,
    ) -> std::result::Result<u64, CompletionStatus> {
        let Some(window) = self.table.windows.get(&window::index(key)) else {
            return self.resolve(party.domain, key, range.0, range.1, need);
        };
        let refused = CompletionStatus::LocalProtection;
        let (bound, offset) = window.opens(party, key, range, need).ok_or(refused)?;
        let region = self.table.regions.get(&bound.region).ok_or(refused)?;
        self.address_in(region, bound.start - region.io_address + offset)
    }

    /// The address of a region's byte, unless its memory is gone.
    fn address_in(
        &self,
        region: &Region,
        offset: u64,
    ) -> std::result::Result<u64, CompletionStatus> {
        if let Backing::Device { id, allocation } = region.backing {
            // Freed memory may be another allocation's by now.
            let found = self.gpu_memory.and_then(|memory| memory.find(allocation));
            if found.is_none_or(|found| found.id != id) {
                return Err(CompletionStatus::LocalProtection);
            }
        }
        Ok(region.base + offset)
    }
}

fn no_region(key: u32) -> VerbsError {
    VerbsError::Invalid(format!("no memory region has the key {key:#x}"))
}

fn check_rights(request: &RegionRequest) -> Result<()> {
    let Access(bits) = request.access;
    if bits & !Access::KNOWN != 0 {
        return Err(VerbsError::Invalid(format!("access flags {bits:#x}")));
    }
    let writes = bits & (Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0) != 0;
    if writes && !request.access.has(Access::LOCAL_WRITE) {
        return Err(VerbsError::Invalid(
            "remote write or atomic access without local write".into(),
        ));
    }
    if request.io_address.checked_add(request.length).is_none() {
        return Err(VerbsError::Invalid("the I/O address range wraps around".into()));
    }
    Ok(())
}

/// Is the program's memory there, and writable if that is wanted? Hardware would pin each page;
/// here the pages stay as they are, and only the ends are tried for writing.
fn check_mapped(base: u64, end: u64, access: Access) -> Result<()> {
    const STEP: u64 = 1 << 30;
    if base == end {
        return Ok(());
    }
    let page = 4096;
    let fault = || VerbsError::Fault(format!("memory from {base:#x} to {end:#x} is not mapped"));
    let mut from = base / page * page;
    let mut resident = vec![0u8; ((end - from).min(STEP) / page) as usize + 1];
    while from < end {
        let length = (end - from).min(STEP) as usize;
        // SAFETY: the call only reads the page tables; `resident` has a byte for each page.
        let seen = unsafe { libc::mincore(from as *mut _, length, resident.as_mut_ptr()) };
        if seen != 0 {
            return Err(fault());
        }
        from += length as u64;
    }
    // Kernels before 5.14 cannot be asked without writing.
    let here = 0u8;
    if access.has(Access::LOCAL_WRITE) && is_writable(&raw const here as u64 / page * page) {
        for place in [base / page * page, (end - 1) / page * page] {
            if !is_writable(place) {
                return Err(VerbsError::Fault(format!("memory at {place:#x} is not writable")));
            }
        }
    }
    Ok(())
}

/// Brings a page in as a write would, and changes none of its bytes.
fn is_writable(page: u64) -> bool {
    // SAFETY: the call changes no byte of the page; a page that is not there is an error.
    unsafe { libc::madvise(page as *mut _, 4096, libc::MADV_POPULATE_WRITE) == 0 }
}
