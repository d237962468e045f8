//! Memory that an adapter may read and write.

use super::adapter::{Adapter, refused};
use crate::error::{Error, Result};
use crate::shared::{DeviceRange, Extent, Region};
use ibverbs_sys as sys;
use std::fmt;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Registered memory, deregistered on drop. After that the adapter refuses every access to it, its
/// own and its peers', so dropping it early is an error for somebody but never a wild write.
pub struct MemoryRegion {
    raw: NonNull<sys::ibv_mr>,
    base: u64,
    length_bytes: u64,
    how: RegisteredAs,
    // Dropped after deregistration.
    memory: Memory,
    adapter: Arc<Adapter>,
}

// SAFETY: memory regions may be used from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above; nothing changes a region but drop.
unsafe impl Sync for MemoryRegion {}

enum Memory {
    Host(Region),
    Device { _range: Arc<dyn DeviceRange> },
}

/// How an adapter reaches registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisteredAs {
    /// Host memory.
    HostMemory,
    /// Device memory that the driver exported as a dma-buf.
    DmaBuffer,
    /// Device memory by its address: a peer-memory module (such as nvidia-peermem) answers for it.
    PeerMemory,
}

impl fmt::Display for RegisteredAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostMemory => "host memory",
            Self::DmaBuffer => "device memory as a dma-buf",
            Self::PeerMemory => "device memory through peer memory",
        })
    }
}

/// What others may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// Nothing: it is read here, and sent.
    None,
    /// Peers may write it (and read it, to flush).
    Write,
}

impl RemoteAccess {
    fn flags(self) -> u32 {
        use sys::ibv_access_flags as flags;
        match self {
            Self::None => flags::IBV_ACCESS_LOCAL_WRITE.0,
            Self::Write => {
                flags::IBV_ACCESS_LOCAL_WRITE.0
                    | flags::IBV_ACCESS_REMOTE_WRITE.0
                    | flags::IBV_ACCESS_REMOTE_READ.0
            }
        }
    }
}

impl Adapter {
    /// Registers host memory.
    ///
    /// # Errors
    /// [`Error::System`] with the kernel's reason; most often a limit on locked memory.
    pub fn register_host(
        self: &Arc<Self>,
        memory: &Region,
        access: RemoteAccess,
    ) -> Result<MemoryRegion> {
        let (base, length_bytes) = (memory.base_address(), memory.length_bytes() as u64);
        let raw = self.register_address(base, length_bytes, access)?;
        let memory = Memory::Host(memory.clone());
        Ok(self.region(raw, base, length_bytes, RegisteredAs::HostMemory, memory))
    }

    /// Registers device memory: as a dma-buf where the driver exports one, else by its address,
    /// which works where a peer-memory module is loaded.
    ///
    /// # Errors
    /// [`Error::System`] with both reasons. The caller then stages through host memory.
    pub fn register_device(
        self: &Arc<Self>,
        range: &Arc<dyn DeviceRange>,
        access: RemoteAccess,
    ) -> Result<MemoryRegion> {
        let (base, length_bytes) = (range.address(), range.length_bytes());
        let (raw, how) = match self.register_dma_buffer(range.as_ref(), access) {
            Ok(raw) => (raw, RegisteredAs::DmaBuffer),
            Err(why_not) => match self.register_address(base, length_bytes, access) {
                Ok(raw) => {
                    tracing::info!(%why_not, "device memory is no dma-buf; peer memory serves");
                    (raw, RegisteredAs::PeerMemory)
                }
                Err(error) => return Err(neither(self.name(), length_bytes, &why_not, &error)),
            },
        };
        let memory = Memory::Device { _range: range.clone() };
        Ok(self.region(raw, base, length_bytes, how, memory))
    }

    fn region(
        self: &Arc<Self>,
        raw: NonNull<sys::ibv_mr>,
        base: u64,
        length_bytes: u64,
        how: RegisteredAs,
        memory: Memory,
    ) -> MemoryRegion {
        MemoryRegion { raw, base, length_bytes, how, memory, adapter: self.clone() }
    }

    fn register_address(
        &self,
        base: u64,
        length_bytes: u64,
        access: RemoteAccess,
    ) -> Result<NonNull<sys::ibv_mr>> {
        // SAFETY: the memory's owner (a `Region` or a `DeviceRange`) permits devices to write it,
        // and the caller keeps it beside the registration.
        let raw = unsafe {
            (self.context().functions.reg_mr)(
                self.protection_domain(),
                base as *mut _,
                length_bytes as usize,
                access.flags() as i32,
            )
        };
        NonNull::new(raw).ok_or_else(|| {
            refused("ibv_reg_mr", self.name(), &format!(" for {length_bytes} bytes at {base:#x}"))
        })
    }

