//! Blocks that sleep until something that they look at is written, and the times at which to look
//! at those that nobody may wake.

use crate::kernel::{KernelRun, Resident};
use crate::memory::{AccessGuard, GlobalMemory};
use crate::vigil::Rest;
use std::collections::HashMap;
use std::sync::Arc;

/// The number under which all streams that wait for a word watch it.
pub(crate) const STREAMS: u64 = 0;
/// From one look at memory that changes untold to the next, at least, ns.
const SCAN_NS_MIN: u64 = 10_000;
/// And at most.
const SCAN_NS_MAX: u64 = 2_000_000;
/// The share of the time in which nothing happened, in between.
const SHARE_OF_QUIET: u64 = 32;
/// A look at a block that waits takes a fraction of this; so many blocks share a core with others.
const LOOK_NS: u64 = 200_000;
/// All sleepers are looked at after this, whatever they wait for: should a wake-up be lost all the
/// same, a program goes on, and [`Sleeping::rescued`] counts it.
const RESCUE_NS: u64 = 500_000_000;

/// A block that sleeps.
pub(crate) struct Sleeper {
    pub run: Arc<KernelRun>,
    pub resident: Box<Resident>,
    /// When it runs in any case.
    due: u64,
    /// It is in the table of watches.
    watches: bool,
    /// Everybody who writes what it watches says so.
    told: bool,
    /// The table's entries when it entered its own.
    epoch: u64,
}

impl Sleeper {
    fn places(&self) -> impl Iterator<Item = (u64, u64)> {
        let looks = self.resident.block.looks();
        looks.map(|(address, bytes)| (address, bytes.len() as u64))
    }

    /// Are the bytes that it looked at still there?
    fn finds_the_same(&self, memory: &GlobalMemory, gate: &AccessGuard<'_>) -> bool {
        self.resident.block.looks().all(|(address, bytes)| memory.holds(gate, address, bytes))
    }
}

/// All of them.
pub(crate) struct Sleeping {
    blocks: HashMap<u64, Sleeper>,
    next: u64,
    /// Streams that wait: for a word that changes untold, and until when.
    pub streams: Option<(bool, u64)>,
    /// When to look around, ns.
    pub look_at: u64,
    rescue_at: u64,
    /// When something happened last.
    pub stirred: u64,
    /// Blocks that slept although what they watched had been written, and said so.
    pub rescued: u64,
}

impl Default for Sleeping {
    fn default() -> Self {
        Self {
            blocks: HashMap::new(),
            next: STREAMS + 1,
            streams: None,
            look_at: u64::MAX,
            rescue_at: u64::MAX,
            stirred: 0,
            rescued: 0,
        }
    }
}

impl Sleeping {
    /// Puts a block to sleep; gives it back if what it watches has changed meanwhile.
    pub fn add(
        &mut self,
        memory: &GlobalMemory,
        run: Arc<KernelRun>,
        resident: Box<Resident>,
        rest: Rest,
        now: u64,
    ) -> Option<Box<Resident>> {
        let least = self.blocks.len() as u64 * LOOK_NS;
        let due = match rest {
            Rest::Until(time) => time.max(now + least.min(RESCUE_NS)),
            Rest::Paused(time) => time,
            Rest::Again | Rest::Watching => u64::MAX,
        };
        let watches = resident.block.wait().is_complete && !matches!(rest, Rest::Paused(_));
        let mut sleeper = Sleeper { run, resident, due, watches, told: true, epoch: 0 };
        if watches {
            let told = sleeper.places().all(|(address, _)| memory.is_told(address));
            sleeper.told = told;
            let number = self.next;
            memory.watches.enter(number, sleeper.places());
            sleeper.epoch = memory.watches.epoch();
            let same = match memory.try_access() {
                Some(gate) => sleeper.finds_the_same(memory, &gate),
                None => false,
            };
            if !same {
                memory.watches.leave(number, sleeper.places());
                return Some(sleeper.resident);
            }
        }
        if !sleeper.told {
            self.look_at = self.look_at.min(now + self.scan_pause(now));
        }
        if self.rescue_at == u64::MAX {
            self.rescue_at = now + RESCUE_NS;
        }
        self.look_at = self.look_at.min(due).min(self.rescue_at);
        self.blocks.insert(self.next, sleeper);
        self.next += 1;
        None
    }

