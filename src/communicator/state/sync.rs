//! Locks, and tables that fill up.

use crate::error::Ranks;
use crate::id::Rank;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic of another thread: what the locks of a communicator protect stays
/// consistent, since every change of it is one assignment or one push.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ranks whose place in `places` is empty, for a message; `None` if there are none.
pub(crate) fn missing<T>(places: &[Option<T>]) -> Option<String> {
    let places = (0..).zip(places).filter(|(_, place)| place.is_none());
    let ranks: Vec<_> = places.map(|(rank, _)| Rank(rank)).collect();
    (!ranks.is_empty()).then(|| Ranks(&ranks).to_string())
}
