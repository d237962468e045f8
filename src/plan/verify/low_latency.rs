//! LL messages (R13): what a block may pack, put and collect, and what it learns from it.

use super::super::{Lane, Modifiers, Operand, PortIndex, Range, Segment, Side};
use super::agents::{Block, Port, Step};
use super::error::{Access, Reason};
use super::memory::{Piece, Sum};
use super::world::{Spot, World};
use std::rc::Rc;

/// What is known of an LL lane's messages.
#[derive(Default)]
pub(super) struct Messages {
    /// Number and bytes of data of the message that was packed last at its send port.
    packed: Option<(i64, u64)>,
    /// Bytes of data of each message that was put, in order.
    put: Vec<u64>,
}

/// Where messages come from.
#[derive(Clone, Copy)]
pub(super) struct Ports {
    pub(super) first: PortIndex,
    pub(super) count: u16,
    pub(super) message: u32,
}

/// A message at a send port.
#[derive(Clone, Copy)]
pub(super) struct PortMessage {
    pub(super) end: Port,
    /// Its number.
    pub(super) message: i64,
}

/// What an op packs.
pub(super) struct Pack {
    pub(super) port: PortIndex,
    pub(super) message: u32,
    pub(super) source: Option<Operand>,
    pub(super) range: Range,
}

/// What an op collects.
pub(super) struct Collect {
    pub(super) destination: Option<Operand>,
    pub(super) own: Option<Operand>,
    pub(super) before: u16,
    pub(super) ports: Ports,
    pub(super) range: Range,
    pub(super) finish: bool,
}

impl Ports {
    /// For each: its place in the block's list, its state, and the message's number.
    fn of(self, block: &Block<'_>) -> impl Iterator<Item = (usize, Port, i64)> + use<> {
        let first = usize::from(self.first);
        let ends = block.ports[first..first + usize::from(self.count)].to_vec();
        let message = i64::from(self.message);
        (first..).zip(ends).map(move |(place, end)| (place, end, end.position + message))
    }
}

impl World {
    pub(super) fn pack(
        &mut self,
        block: &mut Block<'_>,
        segment: &Segment,
        &Pack { port, message, source, range }: &Pack,
    ) -> Result<(), Reason> {
        let length = segment.clip(block.round, range);
        if length == 0 {
            return Err(Reason::EmptyMessage);
        }
        let end = block.ports[usize::from(port)];
        let message = end.position + i64::from(message);
        let lane = &self.lanes[end.lane];
        if message < lane.puts {
            return Err(Reason::MessageGone { message });
        }
        self.peers_have_read(block, message)?;
        let memory = self.slots_of(end.lane, Side::Send);
        let to = Spot { memory, start: self.slot_start(message) };
        let mut pieces = match source {
            Some(source) => {
                let from = self.place(block, segment, source, Access::Read)?;
                self.read(block, from, to.start, length, 0)?
            }
            // The sum of nobody's input: `collect` makes nothing of it.
            None => vec![Piece {
                start: to.start,
                end: to.start + length,
                value: Rc::new(Sum::default()),
            }],
        };
        self.write(block, to, length, pieces.drain(..))?;
        self.scratch[0] = pieces;
        self.lanes[end.lane].messages.packed = Some((message, length));
        Ok(())
    }

    /// The rule that stands for credits: message `m` may be packed by a block that has read every
    /// message before `m` from each peer to which it puts. `all_pairs` says why two slots are
    /// enough then.
    fn peers_have_read(&self, block: &Block<'_>, message: i64) -> Result<(), Reason> {
        let low_latency = |side| {
            let ports = block.ports.iter().filter(move |end| end.side == side);
            ports.filter(|end| self.lanes[end.lane].is_low_latency())
        };
        for end in low_latency(Side::Send) {
            let lane = self.lanes[end.lane].id;
            let back = Lane { from: lane.to, to: lane.from, ..lane };
            match low_latency(Side::Receive).find(|end| self.lanes[end.lane].id == back) {
                Some(end) if end.observed >= message => {}
                Some(end) => return Err(Reason::NotInStep { message, read: end.observed }),
                None => return Err(Reason::OneWay { lane }),
            }
        }
        Ok(())
    }

