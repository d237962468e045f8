//! Completion queues.

use super::device::{AsyncEvent, Element, Events};
use super::users::Users;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// How a work request ended: the numbers of the verbs interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CompletionStatus {
    /// Done.
    Success = 0,
    /// A message longer than the memory of its receive request.
    LocalLength = 1,
    /// A defect of the queue pair itself.
    LocalOperation = 2,
    /// A local key, range or right that does not hold.
    LocalProtection = 4,
    /// Not done: the queue pair went into the error state.
    Flushed = 5,
    /// A window that could not be bound or taken back.
    WindowBinding = 6,
    /// The responder could not do what was asked.
    RemoteInvalidRequest = 9,
    /// A remote key, range or right that does not hold.
    RemoteAccess = 10,
    /// The responder failed.
    RemoteOperation = 11,
    /// The peer did not answer.
    RetryExceeded = 12,
    /// The peer had no receive request, time and again.
    ReceiverNotReady = 13,
    /// The adapter failed.
    Fatal = 19,
}

impl CompletionStatus {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Success,
        Self::LocalLength,
        Self::LocalOperation,
        Self::LocalProtection,
        Self::Flushed,
        Self::WindowBinding,
        Self::RemoteInvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperation,
        Self::RetryExceeded,
        Self::ReceiverNotReady,
        Self::Fatal,
    ];

    /// The status with this number.
    pub(super) fn from_number(number: u64) -> Self {
        Self::ALL.into_iter().find(|s| *s as u64 == number).unwrap_or(Self::Fatal)
    }

    /// The code of a vendor's own that goes with it. They follow the syndromes of common adapters,
    /// for people look those up.
    pub(super) fn vendor_code(self) -> u32 {
        match self {
            Self::Success => 0,
            Self::LocalLength => 0x21,
            Self::LocalOperation => 0x70,
            Self::LocalProtection => 0x51,
            Self::Flushed => 0xf9,
            Self::WindowBinding => 0x53,
            Self::RemoteInvalidRequest => 0x8a,
            Self::RemoteAccess => 0x88,
            Self::RemoteOperation => 0x89,
            Self::RetryExceeded => 0x81,
            Self::ReceiverNotReady => 0x87,
            Self::Fatal => 0xff,
        }
    }
}

/// Kinds of completed operations, with the numbers of the verbs interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// A send.
    Send = 0,
    /// An RDMA write.
    Write = 1,
    /// An RDMA read.
    Read = 2,
    /// A compare and swap.
    CompareSwap = 3,
    /// A fetch and add.
    FetchAdd = 4,
    /// A window was bound.
    Bind = 5,
    /// A window was taken back.
    LocalInvalidate = 6,
    /// A message was received.
    Receive = 128,
    /// An RDMA write with immediate data came in.
    ReceiveWrite = 129,
}

/// One completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The request's own number.
    pub id: u64,
    /// How it ended.
    pub status: CompletionStatus,
    /// Its operation.
    pub operation: Operation,
    /// The vendor's code for an error.
    pub vendor_code: u32,
    /// Bytes received.
    pub length: u32,
    /// Immediate data as it came, in network order.
    pub immediate: Option<u32>,
    /// The key of the window that the peer's message took back.
    pub invalidated: Option<u32>,
    /// The queue pair.
    pub queue_pair: u32,
    /// Who sent a datagram.
    pub sender: Option<Sender>,
}

/// The sender of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// Its queue pair.
    pub queue_pair: u32,
    /// Its port's local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The global route header lies in front of the data.
    pub is_global: bool,
}

impl Completion {
    /// A completion without data.
    pub(super) fn new(
        id: u64,
        operation: Operation,
        status: CompletionStatus,
        queue_pair: u32,
    ) -> Self {
        let vendor_code = status.vendor_code();
        Self {
            id,
            status,
            operation,
            vendor_code,
            length: 0,
            immediate: None,
            invalidated: None,
            queue_pair,
            sender: None,
        }
    }
}

/// Polls in vain, of a thread, before each further one gives the processor away. Programs poll two
/// queues in turns while they wait for one message, for less than a microsecond each time.
const EMPTY_POLLS_MAX: u32 = 64;
/// The same while a request waits for its peer. A peer that polls answers within two microseconds,
/// some 16 polls; of one that does not, the service thread has to answer, and may want a processor.
const UNANSWERED_POLLS_MAX: u32 = 16;

thread_local! {
    /// How often in a row this thread has polled in vain, whichever queues.
    static EMPTY_POLLS: Cell<u32> = const { Cell::new(0) };
}

const UNARMED: u8 = 0;
const ARMED_SOLICITED: u8 = 1;
const ARMED: u8 = 2;

/// A queue pair, as the queue that it completes in knows it: who polls the queue plays its part of
/// the adapter.
pub(super) trait Polled: Send + Sync {
    /// Moves messages as far as they go, as a thread that polls. True if requests of its own have
    /// set off and their peer has not answered.
    fn progress_by_poll(&self) -> bool;
    /// The program will sleep: from now on the service thread is to be woken.
    fn poller_leaves(&self);
}

