//! Memory windows: rights of peers over a part of a region, given and taken back by work requests.
//!
//! A window has an index, the upper 24 bits of its keys, for its whole life. The lower 8 bits
//! change with each binding, so that a key of an earlier one opens nothing. A window of type 1
//! serves every queue pair of its protection domain, and each binding replaces the one before. A
//! window of type 2 is of the kind that the specification calls 2B: it serves the queue pair that
//! bound it, and has to be invalidated before it is bound anew. A window gives rights to peers
//! alone, never to requests of its own process.

use super::access::Access;

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
    pub first: u64,
    pub length: u64,
    pub access: Access,
    /// The only queue pair that it serves, if not all of the domain.
    pub queue_pair: Option<u32>,
}

/// A window.
#[derive(Debug)]
pub(super) struct Window {
    pub domain: u64,
    pub kind: WindowKind,
    pub key: u32,
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
