//! Memory of graphs: addresses that are set aside when a node is made, and bytes of the GPU that
//! stand behind them from the node's turn on until they are freed.
//!
//! Two orders matter. In the order of calls an allocation is *held* from the launch of its graph to
//! the call that frees it: this decides what is refused. In the order of the GPU it *exists* from
//! its node's turn to the turn of what frees it: this decides which accesses are faults.

use super::table::{Allocation, AllocationKind};
use super::{GlobalMemory, Rights};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Who frees a graph's allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FreedBy {
    /// The program, by calls.
    #[default]
    Calls,
    /// A node of the same graph.
    OwnGraph,
    /// A node of another one.
    OtherGraph,
}

#[derive(Debug, Default)]
struct State {
    freed_by: FreedBy,
    /// Itself, for as long as it is held: the graph may go before the memory does.
    held: Option<Arc<Reservation>>,
}

/// Addresses on a GPU that a graph's node gives memory.
#[derive(Debug)]
pub struct Reservation {
    memory: Arc<GlobalMemory>,
    gpu: usize,
    context: u64,
    rights: Option<Arc<Rights>>,
    /// The first address.
    pub base: u64,
    /// How many there are.
    pub bytes: u64,
    state: Mutex<State>,
}

/// All reservations of a machine, and how much of its GPUs' memory stands behind them.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    by_address: Mutex<BTreeMap<u64, Weak<Reservation>>>,
    /// Bytes now, and at most since the mark was set back.
    used: Mutex<BTreeMap<usize, [u64; 2]>>,
}

impl Reservations {
    fn by_address(&self) -> MutexGuard<'_, BTreeMap<u64, Weak<Reservation>>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a reservation begin here?
    pub fn begins(&self, base: u64) -> bool {
        self.by_address().contains_key(&base)
    }

    fn count(&self, gpu: usize, change: impl FnOnce(&mut [u64; 2])) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        change(used.entry(gpu).or_default());
    }

    /// So many bytes more, or fewer, stand behind the reservations of a GPU.
    pub fn note(&self, gpu: usize, bytes: u64, taken: bool) {
        self.count(gpu, |[now, most]| {
            *now = if taken { *now + bytes } else { now.saturating_sub(bytes) };
            *most = (*most).max(*now);
        });
    }
}

impl GlobalMemory {
    /// The reservation that holds an address.
    pub fn reservation(&self, address: u64) -> Option<Arc<Reservation>> {
        let found = {
            let all = self.reservations.by_address();
            all.range(..=address).next_back().and_then(|(_, found)| found.upgrade())
        };
        // Here, for the end of the last one takes the lock.
        found.filter(|found| address - found.base < found.bytes)
    }

    /// Will there be memory for a graph at all of the bytes?
    pub fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        let found = self.reservation(address);
        found.is_some_and(|found| bytes <= found.base + found.bytes - address)
    }

    /// Memory of a GPU that graphs hold: now, and at most.
    pub fn used_by_graphs(&self, gpu: usize) -> [u64; 2] {
        let mut seen = [0; 2];
        self.reservations.count(gpu, |used| seen = *used);
        seen
    }

    /// A context is gone, and with it what its graphs held.
    pub(super) fn forget_reservations(&self, context: u64) {
        let all: Vec<_> =
            self.reservations.by_address().values().filter_map(Weak::upgrade).collect();
        // Outside of the lock: the end of the last one takes it.
        for own in all.iter().filter(|own| own.context == context) {
            drop(own.lock().held.take());
        }
    }

    /// Sets the mark of the most memory back to what is used now.
    pub fn reset_used_by_graphs(&self, gpu: usize) {
        self.reservations.count(gpu, |[now, most]| *most = *now);
    }
}

impl Reservation {
    /// Sets addresses of a GPU aside, for a context's graphs.
    pub fn new(
        memory: &Arc<GlobalMemory>,
        (gpu, context): (usize, u64),
        bytes: u64,
        rights: Option<Arc<Rights>>,
    ) -> Result<Arc<Self>> {
        let base = memory.arenas[gpu].reserve(memory.rounded(bytes))?;
        let reservation = Arc::new(Self {
            memory: Arc::clone(memory),
            gpu,
            context,
            rights,
            base,
            bytes,
            state: Mutex::default(),
        });
        memory.reservations.by_address().insert(base, Arc::downgrade(&reservation));
        Ok(reservation)
    }

    /// Its GPU.
    pub fn gpu(&self) -> usize {
        self.gpu
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node frees it, of the graph that allocates it or of another one; the two exclude each
    /// other.
    pub(crate) fn will_be_freed(&self, by_own_graph: bool) -> Result<()> {
        let mut state = self.lock();
        let by = if by_own_graph { FreedBy::OwnGraph } else { FreedBy::OtherGraph };
        let excluded = match state.freed_by {
            FreedBy::Calls => false,
            FreedBy::OwnGraph => true,
            FreedBy::OtherGraph => by_own_graph,
        };
        if excluded {
            let text = format!("the graph's memory at {:#x} is freed by a node already", self.base);
            return Err(Error::InvalidValue(text));
        }
        state.freed_by = by;
        Ok(())
    }

    /// Is it held, in the order of calls?
    pub(crate) fn is_held(&self) -> bool {
        self.lock().held.is_some()
    }

    /// Its graph is launched: it is held from now on.
    pub(crate) fn hold(self: &Arc<Self>) {
        self.lock().held = Some(Arc::clone(self));
    }

    /// A call frees it: it is held no more, and the caller sees to it that the memory goes in its
    /// turn. An error if it is not held.
    pub fn let_go(&self) -> Result<Arc<Self>> {
        self.lock().held.take().ok_or_else(|| {
            let text = format!("the graph's memory at {:#x} is not allocated", self.base);
            Error::InvalidValue(text)
        })
    }

    /// Its node's turn: from now on there is memory.
    pub(crate) fn begin(&self) -> Result<()> {
        self.memory.commit(self.gpu, self.memory.rounded(self.bytes))?;
        self.memory.reservations.note(self.gpu, self.bytes, true);
        let entry = Allocation {
            base: self.base,
            bytes: self.bytes,
            kind: AllocationKind::Device { gpu: self.gpu },
            id: 0,
            context: self.context,
            flags: 0,
            rights: self.rights.clone(),
        };
        if self.memory.table.insert(entry).is_none() {
            self.memory.uncommit(self.gpu, self.memory.rounded(self.bytes))?;
            let text = format!("the graph's memory at {:#x} is there already", self.base);
            return Err(Error::InvalidValue(text));
        }
        Ok(())
    }

    /// The turn of what frees it. Memory that is gone already, with its context, is what is wanted.
    pub fn end(&self) {
        let _ = self.memory.free(self.base);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.end();
        self.memory.reservations.by_address().remove(&self.base);
        let bytes = self.memory.rounded(self.bytes);
        self.memory.arenas[self.gpu].unreserve(self.base, bytes);
    }
}
