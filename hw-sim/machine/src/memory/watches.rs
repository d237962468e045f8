//! Who waits for which bytes: blocks of kernels, and streams that wait for a word.
//!
//! Whoever writes memory on behalf of the machine says so here, and wakes those who watch the
//! bytes. While nobody watches anything that costs one load, and otherwise one for each line.
//!
//! No wake-up is lost. Who goes to sleep enters its places, then passes a full fence, then looks at
//! them once more. Who writes passes a full fence between the store and the look into the table: so
//! one of the two sees the other. Weak stores of kernels save themselves the fence; the worker that
//! ran the block makes up for it when the slice ends ([`Watches::epoch`]).
//!
//! Two kinds of writers say nothing: host threads, and other processes. [`GlobalMemory::is_told`]
//! knows which memory they can reach; the scheduler looks at such places from time to time.
//!
//! [`GlobalMemory::is_told`]: super::GlobalMemory::is_told

use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, Weak};

/// Bytes of a line.
const LINE_SHIFT: u32 = 8;
/// Counters, to which lines are hashed by their lowest bits.
const COUNTERS: usize = 4096;

/// Where wake-ups go.
pub(crate) trait Sleepers: Send + Sync {
    /// Bytes that these watch were written.
    fn wake(&self, numbers: &[u64]);
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    end: u64,
    number: u64,
}

/// The table.
pub(crate) struct Watches {
    /// Entries in all.
    count: AtomicU64,
    /// Entries of the lines that hash to each place: most writes learn here that nobody watches.
    counters: Box<[AtomicU32]>,
    /// Grows with each entry.
    epoch: AtomicU64,
    entries: Mutex<FxHashMap<u64, Vec<Entry>>>,
    sleepers: OnceLock<Weak<dyn Sleepers>>,
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Default for Watches {
    fn default() -> Self {
        Self {
            count: AtomicU64::new(0),
            counters: (0..COUNTERS).map(|_| AtomicU32::new(0)).collect(),
            epoch: AtomicU64::new(0),
            entries: Mutex::default(),
            sleepers: OnceLock::new(),
        }
    }
}

fn lines(address: u64, length: u64) -> std::ops::RangeInclusive<u64> {
    let last = address.saturating_add(length.saturating_sub(1));
    address >> LINE_SHIFT..=last >> LINE_SHIFT
}

impl Watches {
    /// Says who is to be woken. Once.
    pub fn wake_by(&self, sleepers: Weak<dyn Sleepers>) {
        let _ = self.sleepers.set(sleepers);
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, Vec<Entry>>> {
        self.entries.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn counter(&self, line: u64) -> &AtomicU32 {
        &self.counters[line as usize % COUNTERS]
    }

    /// May somebody watch a byte of this line? Relaxed: entries come with a fence.
    fn is_counted(&self, line: u64) -> bool {
        self.counter(line).load(Ordering::Relaxed) != 0
    }

    /// Entries so far. A worker that ran a block compares it with that of before.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Enters places. Who does it looks at them once more afterwards, before it sleeps.
    pub fn enter(&self, number: u64, places: impl Iterator<Item = (u64, u64)>) {
        {
            let mut entries = self.lock();
            for (start, length) in places {
                let entry = Entry { start, end: start.saturating_add(length), number };
                for line in lines(start, length) {
                    entries.entry(line).or_default().push(entry);
                    self.counter(line).fetch_add(1, Ordering::Relaxed);
                    self.count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.epoch.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence of whoever writes: it sees the entry, or we see what it wrote.
        fence(Ordering::SeqCst);
    }

    /// Takes the same places out.
    pub fn leave(&self, number: u64, places: impl Iterator<Item = (u64, u64)>) {
        let mut entries = self.lock();
        for (start, length) in places {
            for line in lines(start, length) {
                let Some(of_line) = entries.get_mut(&line) else { continue };
                let of_number = |entry: &Entry| entry.number == number && entry.start == start;
                let Some(at) = of_line.iter().position(of_number) else { continue };
                of_line.swap_remove(at);
                if of_line.is_empty() {
                    entries.remove(&line);
                }
                self.counter(line).fetch_sub(1, Ordering::Relaxed);
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Bytes were written, and a full fence or a locked instruction came after that.
    #[inline(always)]
    pub fn written(&self, address: u64, length: u64) {
        if self.count.load(Ordering::Relaxed) != 0 {
            self.look_up(address, length);
        }
    }

    /// Bytes were written.
    pub fn written_unfenced(&self, address: u64, length: u64) {
        // Pairs with the fence in `enter`.
        fence(Ordering::SeqCst);
        self.written(address, length);
    }

    #[inline(never)]
    fn look_up(&self, address: u64, length: u64) {
        if let Some(line) = lines(address, length).find(|line| self.is_counted(*line)) {
            self.wake(line << LINE_SHIFT, address, length);
        }
    }

    /// Wakes all who watch bytes of a range, of which the part before `from` interests nobody.
    #[cold]
    fn wake(&self, from: u64, address: u64, length: u64) {
        let end = address.saturating_add(length);
        let from = from.max(address);
        let mut numbers: Vec<u64> = Vec::new();
        {
            let entries = self.lock();
            for line in lines(from, end - from).filter(|line| self.is_counted(*line)) {
                let Some(of_line) = entries.get(&line) else { continue };
                let hit = of_line.iter().filter(|entry| entry.start < end && address < entry.end);
                numbers.extend(hit.map(|entry| entry.number));
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        if !numbers.is_empty()
            && let Some(sleepers) = self.sleepers.get().and_then(Weak::upgrade)
        {
            sleepers.wake(&numbers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Default)]
    struct Woken(Mutex<Vec<u64>>);

    impl Sleepers for Woken {
        fn wake(&self, numbers: &[u64]) {
            self.0.lock().unwrap().extend(numbers);
        }
    }

    /// If this fails, writes wake the wrong ones, or nobody.
    #[test]
    fn a_write_wakes_who_watches_a_byte_of_it() {
        let (watches, woken) = (Watches::default(), Arc::new(Woken::default()));
        let sleepers: Weak<Woken> = Arc::downgrade(&woken);
        watches.wake_by(sleepers);
        let places = [(1 << LINE_SHIFT, 8), ((9 << LINE_SHIFT) - 4, 8)];
        watches.enter(3, places.into_iter());
        watches.enter(4, [(1 << LINE_SHIFT, 8)].into_iter());
        let wakes = |address, length| {
            watches.written(address, length);
            std::mem::take(&mut *woken.0.lock().unwrap())
        };
        assert_eq!(wakes(256, 1), [3, 4]);
        assert_eq!(wakes(264, 100), [], "behind it, in its line");
        assert_eq!(wakes(256 + (COUNTERS as u64) * 256, 8), [], "a line that hashes to the same");
        assert_eq!(wakes(2304 + 3, 1), [3], "the second of its lines");
        assert_eq!(wakes(0, 1 << 20), [3, 4]);
        watches.leave(3, places.into_iter());
        assert_eq!(wakes(0, 1 << 20), [4]);
        watches.leave(4, [(1 << LINE_SHIFT, 8)].into_iter());
        assert_eq!(watches.count.load(Ordering::Relaxed), 0);
        assert!(watches.counters.iter().all(|counter| counter.load(Ordering::Relaxed) == 0));
    }
}
