//! Memory windows: rights of peers over a part of a region, given and taken back by work requests.
//!
//! A window has an index, the upper 24 bits of its keys, for its whole life. The lower 8 bits change
//! with each binding, so that a key of an earlier one opens nothing. A window of type 1 serves every
//! queue pair of its protection domain, and each binding replaces the one before. A window of type
//! 2 is of the kind that the specification calls 2B: it serves the queue pair that bound it, and
//! has to be invalidated before it is bound anew. A window gives rights to peers alone, never to
//! requests of its own process.

use super::completion::CompletionStatus;
use super::error::{Result, VerbsError};
use super::region::{Access, Regions};

/// The bits of a key that a binding chooses.
const TAG: u32 = 0xff;

/// Which kind of window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowKind {
    /// Bound by `ibv_bind_mw`; the adapter chooses the key.
    One,
    /// Bound by a send request, which names the key.
    Two,
}

/// The queue pair on whose behalf memory is touched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Party {
    pub domain: u64,
    pub queue_pair: u32,
}

/// A request to bind a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindRequest {
    /// What kind of window the caller takes it for.
    pub kind: WindowKind,
    /// The key that opens the window from then on; its upper 24 bits name the window.
    pub key: u32,
    /// The key of the region.
    pub region: u32,
    /// Where in the region, as it was registered.
    pub address: u64,
    /// Bytes; none takes a window of type 1 back.
    pub length: u64,
    /// Rights of peers.
    pub access: Access,
}

/// A part of a region that a window opens.
#[derive(Debug)]
pub(super) struct Binding {
    pub region: u32,
    /// Where it begins in the region, as that was registered.
    pub start: u64,
    /// The address by which peers know the beginning.
    first: u64,
    length: u64,
    access: Access,
    queue_pair: Option<u32>,
}

/// A window.
#[derive(Debug)]
pub(super) struct Window {
    pub domain: u64,
    kind: WindowKind,
    key: u32,
    pub bound: Option<Binding>,
}

impl Window {
    /// The binding that gives this peer this right over the range, and the range's offset in it.
    pub fn opens(
        &self,
        party: Party,
        key: u32,
        (address, length): (u64, u64),
        need: Access,
    ) -> Option<(&Binding, u64)> {
        let bound = self.bound.as_ref()?;
        let offset = address.checked_sub(bound.first)?;
        let fits = offset <= bound.length && length <= bound.length - offset;
        let served = bound.queue_pair.is_none_or(|number| number == party.queue_pair);
        let may = self.key == key && self.domain == party.domain && served;
        (may && fits && bound.access.has(need)).then_some((bound, offset))
    }
}

/// The index that a window has in the table.
pub(super) fn index(key: u32) -> u32 {
    key & !TAG
}

/// Why a binding or an invalidation fails: the queue pair reports it as a completion.
const REFUSED: CompletionStatus = CompletionStatus::WindowBinding;

impl Regions {
    /// Makes a window, bound to nothing; gives its first key.
    pub fn make_window(&self, domain: u64, kind: WindowKind) -> u32 {
        let mut table = self.table.write().unwrap();
        let key = table.new_key();
        table.windows.insert(index(key), Window { domain, kind, key, bound: None });
        key
    }

    /// Ends a window, bound or not. When this returns, nobody uses it any more.
    pub fn end_window(&self, key: u32) -> Result<()> {
        match self.table.write().unwrap().windows.remove(&index(key)) {
            Some(_) => Ok(()),
            None => Err(VerbsError::Invalid(format!("no memory window has the key {key:#x}"))),
        }
    }

    /// Binds a window, as the adapter does when the request's turn has come.
    pub(super) fn bind(
        &self,
        party: Party,
        request: &BindRequest,
    ) -> std::result::Result<(), CompletionStatus> {
        let mut guard = self.table.write().unwrap();
        let table = &mut *guard;
        let window = table.windows.get_mut(&index(request.key)).ok_or(REFUSED)?;
        let two = window.kind == WindowKind::Two;
        if window.kind != request.kind || window.domain != party.domain {
            return Err(REFUSED);
        }
        if request.length == 0 && !two {
            (window.bound, window.key) = (None, request.key);
            return Ok(());
        }
        // A valid window of type 2 has to be invalidated first.
        if two && (window.bound.is_some() || request.length == 0) {
            return Err(REFUSED);
        }
        let region = table.regions.get(&request.region).ok_or(REFUSED)?;
        let offset = request.address.checked_sub(region.io_address).ok_or(REFUSED)?;
        let fits = offset <= region.length && request.length <= region.length - offset;
        let writes = request.access.0 & (Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0) != 0;
        let writable = !writes || region.access.has(Access::LOCAL_WRITE);
        let may = region.access.has(Access::BIND) && region.domain == party.domain;
        if !(fits && writable && may) || request.access.0 & !Access::OF_WINDOWS != 0 {
            return Err(REFUSED);
        }
        let zero_based = request.access.has(Access::ZERO_BASED);
        window.key = request.key;
        window.bound = Some(Binding {
            region: request.region,
            start: request.address,
            first: if zero_based { 0 } else { request.address },
            length: request.length,
            access: request.access,
            queue_pair: two.then_some(party.queue_pair),
        });
        Ok(())
    }

    /// Takes a window of type 2 back, on behalf of the queue pair that bound it.
    pub(super) fn invalidate(
        &self,
        party: Party,
        key: u32,
    ) -> std::result::Result<(), CompletionStatus> {
        let mut table = self.table.write().unwrap();
        let window = table.windows.get_mut(&index(key)).ok_or(REFUSED)?;
        let bound = window.bound.as_ref().ok_or(REFUSED)?;
        let own = bound.queue_pair == Some(party.queue_pair) && window.domain == party.domain;
        if window.key != key || !own {
            return Err(REFUSED);
        }
        window.bound = None;
        Ok(())
    }

    /// Takes back the windows that a queue pair bound and that serve it alone.
    pub(super) fn forget_queue_pair(&self, party: Party) {
        for window in self.table.write().unwrap().windows.values_mut() {
            let own = |bound: &Binding| bound.queue_pair == Some(party.queue_pair);
            if window.domain == party.domain && window.bound.as_ref().is_some_and(own) {
                window.bound = None;
            }
        }
    }
}
