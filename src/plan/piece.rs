//! Pieces of memory that together make a message, and plans whose messages hold whole parts of
//! several ranks.

use super::builder::copy;
use super::{BlockProgram, Buffer, Choice, Modifiers, Op, Operand, Range, Segment};

/// A contiguous piece of memory.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) place: Operand,
    pub(super) bytes: u64,
}

impl Piece {
    /// What an op that handles this piece as a whole has as its range: nothing is clipped.
    pub(super) fn range(self) -> Range {
        whole(self.bytes)
    }
}

/// The range of `bytes` that are not clipped. The verifier finds what does not fit the field.
pub(super) fn whole(bytes: u64) -> Range {
    Range { extent: 0, length: u32::try_from(bytes).unwrap_or(u32::MAX) }
}

impl Operand {
    /// The place so many bytes behind this one.
    pub(super) fn behind(self, bytes: u64) -> Self {
        match self {
            Self::Buffer { buffer, offset } => Self::Buffer { buffer, offset: offset + bytes },
            Self::Slot { port, message, offset } => {
                Self::Slot { port, message, offset: offset + bytes }
            }
            Self::Address(address) => Self::Address(address + bytes),
            Self::Granted { port, message, offset } => {
                Self::Granted { port, message, offset: offset + bytes }
            }
            Self::Peer { port, buffer, offset } => {
                Self::Peer { port, buffer, offset: offset + bytes }
            }
        }
    }
}

impl Choice {
    /// `count` parts of a buffer that has one for each rank, from `first` on; after the last
    /// rank's part comes the first one's.
    pub(super) fn parts(&self, buffer: Buffer, first: u32, count: u32) -> Vec<Piece> {
        let (size, bytes) = (self.request.rank_count, self.request.bytes);
        let straight = count.min(size - first);
        [(first, straight), (0, count - straight)]
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(first, count)| Piece {
                place: self.part(buffer, first, whole(bytes)),
                bytes: u64::from(count) * bytes,
            })
            .collect()
    }
}

impl BlockProgram {
    /// Appends ops that run once, of which none handles more than all ranks' parts.
    pub(super) fn in_whole_parts(&mut self, choice: &Choice, ops: Vec<Op>) {
        let limit = choice.request.bytes * u64::from(choice.request.rank_count);
        self.segments.push(Segment { rounds: 1, round_stride: 0, limit, ops });
    }
}

/// Copies `pieces`, one behind the other, to `to`.
pub(super) fn pack(ops: &mut Vec<Op>, to: Operand, pieces: &[Piece]) {
    let mut done = 0;
    for piece in pieces {
        ops.push(copy(to.behind(done), piece.place, piece.range(), Modifiers::NONE));
        done += piece.bytes;
    }
}

/// Copies what lies at `from`, one behind the other, to `pieces`.
pub(super) fn unpack(ops: &mut Vec<Op>, pieces: &[Piece], from: Operand) {
    let mut done = 0;
    for piece in pieces {
        ops.push(copy(piece.place, from.behind(done), piece.range(), Modifiers::NONE));
        done += piece.bytes;
    }
}

/// Of `pieces`, taken one behind the other, the bytes from `start` to `end`.
pub(super) fn cut(pieces: &[Piece], start: u64, end: u64) -> Vec<Piece> {
    let mut cut = Vec::new();
    let mut before = 0;
    for piece in pieces {
        let from = start.clamp(before, before + piece.bytes) - before;
        let to = end.clamp(before, before + piece.bytes) - before;
        if from < to {
            cut.push(Piece { place: piece.place.behind(from), bytes: to - from });
        }
        before += piece.bytes;
    }
    cut
}

/// Bytes of all pieces.
pub(super) fn total(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.bytes).sum()
}

/// 1, 2, 4 ... below `size`.
pub(super) fn distances(size: u32) -> impl DoubleEndedIterator<Item = u32> {
    (0..u32::BITS - (size - 1).leading_zeros()).map(|bit| 1 << bit)
}
