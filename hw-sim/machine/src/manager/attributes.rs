//! What programs ask about an identifier: addresses, path, and the attributes that its queue pair
//! needs.

use super::identifier::{Identifier, State};
use super::{Manager, Outcome, Port, QUEUE_KEY};
use crate::adapter::Endpoint;
use crate::adapter::state::mask;
use crate::adapter::{Access, QueuePairState};
use crate::description::LinkLayer;
use nix::errno::Errno;
use std::net::SocketAddr;

/// How long a queue pair waits for an acknowledgement: 4.096 µs times two to this power, 67 ms.
const TIMEOUT: u8 = 14;
/// The entry of a port's table of partitions.
const PARTITION: u16 = 0xffff;
/// How far global routes reach.
const HOP_LIMIT: u8 = 64;
/// Codes of rates of the verbs interface, with GB/s.
const RATES: [(u32, f64); 9] = [
    (2, 0.3125),
    (3, 1.25),
    (6, 2.5),
    (7, 5.0),
    (12, 7.0),
    (16, 12.5),
    (20, 25.0),
    (21, 50.0),
    (22, 75.0),
];

/// The code of a rate, rounded up.
pub(super) fn rate_code(gb_per_s: f64) -> u32 {
    let at_least = RATES.iter().find(|(_, rate)| *rate >= gb_per_s);
    at_least.unwrap_or(&RATES[RATES.len() - 1]).0
}

/// A path between two ports.
#[derive(Debug, Clone, Copy)]
pub struct PathAnswer {
    /// The peer's GID.
    pub destination_gid: [u8; 16],
    /// Our own.
    pub source_gid: [u8; 16],
    /// Its place in our port's table.
    pub source_index: u8,
    /// The peer's LID, and our own; 0 on Ethernet.
    pub lids: [u16; 2],
    /// Packets carry a global header.
    pub is_global: bool,
    /// How far they go.
    pub hop_limit: u8,
    /// The partition's key.
    pub partition: u16,
    /// The largest packet, as a code of the verbs interface.
    pub mtu_code: u32,
    /// The rate, as a code.
    pub rate_code: u32,
}

/// What there is to know of an identifier.
#[derive(Debug, Clone, Copy)]
pub struct QueryAnswer {
    /// Its own address.
    pub source: Option<SocketAddr>,
    /// The peer's.
    pub destination: Option<SocketAddr>,
    /// The adapter that it is bound to: its GUID.
    pub guid: Option<u64>,
    /// Our own GID, as soon as there is an adapter.
    pub path: Option<PathAnswer>,
    /// The path leads to the peer.
    pub is_resolved: bool,
}

/// Attributes of a queue pair for its next state, with a mask that says which.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueuePairAttributes {
    /// Which of them count.
    pub mask: u32,
    /// The next state.
    pub state: u32,
    /// The largest packet, as a code.
    pub mtu_code: u32,
    /// The key of datagrams.
    pub queue_key: u32,
    /// First packet number of the peer.
    pub receive_number: u32,
    /// First packet number of our own.
    pub send_number: u32,
    /// The peer's queue pair.
    pub peer: u32,
    /// Rights of the peer.
    pub access: u32,
    /// The way to the peer.
    pub path: Option<PathAnswer>,
    /// Own reads and atomics under way at most.
    pub reads: u8,
    /// Those of the peer.
    pub peer_reads: u8,
    /// How long to wait for an answer.
    pub timeout: u8,
    /// How often to try again.
    pub retries: u8,
    /// The same where the peer has no receive request.
    pub receiver_retries: u8,
}

impl Port {
    /// The path to a peer, or to nowhere yet.
    fn path(&self, peer: Option<Endpoint>, is_link_local: bool) -> PathAnswer {
        let is_global = self.link_layer == LinkLayer::Ethernet;
        // On Ethernet link-local, then by IP, each for RoCE 1 and 2: the kernel prefers 2.
        let index = match (is_global, is_link_local) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => 3,
        };
        let gid = |of: Endpoint| of.gids(self.link_layer).get(index).map_or([0; 16], |gid| gid.raw);
        let lid = |of: Endpoint| if is_global { 0 } else { of.lid() };
        PathAnswer {
            destination_gid: peer.map_or([0; 16], gid),
            source_gid: gid(self.endpoint),
            source_index: index as u8,
            lids: [peer.map_or(0, lid), lid(self.endpoint)],
            is_global,
            hop_limit: if is_global { HOP_LIMIT } else { 0 },
            partition: PARTITION,
            mtu_code: self.mtu_code,
            rate_code: self.rate_code,
        }
    }
}

