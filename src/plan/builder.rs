//! Pieces that algorithms share: ports of a block, the two ends of a slotted lane, rings and their
//! hops.

use super::{
    BlockProgram, Buffer, Choice, Lane, LaneEnd, LaneKind, Modifiers, Op, Operand, PortIndex,
    Range, Segment, Side,
};
use std::cell::Cell;

impl Choice {
    /// What block `block` handles in a round, slice by slice: see [`Choice::slice`].
    pub(super) fn slices(&self, block: u32) -> impl Iterator<Item = Range> {
        (0..self.slices).map(move |slice| self.slice(block, slice))
    }

    /// The place of `range` of `rank`'s part, in a buffer that has a part of each rank.
    pub(super) fn part(&self, buffer: Buffer, rank: u32, range: Range) -> Operand {
        // Programs of rings name places.
        let rank = self.order.map_or(rank, |order| order.rank_at(rank));
        Operand::Buffer { buffer, offset: u64::from(rank) * self.request.bytes + range.extent }
    }
}

impl Lane {
    /// The lane `index` with slots, of those between these ranks.
    pub(super) fn slotted(from: u32, to: u32, index: u16) -> Self {
        Self { from, to, index, kind: LaneKind::Slots }
    }

    /// The lane `index` between registered buffers.
    pub(super) fn direct(from: u32, to: u32, index: u16) -> Self {
        Self { from, to, index, kind: LaneKind::Direct }
    }
}

impl BlockProgram {
    /// The index of the lane end in this block's port list, added if it is new.
    pub(super) fn port(&mut self, lane: Lane, side: Side) -> PortIndex {
        let end = LaneEnd { lane, side };
        let known = self.ports.iter().position(|port| *port == end);
        let index = known.unwrap_or_else(|| {
            self.ports.push(end);
            self.ports.len() - 1
        });
        index as PortIndex
    }

    /// The sending end of lane `index` from this block's rank to another.
    pub(super) fn sender(&mut self, own: u32, to: u32, index: u16, slots: u32) -> SlotSender {
        SlotSender::new(self.port(Lane::slotted(own, to, index), Side::Send), slots)
    }

    /// The receiving end of lane `index` from another rank to this block's.
    pub(super) fn receiver(&mut self, from: u32, own: u32, index: u16) -> SlotReceiver {
        SlotReceiver::new(self.port(Lane::slotted(from, own, index), Side::Receive))
    }

    /// A hop on a path of three ranks, over lanes `index`: the one in the middle is this block's.
    /// With the same rank at both ends, the lanes to and from that one.
    pub(super) fn hop(&mut self, path: [u32; 3], index: u16, slots: u32) -> SlotHop {
        self.hop_over(LaneKind::Slots, path, index, slots)
    }

    /// A hop as [`hop`](Self::hop), over lanes of a rail.
    pub(super) fn rail(&mut self, path: [u32; 3], index: u16, slots: u32) -> SlotHop {
        self.hop_over(LaneKind::Rail, path, index, slots)
    }

    /// A hop as [`hop`](Self::hop), over lanes of stores.
    pub(super) fn hop_of_stores(&mut self, path: [u32; 3], index: u16, slots: u32) -> SlotHop {
        self.hop_over(LaneKind::Stores, path, index, slots)
    }

    fn hop_over(
        &mut self,
        kind: LaneKind,
        [from, own, to]: [u32; 3],
        index: u16,
        slots: u32,
    ) -> SlotHop {
        let lane = |from, to| Lane { from, to, index, kind };
        let send = self.port(lane(own, to), Side::Send);
        let receive = self.port(lane(from, own), Side::Receive);
        let mut hop = SlotHop::new(send, receive, slots);
        hop.sender.by_stores = kind == LaneKind::Stores;
        hop
    }

    /// A hop as [`hop`](Self::hop), over direct lanes.
    pub(super) fn direct_hop(&mut self, [from, own, to]: [u32; 3], index: u16) -> DirectHop {
        let send = self.port(Lane::direct(own, to, index), Side::Send);
        DirectHop::new(send, self.port(Lane::direct(from, own, index), Side::Receive))
    }

    /// Appends one round's ops, to be run in all rounds of the choice.
    pub(super) fn rounds(&mut self, choice: &Choice, ops: Vec<Op>) {
        self.segments.push(Segment {
            rounds: choice.rounds,
            round_stride: choice.round_bytes(),
            limit: choice.request.bytes,
            ops,
        });
    }

