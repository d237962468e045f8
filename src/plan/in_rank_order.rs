//! All-reduce, reduce-scatter and reduce whose terms are added one by one, in the order of ranks,
//! for results that are the same bits whatever the plan: each element is
//! `((x0 + x1) + x2) + ...`, where `x` is an input, scaled and rounded, every sum is rounded, and
//! the last one finished before it is rounded. All-pairs computes the same.
//!
//! Ranks form groups of `group_ranks`, which follow one another. The ranks with the same place in
//! their groups own a chunk of the data, in the order of groups:
//!
//! * Every rank sends each other rank of its group its contribution to that one's chunk.
//! * In group 0, the owner adds the contributions of its group, and sends the sum to the chunk's
//!   owner in group 1, who adds those of its group one by one, and so on. In the last group the
//!   sum is complete.
//! * From there it goes to the owner in group 0, 1, ... as far as somebody needs it, and, of an
//!   all-reduce, from each owner to its group.
//!
//! One group is a two-shot; groups of one rank are a chain whose end leads back to its beginning.
//! With groups of the size of a node, data crosses between nodes on all rails at once, each with
//! its share. Each rank sends and receives as much as in a ring, and, where there are `k` groups,
//! `k / (k - 1)` times as much between groups.
//!
//! The data is cut round-major: in round `r`, block `b` handles a chunk for each place, of `slices`
//! pieces. While a chunk's first pieces go around, the others follow. Of a reduce-scatter, a
//! chunk's pieces are those of the parts of the ranks that own it, in the order of groups.
//!
//! Complete pieces wait in slots until group 0 has sent all of its own, so a chunk has no more than
//! the slots of `k` lanes hold; selection takes half. A reduce has one group, or groups of one
//! rank.

use super::builder::{SlotHop, SlotReceiver, SlotSender, at, copy};
use super::{BlockProgram, Buffer, Choice, Collective, Modifiers, Op, Operand, Range, RankProgram};
use ringdove_kernels::element::ReduceOp;

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let blocks = (0..choice.blocks).map(|block| {
        let mut program = BlockProgram::default();
        if choice.rounds > 0 {
            let ops = Walk::new(Layout { choice, rank, block }, &mut program).ops();
            program.rounds(choice, ops);
        }
        program
    });
    RankProgram { blocks: blocks.collect() }
}

/// Which piece stands where, and where it goes, as one block of one rank sees it.
#[derive(Clone, Copy)]
struct Layout<'a> {
    choice: &'a Choice,
    rank: u32,
    block: u32,
}

