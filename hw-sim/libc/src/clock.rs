//! The time of day, which jumps. No other clock does: that they never step back is promised.

use crate::FAULTS;
use hwsim_machine::fault::ProcessFault;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Looks so far. Relaxed: a count that stands for itself.
static LOOKS: AtomicU64 = AtomicU64::new(0);

static JUMPS: LazyLock<u64> = LazyLock::new(|| {
    let jump = |fault: &ProcessFault| match *fault {
        ProcessFault::TimeJumps(most) => Some(most),
        _ => None,
    };
    FAULTS.faults().iter().filter_map(jump).sum()
});

/// A time of day in nanoseconds, as this process sees it.
pub fn shown(right_ns: i128) -> i128 {
    if *JUMPS == 0 {
        return right_ns;
    }
    let look = LOOKS.fetch_add(1, Ordering::Relaxed);
    let jump = FAULTS.up_to(2 * *JUMPS, 3, look);
    right_ns + 1000 * (i128::from(jump) - i128::from(*JUMPS))
}
