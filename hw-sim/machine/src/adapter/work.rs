//! Work requests.

use super::address::Route;
use super::completion::{CompletionStatus, Operation};
use super::window::BindRequest;

/// A piece of registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its address, as registered.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The region's key.
    pub key: u32,
}

/// Operation of a send request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Send a message.
    Send,
    /// Write into the peer's memory.
    Write,
    /// Read from the peer's memory.
    Read,
    /// Compare eight bytes there, and swap them if they are equal.
    CompareSwap,
    /// Add to eight bytes there.
    FetchAdd,
    /// Send a message, and take back the peer's window with the key `remote_key`.
    SendAndInvalidate,
    /// Bind a window of one's own.
    Bind(BindRequest),
    /// Take back the window of one's own with the key `remote_key`.
    LocalInvalidate,
}

impl Verb {
    /// The operation that its completion names.
    pub(super) fn operation(self) -> Operation {
        match self {
            Self::Send | Self::SendAndInvalidate => Operation::Send,
            Self::Write => Operation::Write,
            Self::Read => Operation::Read,
            Self::CompareSwap => Operation::CompareSwap,
            Self::FetchAdd => Operation::FetchAdd,
            Self::Bind(_) => Operation::Bind,
            Self::LocalInvalidate => Operation::LocalInvalidate,
        }
    }

    /// Does it bring data back?
    pub(super) fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    /// Does the peer take no part in it?
    pub(super) fn is_local(self) -> bool {
        matches!(self, Self::Bind(_) | Self::LocalInvalidate)
    }
}

/// The data of a send request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Pieces of registered memory, read when the request is carried out.
    Pieces(Vec<Piece>),
    /// A copy made when the request was posted.
    Inline(Vec<u8>),
}

impl Data {
    /// Bytes in all.
    pub fn length(&self) -> u64 {
        match self {
            Self::Pieces(pieces) => pieces.iter().map(|piece| u64::from(piece.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// The port.
    pub route: Route,
    /// The protection domain of the address handle, which must be the queue pair's.
    pub domain: u64,
    /// The queue pair.
    pub queue_pair: u32,
    /// The key that the queue pair must have. With the highest bit set, the sender's own key goes
    /// in its place.
    pub queue_key: u32,
}

/// A request for the send queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendRequest {
    /// The program's own number for it.
    pub id: u64,
    /// The operation.
    pub verb: Verb,
    /// The data, or where it goes.
    pub data: Data,
    /// Immediate data, in network order.
    pub immediate: Option<u32>,
    /// Report success, too.
    pub signaled: bool,
    /// Tell a receiver that waits for such.
    pub solicited: bool,
    /// Not before all reads and atomics before it have ended.
    pub fence: bool,
    /// Where, in the peer's memory.
    pub remote_address: u64,
    /// The key of the peer's memory; for an invalidation, of the window.
    pub remote_key: u32,
    /// The addend, or the value to compare with.
    pub operand: u64,
    /// The new value of a compare-and-swap.
    pub swap: u64,
    /// Where a datagram goes; connections know their peer.
    pub to: Option<Destination>,
    /// The number of the peer's shared receive queue, on an extended reliable connection.
    pub shared_queue: u32,
}

/// A request for a receive queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// The program's own number for it.
    pub id: u64,
    /// Where a message goes.
    pub pieces: Vec<Piece>,
}

/// The parts of `pieces` that `length` bytes at `offset` cover, in order: each with its own offset
/// from `offset`.
pub(super) fn parts(
    pieces: &[Piece],
    offset: u64,
    length: u64,
) -> impl Iterator<Item = (Piece, u64)> {
    let end = offset + length;
    let mut start = 0;
    pieces.iter().filter_map(move |piece| {
        let (first, last) = (start, start + u64::from(piece.length));
        start = last;
        let (from, to) = (first.max(offset), last.min(end));
        (from < to).then(|| {
            let part = Piece {
                address: piece.address.wrapping_add(from - first),
                length: (to - from) as u32,
                key: piece.key,
            };
            (part, from - offset)
        })
    })
}

/// The number of a message that has not set off: above all others, so that the queue is sorted.
const NOT_SENT: u64 = u64::MAX;

/// A send request under way.
#[derive(Debug)]
pub(super) struct Work {
    pub request: SendRequest,
    pub length: u64,
    /// Its number, once it has set off. A request that the peer takes no part in has that of the
    /// next message.
    pub message: u64,
    /// All that it brings back is there; or what the peer takes no part in is done.
    pub answered: bool,
    pub failure: Option<(CompletionStatus, u32)>,
}

impl Work {
    pub fn new(request: SendRequest) -> Self {
        let length = request.data.length();
        let atomic = matches!(request.verb, Verb::CompareSwap | Verb::FetchAdd);
        let failure = (atomic && length != 8)
            .then(|| (CompletionStatus::LocalLength, CompletionStatus::LocalLength.vendor_code()));
        Self { request, length, message: NOT_SENT, answered: false, failure }
    }

    pub fn fail(&mut self, status: CompletionStatus) {
        self.failure = Some((status, status.vendor_code()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_exactly_the_range() {
        let piece = |address, length| Piece { address, length, key: 1 };
        let pieces = [piece(100, 10), piece(500, 0), piece(200, 20)];
        let cut = |offset, length| parts(&pieces, offset, length).collect::<Vec<_>>();
        assert_eq!(cut(0, 30), [(piece(100, 10), 0), (piece(200, 20), 10)]);
        assert_eq!(cut(5, 10), [(piece(105, 5), 0), (piece(200, 5), 5)]);
        assert_eq!(cut(12, 3), [(piece(202, 3), 0)]);
        assert_eq!(cut(30, 0), []);
    }
}
