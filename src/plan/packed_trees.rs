//! All-gather, reduce-scatter, all-reduce, broadcast and reduce along packed trees, over lanes of
//! stores on a node and of rails between nodes.
//!
//! Each block has a tree, alone or with others: block `b` has tree `b / blocks of a tree`. A root's
//! data (of an all-reduce, all data) is cut round-major: in round `r`, each of its blocks handles
//! `slices` slices that follow one another.
//!
//! * *Down*: all-gather and broadcast. The root stores its data to its children; every other rank
//!   stores what arrives to its own children, and copies it to its output: in one pass over memory,
//!   where the executor can (`fuse.rs`).
//! * *Up*: reduce-scatter and reduce. A rank adds what up to three children have sent and its own
//!   in its parent's slot: one pass, of sums that the executor has such passes for. Other
//!   reductions, and what more children have sent, are added in the slots in which it arrived, and
//!   the last on the way into the parent's slot. What comes over a rail is added last, since an
//!   engine writes those slots, and nobody else: into what has been added up to then, or into a
//!   slot of which the message comes later.
//! * *Both*: all-reduce, each tree for its part of the data. A rank sends slices up ahead of those
//!   that come down: two more for each link between it and the root. So a slice's way to the root
//!   and back costs time once, and not for every slice. If all ranks were equally far ahead, each
//!   would wait in each step for the whole way.
//!
//! All ranks do a block's slices in one order, each of the two ways, so nobody waits for ever. In
//! place everything is right, too: what a rank writes to its output it has sent up, or added,
//! before.

use super::builder::{SlotReceiver, SlotSender, at, copy};
use super::{
    BlockProgram, Buffer, Choice, Collective, Lane, LaneKind, Modifiers, Op, Operand, Range,
    RankProgram, Segment, Side, SpanningTree,
};
use ringdove_kernels::element::ReduceOp;
use ringdove_kernels::pass::FUSED_MAX;
use std::collections::BTreeMap;

/// Slices that a rank is ahead for each link to the root: see above. As many as a lane of stores
/// has slots: with one, all-reduces along deep trees wait for signals.
pub(crate) const SLICES_AHEAD: u32 = 2;

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let forest = choice.forest.as_ref().expect("packed plans have trees");
    let both_ways = choice.request.collective.reduces();
    let mut uses = Uses { both_ways, of: BTreeMap::new() };
    let blocks = (0..choice.blocks).map(|block| {
        let shares = choice.blocks_of_tree();
        let (tree, place) = forest.tree(block / shares);
        let first = match (forest.root(), choice.request.collective) {
            (None, Collective::AllReduce) => block,
            _ => place * shares + block % shares,
        };
        let lanes = uses.of(tree, rank);
        Node { choice, tree, rank, block, lanes, first }.program()
    });
    RankProgram { blocks: blocks.collect() }
}

/// How many blocks before this one have a link between a rank and another one. Blocks number the
/// lanes between two ranks by that, and not by themselves: so there are more blocks than lanes.
struct Uses {
    /// A block takes the lanes in both directions of a link. Where data goes down alone, it takes
    /// one, and links in the other direction do not count.
    both_ways: bool,
    of: BTreeMap<(u32, bool), u16>,
}

impl Uses {
    /// By neighbour in the tree of the next block: the index of the lanes to and from it.
    fn of(&mut self, tree: &SpanningTree, rank: u32) -> BTreeMap<u32, u16> {
        let above = tree.parent(rank).into_iter().map(|parent| (parent, true));
        let below = tree.children(rank).iter().map(|child| (*child, false));
        let next = |(other, is_above)| {
            let used = self.of.entry((other, is_above && !self.both_ways)).or_default();
            *used += 1;
            (other, *used - 1)
        };
        above.chain(below).map(next).collect()
    }
}

/// One rank's place in the tree of one block.
struct Node<'a> {
    choice: &'a Choice,
    tree: &'a SpanningTree,
    rank: u32,
    /// The block's number.
    block: u32,
    /// By neighbour: the index of the block's lanes.
    lanes: BTreeMap<u32, u16>,
    /// Which of the equal parts of a round's data is the block's.
    first: u32,
}

/// The ends of lanes that a segment uses.
struct Ends {
    /// To the parent.
    up: Option<SlotSender>,
    /// From the parent.
    down: Option<SlotReceiver>,
    /// From the children, those of the node first.
    from: Vec<(LaneKind, SlotReceiver)>,
    /// To the children.
    to: Vec<(LaneKind, SlotSender)>,
    /// To a child on a rail that is told nothing: its next slot is memory for a sum.
    spare: Option<SlotSender>,
}

impl Ends {
    /// Memory for the sum of what two children on rails have sent: a slot whose message comes
    /// later.
    fn scratch(&self, ops: &mut Vec<Op>) -> Operand {
        let is_rail = |(kind, _): &&(LaneKind, SlotSender)| *kind == LaneKind::Rail;
        let later = self.to.iter().find(is_rail).map(|(_, end)| end);
        let slot = later.or(self.spare.as_ref()).expect("one leads to the child");
        slot.claim(ops)
    }
}

