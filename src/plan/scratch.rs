//! Memory that a plan uses beside slots and the rank's buffers: its own, and its peers'.

use super::{Buffer, Op, Operand, Plan, Range, Segment};

impl Plan {
    /// Bytes of scratch memory that `rank` needs; 0: none.
    pub fn scratch_bytes(&self, rank: u32) -> u64 {
        let blocks = self.ranks.get(rank as usize).map(|program| &program.blocks);
        let segments = blocks.into_iter().flatten().flat_map(|block| &block.segments);
        let ends = segments.flat_map(|segment| segment.ops.iter().map(|op| end(segment, op)));
        ends.max().unwrap_or(0)
    }

    /// Do threads read or write registered buffers of other ranks ([`Operand::Peer`])?
    pub fn reaches_peers(&self) -> bool {
        let blocks = self.ranks.iter().flat_map(|rank| &rank.blocks);
        let mut ops = blocks.flat_map(|block| &block.segments).flat_map(|segment| &segment.ops);
        ops.any(|op| {
            let places = places(op).into_iter().flatten();
            places.into_iter().any(|place| matches!(place, Operand::Peer { .. }))
        })
    }
}

/// What an op reads and writes, but for what a put writes.
pub(crate) fn places(op: &Op) -> [Option<Operand>; 3] {
    match *op {
        Op::Copy { destination, source, .. } => [Some(destination), Some(source), None],
        Op::Reduce { destination, a, b, .. } => [Some(destination), Some(a), Some(b)],
        Op::Pack { source, .. } => [source, None, None],
        Op::Collect { destination, own, .. } => [destination, own, None],
        Op::Put { source, .. } => [Some(source), None, None],
        _ => [None; 3],
    }
}

/// Where in scratch memory all rounds of an op end.
fn end(segment: &Segment, op: &Op) -> u64 {
    let Some(range) = op.range() else { return 0 };
    let Some(last) = segment.rounds.checked_sub(1) else { return 0 };
    let Range { extent, length } = range;
    // Clipped, as every round is.
    let moved = u64::from(last).saturating_mul(segment.round_stride);
    let bytes = moved.saturating_add(length.into()).min(segment.limit.saturating_sub(extent));
    let of = |place: Option<Operand>| match place {
        Some(Operand::Buffer { buffer: Buffer::Scratch, offset }) if bytes > 0 => {
            offset.saturating_add(bytes)
        }
        _ => 0,
    };
    places(op).into_iter().map(of).max().unwrap_or(0)
}
