//! Broadcast, reduce, gather and scatter along a binomial tree, through slots: `log2(n)` hops,
//! rounded up, for any number of ranks and any root.
//!
//! Ranks are counted from the root on. The parent of place `v` is `v` without its lowest bit, so
//! the places below `v` follow it, and the first hops are the longest: where the ranks of a node
//! follow one another and are a power of two, each node gets a message from another one once.
//!
//! * *Broadcast, reduce*: data is cut into rounds. A rank sends what arrives on from the slot in
//!   which it arrived; partial sums are made in the slot in which they leave.
//! * *Gather, scatter*: a message holds the parts of all ranks below. It fits a slot, or selection
//!   chooses another plan.
//!
//! What is in place concerns the root alone, and no other rank's program.

use super::builder::{SlotReceiver, SlotSender, at, copy};
use super::piece::{distances, pack, unpack, whole};
use super::{BlockProgram, Buffer, Choice, Collective, Modifiers, Op, Operand, RankProgram};

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    if choice.rounds == 0 {
        return RankProgram { blocks: vec![BlockProgram::default()] };
    }
    let root = choice.request.collective.root().expect("a tree has a root");
    let size = choice.request.rank_count;
    let place = (rank + size - root) % size;
    let mut node = Node { choice, rank, root, place, program: BlockProgram::default() };
    let mut ops = Vec::new();
    match choice.request.collective {
        Collective::Broadcast { .. } => node.broadcast(&mut ops),
        Collective::Reduce { .. } => node.reduce(&mut ops),
        Collective::Gather { .. } => node.gather(&mut ops),
        _ => node.scatter(&mut ops),
    }
    let mut program = node.program;
    match choice.is_in_whole_parts() {
        true => program.in_whole_parts(choice, ops),
        false => program.rounds(choice, ops),
    }
    RankProgram { blocks: vec![program] }
}

/// One rank's place in the tree.
struct Node<'a> {
    choice: &'a Choice,
    rank: u32,
    root: u32,
    place: u32,
    program: BlockProgram,
}

/// A child, and this rank's end of the lane to or from it.
struct Child<End> {
    /// How many places after this one.
    distance: u32,
    end: End,
}