    /// The next message of an LL lane may be put if it was packed, with this number and length.
    pub(super) fn message_packed(
        &mut self,
        block: &Block<'_>,
        PortMessage { end, message }: PortMessage,
        source: Operand,
        length: u64,
    ) -> Result<(), Reason> {
        let expected = self.lanes[end.lane].puts;
        if message != expected {
            return Err(Reason::MessageOrder { expected, seen: message });
        }
        let Operand::Slot { port, message: number, .. } = source else {
            return Err(Reason::NotPacked { message });
        };
        let from = block.ports[usize::from(port)];
        let packed = self.lanes[from.lane].messages.packed;
        match packed {
            Some((number, _)) if number != message => Err(Reason::NotPacked { message }),
            Some(_) if from.position + i64::from(number) != message => {
                Err(Reason::NotPacked { message })
            }
            Some((_, packed)) if packed != length => {
                Err(Reason::MessageLength { message, packed, seen: length })
            }
            Some(_) => {
                self.lanes[end.lane].messages.put.push(length);
                Ok(())
            }
            None => Err(Reason::NotPacked { message }),
        }
    }

    /// `None`: all messages have arrived, and were reduced.
    pub(super) fn collect(
        &mut self,
        block: &mut Block<'_>,
        segment: &Segment,
        collect: &Collect,
    ) -> Result<Option<Step>, Reason> {
        let length = segment.clip(block.round, collect.range);
        if length == 0 {
            return Err(Reason::EmptyMessage);
        }
        if let Some(waiting) = self.arrive(block, collect.ports, length)? {
            return Ok(Some(waiting));
        }
        let message = |(_, end, message): (usize, Port, i64)| Spot {
            memory: self.slots_of(end.lane, Side::Receive),
            start: self.slot_start(message),
        };
        let mut terms: Vec<Spot> = collect.ports.of(block).map(message).collect();
        let Some(destination) = collect.destination else {
            // Every word of them is looked at.
            for slot in terms {
                self.read(block, slot, 0, length, 0)?;
            }
            return Ok(None);
        };
        let to = self.place(block, segment, destination, Access::Write)?;
        if let Some(own) = collect.own {
            let own = self.place(block, segment, own, Access::Read)?;
            self.whole_elements(&[to.start, own.start, length])?;
            terms.insert(usize::from(collect.before), own);
        }
        let finish = Modifiers { scale: false, finish: collect.finish };
        let mut sum: Vec<Piece> = Vec::new();
        for (number, term) in terms.into_iter().enumerate() {
            let pieces = self.read(block, term, to.start, length, 0)?;
            if pieces.iter().any(|piece| piece.value.terms.is_empty()) {
                let memory = self.memory_name(term.memory);
                return Err(Reason::NoData { memory });
            }
            sum = if number == 0 { pieces } else { self.combine(&sum, &pieces)? };
        }
        for piece in &mut sum {
            self.modify(block.rank, &mut piece.value, finish)?;
        }
        self.write(block, to, length, sum)?;
        Ok(None)
    }

    /// Takes the arrivals, once all of them are there.
    fn arrive(
        &mut self,
        block: &mut Block<'_>,
        ports: Ports,
        length: u64,
    ) -> Result<Option<Step>, Reason> {
        for (_, end, message) in ports.of(block) {
            let expected = end.observed;
            if message != expected {
                return Err(Reason::MessageOrder { expected, seen: message });
            }
            let lane = &self.lanes[end.lane];
            let seen = lane.arrivals.raised;
            if seen <= message {
                return Ok(Some(Step::Waiting { expected: message + 1, seen }));
            }
            let packed = lane.messages.put[message as usize];
            if packed != length {
                return Err(Reason::MessageLength { message, packed, seen: length });
            }
        }
        for (place, end, message) in ports.of(block) {
            if let Some(known) = self.lanes[end.lane].arrivals.known_at(message + 1) {
                block.clock.join(&known);
            }
            block.ports[place].observed = message + 1;
        }
        Ok(None)
    }
}
