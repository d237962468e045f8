//! Copies and reductions of one range that the executor may carry in one pass over memory.
//!
//! A chain of reductions that adds one source after the other to the same place reads and writes
//! that place each time, and so does each copy of the sum to a peer. In one pass every source is
//! read once and every destination written once. A plan does not know: its ops are what is proved,
//! one by one. An encoded op says how many of those behind it may go with it, and the executor
//! takes as many as it has code for (`kernels/cuda/fused.cuh`).
//!
//! Every thread reads its elements in all sources before it writes any, but it does so while others
//! are at other elements. So that the results are the same, nothing is added that an earlier op
//! may have written, and what is written is either apart from all that was named before, or the
//! same place.

use super::scratch::places;
use super::{Buffer, LaneEnd, Op, Operand};
use ringdove_kernels::pass::SharedPass;

/// The most that one pass takes behind its first op: three sources and three destinations.
const BEHIND_MAX: usize = 6;

/// How many ops behind the first of `ops`, those of a segment from there on, may go with it.
pub(super) fn behind(ops: &[Op], ports: &[LaneEnd]) -> usize {
    let others = 1..ops.len().min(1 + BEHIND_MAX);
    others.take_while(|&place| goes_along(&ops[..place], &ops[place], ports)).count()
}

/// The pass that the executor makes of the first of `ops`, a copy or reduction of aligned data, and
/// how many of those behind it go with it. Reductions are sums.
pub(crate) fn shared(ops: &[Op], ports: &[LaneEnd]) -> (SharedPass, usize) {
    let is_reduce = |op: &Op| matches!(op, Op::Reduce { .. });
    let mut pass = SharedPass::of(is_reduce(&ops[0]));
    let behind = &ops[1..=behind(ops, ports)];
    let taken = behind.iter().take_while(|op| pass.take(is_reduce(op))).count();
    (pass, taken - pass.left_out() as usize)
}

/// May an op go with those of `pass`, which go together?
fn goes_along(pass: &[Op], op: &Op, ports: &[LaneEnd]) -> bool {
    let result = match pass[0] {
        Op::Reduce { destination, .. } => destination,
        Op::Copy { source, .. } => source,
        _ => return false,
    };
    if op.range() != pass[0].range() {
        return false;
    }
    match *op {
        // Behind a copy nothing is added: the copy would have it, too.
        Op::Reduce { destination, a, b, .. } => {
            let adds = pass.iter().all(|op| matches!(op, Op::Reduce { .. }));
            adds && [destination, b] == [result; 2] && is_apart(a, result, ports)
        }
        Op::Copy { destination, source, .. } => {
            let mut named = pass.iter().flat_map(places).flatten();
            source == result
                && named
                    .all(|it| is_apart(destination, it, ports) || is_exact(destination, it, ports))
        }
        _ => false,
    }
}

/// Do equal ranges at two places lie in different memory?
fn is_apart(a: Operand, b: Operand, ports: &[LaneEnd]) -> bool {
    match (a, b) {
        // What an address leads to, nobody knows.
        (Operand::Address(_) | Operand::Granted { .. }, _)
        | (_, Operand::Address(_) | Operand::Granted { .. }) => false,
        // Input and output may be one memory.
        (Operand::Buffer { buffer, .. }, Operand::Buffer { buffer: other, .. }) => {
            (buffer == Buffer::Scratch) != (other == Buffer::Scratch)
        }
        (Operand::Peer { port, .. }, Operand::Peer { port: other, .. }) => {
            peer(port, ports) != peer(other, ports)
        }
        // Each port is an end of a lane of its own.
        (Operand::Slot { port, .. }, Operand::Slot { port: other, .. }) => port != other,
        _ => true,
    }
}

/// Where two places are in one memory, is it the same address?
fn is_exact(a: Operand, b: Operand, ports: &[LaneEnd]) -> bool {
    match (a, b) {
        (Operand::Buffer { offset, .. }, Operand::Buffer { offset: other, .. }) => offset == other,
        (Operand::Peer { port, offset, .. }, Operand::Peer { port: of, offset: other, .. }) => {
            offset == other && peer(port, ports) == peer(of, ports)
        }
        _ => a == b,
    }
}

/// The rank at a port's other end.
fn peer(port: u16, ports: &[LaneEnd]) -> Option<u32> {
    ports.get(usize::from(port)).map(LaneEnd::peer)
}
