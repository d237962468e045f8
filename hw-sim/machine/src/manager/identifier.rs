//! Identifiers (`rdma_cm_id`): an end of a connection, or a port that is listened on.

use super::claim::Claim;
use super::frame::Parameters;
use crate::adapter::Endpoint;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Spaces of port numbers; the numbers of the kernel's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum PortSpace {
    /// Datagrams as IP over InfiniBand sends them.
    IpOverInfiniBand = 0x0002,
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
}

impl PortSpace {
    /// The space with this number.
    pub fn from_number(number: u16) -> Option<Self> {
        let all = [Self::IpOverInfiniBand, Self::Tcp, Self::Udp];
        all.into_iter().find(|space| *space as u16 == number)
    }

    /// Are its queue pairs for datagrams?
    pub fn has_datagrams(self) -> bool {
        self != Self::Tcp
    }
}

/// Where an identifier stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Bound,
    Listening,
    /// The address is looked for, and will not be found.
    Resolving,
    AddressResolved,
    RouteResolved,
    /// A request was sent.
    Requested,
    /// A request was received.
    Asked,
    /// It was granted.
    Granted,
    /// Our request was granted, and the program has not yet said that it is ready.
    Answered,
    Established,
    /// We have ended the connection, and the peer has not yet answered.
    Leaving,
    /// The peer has ended it, and we have not yet answered.
    Left,
    /// Over, or never come about.
    Closed,
}

/// An identifier.
pub(super) struct Identifier {
    /// What the program knows it by; 0 as long as it has not accepted it.
    pub tag: u64,
    /// The channel of its events.
    pub channel: u64,
    pub space: PortSpace,
    pub state: State,
    /// Counts the states that it was in.
    pub epoch: u32,
    pub source: Option<SocketAddr>,
    pub destination: Option<SocketAddr>,
    /// The port that it is bound to.
    pub port: Option<usize>,
    pub peer: Option<Endpoint>,
    /// The connection's socket.
    pub socket: Option<Arc<OwnedFd>>,
    /// The port that it has bound.
    pub claim: Option<Claim>,
    /// Requests that may wait for the program to look at them.
    pub backlog: u32,
    /// It has asked for the connection, first at this time.
    pub asked: Option<Instant>,
    /// The first packet number of this side, and of the other.
    pub packet_numbers: [u32; 2],
    pub own: Parameters,
    pub theirs: Parameters,
    /// Several may bind the port, as long as one listens.
    pub shares_port: bool,
    /// How long queue pairs wait for an acknowledgement, where the program says so.
    pub timeout: Option<u8>,
    /// Events that the program was given.
    pub reported: u32,
}

impl Identifier {
    pub fn new(tag: u64, channel: u64, space: PortSpace) -> Self {
        Self {
            tag,
            channel,
            space,
            state: State::Idle,
            epoch: 0,
            source: None,
            destination: None,
            port: None,
            peer: None,
            socket: None,
            claim: None,
            backlog: 0,
            asked: None,
            // 24 bits, as in packets.
            packet_numbers: [fastrand::u32(..1 << 24), 0],
            own: Parameters::default(),
            theirs: Parameters::default(),
            shares_port: false,
            timeout: None,
            reported: 0,
        }
    }
}
