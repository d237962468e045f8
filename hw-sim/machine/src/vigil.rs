//! How a block waits, and when to look at it although nothing that it watches was written.
//!
//! A block of which every step repeats itself until memory changes sleeps until memory does. One
//! that reads a clock meanwhile has a deadline, which nobody but itself knows: it looks at its
//! clock from time to time, the more rarely the longer it has waited. One that counts its looks
//! must be allowed to go on counting.

use crate::clock::WallClock;
use hwsim_ptx::{Block, Progress};

/// When a wait that has begun is looked into: whether it counts, reads a clock, or neither.
const FIRST_NS: u64 = 250_000;
/// From one look at the clock to the next, at most: beyond this share of the time waited so far.
const SHARE_OF_WAIT: u64 = 16;
/// The longest time between two looks of a block that reads a clock.
const TIMED_NS_MAX: u64 = 50_000_000;
/// The time between two looks of a block that counts them, or looks at more than is kept.
const COUNTED_NS: u64 = 40_000;
/// Times that a block is run at once which says that it waits, and for nothing that can be watched:
/// its first nap in a wait, mostly.
const RESTLESS_MAX: u32 = 2;
/// Iterations of a waiting block that are looked at together: several of a loop that looks at its
/// clock now and then.
const LAPS: u32 = 40;
/// The longest time for that.
const LOOK_NS_MAX: u64 = 100_000;
/// Iterations whose state is compared with the first one's.
const COMPARED_LAPS: u32 = 4;

/// What becomes of a block that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// It is to look again as soon as others had their turn.
    Again,
    /// It sleeps until then, or what it watches is written.
    Until(u64),
    /// It sleeps until what it watches is written.
    Watching,
    /// Its GPU is slow: it goes on then, whatever is written.
    Paused(u64),
}

/// A block's wait so far.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    /// When it began, ns.
    since: u64,
    /// Effects of the block before it.
    effects: u64,
    restless: u32,
    /// Looks because of the time.
    looks: u32,
    /// The block runs because of the time: nothing was written.
    pub by_time: bool,
    /// It was seen to repeat itself.
    repeats: bool,
}

impl Vigil {
    /// Lets a block that only waits go on for a few iterations, and finds out whether it repeats
    /// itself. `run` runs it until it waits.
    pub fn look_into<E>(
        &mut self,
        block: &mut Block,
        clock: &WallClock,
        mut run: impl FnMut(&mut Block) -> Result<Progress, E>,
    ) -> Result<Progress, E> {
        let effects = block.effects();
        let (first, until) = (block.digest(), clock.now() + LOOK_NS_MAX);
        for lap in 0..LAPS {
            let progress = run(block)?;
            if progress != Progress::Waiting || block.effects() != effects {
                return Ok(progress);
            }
            let wait = block.wait();
            if !wait.is_complete || clock.now() > until {
                break;
            }
            if !wait.is_timed && lap < COMPARED_LAPS && block.digest() == first {
                self.repeats = true;
                break;
            }
        }
        Ok(Progress::Waiting)
    }

    /// The block waits: what becomes of it.
    pub fn rest(&mut self, block: &Block, now: u64) -> Rest {
        let by_time = std::mem::take(&mut self.by_time);
        if self.since == 0 || self.effects != block.effects() {
            *self = Self { since: now, effects: block.effects(), ..Self::default() };
        }
        let repeats = std::mem::take(&mut self.repeats);
        let wait = block.wait();
        if !wait.is_complete {
            self.restless += 1;
            let again = self.restless <= RESTLESS_MAX;
            return if again { Rest::Again } else { Rest::Until(now + COUNTED_NS) };
        }
        self.restless = 0;
        self.looks += u32::from(by_time);
        if self.looks == 0 {
            return Rest::Until(now + FIRST_NS);
        }
        if wait.is_timed {
            let waited = now.saturating_sub(self.since);
            let pause = (FIRST_NS << self.looks.min(2)).max(waited / SHARE_OF_WAIT);
            return Rest::Until(now + pause.min(TIMED_NS_MAX));
        }
        if repeats { Rest::Watching } else { Rest::Until(now + COUNTED_NS) }
    }
}
