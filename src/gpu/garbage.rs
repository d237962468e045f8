//! What is freed later.
//!
//! Freeing device or pinned memory and unloading code may wait until all GPUs that reach one
//! another are idle, and meanwhile keep every other driver call of the process waiting. While a
//! kernel waits for an engine that makes such calls, neither would end. So what the library gives
//! up is kept, and freed at a moment when none of its kernels runs.

use std::sync::{Mutex, PoisonError};

/// What is kept, until it is dropped.
static KEPT: Mutex<Vec<Box<dyn Send>>> = Mutex::new(Vec::new());

/// Keeps `value` until somebody [collects](collect_garbage).
pub(crate) fn discard(value: impl Send + 'static) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(value));
}

/// Drops what was discarded. No kernel of the library runs.
pub(crate) fn collect_garbage() {
    // Out of the lock: what is dropped may discard something in its turn.
    loop {
        let kept = std::mem::take(&mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner));
        if kept.is_empty() {
            return;
        }
        drop(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Counts its drop, and discards another one then.
    struct Nested(Arc<AtomicU32>, bool);

    impl Drop for Nested {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            if self.1 {
                discard(Nested(self.0.clone(), false));
            }
        }
    }

    /// If this fails, memory is freed beside running kernels, or not at all.
    #[test]
    fn what_is_discarded_goes_when_somebody_collects() {
        let dropped = Arc::new(AtomicU32::new(0));
        discard(Nested(dropped.clone(), true));
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        collect_garbage();
        assert_eq!(dropped.load(Ordering::Relaxed), 2, "with what it discarded itself");
    }
}
