//! Words by which hosts, engines and peers hand memory over: the library's own code on both sides,
//! or on one, with a thread that polls on the other.
//!
//! A seed also draws what a sequentially consistent access is made of: a fence before it, or one
//! behind it. Both are ways in which C++ is compiled, and one program keeps to one of them.

use bytemuck::Zeroable;
use hwsim_ptx::memory::{AtomicOp, AtomicType, Order, Scope, Strength};
use hwsim_ptx::weak::{AgentId, Place, WeakMemory};
use ringdove::engine::device::{Registers, registers};
use ringdove::engine::sleep::Sleep;
use ringdove::flight::{Digest, EntryView, Flight, Memory, RankRecorder, RankView};
use ringdove::id::Rank;
use ringdove::shared::{HostRow64, HostWord64, Row64, Word64, observe, publish, warn_before};
use ringdove_kernels::bar::{
    CONTROL_OFFSET, Command, Control, ERROR_OFFSET, ErrorRecord, RING_OFFSET, STATUS_OFFSET, State,
    Status,
};
use std::mem::offset_of;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::world::Stats;

/// Rounds of each pattern.
const ROUNDS: u64 = 12;
/// Of the flight recorder, which has many words.
const ROUNDS_OF_RECORDERS: u64 = 3;
/// Looks of a side that polls, in a round.
const LOOKS: u32 = 6;
/// Entries of a recorder's block.
const ENTRIES: u64 = 128;

/// Words from an address on, as one agent reaches them.
#[derive(Clone)]
struct Words {
    memory: Rc<WeakMemory>,
    agent: AgentId,
    address: u64,
    /// The fence of a sequentially consistent access stands behind it, not before it.
    fences_behind: bool,
}

const fn of_system(order: Order) -> Strength {
    Strength { order, scope: Scope::System }
}

impl Words {
    fn at(&self, index: usize) -> Self {
        Self { address: self.address + 8 * index as u64, ..self.clone() }
    }

    /// One access, with its fence where it has one.
    fn access<T>(&self, ordering: Ordering, own: Order, access: impl FnOnce(Strength) -> T) -> T {
        let is_sc = ordering == Ordering::SeqCst;
        let fence = || self.memory.fence(self.agent, of_system(Order::SequentiallyConsistent));
        if is_sc && !self.fences_behind {
            fence();
        }
        let order = match ordering {
            Ordering::Relaxed => Order::Relaxed,
            _ => own,
        };
        let result = access(of_system(order));
        if is_sc && self.fences_behind {
            fence();
        }
        result
    }

    fn modify(&self, op: AtomicOp, ordering: Ordering, operand: u64, compare: u64) -> u64 {
        let own = match ordering {
            Ordering::Acquire => Order::Acquire,
            Ordering::Release => Order::Release,
            _ => Order::AcquireRelease,
        };
        let (ty, at) = (AtomicType::U64, self.address);
        let modified = self.access(ordering, own, |strength| {
            self.memory.atomic(self.agent, at, op, ty, strength, operand, compare)
        });
        modified.expect("the word was allocated")
    }
}

impl Word64 for Words {
    fn load(&self, ordering: Ordering) -> u64 {
        let mut bytes = [0; 8];
        let read = self.access(ordering, Order::Acquire, |strength| {
            self.memory.read(self.agent, self.address, 8, strength, &mut bytes)
        });
        read.expect("the word was allocated");
        u64::from_le_bytes(bytes)
    }

    fn store(&self, value: u64, ordering: Ordering) {
        let bytes = value.to_le_bytes();
        let written = self.access(ordering, Order::Release, |strength| {
            self.memory.write(self.agent, self.address, 8, strength, &bytes)
        });
        written.expect("the word was allocated");
    }
}

impl HostWord64 for Words {
    fn fetch_add(&self, value: u64, ordering: Ordering) -> u64 {
        self.modify(AtomicOp::Add, ordering, value, 0)
    }

    fn replace(&self, current: u64, new: u64, ordering: Ordering) -> bool {
        self.modify(AtomicOp::Cas, ordering, new, current) == current
    }

    fn fence(&self, ordering: Ordering) {
        let order = match ordering {
            Ordering::SeqCst => Order::SequentiallyConsistent,
            _ => Order::AcquireRelease,
        };
        self.memory.fence(self.agent, of_system(order));
    }
}

impl Row64 for Words {
    fn load(&self, index: usize, ordering: Ordering) -> u64 {
        Word64::load(&self.at(index), ordering)
    }

