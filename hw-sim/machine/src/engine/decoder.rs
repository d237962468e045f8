//! The decoder: from slots of the ring to requests that have passed R8.

use super::channel::{Channel, Phase};
use super::dma::{Dma, DmaFault};
use super::queue::Request;
use super::registers::ChannelRegisters;
use ringdove_kernels::bar::{ErrorCode, ErrorRecord, Lane, NONE, Peer, Route};
use ringdove_kernels::descriptor::{Descriptor, LAP_BIT, MalformedDescriptor};

impl Channel {
    /// Copies out what stands ready in the ring, then takes what its lanes have room for. `prepare`
    /// sees each request that is taken. True if there was anything.
    pub fn take_descriptors(
        &mut self,
        dma: &Dma<'_>,
        mut prepare: impl FnMut(&mut Request),
    ) -> bool {
        if self.phase != Phase::Running {
            return false;
        }
        self.look_at_ring(dma);
        let begin = self.status.position;
        while let Some(&words) = self.seen.front() {
            let position = self.status.position;
            let mut request = match check(&self.registers, position, words) {
                Ok(request) => request,
                Err(record) => {
                    self.publish_tail(dma);
                    self.fail(dma, &record);
                    return true;
                }
            };
            if self.lanes.len_of(request.lane) as u64 >= self.registers.identity().lane_depth {
                if self.stalled_at.replace(position) != Some(position) {
                    self.status.decoder_stalls += 1;
                }
                break;
            }
            self.seen.pop_front();
            self.status.position += 1;
            self.status.in_flight += 1;
            self.status.signals +=
                u64::from(request.arrival.is_some()) + u64::from(request.completion.is_some());
            prepare(&mut request);
            self.lanes.push(request);
        }
        self.publish_tail(dma);
        self.status.position != begin
    }

    /// Copies slots out of the ring as far as their words prove themselves (R2, R3). A slot is read
    /// once (R6); it cannot be rung again before the tail has passed it (R4).
    fn look_at_ring(&mut self, dma: &Dma<'_>) {
        let slots = 1u64 << self.control.ring_log2;
        while (self.seen.len() as u64) < slots {
            let position = self.status.position + self.seen.len() as u64;
            let lap_is_even = (position >> self.control.ring_log2).is_multiple_of(2);
            let words = dma.slot(&self.registers, position & (slots - 1));
            if words.iter().any(|word| (word & LAP_BIT != 0) != lap_is_even) {
                break;
            }
            self.seen.push_back(words);
        }
        self.status.occupancy_max = self.status.occupancy_max.max(self.seen.len() as u64);
    }

    /// Writes the tail, if it has moved (R7).
    fn publish_tail(&mut self, dma: &Dma<'_>) {
        if self.tail != self.status.position {
            self.tail = self.status.position;
            if let Err(DmaFault(address)) = dma.write_count(self.control.tail_address, self.tail) {
                self.fail_by_write(dma, address);
            }
        }
    }
}

/// R8, in the order of BAR.md.
fn check(
    registers: &ChannelRegisters,
    position: u64,
    words: [u64; 2],
) -> Result<Request, ErrorRecord> {
    let mut record = ErrorRecord {
        state: 1,
        position,
        words,
        route: NONE,
        lane: NONE,
        peer: NONE,
        ..ErrorRecord::default()
    };
    let mut refuse = |code: ErrorCode, limit: u64, detail: u64, known: [u64; 3]| {
        [record.route, record.lane, record.peer] = known;
        (record.code, record.limit, record.detail) = (code as u64, limit, detail);
        Err(record)
    };
    let asked = match Descriptor::decode(words) {
        Ok(asked) => asked,
        Err(why) => {
            let detail = match why {
                MalformedDescriptor::ReservedBit => 1,
                MalformedDescriptor::DatalessWithRange => 2,
                MalformedDescriptor::Empty => 3,
            };
            return refuse(ErrorCode::Malformed, 0, detail, [NONE; 3]);
        }
    };
    let number = u64::from(asked.route);
    let Some(route) = registers.entry::<Route>(number) else {
        return refuse(ErrorCode::UnknownRoute, 0, 0, [number, NONE, NONE]);
    };
    let Some(lane) = registers.entry::<Lane>(route.lane) else {
        return refuse(ErrorCode::UnknownRoute, 0, 0, [number, route.lane, NONE]);
    };
    let known = [number, route.lane, lane.peer];
    let Some(to) = registers.entry::<Peer>(lane.peer) else {
        return refuse(ErrorCode::UnknownRoute, 0, 0, known);
    };
    // Neither sum can overflow: offsets have 40 bits.
    let length = u64::from(asked.length);
    if asked.source_offset + length > route.source_length {
        return refuse(ErrorCode::SourceRange, route.source_length, 0, known);
    }
    if asked.destination_offset + length > route.destination_length {
        return refuse(ErrorCode::DestinationRange, route.destination_length, 0, known);
    }
    if asked.arrival && lane.arrival_signal == NONE {
        return refuse(ErrorCode::NoArrivalSignal, 0, 0, known);
    }
    if asked.completion && lane.completion_address == 0 {
        return refuse(ErrorCode::NoCompletionSignal, 0, 0, known);
    }
    Ok(Request {
        position,
        words,
        route: number,
        lane: route.lane,
        peer: lane.peer,
        to,
        // A base that the host made up may wrap: no memory is there, or the peer's window ends.
        source: route.source_base.wrapping_add(asked.source_offset),
        length,
        window: route.window,
        offset: route.window_offset.saturating_add(asked.destination_offset),
        arrival: asked.arrival.then_some(lane.arrival_signal),
        completion: asked.completion.then_some(lane.completion_address),
        fetched: 0,
        begun: false,
        held_until: None,
        spoilt: false,
    })
}
