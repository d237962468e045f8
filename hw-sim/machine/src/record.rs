//! Records of events: which of them streams have reached, and who waits for one.

use crate::client::Client;
use crate::error::{Error, Result};
use crate::looking::look_for;
use crate::memory::{IpcHandle, SharedWords};
use crate::wait_value::{Condition, WaitValue};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Which of the shared words is the number of the latest record.
const RECORDED: usize = 0;
/// Which is that of the latest complete one.
const COMPLETED: usize = 1;
/// How long a thread that waits for another process's record sleeps between looks: short at first,
/// twice as long each time, up to the second number.
const NAPS: [Duration; 2] = [Duration::from_micros(10), Duration::from_millis(1)];

/// The records of an event. Each has a number; all are complete when the latest is.
#[derive(Default)]
pub struct Records {
    state: Mutex<RecordState>,
    done: Condvar,
    /// The numbers of an interprocess event, which replace those in `state`.
    shared: Option<SharedWords>,
}

#[derive(Default)]
struct RecordState {
    recorded: u64,
    completed: u64,
    completed_ns: u64,
    waiting: Vec<(u64, Arc<dyn Client>)>,
}

impl Records {
    /// Those of an event that several processes have.
    pub(crate) fn shared(words: SharedWords) -> Self {
        Self { shared: Some(words), ..Self::default() }
    }

    /// A handle for other processes.
    pub(crate) fn export(&self) -> Result<IpcHandle> {
        match &self.shared {
            Some(words) => words.export(),
            None => Err(Error::InvalidHandle("not an interprocess event".into())),
        }
    }

    /// A new record's number.
    pub(crate) fn add(&self) -> u64 {
        match &self.shared {
            // Relaxed: numbers differ, whoever takes them; what is waited for is the other word.
            Some(words) => words.word(RECORDED).fetch_add(1, Ordering::Relaxed) + 1,
            None => {
                let mut state = self.state.lock().unwrap();
                state.recorded += 1;
                state.recorded
            }
        }
    }

    /// The latest record's number, 0 for none, and a new one's. Of one process's events alone.
    pub(crate) fn add_after(&self) -> (u64, u64) {
        let mut state = self.state.lock().unwrap();
        state.recorded += 1;
        (state.recorded - 1, state.recorded)
    }

    /// Is the record with this number complete? Of one process's events alone.
    pub(crate) fn has_reached(&self, number: u64) -> bool {
        self.state.lock().unwrap().completed >= number
    }

    /// The latest record's number, 0 for none.
    pub(crate) fn latest(&self) -> u64 {
        match &self.shared {
            // Relaxed: as in `add`.
            Some(words) => words.word(RECORDED).load(Ordering::Relaxed),
            None => self.state.lock().unwrap().recorded,
        }
    }

    /// The wait for the latest record, where it is one for a word in memory.
    pub(crate) fn wait_in_memory(&self) -> Option<WaitValue> {
        let words = self.shared.as_ref()?;
        let (address, condition) = (words.address(COMPLETED), Condition::AtLeast);
        Some(WaitValue { address, value: self.latest(), condition, wide: true })
    }

    /// Is the latest record complete?
    pub(crate) fn is_complete(&self) -> bool {
        if let Some(words) = &self.shared {
            let recorded = self.latest();
            // Acquire pairs with `complete`, in whatever process.
            return words.word(COMPLETED).load(Ordering::Acquire) >= recorded;
        }
        let state = self.state.lock().unwrap();
        state.completed >= state.recorded
    }

    /// Blocks until the record that is the latest now is complete.
    pub(crate) fn synchronize(&self) {
        if let Some(words) = &self.shared {
            let number = self.latest();
            let mut nap = NAPS[0];
            // As for every event, it is the recorder's stream that ends the wait. Acquire pairs
            // with `complete`.
            while words.word(COMPLETED).load(Ordering::Acquire) < number {
                std::thread::sleep(nap);
                nap = (2 * nap).min(NAPS[1]);
            }
            return;
        }
        let number = self.latest();
        if look_for(|| self.has_reached(number)) {
            return;
        }
        let mut state = self.state.lock().unwrap();
        while state.completed < number {
            state = self.done.wait(state).unwrap();
        }
    }

    /// When the latest record was completed, ns.
    pub(crate) fn completed_ns(&self) -> Result<u64> {
        let state = self.state.lock().unwrap();
        match state.recorded {
            0 => Err(Error::InvalidHandle("the event was never recorded".into())),
            latest if state.completed < latest => Err(Error::NotReady),
            _ => Ok(state.completed_ns),
        }
    }

    /// A stream reached the record with this number.
    pub(crate) fn complete(&self, number: u64, now_ns: u64) {
        if let Some(words) = &self.shared {
            // Release: who sees the number sees the stream's work before it. Pairs with
            // `is_complete`, `synchronize`, and `WaitValue::is_met`.
            words.word(COMPLETED).fetch_max(number, Ordering::Release);
            return;
        }
        let released: Vec<_> = {
            let mut state = self.state.lock().unwrap();
            if number > state.completed {
                state.completed = number;
                state.completed_ns = now_ns;
            }
            let completed = state.completed;
            self.done.notify_all();
            state.waiting.extract_if(.., |(wanted, _)| *wanted <= completed).collect()
        };
        for (_, client) in released {
            client.head_done();
        }
    }

    /// True if the record is complete; otherwise `client` is notified when it is.
    pub(crate) fn complete_or_notify(&self, number: u64, client: Arc<dyn Client>) -> bool {
        let mut state = self.state.lock().unwrap();
        let complete = state.completed >= number;
        if !complete {
            state.waiting.push((number, client));
        }
        complete
    }
}
