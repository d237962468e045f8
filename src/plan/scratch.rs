//! Memory of a rank's own that a plan uses beside slots.

use super::{Buffer, Op, Operand, Plan, Range, Segment};

impl Plan {
    /// Bytes of scratch memory that `rank` needs; 0: none.
    pub fn scratch_bytes(&self, rank: u32) -> u64 {
        let blocks = self.ranks.get(rank as usize).map(|program| &program.blocks);
        let segments = blocks.into_iter().flatten().flat_map(|block| &block.segments);
        let ends = segments.flat_map(|segment| segment.ops.iter().map(|op| end(segment, op)));
        ends.max().unwrap_or(0)
    }
}

/// Where in scratch memory all rounds of an op end.
fn end(segment: &Segment, op: &Op) -> u64 {
    let (places, range) = match *op {
        Op::Copy { destination, source, range, .. } => {
            ([Some(destination), Some(source), None], range)
        }
        Op::Reduce { destination, a, b, range, .. } => {
            ([Some(destination), Some(a), Some(b)], range)
        }
        Op::Pack { source, range, .. } => ([source, None, None], range),
        Op::Collect { destination, own, range, .. } => ([destination, own, None], range),
        Op::Put { source, range, .. } => ([Some(source), None, None], range),
        _ => return 0,
    };
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
    places.into_iter().map(of).max().unwrap_or(0)
}
