//! One rank's part of the recorder.

use super::layout::{block, block_start, entry};
use super::memory::{Memory, made, now};
use super::view::{EngineView, EntryKind, FailureKind};
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::shared::{HostRow64, HostWord64, WordArray};
use ringdove_kernels::launch::WaitRecord;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a rank says of itself when it is made.
#[derive(Clone, Debug)]
pub struct Flight {
    /// Names the communicator: the same on all ranks, and no secret.
    pub key: u64,
    /// The rank.
    pub rank: Rank,
    /// Number of ranks.
    pub rank_count: u32,
    /// The ranks of the same node, this one included.
    pub node: Arc<[Rank]>,
    /// Deadline of waits.
    pub timeout: Duration,
}

/// Of values that must be equal on all ranks: equal values have equal digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub u64);

impl Digest {
    /// Of these values, in their order (FNV-1a, a word at a time).
    pub fn of<const COUNT: usize>(values: [u64; COUNT]) -> Self {
        let mix = |digest: u64, value: u64| {
            (digest ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29)
        };
        Self(values.into_iter().fold(0xcbf2_9ce4_8422_2325, mix))
    }
}

/// Records one rank. Its methods take no lock and wait for nobody. Where no block is free they do
/// nothing.
pub struct RankRecorder<R: HostRow64 = WordArray, T: HostWord64 = AtomicU64> {
    memory: Arc<Memory<R, T>>,
    /// Where its block begins, and the number of the block.
    place: Option<(usize, usize)>,
}

/// What makes the states of blocks differ.
static GENERATION: AtomicU64 = AtomicU64::new(0);

impl RankRecorder {
    /// A recorder for a new rank, in the memory of this process.
    ///
    /// # Errors
    /// [`Error::System`] where there is no memory.
    pub fn new(flight: &Flight) -> Result<Self> {
        Ok(Self::within(made()?.clone(), flight))
    }
}

impl<R: HostRow64, T: HostWord64> RankRecorder<R, T> {
    /// A recorder for a new rank, in this memory.
    pub fn within(memory: Arc<Memory<R, T>>, flight: &Flight) -> Self {
        let place = memory.claim().map(|index| (block_start(index), index));
        let recorder = Self { memory, place };
        let state = 2 * GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
        recorder.set(block::KEY, flight.key);
        let (rank, count) = (u64::from(flight.rank.0), u64::from(flight.rank_count));
        recorder.set(block::RANK, rank | count << 32);
        recorder.set(block::TIMEOUT, flight.timeout.as_nanos() as u64);
        for (word, bits) in node_words(&flight.node).into_iter().enumerate() {
            recorder.set(block::NODE + word, bits);
        }
        recorder.set(block::PROGRESS_AT, now());
        if let Some((start, _)) = recorder.place {
            // Release: a reader that sees the block in use finds what was written above. Pairs
            // with `Memory::view`.
            recorder.memory.words.store(start + block::STATE, state, Ordering::Release);
        }
        recorder
    }

    /// Relaxed, here and in `get`: each word has one writer at a time and stands for itself.
    fn set(&self, word: usize, value: u64) {
        if let Some((start, _)) = self.place {
            self.memory.words.store(start + word, value, Ordering::Relaxed);
        }
    }

    fn get(&self, word: usize) -> u64 {
        let load = |(start, _)| self.memory.words.load(start + word, Ordering::Relaxed);
        self.place.map_or(0, load)
    }

    /// The rank makes its collective number `number`, the first one being 0.
    pub fn collective(&self, number: u64, name: &str, count: u64, digest: Digest) {
        let time = now();
        self.set(block::COLLECTIVES, number + 1);
        self.set(block::CALLED_AT, time);
        self.enter(time, EntryKind::Collective, [number, count, digest.0], name);
    }

    /// The rank calls so many sends and receives.
    pub fn messages(&self, transfers: u64, first_peer: Rank) {
        let time = now();
        let number = self.get(block::MESSAGES);
        self.set(block::MESSAGES, number + transfers);
        self.set(block::CALLED_AT, time);
        let words = [number, transfers, u64::from(first_peer.0)];
        self.enter(time, EntryKind::Messages, words, "send / receive");
    }

    /// Launch `sequence` was enqueued, with so many calls; `plan` is that of its first one.
    pub fn launched(&self, sequence: u64, calls: u64, plan: &str, is_captured: bool) {
        self.set(block::LAUNCHES, sequence + 1);
        if is_captured {
            self.set(block::CAPTURED, 1);
        }
        self.enter(now(), EntryKind::Launch, [sequence, calls, 0], plan);
    }