impl Manager {
    /// Addresses and path of an identifier.
    pub fn query(&self, channel: u64, number: u32) -> Outcome<QueryAnswer> {
        let mut tables = self.tables();
        let identifier = tables.find(channel, number)?;
        let port = identifier.port.map(|port| self.ports[port]);
        let has_route = !matches!(
            identifier.state,
            State::Idle
                | State::Bound
                | State::Listening
                | State::Resolving
                | State::AddressResolved
        );
        Ok(QueryAnswer {
            source: identifier.source,
            destination: identifier.destination,
            guid: port.map(|port| port.endpoint.guid()),
            path: port.map(|port| port.path(identifier.peer, is_link_local(identifier))),
            is_resolved: has_route && identifier.peer.is_some(),
        })
    }

    /// The path of an event's sender, for address handles.
    pub fn path_of(&self, number: u32) -> Option<PathAnswer> {
        let tables = self.tables();
        let identifier = tables.identifiers.get(&number)?;
        let port = self.ports[identifier.port?];
        Some(port.path(identifier.peer, is_link_local(identifier)))
    }

    /// What the identifier's queue pair needs for its next state.
    pub fn queue_pair_attributes(
        &self,
        channel: u64,
        number: u32,
        state: u32,
    ) -> Outcome<QueuePairAttributes> {
        let mut tables = self.tables();
        let identifier = tables.find(channel, number)?;
        let port = self.ports[identifier.port.ok_or(Errno::EINVAL)?];
        let path = port.path(identifier.peer, is_link_local(identifier));
        let next = QueuePairState::from_number(state).ok_or(Errno::EINVAL)?;
        match next {
            QueuePairState::Initialised => Ok(initialised(identifier, path)),
            QueuePairState::ReadyToReceive if knows_peer(identifier) => Ok(QueuePairAttributes {
                mask: mask::STATE
                    | mask::ADDRESS
                    | mask::MTU
                    | mask::PEER
                    | mask::RECEIVE_NUMBER
                    | mask::PEER_READS
                    | mask::RECEIVER_TIMER,
                state,
                mtu_code: path.mtu_code,
                peer: identifier.theirs.queue_pair,
                receive_number: identifier.packet_numbers[1],
                peer_reads: identifier.theirs.initiator_depth,
                path: Some(path),
                ..QueuePairAttributes::default()
            }),
            QueuePairState::ReadyToSend if knows_peer(identifier) => {
                // The one who asks says how often both send again.
                let asker =
                    if identifier.asked.is_some() { identifier.own } else { identifier.theirs };
                Ok(QueuePairAttributes {
                    mask: mask::STATE
                        | mask::SEND_NUMBER
                        | mask::TIMEOUT
                        | mask::RETRIES
                        | mask::RECEIVER_RETRIES
                        | mask::READS,
                    state,
                    send_number: identifier.packet_numbers[0],
                    timeout: identifier.timeout.unwrap_or(TIMEOUT),
                    retries: asker.retries.min(7),
                    receiver_retries: identifier.theirs.receiver_retries.min(7),
                    reads: identifier.theirs.responder_resources,
                    ..QueuePairAttributes::default()
                })
            }
            _ => Err(Errno::EINVAL),
        }
    }
}

fn is_link_local(identifier: &Identifier) -> bool {
    identifier.source.is_some_and(|source| source.is_ipv6())
}

/// Has the peer named its queue pair?
fn knows_peer(identifier: &Identifier) -> bool {
    let known = matches!(
        identifier.state,
        State::Asked | State::Granted | State::Answered | State::Established
    );
    known && !identifier.space.has_datagrams()
}

fn initialised(identifier: &Identifier, path: PathAnswer) -> QueuePairAttributes {
    let common = QueuePairAttributes {
        mask: mask::STATE | mask::PARTITION | mask::PORT,
        state: QueuePairState::Initialised as u32,
        path: Some(path),
        ..QueuePairAttributes::default()
    };
    if identifier.space.has_datagrams() {
        return QueuePairAttributes {
            mask: common.mask | mask::QUEUE_KEY,
            queue_key: QUEUE_KEY,
            ..common
        };
    }
    let write = Access::REMOTE_WRITE.0;
    let all = write | Access::REMOTE_READ.0 | Access::REMOTE_ATOMIC.0;
    QueuePairAttributes {
        mask: common.mask | mask::ACCESS,
        // As long as nobody was asked, nobody has rights.
        access: match identifier.state {
            _ if !knows_peer(identifier) => 0,
            _ if identifier.theirs.initiator_depth > 0 => all,
            _ => write,
        },
        ..common
    }
}
