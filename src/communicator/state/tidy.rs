//! When what ranks give up may be freed: at a moment when no rank of this process runs a kernel.
//!
//! Freeing may wait for all GPUs that reach one another, and keep their engines from calling the
//! driver meanwhile; see `gpu::garbage`.

use super::launcher::Launcher;
use super::launching::not_launching;
use super::sync::lock;
use crate::gpu::collect_garbage;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The launchers of this process.
static LAUNCHERS: Mutex<Vec<Weak<Mutex<Launcher>>>> = Mutex::new(Vec::new());

/// The last part of a communicator to be dropped: frees what can be freed.
#[derive(Debug)]
pub(crate) struct Tidy {
    is_late: bool,
}

impl Tidy {
    /// For the rank that launches by `launcher`. `is_late`: not beside kernels of other ranks.
    pub fn new(launcher: &Arc<Mutex<Launcher>>, is_late: bool) -> Self {
        let mut launchers = lock(&LAUNCHERS);
        launchers.retain(|launcher| launcher.strong_count() > 0);
        launchers.push(Arc::downgrade(launcher));
        Self { is_late }
    }
}

impl Drop for Tidy {
    fn drop(&mut self) {
        if !self.is_late {
            return collect_garbage();
        }
        free_discarded();
    }
}

/// Frees the device memory that the library has given up, if none of its launches is under way in
/// this process. Every communicator that is dropped does so; a program that makes and drops
/// [`DeviceMemory`](crate::gpu::DeviceMemory) meanwhile asks for it.
pub fn free_discarded() {
    // Whoever launches now goes on, and the next one who asks frees.
    let Some(_none_launching) = not_launching() else { return };
    if all_idle() {
        collect_garbage();
    }
}

/// Have the launches of all ranks ended?
fn all_idle() -> bool {
    let launchers: Vec<_> = lock(&LAUNCHERS).iter().filter_map(Weak::upgrade).collect();
    launchers
        .iter()
        .all(|launcher| launcher.try_lock().is_ok_and(|launcher| launcher.wait(Duration::ZERO)))
}