    /// Appends ops that run once and touch no buffer, if there are any.
    pub(super) fn once(&mut self, ops: Vec<Op>) {
        if !ops.is_empty() {
            self.segments.push(Segment { rounds: 1, round_stride: 0, limit: 0, ops });
        }
    }
}

/// The place in `buffer` where `range` stands: collectives lay buffers out as their data.
pub(super) fn at(buffer: Buffer, range: Range) -> Operand {
    Operand::Buffer { buffer, offset: range.extent }
}

/// A copy.
pub(super) fn copy(
    destination: Operand,
    source: Operand,
    range: Range,
    modifiers: Modifiers,
) -> Op {
    Op::Copy { destination, source, range, modifiers }
}

/// The sending end of a slotted lane, within one round.
pub(super) struct SlotSender {
    port: PortIndex,
    slot_count: u32,
    sent: u32,
    /// Messages whose slots are known to be free.
    claimed: Cell<u32>,
    forwarded: u32,
    /// Forwarded messages that the engine is known to have read.
    read: u32,
    /// The lane is one of stores.
    by_stores: bool,
}

impl SlotSender {
    pub(super) fn new(port: PortIndex, slot_count: u32) -> Self {
        let claimed = Cell::new(0);
        Self { port, slot_count, sent: 0, claimed, forwarded: 0, read: 0, by_stores: false }
    }

    /// Waits until the next message's slot is free, once, and names it. The message that used the
    /// slot before must have been credited: its receiver has read it, so the engine has left both
    /// ends.
    pub(super) fn claim(&self, ops: &mut Vec<Op>) -> Operand {
        if self.claimed.replace(self.sent + 1) <= self.sent {
            let value = i64::from(self.sent) + 1 - i64::from(self.slot_count);
            ops.push(Op::WaitSignal { port: self.port, value });
        }
        Operand::Slot { port: self.port, message: self.sent, offset: 0 }
    }

    /// Copies `from` into the next slot, and puts it.
    pub(super) fn send(
        &mut self,
        ops: &mut Vec<Op>,
        from: Operand,
        range: Range,
        modifiers: Modifiers,
    ) {
        let slot = self.claim(ops);
        ops.push(copy(slot, from, range, modifiers));
        self.put(ops, range);
    }

    /// Puts the claimed slot.
    pub(super) fn put(&mut self, ops: &mut Vec<Op>, range: Range) {
        let slot = Operand::Slot { port: self.port, message: self.sent, offset: 0 };
        ops.push(Op::Put {
            port: self.port,
            destination: slot,
            source: slot,
            range,
            arrival: true,
            completion: false,
        });
        self.sent += 1;
    }

    /// Sends a message without data, which takes a slot on lanes of engines alone: there it takes
    /// what an adapter has for each slot.
    pub(super) fn announce(&mut self, ops: &mut Vec<Op>) {
        if !self.by_stores {
            self.claim(ops);
        }
        self.put(ops, Range { extent: 0, length: 0 });
    }

    /// Puts what lies in the slot `arrived` of another port, or in a registered input, without a
    /// copy. The engine reads it until [`SlotSender::wait_forwarded`] says otherwise.
    pub(super) fn forward(&mut self, ops: &mut Vec<Op>, arrived: Operand, range: Range) {
        let destination = self.claim(ops);
        ops.push(Op::Put {
            port: self.port,
            destination,
            source: arrived,
            range,
            arrival: true,
            completion: true,
        });
        self.sent += 1;
        self.forwarded += 1;
    }

    /// Waits until the engine has read all but the last `pending` forwarded messages.
    pub(super) fn wait_forwarded(&mut self, ops: &mut Vec<Op>, pending: u32) {
        let read = self.forwarded.saturating_sub(pending);
        if read > self.read {
            ops.push(Op::WaitCompletion { port: self.port, value: i64::from(read) });
            self.read = read;
        }
    }

    /// The place of `range` in a buffer of the receiving rank.
    pub(super) fn at_peer(&self, buffer: Buffer, range: Range) -> Operand {
        Operand::Peer { port: self.port, buffer, offset: range.extent }
    }

    /// Waits until the credits of all messages have come.
    pub(super) fn wait_returned(&self) -> Op {
        Op::WaitSignal { port: self.port, value: i64::from(self.sent) }
    }

    /// Behind all rounds: waits until the credits of all messages have come.
    pub(super) fn all_returned(&self) -> Op {
        Op::WaitSignal { port: self.port, value: 0 }
    }

    /// Behind all rounds: waits until the engine has read all that was forwarded.
    pub(super) fn all_read(&self) -> Op {
        Op::WaitCompletion { port: self.port, value: 0 }
    }

