//! Records of the rings between queue pairs.

use crate::fabric::RecordFormat;

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    Skip = 1,
    Write,
    Send,
    Read,
    CompareSwap,
    FetchAdd,
    ReadData,
    AtomicResult,
    Nak,
    ReceiverNotReady,
    Datagram,
}

impl RecordKind {
    const ALL: [Self; 11] = [
        Self::Skip,
        Self::Write,
        Self::Send,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::ReadData,
        Self::AtomicResult,
        Self::Nak,
        Self::ReceiverNotReady,
        Self::Datagram,
    ];
}

/// The first piece of its message.
pub(crate) const FIRST: u8 = 1;
/// The last piece of its message.
pub(crate) const LAST: u8 = 2;
/// The message carries immediate data.
pub(crate) const IMMEDIATE: u8 = 4;
/// The receiver asked to be told of such messages.
pub(crate) const SOLICITED: u8 = 8;
/// There is no receive request at first, and one when the message is looked at again.
pub(crate) const AT_FIRST: u8 = 16;
/// The message takes back the window with the record's key.
pub(crate) const INVALIDATE: u8 = 32;

/// A record, without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub kind: RecordKind,
    pub flags: u8,
    /// Bytes of payload.
    pub length: u32,
    /// The message's number, counted from 0.
    pub message: u64,
    /// Where it goes to or comes from in the responder's memory; the sender of a datagram.
    pub address: u64,
    /// The key of that memory, or the queue key of a datagram.
    pub key: u32,
    pub immediate: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// Offset of this piece in the message.
    pub offset: u32,
    /// Operands of atomics; a status; a time; how a datagram was routed.
    pub operands: [u64; 2],
    /// The shared receive queue that a message of an extended reliable connection is for.
    pub shared_queue: u32,
}

impl Record {
    /// Does it take a receive request?
    pub fn needs_receive(&self) -> bool {
        self.kind == RecordKind::Send || self.flags & IMMEDIATE != 0
    }

    pub const fn new(kind: RecordKind, message: u64) -> Self {
        Self {
            kind,
            flags: 0,
            length: 0,
            message,
            address: 0,
            key: 0,
            immediate: 0,
            total: 0,
            offset: 0,
            operands: [0; 2],
            shared_queue: 0,
        }
    }
}

impl RecordFormat for Record {
    fn skip(length: u32) -> Self {
        Self { length, ..Self::new(RecordKind::Skip, 0) }
    }

    fn is_skip(&self) -> bool {
        self.kind == RecordKind::Skip
    }

    fn length(&self) -> u32 {
        self.length
    }

    fn to_words(self) -> [u64; 8] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            u64::from(self.kind as u8) | u64::from(self.flags) << 8 | u64::from(self.length) << 32,
            self.message,
            self.address,
            pair(self.key, self.immediate),
            pair(self.total, self.offset),
            self.operands[0],
            self.operands[1],
            u64::from(self.shared_queue),
        ]
    }

    fn from_words(words: [u64; 8]) -> Option<Self> {
        let kind = RecordKind::ALL.into_iter().find(|kind| *kind as u8 == words[0] as u8)?;
        Some(Self {
            kind,
            flags: (words[0] >> 8) as u8,
            length: (words[0] >> 32) as u32,
            message: words[1],
            address: words[2],
            key: words[3] as u32,
            immediate: (words[3] >> 32) as u32,
            total: words[4] as u32,
            offset: (words[4] >> 32) as u32,
            operands: [words[5], words[6]],
            shared_queue: words[7] as u32,
        })
    }
}