    fn store(&self, index: usize, value: u64, ordering: Ordering) {
        Word64::store(&self.at(index), value, ordering);
    }
}

impl HostRow64 for Words {
    fn fetch_add(&self, index: usize, value: u64, ordering: Ordering) -> u64 {
        HostWord64::fetch_add(&self.at(index), value, ordering)
    }

    fn raise(&self, index: usize, value: u64, ordering: Ordering) {
        self.at(index).modify(AtomicOp::Max, ordering, value, 0);
    }

    fn fence(&self, ordering: Ordering) {
        HostWord64::fence(self, ordering);
    }
}

/// A pattern: one round of it.
type Pattern = fn(&mut Run) -> Result<(), String>;

/// All, and how many rounds.
const PATTERNS: [(&str, u64, Pattern); 9] = [
    ("a word that is published", ROUNDS, Run::publish),
    ("a word that is observed", ROUNDS, Run::observe),
    ("a warning", ROUNDS, Run::warn),
    ("a command to an engine", ROUNDS, Run::command),
    ("an engine's error", ROUNDS, Run::error),
    ("an entry of an engine's table", ROUNDS, Run::enter),
    ("a thread that goes to rest", ROUNDS, Run::rest),
    ("a flight recorder's block", ROUNDS_OF_RECORDERS, Run::block),
    ("a flight recorder's entries", ROUNDS_OF_RECORDERS, Run::entries),
];

/// A run.
pub(super) struct Run {
    memory: Rc<WeakMemory>,
    random: fastrand::Rng,
    fences_behind: bool,
    rounds: u64,
}

