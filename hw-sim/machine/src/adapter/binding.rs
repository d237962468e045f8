//! How memory windows are made, bound, taken back and ended.

use super::access::Access;
use super::completion::CompletionStatus;
use super::error::{Result, VerbsError};
use super::region::Regions;
use super::window::{BindRequest, Binding, Party, Window, WindowKind, index};

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
