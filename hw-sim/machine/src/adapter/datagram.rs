//! Datagrams (UD): messages of one packet between queue pairs that have no connection.
//!
//! Any number of queue pairs write into one request ring, one at a time: whoever writes holds the
//! ring's lock. Nothing that was not committed is visible, so the lock of a process that died is
//! taken over without repair. The fabric itself loses nothing, as InfiniBand's link-level flow
//! control promises: a datagram waits for room in the ring. One whose receiver is not there, is not
//! ready, has another queue key or no receive request is lost, and its sender is not told.

use super::address::{Endpoint, Gid, GidKind};
use super::completion::{Completion, CompletionStatus, Operation, Sender};
use super::connection::Connection;
use super::counters::Counter;
use super::device::{AsyncEvent, PortState};
use super::link::{Peer, REQUESTS};
use super::record::{FIRST, IMMEDIATE, LAST, Record, RecordKind, SOLICITED};
use super::responder::{ReceiveSide, Step};
use super::work::{Destination, SendRequest};
use crate::fabric::Writer;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Bytes in front of each received datagram: the global route header, or room for it.
pub const GLOBAL_ROUTE_BYTES: u32 = 40;
/// Receivers that a queue pair keeps in mind. It asks the fabric for the others each time anew.
const RECEIVERS_MAX: usize = 4096;
/// A queue key with this bit set stands for the sender's own.
const OWN_KEY: u32 = 1 << 31;
/// In [`Record::operands`]: the datagram has a global route header.
const IS_GLOBAL: u64 = 1 << 8;

/// The receivers that a queue pair has sent datagrams to.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    known: HashMap<(Endpoint, u32), Arc<Peer>>,
}

impl Receivers {
    /// The ring of a queue pair that receives datagrams, if there is such.
    fn find(&mut self, connection: &Connection, to: (Endpoint, u32)) -> Option<Arc<Peer>> {
        if let Some(peer) = self.known.get(&to) {
            if peer.link.takes_requests() {
                return Some(Arc::clone(peer));
            }
            self.known.remove(&to);
        }
        let peer = Peer::open_for_datagrams(&connection.host.fabric, to.0, to.1)?;
        if self.known.len() < RECEIVERS_MAX {
            self.known.insert(to, Arc::clone(&peer));
        }
        Some(peer)
    }
}

impl Connection {
    /// Sends one datagram, or loses it. False if it must wait: the ring is full. An error is the
    /// sender's own.
    pub(super) fn send_datagram(
        &self,
        receivers: &mut Receivers,
        own_key: u32,
        request: &SendRequest,
    ) -> Result<bool, CompletionStatus> {
        let to = request.to.filter(|to| to.domain == self.domain);
        let Some(to) = to else { return Err(CompletionStatus::LocalOperation) };
        let length = request.data.length();
        if length > u64::from(self.device.description.mtu) {
            return Err(CompletionStatus::LocalLength);
        }
        let lost = self.device.port_state() == PortState::Down || self.device.loses();
        // A route that leads nowhere was refused when its address handle was made; one that leads
        // to nobody loses what it carries.
        let endpoint = self.port_of(&to.route).ok().flatten().filter(|_| !lost);
        let peer = endpoint.and_then(|port| receivers.find(self, (port, to.queue_pair)));
        let Some(peer) = peer else { return self.gather_in_vain(request, length) };
        let Some(lock) = peer.lock(&self.host.fabric) else { return Ok(false) };
        let mut writer = Writer::<Record>::new(Arc::clone(&peer.link.segment), REQUESTS);
        let Some(room) = writer.reserve(length as usize) else {
            if peer.is_there(&self.host.fabric) {
                return Ok(false);
            }
            return self.gather_in_vain(request, length);
        };
        self.gather(&request.data, 0, length, room)?;
        writer.commit(&self.datagram(request, &to, own_key, length as u32));
        drop(lock);
        peer.wake(&self.host.fabric);
        Ok(true)
    }

    /// Reads the data of a datagram that is lost, so that bad keys are found in any case.
    fn gather_in_vain(&self, request: &SendRequest, length: u64) -> Result<bool, CompletionStatus> {
        let mut nowhere = vec![0_u8; length as usize];
        self.gather(&request.data, 0, length, nowhere.as_mut_ptr() as u64).map(|()| true)
    }

    fn datagram(
        &self,
        request: &SendRequest,
        to: &Destination,
        own_key: u32,
        length: u32,
    ) -> Record {
        let mut record = Record::new(RecordKind::Datagram, 0);
        (record.length, record.total) = (length, length);
        record.key = if to.queue_key & OWN_KEY != 0 { own_key } else { to.queue_key };
        record.address = self.device.endpoint.pack(self.number);
        record.immediate = request.immediate.unwrap_or(0);
        record.operands[0] =
            u64::from(to.route.own_gid) | if to.route.gid.is_some() { IS_GLOBAL } else { 0 };
        record.flags = FIRST
            | LAST
            | if request.immediate.is_some() { IMMEDIATE } else { 0 }
            | if request.solicited { SOLICITED } else { 0 };
        record
    }

