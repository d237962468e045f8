//! Two transports as one: lanes to ranks of the same node, and lanes to all others.

use super::{Polled, Transfer, Transport};
use crate::error::TransportError;
use crate::id::LaneId;

/// Sends each transfer to the transport that serves its lane. Lanes keep their order, since each
/// is served by one of the two; across lanes there is none (R11).
#[derive(Debug)]
pub struct Split<Near, Far> {
    near: Near,
    far: Far,
    /// By lane.
    is_far: Vec<bool>,
}

impl<Near: Transport, Far: Transport> Split<Near, Far> {
    /// `far` serves the lanes of `far_lanes`, `near` all others.
    pub fn new(near: Near, far: Far, far_lanes: &[LaneId]) -> Self {
        let mut is_far = Vec::new();
        for lane in far_lanes {
            let index = lane.0 as usize;
            is_far.resize(is_far.len().max(index + 1), false);
            is_far[index] = true;
        }
        Self { near, far, is_far }
    }

    fn is_far(&self, transfer: &Transfer) -> bool {
        self.is_far.get(transfer.lane.0 as usize).copied().unwrap_or(false)
    }
}

impl<Near: Transport, Far: Transport> Transport for Split<Near, Far> {
    /// In runs of one side, so that each side still sees batches. Back-pressure of one side ends
    /// the batch: what stands behind may belong to the same lane.
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        let mut taken = 0;
        while let Some(first) = batch.get(taken) {
            let is_far = self.is_far(first);
            let rest = &batch[taken..];
            let count = rest.iter().take_while(|next| self.is_far(next) == is_far).count();
            let accepted = match is_far {
                true => self.far.submit(&rest[..count])?,
                false => self.near.submit(&rest[..count])?,
            };
            taken += accepted;
            if accepted < count {
                break;
            }
        }
        Ok(taken)
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        let (near, far) = (self.near.poll()?, self.far.poll()?);
        Ok(Polled { completed: near.completed + far.completed })
    }

    fn listens(&self) -> bool {
        self.near.listens() || self.far.listens()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many as it has room for, and completes them at the next poll.
    #[derive(Default)]
    struct Bounded {
        room: usize,
        taken: Vec<u64>,
        completed: u64,
    }

    impl Transport for Bounded {
        fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
            let count = batch.len().min(self.room);
            self.room -= count;
            self.taken.extend(batch[..count].iter().map(|transfer| transfer.position.0));
            self.completed += count as u64;
            Ok(count)
        }

        fn poll(&mut self) -> Result<Polled, TransportError> {
            Ok(Polled { completed: std::mem::take(&mut self.completed) })
        }
    }

    /// If this fails, transfers are lost, doubled or out of order where one side is full.
    #[test]
    fn each_side_gets_its_lanes_in_order_and_back_pressure_stops_the_batch() {
        let side = |room| Bounded { room, ..Bounded::default() };
        let mut split = Split::new(side(8), side(2), &[LaneId(1), LaneId(3)]);
        let lanes = [0, 1, 1, 0, 3, 0, 7];
        let batch: Vec<_> = (0..).zip(lanes).map(|(at, lane)| Transfer::empty(lane, at)).collect();
        assert_eq!(split.submit(&batch).unwrap(), 4);
        assert_eq!(split.poll().unwrap().completed, 4);
        split.far.room = 2;
        assert_eq!(split.submit(&batch[4..]).unwrap(), 3);
        assert_eq!(split.poll().unwrap().completed, 3);
        assert_eq!((split.near.taken, split.far.taken), (vec![0, 3, 5, 6], vec![1, 2, 4]));
    }
}