impl Node<'_> {
    fn program(&self) -> BlockProgram {
        let mut program = BlockProgram::default();
        let Some(last) = self.choice.rounds.checked_sub(1) else { return program };
        let slices = 0..self.choice.slices;
        match self.choice.request.collective {
            Collective::AllReduce => {
                let ahead = self.ahead();
                self.segment(&mut program, 1, |ops, ends| {
                    (0..ahead).for_each(|slice| self.up(ops, ends, self.range(0, slice)));
                });
                self.segment(&mut program, last, |ops, ends| {
                    for slice in slices.clone() {
                        self.up(ops, ends, self.range(0, slice + ahead));
                        self.down(ops, ends, self.range(0, slice));
                    }
                });
                self.segment(&mut program, 1, |ops, ends| {
                    for slice in slices.clone() {
                        if slice + ahead < self.choice.slices {
                            self.up(ops, ends, self.range(last, slice + ahead));
                        }
                        self.down(ops, ends, self.range(last, slice));
                    }
                });
            }
            Collective::AllGather | Collective::Broadcast { .. } => {
                self.segment(&mut program, last + 1, |ops, ends| {
                    slices.for_each(|slice| self.down(ops, ends, self.range(0, slice)));
                });
            }
            _ => self.segment(&mut program, last + 1, |ops, ends| {
                slices.for_each(|slice| self.up(ops, ends, self.range(0, slice)));
            }),
        }
        program
    }

    /// How many slices this rank sends up ahead of what comes down.
    fn ahead(&self) -> u32 {
        (SLICES_AHEAD * self.tree.depth_of(self.rank)).min(self.choice.slices)
    }

    /// Appends a segment of so many rounds, if there is anything to do.
    fn segment(
        &self,
        program: &mut BlockProgram,
        rounds: u32,
        write: impl FnOnce(&mut Vec<Op>, &mut Ends),
    ) {
        let (mut ops, mut ends) = (Vec::new(), self.ends(program));
        write(&mut ops, &mut ends);
        if ops.is_empty() || rounds == 0 {
            return;
        }
        let to = ends.to.into_iter().map(|(_, end)| end);
        ends.up.into_iter().chain(to).for_each(|end| end.advance(&mut ops));
        let receivers = ends.from.into_iter().map(|(_, end)| end);
        ends.down.into_iter().chain(receivers).for_each(|end| end.advance(&mut ops));
        // Not every segment uses both directions.
        ops.retain(|op| !matches!(op, Op::Advance { signals: 0, completions: 0, .. }));
        let (round_stride, limit) = (self.choice.round_bytes(), self.choice.request.bytes);
        program.segments.push(Segment { rounds, round_stride, limit, ops });
    }

    fn ends(&self, program: &mut BlockProgram) -> Ends {
        let slots = self.choice.slots.count;
        let collective = self.choice.request.collective;
        let goes_up = collective.reduces();
        let goes_down = !goes_up || collective == Collective::AllReduce;
        let mut sender = |to| {
            let lane = self.lane(self.rank, to);
            (lane.kind, SlotSender::new(program.port(lane, Side::Send), slots))
        };
        let (parent, children) = (self.tree.parent(self.rank), self.tree.children(self.rank));
        let up = parent.filter(|_| goes_up).map(|parent| sender(parent).1);
        let mut to: Vec<_> =
            children.iter().filter(|_| goes_down).map(|child| sender(*child)).collect();
        let only_rails = children.len() > 1 && children.iter().all(|child| self.is_apart(*child));
        let spare = (only_rails && !goes_down).then(|| sender(children[0]).1);
        // Blocks take the children in turns, as with what they keep.
        if !to.is_empty() {
            let first = self.block as usize / 2 % to.len();
            to.rotate_left(first);
        }
        let mut receiver = |from| {
            let lane = self.lane(from, self.rank);
            (lane.kind, SlotReceiver::new(program.port(lane, Side::Receive)))
        };
        let down = parent.filter(|_| goes_down).map(|parent| receiver(parent).1);
        let mut from: Vec<_> =
            children.iter().filter(|_| goes_up).map(|child| receiver(*child)).collect();
        from.sort_by_key(|(kind, _)| *kind == LaneKind::Rail);
        Ends { up, down, from, to, spare }
    }

    /// Does the other rank run on another node than this one?
    fn is_apart(&self, other: u32) -> bool {
        let node = |rank| rank / self.choice.ranks_per_node;
        node(self.rank) != node(other)
    }

    fn lane(&self, from: u32, to: u32) -> Lane {
        let other = if from == self.rank { to } else { from };
        let kind = if self.is_apart(other) { LaneKind::Rail } else { LaneKind::Stores };
        Lane { from, to, index: self.lanes[&other], kind }
    }

    /// Does what comes down go to the output and to so many children in one pass? All-reduces store
    /// up, too: there all blocks would store at one time and none at another, so only ranks of
    /// several children do, which have most to store, and on one node every other block.
    fn shares_down(&self, children: usize) -> bool {
        let is_both_ways = self.choice.request.collective == Collective::AllReduce;
        !is_both_ways || children > 1 || !self.crosses_rails() && self.block % 2 == 1
    }

    /// Else, does the block copy a slice to the output before it stores it to the child? If all
    /// blocks of a rank did the same, links would rest.
    fn keeps_first(&self) -> bool {
        let turn = if self.crosses_rails() { self.block } else { self.block / 2 };
        turn % 2 == 1
    }

    /// Do some of the trees' links lead to other nodes? An engine carries what goes there, and
    /// passes that are shared then gain nothing (modelled).
    fn crosses_rails(&self) -> bool {
        self.choice.ranks_per_node < self.choice.request.rank_count
    }

    /// A slice of the block's data; those behind the last one are the next round's.
    fn range(&self, round: u32, slice: u32) -> Range {
        let Choice { slices, slice_bytes, .. } = *self.choice;
        let (round, slice) = (round + slice / slices, slice % slices);
        let before = u64::from(self.first) * u64::from(slices) + u64::from(slice);
        let rounds = u64::from(round) * self.choice.round_bytes();
        Range { extent: rounds + before * u64::from(slice_bytes), length: slice_bytes }
    }

    /// What this rank adds.
    fn own(&self, range: Range) -> Operand {
        match self.choice.request.collective {
            Collective::ReduceScatter => self.choice.part(Buffer::Input, self.tree.root(), range),
            _ => at(Buffer::Input, range),
        }
    }

    /// The sum of what the children have sent and this rank's own goes to the parent, or stays.
    fn up(&self, ops: &mut Vec<Op>, ends: &mut Ends, range: Range) {
        let target = |ops: &mut Vec<Op>| match &ends.up {
            Some(parent) => parent.claim(ops),
            None => at(Buffer::Output, range),
        };
        let (mut sum, mut added) = (self.own(range), 0);
        let Some(last) = ends.from.len().checked_sub(1) else {
            let slot = target(ops);
            ops.push(copy(slot, sum, range, Modifiers::SCALE));
            ends.up.iter_mut().for_each(|parent| parent.put(ops, range));
            return;
        };
        let children = ends.from.chunks(self.terms_of_pass());
        for (nth, group) in children.enumerate() {
            // Nothing may come between ops that share a pass.
            let arrived: Vec<_> = group.iter().map(|(_, child)| child.wait(ops)).collect();
            added += group.len();
            let destination = match (added > last, group[0].0) {
                (true, _) => target(ops),
                (false, LaneKind::Rail) if nth > 0 => sum,
                (false, LaneKind::Rail) => ends.scratch(ops),
                (false, _) => arrived[0],
            };
            for (number, a) in arrived.into_iter().enumerate() {
                let is_first = nth == 0 && number == 0;
                let is_last = added > last && number + 1 == group.len();
                let modifiers = Modifiers { scale: is_first, finish: is_last && ends.up.is_none() };
                ops.push(Op::Reduce { destination, a, b: sum, range, modifiers });
                sum = destination;
            }
        }
        ends.up.iter_mut().for_each(|parent| parent.put(ops, range));
        ends.from.iter_mut().for_each(|(_, child)| child.release(ops));
    }

    /// How many children's slices are added at a time. The executor has passes that add up to
    /// four terms, of sums alone, of types of two bytes and more. Without one the sum would be read
    /// from the parent's slot again for each child, over the link.
    fn terms_of_pass(&self) -> usize {
        let request = &self.choice.request;
        let is_sum = matches!(request.reduce_op, ReduceOp::Sum | ReduceOp::Avg);
        if is_sum && request.element_bytes > 1 { FUSED_MAX as usize - 1 } else { 1 }
    }

    /// What comes from the parent, or what the root has, goes to the children and to the output.
    fn down(&self, ops: &mut Vec<Op>, ends: &mut Ends, range: Range) {
        let collective = self.choice.request.collective;
        let output = match collective {
            Collective::AllGather => self.choice.part(Buffer::Output, self.tree.root(), range),
            _ => at(Buffer::Output, range),
        };
        let is_reduced = collective == Collective::AllReduce;
        let data = match &ends.down {
            Some(parent) => parent.wait(ops),
            None if is_reduced => output,
            None => at(Buffer::Input, range),
        };
        let is_there = ends.down.is_none() && (is_reduced || self.choice.request.in_place);
        let keep = (!is_there).then(|| copy(output, data, range, Modifiers::NONE));
        if self.shares_down(ends.to.len()) {
            // Nothing may come between ops that share a pass.
            let slots: Vec<_> = ends.to.iter().map(|(_, child)| child.claim(ops)).collect();
            ops.extend(keep);
            ops.extend(slots.into_iter().map(|slot| copy(slot, data, range, Modifiers::NONE)));
            ends.to.iter_mut().for_each(|(_, child)| child.put(ops, range));
        } else {
            let (first, last) = if self.keeps_first() { (keep, None) } else { (None, keep) };
            ops.extend(first);
            ends.to.iter_mut().for_each(|(_, child)| child.send(ops, data, range, Modifiers::NONE));
            ops.extend(last);
        }
        ends.down.iter_mut().for_each(|parent| parent.release(ops));
    }
}
