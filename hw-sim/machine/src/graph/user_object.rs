//! Objects of programs that live as long as the graphs that use them.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Ends the object.
type End = Box<dyn FnOnce() + Send>;

/// An object of a program. It ends with its last reference.
pub struct UserObject {
    /// Never used twice.
    pub id: u64,
    state: Mutex<State>,
}

struct State {
    references: u64,
    end: Option<End>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl UserObject {
    /// An object with this many references of its program.
    pub fn new(references: u64, end: End) -> Arc<Self> {
        let state = Mutex::new(State { references, end: Some(end) });
        Arc::new(Self { id: NEXT_ID.fetch_add(1, Ordering::Relaxed), state })
    }

    /// More references. An object that has ended has none to copy.
    pub fn retain(&self, count: u64) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.references == 0 {
            return Err(Error::InvalidValue("the object has no reference left".into()));
        }
        state.references = state.references.saturating_add(count);
        Ok(())
    }

    /// Fewer references; true if the object has ended.
    pub fn release(&self, count: u64) -> Result<bool> {
        let end = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(left) = state.references.checked_sub(count) else {
                let (has, wanted) = (state.references, count);
                let text = format!("{wanted} references of an object that has {has}");
                return Err(Error::InvalidValue(text));
            };
            state.references = left;
            if left > 0 {
                return Ok(false);
            }
            state.end.take()
        };
        // Outside of the lock: it is the program's code.
        if let Some(end) = end {
            end();
        }
        Ok(true)
    }
}

/// References that a graph, or an executable one, holds.
#[derive(Default)]
pub(super) struct Held(BTreeMap<u64, (Arc<UserObject>, u64)>);

impl Held {
    /// Takes references over from whoever had them.
    pub fn add(&mut self, object: &Arc<UserObject>, count: u64) {
        self.0.entry(object.id).or_insert_with(|| (Arc::clone(object), 0)).1 += count;
    }

    /// Hands references over to whoever calls, who releases them.
    pub fn take(&mut self, object: &Arc<UserObject>, count: u64) -> Result<()> {
        let held = self.0.get_mut(&object.id).filter(|(_, held)| *held >= count);
        let Some((_, held)) = held else {
            return Err(Error::InvalidValue("the graph holds fewer references".into()));
        };
        *held -= count;
        if *held == 0 {
            self.0.remove(&object.id);
        }
        Ok(())
    }

    /// The same references once more.
    pub fn duplicate(&self) -> Self {
        for (object, count) in self.0.values() {
            // Cannot fail: this holds references of it.
            let _ = object.retain(*count);
        }
        Self(self.0.clone())
    }

    /// The references of another, too.
    pub fn extend(&mut self, mut other: Self) {
        for (object, count) in std::mem::take(&mut other.0).into_values() {
            self.add(&object, count);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (object, count) in self.0.values() {
            // Cannot fail: this holds references of it.
            let _ = object.release(*count);
        }
    }
}
