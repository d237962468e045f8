//! Verdicts on views that are made by hand, and the recorder's memory.

use super::memory::Memory;
use super::recorder::{Digest, Flight, RankRecorder};
use super::view::{EngineView, EntryKind, Life, ProcessView, RankView};
use super::{Cause, Verdict};
use crate::error::Error;
use crate::id::Rank;
use bytemuck::Zeroable;
use ringdove_kernels::launch::{WaitKind, WaitRecord};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn memory() -> Arc<Memory> {
    Arc::new(Memory::unnamed().unwrap())
}

fn flight(rank: u32, count: u32) -> Flight {
    let node = (0..count).map(Rank).collect();
    Flight { key: 7, rank: Rank(rank), rank_count: count, node, timeout: Duration::from_secs(1) }
}

fn recorders(memory: &Arc<Memory>, count: u32) -> Vec<RankRecorder> {
    (0..count).map(|rank| RankRecorder::within(memory.clone(), &flight(rank, count))).collect()
}

fn call(recorder: &RankRecorder, number: u64, count: u64) {
    recorder.collective(number, "all-reduce", count, Digest::of([1, count]));
    recorder.launched(number, 1, "ring staged", false);
}

fn waits(kind: WaitKind, peer: u32, state: u32) -> WaitRecord {
    WaitRecord { state, kind: kind as u32, peer, sequence: 1, ..WaitRecord::zeroed() }
}

fn ranks(memory: &Memory) -> Vec<RankView> {
    memory.view().ranks
}

/// If this fails, a report shows other calls than those that were made, or none.
#[test]
fn what_is_recorded_is_read_and_the_oldest_is_forgotten() {
    let memory = memory();
    let recorder = &recorders(&memory, 2)[1];
    (0..1000).for_each(|number| call(recorder, number, 10 + number));
    recorder.messages(3, Rank(0));
    recorder.failed(&Error::Aborted { by: Some(Rank(1)), why: "enough\n\u{1b}[2J".into() });
    recorder.failed(&Error::argument("a later one", "nothing", "this"));
    let view = ranks(&memory).into_iter().find(|view| view.rank == Rank(1)).unwrap();
    assert_eq!(
        (view.rank_count, view.collectives, view.messages, view.launches),
        (2, 1000, 3, 1000)
    );
    assert_eq!(view.node, [Rank(0), Rank(1)]);
    assert_eq!(view.entries.len(), 128);
    assert!(view.entries.is_sorted_by_key(|entry| entry.position));
    assert_eq!(view.entries.last().unwrap().kind, EntryKind::Failure);
    let seen = view.call(999).unwrap();
    assert_eq!((seen.name.as_str(), seen.count), ("all-reduce", 1009));
    assert!(view.call(900).is_none(), "it has made room for others");
    assert_eq!(view.plan_of_launch(999), Some("ring staged"));
    assert_eq!(view.call_of_launch(999).unwrap().number, 999);
    // The first error stays, and cannot move a terminal's cursor.
    assert_eq!(view.failure.unwrap().text, "aborted by rank 1: enough  [2J");
}

/// If this fails, a process that makes communicators again and again runs out of blocks, or a
/// new rank is shown with the calls of an old one.
#[test]
fn blocks_are_used_again_and_what_finds_none_is_counted() {
    let memory = memory();
    for _ in 0..1000 {
        let recorders = recorders(&memory, 4);
        call(&recorders[3], 0, 5);
        assert_eq!(ranks(&memory).len(), 4);
    }
    assert!(ranks(&memory).is_empty());
    let many = recorders(&memory, 300);
    assert_eq!((ranks(&memory).len(), memory.view().unrecorded), (256, 44));
    many.iter().for_each(|recorder| call(recorder, 0, 1));
    drop(many);
    let _one = recorders(&memory, 1);
    assert!(ranks(&memory)[0].entries.is_empty());
}

/// If this fails, a reader takes half of an entry for a whole one.
#[test]
fn entries_are_whole_while_others_write() {
    let memory = memory();
    let recorders = recorders(&memory, 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                recorders[0].collective(number, "all-reduce", 3 * number, Digest(5 * number));
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        // Also where an assertion fails: the scope waits for the thread.
        let _stop = StopOnDrop(&stop);
        for _ in 0..2000 {
            for entry in &ranks(&memory)[0].entries {
                assert_eq!(entry.count, 3 * entry.number, "{entry:?}");
                assert_eq!(entry.digest, 5 * entry.number, "{entry:?}");
            }
        }
    });
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// If this fails, an entry that is written while it is read shows half of itself.
#[test]
fn an_entry_that_is_written_while_it_is_read_is_left_out() {
    let memory = memory();
    let recorders = recorders(&memory, 1);
    call(&recorders[0], 0, 4);
    let loads = std::cell::Cell::new(0);
    let load = || {
        // The second load comes behind 127 more entries, which overwrite the first.
        if loads.replace(loads.get() + 1) == 1 {
            (1..128).for_each(|number| recorders[0].launched(number, 1, "ring staged", false));
        }
        let words = (0..super::layout::block_start(1))
            .map(|word| memory.words.load(word, Ordering::Relaxed));
        Some(words.collect())
    };
    let view = ProcessView::load(load).unwrap();
    let kinds: Vec<_> = view.ranks[0].entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [EntryKind::Launch]);
}

