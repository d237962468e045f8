//! All-pairs: every collective of small data in one hop, by low-latency messages.
//!
//! Every rank sends every other rank one LL message (R13) on the LL lane of the pair: with what
//! that one gets from it, or, where that is nothing, without data. What goes to several ranks is
//! packed once for those of its node and once for the others; on lanes of stores it is there then.
//! Then the rank takes what has come: it copies each message to its place, or reduces all of them
//! and its own term, in the order of ranks, so that all ranks get the same bits. There is one hop
//! instead of several, without arrival signals and credits. What travels in total is `n (n - 1)`
//! messages, twice their size because of the flags: for small data only.
//!
//! Nobody waits for credits. A rank packs message `m` only after it has read all messages before
//! `m` from each peer, and so does each peer. Hence message `m - 1` from a peer, which this rank
//! has read, was sent after that peer had read message `m - 2` from here: with two slots, the slot
//! of message `m` is free at both ends. And as all LL lanes carry messages in step, one packed
//! message has the right flag for each of them. The verifier holds plans to both rules.
//!
//! The messages without data keep both rules for all collectives, in any order, on the same lanes.
//! A root therefore waits for every rank, also where it only sends. (Rejected: to leave these
//! messages out and to skip their numbers. Then two ranks that only hear from the root do not know
//! what the other one has read, and two slots are too few.)

use super::builder::{at, copy};
use super::{
    BlockProgram, Buffer, Choice, Collective, GRANULE_BYTES, Lane, LaneKind, Modifiers, Op,
    Operand, PortIndex, Range, RankProgram, Segment, Side,
};

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    RankProgram { blocks: vec![AllPairs { choice, rank }.block()] }
}

/// One rank's part.
struct AllPairs<'a> {
    choice: &'a Choice,
    rank: u32,
}