    /// The communicator has ended, by this error. The first one stays.
    pub fn failed(&self, error: &Error) {
        if self.get(block::FAILURE) != 0 {
            return;
        }
        let (kind, rank, peer) = FailureKind::of(error);
        let text = error.to_string();
        let words = text.as_bytes().chunks(8).take(block::FAILURE_TEXT_WORDS);
        for (word, bytes) in words.enumerate() {
            self.set(block::FAILURE_TEXT + word, word_of(bytes));
        }
        let time = now();
        let number = |rank: Option<Rank>| rank.map_or(u64::from(u32::MAX), |rank| rank.0.into());
        self.set(block::FAILURE + 1, number(rank) | number(peer) << 32);
        self.set(block::FAILURE + 2, time);
        self.set(block::FAILURE, kind as u64);
        self.enter(time, EntryKind::Failure, [kind as u64, 0, 0], "failure");
    }

    /// What was seen of the rank's GPU and engine. One thread calls it, now and then.
    pub(super) fn seen(&self, ended: Option<u64>, engine: &EngineView, record: &WaitRecord) {
        let time = now();
        let before = (self.get(block::ENDED), self.get(block::ENGINE + 1));
        let ended = ended.unwrap_or_default();
        if before != (ended, engine.descriptors) {
            self.set(block::PROGRESS_AT, time);
        }
        self.set(block::ENDED, ended);
        for (word, value) in engine.words().into_iter().enumerate() {
            self.set(block::ENGINE + word, value);
        }
        // A complete record alone: its state is written last (R10).
        if record.state != 0 {
            let words: &[u64] = bytemuck::cast_slice(bytemuck::bytes_of(record));
            for (word, value) in words.iter().enumerate() {
                self.set(block::RECORD + word, *value);
            }
        }
        self.set(block::LOOKED_AT, time);
    }

    /// Has the communicator ended by an error?
    pub(super) fn failure(&self) -> Option<FailureKind> {
        FailureKind::from_code(self.get(block::FAILURE))
    }

    /// Launches enqueued, launches ended, and when something moved last; `None` where launches of
    /// graphs cannot be counted.
    pub(super) fn launches(&self) -> Option<(u64, u64, u64)> {
        let known = self.place.is_some() && self.get(block::CAPTURED) == 0;
        let moved = self.get(block::PROGRESS_AT).max(self.get(block::CALLED_AT));
        known.then(|| (self.get(block::LAUNCHES), self.get(block::ENDED), moved))
    }

    /// Is its record there?
    pub(super) fn has_record(&self) -> bool {
        self.get(block::RECORD) as u32 != 0
    }

    /// Adds an entry in the place of the oldest one. Several threads may call it.
    fn enter(&self, time: u64, kind: EntryKind, numbers: [u64; 3], name: &str) {
        let Some((start, _)) = self.place else { return };
        let words = &self.memory.words;
        let position = words.fetch_add(start + block::NEXT, 1, Ordering::Relaxed);
        let at = start + block::ENTRIES + position as usize % block::ENTRY_COUNT * entry::WORDS;
        words.store(at + entry::STAMP, 0, Ordering::Relaxed);
        // Release fence: whoever sees a word of what follows sees that the stamp was 0, or the new
        // one. Pairs with `ProcessView::load`, which loads the stamp before and after.
        words.fence(Ordering::Release);
        let mut bytes = [0; 16];
        let length = name.len().min(16);
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        let values = [time, kind as u64, numbers[0], numbers[1], numbers[2]];
        for (word, value) in (entry::TIME..).zip(values) {
            words.store(at + word, value, Ordering::Relaxed);
        }
        words.store(at + entry::NAME, word_of(&bytes[..8]), Ordering::Relaxed);
        words.store(at + entry::NAME + 1, word_of(&bytes[8..]), Ordering::Relaxed);
        // Release: the entry is whole. Pairs with `ProcessView::load`.
        words.store(at + entry::STAMP, position + 1, Ordering::Release);
    }
}

impl<R: HostRow64, T: HostWord64> Drop for RankRecorder<R, T> {
    fn drop(&mut self) {
        if let Some((_, index)) = self.place {
            self.memory.release(index);
        }
    }
}

impl<R: HostRow64, T: HostWord64> std::fmt::Debug for RankRecorder<R, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RankRecorder({:?})", self.place)
    }
}

/// A bit for each rank of the node, as far as there are bits.
fn node_words(node: &[Rank]) -> [u64; block::NODE_WORDS] {
    let mut words = [0; block::NODE_WORDS];
    for rank in node {
        if let Some(word) = words.get_mut(rank.index() / 64) {
            *word |= 1 << (rank.0 % 64);
        }
    }
    words
}

/// Up to 8 bytes as a word.
fn word_of(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(whole)
}
