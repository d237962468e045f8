//! Hardware queues: in-order queues that a context's streams share, where the profile bounds them.
//!
//! An H100 (driver 580.159) was seen to do this. All streams of a context share its queues,
//! whatever their priority. A stream takes a queue when work comes to it while it has none, a free
//! one if there is one, and keeps it until its work has ended. A command leaves its queue when it
//! starts, so kernels of one queue that are independent run together. One that has to wait, for
//! the command before it in its stream or for what it is a wait for, stays, and all behind it in
//! the queue stay with it: if the head waits for whoever needs one of those, both wait for ever.
//!
//! A command takes a ticket of its stream's queue when it is submitted, under the stream's lock, so
//! that the tickets of a stream's commands are in the stream's order.

use crate::client::Client;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The queues of a context.
pub(crate) struct Connections {
    state: Mutex<Taken>,
}

/// How many streams have each queue now.
struct Taken {
    queues: Vec<(usize, Arc<HardwareQueue>)>,
    /// Where the search for the next one begins.
    next: usize,
}

impl Connections {
    /// So many queues.
    pub fn new(count: u32) -> Self {
        let queue = |index| (0, Arc::new(HardwareQueue { index, state: Mutex::default() }));
        let queues = (0..count as usize).map(queue).collect();
        Self { state: Mutex::new(Taken { queues, next: 0 }) }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue for a stream to which work has come: one that the fewest streams have.
    pub fn take(&self) -> Arc<HardwareQueue> {
        let mut state = self.lock();
        let (count, first) = (state.queues.len(), state.next);
        let in_turn = (0..count).map(|step| (first + step) % count);
        let index = in_turn.min_by_key(|&index| state.queues[index].0).unwrap_or(0);
        state.next = (index + 1) % count;
        state.queues[index].0 += 1;
        Arc::clone(&state.queues[index].1)
    }

    /// All work of a stream that had this queue has ended.
    pub fn give_back(&self, queue: &HardwareQueue) {
        self.lock().queues[queue.index].0 -= 1;
    }
}

/// An in-order queue.
pub(crate) struct HardwareQueue {
    /// Its place among those of its context.
    pub index: usize,
    state: Mutex<ConnectionState>,
}

#[derive(Default)]
struct ConnectionState {
    /// The ticket whose turn it is.
    turn: u64,
    /// The streams of the tickets that are out, from that one on.
    streams: VecDeque<u64>,
    /// Streams whose command has come to its turn in the stream, but not here.
    parked: BTreeMap<u64, Arc<dyn Client>>,
}

impl HardwareQueue {
    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ticket for a command of the stream with this number.
    pub fn issue(&self, stream: u64) -> u64 {
        let mut state = self.lock();
        state.streams.push_back(stream);
        state.turn + state.streams.len() as u64 - 1
    }

    /// True if it is the ticket's turn; otherwise the stream is given back by [`Self::leave`]
    /// when it is.
    pub fn enter(&self, ticket: u64, stream: Arc<dyn Client>) -> bool {
        let mut state = self.lock();
        let is_its_turn = state.turn == ticket;
        if !is_its_turn {
            state.parked.insert(ticket, stream);
        }
        is_its_turn
    }

    /// The command whose turn it is has left: the stream whose command is next, if it is there.
    pub fn leave(&self) -> Option<Arc<dyn Client>> {
        let mut state = self.lock();
        state.turn += 1;
        state.streams.pop_front();
        let turn = state.turn;
        state.parked.remove(&turn)
    }

    /// Who has the turn, for people.
    pub fn describe(&self) -> String {
        let state = self.lock();
        let (waiting, head) = (state.streams.len(), state.streams.front().copied().unwrap_or(0));
        format!("queue {}, {waiting} commands long, headed by stream {head}", self.index)
    }
}
