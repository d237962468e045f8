//! The communication manager of a node: it finds adapters by IP addresses, listens on ports, and
//! exchanges what two queue pairs need to know of each other before they can be connected.
//!
//! On hardware the kernel does this, behind `/dev/infiniband/rdma_cm`, and `librdmacm` is the
//! library in front of it. The calls, states and events here are the kernel's (`rdma_ucm`), so that
//! the library of the system runs on them unchanged.
//!
//! ```text
//!  program ─ librdmacm ─ commands ─▶ Manager ── a socket for each connection ──▶ Manager ...
//!       ▲                              │  its thread: what peers send, and time
//!       └────────── events ◀── channel ┘
//! ```
//!
//! **Ports.** A port that is bound is a socket in the fabric's folder, whose name says node, port
//! space, port and adapter; who connects opens it. **Connections** have a socket each, over which
//! frames go as messages of the specification's communication manager do. When a process dies,
//! its sockets end, and its peers are told what the kernel of a real node would tell them then.

mod arrivals;
mod attributes;
mod calls;
mod channel;
mod claim;
mod frame;
mod identifier;
mod thread;

pub use attributes::{PathAnswer, QueryAnswer, QueuePairAttributes};
pub use calls::AddressRequest;
pub use channel::{Event, EventKind, EventParameters};
pub use frame::Parameters;
pub use identifier::PortSpace;

use crate::adapter::Endpoint;
use crate::adapter::address::NODES_MAX;
use crate::description::{Description, LinkLayer};
use crate::fabric::Directory;
use channel::Channel;
use identifier::{Identifier, State};
use nix::errno::Errno;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use thread::Waker;

/// What a call gives, or why it fails: the number that the kernel gives.
pub type Outcome<T = ()> = std::result::Result<T, Errno>;

/// Identifiers of one process at most.
const IDENTIFIERS_MAX: usize = 1 << 16;
/// The queue key of datagrams between identifiers, as the kernel has it.
pub const QUEUE_KEY: u32 = 0x0123_4567;

/// The port of an adapter, as the manager knows it.
#[derive(Debug, Clone, Copy)]
struct Port {
    endpoint: Endpoint,
    link_layer: LinkLayer,
    mtu_code: u32,
    rate_code: u32,
}

/// The communication manager's share in one process.
pub struct Manager {
    node: u32,
    ports: Vec<Port>,
    directory: Directory,
    tables: Mutex<Tables>,
    waker: Waker,
}

/// What changes.
#[derive(Default)]
struct Tables {
    identifiers: HashMap<u32, Identifier>,
    channels: BTreeMap<u64, Channel>,
    /// Connections that have been opened to ports of ours and have not yet asked for anything: the
    /// socket, and the identifier whose port it is.
    strangers: Vec<(Arc<OwnedFd>, u32)>,
    /// What is due at a time: the identifier, its epoch then, and what happens.
    due: Vec<(Instant, u32, u32, Due)>,
    last_identifier: u32,
    last_channel: u64,
}

/// What happens to an identifier in time, unless its state changes before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The address has not answered.
    AddressError,
    /// The port's queue was full: connect again.
    ConnectAgain,
    /// The peer has not answered a request.
    NoAnswer,
    /// The peer has not answered a disconnection.
    NoFarewell,
    /// What may still be on the wire of the old connection is gone.
    TimeWaited,
}

impl Manager {
    /// The manager of this process, on a node of a machine, with the folder that joins the cluster.
    ///
    /// # Errors
    /// Those of the system, where the thread or its descriptors cannot be made.
    pub fn start(
        description: &Description,
        node: u32,
        directory: Directory,
    ) -> std::io::Result<Arc<Self>> {
        let port = |(index, adapter): (usize, &crate::description::Adapter)| Port {
            endpoint: Endpoint { node, adapter: index as u32 },
            link_layer: adapter.link_layer,
            mtu_code: adapter.mtu.ilog2() - 7,
            rate_code: attributes::rate_code(adapter.gb_per_s),
        };
        let manager = Arc::new(Self {
            node,
            ports: description.adapters.iter().enumerate().map(port).collect(),
            directory,
            tables: Mutex::default(),
            waker: Waker::new()?,
        });
        thread::start(Arc::clone(&manager))?;
        Ok(manager)
    }

    /// Removes what this process has in the fabric's folder.
    pub fn leave(&self) {
        // Not waited for: the process ends, and somebody who holds the lock may have stopped.
        let Ok(mut tables) = self.tables.try_lock() else { return };
        for identifier in tables.identifiers.values_mut() {
            identifier.claim = None;
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // A panic leaves the tables as consistent as its call was far; each call checks states.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port that an address of this node leads to.
    fn own_port(&self, endpoint: Endpoint) -> Option<usize> {
        let index = endpoint.adapter as usize;
        (endpoint.node == self.node && index < self.ports.len()).then_some(index)
    }

    /// May there be such a port in the cluster? Nodes are equal, and come and go.
    fn may_exist(&self, endpoint: Endpoint) -> bool {
        endpoint.node < NODES_MAX && (endpoint.adapter as usize) < self.ports.len()
    }
}

impl Tables {
    /// An identifier that a program names on one of its channels.
    fn find(&mut self, channel: u64, number: u32) -> Outcome<&mut Identifier> {
        match self.identifiers.get_mut(&number) {
            None => Err(Errno::ENOENT),
            Some(found) if found.channel != channel => Err(Errno::EINVAL),
            Some(found) => Ok(found),
        }
    }

    /// A number that no identifier has.
    fn new_number(&mut self) -> Outcome<u32> {
        if self.identifiers.len() >= IDENTIFIERS_MAX {
            return Err(Errno::ENOMEM);
        }
        // `librdmacm` keeps them in a table of 2^16.
        for _ in 0..=IDENTIFIERS_MAX {
            self.last_identifier = (self.last_identifier + 1) % IDENTIFIERS_MAX as u32;
            if !self.identifiers.contains_key(&self.last_identifier) {
                return Ok(self.last_identifier);
            }
        }
        Err(Errno::ENOMEM)
    }

    /// Puts an event of an identifier into its channel.
    fn raise(&mut self, number: u32, kind: EventKind, status: i32, parameters: EventParameters) {
        let Some(identifier) = self.identifiers.get(&number) else { return };
        // An identifier that its program has not accepted is not yet known to it.
        if identifier.tag == 0 {
            return;
        }
        let event = Event {
            tag: identifier.tag,
            identifier: number,
            subject: number,
            kind,
            status,
            parameters,
        };
        if let Some(channel) = self.channels.get_mut(&identifier.channel) {
            channel.push(event);
        }
    }

    /// Enters a state; what was due in the old one no longer is.
    fn enter(&mut self, number: u32, state: State) {
        if let Some(identifier) = self.identifiers.get_mut(&number) {
            identifier.state = state;
            identifier.epoch = identifier.epoch.wrapping_add(1);
        }
        self.due.retain(|(_, of, ..)| *of != number);
    }

    /// Has something happen at a time, unless the identifier's state changes before.
    fn at(&mut self, time: Instant, number: u32, due: Due) {
        if let Some(identifier) = self.identifiers.get(&number) {
            self.due.push((time, number, identifier.epoch, due));
        }
    }
}

#[cfg(test)]
mod tests;