impl Layout<'_> {
    fn collective(&self) -> Collective {
        self.choice.request.collective
    }

    fn group_ranks(&self) -> u32 {
        self.choice.group_ranks
    }

    fn groups(&self) -> u32 {
        self.choice.request.rank_count / self.group_ranks()
    }

    fn group(&self) -> u32 {
        self.rank / self.group_ranks()
    }

    fn place(&self) -> u32 {
        self.rank % self.group_ranks()
    }

    fn is_in_last_group(&self) -> bool {
        self.group() + 1 == self.groups()
    }

    fn is_root(&self, rank: u32) -> bool {
        self.collective().root() == Some(rank)
    }

    /// Pieces of a chunk.
    fn pieces(&self) -> u32 {
        match self.collective() {
            Collective::ReduceScatter => self.groups() * self.choice.slices,
            _ => self.choice.slices,
        }
    }

    /// Piece `number` of the chunk of `place`.
    fn range(&self, place: u32, number: u32) -> Range {
        let length = self.choice.slice_bytes;
        if self.collective() == Collective::ReduceScatter {
            return self.choice.slice(self.block, number % self.choice.slices);
        }
        let chunk = u64::from(self.block) * u64::from(self.group_ranks()) + u64::from(place);
        let before = chunk * u64::from(self.pieces()) + u64::from(number);
        Range { extent: before * u64::from(length), length }
    }

    /// This rank's contribution to a piece.
    fn input(&self, place: u32, number: u32) -> Operand {
        let range = self.range(place, number);
        match self.collective() {
            Collective::ReduceScatter => {
                let part = number / self.choice.slices * self.group_ranks() + place;
                self.choice.part(Buffer::Input, part, range)
            }
            _ => at(Buffer::Input, range),
        }
    }

    /// Where the result of a piece goes, if this rank gets it.
    fn output(&self, place: u32, number: u32) -> Operand {
        at(Buffer::Output, self.range(place, number))
    }

    /// The last of the groups to which a complete piece goes, from group 0 on, if it leaves the
    /// last group.
    fn end(&self, number: u32) -> Option<u32> {
        let last = self.groups() - 1;
        let end = match self.collective() {
            Collective::AllReduce => return last.checked_sub(1),
            Collective::ReduceScatter => number / self.choice.slices,
            collective => collective.root().expect("a reduce has a root") / self.group_ranks(),
        };
        (end < last).then_some(end)
    }

    /// Does a piece of this rank's own chunk belong into its output?
    fn keeps(&self, number: u32) -> bool {
        match self.collective() {
            Collective::AllReduce => true,
            Collective::ReduceScatter => number / self.choice.slices == self.group(),
            _ => self.is_root(self.rank),
        }
    }

    /// Contributions that are sent before the first one is waited for, besides that one. Half of
    /// the slots: the next slot is then free when everybody has come as far as the piece before.
    fn ahead(&self) -> u32 {
        self.choice.slots.count / 2 - 1
    }
}

/// Another rank of the group, and the lanes to and from it.
struct Peer {
    place: u32,
    lanes: SlotHop,
}

/// A term of a sum.
#[derive(Clone, Copy)]
enum Term {
    /// What groups before have added up.
    Before,
    Own,
    /// The contribution of a peer, by its index.
    Peer(usize),
}

/// What becomes of a sum.
enum Sum {
    /// It leaves for the next group, or, if it is complete, for the first one.
    Leaves,
    /// It leaves for the root, a peer.
    ToRoot(usize),
    Stays,
}

/// One rank's part of one block's work, within one round.
struct Walk<'a> {
    layout: Layout<'a>,
    /// Those that follow this rank first: no receiver is everybody's first.
    peers: Vec<Peer>,
    /// From the chunk's owner in the group before, and to that in the group behind.
    previous: Option<SlotReceiver>,
    next: Option<SlotSender>,
    /// A complete piece that has been sent on stays in its slot until the engine has read it.
    is_held: bool,
    ops: Vec<Op>,
}

impl<'a> Walk<'a> {
    fn new(layout: Layout<'a>, program: &mut BlockProgram) -> Self {
        let Layout { choice, rank, block } = layout;
        let (size, slots) = (choice.request.rank_count, choice.slots.count);
        let (group_ranks, index) = (layout.group_ranks(), block as u16);
        let peers = (1..group_ranks).map(|step| {
            let place = (layout.place() + step) % group_ranks;
            let peer = layout.group() * group_ranks + place;
            Peer { place, lanes: program.hop([peer, rank, peer], index, slots) }
        });
        let peers = peers.collect();
        let leads_back = (0..layout.pieces()).any(|number| layout.end(number).is_some());
        let previous = (layout.group() > 0 || leads_back)
            .then(|| program.receiver((rank + size - group_ranks) % size, rank, index));
        let next = (!layout.is_in_last_group() || leads_back)
            .then(|| program.sender(rank, (rank + group_ranks) % size, index, slots));
        Self { layout, peers, previous, next, is_held: false, ops: Vec::new() }
    }

