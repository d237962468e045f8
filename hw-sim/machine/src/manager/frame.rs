//! What two managers send each other: one message of a socket for each message of the
//! specification's communication manager.

use crate::adapter::Endpoint;
use bytemuck::{Pod, Zeroable};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes of a program's data in any message at most.
pub const PRIVATE_MAX: usize = 256;

/// The kinds of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// A connection is asked for (REQ).
    Request = 1,
    /// It is granted (REP).
    Reply,
    /// The one who asked is ready (RTU).
    Ready,
    /// It is refused, or not granted any more (REJ).
    Reject,
    /// It shall end (DREQ).
    Disconnect,
    /// It has ended (DREP).
    Farewell,
    /// A queue pair for datagrams is asked for (SIDR REQ).
    Lookup,
    /// It is named, or refused (SIDR REP).
    Answer,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Request,
        Self::Reply,
        Self::Ready,
        Self::Reject,
        Self::Disconnect,
        Self::Farewell,
        Self::Lookup,
        Self::Answer,
    ];

    /// Room for a program's data in such a message, in bytes: the specification's, less what the
    /// kernel puts in front of a request that goes by IP address.
    pub fn private_room(self) -> usize {
        match self {
            Self::Request => 56,
            Self::Reply => 196,
            Self::Reject => 148,
            Self::Lookup => 180,
            Self::Answer => 136,
            Self::Ready | Self::Disconnect | Self::Farewell => 0,
        }
    }
}

/// What one side of a connection says of itself.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Parameters {
    /// The number of its queue pair.
    pub queue_pair: u32,
    /// The key of its datagrams.
    pub queue_key: u32,
    /// Vendor and options of enhanced connection establishment.
    pub extended: [u32; 2],
    /// Reads and atomics that it takes at once.
    pub responder_resources: u8,
    /// Reads and atomics that it has under way at once.
    pub initiator_depth: u8,
    /// Flow control from end to end.
    pub flow_control: u8,
    /// How often it sends again.
    pub retries: u8,
    /// How often it sends again to a receiver that is not ready.
    pub receiver_retries: u8,
    /// It has a shared receive queue.
    pub shared_receive: u8,
    /// Bytes of `private` that count.
    pub private_length: u16,
    /// What the program adds.
    pub private: [u8; PRIVATE_MAX],
}

impl Default for Parameters {
    fn default() -> Self {
        Self::zeroed()
    }
}

/// A message.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct Frame {
    kind: u32,
    /// Why something is refused.
    pub status: u32,
    /// The sender's first packet number.
    pub packet_number: u32,
    node: u32,
    adapter: u32,
    ports: [u16; 2],
    addresses: [[u8; 16]; 2],
    pub parameters: Parameters,
}

impl Frame {
    /// A message of a kind.
    pub fn new(kind: Kind) -> Self {
        Self { kind: kind as u32, ..Self::zeroed() }
    }

    /// Its kind; None if there is none such.
    pub fn kind(&self) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u32 == self.kind)
    }

    /// Names the sender: its port, and the addresses of both.
    pub fn address(&mut self, from: Endpoint, source: SocketAddr, destination: SocketAddr) {
        (self.node, self.adapter) = (from.node, from.adapter);
        self.ports = [source, destination].map(|address| address.port());
        self.addresses = [source, destination].map(|address| match address {
            SocketAddr::V4(address) => address.ip().to_ipv6_mapped().octets(),
            SocketAddr::V6(address) => address.ip().octets(),
        });
    }

    /// The sender's port.
    pub fn from(&self) -> Endpoint {
        Endpoint { node: self.node, adapter: self.adapter }
    }

    /// The addresses of sender and receiver.
    pub fn source_and_destination(&self) -> [SocketAddr; 2] {
        let address = |index: usize| {
            let ip = Ipv6Addr::from(self.addresses[index]).to_canonical();
            SocketAddr::new(ip, self.ports[index])
        };
        [address(0), address(1)]
    }

    /// Sends it. What cannot be sent at once is as good as lost with the peer: sockets hold
    /// hundreds of messages, and no connection needs more than five.
    pub fn send(&self, socket: &OwnedFd) -> Result<(), Errno> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        send(socket.as_raw_fd(), bytemuck::bytes_of(self), flags).map(drop)
    }

    /// Takes what has come: a message; `Ok(None)` where the peer is gone or does not speak our
    /// language.
    pub fn receive(socket: &OwnedFd) -> Result<Option<Self>, Errno> {
        let mut frame = Self::zeroed();
        let room = bytemuck::bytes_of_mut(&mut frame);
        let expected = room.len();
        match recv(socket.as_raw_fd(), room, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC) {
            Ok(length) if length == expected && frame.is_sound() => Ok(Some(frame)),
            Ok(_) | Err(Errno::ECONNRESET) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn is_sound(&self) -> bool {
        self.kind().is_some() && usize::from(self.parameters.private_length) <= PRIVATE_MAX
    }
}
