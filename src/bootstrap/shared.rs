//! What a rank's owner and its task on the I/O thread share.

use crate::error::Error;
use crate::id::Rank;
use crate::lived::wait_while;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Called once, with the error that ended the job.
pub(super) type Observer = Box<dyn FnOnce(&Error) + Send>;

/// Called with what another rank sends, and that rank.
pub(super) type MessageHandler = Box<dyn FnMut(Rank, &[u8]) + Send>;

/// State of one rank, with the condition variable on which its owner waits.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    child_handler: Mutex<Option<MessageHandler>>,
    note_handlers: Mutex<Vec<MessageHandler>>,
    changed: Condvar,
}

/// Guarded by [`Shared`]; every change is one assignment, so a panic leaves it consistent.
#[derive(Default)]
pub(super) struct State {
    /// The tree stands.
    pub live: bool,
    /// The parent, if there is one; known once the tree stands.
    pub parent: Option<Rank>,
    /// The first error; it stays.
    pub failure: Option<Error>,
    /// Contributions of all ranks to the call that the owner waits for.
    pub result: Option<Vec<Vec<u8>>>,
    /// The neighbours know that the owner has left: its process may end.
    pub farewell: bool,
    /// The task has ended: nothing of it is left.
    pub gone: bool,
    /// What must outlive the neighbours.
    pub kept: Vec<Box<dyn Send>>,
    observers: Vec<Observer>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the owner.
    pub fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Keeps the first error, wakes the owner and notifies the observers. The task has then ended.
    pub fn fail(&self, error: &Error) {
        let observers = {
            let mut state = self.lock();
            (state.farewell, state.gone) = (true, true);
            if state.failure.is_some() {
                return;
            }
            state.failure = Some(error.clone());
            std::mem::take(&mut state.observers)
        };
        self.changed.notify_all();
        // Outside of the lock: an observer may ask for the state. One that panics keeps no other
        // from being notified.
        for observer in observers {
            if catch_unwind(AssertUnwindSafe(|| observer(error))).is_err() {
                tracing::error!("an observer of the control plane's failure panicked");
            }
        }
    }

    /// Has `observer` called on failure; at once if that has happened.
    pub fn observe(&self, observer: Observer) {
        let failure = {
            let mut state = self.lock();
            match &state.failure {
                None => return state.observers.push(observer),
                Some(failure) => failure.clone(),
            }
        };
        observer(&failure);
    }

    /// Has `handler` called with what child ranks send from now on.
    pub fn on_child_message(&self, handler: MessageHandler) {
        *lock(&self.child_handler) = Some(handler);
    }

    /// A child rank has sent `bytes`. They are dropped where there is no handler.
    pub fn receive(&self, from: Rank, bytes: &[u8]) {
        if let Some(handler) = lock(&self.child_handler).as_mut() {
            handler(from, bytes);
        }
    }

    /// Has `handler` called with the notes of other ranks from now on, beside those before.
    pub fn on_note(&self, handler: MessageHandler) {
        lock(&self.note_handlers).push(handler);
    }

    /// Rank `from` has sent a note. It is dropped where there is no handler.
    pub fn receive_note(&self, from: Rank, bytes: &[u8]) {
        lock(&self.note_handlers).iter_mut().for_each(|handler| handler(from, bytes));
    }

    /// Waits until `done` gives something, at most `limit`.
    pub fn wait<T>(
        &self,
        limit: Duration,
        mut done: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let mut value = None;
        let lacks = |state: &mut State| {
            value = done(state);
            value.is_none()
        };
        drop(wait_while(&self.changed, self.lock(), limit, lacks));
        value
    }
}

fn lock<T>(handler: &Mutex<T>) -> MutexGuard<'_, T> {
    handler.lock().unwrap_or_else(PoisonError::into_inner)
}
