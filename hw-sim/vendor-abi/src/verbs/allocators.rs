//! Memory that programs give for queues: a parent domain's functions allocate and free it.
//!
//! A virtual adapter's queues are the process's own, and nobody else looks into them. So the memory
//! is asked for as drivers of real adapters ask for it, with sizes of theirs, is held as long as
//! the queue, and is given back; nothing is written into it.

use super::domains::DomainObject;
use super::layout::IbvQpCap;
use super::pointer::Object;

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;
/// Buffers of queues are whole pages, and begin with one.
const PAGE_BYTES: usize = 4096;
/// Entries of queues are so large, or a multiple of it.
const ENTRY_BYTES: usize = 64;
/// What an entry of a send queue says beside its pieces, and bytes of a piece.
const HEAD_BYTES: usize = 48;
const PIECE_BYTES: usize = 16;

/// Allocates: domain, its context, bytes, alignment, what for. Null is a failure.
pub(super) type Allocate =
    unsafe extern "C" fn(Object<DomainObject>, usize, usize, usize, u64) -> Option<NonNull>;
/// Frees: domain, its context, memory, what for.
pub(super) type Free = unsafe extern "C" fn(Object<DomainObject>, usize, NonNull, u64);
pub(super) type NonNull = std::num::NonZero<usize>;

/// What memory is for: the lower half of the number that a function is told. The upper half is the
/// driver, 0 as no list names this one. The codes are those of the driver for NVIDIA's adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Resource {
    QueuePair = 1,
    SharedReceiveQueue = 4,
    CompletionQueue = 5,
}

/// The functions of a parent domain.
#[derive(Clone, Copy)]
pub(super) struct Allocators {
    allocate: Allocate,
    free: Free,
    context: usize,
}

impl Allocators {
    /// Those that a program names, if it names both; as drivers of real adapters have it.
    pub fn new(allocate: Option<Allocate>, free: Option<Free>, context: usize) -> Option<Self> {
        Some(Self { allocate: allocate?, free: free?, context })
    }
}

/// The memory of a queue, which keeps its parent domain.
pub(super) struct Memory {
    domain: Object<DomainObject>,
    resource: Resource,
    /// What the program has given; none if the provider's own is to be used.
    given: Option<(NonNull, Allocators)>,
}

impl Memory {
    /// Asks the domain's functions for so many bytes. None if they give none.
    pub fn new(domain: Object<DomainObject>, resource: Resource, bytes: usize) -> Option<Self> {
        domain.get().enter();
        let mut memory = Self { domain, resource, given: None };
        let Some(functions) = domain.get().allocators else { return Some(memory) };
        let Allocators { allocate, context, .. } = functions;
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        // SAFETY: the program has named the function for this call, with these arguments.
        let given = unsafe { allocate(domain, context, bytes, PAGE_BYTES, resource as u64) }?;
        memory.given = (given.get() != USE_DEFAULT).then_some((given, functions));
        Some(memory)
    }

    /// The domain that has given it.
    pub fn domain(&self) -> Object<DomainObject> {
        self.domain
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some((given, Allocators { free, context, .. })) = self.given {
            // SAFETY: as in `new`; the memory is what the program gave, and freed once. The domain
            // is there, for it does not end before `leave`.
            unsafe { free(self.domain, context, given, self.resource as u64) };
        }
        self.domain.get().leave();
    }
}

/// Bytes of the queues of a queue pair.
pub(super) fn pair_bytes(sizes: &IbvQpCap) -> usize {
    let pieces = (sizes.send_pieces as usize * PIECE_BYTES).max(sizes.inline as usize);
    let send = queue_bytes(sizes.send_requests, HEAD_BYTES + pieces);
    send + receive_bytes(sizes.receive_requests, sizes.receive_pieces)
}

/// Bytes of a receive queue.
pub(super) fn receive_bytes(requests: u32, pieces: u32) -> usize {
    queue_bytes(requests, pieces as usize * PIECE_BYTES)
}

/// Bytes of a completion queue.
pub(super) fn completion_bytes(capacity: u32) -> usize {
    queue_bytes(capacity, ENTRY_BYTES)
}

fn queue_bytes(entries: u32, entry: usize) -> usize {
    entries as usize * entry.next_multiple_of(ENTRY_BYTES)
}