impl Run {
    pub(super) fn new(memory: &Rc<WeakMemory>, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x776f_7264);
        let fences_behind = random.bool();
        Self { memory: Rc::clone(memory), random, fences_behind, rounds: 0 }
    }

    /// All patterns.
    pub(super) fn run(&mut self) -> Result<Stats, String> {
        for (name, rounds, pattern) in PATTERNS {
            for round in 0..rounds {
                pattern(self).map_err(|reason| format!("{name}, round {round}: {reason}"))?;
                self.rounds += 1;
            }
        }
        Ok(self.stats())
    }

    pub(super) fn stats(&self) -> Stats {
        Stats { turns: self.rounds, ..Stats::default() }
    }

    /// New words, as so many agents reach them.
    fn words<const AGENTS: usize>(&self, name: &str, count: usize) -> [Words; AGENTS] {
        let address = self.memory.allocate(name, 8 * count as u64);
        std::array::from_fn(|_| Words {
            memory: Rc::clone(&self.memory),
            agent: self.memory.agent(Place::Outside),
            address,
            fences_behind: self.fences_behind,
        })
    }

    /// One side writes so many times, the other one looks, in any order.
    fn race(
        &mut self,
        writes: u64,
        mut write: impl FnMut(u64),
        mut look: impl FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        let (mut written, mut looks) = (0, LOOKS);
        while written < writes || looks > 0 {
            if written < writes && (looks == 0 || self.random.bool()) {
                written += 1;
                write(written);
            } else {
                looks -= 1;
                look()?;
            }
        }
        Ok(())
    }

    /// `publish`: parameters of a program, a count of a server, a signal of the host.
    fn publish(&mut self) -> Result<(), String> {
        let [host, peer] = self.words("words", 2);
        let look = || {
            let seen = Word64::load(&peer, Ordering::Acquire);
            behind(seen, Row64::load(&peer, 1, Ordering::Relaxed))
        };
        let write = |value| {
            Row64::store(&host, 1, value, Ordering::Relaxed);
            publish(&host, value);
        };
        self.race(3, write, look)
    }

    /// `observe`: results of a program, what a peer's adapter has written.
    fn observe(&mut self) -> Result<(), String> {
        let [host, peer] = self.words("words", 2);
        let look = || {
            let seen = observe(&host);
            behind(seen, Row64::load(&host, 1, Ordering::Relaxed))
        };
        let write = |value| {
            Row64::store(&peer, 1, value, Ordering::Relaxed);
            Word64::store(&peer, value, Ordering::Release);
        };
        self.race(3, write, look)
    }

    /// `warn_before`: whoever has read new data sees the warning, if he looks behind it.
    fn warn(&mut self) -> Result<(), String> {
        let [host, peer] = self.words("words", 2);
        let look = || {
            let data = Row64::load(&peer, 1, Ordering::Relaxed);
            HostWord64::fence(&peer, Ordering::Acquire);
            behind(data, Word64::load(&peer, Ordering::Relaxed))
        };
        let write = |value| {
            warn_before(&host, value);
            Row64::store(&host, 1, value, Ordering::Relaxed);
        };
        self.race(3, write, look)
    }

    /// Who sees that an engine is to run sees its registers.
    fn command(&mut self) -> Result<(), String> {
        let [host, engine] = self.words("channel", RING_OFFSET as usize / 8);
        let generation = self.random.u64(1..);
        let register = |offset: usize| {
            Row64::load(&engine, (CONTROL_OFFSET as usize + offset) / 8, Ordering::Relaxed)
        };
        let look = || {
            let place = (CONTROL_OFFSET as usize + offset_of!(Control, command)) / 8;
            if Row64::load(&engine, place, Ordering::Acquire) != Command::Run as u64 {
                return Ok(());
            }
            let seen = [
                register(offset_of!(Control, ring_log2)),
                register(offset_of!(Control, tail_address)),
                register(offset_of!(Control, abort_address)),
                register(offset_of!(Control, generation)),
                register(offset_of!(Control, rank)),
            ];
            equal(&[5, 4096, 8192, generation, 3], &seen)
        };
        let settings =
            Registers { ring_log2: 5, tail_address: 4096, abort_address: 8192, rank: Rank(3) };
        let write = |_| {
            registers::set_up(&host, &settings, generation);
            registers::command(&host, Command::Run);
        };
        self.race(1, write, look)
    }

    /// Who sees that an engine has stopped finds its error, and all of it.
    fn error(&mut self) -> Result<(), String> {
        let [host, engine] = self.words("channel", RING_OFFSET as usize / 8);
        let none = ErrorRecord::zeroed();
        let record = ErrorRecord { state: 1, code: 2, position: 3, words: [4, 5], ..none };
        let look = || {
            let has_stopped = registers::status(&host).state == State::Stopped as u64;
            match registers::error_record(&host) {
                Some(seen) if seen == record => Ok(()),
                Some(seen) => Err(format!("expected {record:?}, seen {seen:?}")),
                None if has_stopped => Err("an engine has stopped, and no error is seen".into()),
                None => Ok(()),
            }
        };
        let write = |_| {
            let place = |block: u64, offset: usize| (block as usize + offset) / 8;
            let words: &[u64] = bytemuck::cast_slice(std::slice::from_ref(&record));
            for (index, word) in words.iter().enumerate().skip(1) {
                let at = place(ERROR_OFFSET, 8 * index);
                Row64::store(&engine, at, *word, Ordering::Relaxed);
            }
            let state = place(ERROR_OFFSET, offset_of!(ErrorRecord, state));
            Row64::store(&engine, state, 1, Ordering::Release);
            let state = place(STATUS_OFFSET, offset_of!(Status, state));
            Row64::store(&engine, state, State::Stopped as u64, Ordering::Release);
        };
        self.race(1, write, look)
    }

    /// Who sees that an entry is valid sees all of it.
    fn enter(&mut self) -> Result<(), String> {
        let [host, engine] = self.words("table", 8);
        let entry: [u64; 8] = [9, 8, 7, 6, 5, 4, 3, 1];
        let look = || {
            if Row64::load(&engine, 7, Ordering::Acquire) == 0 {
                return Ok(());
            }
            let seen: [u64; 7] =
                std::array::from_fn(|index| Row64::load(&engine, index, Ordering::Relaxed));
            equal(&entry[..7], &seen)
        };
        self.race(1, |_| assert!(registers::enter(&host, 0, &entry)), look)
    }

    /// A launch is seen, or it wakes the thread.
    fn rest(&mut self) -> Result<(), String> {
        let sides = self.words::<2>("sleep", 3);
        let [thread, launcher] =
            sides.each_ref().map(|words| Sleep::over(words.at(0), words.at(1)));
        let [looks_at, announces] = sides.each_ref().map(|words| words.at(2));
        let (mut nudges, mut is_announced, mut rests, mut woken) = (0, false, false, false);
        let (mut of_thread, mut of_launcher) = (0, 0);
        while of_thread + of_launcher < 5 {
            if of_thread < 3 && (of_launcher == 2 || self.random.bool()) {
                match of_thread {
                    0 => nudges = thread.seen(),
                    1 => is_announced = Word64::load(&looks_at, Ordering::Relaxed) != 0,
                    _ => rests = thread.may_rest(nudges),
                }
                of_thread += 1;
            } else {
                match of_launcher {
                    0 => Word64::store(&announces, 1, Ordering::Relaxed),
                    _ => woken = launcher.nudge(),
                }
                of_launcher += 1;
            }
        }
        let is_missed = rests && !woken && !is_announced;
        if is_missed { Err("a thread sleeps through a launch".into()) } else { Ok(()) }
    }

    /// The same recorder, with room for one rank, as so many agents reach it.
    fn recorders<const AGENTS: usize>(&self) -> [Recorder; AGENTS] {
        let count = Recorder::words_of(1);
        let words = self.words::<AGENTS>("recorder", count + 1);
        let recorders = words.each_ref().map(|words| {
            let taken = Box::new([words.at(count)]);
            Recorder::in_words(words.clone(), taken)
        });
        self.memory.meet(words.iter().map(|words| words.agent));
        recorders
    }

    /// Who sees a block in use finds what stands there for all of its rank's life; who takes a
    /// block comes behind who had it before.
    fn block(&mut self) -> Result<(), String> {
        let [first, second, reader] = self.recorders::<3>();
        let flights = [flight(1), flight(2)];
        #[allow(clippy::arc_with_non_send_sync)] // The library shares it among threads.
        let [first, second] = [first, second].map(Arc::new);
        let mut recorder = None;
        let look = || match &reader.view().ranks[..] {
            [] => Ok(()),
            ranks => of_flight(ranks, &flights[0]),
        };
        self.race(1, |_| recorder = Some(RankRecorder::within(first.clone(), &flights[0])), look)?;
        drop(recorder.take());
        let kept = RankRecorder::within(second.clone(), &flights[1]);
        // Everybody knows what has come of it.
        self.meet_all();
        let view = reader.view();
        drop(kept);
        // A block may still look taken to the second one, which then goes without.
        if view.unrecorded > 0 { Ok(()) } else { of_flight(&view.ranks, &flights[1]) }
    }

    /// An entry that is read is one that was written, and not parts of two.
    fn entries(&mut self) -> Result<(), String> {
        let [writer, reader] = self.recorders::<2>();
        #[allow(clippy::arc_with_non_send_sync)] // The library shares it among threads.
        let recorder = RankRecorder::within(Arc::new(writer), &flight(1));
        let name = |number: u64| format!("call {number}");
        let call = |number| recorder.collective(number, &name(number), 3 * number, Digest(number));
        // All places have had an entry, of which the reader knows.
        (0..ENTRIES).for_each(call);
        self.meet_all();
        let look = || {
            let view = reader.view();
            let entries = view.ranks.iter().flat_map(|rank| &rank.entries);
            let is_whole = |it: &EntryView| {
                let number = it.position;
                (it.number, it.count, it.digest) == (number, 3 * number, number)
                    && it.name == name(number)
            };
            match entries.clone().find(|it| !is_whole(it)) {
                Some(torn) => Err(format!("an entry that nobody wrote: {torn:?}")),
                None => Ok(()),
            }
        };
        self.race(6, |write| call(ENTRIES + write - 1), look)
    }

    /// All agents know of all that was done.
    fn meet_all(&self) {
        let newest = self.memory.agent(Place::Outside);
        self.memory.meet(0..=newest);
    }
}

