//! The state that ranks of one process share, found by the unique id of their communicator.

use crate::bootstrap::UniqueId;
use crate::communicator::state::{Geometry, ProcessState};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The state of this process for the communicator of `id`; whoever comes first makes it, with
/// `geometry`.
pub(super) fn process_of(id: &UniqueId, geometry: Geometry) -> Arc<ProcessState> {
    static PROCESSES: Mutex<Option<HashMap<UniqueId, Weak<ProcessState>>>> = Mutex::new(None);
    let mut processes = PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
    let processes = processes.get_or_insert_default();
    processes.retain(|_, process| process.strong_count() > 0);
    if let Some(process) = processes.get(id).and_then(Weak::upgrade) {
        return process;
    }
    let process = Arc::new(ProcessState::new(geometry));
    processes.insert(*id, Arc::downgrade(&process));
    process
}
