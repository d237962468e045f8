//! Handles that programs hold. They are numbers into tables, never addresses, so that a stale or
//! made-up handle is an error and not a crash.

use super::code::{CONTEXT_IS_DESTROYED, INVALID_HANDLE, Outcome, refuse};
use std::sync::{Arc, RwLock};

/// A handle as C sees it: an opaque pointer.
pub(crate) type Handle = u64;

const INDEX_BITS: u32 = 24;
const KIND_SHIFT: u32 = 40;

/// Kind of object of a handle; part of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum HandleKind {
    Context = 1,
    Stream = 2,
    Event = 3,
    Module = 4,
    Function = 5,
    Library = 6,
    Kernel = 7,
    Pool = 8,
    Graph = 9,
    GraphNode = 10,
    Executable = 11,
    UserObject = 12,
    Linker = 13,
    PhysicalMemory = 14,
}

struct Slot<T> {
    generation: u64,
    value: Option<Arc<T>>,
}

struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

/// The handles of one kind.
pub(crate) struct Handles<T> {
    kind: HandleKind,
    slots: RwLock<Slots<T>>,
}

impl<T> Handles<T> {
    pub const fn new(kind: HandleKind) -> Self {
        Self { kind, slots: RwLock::new(Slots { slots: Vec::new(), free: Vec::new() }) }
    }

    /// A handle for a value. Generations start at 1 and come back after 65535 uses of a slot.
    pub fn add(&self, value: Arc<T>) -> Handle {
        let mut table = self.slots.write().unwrap();
        let index = table.free.pop().unwrap_or_else(|| {
            table.slots.push(Slot { generation: 0, value: None });
            table.slots.len() - 1
        });
        let slot = &mut table.slots[index];
        slot.generation = slot.generation % 0xffff + 1;
        slot.value = Some(value);
        (self.kind as u64) << KIND_SHIFT | slot.generation << INDEX_BITS | index as u64
    }

    fn split(&self, handle: Handle) -> Option<(usize, u64)> {
        let index = handle & ((1 << INDEX_BITS) - 1);
        let generation = handle >> INDEX_BITS & 0xffff;
        (handle >> KIND_SHIFT == self.kind as u64).then_some((index as usize, generation))
    }

    /// Every object that has a handle.
    pub fn all(&self) -> Vec<Arc<T>> {
        let table = self.slots.read().unwrap();
        table.slots.iter().filter_map(|slot| slot.value.clone()).collect()
    }

    /// The object of a handle.
    pub fn find(&self, handle: Handle) -> Option<Arc<T>> {
        let (index, generation) = self.split(handle)?;
        let table = self.slots.read().unwrap();
        let slot = table.slots.get(index)?;
        slot.value.clone().filter(|_| slot.generation == generation)
    }

    /// The object of a handle, or the error for an invalid one.
    pub fn get(&self, handle: Handle) -> Outcome<Arc<T>> {
        match self.find(handle) {
            Some(value) => Ok(value),
            None => refuse(INVALID_HANDLE, format!("{:?} handle {handle:#x}", self.kind)),
        }
    }

    /// Takes a handle back.
    pub fn remove(&self, handle: Handle) -> Outcome<Arc<T>> {
        let found = self.split(handle).and_then(|(index, generation)| {
            let mut table = self.slots.write().unwrap();
            let slot = table.slots.get_mut(index)?;
            let value = slot.value.take_if(|_| slot.generation == generation)?;
            table.free.push(index);
            Some(value)
        });
        match found {
            Some(value) => Ok(value),
            None => refuse(INVALID_HANDLE, format!("{:?} handle {handle:#x}", self.kind)),
        }
    }

    /// As [`Handles::get`], with the error for a context that is gone.
    pub fn get_context(&self, handle: Handle) -> Outcome<Arc<T>> {
        match self.find(handle) {
            Some(value) => Ok(value),
            None => refuse(CONTEXT_IS_DESTROYED, format!("context {handle:#x} is gone")),
        }
    }

    /// The handle of a value that `matches`.
    pub fn handle_where(&self, matches: impl Fn(&T) -> bool) -> Option<Handle> {
        let table = self.slots.read().unwrap();
        table.slots.iter().enumerate().find_map(|(index, slot)| {
            slot.value.as_ref().filter(|value| matches(value))?;
            Some((self.kind as u64) << KIND_SHIFT | slot.generation << INDEX_BITS | index as u64)
        })
    }

    /// Takes back all handles whose value `matches`.
    pub fn remove_all(&self, matches: impl Fn(&T) -> bool) {
        let removed: Vec<Arc<T>> = {
            let table = &mut *self.slots.write().unwrap();
            let mut removed = Vec::new();
            for (index, slot) in table.slots.iter_mut().enumerate() {
                if let Some(value) = slot.value.take_if(|value| matches(value)) {
                    removed.push(value);
                    table.free.push(index);
                }
            }
            removed
        };
        // Outside the lock, as the end of a value may end others.
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_foreign_handles_are_refused() {
        let streams: Handles<u32> = Handles::new(HandleKind::Stream);
        let events: Handles<u32> = Handles::new(HandleKind::Event);
        let first = streams.add(Arc::new(1));
        let other = events.add(Arc::new(9));
        assert_eq!(*streams.get(first).unwrap(), 1);
        assert!(streams.get(other).is_err());
        assert!(streams.get(0).is_err() && streams.get(u64::MAX).is_err());
        streams.remove(first).unwrap();
        assert!(streams.remove(first).is_err(), "removed twice");
        let second = streams.add(Arc::new(2));
        assert_ne!(first, second, "a slot that is used again has a new handle");
        assert!(streams.get(first).is_err());
        streams.remove_all(|value| *value == 2);
        assert!(streams.get(second).is_err());
    }
}
