//! The thread that looks at error records and at records of expired waits (R10, R12), and halts the
//! channels of failed communicators. One serves the process. It is on no data path: if it did
//! not run, every byte would move as fast, and only errors would be reported later.

use super::attachment::Watched;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Its name, as the system shows it.
pub const THREAD_NAME: &str = "ringdove-watch";
/// How often host memory is looked at. It says when something has happened, in most cases.
const INTERVAL: Duration = Duration::from_millis(1);
/// Every so many looks the engine's own registers are read, across the bus: an engine whose fault
/// is that it cannot write host memory reports nothing.
const LOOKS_PER_READ: u32 = 64;

/// The watch. It ends with the last rank that it watches.
pub(super) struct WatchThread {
    shared: Arc<Shared>,
    thread: Thread,
    join: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    watched: Mutex<Vec<Arc<Watched>>>,
    stop: AtomicBool,
}

impl WatchThread {
    /// The process's watch, started if there is none.
    pub(super) fn running() -> Result<Arc<Self>> {
        static RUNNING: Mutex<Weak<WatchThread>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = running.upgrade() {
            return Ok(thread);
        }
        let started = Arc::new(Self::start()?);
        *running = Arc::downgrade(&started);
        Ok(started)
    }

    fn start() -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let body = shared.clone();
        let join = thread::Builder::new().name(THREAD_NAME.into()).spawn(move || body.run());
        let join = join.map_err(|cause| Error::System {
            what: format!("start of thread {THREAD_NAME}"),
            cause: cause.to_string(),
        })?;
        Ok(Self { shared, thread: join.thread().clone(), join: Some(join) })
    }

    pub(super) fn add(&self, watched: Arc<Watched>) {
        self.shared.lock().push(watched);
    }

    /// Nobody looks at `watched` any more when this returns.
    pub(super) fn remove(&self, watched: &Arc<Watched>) {
        self.shared.lock().retain(|other| !Arc::ptr_eq(other, watched));
    }
}

impl Drop for WatchThread {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
        if let Some(join) = self.join.take() {
            // A look never blocks, so this is soon. A panic there was printed there.
            drop(join.join());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Watched>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut looks = 0u32;
        // Relaxed: nothing is read on the strength of it, and unpark orders what matters.
        while !self.stop.load(Ordering::Relaxed) {
            looks = looks.wrapping_add(1);
            let thorough = looks.is_multiple_of(LOOKS_PER_READ);
            let now = Instant::now();
            for watched in self.lock().iter() {
                if thorough || watched.is_suspicious() {
                    watched.look(now);
                }
            }
            thread::park_timeout(INTERVAL);
        }
    }
}
