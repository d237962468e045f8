//! Extended reliable connections (XRC): their domains, and the shared receive queues of those.
//!
//! Each message names the shared receive queue that it is for, so that one connection to a node
//! serves all queues there. A queue pair that sends has no receive queue; one that receives has
//! neither queue, completion queue nor protection domain of its own: what a message names, a queue
//! of the same XRC domain, has all three.
//!
//! A domain without a file is of one process. One that a file names is of all processes on the
//! adapter's node that have opened that file; each shows that it has by a file in the fabric's
//! folder. [`super::sharing`] says how a message reaches the queue of another process.

use super::address::Endpoint;
use super::error::{Result, VerbsError};
use crate::fabric::{Fabric, FabricError, ProcessId, Segment};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The mark and the bytes of the file that keeps the number of a queue.
const QUEUE_MAGIC: u64 = u64::from_le_bytes(*b"hwsimSR1");
/// The mark of the file that says that a process has opened a domain.
const MEMBER_MAGIC: u64 = u64::from_le_bytes(*b"hwsimXD1");
const BYTES: usize = 64;
/// Where these files have the domain's name.
const NAME_AT: usize = 16;
/// Whoever joins a domain, or looks whether it is there, holds this file's lock.
const LOCK: &str = "xrcd-lock";
/// Numbers have 24 bits.
const NUMBERS: u32 = 0xff_ff00;

/// The name of a domain between processes: the adapter's port, and device and number of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DomainName {
    pub endpoint: Endpoint,
    device: u64,
    file: u64,
}

impl DomainName {
    /// Writes it into a shared file.
    pub fn store(&self, segment: &Segment, at: usize) {
        let words = [self.endpoint.pack(0), self.device, self.file];
        for (index, word) in words.into_iter().enumerate() {
            // Relaxed: whoever reads it has synchronised by the file's mark.
            segment.word64(at + 8 * index).store(word, Ordering::Relaxed);
        }
    }

    /// Is it the one in a shared file?
    pub fn is_in(&self, segment: &Segment, at: usize) -> bool {
        Self::load(segment, at) == Some(*self)
    }

    /// Reads it from a shared file, if one was stored there.
    pub fn load(segment: &Segment, at: usize) -> Option<Self> {
        let word = |index: usize| segment.word64(at + 8 * index).load(Ordering::Relaxed);
        let (endpoint, _) = Endpoint::unpack(word(0))?;
        Some(Self { endpoint, device: word(1), file: word(2) })
    }

    /// How the files begin that its members make.
    fn prefix(&self) -> String {
        let Endpoint { node, adapter } = self.endpoint;
        format!("xrcd-{node}-{adapter}-{:x}-{:x}-", self.device, self.file)
    }
}

/// Shows other processes that this one has opened a domain.
pub(super) struct Membership {
    fabric: Arc<Fabric>,
    name: String,
    /// As long as it is open, no other file has its number.
    _file: OwnedFd,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.fabric.remove(&self.name);
    }
}

/// How a domain that a file names is opened.
pub struct DomainRequest {
    /// The adapter's port.
    pub endpoint: Endpoint,
    /// The file, by a descriptor of its own.
    pub file: OwnedFd,
    /// It is made, if nobody has opened it.
    pub creates: bool,
    /// And somebody must not have.
    pub exclusive: bool,
}

/// Opens the domain that a file names: its name, and what shows that this process has.
pub(super) fn join(
    fabric: &Arc<Fabric>,
    request: DomainRequest,
) -> Result<(DomainName, Membership)> {
    let file = File::from(request.file);
    let status = file.metadata().map_err(VerbsError::system("looking at an XRC domain's file"))?;
    let name = DomainName { endpoint: request.endpoint, device: status.dev(), file: status.ino() };
    // Of two processes that would be the first, one is.
    let _lock = fabric.lock(LOCK)?;
    let is_member = |file: &String| {
        let found = fabric.open(file, BYTES, MEMBER_MAGIC);
        found.is_some_and(|(_, owner)| fabric.is_alive(owner))
    };
    let exists = fabric.names(&name.prefix()).iter().any(is_member);
    if exists && request.creates && request.exclusive {
        return Err(VerbsError::Invalid("the XRC domain of this file is open already".into()));
    }
    if !exists && !request.creates {
        return Err(VerbsError::System {
            what: "an XRC domain that nobody has made".into(),
            cause: std::io::Error::from_raw_os_error(libc::EAGAIN),
        });
    }
    let (pid, nonce) = fabric.own_id;
    let own = format!("{}{pid}-{nonce}-{}", name.prefix(), fabric.serial());
    fabric.make(BYTES, MEMBER_MAGIC, |draft, _| fabric.replace(draft, &own))?;
    Ok((name, Membership { fabric: Arc::clone(fabric), name: own, _file: file.into() }))
}

/// The process that has the queue with this number, if that is of this domain.
pub(super) fn owner_of(fabric: &Fabric, name: &DomainName, number: u32) -> Option<ProcessId> {
    let (segment, owner) = fabric.open(&queue_file(number), BYTES, QUEUE_MAGIC)?;
    (name.is_in(&segment, NAME_AT) && fabric.is_alive(owner)).then_some(owner)
}

/// Gives a number back.
pub(super) fn forget_number(fabric: &Fabric, number: u32) {
    fabric.remove(&queue_file(number));
}

fn queue_file(number: u32) -> String {
    format!("srq-{number:06x}")
}

/// A number that no other shared receive queue of the fabric has.
pub(super) fn new_number(fabric: &Fabric, domain: Option<DomainName>) -> Result<u32> {
    let start = fabric.own_id.0.wrapping_mul(64).wrapping_add(fabric.serial());
    let (number, _) = fabric.make(BYTES, QUEUE_MAGIC, |draft, segment| {
        if let Some(name) = domain {
            name.store(segment, NAME_AT);
        }
        for attempt in 0..1 << 16 {
            let number = 1 + start.wrapping_add(attempt) % NUMBERS;
            if fabric.name(draft, &queue_file(number))? {
                return Ok(number);
            }
        }
        Err(FabricError::Full("there is no free number of a shared receive queue".into()))
    })?;
    Ok(number)
}
