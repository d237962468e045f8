//! Recorders of other processes at random: words that no recorder wrote, or one that writes while
//! it is read. If this fails, `ringdove inspect` and the watchdog end by a panic, or report for
//! ever, because of what another process has in its memory.
//!
//! `RINGDOVE_FUZZ_SEED` replays a run. What was found once stays in `tests/fixtures/flight`: one
//! case a file, its words in hexadecimal as `WORD VALUE`; `#` begins a comment.

use super::layout::{BLOCKS, block, block_start, header};
use super::memory::Memory;
use super::processes::Gathered;
use super::recorder::{Digest, Flight, RankRecorder};
use super::report::Report;
use super::view::{EngineView, ProcessView};
use crate::error::Error;
use crate::id::Rank;
use bytemuck::Zeroable;
use fastrand::Rng;
use ringdove_kernels::launch::WaitRecord;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Values at which readers go wrong.
const EDGES: [u64; 10] =
    [0, 1, 2, 7, 255, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX - 1, u64::MAX];
/// Ranks that are recorded.
const RANKS: u32 = 4;
const CASES: usize = 4000;

/// The words of a recorder after some calls, one of them in a graph, and a failure.
fn recorded() -> Vec<u64> {
    let memory = Arc::new(Memory::unnamed().unwrap());
    let node: Arc<[Rank]> = (0..RANKS).map(Rank).collect();
    let flight = |rank| {
        let (rank, timeout) = (Rank(rank), Duration::from_secs(1));
        Flight { key: 7, rank, rank_count: RANKS, node: node.clone(), timeout }
    };
    let all: Vec<_> =
        (0..RANKS).map(|rank| RankRecorder::within(memory.clone(), &flight(rank))).collect();
    for (number, recorder) in (0u64..).zip(&all) {
        recorder.collective(0, "all-reduce", 100, Digest::of([1, 100]));
        recorder.launched(0, 1, "ring staged", number == 1);
        recorder.messages(3, Rank(0));
        let record = WaitRecord { state: number as u32, sequence: 1, ..WaitRecord::zeroed() };
        recorder.seen(Some(number), &EngineView::default(), &record);
    }
    all[2].failed(&Error::Aborted { by: Some(Rank(1)), why: "enough".into() });
    let used = memory.words.load(header::USED, Ordering::Relaxed) as usize;
    (0..block_start(used)).map(|word| memory.words.load(word, Ordering::Relaxed)).collect()
}

/// Reads, judges and writes what the words say. The length of the report.
fn play(words: &[u64]) -> usize {
    let Some(view) = ProcessView::read(words) else { return 0 };
    let gathered = Gathered { processes: vec![view] };
    let reports = Report::of_all(&gathered);
    reports.iter().map(|report| report.to_string().len()).sum()
}

/// One to eight words changed, or the memory cut.
fn mutate(words: &[u64], random: &mut Rng) -> Vec<u64> {
    let mut words = words.to_vec();
    for _ in 0..random.usize(1..=8) {
        // Words of the header and the beginnings of blocks are what decides most.
        let at = match random.u8(0..4) {
            0 => random.usize(0..header::WORDS),
            1 => block_start(random.usize(0..RANKS as usize)) + random.usize(0..block::ENTRIES),
            _ => random.usize(0..words.len()),
        };
        let value = match random.u8(0..3) {
            0 => EDGES[random.usize(0..EDGES.len())],
            1 => random.u64(..),
            _ => words[at] ^ 1 << random.u32(0..64),
        };
        words[at] = value;
    }
    if random.u8(0..20) == 0 {
        words.truncate(random.usize(0..words.len()));
    }
    words
}

#[test]
fn no_words_break_the_reader_of_recorders() {
    let seed = std::env::var("RINGDOVE_FUZZ_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(0x5eed_2026);
    println!("RINGDOVE_FUZZ_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let right = recorded();
    assert!(play(&right) > 100, "the recorder itself is not reported");
    let mut reported = 0;
    for case in 0..CASES {
        let length = play(&mutate(&right, &mut random));
        // Far above what the ranks of one process take.
        assert!(length < 1 << 20, "case {case}: a report of {length} bytes");
        reported += usize::from(length > 0);
    }
    println!("{reported} of {CASES} were reported");
    assert!(reported > CASES / 2, "hardly a mutation is read");
}

#[test]
fn recorders_that_were_found_once_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/flight");
    let mut cases = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut words = recorded();
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let (at, value) = line.split_once(' ').expect("WORD VALUE");
            let number = |text: &str| u64::from_str_radix(text.trim(), 16).unwrap();
            words[number(at) as usize] = number(value);
        }
        assert!(play(&words) < 1 << 20, "{}", path.display());
        cases += 1;
    }
    assert!(cases > 0 && BLOCKS >= RANKS as usize, "{} holds no case", folder.display());
}