impl AllPairs<'_> {
    fn block(&self) -> BlockProgram {
        let mut program = BlockProgram::default();
        let is_barrier = self.collective() == Collective::Barrier;
        if self.choice.rounds == 0 && !is_barrier {
            return program;
        }
        let peers = self.peers();
        let lane = |from, to| Lane { from, to, index: 0, kind: LaneKind::LowLatency };
        for &peer in &peers {
            program.port(lane(self.rank, peer), Side::Send);
        }
        for &peer in &peers {
            program.port(lane(peer, self.rank), Side::Receive);
        }
        let mut ops = Vec::new();
        self.send(&mut ops, &peers);
        self.own_part(&mut ops);
        self.receive(&mut ops, &peers);
        for port in 0..2 * peers.len() as PortIndex {
            ops.push(Op::Advance { port, signals: 1, completions: 0 });
        }
        if is_barrier {
            // No data: the segment is as long as a message without data.
            let limit = GRANULE_BYTES;
            program.segments.push(Segment { rounds: 1, round_stride: 0, limit, ops });
        } else {
            program.rounds(self.choice, ops);
        }
        program
    }

    fn collective(&self) -> Collective {
        self.choice.request.collective
    }

    /// The other ranks in order, but that one comes first which alone sends data.
    fn peers(&self) -> Vec<u32> {
        let others = (0..self.choice.request.rank_count).filter(|peer| *peer != self.rank);
        let mut peers: Vec<u32> = others.collect();
        if let Collective::Broadcast { root } | Collective::Scatter { root } = self.collective() {
            peers.sort_by_key(|peer| *peer != root);
        }
        peers
    }

    /// What messages carry.
    fn range(&self) -> Range {
        Range { extent: 0, length: self.choice.slice_bytes }
    }

    /// What messages without data are long: something has to arrive.
    fn empty(&self) -> Range {
        Range { extent: 0, length: GRANULE_BYTES as u32 }
    }

    /// What this rank has for `peer`; `None`: nothing.
    fn source(&self, peer: u32) -> Option<Operand> {
        let whole = at(Buffer::Input, self.range());
        let part = self.choice.part(Buffer::Input, peer, self.range());
        match self.collective() {
            Collective::AllReduce | Collective::AllGather => Some(whole),
            Collective::ReduceScatter | Collective::AllToAll => Some(part),
            Collective::Broadcast { root } => (root == self.rank).then_some(whole),
            Collective::Scatter { root } => (root == self.rank).then_some(part),
            Collective::Reduce { root } | Collective::Gather { root } => {
                (root == peer).then_some(whole)
            }
            Collective::Barrier => None,
        }
    }

    /// Packs what there is to send, and puts it to each peer.
    fn send(&self, ops: &mut Vec<Op>, peers: &[u32]) {
        let scales = self.choice.request.scales();
        if scales {
            // Nobody needs this rank's output before it is collected, so it can hold the scaled
            // input.
            let input = at(Buffer::Input, self.range());
            ops.push(copy(self.own_term(), input, self.range(), Modifiers::SCALE));
        }
        // For each port, where its message is packed: at the first one that sends the same to the
        // same side, since slots to and from other nodes may lie in the host's memory.
        let mut packed: Vec<((Option<Operand>, bool), PortIndex)> = Vec::new();
        let mut puts = Vec::new();
        for (port, &peer) in (0..).zip(peers) {
            let source = self.source(peer).map(|it| if scales { self.own_term() } else { it });
            let range = if source.is_some() { self.range() } else { self.empty() };
            let same = (source, self.is_apart(peer));
            let known = packed.iter().find(|(it, _)| *it == same).map(|(_, port)| *port);
            let from = known.unwrap_or_else(|| {
                packed.push((same, port));
                ops.push(Op::Pack { port, message: 0, source, range });
                port
            });
            let slot = |port| Operand::Slot { port, message: 0, offset: 0 };
            let put = Op::Put {
                port,
                destination: slot(port),
                source: slot(from),
                range,
                arrival: false,
                completion: false,
            };
            puts.push((source.is_none(), put));
        }
        // Each rank begins with the next one, so that not all of them put to rank 0 first; and data
        // goes before messages without any.
        let first = self.rank as usize % puts.len();
        puts.rotate_left(first);
        puts.sort_by_key(|(is_empty, _)| *is_empty);
        ops.extend(puts.into_iter().map(|(_, put)| put));
    }

    /// Is a peer on another node?
    fn is_apart(&self, peer: u32) -> bool {
        let per_node = self.choice.ranks_per_node.max(1);
        self.rank / per_node != peer / per_node
    }

    /// This rank's own term of a reduction.
    fn own_term(&self) -> Operand {
        match self.collective() {
            Collective::AllReduce if self.choice.request.scales() => {
                at(Buffer::Output, self.range())
            }
            Collective::ReduceScatter => self.choice.part(Buffer::Input, self.rank, self.range()),
            _ => at(Buffer::Input, self.range()),
        }
    }

    /// What this rank gets from itself. A reduction collects it.
    fn own_part(&self, ops: &mut Vec<Op>) {
        if self.choice.request.in_place {
            return;
        }
        let part = |buffer| self.choice.part(buffer, self.rank, self.range());
        let whole = |buffer| at(buffer, self.range());
        let (to, from) = match self.collective() {
            Collective::AllGather => (part(Buffer::Output), whole(Buffer::Input)),
            Collective::AllToAll => (part(Buffer::Output), part(Buffer::Input)),
            Collective::Gather { root } if root == self.rank => {
                (part(Buffer::Output), whole(Buffer::Input))
            }
            Collective::Broadcast { root } if root == self.rank => {
                (whole(Buffer::Output), whole(Buffer::Input))
            }
            Collective::Scatter { root } if root == self.rank => {
                (whole(Buffer::Output), part(Buffer::Input))
            }
            _ => return,
        };
        ops.push(copy(to, from, self.range(), Modifiers::NONE));
    }

    /// Takes what has come from each peer.
    fn receive(&self, ops: &mut Vec<Op>, peers: &[u32]) {
        let first = peers.len() as PortIndex;
        let count = first;
        let whole = at(Buffer::Output, self.range());
        match self.collective() {
            Collective::AllReduce | Collective::ReduceScatter => self.reduce(ops, first),
            Collective::Reduce { root } if root == self.rank => self.reduce(ops, first),
            Collective::AllGather | Collective::AllToAll => self.gather(ops, peers),
            Collective::Gather { root } if root == self.rank => self.gather(ops, peers),
            Collective::Broadcast { root } | Collective::Scatter { root } if root != self.rank => {
                ops.push(self.take(whole, first));
                self.wait(ops, first + 1, count - 1);
            }
            _ => self.wait(ops, first, count),
        }
    }

    /// Reduces this rank's own term and what comes at the ports from `first` on.
    fn reduce(&self, ops: &mut Vec<Op>, first: PortIndex) {
        ops.push(Op::Collect {
            destination: Some(at(Buffer::Output, self.range())),
            own: Some(self.own_term()),
            // Peers are in the order of ranks, so as many stand before this one as its number says.
            before: self.rank as u16,
            first,
            count: first,
            message: 0,
            range: self.range(),
            finish: true,
        });
    }

    /// Copies each peer's message to its part of the output.
    fn gather(&self, ops: &mut Vec<Op>, peers: &[u32]) {
        for (port, &peer) in (peers.len() as PortIndex..).zip(peers) {
            ops.push(self.take(self.choice.part(Buffer::Output, peer, self.range()), port));
        }
    }

    /// The message at one port, copied.
    fn take(&self, destination: Operand, first: PortIndex) -> Op {
        received(Some(destination), first, 1, self.range())
    }

    /// Waits for messages without data.
    fn wait(&self, ops: &mut Vec<Op>, first: PortIndex, count: u16) {
        if count > 0 {
            ops.push(received(None, first, count, self.empty()));
        }
    }
}

/// Messages that are not combined with a term of this rank's own.
fn received(destination: Option<Operand>, first: PortIndex, count: u16, range: Range) -> Op {
    let (own, before, finish) = (None, 0, false);
    Op::Collect { destination, own, before, first, count, message: 0, range, finish }
}
