//! Copies and reductions of one range that the executor may carry in one pass over memory.
//!
//! A chain of reductions that adds one source after the other to the same place reads and writes
//! that place each time, and so does each copy of the sum to a peer. In one pass every source is
//! read once and every destination written once. A plan does not know: its ops are what is proved,
//! one by one. An encoded op says how many of those behind it may go with it, and the executor
//! takes as many as it has code for (`kernels/cuda/fused.cuh`).
//!
//! Every thread reads its elements in all sources before it writes any, but it does so while others
//! are at other elements. So that the results are the same, places that are not apart must be the
//! same place.

use super::{Buffer, LaneEnd, Op, Operand, Range};

/// The most that one pass takes behind its first op: three sources and three destinations.
const BEHIND_MAX: usize = 6;

/// How many ops behind the first of `ops`, those of a segment from there on, may go with it.
pub(super) fn behind(ops: &[Op], ports: &[LaneEnd]) -> usize {
    let Some(mut pass) = ops.first().and_then(Pass::begin) else { return 0 };
    ops[1..].iter().take(BEHIND_MAX).take_while(|op| pass.takes(op, ports)).count()
}

/// What a pass has taken so far.
struct Pass {
    range: Range,
    /// Where a copy that goes with it copies from.
    result: Operand,
    /// The sum, as long as nothing is copied from it.
    sum: Option<Operand>,
    sources: Vec<Operand>,
    destinations: Vec<Operand>,
}

impl Pass {
    fn begin(op: &Op) -> Option<Self> {
        match *op {
            Op::Reduce { destination, a, b, range, .. } => Some(Self {
                range,
                result: destination,
                sum: Some(destination),
                sources: vec![a, b],
                destinations: vec![destination],
            }),
            Op::Copy { destination, source, range, .. } => Some(Self {
                range,
                result: source,
                sum: None,
                sources: vec![source],
                destinations: vec![destination],
            }),
            _ => None,
        }
    }

    fn takes(&mut self, op: &Op, ports: &[LaneEnd]) -> bool {
        let (place, adds) = match *op {
            Op::Reduce { destination, a, b, range, .. }
                if range == self.range && self.sum == Some(destination) && b == destination =>
            {
                (a, true)
            }
            Op::Copy { destination, source, range, .. }
                if range == self.range && source == self.result =>
            {
                (destination, false)
            }
            _ => return false,
        };
        let touched = self.destinations.iter().chain(if adds { &[][..] } else { &self.sources });
        if !touched.into_iter().all(|other| is_apart(place, *other, ports)) {
            return false;
        }
        if adds {
            self.sources.push(place);
        } else {
            self.sum = None;
            self.destinations.push(place);
        }
        true
    }
}

/// Do equal ranges at two places lie in different memory, or else at the same address?
fn is_apart(a: Operand, b: Operand, ports: &[LaneEnd]) -> bool {
    let peer = |port: u16| ports.get(usize::from(port)).map(LaneEnd::peer);
    match (a, b) {
        _ if a == b => true,
        // Input and output may be one memory.
        (Operand::Buffer { buffer, offset }, Operand::Buffer { buffer: other, offset: start }) => {
            offset == start || (buffer == Buffer::Scratch) != (other == Buffer::Scratch)
        }
        (Operand::Peer { port, offset, .. }, Operand::Peer { port: other, offset: start, .. }) => {
            offset == start || peer(port) != peer(other)
        }
        // Each port is an end of a lane of its own.
        (Operand::Slot { port, .. }, Operand::Slot { port: other, .. }) => port != other,
        (Operand::Buffer { .. }, Operand::Peer { .. } | Operand::Slot { .. })
        | (Operand::Peer { .. }, Operand::Buffer { .. } | Operand::Slot { .. })
        | (Operand::Slot { .. }, Operand::Buffer { .. } | Operand::Peer { .. }) => true,
        // What an address leads to, nobody knows.
        (Operand::Address(_) | Operand::Granted { .. }, _)
        | (_, Operand::Address(_) | Operand::Granted { .. }) => false,
    }
}