/// If this fails, the culprit of a hang is taken for a victim.
#[test]
fn each_kind_of_cause_is_told_from_its_victims() {
    let idle = EngineView::default();
    let none = WaitRecord::zeroed();
    let verdict = |act: &dyn Fn(&[RankRecorder])| {
        let memory = memory();
        let recorders = recorders(&memory, 4);
        recorders.iter().for_each(|recorder| {
            call(recorder, 0, 100);
            recorder.seen(Some(1), &idle, &none);
        });
        act(&recorders);
        Verdict::of(&ranks(&memory)).cause
    };
    let ring = |rank: u32| waits(WaitKind::Arrival, (rank + 3) % 4, 1 + u32::from(rank != 0));
    assert_eq!(verdict(&|_| {}), Cause::Nothing);
    // Rank 2 does not come; the others wait in a ring.
    let absent = verdict(&|recorders| {
        for rank in [0, 1, 3] {
            call(&recorders[rank], 1, 100);
            recorders[rank].seen(Some(1), &idle, &ring(rank as u32));
        }
    });
    assert_eq!(absent, Cause::NeverArrived(vec![Rank(2)]));
    // Rank 1 calls less than the others, because it waits for a launch that rank 3 never made.
    let behind = verdict(&|recorders| {
        for rank in [0, 1, 2] {
            call(&recorders[rank], 1, 100);
            recorders[rank].seen(Some(1), &idle, &ring(rank as u32));
        }
        call(&recorders[0], 2, 100);
        call(&recorders[2], 2, 100);
    });
    assert_eq!(behind, Cause::NeverArrived(vec![Rank(3)]));
    let other = verdict(&|recorders| {
        (0..4).for_each(|rank| call(&recorders[rank], 1, if rank == 2 { 99 } else { 100 }));
    });
    assert_eq!(other, Cause::OtherCall(vec![Rank(2)]));
    let slow = verdict(&|recorders| {
        (0..4).for_each(|rank| call(&recorders[rank], 1, 100));
        for rank in [0, 1, 2] {
            recorders[rank].seen(Some(1), &idle, &ring(rank as u32));
        }
    });
    assert_eq!(slow, Cause::SlowGpu(vec![Rank(3)]));
    let stuck = verdict(&|recorders| {
        (0..4).for_each(|rank| call(&recorders[rank], 1, 100));
        let engine = EngineView { is_stuck: true, ..idle };
        recorders[1].seen(Some(1), &engine, &none);
    });
    assert_eq!(stuck, Cause::Engine(Rank(1)));
    let cut = verdict(&|recorders| {
        (0..4).for_each(|rank| call(&recorders[rank], 1, 100));
        recorders[1].seen(Some(1), &idle, &waits(WaitKind::Completion, 2, 1));
        for rank in [0, 2, 3] {
            recorders[rank].seen(Some(1), &idle, &ring(rank as u32));
        }
    });
    assert_eq!(cut, Cause::Link(Rank(1), Rank(2)));
    // Messages: rank 0 waits for 1, which waits for 2, which has called nothing more.
    let messages = verdict(&|recorders| {
        for (rank, peer) in [(0, 1), (1, 2)] {
            recorders[rank].messages(1, Rank(peer));
            recorders[rank].launched(1, 1, "messages", false);
            recorders[rank].seen(Some(1), &idle, &waits(WaitKind::Arrival, peer, 1));
        }
    });
    assert_eq!(messages, Cause::NeverArrived(vec![Rank(2)]));
}

/// If this fails, a hang is not reported by a process that learns of it from another one, or an
/// abort of the program is reported as a hang.
#[test]
fn what_other_processes_say_of_a_hang_is_a_hang() {
    use super::FailureKind;
    use crate::error::ExpiredWait;
    let record = waits(WaitKind::Arrival, 1, 1);
    let (rank, peer) = (Rank(2), Some(Rank(1)));
    let kind = Some(WaitKind::Arrival);
    let wait = ExpiredWait { rank, kind, peer, record, behind: Vec::new() };
    let why = Error::WaitExpired(Box::new(wait)).to_string();
    let of = |why: &str| FailureKind::of(&Error::Aborted { by: Some(rank), why: why.into() }).0;
    assert_eq!([of(&why), of("enough")], [FailureKind::Expired, FailureKind::Aborted]);
}

/// If this fails, what is dead or stopped is not told from what is late.
#[test]
fn processes_that_are_gone_or_stopped_come_first() {
    let memory = memory();
    let recorders = recorders(&memory, 3);
    recorders.iter().for_each(|recorder| call(recorder, 0, 100));
    let mut seen = ranks(&memory);
    seen[1].life = Life::Silent(Duration::from_secs(9));
    assert_eq!(Verdict::of(&seen).cause, Cause::Stopped(vec![Rank(1)]));
    seen.remove(2);
    assert_eq!(Verdict::of(&seen).cause, Cause::Dead(vec![Rank(2)]));
}