    fn scan_pause(&self, now: u64) -> u64 {
        let quiet = now.saturating_sub(self.stirred);
        (quiet / SHARE_OF_QUIET).clamp(SCAN_NS_MIN, SCAN_NS_MAX)
    }

    /// Takes a block out.
    pub fn take(&mut self, memory: &GlobalMemory, number: u64) -> Option<Sleeper> {
        let sleeper = self.blocks.remove(&number)?;
        memory.watches.leave(number, sleeper.places());
        if self.blocks.is_empty() {
            self.rescue_at = u64::MAX;
        }
        Some(sleeper)
    }

    /// Blocks of a context.
    pub fn of_context(&self, context: u64) -> Vec<u64> {
        let of_it = |(_, sleeper): &(&u64, &Sleeper)| sleeper.run.origin.context == context;
        self.blocks.iter().filter(of_it).map(|(number, _)| *number).collect()
    }

    /// Streams wait, among others for words that change untold, and until this time.
    pub fn streams_wait(&mut self, untold: bool, until: u64, now: u64) {
        // Nobody says so when the memory of a word is freed, which ends a wait, too.
        let (was_untold, was_until) = self.streams.unwrap_or((false, now + RESCUE_NS));
        let (untold, until) = (untold | was_untold, until.min(was_until));
        self.streams = Some((untold, until));
        self.look_at = self.look_at.min(until);
        if untold {
            self.look_at = self.look_at.min(now + self.scan_pause(now));
        }
    }

    /// Who is to be woken now: those whose time has come, those who see something else than they
    /// did; [`STREAMS`] for the streams. Whether it is because of the time.
    pub fn look_around(&mut self, memory: &GlobalMemory, now: u64) -> Vec<(u64, bool)> {
        let Some(gate) = memory.try_access() else {
            // Somebody changes mappings, and is done soon.
            self.look_at = now + SCAN_NS_MIN;
            return Vec::new();
        };
        let rescue = now >= self.rescue_at;
        if rescue {
            self.rescue_at = now + RESCUE_NS;
        }
        self.look_at = if self.blocks.is_empty() { u64::MAX } else { self.rescue_at };
        let scan_at = now + self.scan_pause(now);
        let mut woken = Vec::new();
        for (&number, sleeper) in &self.blocks {
            let look = !sleeper.told || (rescue && sleeper.watches);
            if look && !sleeper.finds_the_same(memory, &gate) {
                self.rescued += u64::from(sleeper.told);
                woken.push((number, false));
            } else if now >= sleeper.due {
                woken.push((number, true));
            } else {
                let next = if sleeper.told { sleeper.due } else { sleeper.due.min(scan_at) };
                self.look_at = self.look_at.min(next);
            }
        }
        // They are looked at as a whole, and then say again what they wait for.
        match self.streams {
            Some((untold, until)) if untold || now >= until => {
                self.streams = None;
                woken.push((STREAMS, true));
            }
            Some((_, until)) => self.look_at = self.look_at.min(until),
            None => {}
        }
        woken
    }

    /// Those who fell asleep since `epoch`, and see something else than they did: weak stores of
    /// a slice that has ended may have missed them.
    pub fn missed_since(&self, memory: &GlobalMemory, epoch: u64) -> Vec<u64> {
        let gate = memory.try_access();
        let is_missed = |sleeper: &Sleeper| {
            sleeper.watches
                && sleeper.epoch > epoch
                && gate.as_ref().is_none_or(|gate| !sleeper.finds_the_same(memory, gate))
        };
        let missed = self.blocks.iter().filter(|(_, sleeper)| is_missed(sleeper));
        missed.map(|(number, _)| *number).collect()
    }
}