/// A completion queue.
pub struct CompletionQueue {
    entries: Mutex<VecDeque<Completion>>,
    capacity: std::sync::atomic::AtomicUsize,
    armed: AtomicU8,
    /// Polls since the last one that found something.
    overrun: AtomicBool,
    /// The queue pairs that complete here; polling plays their part of the adapter.
    users: Users<dyn Polled>,
    events: Arc<dyn Events>,
    /// The owner's identifier of this queue.
    handle: u64,
}

impl CompletionQueue {
    /// A queue for `capacity` completions.
    pub fn new(capacity: usize, handle: u64, events: Arc<dyn Events>) -> Arc<Self> {
        Arc::new(Self {
            entries: Mutex::default(),
            capacity: capacity.into(),
            armed: AtomicU8::new(UNARMED),
            overrun: AtomicBool::new(false),
            users: Users::default(),
            events,
            handle,
        })
    }

    pub(super) fn add_user(&self, user: Weak<dyn Polled>) {
        self.users.add(user);
    }

    pub(super) fn remove_user(&self, user: &(dyn Polled + 'static)) {
        self.users.remove(user);
    }

    /// Does a queue pair complete here?
    pub fn is_used(&self) -> bool {
        !self.users.is_empty()
    }

    /// Changes the capacity; false if more are waiting than would fit.
    pub fn resize(&self, capacity: usize) -> bool {
        let entries = self.entries.lock().unwrap();
        let fits = entries.len() <= capacity;
        if fits {
            self.capacity.store(capacity, Ordering::Relaxed);
        }
        fits
    }

    /// Adds a completion. False if the queue overran: it is lost, and the queue pair is in error.
    pub(super) fn push(&self, completion: Completion, solicited: bool) -> bool {
        let mut entries = self.entries.lock().unwrap();
        if entries.len() >= self.capacity.load(Ordering::Relaxed) {
            drop(entries);
            // Relaxed: the event is raised once, and orders nothing.
            if !self.overrun.swap(true, Ordering::Relaxed) {
                self.events.raise(AsyncEvent::CompletionQueueError, Element::Queue(self.handle));
            }
            return false;
        }
        entries.push_back(completion);
        drop(entries);
        let urgent = solicited || completion.status != CompletionStatus::Success;
        let wanted = if urgent { ARMED_SOLICITED } else { ARMED };
        // Pairs with `arm`: a completion after it sees the request, one before it is found by the
        // poll that programs do after they have armed the queue.
        if self.armed.load(Ordering::SeqCst) >= wanted
            && self.armed.swap(UNARMED, Ordering::SeqCst) >= wanted
        {
            self.events.completed(self.handle);
        }
        true
    }

    /// Takes completions out; at most as many as `out` holds.
    ///
    /// Polling also moves messages: a thread that polls needs no other thread to be scheduled.
    pub fn poll(&self, limit: usize, mut out: impl FnMut(Completion)) -> usize {
        let mut taken = self.take(limit, &mut out);
        let mut awaits = false;
        if taken == 0 {
            for user in self.users.all() {
                awaits |= user.progress_by_poll();
            }
            taken = self.take(limit, &mut out);
        }
        // Who polls in vain lets others run: the adapters are played by the same processors that
        // the program spins on. Counted for the thread: of two queues that it polls one may stay
        // empty while messages come to the other.
        let empty = if taken > 0 { 0 } else { EMPTY_POLLS.get().saturating_add(1) };
        EMPTY_POLLS.set(empty);
        if empty > if awaits { UNANSWERED_POLLS_MAX } else { EMPTY_POLLS_MAX } {
            std::thread::yield_now();
        }
        taken
    }

    fn take(&self, limit: usize, out: &mut impl FnMut(Completion)) -> usize {
        let mut entries = self.entries.lock().unwrap();
        let count = limit.min(entries.len());
        entries.drain(..count).for_each(out);
        count
    }

    /// Asks for an event with the next completion, or the next solicited one.
    pub fn arm(&self, solicited_only: bool) {
        // A request for any completion is not weakened by a later one for solicited ones.
        let armed = if solicited_only { ARMED_SOLICITED } else { ARMED };
        self.armed.fetch_max(armed, Ordering::SeqCst);
        // The program is going to sleep: nobody else plays the adapter now.
        for user in self.users.all() {
            user.poller_leaves();
        }
        // As drivers of real adapters do: what has come since the program's last poll is told, too.
        // Some programs do not look again once they have asked.
        if !solicited_only
            && !self.entries.lock().unwrap().is_empty()
            && self.armed.swap(UNARMED, Ordering::SeqCst) >= ARMED
        {
            self.events.completed(self.handle);
        }
    }

    /// Forgets completions of a queue pair that is reset or destroyed.
    pub(super) fn forget(&self, queue_pair: u32) {
        self.entries.lock().unwrap().retain(|entry| entry.queue_pair != queue_pair);
    }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue").field("handle", &self.handle).finish_non_exhaustive()
    }
}
