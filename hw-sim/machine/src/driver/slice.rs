//! Time slices: processes take turns on a GPU, and their kernels never run together.
//!
//! A file in the fabric's folder has two bytes for each GPU, which are locked and never written.
//! Who holds the first one's lock has the GPU; who waits for it holds the second one's, shared, so
//! that the holder knows whether anybody does. A process that ends lets go of both.

use crate::description::Description;
use crate::error::{Error, Result};
use crate::fabric::Directory;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;
use std::time::{Duration, Instant};

/// Set in the environment of processes that MPS serves; these are one process to the GPU.
const MPS_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// This process's turns on the GPUs of its node.
pub(crate) struct Slices {
    file: File,
    length: Duration,
    gpus: Vec<Turn>,
}

/// A process's turn on a GPU.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// When it began, if this process has it.
    since: Option<Instant>,
    /// The process waits for it.
    wanted: bool,
    /// Blocks were kept waiting when it was looked at last.
    denied: bool,
    /// Whoever let go of a GPU for others does not take it again before.
    not_before: Option<Instant>,
}

impl Slices {
    /// None where processes run beside each other, or there is no other.
    pub fn new(description: &Description, fabric: Option<&Directory>) -> Result<Option<Self>> {
        let declared = std::env::var_os(MPS_VARIABLE).is_some_and(|path| !path.is_empty());
        let length = description.driver.time_slicing_us.filter(|_| !declared);
        let (Some(length), Some(fabric)) = (length, fabric) else { return Ok(None) };
        let name = format!("slices-node{}", description.node);
        let opened = fabric.file_or_new(&name);
        let file = opened.map_err(|cause| Error::System {
            what: format!("opening {}", fabric.at(&name).display()),
            cause: cause.to_string(),
        })?;
        let gpus = vec![Turn::default(); description.gpus.len()];
        Ok(Some(Self { file, length: Duration::from_micros(length.into()), gpus }))
    }

    /// Does this process wait for a GPU?
    pub fn waits(&self) -> bool {
        self.gpus.iter().any(|turn| turn.denied)
    }

    /// Ends the turns on GPUs that are `idle`.
    pub fn leave(&mut self, idle: impl Fn(usize) -> bool) {
        for gpu in 0..self.gpus.len() {
            let turn = self.gpus[gpu];
            if (turn.since.is_some() || turn.denied) && idle(gpu) {
                self.give_up(gpu);
            }
        }
    }

    fn give_up(&mut self, gpu: usize) {
        let (owned, wanted) = bytes_of(gpu);
        self.set(owned, libc::F_UNLCK);
        self.set(wanted, libc::F_UNLCK);
        self.gpus[gpu] = Turn::default();
    }

    /// True if this process has the GPU, or gets it now. `busy`: blocks of it are running, which
    /// keep it until they pause.
    pub fn hold(&mut self, gpu: usize, busy: bool) -> bool {
        let held = self.try_hold(gpu, busy);
        self.gpus[gpu].denied = !held;
        held
    }

    fn try_hold(&mut self, gpu: usize, busy: bool) -> bool {
        let (owned, wanted) = bytes_of(gpu);
        let now = Instant::now();
        if let Some(since) = self.gpus[gpu].since {
            if now - since < self.length || !self.is_wanted(wanted) {
                return true;
            }
            if !busy {
                self.give_up(gpu);
                self.gpus[gpu].not_before = Some(now + self.length / 2);
            }
            return false;
        }
        if self.gpus[gpu].not_before.is_none_or(|time| now >= time)
            && self.set(owned, libc::F_WRLCK)
        {
            self.set(wanted, libc::F_UNLCK);
            self.gpus[gpu] = Turn { since: Some(now), ..Turn::default() };
            return true;
        }
        if !self.gpus[gpu].wanted {
            self.set(wanted, libc::F_RDLCK);
            self.gpus[gpu].wanted = true;
        }
        false
    }

    /// Changes the lock of a byte; false if another process's lock forbids it.
    fn set(&self, at: i64, kind: i32) -> bool {
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&lock(at, kind))).is_ok()
    }

    /// Does another process hold the lock of a byte?
    fn is_wanted(&self, at: i64) -> bool {
        let mut lock = lock(at, libc::F_WRLCK);
        let asked = fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock));
        asked.is_ok() && i32::from(lock.l_type) != libc::F_UNLCK
    }
}

/// The bytes of a GPU: who has it, and who wants it.
fn bytes_of(gpu: usize) -> (i64, i64) {
    (2 * gpu as i64, 2 * gpu as i64 + 1)
}

fn lock(at: i64, kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: at,
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two that had a GPU at once would hide kernels of two processes that wait for each other.
    #[test]
    fn one_has_the_gpu_and_hands_it_over_when_its_time_is_up() {
        let path = tempfile::tempdir().unwrap();
        let fabric = Directory::open(path.path()).unwrap();
        let mut machine = Description::builtin("one-gpu").unwrap();
        machine.driver.time_slicing_us = Some(5000);
        let open = || Slices::new(&machine, Some(&fabric)).unwrap().unwrap();
        let (mut first, mut second) = (open(), open());
        assert!(first.hold(0, false) && !second.hold(0, false) && second.waits());
        assert!(first.hold(0, false), "its time is not up");
        std::thread::sleep(Duration::from_millis(6));
        assert!(!first.hold(0, true), "running blocks end, new ones do not start");
        assert!(!second.hold(0, false), "blocks of the first still run");
        assert!(!first.hold(0, false));
        assert!(second.hold(0, false) && !second.waits());
        assert!(!first.hold(0, false));
        second.leave(|_| true);
        std::thread::sleep(Duration::from_millis(6));
        assert!(first.hold(0, false));
        drop(first);
        assert!(second.hold(0, false), "one that has ended has nothing");
    }
}
