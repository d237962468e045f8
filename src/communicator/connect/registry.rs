//! The state that ranks of one process share, found by the unique id of their communicator.

use crate::bootstrap::UniqueId;
use crate::communicator::state::{Geometry, Posted, ProcessState};
use crate::topology::ranks::RankGpu;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The GPUs of ranks that are threads of this process; `None` where a GPU's links are not known.
pub(super) type Meeting = Posted<Option<RankGpu>>;

/// What something of each communicator of this process is kept in, as long as somebody uses it.
type Registry<T> = Mutex<Option<HashMap<UniqueId, Weak<T>>>>;

/// The state of this process for the communicator of `id`; whoever comes first makes it, with
/// `geometry`.
pub(super) fn process_of(id: &UniqueId, geometry: Geometry) -> Arc<ProcessState> {
    static PROCESSES: Registry<ProcessState> = Mutex::new(None);
    find(&PROCESSES, id, || ProcessState::new(geometry))
}

/// Where the threads of this process with ranks of the communicator of `id` tell each other of
/// their GPUs.
pub(super) fn meeting_of(id: &UniqueId, ranks: u32) -> Arc<Meeting> {
    static MEETINGS: Registry<Meeting> = Mutex::new(None);
    find(&MEETINGS, id, || Posted::new("the ranks of a communicator", ranks))
}

fn find<T>(registry: &Registry<T>, id: &UniqueId, make: impl FnOnce() -> T) -> Arc<T> {
    let mut all = registry.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_default();
    all.retain(|_, one| one.strong_count() > 0);
    if let Some(one) = all.get(id).and_then(Weak::upgrade) {
        return one;
    }
    let one = Arc::new(make());
    all.insert(*id, Arc::downgrade(&one));
    one
}
