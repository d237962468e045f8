//! What a host thread does before it sleeps: a small kernel has ended sooner than the host wakes a
//! thread. Drivers of real GPUs look in the same way.

use std::time::{Duration, Instant};

/// How long a thread only looks.
const SPIN: Duration = Duration::from_micros(5);
/// How long it looks, and lets others run between two looks, before it gives up.
const YIELD: Duration = Duration::from_micros(50);

/// Looks for a little while whether `done`. False: it is not done yet, and the thread should sleep.
pub(crate) fn look_for(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        match start.elapsed() {
            elapsed if elapsed < SPIN => std::hint::spin_loop(),
            elapsed if elapsed < YIELD => std::thread::yield_now(),
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn it_ends_as_soon_as_it_is_done_and_also_if_it_never_is() {
        let looks = Cell::new(0);
        let third = || {
            looks.set(looks.get() + 1);
            looks.get() == 3
        };
        assert!(look_for(third));
        assert_eq!(looks.get(), 3);
        assert!(!look_for(|| false));
    }
}