    /// The ops of one round.
    fn ops(mut self) -> Vec<Op> {
        let (pieces, ahead) = (self.layout.pieces(), self.layout.ahead());
        for step in 0..pieces + ahead {
            if step < pieces {
                self.contribute(step);
            }
            if let Some(number) = step.checked_sub(ahead) {
                self.add_up(number);
            }
        }
        for step in 0..pieces + ahead {
            if step < pieces {
                self.hand_on(step);
            }
            if let Some(number) = step.checked_sub(ahead) {
                self.take_from_peers(number);
            }
        }
        self.release_held([0, 0]);
        let mut ops = self.ops;
        self.peers.into_iter().for_each(|peer| peer.lanes.advance(&mut ops));
        self.previous.into_iter().for_each(|previous| previous.advance(&mut ops));
        self.next.into_iter().for_each(|next| next.advance(&mut ops));
        ops
    }

    /// Sends each peer what it needs of this rank for piece `number` of its chunk.
    fn contribute(&mut self, number: u32) {
        for Peer { place, lanes } in &mut self.peers {
            let input = self.layout.input(*place, number);
            let range = self.layout.range(*place, number);
            lanes.sender.send(&mut self.ops, input, range, Modifiers::SCALE);
        }
    }

    /// Adds the group's contributions to piece `number` of this rank's chunk, in their order.
    fn add_up(&mut self, number: u32) {
        let layout = self.layout;
        let range = layout.range(layout.place(), number);
        let (sum, to) = self.destination(number);
        let terms = self.terms();
        let (mut so_far, mut unread, mut has_own) = (None, None, false);
        for (index, &term) in terms.iter().enumerate() {
            has_own |= matches!(term, Term::Own);
            let value = self.value(term, number, to, terms.len() == 1);
            if let Some(a) = so_far {
                // In place, this rank's own contribution may stand where the result goes.
                let destination = if has_own { to } else { self.scratch() };
                let finish = layout.is_in_last_group() && index + 1 == terms.len();
                let modifiers = Modifiers { scale: false, finish };
                self.ops.push(Op::Reduce { destination, a, b: value, range, modifiers });
                [unread.take(), Some(term)].into_iter().flatten().for_each(|it| self.release(it));
                so_far = Some(destination);
            } else {
                (so_far, unread) = (Some(value), Some(term));
            }
        }
        match sum {
            Sum::Leaves => {
                self.next.as_mut().expect("it leads there").put(&mut self.ops, range);
                if layout.is_in_last_group() && layout.keeps(number) {
                    let output = layout.output(layout.place(), number);
                    self.ops.push(copy(output, to, range, Modifiers::NONE));
                }
            }
            Sum::ToRoot(peer) => self.peers[peer].lanes.sender.put(&mut self.ops, range),
            Sum::Stays => {}
        }
    }

    /// Where the sum goes, and where it is made once this rank's contribution is in it.
    fn destination(&mut self, number: u32) -> (Sum, Operand) {
        let layout = self.layout;
        if !layout.is_in_last_group() || layout.end(number).is_some() {
            let next = self.next.as_ref().expect("it leads there");
            (Sum::Leaves, next.claim(&mut self.ops))
        } else if layout.keeps(number) {
            (Sum::Stays, layout.output(layout.place(), number))
        } else {
            let root = self.peers.iter().position(|peer| layout.is_root(peer.place));
            let root = root.expect("of one group, the root is a peer");
            (Sum::ToRoot(root), self.peers[root].lanes.sender.claim(&mut self.ops))
        }
    }

    /// The terms of a sum, in the order of ranks.
    fn terms(&self) -> Vec<Term> {
        let before = (self.layout.group() > 0).then_some(Term::Before);
        let of_group = (0..self.layout.group_ranks()).map(|place| {
            let peer = self.peers.iter().position(|peer| peer.place == place);
            peer.map_or(Term::Own, Term::Peer)
        });
        before.into_iter().chain(of_group).collect()
    }