    /// Ends the round: the next one counts from zero again.
    pub(super) fn advance(self, ops: &mut Vec<Op>) {
        let (signals, completions) = (self.sent, self.forwarded);
        ops.push(Op::Advance { port: self.port, signals, completions });
    }
}

/// The receiving end of a slotted lane, within one round.
pub(super) struct SlotReceiver {
    port: PortIndex,
    received: u32,
}

impl SlotReceiver {
    pub(super) fn new(port: PortIndex) -> Self {
        Self { port, received: 0 }
    }

    /// The place of `range` in a buffer of the sending rank.
    pub(super) fn at_peer(&self, buffer: Buffer, range: Range) -> Operand {
        Operand::Peer { port: self.port, buffer, offset: range.extent }
    }

    /// Waits for the next message, and names its slot.
    pub(super) fn wait(&self, ops: &mut Vec<Op>) -> Operand {
        self.wait_ahead(ops, 0)
    }

    /// Waits for a message while the slots of `held` before it are not released yet.
    pub(super) fn wait_ahead(&self, ops: &mut Vec<Op>, held: u32) -> Operand {
        let message = self.received + held;
        ops.push(Op::WaitSignal { port: self.port, value: i64::from(message) + 1 });
        Operand::Slot { port: self.port, message, offset: 0 }
    }

    /// Returns the message's slot to the sender.
    pub(super) fn release(&mut self, ops: &mut Vec<Op>) {
        self.release_all(ops, 1);
    }

    /// Returns the slots of so many messages at once.
    pub(super) fn release_all(&mut self, ops: &mut Vec<Op>, messages: u16) {
        ops.push(Op::Credit { port: self.port, messages });
        self.received += u32::from(messages);
    }

    /// Ends the round.
    pub(super) fn advance(self, ops: &mut Vec<Op>) {
        ops.push(Op::Advance { port: self.port, signals: self.received, completions: 0 });
    }
}

/// A place on a ring.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    pub(super) index: u32,
    pub(super) size: u32,
}

/// What a step of a ring handles.
pub(super) struct Step {
    pub(super) part: u32,
    pub(super) slice: u32,
    /// Nothing follows: the part has been everywhere.
    pub(super) is_last: bool,
}

impl Ring {
    /// `size - 1` steps that begin with part `first` modulo `size` and go down by one each.
    pub(super) fn steps(self, first: u32, slices: u32) -> impl Iterator<Item = Step> {
        let size = self.size;
        (0..size - 1).flat_map(move |step| {
            let part = (first % size + size - step) % size;
            (0..slices).map(move |slice| Step { part, slice, is_last: step == size - 2 })
        })
    }

    /// What arrives while parts are reduced: the last one is complete here.
    pub(super) fn reduced(self, slices: u32) -> impl Iterator<Item = Step> {
        self.steps(self.index + self.size - 1, slices)
    }

    /// What arrives while complete parts go around.
    pub(super) fn gathered(self, slices: u32) -> impl Iterator<Item = Step> {
        self.steps(self.index + self.size, slices)
    }

    /// The part that reduce-scatter completes here.
    pub(super) fn own(self) -> u32 {
        (self.index + 1) % self.size
    }
}

/// Both ends of a hop through slots, within one round.
pub(super) struct SlotHop {
    pub(super) sender: SlotSender,
    pub(super) receiver: SlotReceiver,
    /// How many slots whose data goes on may be held back.
    keep: u32,
}

impl SlotHop {
    pub(super) fn new(send: PortIndex, receive: PortIndex, slot_count: u32) -> Self {
        Self {
            sender: SlotSender::new(send, slot_count),
            receiver: SlotReceiver::new(receive),
            // With two slots, a ring in which everybody keeps one back while the other travels
            // waits for itself.
            keep: u32::from(slot_count > 2),
        }
    }

    /// Takes complete parts as they come (each with where it goes and whether it is the last),
    /// copies them there, and sends all but the last on from the slot that they arrived in. The
    /// engine reads such a slot a little longer than the copy does, so it is returned one message
    /// later.
    pub(super) fn gather(
        &mut self,
        ops: &mut Vec<Op>,
        steps: impl Iterator<Item = (Operand, Range, bool)>,
    ) {
        let mut held = 0;
        for (destination, range, is_last) in steps {
            let arrived = self.receiver.wait_ahead(ops, held);
            if !is_last {
                self.sender.forward(ops, arrived, range);
            }
            ops.push(copy(destination, arrived, range, Modifiers::NONE));
            held += 1;
            let keep = if is_last { 0 } else { self.keep };
            if held > keep {
                self.sender.wait_forwarded(ops, keep);
            }
            while held > keep {
                self.receiver.release(ops);
                held -= 1;
            }
        }
        self.sender.wait_forwarded(ops, 0);
        for _ in 0..held {
            self.receiver.release(ops);
        }
    }

