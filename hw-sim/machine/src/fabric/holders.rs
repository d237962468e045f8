//! Shared files that live as long as one of several processes holds them.
//!
//! Most files end with their owner, the process that has made them. One with a list of holders
//! goes on to another of these instead: nobody removes it while any of them lives, and any may
//! become its owner.

use super::segment::Segment;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names a process in other processes' files: its id, and the number of its file.
pub(crate) type ProcessId = (u32, u32);

/// Where a file has its owner; the words of a list, and what says that there is one.
const OWNER: usize = 8;
const LIST: usize = 384;
const PLACES: usize = 392;
const PLACES_END: usize = PLACES + 8 * HOLDERS_MAX;
const MARK: u64 = u64::from_le_bytes(*b"holders1");

/// The most processes that hold a file.
pub(crate) const HOLDERS_MAX: usize = 64;
/// The bytes of a file that has a list, at least.
pub(super) const LIST_END: usize = PLACES_END;

fn pack((pid, nonce): ProcessId) -> u64 {
    // As the header has it: the id first.
    u64::from(pid) | u64::from(nonce) << 32
}

fn unpack(word: u64) -> ProcessId {
    (word as u32, (word >> 32) as u32)
}

fn places(segment: &Segment) -> impl Iterator<Item = &AtomicU64> {
    (PLACES..PLACES_END).step_by(8).map(|at| segment.word64(at))
}

/// Begins the list of a file that this process has made and nobody else sees yet.
pub(crate) fn begin(segment: &Segment) {
    // Relaxed: the file's mark or its name publishes it.
    segment.word64(LIST).store(MARK, Ordering::Relaxed);
}

/// Whose the file is now.
pub(crate) fn owner(segment: &Segment) -> ProcessId {
    // Acquire pairs with `pass`: what the last owner has done is seen.
    unpack(segment.word64(OWNER).load(Ordering::Acquire))
}

/// Makes `to` the owner in place of `from`. False if that one is not, any more.
pub(crate) fn pass(segment: &Segment, from: ProcessId, to: ProcessId) -> bool {
    // Release pairs with `owner`.
    let word = segment.word64(OWNER);
    word.compare_exchange(pack(from), pack(to), Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Enters a process, in the place of one that does not live if need be. False if there is no room.
pub(crate) fn enter(
    segment: &Segment,
    process: ProcessId,
    lives: impl Fn(ProcessId) -> bool,
) -> bool {
    let own = pack(process);
    places(segment).any(|place| {
        // Relaxed: the words speak of nothing but themselves.
        let seen = place.load(Ordering::Relaxed);
        let is_free = seen == 0 || seen == own || !lives(unpack(seen));
        is_free && place.compare_exchange(seen, own, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    })
}

/// Takes a process out.
pub(crate) fn leave(segment: &Segment, process: ProcessId) {
    let own = pack(process);
    for place in places(segment) {
        let _ = place.compare_exchange(own, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// A process that holds the file, of those that `wanted` takes.
pub(crate) fn find(
    segment: &Segment,
    mut wanted: impl FnMut(ProcessId) -> bool,
) -> Option<ProcessId> {
    let entries = places(segment).map(|place| place.load(Ordering::Relaxed));
    entries.filter(|word| *word != 0).map(unpack).find(|holder| wanted(*holder))
}

/// The holders that the first bytes of a file name, if it has a list.
pub(super) fn in_bytes(bytes: &[u8; LIST_END]) -> impl Iterator<Item = ProcessId> {
    let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let has_list = word(LIST) == MARK;
    let entries = (PLACES..PLACES_END).step_by(8).filter(move |_| has_list).map(word);
    entries.filter(|word| *word != 0).map(unpack)
}
