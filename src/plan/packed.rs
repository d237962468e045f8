//! Where a low-latency (LL) message that is put was packed.
//!
//! On a lane of stores a message goes to the peer as it is packed, so an encoded pack names the
//! ports that send its message. A plan does not: the puts behind a pack do.

use super::{Op, Operand};

/// The place among `ops`, those of a segment, of the pack whose message the put at `place` sends.
/// `None`: the segment packs no such message, or one of the two ports advances in between, after
/// which numbers of messages mean others.
pub(super) fn pack_of(ops: &[Op], place: usize) -> Option<usize> {
    let Op::Put { port, source: Operand::Slot { port: from, message, .. }, .. } = ops[place] else {
        return None;
    };
    let before = ops[..place].iter().enumerate().rev();
    let mut until_advance = before.take_while(
        |(_, op)| !matches!(op, Op::Advance { port: it, .. } if *it == port || *it == from),
    );
    let slot = (from, message);
    let packs = |op: &Op| matches!(*op, Op::Pack { port, message, .. } if (port, message) == slot);
    until_advance.find(|(_, op)| packs(op)).map(|(place, _)| place)
}
