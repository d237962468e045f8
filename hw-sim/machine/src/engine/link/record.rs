//! Packets as they lie in a pipe between two processes.

use super::super::channel::ChannelAddress;
use super::super::fetch::Packet;
use crate::fabric::RecordFormat;

const SKIP: u8 = 1;
const PACKET: u8 = 2;
const LAST: u8 = 1;
const SIGNAL: u8 = 2;

/// A packet without its data, and without what the pipe itself says: who sends, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Record {
    kind: u8,
    flags: u8,
    length: u32,
    position: u64,
    to_generation: u64,
    from_generation: u64,
    window: u64,
    offset: u64,
    signal: [u64; 2],
}

impl Record {
    pub fn new(packet: &Packet) -> Self {
        let (signal, count) = packet.signal.unwrap_or_default();
        let last = if packet.last { LAST } else { 0 };
        let raises = if packet.signal.is_some() { SIGNAL } else { 0 };
        Self {
            kind: PACKET,
            flags: last | raises,
            // A sub-request has 64 KiB at most.
            length: packet.length as u32,
            position: packet.position,
            to_generation: packet.to_generation,
            from_generation: packet.from_generation,
            window: packet.window,
            offset: packet.offset,
            signal: [signal, count],
        }
    }

    /// The packet, as its receiver sees it: where the data was and on which lane is the sender's
    /// business.
    pub fn packet(&self, from: ChannelAddress, to: ChannelAddress) -> Packet {
        Packet {
            to,
            to_generation: self.to_generation,
            from,
            from_generation: self.from_generation,
            position: self.position,
            lane: 0,
            source: 0,
            length: self.length.into(),
            window: self.window,
            offset: self.offset,
            last: self.flags & LAST != 0,
            signal: (self.flags & SIGNAL != 0).then_some((self.signal[0], self.signal[1])),
        }
    }
}

impl RecordFormat for Record {
    fn skip(length: u32) -> Self {
        Self {
            kind: SKIP,
            flags: 0,
            length,
            position: 0,
            to_generation: 0,
            from_generation: 0,
            window: 0,
            offset: 0,
            signal: [0; 2],
        }
    }

    fn is_skip(&self) -> bool {
        self.kind == SKIP
    }

    fn length(&self) -> u32 {
        self.length
    }

    fn to_words(self) -> [u64; 8] {
        let head = u64::from(self.kind) | u64::from(self.flags) << 8 | u64::from(self.length) << 32;
        [
            head,
            self.position,
            self.to_generation,
            self.from_generation,
            self.window,
            self.offset,
            self.signal[0],
            self.signal[1],
        ]
    }

    fn from_words(words: [u64; 8]) -> Option<Self> {
        let kind = words[0] as u8;
        matches!(kind, SKIP | PACKET).then_some(Self {
            kind,
            flags: (words[0] >> 8) as u8,
            length: (words[0] >> 32) as u32,
            position: words[1],
            to_generation: words[2],
            from_generation: words[3],
            window: words[4],
            offset: words[5],
            signal: [words[6], words[7]],
        })
    }
}
