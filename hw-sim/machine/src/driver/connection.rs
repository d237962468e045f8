//! Hardware queues: in-order queues that a context's streams share, where the profile bounds them.
//!
//! A command takes a ticket of its stream's queue when it is submitted, under the stream's lock, so
//! that the tickets of a stream's commands are in the stream's order. It runs when its turn has
//! come in the stream *and* in the queue: whoever is behind it in the queue waits for it, even if
//! it does nothing but wait itself.

use crate::client::Client;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The queues of a context.
pub(crate) struct Connections {
    /// Queues for each priority.
    count: usize,
    made: Mutex<BTreeMap<i32, Dealt>>,
}

/// The queues of one priority, and how many streams they were dealt to.
#[derive(Default)]
struct Dealt {
    queues: Vec<Arc<HardwareQueue>>,
    streams: usize,
}

impl Connections {
    /// So many queues for each priority.
    pub fn new(count: u32) -> Self {
        Self { count: count as usize, made: Mutex::default() }
    }

    /// The queue of a new stream: they are dealt out in turn.
    pub fn deal(&self, priority: i32) -> Arc<HardwareQueue> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let dealt = made.entry(priority).or_default();
        let index = dealt.streams % self.count;
        dealt.streams += 1;
        if index == dealt.queues.len() {
            dealt.queues.push(Arc::new(HardwareQueue { index, state: Mutex::default() }));
        }
        Arc::clone(&dealt.queues[index])
    }
}

/// An in-order queue.
pub(crate) struct HardwareQueue {
    /// Its place among those of its priority.
    pub index: usize,
    state: Mutex<ConnectionState>,
}

#[derive(Default)]
struct ConnectionState {
    /// Tickets given out, and the one whose turn it is.
    issued: u64,
    turn: u64,
    /// The stream whose command has the turn, once it runs.
    head: u64,
    /// Streams whose command has come to its turn in the stream, but not here.
    parked: BTreeMap<u64, Arc<dyn Client>>,
}

impl HardwareQueue {
    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ticket for a command.
    pub fn issue(&self) -> u64 {
        let mut state = self.lock();
        state.issued += 1;
        state.issued - 1
    }

    /// True if it is the ticket's turn; otherwise the stream is given back by [`Self::leave`]
    /// when it is.
    pub fn enter(&self, ticket: u64, stream: Arc<dyn Client>) -> bool {
        let mut state = self.lock();
        let turn = state.turn == ticket;
        if turn {
            state.head = stream.origin().stream;
        } else {
            state.parked.insert(ticket, stream);
        }
        turn
    }

    /// The command whose turn it is has ended: the stream whose command is next, if it is there.
    pub fn leave(&self) -> Option<Arc<dyn Client>> {
        let mut state = self.lock();
        state.turn += 1;
        let turn = state.turn;
        state.parked.remove(&turn)
    }

    /// Who has the turn, for people.
    pub fn describe(&self) -> String {
        let state = self.lock();
        let waiting = state.issued - state.turn;
        format!("queue {}, {waiting} commands long, headed by stream {}", self.index, state.head)
    }
}