impl Node<'_> {
    fn broadcast(&mut self, ops: &mut Vec<Op>) {
        let mut children = self.send_to_children();
        match self.receive_from_parent() {
            None => self.broadcast_input(ops, &mut children),
            Some(mut receiver) => {
                for range in self.choice.slices(0) {
                    let arrived = receiver.wait(ops);
                    for child in &mut children {
                        child.end.forward(ops, arrived, range);
                    }
                    ops.push(copy(at(Buffer::Output, range), arrived, range, Modifiers::NONE));
                    for child in &mut children {
                        child.end.wait_forwarded(ops, 0);
                    }
                    receiver.release(ops);
                }
                receiver.advance(ops);
            }
        }
        for child in children {
            child.end.advance(ops);
        }
    }

    fn broadcast_input(&self, ops: &mut Vec<Op>, children: &mut [Child<SlotSender>]) {
        for range in self.choice.slices(0) {
            let input = at(Buffer::Input, range);
            for child in &mut *children {
                child.end.send(ops, input, range, Modifiers::NONE);
            }
            if !self.choice.request.in_place {
                ops.push(copy(at(Buffer::Output, range), input, range, Modifiers::NONE));
            }
        }
    }

    fn reduce(&mut self, ops: &mut Vec<Op>) {
        let mut children = self.receive_from_children();
        let mut parent = self.send_to_parent();
        for range in self.choice.slices(0) {
            let destination = match &parent {
                Some(parent) => parent.claim(ops),
                None => at(Buffer::Output, range),
            };
            let input = at(Buffer::Input, range);
            if children.is_empty() {
                ops.push(copy(destination, input, range, Modifiers::SCALE));
            }
            let last = children.len().saturating_sub(1);
            for (number, child) in children.iter_mut().enumerate() {
                let a = child.end.wait(ops);
                let b = if number == 0 { input } else { destination };
                let finish = parent.is_none() && number == last;
                let modifiers = Modifiers { scale: number == 0, finish };
                ops.push(Op::Reduce { destination, a, b, range, modifiers });
                child.end.release(ops);
            }
            if let Some(parent) = &mut parent {
                parent.put(ops, range);
            }
        }
        for child in children {
            child.end.advance(ops);
        }
        if let Some(parent) = parent {
            parent.advance(ops);
        }
    }

    fn gather(&mut self, ops: &mut Vec<Op>) {
        let bytes = self.choice.request.bytes;
        let children = self.receive_from_children();
        let parent = self.send_to_parent();
        let slot = parent.as_ref().map(|parent| parent.claim(ops));
        let input = Operand::Buffer { buffer: Buffer::Input, offset: 0 };
        match slot {
            Some(slot) => ops.push(copy(slot, input, whole(bytes), Modifiers::NONE)),
            None if self.choice.request.in_place => {}
            None => unpack(ops, &self.choice.parts(Buffer::Output, self.rank, 1), input),
        }
        for mut child in children {
            let parts = self.parts_below(child.distance);
            let arrived = child.end.wait(ops);
            match slot {
                Some(slot) => {
                    let to = slot.behind(u64::from(child.distance) * bytes);
                    ops.push(copy(to, arrived, whole(parts * bytes), Modifiers::NONE));
                }
                None => {
                    let first = self.rank_after(child.distance);
                    let output = self.choice.parts(Buffer::Output, first, parts as u32);
                    unpack(ops, &output, arrived);
                }
            }
            child.end.release(ops);
            child.end.advance(ops);
        }
        if let Some(mut parent) = parent {
            parent.put(ops, whole(self.parts_below(0) * bytes));
            parent.advance(ops);
        }
    }

    fn scatter(&mut self, ops: &mut Vec<Op>) {
        let bytes = self.choice.request.bytes;
        let children = self.send_to_children();
        let receiver = self.receive_from_parent();
        let arrived = receiver.as_ref().map(|receiver| receiver.wait(ops));
        for mut child in children {
            let parts = self.parts_below(child.distance);
            let slot = child.end.claim(ops);
            match arrived {
                Some(arrived) => {
                    let from = arrived.behind(u64::from(child.distance) * bytes);
                    ops.push(copy(slot, from, whole(parts * bytes), Modifiers::NONE));
                }
                None => {
                    let first = self.rank_after(child.distance);
                    pack(ops, slot, &self.choice.parts(Buffer::Input, first, parts as u32));
                }
            }
            child.end.put(ops, whole(parts * bytes));
            child.end.advance(ops);
        }
        let output = Operand::Buffer { buffer: Buffer::Output, offset: 0 };
        match arrived {
            Some(arrived) => ops.push(copy(output, arrived, whole(bytes), Modifiers::NONE)),
            None if self.choice.request.in_place => {}
            None => pack(ops, output, &self.choice.parts(Buffer::Input, self.rank, 1)),
        }
        if let Some(mut receiver) = receiver {
            receiver.release(ops);
            receiver.advance(ops);
        }
    }

    /// How far away children are, nearest first.
    fn children(&self) -> impl DoubleEndedIterator<Item = u32> + use<> {
        let (size, place) = (self.choice.request.rank_count, self.place);
        let is_child = move |distance: &u32| place & (2 * distance - 1) == 0;
        distances(size).filter(move |distance| is_child(distance) && place + distance < size)
    }

    /// Ranks from the child at this distance on (or, at 0, from this rank on) that are below it.
    fn parts_below(&self, distance: u32) -> u64 {
        let (size, place) = (self.choice.request.rank_count, self.place + distance);
        let all = if place == 0 { size } else { place & place.wrapping_neg() };
        u64::from(all.min(size - place))
    }

    fn rank_after(&self, distance: u32) -> u32 {
        (self.rank + distance) % self.choice.request.rank_count
    }

    fn parent(&self) -> Option<u32> {
        let above = self.place.checked_sub(self.place & self.place.wrapping_neg());
        let above = above.filter(|_| self.place > 0)?;
        Some((self.root + above) % self.choice.request.rank_count)
    }

    /// Those with most ranks below them first.
    fn send_to_children(&mut self) -> Vec<Child<SlotSender>> {
        let (slots, children) = (self.choice.slots.count, self.children());
        let child = |distance| {
            let to = self.rank_after(distance);
            Child { distance, end: self.program.sender(self.rank, to, 0, slots) }
        };
        children.rev().map(child).collect()
    }

    /// Those with fewest ranks below them first.
    fn receive_from_children(&mut self) -> Vec<Child<SlotReceiver>> {
        let children = self.children();
        let child = |distance| {
            let from = self.rank_after(distance);
            Child { distance, end: self.program.receiver(from, self.rank, 0) }
        };
        children.map(child).collect()
    }

    fn send_to_parent(&mut self) -> Option<SlotSender> {
        let parent = self.parent()?;
        Some(self.program.sender(self.rank, parent, 0, self.choice.slots.count))
    }

    fn receive_from_parent(&mut self) -> Option<SlotReceiver> {
        let parent = self.parent()?;
        Some(self.program.receiver(parent, self.rank, 0))
    }
}