    /// Ends the round at both ends.
    pub(super) fn advance(self, ops: &mut Vec<Op>) {
        self.sender.advance(ops);
        self.receiver.advance(ops);
    }
}

/// The sending end of a direct lane, within one round.
pub(super) struct DirectSender {
    port: PortIndex,
    last_put: Option<usize>,
}

impl DirectSender {
    pub(super) fn new(port: PortIndex) -> Self {
        Self { port, last_put: None }
    }

    /// At the start of a launch: waits for the receiver's grant to write its output.
    pub(super) fn wait_grant(&self) -> [Op; 2] {
        [
            Op::WaitSignal { port: self.port, value: 1 },
            Op::Advance { port: self.port, signals: 1, completions: 0 },
        ]
    }

    /// Puts `range` of a local buffer into the peer's output.
    pub(super) fn put(
        &mut self,
        ops: &mut Vec<Op>,
        source: Operand,
        destination: Operand,
        range: Range,
    ) {
        self.last_put = Some(ops.len());
        let port = self.port;
        ops.push(Op::Put { port, destination, source, range, arrival: true, completion: false });
    }

    /// Ends the round. Its last put raises the completion signal: a lane completes in order, so
    /// that one stands for all puts of the round.
    pub(super) fn advance(self, ops: &mut Vec<Op>) {
        let mut completions = 0;
        if let Some(Op::Put { completion, .. }) = self.last_put.map(|at| &mut ops[at]) {
            *completion = true;
            completions = 1;
        }
        ops.push(Op::Advance { port: self.port, signals: 0, completions });
    }

    /// What ends a launch: every source in the caller's memory has been read.
    pub(super) fn drain(&self) -> Op {
        Op::WaitCompletion { port: self.port, value: 0 }
    }
}

/// The receiving end of a direct lane, within one round.
pub(super) struct DirectReceiver {
    port: PortIndex,
    received: u32,
}

impl DirectReceiver {
    pub(super) fn new(port: PortIndex) -> Self {
        Self { port, received: 0 }
    }

    /// At the start of a launch: this rank's output may be written from now on.
    pub(super) fn grant(&self) -> Op {
        Op::Credit { port: self.port, messages: 1 }
    }

    /// Waits for the next piece.
    pub(super) fn wait(&mut self, ops: &mut Vec<Op>) {
        self.received += 1;
        ops.push(Op::WaitSignal { port: self.port, value: i64::from(self.received) });
    }

    /// Ends the round.
    pub(super) fn advance(self, ops: &mut Vec<Op>) {
        ops.push(Op::Advance { port: self.port, signals: self.received, completions: 0 });
    }
}

/// Both ends of a direct ring hop, within one round: puts on one port, arrivals on another.
pub(super) struct DirectHop {
    pub(super) sender: DirectSender,
    pub(super) receiver: DirectReceiver,
}

impl DirectHop {
    pub(super) fn new(send: PortIndex, receive: PortIndex) -> Self {
        Self { sender: DirectSender::new(send), receiver: DirectReceiver::new(receive) }
    }

    /// The handshake at the start of a launch: inform the sender that this rank's output may be
    /// written from now on, and wait for the receiver to say the same.
    pub(super) fn handshake(&self) -> Vec<Op> {
        [&[self.receiver.grant()][..], &self.sender.wait_grant()].concat()
    }

    /// Puts `range` of a local buffer to the same place of the peer's output.
    pub(super) fn put(&mut self, ops: &mut Vec<Op>, source: Buffer, range: Range) {
        self.sender.put(ops, at(source, range), at(Buffer::Output, range), range);
    }

    /// Waits for the next piece.
    pub(super) fn wait(&mut self, ops: &mut Vec<Op>) {
        self.receiver.wait(ops);
    }

    /// Ends the round at both ends.
    pub(super) fn advance(self, ops: &mut Vec<Op>) {
        self.sender.advance(ops);
        self.receiver.advance(ops);
    }

    /// What ends a launch: every source in the caller's memory has been read.
    pub(super) fn drain(&self) -> Vec<Op> {
        vec![self.sender.drain()]
    }
}
