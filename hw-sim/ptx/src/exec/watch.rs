//! What a warp has looked at since it last did something that others can see: how a loop that
//! polls is told from one that works, whatever it is made of.
//!
//! Notes begin with a strong load, or an atomic that leaves its word as it was, and end with an
//! effect: a store, a change by an atomic, a barrier. A look at bytes that are noted and have not
//! changed is a *poll*. A loop that reads new places, or sees new values, works.

/// Places that are kept. A warp that looks at more is not worth watching for.
const LOOKS_MAX: usize = 64;
/// Bytes that are kept.
const BYTES_MAX: usize = 4096;
/// Polls in a row that make a wait, at least.
const POLLS_MIN: u32 = 4;
/// The same where places are too many to be kept: strong loads of any kind.
const POLLS_UNKEPT: u32 = 32;

/// A place in global memory, and where in the notes its bytes are.
#[derive(Clone, Copy, Debug)]
struct Look {
    address: u64,
    at: u32,
    length: u32,
}

/// The notes of a warp.
#[derive(Debug, Default)]
pub struct Watch {
    looks: Vec<Look>,
    bytes: Vec<u8>,
    /// Instructions that saw something for the first time.
    fresh: u32,
    polls: u32,
    is_on: bool,
    overflowed: bool,
    /// How often notes ended.
    pub(super) effects: u64,
    /// It read a clock: time alone may end the wait.
    pub(super) timed: bool,
}

impl Watch {
    /// Are notes taken, of weak loads too?
    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The warp did something: whatever it looked at before is no part of a wait.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        if self.is_on {
            self.clear_notes();
        }
        self.timed = false;
    }

    #[cold]
    fn clear_notes(&mut self) {
        self.looks.clear();
        self.bytes.clear();
        (self.fresh, self.polls) = (0, 0);
        (self.is_on, self.overflowed) = (false, false);
        self.effects += 1;
    }

    /// Another thread block has the warp now.
    pub(super) fn restart(&mut self) {
        self.looks.clear();
        self.bytes.clear();
        let (looks, bytes) = (std::mem::take(&mut self.looks), std::mem::take(&mut self.bytes));
        *self = Self { looks, bytes, ..Self::default() };
    }

    fn begin(&mut self) {
        if !self.is_on {
            (self.is_on, self.timed) = (true, false);
        }
    }

    /// Notes what was looked at just now. True if nothing of it is new.
    pub(super) fn note(&mut self, address: u64, bytes: &[u8]) -> bool {
        self.begin();
        if self.overflowed {
            return true;
        }
        let end = address + bytes.len() as u64;
        let is_it =
            |look: &&Look| look.address <= address && end <= look.address + u64::from(look.length);
        if let Some(look) = self.looks.iter().find(is_it) {
            let at = look.at as usize + (address - look.address) as usize;
            let kept = &mut self.bytes[at..at + bytes.len()];
            let same = kept == bytes;
            if !same {
                kept.copy_from_slice(bytes);
            }
            return same;
        }
        if self.looks.len() == LOOKS_MAX || self.bytes.len() + bytes.len() > BYTES_MAX {
            self.overflowed = true;
            return false;
        }
        let (at, length) = (self.bytes.len() as u32, bytes.len() as u32);
        self.looks.push(Look { address, at, length });
        self.bytes.extend_from_slice(bytes);
        false
    }

    /// An instruction that looked is over; `same`: it saw nothing new.
    pub(super) fn looked(&mut self, same: bool, strong: bool) {
        self.begin();
        if same && (strong || !self.overflowed) {
            self.polls += 1;
        } else if !same {
            self.fresh += 1;
            self.polls = 0;
        }
    }

    /// Polls after which the warp steps aside at the end of an iteration: each place was looked at
    /// again, and nothing happened.
    fn polls_max(&self) -> u32 {
        if self.overflowed { POLLS_UNKEPT } else { self.fresh.max(POLLS_MIN) }
    }

    /// Has the warp polled long enough to call it a wait?
    #[inline(always)]
    pub(super) fn is_over(&self) -> bool {
        self.polls >= POLLS_MIN && self.polls >= self.polls_max()
    }

    /// The warp steps aside. When its turn comes, one poll suffices to do so again.
    pub(super) fn step_aside(&mut self) {
        self.polls = self.polls_max() - 1;
    }

    /// Did it see nothing but what it had seen before, of all of which there are notes?
    pub(super) fn is_complete(&self) -> bool {
        self.is_on && self.polls > 0 && !self.overflowed
    }

    /// What it looked at: addresses, and the bytes that were there.
    pub(super) fn looks(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.looks.iter().map(|look| {
            let at = look.at as usize;
            (look.address, &self.bytes[at..at + look.length as usize])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, loops that read on are taken for waits, or waits for work.
    #[test]
    fn only_looks_at_what_has_not_changed_make_a_wait() {
        let mut watch = Watch::default();
        for round in 0..20u64 {
            let same = watch.note(64 * round, &[0; 8]);
            watch.looked(same, true);
            assert!(!watch.is_over(), "it reads on");
        }
        watch.clear();
        for round in 0..=POLLS_MIN {
            assert!(!watch.is_over(), "after {round} looks");
            let same = watch.note(64, &[1; 8]);
            watch.looked(same, true);
        }
        assert!(watch.is_over() && watch.is_complete());
        watch.step_aside();
        assert!(!watch.is_over());
        let same = watch.note(64, &[1; 8]);
        watch.looked(same, true);
        assert!(watch.is_over(), "one look more");
        let same = watch.note(68, &[2; 4]);
        watch.looked(same, true);
        assert!(!watch.is_over(), "a part of it changed");
        assert_eq!(watch.looks().collect::<Vec<_>>(), [(64, &[1, 1, 1, 1, 2, 2, 2, 2][..])]);
    }

    /// If this fails, a kernel that looks at much is held for one that may sleep.
    #[test]
    fn what_is_not_kept_is_not_complete() {
        let mut watch = Watch::default();
        for _ in 0..3 {
            for place in 0..2 * LOOKS_MAX as u64 {
                let same = watch.note(64 * place, &[0; 8]);
                watch.looked(same, true);
            }
        }
        assert!(watch.is_over() && !watch.is_complete());
    }
}