/// A flight recorder in such words.
type Recorder = Memory<Words, Words>;

fn flight(number: u32) -> Flight {
    Flight {
        key: 1000 + u64::from(number),
        rank: Rank(number),
        rank_count: 10 + number,
        node: Arc::new([Rank(number)]),
        timeout: Duration::from_secs(number.into()),
    }
}

/// Are these one rank, the one of this flight?
fn of_flight(ranks: &[RankView], flight: &Flight) -> Result<(), String> {
    let [RankView { key, rank, rank_count, node, timeout, .. }] = ranks else {
        return Err(format!("expected {flight:?}, seen {} ranks", ranks.len()));
    };
    let seen = (*key, *rank, *rank_count, &node[..], *timeout);
    let expected = (flight.key, flight.rank, flight.rank_count, &flight.node[..], flight.timeout);
    if seen == expected { Ok(()) } else { Err(format!("expected {expected:?}, seen {seen:?}")) }
}

/// Is the value at least the one that was seen before?
fn behind(seen: u64, value: u64) -> Result<(), String> {
    if value >= seen { Ok(()) } else { Err(format!("seen {seen}, and then {value}")) }
}

fn equal(expected: &[u64], seen: &[u64]) -> Result<(), String> {
    if seen == expected { Ok(()) } else { Err(format!("expected {expected:?}, seen {seen:?}")) }
}
