//! Rings of records in a segment: one process writes, another reads.
//!
//! Head and tail are counts of bytes that never wrap; a record and its payload lie in one piece,
//! and what is left at the end of the ring is skipped.

use super::segment::Segment;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Bytes of a record before its payload; all sizes in a ring are multiples of it.
const RECORD_BYTES: usize = 64;

/// A record, as whoever fills rings has it: [`RECORD_BYTES`] before each payload.
pub(crate) trait RecordFormat: Copy {
    /// A record that says nothing, with this many bytes of payload.
    fn skip(length: u32) -> Self;
    /// Does it say nothing?
    fn is_skip(&self) -> bool;
    /// Bytes of payload.
    fn length(&self) -> u32;
    /// As it lies in the ring.
    fn to_words(self) -> [u64; 8];
    /// From a ring; None if no writer of ours can have made it.
    fn from_words(words: [u64; 8]) -> Option<Self>;
}

fn footprint_of(record: &impl RecordFormat) -> u64 {
    footprint(record.length() as usize)
}

fn footprint(payload: usize) -> u64 {
    (RECORD_BYTES + payload.next_multiple_of(RECORD_BYTES)) as u64
}

/// Where a ring lies in its segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Head; tail 64 bytes later; 128 bytes later, whether the writer waits for room.
    pub control: usize,
    /// The records.
    pub data: usize,
    /// Bytes for records: a power of two.
    pub bytes: usize,
}

impl Layout {
    /// Is there anything to read? Both positions are in the segment, so anybody may ask.
    pub fn is_empty(self, segment: &Segment) -> bool {
        // Acquire pairs with `Writer::commit`.
        let head = segment.word64(self.control).load(Ordering::Acquire);
        head == segment.word64(self.control + 64).load(Ordering::Relaxed)
    }

    fn place(self, position: u64) -> usize {
        self.data + (position as usize & (self.bytes - 1))
    }

    fn left_before_end(self, position: u64) -> u64 {
        (self.bytes - (position as usize & (self.bytes - 1))) as u64
    }
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Writer<R> {
    segment: Arc<Segment>,
    layout: Layout,
    head: u64,
    record: PhantomData<fn(R)>,
}

impl<R: RecordFormat> Writer<R> {
    pub fn new(segment: Arc<Segment>, layout: Layout) -> Self {
        let head = segment.word64(layout.control).load(Ordering::Relaxed);
        Self { segment, layout, head, record: PhantomData }
    }

    /// Room for a record with this payload: the payload's address, until [`Writer::commit`]. None
    /// if the ring is full; then the reader has been asked to say when there is room.
    pub fn reserve(&mut self, payload: usize) -> Option<u64> {
        let need = footprint(payload);
        let left = self.layout.left_before_end(self.head);
        let skip = if need > left { left } else { 0 };
        if !self.has_room(need + skip) {
            let waiting = self.segment.word32(self.layout.control + 128);
            waiting.store(1, Ordering::SeqCst);
            // Pairs with the fence of `Reader::consume`: either the reader sees that we wait, or
            // we see the room that it made.
            fence(Ordering::SeqCst);
            if !self.has_room(need + skip) {
                return None;
            }
            waiting.store(0, Ordering::Relaxed);
        }
        if skip > 0 {
            self.put(&R::skip((skip as usize - RECORD_BYTES) as u32));
            self.head += skip;
        }
        let place = self.layout.place(self.head) + RECORD_BYTES;
        Some(self.segment.address(place, payload))
    }

    fn has_room(&self, need: u64) -> bool {
        // Acquire pairs with `Reader::consume`: what lies there has been read.
        let tail = self.segment.word64(self.layout.control + 64).load(Ordering::Acquire);
        self.head.wrapping_add(need).wrapping_sub(tail) <= self.layout.bytes as u64
    }

    fn put(&self, record: &R) {
        let place = self.layout.place(self.head);
        for (index, word) in record.to_words().into_iter().enumerate() {
            // Relaxed: published by the head.
            self.segment.word64(place + 8 * index).store(word, Ordering::Relaxed);
        }
    }

    /// Publishes the record whose payload was reserved last.
    pub fn commit(&mut self, record: &R) {
        self.put(record);
        self.head += footprint_of(record);
        // Release pairs with `Reader::peek`: record and payload are visible before the head.
        self.segment.word64(self.layout.control).store(self.head, Ordering::Release);
    }
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    segment: Arc<Segment>,
    layout: Layout,
    tail: u64,
    record: PhantomData<fn() -> R>,
}

impl<R: RecordFormat> Reader<R> {
    pub fn new(segment: Arc<Segment>, layout: Layout) -> Self {
        Self { segment, layout, tail: 0, record: PhantomData }
    }

