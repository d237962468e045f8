//! The proxy's end of lanes: what it submits waits in queues, and lanes take it when their turn
//! comes.

use ringdove::error::{TransportCause, TransportError};
use ringdove::id::{LaneId, Position};
use ringdove::transport::{Polled, Transfer, Transport};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// What an adapter says that has sent a message often enough.
pub const UNANSWERED: &str = "the adapter gives up: nobody acknowledges";

/// What became of a message that a lane gave its adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    /// The peer's adapter has it.
    Accepted,
    /// Nobody has acknowledged it.
    Lost,
    /// It is still on the way.
    OnTheWay,
    /// The queue pair is in error.
    Failed(String),
}

/// An adapter, as an engine and its lanes use it: lanes carry nothing before they are connected.
pub trait Links: Send {
    /// May this lane carry messages?
    fn is_open(&self, lane: usize) -> bool;

    /// A transfer needs the lane: its peer is to be connected.
    ///
    /// # Errors
    ///
    /// Why there will be no connection.
    fn request(&mut self, lane: LaneId) -> Result<(), TransportCause>;

    /// A lane gives the adapter its next message.
    ///
    /// # Errors
    ///
    /// A message that must not have been sent.
    fn carry(&mut self, lane: usize) -> Result<Carried, String>;
}

/// What was submitted and not taken up, by lane.
pub(super) struct Queues {
    /// Where lanes lead to ranks that only an adapter reaches.
    pub links: Option<Box<dyn Links>>,
    /// Why the transport cannot go on.
    failure: Option<TransportError>,
    waiting: Vec<VecDeque<Transfer>>,
    /// Lanes that are at a transfer.
    is_at_work: Vec<bool>,
    /// Transfers that are taken before submissions are refused.
    room: usize,
    completed: u64,
    /// Lanes that got something since somebody looked.
    pub touched: Vec<usize>,
}

impl Queues {
    pub fn new(lanes: usize, room: usize) -> Self {
        Self {
            links: None,
            failure: None,
            waiting: vec![VecDeque::new(); lanes],
            is_at_work: vec![false; lanes],
            room,
            completed: 0,
            touched: Vec::new(),
        }
    }

    pub fn is_busy(&self, lane: usize) -> bool {
        !self.waiting[lane].is_empty()
    }

    pub fn take(&mut self, lane: usize) -> Option<Transfer> {
        let transfer = self.waiting[lane].pop_front()?;
        self.is_at_work[lane] = true;
        Some(transfer)
    }

    /// The lane has done what it took.
    pub fn end(&mut self, lane: usize) {
        self.completed += u64::from(std::mem::take(&mut self.is_at_work[lane]));
    }

    /// A lane cannot go on with the transfer at this position, and nothing goes on behind it.
    pub fn fail(&mut self, lane: usize, position: Position, why: String) {
        self.waiting.iter_mut().for_each(VecDeque::clear);
        let (lane, cause) = (LaneId(lane as u32), TransportCause::Other(why));
        self.failure.get_or_insert(TransportError { lane, position, cause });
    }

    /// Is there a connection for a transfer? Asks for one.
    fn is_open(&mut self, transfer: &Transfer) -> Result<bool, TransportError> {
        let Some(links) = &mut self.links else { return Ok(true) };
        let Transfer { lane, position, .. } = *transfer;
        if links.is_open(lane.0 as usize) {
            return Ok(true);
        }
        let asked = links.request(lane).map(|()| false);
        asked.map_err(|cause| TransportError { lane, position, cause })
    }

    fn count(&self) -> usize {
        let at_work = self.is_at_work.iter().filter(|is| **is).count();
        self.waiting.iter().map(VecDeque::len).sum::<usize>() + at_work
    }
}

/// A transport whose transfers others carry out.
pub(super) struct Submitted(pub Arc<Mutex<Queues>>);

impl Transport for Submitted {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = queues.room.saturating_sub(queues.count()).min(batch.len());
        for (taken, transfer) in batch[..room].iter().enumerate() {
            if !queues.is_open(transfer)? {
                return Ok(taken);
            }
            let lane = transfer.lane.0 as usize;
            queues.waiting[lane].push_back(*transfer);
            queues.touched.push(lane);
        }
        Ok(room)
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &queues.failure {
            return Err(error.clone());
        }
        Ok(Polled { completed: std::mem::take(&mut queues.completed) })
    }
}
