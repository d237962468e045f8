//! Seeded mutation of texts from a corpus, and campaigns of it: how many cases, how a case that
//! fails is kept and played again, and what ends one that hangs.
//!
//! | variable | meaning |
//! |---|---|
//! | `RINGDOVE_FUZZ_CASES` | mutated inputs of each campaign, instead of the few of a test run |
//! | `RINGDOVE_FUZZ_SEED` | play this one case and no other |
//!
//! Half of a campaign's cases are the same in every run, half are new. A failure names the case's
//! seed, the file that holds the input, and the command that plays it again. With the mend the
//! input joins the corpus, whose files are played as they are in every run.

#![allow(dead_code)] // Each test binary uses its part.

use fastrand::Rng;
use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How many cases a run shall have.
pub const CASES: &str = "RINGDOVE_FUZZ_CASES";
/// The one case to play.
pub const SEED: &str = "RINGDOVE_FUZZ_SEED";

/// No input of these sizes takes longer; one that does hangs.
const CASE_TIME: Duration = Duration::from_secs(20);
/// How often the case is looked at.
const TICK: Duration = Duration::from_secs(1);
/// A mutated text is cut here: the time of a case is bounded.
const TEXT_BYTES_MAX: usize = 256 << 10;
/// What is shown of an input that failed; the file holds all of it.
const SHOWN_BYTES: usize = 1500;

/// Numbers at which programs go wrong.
const EDGES: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "7",
    "15",
    "16",
    "17",
    "31",
    "32",
    "33",
    "63",
    "64",
    "65",
    "127",
    "128",
    "255",
    "256",
    "1023",
    "1024",
    "4095",
    "4096",
    "65535",
    "65536",
    "1048576",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "17179869183",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "-2147483648",
    "-9223372036854775808",
    "-9223372036854775809",
    "0x7fffffffffffffff",
    "0xffffffffffffffff",
    "0x10000000000000000",
    "0.5",
    "-0.0",
    "1e-320",
    "1e308",
    "1e309",
    "nan",
    "inf",
    "-inf",
    "00",
    "0x",
    "0b1",
    "1_000",
    "1e",
    "",
];

/// Bytes that are no text, or are a strange one.
const RAW: &[&[u8]] = &[
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\0",
    b"\x1b[31m",
    b"\r",
    b"\xef\xbb\xbf",
    "\u{202e}".as_bytes(),
    "é".as_bytes(),
    "٣".as_bytes(),
    b"\"",
    b"\\",
    b"'",
    b"\n\n",
    b"\t",
];

/// Where each token of a text ends: words, numbers, runs of blanks, and single marks.
fn tokens(text: &[u8]) -> Vec<(usize, usize)> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || b"_%$".contains(&byte);
    let blank = |byte: u8| byte.is_ascii_whitespace();
    let mut found = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let same: &dyn Fn(u8) -> bool = match text[start] {
            byte if word(byte) => &word,
            byte if blank(byte) => &blank,
            _ => &|_| false,
        };
        let rest = text[start + 1..].iter();
        let end = start + 1 + rest.take_while(|byte| same(**byte)).count();
        found.push((start, end));
        start = end;
    }
    found
}

/// One of the text's tokens that is not blank, or the whole text where there is none.
fn token(rng: &mut Rng, text: &[u8]) -> (usize, usize) {
    // Around a random place, so that a long text is not taken apart for each edit.
    let from = rng.usize(0..text.len().max(1)).saturating_sub(200);
    let part = &text[from.min(text.len())..(from + 400).min(text.len())];
    let all = tokens(part);
    let solid: Vec<_> =
        all.into_iter().filter(|(start, _)| !part[*start].is_ascii_whitespace()).collect();
    match rng.choice(solid) {
        Some((start, end)) => (from + start, from + end),
        None => (0, text.len()),
    }
}

/// A number of the text, if there is one near a random place.
fn number(rng: &mut Rng, text: &[u8]) -> Option<(usize, usize)> {
    let from = rng.usize(0..text.len().max(1)).saturating_sub(500);
    let part = &text[from.min(text.len())..(from + 1000).min(text.len())];
    let is_number = |(start, _): &(usize, usize)| part[*start].is_ascii_digit();
    let all: Vec<_> = tokens(part).into_iter().filter(is_number).collect();
    rng.choice(all).map(|(start, end)| (from + start, from + end))
}

