//! The registration cache: allocations that a program sends from and receives into, which the
//! library registers by itself, and forgets when they are gone.
//!
//! What is kept is the driver's number of an allocation (`CU_POINTER_ATTRIBUTE_BUFFER_ID`) beside
//! its address: memory that was allocated later at the same address has another number, and is
//! never
//! taken for what is registered. Entries go only while nothing of this rank runs: launches that
//! wait in a stream may still use them.

use crate::communicator::connect::ConnectedRank;
use crate::communicator::state::{CachedRange, Launcher, RegisteredPlace};
use crate::gpu::{Allocation, Current};
use std::time::Duration;

/// How long a call waits to find that nothing runs, where the cache is full.
const PATIENCE: Duration = Duration::from_millis(1);

/// Is there a cache? Not for several ranks of a process: registering may wait for the GPUs, on
/// which a kernel of another one may wait for this rank's next call.
pub(super) fn is_used(rank: &ConnectedRank) -> bool {
    rank.settings.registration_cache > 0 && rank.process.local_count() == 1
}

/// Where `address` lies in its allocation, which is registered if there is room.
pub(super) fn place(
    rank: &ConnectedRank,
    launcher: &mut Launcher,
    current: &Current,
    address: u64,
    allocation: &Allocation,
) -> Option<RegisteredPlace> {
    let most = rank.settings.registration_cache;
    if !allocation.on_device {
        return None;
    }
    if launcher.cached.len() >= most || launcher.cached.iter().any(|it| !is_there(it, current)) {
        make_room(rank, launcher, current, most);
    }
    if launcher.cached.len() >= most {
        return None;
    }
    let Allocation { start, bytes, id, .. } = *allocation;
    let registered = rank.register_for_itself(launcher, start, bytes, id);
    match registered {
        Ok(registration) => {
            let entry = CachedRange { registration: registration.0, start, allocation: id };
            launcher.cached.push(entry);
            let (registration, offset) = (registration.0, address - start);
            Some(RegisteredPlace { registration, offset })
        }
        Err(error) => {
            tracing::debug!(%error, rank = rank.rank().0, "not registered by itself");
            None
        }
    }
}

/// Forgets what is gone, and then what was registered first, until there is room for one more.
fn make_room(rank: &ConnectedRank, launcher: &mut Launcher, current: &Current, most: usize) {
    if !launcher.wait(PATIENCE) {
        return;
    }
    let entries = std::mem::take(&mut launcher.cached);
    let (mut kept, gone): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| is_there(entry, current));
    let too_many = (kept.len() + 1).saturating_sub(most);
    let oldest: Vec<CachedRange> = kept.drain(..too_many).collect();
    launcher.cached = kept;
    for entry in gone.into_iter().chain(oldest) {
        if let Err(error) = rank.forget_unused(launcher, entry.registration) {
            tracing::debug!(%error, rank = rank.rank().0, "a cached registration stays");
        }
    }
}

/// Is the allocation that was registered still the one at its address?
fn is_there(entry: &CachedRange, current: &Current) -> bool {
    current.allocation(entry.start).is_some_and(|allocation| allocation.id == entry.allocation)
}
