//! The one lock between launches and what must not happen beside one.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held for reading by a launch, and for writing while things are freed.
static LAUNCHING: RwLock<()> = RwLock::new(());

/// Nothing is freed before this is dropped.
pub(super) fn launching() -> RwLockReadGuard<'static, ()> {
    LAUNCHING.read().unwrap_or_else(PoisonError::into_inner)
}

/// Nothing is launched before this is dropped. None while somebody launches.
pub(super) fn not_launching() -> Option<RwLockWriteGuard<'static, ()>> {
    LAUNCHING.try_write().ok()
}