fn line(rng: &mut Rng, text: &[u8]) -> (usize, usize) {
    let at = rng.usize(0..text.len().max(1)).min(text.len());
    let start = text[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1);
    let end = text[at..].iter().position(|byte| *byte == b'\n');
    (start, end.map_or(text.len(), |length| at + length + 1))
}

fn range(rng: &mut Rng, text: &[u8], length_max: usize) -> (usize, usize) {
    let start = rng.usize(0..=text.len());
    (start, (start + rng.usize(0..=length_max)).min(text.len()))
}

fn replace(text: &mut Vec<u8>, (start, end): (usize, usize), by: &[u8]) {
    text.splice(start..end, by.iter().copied());
}

/// Changes `text` once. `donor` is another text of the corpus, whose tokens and lines are used.
fn edit(rng: &mut Rng, text: &mut Vec<u8>, donor: &[u8]) {
    match rng.u32(0..16) {
        // Numbers at their edges are what most often gets past a parser.
        0..=3 => {
            let edge = rng.choice(EDGES).expect("there are edges");
            match number(rng, text) {
                Some(place) => replace(text, place, edge.as_bytes()),
                None => replace(text, (0, 0), edge.as_bytes()),
            }
        }
        4..=6 => {
            let (start, end) = token(rng, donor);
            let place = token(rng, text);
            replace(text, place, &donor[start..end]);
        }
        7 => {
            let (first, second) = (token(rng, text), token(rng, text));
            let (early, late) = if first.0 <= second.0 { (first, second) } else { (second, first) };
            if early.1 <= late.0 {
                let (a, b) = (text[early.0..early.1].to_vec(), text[late.0..late.1].to_vec());
                replace(text, late, &a);
                replace(text, early, &b);
            }
        }
        8 => {
            let place = token(rng, text);
            replace(text, place, b"");
        }
        9 => {
            let (start, end) = line(rng, text);
            let copies = text[start..end].repeat(if rng.u32(0..8) == 0 { 200 } else { 2 });
            replace(text, (start, end), &copies);
        }
        10 => {
            let place = line(rng, text);
            replace(text, place, b"");
        }
        11 => {
            let (start, end) = line(rng, donor);
            let (place, _) = line(rng, text);
            replace(text, (place, place), &donor[start..end]);
        }
        12 => {
            let place = range(rng, text, 40);
            replace(text, place, b"");
        }
        13 => {
            let (start, end) = range(rng, text, 60);
            let copy = text[start..end].to_vec();
            replace(text, (start, start), &copy);
        }
        14 => {
            let raw = *rng.choice(RAW).expect("there are some");
            let (place, _) = range(rng, text, 0);
            replace(text, (place, place), raw);
        }
        _ if rng.u32(0..4) == 0 => text.truncate(rng.usize(0..=text.len())),
        _ => {
            if let Some(place) = (!text.is_empty()).then(|| rng.usize(0..text.len())) {
                text[place] ^= 1 << rng.u32(0..8);
            }
        }
    }
    text.truncate(TEXT_BYTES_MAX);
}

/// A text of the corpus after one to eight changes.
pub fn mutate(rng: &mut Rng, corpus: &[Input]) -> Vec<u8> {
    let mut text = rng.choice(corpus).expect("a corpus").bytes.clone();
    let donor = rng.choice(corpus).expect("a corpus");
    // Mostly few: what changes much is refused at the first mistake.
    let edits = if rng.bool() { 1 } else { rng.u32(1..=8) };
    for _ in 0..edits {
        edit(rng, &mut text, &donor.bytes);
    }
    text
}

/// One text of a corpus.
#[derive(Clone, Debug)]
pub struct Input {
    /// Where it is from.
    pub name: String,
    /// What it holds.
    pub bytes: Vec<u8>,
}

/// The files of a folder with this ending, by name.
pub fn corpus(folder: &Path, ending: &str) -> Vec<Input> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == ending));
    paths.sort();
    assert!(!paths.is_empty(), "{} holds no .{ending} files", folder.display());
    let read =
        |path: PathBuf| Input { name: path.display().to_string(), bytes: fs::read(&path).unwrap() };
    paths.into_iter().map(read).collect()
}

/// A series of mutated inputs for one test.
pub struct Campaign {
    /// The crate and the test target, as cargo calls them: `-p hwsim-ptx --test fuzz`.
    pub target: &'static str,
    /// The name of the test function.
    pub test: &'static str,
    /// Cases of a usual run.
    pub cases: u64,
}