    /// Receives one datagram, or drops it.
    pub(super) fn receive_datagram(&self, side: &mut ReceiveSide) -> Step {
        let Some((record, payload)) = side.requests.peek() else { return Step::Idle };
        let step = match Endpoint::unpack(record.address) {
            Some(sender)
                if record.kind == RecordKind::Datagram && record.key == side.settings.queue_key =>
            {
                self.land_datagram(side, &record, payload, sender)
            }
            _ => {
                side.tally.add(Counter::DatagramsDropped, 1);
                Step::Done
            }
        };
        side.requests.consume(&record);
        step
    }

    fn land_datagram(
        &self,
        side: &mut ReceiveSide,
        record: &Record,
        payload: u64,
        (port, queue_pair): (Endpoint, u32),
    ) -> Step {
        let Some(request) = self.receive_queue.take() else {
            side.tally.add(Counter::DatagramsDropped, 1);
            return Step::Done;
        };
        side.tally.received(u64::from(record.length), self.device.description.mtu);
        let room: u64 = request.pieces.iter().map(|piece| u64::from(piece.length)).sum();
        let total = u64::from(record.length) + u64::from(GLOBAL_ROUTE_BYTES);
        let layer = self.device.description.link_layer;
        let is_global = record.operands[0] & IS_GLOBAL != 0;
        let header = is_global.then(|| {
            let index = usize::from(record.operands[0] as u8);
            let (from, to) = (port.gids(layer), self.device.endpoint.gids(layer));
            // The sender's index was checked; a stray one is as good as the first.
            let pick = |gids: &[Gid]| gids.get(index).copied().unwrap_or(gids[0]);
            global_route_header(&pick(&from), &pick(&to).raw, record.length)
        });
        let landed = if total > room {
            Err(CompletionStatus::LocalLength)
        } else {
            let front = u64::from(GLOBAL_ROUTE_BYTES);
            header
                .map_or(Ok(()), |header| {
                    self.land(self.domain, &request.pieces, (0, front), header.as_ptr() as u64)
                })
                .and_then(|()| {
                    let part = (front, u64::from(record.length));
                    self.land(self.domain, &request.pieces, part, payload)
                })
        };
        let operation = Operation::Receive;
        let status = landed.err().unwrap_or(CompletionStatus::Success);
        let mut completion = Completion::new(request.id, operation, status, self.number);
        if landed.is_err() {
            self.report(completion, true);
            return Step::Failed(AsyncEvent::QueuePairFatal);
        }
        completion.length = total as u32;
        completion.immediate = (record.flags & IMMEDIATE != 0).then_some(record.immediate);
        completion.sender = Some(Sender { queue_pair, lid: port.lid_on(layer), is_global });
        self.report(completion, record.flags & SOLICITED != 0);
        Step::Done
    }
}

/// The header that lies in front of a received datagram. That of RoCE version 2 over IPv4 is the
/// IPv4 header, in the last 20 bytes.
fn global_route_header(from: &Gid, to: &[u8; 16], length: u32) -> [u8; 40] {
    const UDP: u8 = 17;
    const INFINIBAND: u8 = 0x1b;
    const HOPS: u8 = 64;
    /// Headers of UDP and of InfiniBand's transport, and its checksum.
    const OVERHEAD: u16 = 8 + 12 + 8 + 4;
    let mut header = [0; 40];
    let payload = length as u16 + OVERHEAD;
    let is_v2 = from.kind == GidKind::RoceV2;
    if let (true, Some(source), Some(target)) = (is_v2, ipv4(&from.raw), ipv4(to)) {
        let v4 = &mut header[20..];
        v4[0] = 0x45;
        v4[2..4].copy_from_slice(&(payload + 20).to_be_bytes());
        (v4[8], v4[9]) = (HOPS, UDP);
        v4[12..16].copy_from_slice(&source.octets());
        v4[16..20].copy_from_slice(&target.octets());
        let checksum = internet_checksum(v4);
        v4[10..12].copy_from_slice(&checksum.to_be_bytes());
        return header;
    }
    header[0] = 6 << 4;
    header[4..6].copy_from_slice(&payload.to_be_bytes());
    header[6] = if is_v2 { UDP } else { INFINIBAND };
    header[7] = HOPS;
    header[8..24].copy_from_slice(&from.raw);
    header[24..40].copy_from_slice(to);
    header
}

/// The IPv4 address that a GID maps.
fn ipv4(gid: &[u8; 16]) -> Option<Ipv4Addr> {
    std::net::Ipv6Addr::from(*gid).to_ipv4_mapped()
}

/// The checksum of RFC 1071 over 16-bit words.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let sum: u32 =
        bytes.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::LinkLayer;

    #[test]
    fn headers_name_both_ports() {
        let (from, to) = (Endpoint { node: 2, adapter: 1 }, Endpoint { node: 0, adapter: 0 });
        for layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
            for (source, target) in from.gids(layer).iter().zip(to.gids(layer)) {
                let header = global_route_header(source, &target.raw, 100);
                if source.kind == GidKind::RoceV2 && ipv4(&source.raw).is_some() {
                    assert_eq!(header[..20], [0; 20]);
                    assert_eq!(internet_checksum(&header[20..]), 0, "the sum with its checksum");
                    assert_eq!(header[32..36], [10, 0, 2, 2]);
                    assert_eq!(header[36..40], [10, 0, 0, 1]);
                } else {
                    assert_eq!(header[0] >> 4, 6);
                    assert_eq!((&header[8..24], &header[24..]), (&source.raw[..], &target.raw[..]));
                }
            }
        }
    }
}