    /// Waits for a term, and says where it is. This rank's own is scaled and rounded as the others'
    /// were, at `to`; it goes there, too, if it is the only one.
    fn value(&mut self, term: Term, number: u32, to: Operand, is_alone: bool) -> Operand {
        let layout = self.layout;
        match term {
            Term::Before => self.previous.as_ref().expect("a group before").wait(&mut self.ops),
            Term::Peer(peer) => self.peers[peer].lanes.receiver.wait(&mut self.ops),
            Term::Own => {
                let own = layout.input(layout.place(), number);
                if !is_alone && layout.choice.request.reduce_op != ReduceOp::PreMulSum {
                    return own;
                }
                let range = layout.range(layout.place(), number);
                self.ops.push(copy(to, own, range, Modifiers::SCALE));
                to
            }
        }
    }

    /// Memory for a sum to which this rank has not contributed yet: a slot whose message comes
    /// later.
    fn scratch(&mut self) -> Operand {
        let group = self.layout.group() * self.layout.group_ranks();
        let is_free = |peer: &&Peer| !self.layout.is_root(group + peer.place);
        let peer = self.peers.iter().find(is_free).expect("two others come before this rank");
        peer.lanes.sender.claim(&mut self.ops)
    }

    /// Returns the slot of a term that has been added.
    fn release(&mut self, term: Term) {
        match term {
            Term::Own => {}
            Term::Before => {
                self.previous.as_mut().expect("a group before").release(&mut self.ops);
            }
            Term::Peer(peer) => self.peers[peer].lanes.receiver.release(&mut self.ops),
        }
    }

    /// Sends a complete piece of this rank's chunk on, to the next group and to the peers.
    fn hand_on(&mut self, number: u32) {
        let layout = self.layout;
        let spreads = layout.collective() == Collective::AllReduce;
        let range = layout.range(layout.place(), number);
        let output = layout.output(layout.place(), number);
        if layout.is_in_last_group() {
            for Peer { lanes, .. } in self.peers.iter_mut().filter(|_| spreads) {
                lanes.sender.send(&mut self.ops, output, range, Modifiers::NONE);
            }
            return;
        }
        let Some(end) = layout.end(number).filter(|end| layout.group() <= *end) else { return };
        let previous = self.previous.as_ref().expect("it leads here");
        let arrived = previous.wait_ahead(&mut self.ops, u32::from(self.is_held));
        let goes_on = layout.group() < end;
        for next in self.next.iter_mut().filter(|_| goes_on) {
            next.forward(&mut self.ops, arrived, range);
        }
        for Peer { lanes, .. } in self.peers.iter_mut().filter(|_| spreads) {
            lanes.sender.forward(&mut self.ops, arrived, range);
        }
        if layout.keeps(number) {
            self.ops.push(copy(output, arrived, range, Modifiers::NONE));
        }
        self.release_held([goes_on, spreads].map(u32::from));
        self.is_held = true;
        // With two slots, everybody would keep one while the other travels.
        if layout.choice.slots.count == 2 {
            self.release_held([0, 0]);
        }
    }

    /// Returns the slot of the piece that is held, once it has been read: all but the last
    /// `pending` that went on to the next group and to the peers.
    fn release_held(&mut self, pending: [u32; 2]) {
        if !std::mem::take(&mut self.is_held) {
            return;
        }
        if let Some(next) = &mut self.next {
            next.wait_forwarded(&mut self.ops, pending[0]);
        }
        for Peer { lanes, .. } in &mut self.peers {
            lanes.sender.wait_forwarded(&mut self.ops, pending[1]);
        }
        self.previous.as_mut().expect("it came from there").release(&mut self.ops);
    }

    /// Takes the complete pieces `number` of the peers' chunks, where this rank gets them.
    fn take_from_peers(&mut self, number: u32) {
        let layout = self.layout;
        let takes = match layout.collective() {
            Collective::AllReduce => true,
            Collective::ReduceScatter => false,
            _ => layout.is_root(layout.rank),
        };
        for Peer { place, lanes } in self.peers.iter_mut().rev().filter(|_| takes) {
            let arrived = lanes.receiver.wait(&mut self.ops);
            let range = layout.range(*place, number);
            let output = layout.output(*place, number);
            self.ops.push(copy(output, arrived, range, Modifiers::NONE));
            lanes.receiver.release(&mut self.ops);
        }
    }
}
