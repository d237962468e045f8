//! Passes over memory: copies and reductions, and those that share one.

use super::stores::Then;
use super::{Block, World};
use crate::plan::{LaneKind, Op, Operand, PortIndex, Side, places, shared};
use ringdove_kernels::pass::SharedPass;

/// What a pass over memory reaches.
#[derive(Clone, Copy, Default)]
struct Reached {
    /// The set of the block's ports whose peers' memory it reads or writes.
    ports: u32,
    /// Until the first of what it reads there has come. µs.
    trip: f64,
    /// It writes memory of its own.
    is_local: bool,
}

impl World<'_> {
    /// A copy or reduction, with those behind it that share its pass over memory. Into a slot of a
    /// lane of stores it goes to the peer at once, as into a peer's buffer; from one it begins with
    /// a round trip.
    pub(super) fn pass(&mut self, block: usize, bytes: u64) {
        self.spend(block, self.profile.op);
        let Block { segments, ends, place: (segment, _, first), .. } = self.blocks[block];
        let ops = &segments[segment].ops[first..];
        // The executor takes whole vectors of 16 bytes.
        let (pass, behind) = match bytes.is_multiple_of(16) {
            true => shared(ops, ends),
            false => (SharedPass::of(matches!(ops[0], Op::Reduce { .. })), 0),
        };
        self.blocks[block].place.2 += behind;
        let mut reached = Reached::default();
        // Behind the first op of a pass, a sum that grows in a peer's slot is in registers.
        if let Op::Reduce { destination, b: Operand::Slot { port, .. }, .. } = ops[0]
            && places(&ops[0])[2] == Some(destination)
            && self.is_peers(block, port)
        {
            reached.trip = 2.0 * self.latency(self.lane_at(block, port).1);
        }
        for op in &ops[..=behind] {
            self.reach(block, op, &mut reached);
        }
        let rate = self.profile.pass(pass.sources(), pass.written());
        let rate = if reached.is_local { self.local(block, rate) } else { rate };
        if reached.ports == 0 {
            return self.spend(block, bytes as f64 / rate);
        }
        self.spend(block, reached.trip);
        self.will_store(block, reached.ports, (bytes, rate), Then::Nothing);
    }

    /// Are the slots at a port the peer's memory, which the block writes?
    fn is_peers(&self, block: usize, port: PortIndex) -> bool {
        let (number, side) = self.blocks[block].ports[usize::from(port)];
        side == Side::Send && self.lanes[number].lane.kind == LaneKind::Stores
    }

    /// Which memory of peers a copy or reduction reads or writes, and whether it writes its own.
    fn reach(&self, block: usize, op: &Op, reached: &mut Reached) {
        let places = places(op);
        let peer = places.iter().flatten().find_map(|place| match *place {
            Operand::Peer { port, .. } => Some(port),
            _ => None,
        });
        match (peer, places[0]) {
            (Some(port), _) => {
                reached.ports |= 1 << port;
                if self.blocks[block].ports[usize::from(port)].1 == Side::Receive {
                    let trip = 2.0 * self.latency(self.lane_at(block, port).1);
                    reached.trip = reached.trip.max(trip);
                }
            }
            (None, Some(Operand::Slot { port, .. })) if self.is_peers(block, port) => {
                reached.ports |= 1 << port;
            }
            _ => reached.is_local = true,
        }
    }
}