/// What a campaign watches: the case that runs now, and since when.
#[derive(Default)]
struct Watched {
    current: Mutex<(Option<(Instant, u64)>, bool)>,
    changed: Condvar,
}

impl Campaign {
    /// Plays every case of this run: `make` gives the input of a seed, `play` uses it and says what
    /// is wrong. A panic is a failure, and so is a case that takes longer than 20 s.
    pub fn run(
        &self,
        make: impl Fn(&mut Rng) -> Vec<u8> + Sync,
        mut play: impl FnMut(&[u8]) -> Result<(), String>,
    ) {
        let watched = Arc::new(Watched::default());
        std::thread::scope(|scope| {
            scope.spawn(|| self.watch(&watched, &make));
            let started = Instant::now();
            let seeds = self.seeds();
            let count = seeds.len();
            let failure = seeds.into_iter().find_map(|seed| {
                watched.current.lock().unwrap().0 = Some((Instant::now(), seed));
                let input = make(&mut Rng::with_seed(seed));
                let outcome = guarded(|| play(&input));
                outcome.err().map(|reason| self.describe(seed, &input, &reason))
            });
            watched.current.lock().unwrap().1 = true;
            watched.changed.notify_all();
            if let Some(failure) = failure {
                panic!("{failure}");
            }
            println!("{}: {count} cases in {:.1?}", self.test, started.elapsed());
        });
    }

    /// Plays inputs as they are, such as those of the corpus.
    pub fn replay(&self, inputs: &[Input], mut play: impl FnMut(&[u8]) -> Result<(), String>) {
        for input in inputs {
            if let Err(reason) = guarded(|| play(&input.bytes)) {
                panic!("{}: {}: {reason}", self.test, input.name);
            }
        }
    }

    /// The seeds of this run.
    fn seeds(&self) -> Vec<u64> {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
        };
        if let Some(seed) = number(SEED) {
            return vec![seed];
        }
        let cases = number(CASES).unwrap_or(self.cases);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Apart from the fixed ones, and short enough to be typed.
        let fresh = 1_000_000 + since.as_millis() as u64 % 1_000_000_000 * 1000;
        (0..cases / 2).chain((0..cases - cases / 2).map(|index| fresh + index)).collect()
    }

    /// Ends the process where a case hangs: nothing else can. What counts are seconds that this
    /// thread has slept through: a process that was stopped, or got no processor, has not hung.
    fn watch(&self, watched: &Watched, make: &impl Fn(&mut Rng) -> Vec<u8>) {
        let mut current = watched.current.lock().unwrap();
        let (mut last, mut slept) = (None, Duration::ZERO);
        while !current.1 {
            let waited = watched.changed.wait_timeout(current, TICK).unwrap();
            current = waited.0;
            let Some(case) = current.0.filter(|_| !current.1) else { continue };
            if last != Some(case) {
                (last, slept) = (Some(case), Duration::ZERO);
            } else if waited.1.timed_out() {
                slept += TICK;
            }
            let seed = case.1;
            if slept > CASE_TIME {
                let input = make(&mut Rng::with_seed(seed));
                let reason = format!("no end after {CASE_TIME:?}");
                eprintln!("{}", self.describe(seed, &input, &reason));
                std::process::abort();
            }
        }
    }

    fn describe(&self, seed: u64, input: &[u8], reason: &str) -> String {
        let path = std::env::temp_dir().join(format!("{}-{seed}", self.test.replace("::", "-")));
        let kept = match fs::write(&path, input) {
            Ok(()) => path.display().to_string(),
            Err(error) => format!("could not be kept: {error}"),
        };
        let shown = String::from_utf8_lossy(&input[..input.len().min(SHOWN_BYTES)]);
        let Self { target, test, .. } = self;
        format!(
            "{test}: seed {seed}: {reason}\n\
             input ({} bytes, all of it: {kept}):\n{shown}\n\
             again: {SEED}={seed} cargo test --release {target} -- --exact {test} --nocapture",
            input.len()
        )
    }
}

/// Runs `play`; a panic is what is wrong.
fn guarded(play: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(play))
        .unwrap_or_else(|payload| Err(format!("panicked: {}", words(&*payload))))
}

fn words(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("without words")
}
