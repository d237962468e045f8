//! How much processor time threads spend inside of driver calls, for a program that wants to know
//! what its own code takes: a virtual driver's share says nothing of a real one's.

use std::cell::Cell;
use std::sync::OnceLock;

/// What one look at the clock takes, in nanoseconds, once somebody has asked for the time. The
/// clock is a call of the kernel's, which is much beside a short driver call.
static LOOK: OnceLock<u64> = OnceLock::new();

/// Looks at the clock whose mean counts.
const LOOKS: u64 = 1_000;

thread_local! {
    static NANOSECONDS: Cell<u64> = const { Cell::new(0) };
}

/// The processor time that the calling thread has spent in driver calls since anybody asked first,
/// with what it takes to measure it, in nanoseconds. No function of CUDA's: a program finds it by
/// its name.
#[unsafe(no_mangle)]
extern "C" fn hwsim_driver_nanoseconds() -> u64 {
    LOOK.get_or_init(|| {
        let began = now();
        let mut last = began;
        (0..LOOKS).for_each(|_| last = now());
        (last - began) / LOOKS
    });
    NANOSECONDS.get()
}

/// Processor time of the calling thread.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// When a call began, if anybody wants to know: one load.
#[inline(always)]
pub(super) fn begin() -> Option<u64> {
    LOOK.get().map(|_| now())
}

/// A call that began then has ended.
#[inline(always)]
pub(super) fn end(begin: Option<u64>) {
    if let Some((begin, look)) = begin.zip(LOOK.get()) {
        // Half of each look is outside of what the two tell.
        let spent = now() - begin + look;
        // A thread that is ending has nothing to count any more.
        let _ = NANOSECONDS.try_with(|sum| sum.set(sum.get() + spent));
    }
}
