//! What a process has its virtual GPUs do, counted where a report is wanted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What became of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelTally {
    /// Its launches, those of graphs too.
    pub launches: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Instructions of its warps, those of a warp that a fault stopped in the middle left out.
    pub instructions: u64,
}

static ON: AtomicBool = AtomicBool::new(false);
static COPIED: AtomicU64 = AtomicU64::new(0);
static FILLED: AtomicU64 = AtomicU64::new(0);
static KERNELS: Mutex<BTreeMap<String, KernelTally>> = Mutex::new(BTreeMap::new());

/// Counts from now on.
pub fn start() {
    // Relaxed, as all here: the counts are read when nothing runs any more.
    ON.store(true, Ordering::Relaxed);
}

/// Is anything counted?
#[inline(always)]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

fn kernels_now() -> MutexGuard<'static, BTreeMap<String, KernelTally>> {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(kernel: &str, change: impl FnOnce(&mut KernelTally)) {
    let mut kernels = kernels_now();
    match kernels.get_mut(kernel) {
        Some(tally) => change(tally),
        None => change(kernels.entry(kernel.to_owned()).or_default()),
    }
}

/// A kernel starts.
#[cold]
pub(crate) fn launched(kernel: &str, blocks: u64) {
    note(kernel, |tally| {
        tally.launches += 1;
        tally.blocks += blocks;
    });
}

/// A block of it has run for so many instructions.
#[cold]
pub(crate) fn ran(kernel: &str, instructions: u64) {
    note(kernel, |tally| tally.instructions += instructions);
}

/// Bytes were copied, or filled.
#[cold]
pub(crate) fn moved(bytes: u64, is_fill: bool) {
    let count = if is_fill { &FILLED } else { &COPIED };
    count.fetch_add(bytes, Ordering::Relaxed);
}

/// The kernels so far, by name.
pub fn kernels() -> BTreeMap<String, KernelTally> {
    kernels_now().clone()
}

/// Bytes that copies and fills moved so far.
pub fn bytes() -> (u64, u64) {
    (COPIED.load(Ordering::Relaxed), FILLED.load(Ordering::Relaxed))
}
