//! A few words that processes share, beside the memory of any GPU: what an interprocess event is
//! made of.

use super::ipc::failed;
use super::pages::{self, PAGE};
use super::table::{Allocation, AllocationKind};
use super::{GlobalMemory, IpcHandle};
use crate::error::{Error, Result};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What a handle says in place of a GPU.
const NO_GPU: u32 = u32::MAX;

/// One page of words, zero at first.
#[derive(Debug)]
pub struct SharedWords {
    memory: Arc<GlobalMemory>,
    base: u64,
    inode: u64,
    /// Made by this process, which gives others the file.
    own: bool,
}

impl SharedWords {
    /// New ones.
    pub fn create(memory: &Arc<GlobalMemory>) -> Result<Self> {
        Self::map(memory, pages::memory_file(c"hwsim-words", PAGE)?, true)
    }

    /// Those that another process exported.
    pub fn open(memory: &Arc<GlobalMemory>, handle: &IpcHandle) -> Result<Self> {
        if (handle.gpu, handle.bytes) != (NO_GPU, PAGE) {
            return Err(Error::InvalidValue("the handle is one of memory".into()));
        }
        let file = {
            let sharing = memory.sharing.lock().unwrap();
            sharing.check(handle)?;
            sharing.find(handle)?
        };
        Self::map(memory, file, false)
    }

    fn map(memory: &Arc<GlobalMemory>, file: File, own: bool) -> Result<Self> {
        let status = file.metadata().map_err(failed("examining a memory file"))?;
        let base = pages::map_shared(&file, PAGE, None)?;
        // In the table, so that streams can wait for a word. Of no context: it lives as long as
        // this value.
        let kind = AllocationKind::Pinned;
        let entry =
            Allocation { base, bytes: PAGE, kind, id: 0, context: 0, flags: 0, rights: None };
        memory.table.insert(entry).expect("a fresh mapping overlaps nothing");
        let inode = status.ino();
        if own {
            memory.sharing.lock().unwrap().keep(inode, file);
        }
        Ok(Self { memory: Arc::clone(memory), base, inode, own })
    }

    /// A handle for other processes.
    pub fn export(&self) -> Result<IpcHandle> {
        if !self.own {
            return Err(Error::InvalidHandle("what another process exported".into()));
        }
        let mut sharing = self.memory.sharing.lock().unwrap();
        sharing.serve()?;
        let descriptor = sharing.descriptor(self.inode).expect("kept while `self` lives");
        Ok(sharing.handle(descriptor, NO_GPU, PAGE, self.inode))
    }

    /// The device address of a word.
    pub fn address(&self, index: usize) -> u64 {
        assert!(index < PAGE as usize / size_of::<u64>());
        self.base + (index * size_of::<u64>()) as u64
    }

    /// A word.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        let address = self.address(index);
        // SAFETY: aligned, inside the page that stays mapped while `self` lives, and only ever
        // accessed as an atomic word, by whatever process.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        if self.own {
            self.memory.sharing.lock().unwrap().let_go(self.inode);
        }
        // A stream that still waits for a word finds it gone, which ends the wait.
        let _ = self.memory.free_host(self.base);
    }
}