    /// Goes on where another reader has stopped: whoever was told so by that one sees its last
    /// position.
    pub fn resume(segment: Arc<Segment>, layout: Layout) -> Self {
        let tail = segment.word64(layout.control + 64).load(Ordering::Relaxed);
        Self { segment, layout, tail, record: PhantomData }
    }

    /// The next record, copied out, and the address of its payload until [`Reader::consume`].
    ///
    /// A record that no writer of ours can have made is taken for an empty ring: nothing is done on
    /// the word of garbage.
    pub fn peek(&mut self) -> Option<(R, u64)> {
        // At most one record is skipped before each other one.
        for _ in 0..2 {
            // Acquire pairs with `Writer::commit`.
            let head = self.segment.word64(self.layout.control).load(Ordering::Acquire);
            if head == self.tail {
                return None;
            }
            let place = self.layout.place(self.tail);
            let word = |index| self.segment.word64(place + 8 * index).load(Ordering::Relaxed);
            let record = R::from_words(std::array::from_fn(word))?;
            if footprint_of(&record)
                > self.layout.left_before_end(self.tail).min(head.wrapping_sub(self.tail))
            {
                return None;
            }
            if !record.is_skip() {
                let payload = self.segment.address(place + RECORD_BYTES, record.length() as usize);
                return Some((record, payload));
            }
            self.tail += footprint_of(&record);
        }
        None
    }

    /// Gives the record's room back. True if the writer waits for room and must be woken.
    pub fn consume(&mut self, record: &R) -> bool {
        self.tail += footprint_of(record);
        // Release pairs with `Writer::has_room`: the payload has been read.
        self.segment.word64(self.layout.control + 64).store(self.tail, Ordering::Release);
        // Pairs with the fence of `Writer::reserve`.
        fence(Ordering::SeqCst);
        let waiting = self.segment.word32(self.layout.control + 128);
        waiting.load(Ordering::Relaxed) == 1 && waiting.swap(0, Ordering::Relaxed) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::record::{Record, RecordKind};

    const LAYOUT: Layout = Layout { control: 0, data: 256, bytes: 1024 };

    fn ring() -> (Writer<Record>, Reader<Record>) {
        let file = crate::memory::memory_file_for_tests(256 + 1024);
        let segment = Arc::new(Segment::map(&file, 256 + 1024).unwrap());
        (Writer::new(Arc::clone(&segment), LAYOUT), Reader::new(segment, LAYOUT))
    }

    /// Many laps with sizes that never fit the end: nothing is lost, torn or seen twice.
    #[test]
    fn records_come_out_as_they_went_in_over_many_laps() {
        let (mut writer, mut reader) = ring();
        let (mut written, mut read) = (0u64, 0u64);
        while read < 1000 {
            let length = (written * 37 % 300) as usize;
            if let Some(payload) = writer.reserve(length) {
                // SAFETY: `reserve` gave room for `length` bytes.
                unsafe { std::ptr::write_bytes(payload as *mut u8, written as u8, length) };
                let mut record = Record::new(RecordKind::Send, written);
                record.length = length as u32;
                record.operands = [written, !written];
                writer.commit(&record);
                written += 1;
                continue;
            }
            let (record, payload) = reader.peek().expect("a full ring is not empty");
            assert_eq!((record.message, record.operands), (read, [read, !read]));
            for index in 0..u64::from(record.length) {
                // SAFETY: inside the payload that `peek` gave.
                assert_eq!(unsafe { *((payload + index) as *const u8) }, read as u8);
            }
            let waited = reader.consume(&record);
            assert!(waited, "the writer had found the ring full and must be woken");
            read += 1;
            while let Some((record, _)) = reader.peek() {
                assert_eq!(record.message, read);
                reader.consume(&record);
                read += 1;
            }
        }
        assert!(reader.peek().is_none());
    }

    #[test]
    fn garbage_is_not_acted_upon() {
        let (mut writer, mut reader) = ring();
        writer.reserve(8).unwrap();
        let mut record = Record::new(RecordKind::Write, 1);
        record.length = 8;
        writer.commit(&record);
        reader.segment.word64(256).store(0xff, Ordering::Relaxed);
        assert!(reader.peek().is_none(), "no such kind");
        reader.segment.word64(256).store(2 | 0xffff_ffff << 32, Ordering::Relaxed);
        assert!(reader.peek().is_none(), "a length beyond the ring");
    }
}
