//! How much of each GPU's memory the processes of a node have taken.
//!
//! Every process has its own arenas, but all share the GPU's memory. A file in the fabric's folder
//! holds, for each GPU and process, the bytes that are taken. A process writes to its own slot
//! only, and holds a lock on it: the lock of a process that has ended is gone, and its slot counts
//! for nothing, however it ended.

use crate::fabric::Directory;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Processes of one node at most.
const SLOTS: u64 = 1024;
/// Bytes of an entry.
const WORD: u64 = 8;

/// The file, and this process's slot in it.
#[derive(Debug)]
pub(super) struct Ledger {
    file: File,
    slot: u64,
    /// The file's lock is one for the process; this one is between its threads.
    turn: Mutex<()>,
}

impl Ledger {
    /// Takes a slot in the ledger of a node.
    pub fn open(fabric: &Directory, node: u32, gpus: usize) -> io::Result<Self> {
        let file = fabric.file_or_new(&format!("memory-node{node}"))?;
        for slot in 0..SLOTS {
            match fcntl(&file, FcntlArg::F_OFD_SETLK(&lock_of(slot))) {
                Ok(_) => {
                    let ledger = Self { file, slot, turn: Mutex::default() };
                    for gpu in 0..gpus {
                        // What the slot's last holder left.
                        ledger.note(gpu, 0)?;
                    }
                    return Ok(ledger);
                }
                Err(Errno::EAGAIN | Errno::EACCES) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let most = format!("this node already has {SLOTS} processes, the most that it supports");
        Err(io::Error::new(io::ErrorKind::ResourceBusy, most))
    }

    /// Runs `body` while no other thread of any process is in here: what it finds out still holds
    /// when it notes the consequence.
    pub fn alone<T>(&self, body: impl FnOnce() -> T) -> io::Result<T> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.file.lock()?;
        let result = body();
        self.file.unlock()?;
        Ok(result)
    }

    /// Notes how many bytes of a GPU this process has taken.
    pub fn note(&self, gpu: usize, bytes: u64) -> io::Result<()> {
        let entry = gpu as u64 * SLOTS + self.slot;
        self.file.write_all_at(&bytes.to_ne_bytes(), entry * WORD)
    }

    /// Bytes of a GPU that other processes have taken.
    pub fn others(&self, gpu: usize) -> io::Result<u64> {
        let mut row = [0; (SLOTS * WORD) as usize];
        // Short where the file ends: nobody has noted anything there.
        self.file.read_at(&mut row, gpu as u64 * SLOTS * WORD)?;
        let mut sum = 0u64;
        for (slot, entry) in (0..).zip(row.chunks_exact(WORD as usize)) {
            let mut word = [0; WORD as usize];
            word.copy_from_slice(entry);
            let bytes = u64::from_ne_bytes(word);
            if bytes != 0 && slot != self.slot && self.is_held(slot)? {
                sum = sum.saturating_add(bytes);
            }
        }
        Ok(sum)
    }

    fn is_held(&self, slot: u64) -> io::Result<bool> {
        let mut lock = lock_of(slot);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }
}

/// The lock of a slot: one byte of the file, of whatever content. It belongs to the open file, not
/// to the process, so that it works between two machines in one process, too.
fn lock_of(slot: u64) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: slot as i64,
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_took_counts_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let fabric = Directory::open(folder.path()).unwrap();
        let open = |node| Ledger::open(&fabric, node, 2).unwrap();
        let (first, second, elsewhere) = (open(0), open(0), open(1));
        first.note(1, 100).unwrap();
        second.note(1, 10).unwrap();
        elsewhere.note(1, 1).unwrap();
        assert_eq!((first.others(1).unwrap(), second.others(1).unwrap()), (10, 100));
        assert_eq!((first.others(0).unwrap(), elsewhere.others(1).unwrap()), (0, 0));
        drop(first);
        assert_eq!(second.others(1).unwrap(), 0, "its holder is gone");
        let third = open(0);
        assert_eq!((third.slot, second.others(1).unwrap()), (0, 0), "a slot is taken over empty");
    }
}
