//! The fetch unit: cuts requests into packets, takes lanes in turn, and sees requests to their
//! ends.

use super::channel::{Channel, ChannelAddress};
use super::dma::{Dma, DmaFault};
use super::queue::Request;
use std::time::Instant;

/// One sub-request on its way to the peer's write unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// The channel that it is for, and the generation that it must have.
    pub to: ChannelAddress,
    pub to_generation: u64,
    /// The channel that sends it.
    pub from: ChannelAddress,
    pub from_generation: u64,
    /// The request, and its lane.
    pub position: u64,
    pub lane: u64,
    /// Where in our own memory the data is.
    pub source: u64,
    pub length: u64,
    pub window: u64,
    pub offset: u64,
    /// It is the last one of its request.
    pub last: bool,
    /// With the last: the peer's signal, and the count to write.
    pub signal: Option<(u64, u64)>,
}

/// Did the peer's engine say yes already?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Acknowledged,
    Pending,
}

impl Channel {
    /// The next sub-request of the next lane in turn that may go on, and its request.
    pub fn propose(&mut self, now: Instant) -> Option<(Packet, Request)> {
        let identity = *self.registers.identity();
        let may_begin = self.lanes.under_way < identity.in_flight_max;
        for _ in 0..self.lanes.turns.len() {
            let queue = self.lanes.first()?;
            let arrivals = queue.arrivals;
            let ready = queue.waiting.front().filter(|request| {
                let held = request.held_until.is_some_and(|until| until > now);
                !held && (request.begun || may_begin)
            });
            if let Some(&request) = ready {
                let packet = self.packet_of(&request, arrivals, identity.sub_request_bytes);
                return Some((packet, request));
            }
            self.lanes.rotate();
        }
        None
    }

    fn packet_of(&self, request: &Request, arrivals: u64, sub_request_bytes: u64) -> Packet {
        let left = request.length - request.fetched;
        let length = left.min(sub_request_bytes);
        let last = length == left;
        Packet {
            to: ChannelAddress {
                link_address: request.to.link_address,
                channel: request.to.channel,
            },
            to_generation: request.to.generation,
            from: self.place,
            from_generation: self.control.generation,
            position: request.position,
            lane: request.lane,
            source: request.source.wrapping_add(request.fetched),
            length,
            window: request.window,
            offset: request.offset.saturating_add(request.fetched),
            last,
            signal: request.arrival.filter(|_| last).map(|signal| (signal, arrivals + 1)),
        }
    }

    /// The packet that was proposed last was sent: its lane has had its turn.
    pub fn sent(&mut self, packet: &Packet, answer: Answer, dma: &Dma<'_>) {
        self.status.bytes_sent += packet.length;
        self.status.sub_requests += u64::from(packet.length > 0);
        let Some(queue) = self.lanes.first() else { return };
        let Some(request) = queue.waiting.front_mut() else { return };
        request.fetched += packet.length;
        let first = !std::mem::replace(&mut request.begun, true);
        let completion = request.completion;
        queue.arrivals += u64::from(packet.signal.is_some());
        let mut written = Ok(());
        if packet.last {
            if let Some(address) = completion {
                // The source was read to its end, and so were those before it on the lane.
                queue.completions += 1;
                written = dma.write_count(address, queue.completions);
            }
            queue.sent.extend(queue.waiting.pop_front());
        }
        let lane_is_done = queue.waiting.is_empty();
        self.lanes.under_way += u64::from(first);
        if lane_is_done {
            self.lanes.turns.pop_front();
        } else {
            self.lanes.rotate();
        }
        if let Err(DmaFault(address)) = written {
            self.fail_by_write(dma, address);
        } else if packet.last && answer == Answer::Acknowledged {
            self.acknowledged(packet.lane, packet.position);
        }
    }

    /// The peer has acknowledged the last packet of a request: it has ended.
    pub fn acknowledged(&mut self, lane: u64, position: u64) {
        let Some(queue) = self.lanes.queues.get_mut(&lane) else { return };
        // In order on a lane. An answer to a request that an error has dropped finds nothing.
        if queue.sent.front().is_some_and(|request| request.position == position) {
            queue.sent.pop_front();
            self.lanes.under_way -= 1;
            self.status.in_flight -= 1;
            self.status.completed += 1;
            self.stop_if_drained();
        }
    }
}