    fn register_dma_buffer(
        &self,
        range: &dyn DeviceRange,
        access: RemoteAccess,
    ) -> std::result::Result<NonNull<sys::ibv_mr>, String> {
        let register = self
            .context()
            .functions
            .reg_dmabuf_mr
            .ok_or("libibverbs is older than ibv_reg_dmabuf_mr")?;
        let buffer = range.dma_buffer()?;
        // SAFETY: the file is open, and the range's contract permits devices to write it. The
        // device addresses are kept as the region's virtual addresses, so that offsets mean the
        // same on both sides. The kernel holds the buffer from here on.
        let raw = unsafe {
            register(
                self.protection_domain(),
                buffer.offset,
                range.length_bytes() as usize,
                range.address(),
                buffer.file.as_raw_fd(),
                access.flags() as i32,
            )
        };
        NonNull::new(raw)
            .ok_or_else(|| format!("ibv_reg_dmabuf_mr: {}", std::io::Error::last_os_error()))
    }
}

fn neither(adapter: &str, length_bytes: u64, dma_buffer: &str, peer_memory: &Error) -> Error {
    Error::System {
        what: format!("registering {length_bytes} bytes of device memory with {adapter}"),
        cause: format!(
            "as a dma-buf: {dma_buffer}; through peer memory: {peer_memory}. A driver that \
             exports dma-bufs, or the nvidia-peermem module, saves the way through host memory"
        ),
    }
}

impl MemoryRegion {
    /// How the adapter reaches it.
    pub fn how(&self) -> RegisteredAs {
        self.how
    }

    /// The adapter that it is registered with.
    pub(super) fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// What peers need to write it.
    pub fn remote(&self) -> RemoteRegion {
        // SAFETY: the region is registered until drop.
        let rkey = unsafe { self.raw.as_ref().rkey };
        RemoteRegion { base: self.base, length_bytes: self.length_bytes, rkey }
    }

    /// The same, in the form in which ranks exchange it.
    pub fn encode_remote(&self) -> Vec<u8> {
        self.remote().encode().to_vec()
    }

    /// What this side's work requests need to read it.
    pub(super) fn local(&self) -> LocalRegion {
        // SAFETY: as above.
        let lkey = unsafe { self.raw.as_ref().lkey };
        let host = match &self.memory {
            Memory::Host(region) => Some(region.clone()),
            Memory::Device { .. } => None,
        };
        LocalRegion { base: self.base, length_bytes: self.length_bytes, lkey, host }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: registered by `Adapter`, deregistered only here.
        let status = unsafe { (self.adapter.context().functions.dereg_mr)(self.raw.as_ptr()) };
        if status != 0 {
            let adapter = self.adapter.name();
            tracing::warn!(adapter, status, base = self.base, "memory stays registered");
        }
    }
}

/// Registered memory as this side's work requests see it.
#[derive(Clone)]
pub(super) struct LocalRegion {
    pub(super) base: u64,
    pub(super) length_bytes: u64,
    pub(super) lkey: u32,
    /// Set for host memory: the processor may copy small messages out of it. Keeps it alive.
    pub(super) host: Option<Region>,
}

/// A peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// Address of the first byte at the peer.
    pub base: u64,
    /// Bytes.
    pub length_bytes: u64,
    /// The key that permits access.
    pub rkey: u32,
}

/// First bytes of an encoded [`RemoteRegion`]; the last one is the version.
const REGION_MAGIC: [u8; 4] = *b"RDR\x01";

impl RemoteRegion {
    /// Bytes of the encoded form.
    pub const ENCODED_BYTES: usize = 24;

    /// Where it is at the peer.
    pub fn extent(&self) -> Extent {
        Extent { base: self.base, length_bytes: self.length_bytes }
    }

    /// The form in which ranks exchange it.
    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        bytes[..4].copy_from_slice(&REGION_MAGIC);
        bytes[4..8].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.base.to_le_bytes());
        bytes[16..].copy_from_slice(&self.length_bytes.to_le_bytes());
        bytes
    }

    /// Reads what a peer encoded.
    ///
    /// # Errors
    /// [`Error::Argument`] for anything that [`encode`](Self::encode) cannot have written.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let bad = |seen: String| {
            Error::argument("memory region of the peer", "24 bytes of version 1", seen)
        };
        let bytes: &[u8; Self::ENCODED_BYTES] =
            bytes.try_into().map_err(|_| bad(format!("{} bytes", bytes.len())))?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        if bytes[..4] != REGION_MAGIC {
            return Err(bad(format!("a beginning of {:02x?}", &bytes[..4])));
        }
        let region =
            Self { rkey: (word(4) & 0xffff_ffff) as u32, base: word(8), length_bytes: word(16) };
        match region.base.checked_add(region.length_bytes) {
            Some(_) if region.length_bytes > 0 => Ok(region),
            _ => Err(bad(format!("{} bytes at {:#x}", region.length_bytes, region.base))),
        }
    }
}
