//! The proxy's end of lanes: what it submits waits in queues, and lanes take it when their turn
//! comes.

use ringdove::error::TransportError;
use ringdove::transport::{Polled, Transfer, Transport};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// What was submitted and not taken up, by lane.
pub(super) struct Queues {
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
        for transfer in &batch[..room] {
            let lane = transfer.lane.0 as usize;
            queues.waiting[lane].push_back(*transfer);
            queues.touched.push(lane);
        }
        Ok(room)
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Polled { completed: std::mem::take(&mut queues.completed) })
    }
}
